from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records.stored_forecasts import FORECAST
from lakefs_gc_assets.extensions.holdings.budgets import Measurement, Trend, propose

START = datetime(2026, 11, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def measured(*bytes_by_day: int) -> list[Measurement]:
    return [Measurement(START + day * DAY, count) for day, count in enumerate(bytes_by_day)]


@given(
    start=st.integers(0, 10**15),
    rise=st.integers(-(10**12), 10**12),
    days=st.lists(st.integers(0, 40), min_size=3, max_size=12, unique=True).filter(
        lambda days: max(days) - min(days) > 1
    ),
)
def test_trend_of_points_on_a_line_is_that_line(start: int, rise: int, days: list[int]) -> None:
    trend = Trend.from_measurements([Measurement(START + day * DAY, start + rise * day) for day in sorted(days)])
    assert trend is not None and trend.bytes_per_day == pytest.approx(rise, rel=1e-6, abs=10)


@pytest.mark.parametrize("bytes_by_day", [(), (1,), (1, 2)])
def test_few_measurements_have_no_trend(bytes_by_day: tuple[int, ...]) -> None:
    assert Trend.from_measurements(measured(*bytes_by_day)) is None


def test_measurements_of_one_day_have_no_trend() -> None:
    assert Trend.from_measurements([Measurement(START + hour * DAY / 24, hour) for hour in range(20)]) is None


def test_budget_breaks_when_the_trend_reaches_it() -> None:
    trend = Trend.from_measurements(measured(100, 110, 120))
    assert trend is not None
    assert trend.reaches(150) == START + 5 * DAY
    assert trend.reaches(119) == START + 2 * DAY, "it is broken already"
    falling = Trend.from_measurements(measured(120, 110, 100))
    assert falling is not None and falling.reaches(150) is None
    slow = Trend.from_measurements([*measured(0, 0, 0, 0), Measurement(START + 5 * DAY, 1)])
    assert slow is not None and slow.reaches(10**15) is None


def forecast(*rows: tuple[str, str, int | None, int]) -> pa.Table:
    names = ("kind", "name", "days", "freed_bytes")
    figures = {"freed_objects": 5, "commits_expired": 2}
    return pa.Table.from_pylist([{**dict(zip(names, row, strict=True)), **figures} for row in rows], schema=FORECAST)


def test_rules_that_keep_a_budget_are_proposed_gentlest_first() -> None:
    rows = forecast(
        ("in force", "rules in force", None, 990),
        ("age", "7 days", 7, 900),
        ("age", "30 days", 30, 500),
        ("age", "90 days", 90, 399),
        ("policy", "strict.yaml", None, 400),
        ("branch", "exp", None, 999),
    )
    proposals = [*propose(rows, stored_bytes=1000, budget=600)]
    assert [(each.rules, each.remaining_bytes) for each in proposals] == [
        ("strict.yaml", 600),
        ("30 days", 500),
        ("7 days", 100),
    ]
    assert str(proposals[1]) == "30 days: 500 B would stay; it loses 2 commits, 5 objects and 500 B"


def test_no_rules_are_proposed_if_none_frees_enough() -> None:
    assert not [*propose(forecast(("age", "0 days", 0, 100)), stored_bytes=1000, budget=600)]
