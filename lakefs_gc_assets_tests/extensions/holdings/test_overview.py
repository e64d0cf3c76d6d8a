"""Overviews of many repositories of an embedded server, over HTTP and with its folders."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.records import run_folder, stored_forecasts, tables
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.errors import ConfigurationError, LakeFSError
from lakefs_gc_assets.extensions.holdings import holdings_files
from lakefs_gc_assets.extensions.holdings.holdings_files import Holdings, HoldingsRow, HoldingState
from lakefs_gc_assets.extensions.holdings.overview import (
    OVERVIEW,
    Alert,
    AlertKind,
    History,
    Overview,
    RepositoryFigures,
    Standing,
    make_overview,
)
from lakefs_gc_assets.lakefs.api.transport import Caller
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.extensions.holdings.lake import GIB, IDS, Lake, lake, made_up_report

__all__ = ["lake"]


def made(lake: Lake, at: datetime = NOW, kept: bool = False) -> Overview:
    """An overview at a time; `kept` stores it."""
    notes: list[str] = []
    overview = make_overview(lake.everything, HandClock(at), notes.append)
    assert not notes
    if kept:
        history = History.from_configuration(lake.everything)
        assert history is not None
        history.write(overview)
    return overview


def row_of(overview: Overview, repository: str) -> RepositoryFigures:
    (row,) = (row for row in overview.rows if row.repository == repository)
    return row


def alerts_of(overview: Overview, kind: AlertKind) -> list[Alert]:
    return [alert for alert in overview.alerts if alert.kind is kind]


def test_new_repositories_appear_and_excluded_ones_do_not(lake: Lake) -> None:
    lake.content["discover"] = {"exclude": ["tmp-*"]}
    for name in ("alpha", "tmp-one"):
        lake.create(name)
    assert [row.repository for row in made(lake).rows] == ["alpha"]
    lake.create("beta")
    overview = made(lake)
    assert [(row.repository, row.standing) for row in overview.rows] == [
        ("alpha", Standing.NO_RUN),
        ("beta", Standing.NO_RUN),
    ]
    assert all(row.stored_bytes is None and row.garbage_bytes is None for row in overview.rows), "unknown is not 0"
    assert overview.totals.unknown == 2


def test_figures_of_a_repository_come_from_its_newest_runs(lake: Lake) -> None:
    lake.create("alpha")
    swept = lake.end_run(
        "alpha",
        3 * DAY,
        dry_run=False,
        ending=Ending.DELETED,
        counts={"listed": 10, "candidates": 3, "deleted": 2, "quarantined": 1},
        object_bytes={"listed": 10 * GIB, "candidates": 3 * GIB, "deleted": 2 * GIB, "quarantined": GIB},
    )
    small = {"counts": {"listed": 1, "candidates": 1}, "object_bytes": {"listed": 5, "candidates": 5}}
    newest = lake.end_run("alpha", DAY, flow="optimized", base_run=swept.run_id, **small)
    lake.content["report"] = {"price_per_gb_month": {"STANDARD": 0.5}, "currency": "EUR"}
    row = row_of(made(lake), "alpha")
    assert row == RepositoryFigures(
        repository="alpha",
        namespace="local://alpha/",
        seen_at=NOW,
        run_id=newest.run_id,
        run_ended_at=newest.ended_at,
        run_succeeded=True,
        stored_objects=7,
        stored_bytes=7 * GIB,
        stored_at=swept.ended_at,
        live_objects=7,
        live_bytes=7 * GIB,
        garbage_objects=1,
        garbage_bytes=5,
        monthly_cost=3.5,
        currency="EUR",
        unpriced_bytes=0,
        swept_at=swept.ended_at,
        rules="all commits stay",
    )


def test_live_bytes_are_unknown_if_unreferenced_objects_were_kept(lake: Lake) -> None:
    lake.create("alpha")
    lake.end_run("alpha", kept={"young": 2})
    row = row_of(made(lake), "alpha")
    assert (row.live_objects, row.live_bytes, row.stored_bytes) == (5, None, 10 * GIB)


@pytest.mark.parametrize(
    "changes",
    [{"limited_to": "window legacy"}, {"address_limit": 1}, {"repository": "another"}],
)
def test_runs_of_a_part_or_of_another_repository_say_nothing(lake: Lake, changes: dict[str, Any]) -> None:
    lake.create("alpha")
    lake.put("alpha", replace(made_up_report("alpha", NOW), **changes))
    row = row_of(made(lake), "alpha")
    assert (row.standing, row.run_id, row.stored_bytes) == (Standing.NO_RUN, None, None)


def test_failed_run_alerts_and_earlier_figures_stay(lake: Lake) -> None:
    lake.create("alpha")
    lake.end_run("alpha", 2 * DAY)
    failed = lake.end_run(
        "alpha", HOUR, success=False, ended_well=None, ending=Ending.FAILED, error="no", counts={}, object_bytes={}
    )
    overview = made(lake)
    row = row_of(overview, "alpha")
    assert (row.stored_bytes, row.garbage_bytes) == (10 * GIB, 3 * GIB)
    (alert,) = overview.alerts
    assert (alert.kind, failed.run_id in alert.text) == (AlertKind.FAILED_RUN, True)


def test_damaged_report_is_passed_over(lake: Lake) -> None:
    folder = lake.create("alpha")
    lake.end_run("alpha", 2 * DAY)
    damaged = lake.end_run("alpha", HOUR)
    (folder / run_folder.report(damaged.run_id)).write_bytes(b"damaged")
    assert row_of(made(lake), "alpha").stored_bytes == 10 * GIB


def test_repository_that_cannot_be_read_leaves_the_others_their_figures(lake: Lake) -> None:
    lake.create("alpha")
    lake.create("beta")
    lake.end_run("alpha")
    lake.content["repositories"] = [
        {"repository": "beta", "store": {"local_root": "/nowhere"}},
        {"repository": "closed", "lakefs": {"secret_access_key": {"env": "TEST_UNSET_SECRET"}}},
        {"repository": "gone"},
    ]
    overview = made(lake)
    standings = {row.repository: row.standing for row in overview.rows}
    assert standings == {
        "alpha": Standing.READ,
        "beta": Standing.UNREADABLE,
        "closed": Standing.UNREADABLE,
        "gone": Standing.VANISHED,
    }
    assert [(alert.repository, alert.kind) for alert in overview.alerts] == [
        ("beta", AlertKind.UNREADABLE),
        ("closed", AlertKind.UNREADABLE),
        ("gone", AlertKind.VANISHED),
    ]
    assert overview.totals.stored_bytes == 10 * GIB and overview.totals.unknown == 2


def test_overview_fails_if_the_server_does_not_list_repositories(lake: Lake) -> None:
    lake.create("alpha")
    made(lake, NOW - DAY, kept=True)
    lake.content["lakefs"]["access_key_id"] = "other"
    with pytest.raises((ConfigurationError, LakeFSError)):
        made(lake)


def test_vanished_repository_stays_with_its_last_figures(lake: Lake) -> None:
    lake.create("alpha")
    lake.create("beta")
    lake.end_run("beta", 4 * DAY)
    made(lake, NOW - 2 * DAY, kept=True)
    lake.content["discover"] = {"exclude": ["beta"]}
    first = made(lake, NOW - DAY, kept=True)
    (alert,) = alerts_of(first, AlertKind.VANISHED)
    assert alert.repository == "beta"
    later = made(lake)
    row = row_of(later, "beta")
    assert (row.standing, row.stored_bytes, row.seen_at) == (Standing.VANISHED, 10 * GIB, NOW - 2 * DAY)
    assert not alerts_of(later, AlertKind.VANISHED), "it alerts once"
    assert later.totals.repositories == 1 and later.totals.stored_bytes == 0
    lake.content["discover"] = {}
    assert row_of(made(lake), "beta").standing is Standing.READ


def grown(lake: Lake, *gib_by_day: int) -> Overview:
    """The overview after listings on successive days, the last one now, each with an overview that is kept."""
    for ago, gib in zip(range(len(gib_by_day) - 1, -1, -1), gib_by_day, strict=True):
        lake.end_run("alpha", ago * DAY, object_bytes={"listed": gib * GIB, "candidates": 0})
        overview = made(lake, NOW - ago * DAY + HOUR, kept=True)
    return overview


def test_growth_by_more_than_a_share_in_a_week_alerts(lake: Lake) -> None:
    lake.create("alpha")
    (alert,) = alerts_of(grown(lake, 100, *[100] * 6, 126), AlertKind.GROWTH)
    assert alert.text == f"26.0 GiB (26%) more than on {NOW - 7 * DAY:%F}"
    lake.content["overview"]["growth_alert_share"] = 0.3
    assert not alerts_of(made(lake), AlertKind.GROWTH)


def test_growth_in_more_than_two_weeks_does_not_alert(lake: Lake) -> None:
    lake.create("alpha")
    for ago, gib in ((20 * DAY, 100), (0 * DAY, 200)):
        lake.end_run("alpha", ago, object_bytes={"listed": gib * GIB, "candidates": 0})
        overview = made(lake, NOW - ago + HOUR, kept=True)
    assert not overview.alerts, "the growth of a week is unknown"


def test_overview_of_a_clock_that_ran_ahead_is_left_out(lake: Lake) -> None:
    lake.create("alpha")
    made(lake, NOW + DAY, kept=True)
    assert len(made(lake).days) == 1


def test_budget_alerts_before_it_breaks_and_proposes_rules(lake: Lake) -> None:
    folder = lake.create("alpha")
    lake.content["discover"] = {"defaults": {"al*": {"overview": {"budget": "150 GiB", "budget_alert_days": 10}}}}
    overview = grown(lake, 100, 102, 104)
    assert not overview.alerts, "the trend breaks it in 23 days"
    assert row_of(overview, "alpha").bytes_per_day == pytest.approx(2 * GIB)

    lake.content["discover"]["defaults"]["al*"]["overview"]["budget"] = "120 GiB"
    (alert,) = made(lake, NOW + HOUR).alerts
    assert alert.kind is AlertKind.BUDGET and not alert.proposals
    assert f"above its budget of 120.0 GiB on {NOW + 8 * DAY:%F}" in alert.text
    assert "lakefs-gc forecast --repository alpha" in alert.text

    lake.content["discover"]["defaults"]["al*"]["overview"]["budget"] = "90 GiB"
    write_forecast(folder, NOW - 9 * DAY, ("age", "30 days", 30, 20 * GIB), ("age", "90 days", 90, GIB))
    (alert,) = made(lake, NOW + HOUR).alerts
    assert alert.text == "14.0 GiB above its budget of 90.0 GiB"
    assert [proposal.rules for proposal in alert.proposals] == ["30 days"]


def write_forecast(folder: Path, at: datetime, *rows: tuple[Any, ...]) -> None:
    """Stores a forecast with rows of kind, name, days and bytes: freed, or held alone by a stale branch."""
    names = ("kind", "name", "days", "freed_bytes")
    content = [
        {**dict(zip(names, row, strict=True)), "freed_objects": 1, "alone_bytes": row[3], "stale": row[1] != "main"}
        for row in rows
    ]
    key = stored_forecasts.forecast_key(IDS.descending(at))
    LocalStore(folder).put(key, tables.encode(pa.Table.from_pylist(content, schema=stored_forecasts.FORECAST)))


def test_bytes_of_stale_branches_come_from_a_forecast(lake: Lake) -> None:
    folder = lake.create("alpha")
    lake.end_run("alpha", DAY)
    write_forecast(folder, NOW - 3 * HOUR, ("branch", "old", None, 1000))
    write_forecast(
        folder, NOW - HOUR, ("branch", "old", None, 7), ("branch", "older", None, 5), ("branch", "main", None, 70)
    )
    assert row_of(made(lake), "alpha").stale_bytes == 12


def test_forecast_before_the_newest_sweep_says_nothing(lake: Lake) -> None:
    folder = lake.create("alpha")
    listing = lake.end_run("alpha", 3 * DAY)
    write_forecast(folder, NOW - 2 * DAY, ("branch", "old", None, 7))
    assert row_of(made(lake), "alpha").stale_bytes == 7
    lake.end_run("alpha", DAY, flow="optimized", base_run=listing.run_id, dry_run=False, ending=Ending.DELETED)
    row = row_of(made(lake), "alpha")
    assert (row.stale_bytes, row.stored_at) == (None, listing.ended_at)


def test_newer_holdings_give_all_stored_bytes(lake: Lake) -> None:
    folder = lake.create("alpha")
    listed = lake.end_run("alpha", 2 * DAY)
    states = {
        HoldingState.HEAD: 60,
        HoldingState.HISTORY: 5,
        HoldingState.GARBAGE: 20,
        HoldingState.EXPIRED: 10,
        HoldingState.METADATA: 4,
    }
    rows = [HoldingsRow("state", state, None, state, 1, count) for state, count in states.items()]
    rows += [HoldingsRow("path", key, None, HoldingState.HEAD, 1, count) for key, count in (("a/", 50), ("", 10))]
    rows.append(HoldingsRow("storage_class", "STANDARD", None, HoldingState.HEAD, 1, 99))
    holdings = Holdings("alpha", "local://alpha/", listed.run_id, NOW - DAY, "", tuple(rows))
    holdings_files.write(LocalStore(folder), holdings)
    overview = made(lake)
    row = row_of(overview, "alpha")
    assert (row.stored_bytes, row.live_bytes, row.garbage_bytes, row.stored_at) == (99, 65, 30, NOW - DAY)
    assert overview.paths == {"alpha": {"a/": 50, "(top level)": 10}}

    assert row.monthly_cost is None
    lake.content["report"] = {"price_per_gb_month": {"STANDARD": 2**30}}
    assert row_of(made(lake), "alpha").monthly_cost == 99
    without_classes = replace(holdings, rows=tuple(rows[:-1]))
    holdings_files.write(LocalStore(folder), without_classes)
    assert row_of(made(lake), "alpha").monthly_cost == 99, "the classes are those of the newest listing"

    unknown = HoldingsRow("state", "young", None, HoldingState.YOUNG, 1, None)
    left_out = [row for row in rows if row.state is not HoldingState.HISTORY]
    for incomplete in ((*rows, unknown), left_out):
        holdings_files.write(LocalStore(folder), replace(holdings, rows=tuple(incomplete)))
        row = row_of(made(lake), "alpha")
        assert (row.stored_bytes, row.stored_at) == (10 * GIB, listed.ended_at), "the listing knows the sum"

    lake.end_run("alpha")
    assert row_of(made(lake), "alpha").stored_bytes == 10 * GIB, "a newer listing counts"


def test_unreadable_earlier_overview_is_noted_and_left_out(lake: Lake) -> None:
    lake.create("alpha")
    made(lake, NOW - DAY, kept=True)
    store = LocalStore(lake.server.objects_folder / "overviews")
    (stored,) = store.list_level("").objects
    store.put(stored.key, b"damaged")
    store.put("notes.txt", b"of a person")
    notes: list[str] = []
    overview = make_overview(lake.everything, HandClock(NOW), notes.append)
    assert len(notes) == 1 and stored.key in notes[0]
    assert len(overview.days) == 1


def test_stored_overview_has_every_figure(lake: Lake) -> None:
    lake.create("alpha")
    lake.end_run("alpha")
    before = made(lake, NOW - DAY, kept=True)
    assert OVERVIEW.names == [each.name for each in fields(RepositoryFigures)]
    assert made(lake).days[0] == before.totals


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts requests to the server and the stores."""
    counts: Counter[str] = Counter()

    def counted(owner: type, name: str) -> None:
        method: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    counted(Caller, "ask")
    for name in ("get", "list_level", "put"):
        counted(LocalStore, name)
    return counts


def test_repository_with_a_fresh_sweep_takes_two_requests(lake: Lake, requests: Counter[str]) -> None:
    lake.create("alpha")
    lake.end_run("alpha", dry_run=False, ending=Ending.NOTHING_TO_DELETE)
    lake.content["overview"] = {}
    requests.clear()
    made(lake)
    assert requests == {"ask": 1, "list_level": 1, "get": 1}


@pytest.mark.slow
def test_thousand_repositories(lake: Lake, requests: Counter[str]) -> None:
    """Prints time and requests; each repository has a sweep and two dry runs since, and 30 overviews were kept."""
    names = [f"repository-{number:04}" for number in range(1000)]
    for name in names:
        lake.create(name)
        swept = lake.end_run(name, 3 * DAY, dry_run=False, ending=Ending.DELETED)
        for ago in (2 * DAY, DAY):
            lake.end_run(name, ago, flow="optimized", base_run=swept.run_id)
    first = made(lake, NOW - 30 * DAY, kept=True)
    history = History.from_configuration(lake.everything)
    assert history is not None
    for days in range(29, 0, -1):
        history.write(replace(first, time=NOW - days * DAY))
    requests.clear()
    started, processor = time.monotonic(), time.process_time()
    overview = made(lake, kept=True)
    seconds, processor = time.monotonic() - started, time.process_time() - processor
    (file,) = (each for each in history.store.list_level("").objects if f"{NOW:%Y%m%d}" in each.key)
    print(f"1,000 repositories: {processor:.1f} s of processor time, {seconds:.1f} s, {dict(requests)}, {file.size} B")
    assert len(overview.rows) == overview.totals.repositories == 1000
    assert overview.totals.stored_bytes == 1000 * 10 * GIB
    assert requests["ask"] <= 2 and requests["get"] <= 3 * 1000 + 30 and requests["list_level"] <= 1001 + 1


def test_interrupted_dry_run_does_not_alert(lake: Lake) -> None:
    lake.create("alpha")
    newest = lake.end_run("alpha", DAY)
    broken_off = {"ending": Ending.FAILED, "error": "interrupted", "success": False, "ended_well": None}
    lake.end_run("alpha", HOUR, counts={}, object_bytes={}, storage_classes={}, **broken_off)
    overview = made(lake)
    assert row_of(overview, "alpha").run_id == newest.run_id and not overview.alerts


def test_entry_of_another_server_is_not_taken_from_this_one(lake: Lake) -> None:
    lake.create("alpha")
    lake.end_run("alpha")
    elsewhere = {"endpoint": "http://127.0.0.1:1", "retries": 0, "connect_timeout_seconds": 1}
    lake.content["repositories"] = [{"repository": "alpha", "lakefs": elsewhere}]
    (row,) = made(lake).rows
    assert (row.standing, row.stored_bytes) == (Standing.UNREADABLE, None)


def test_label_of_an_entry_hides_a_discovered_repository_of_this_name(lake: Lake) -> None:
    lake.create("alpha")
    lake.create("beta")
    lake.end_run("beta")
    lake.content["repositories"] = [{"repository": "beta", "name": "alpha"}]
    (row,) = made(lake).rows
    assert (row.repository, row.namespace, row.stored_bytes) == ("alpha", "local://beta/", 10 * GIB)


def test_secret_that_a_pattern_lacks_concerns_its_repositories_alone(lake: Lake) -> None:
    lake.create("alpha")
    lake.create("beta")
    lake.end_run("alpha")
    unset = {"lakefs": {"secret_access_key": {"env": "TEST_UNSET_SECRET"}}}
    lake.content["discover"] = {"defaults": {"be*": unset}}
    overview = made(lake)
    assert [row.standing for row in overview.rows] == [Standing.READ, Standing.UNREADABLE]
    assert "TEST_UNSET_SECRET" in row_of(overview, "beta").why


def test_secret_of_shared_sections_is_not_needed_if_every_entry_has_its_own(lake: Lake) -> None:
    lake.create("alpha")
    lake.end_run("alpha")
    own = dict(lake.content["lakefs"])
    lake.content["lakefs"]["secret_access_key"] = {"env": "TEST_UNSET_SECRET"}
    del lake.content["discover"], lake.content["overview"]
    lake.content["repositories"] = [{"repository": "alpha", "lakefs": own}]
    assert row_of(made(lake), "alpha").standing is Standing.READ
