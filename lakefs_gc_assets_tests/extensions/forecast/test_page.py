"""The page of a forecast: its text and drawings, for any size and any names."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.forecast import page
from lakefs_gc_assets.extensions.forecast.forecast import (
    ByFolder,
    FolderHolding,
    Forecast,
    Freed,
    Holding,
    ListedClasses,
    Portion,
)
from lakefs_gc_assets.extensions.forecast.scenarios import AGES, ByteHolder, Scenario
from lakefs_gc_assets.settings import ReportSettings
from lakefs_gc_assets_tests.collector.page.test_markup import HOSTILE, read

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
GIB = 2**30


def made(name: str = "dev", holders: int = 2, folders: int = 2, in_force: int = 3 * GIB) -> Forecast:
    rules = [Freed(Scenario(ScenarioKind.IN_FORCE, "rules in force", 4), Amount(9, in_force))]
    for place, days in enumerate(AGES):
        called = "unlimited" if days is None else counted(days, "days")
        rules.append(
            Freed(Scenario(ScenarioKind.AGE, called, 10 - place, days), Amount(10 - place, (10 - place) * GIB))
        )
    rules.append(Freed(Scenario(ScenarioKind.POLICY, f"{name}.yaml", 1, notes=(f"no branch {name}",)), Amount(1, GIB)))
    holdings = [
        Holding(
            ByteHolder(ScenarioKind.BRANCH, f"{name}{number or ''}", 3, NOW - timedelta(days=number), stale=not number),
            Amount(10, (1000 - number) * GIB),
            Amount(1, 2 * GIB),
            Freed(Scenario(ScenarioKind.BRANCH, name, 4), Amount(8, 2 * GIB)),
        )
        for number in range(holders)
    ]
    holdings.append(Holding(ByteHolder(None, "dangling commits, pins and others", 0), Amount(), Amount()))
    portion, none = Portion(Amount(2, GIB), Amount(1, GIB)), Portion(Amount(), Amount())
    reported = tuple(
        FolderHolding(f"{name}/{number}/" if number else "", Amount(2, GIB), (*[portion] * holders, none))
        for number in range(folders)
    )
    others = FolderHolding(None, Amount(7, 5 * GIB), tuple([portion] * (holders + 1)))
    by_folder = ByFolder(2, reported, others, 5)
    return Forecast("repo", "id", NOW, NOW, 9, 9, Amount(99, 99 * GIB), tuple(rules), tuple(holdings), True, by_folder)


def test_what_rules_would_free_costs_what_the_listed_classes_do() -> None:
    assert "Storage classes" not in text(made()) and " a month" not in text(made())
    priced = replace(made(), prices=ReportSettings(price_per_gb_month={"STANDARD": 2, "GLACIER": 1}))
    assert "of that, which cost 0.00 USD a month (3.0 GiB have no price for their storage class)." in text(priced)
    amounts = {"GLACIER": Amount(1, 30 * GIB), "STANDARD": Amount(9, 10 * GIB)}
    reported = text(replace(priced, listed=ListedClasses("run", NOW, amounts)))
    assert "of that, which cost 3.75 USD a month. Nothing" in reported
    assert "30 days | 5 | 5 | 5.0 GiB | 2.0 GiB | 6.25 USD a month" in reported
    assert "GLACIER | 1 | 30.0 GiB | STANDARD | 9 | 10.0 GiB" in reported and "as run run listed them" in reported


def test_with_quarantine_it_says_when_bytes_are_freed() -> None:
    sentence = "sweeps move objects to quarantine, which frees nothing: a purge frees their bytes 7 days later"
    assert sentence in text(replace(made(), quarantine_days=7))
    assert "quarantine" not in text(made())


def text(found: Forecast) -> str:
    return " | ".join(read(page.render(found)).text)


def test_it_says_what_the_forecast_says() -> None:
    reported = text(made())

    assert "9 commits hold 99 objects, 99.0 GiB. By the rules in force a run would free 3.0 GiB of that." in reported
    assert "30 days | 5 | 5 | 5.0 GiB | 2.0 GiB" in reported and "90 days | 3 | 3 | 3.0 GiB | 0 B" in reported
    assert "dev.yaml | 1 | 1 | 1.0 GiB | -2.0 GiB" in reported and "dev.yaml: no branch dev" in reported
    assert "branch dev | 3 | 10 | 1,000.0 GiB | 2.0 GiB | 998.0 GiB | -1.0 GiB | 2026-11-22, stale" in reported
    assert "(dangling commits, pins and others) | 0 | 0 | 0 B" in reported
    assert "(top level) | 2 | 1.0 GiB | branch dev 1.0 GiB, branch dev1 1.0 GiB" in reported
    assert "(5 smaller ones) | 7 | 5.0 GiB" in reported
    assert "collection.hidden_suspect_limit" in reported


def test_the_curve_goes_down_with_days_within_its_drawing() -> None:
    reader = read(page.render(made()))
    attributes = dict(reader.attributes)
    points = [tuple(map(float, point.split(","))) for point in (attributes["points"] or "").split()]
    assert len(points) == sum(each.scenario.days is not None for each in made().rules)
    assert points == sorted(points)
    assert [y for _, y in points] == sorted(y for _, y in points)
    (box,) = {value for name, value in reader.attributes if name == "viewbox" and value != "0 0 100 10"}
    left, top, width, height = map(float, (box or "").split())
    assert all(left <= x <= left + width and top <= y <= top + height for x, y in points)
    assert {"10.0 GiB", "rules in force: 3.0 GiB", "0", "365"} <= set(reader.text)
    assert any(name == "aria-label" and "rules in force: 3.0 GiB" in str(value) for name, value in reader.attributes)


@pytest.mark.parametrize("in_force", [0, 20 * GIB])
def test_a_forecast_that_frees_nothing_or_less_than_the_rules_has_its_curve(in_force: int) -> None:
    found = made(in_force=in_force)
    rules = [found.rules[0], *(replace(each, amount=Amount()) for each in found.rules[1:])]
    reader = read(page.render(replace(found, rules=tuple(rules))))
    assert "polyline" in reader.tags
    assert f"would free {'0 B' if not in_force else '20.0 GiB'}" in " | ".join(reader.text)


@pytest.mark.parametrize("days", [(), (5,), (5, 5)])
def test_ages_that_make_no_curve_are_reported_all_the_same(days: tuple[int, ...]) -> None:
    found = made()
    rules = tuple(Freed(Scenario(ScenarioKind.AGE, counted(each, "days"), 1, each), Amount(1, 1)) for each in days)
    changed = Forecast("repo", "id", NOW, NOW, 9, 9, Amount(9, 9), (found.rules[0], *rules), found.holdings)
    assert "polyline" not in read(page.render(changed)).tags
    assert text(changed).count("5 days") == len(days)


def test_a_large_one_is_cut_and_says_so() -> None:
    rendered = page.render(made(holders=1500, folders=100))
    assert len(rendered) < 1_000_000
    assert "1,201 more are in forecast.parquet" in " | ".join(read(rendered).text)
    assert "1,495 more" in " | ".join(read(rendered).text)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_text(name: str) -> None:
    plain, hostile = read(page.render(made())), read(page.render(made(name)))
    assert hostile.tags == plain.tags
    assert all(words.isprintable() for words in hostile.text)
    assert [each for each, _ in hostile.attributes] == [each for each, _ in plain.attributes]
