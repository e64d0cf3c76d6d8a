from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.files import (
    Span,
    require_safe_order,
    require_same_attempt,
    require_same_source,
)
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets_tests.collector.scripted import NOW

NAMES = ("store_df", "uncommitted_df", "committed_df")


def spans(*minutes: int) -> list[Span]:
    """Three frames, from each minute to the next."""
    at = [NOW + timedelta(minutes=minute) for minute in minutes]
    return [Span(name, "run", "attempt", at[2 * n], at[2 * n + 1]) for n, name in enumerate(NAMES)]


def test_one_after_the_other_is_safe() -> None:
    require_safe_order(*spans(0, 1, 2, 3, 4, 5))
    require_safe_order(*spans(0, 1, 1, 2, 2, 3))
    require_safe_order(*spans(0, 0, 0, 0, 0, 0))


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_anything_else_is_not(minutes: list[int]) -> None:
    if minutes == sorted(minutes):
        require_safe_order(*spans(*minutes))
        return
    with pytest.raises(OrderViolation, match="so it may lack live objects"):
        require_safe_order(*spans(*minutes))


def test_a_microsecond_matters() -> None:
    listing, uncommitted, committed = spans(0, 1, 1, 2, 2, 3)
    early = replace(uncommitted, started_at=listing.ended_at - timedelta(microseconds=1))
    with pytest.raises(OrderViolation, match=r"uncommitted_df began at .*:59\.999999Z, before store_df was complete"):
        require_safe_order(listing, early, committed)
    early = replace(committed, started_at=uncommitted.ended_at - timedelta(microseconds=1))
    with pytest.raises(OrderViolation, match="committed_df began at"):
        require_safe_order(listing, uncommitted, early)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "change", [lambda span: replace(span, run_id="another"), lambda span: replace(span, attempt="another")]
)
def test_frames_of_different_attempts_are_never_combined(index: int, change: Callable[[Span], Span]) -> None:
    made = spans(0, 1, 2, 3, 4, 5)
    require_same_attempt(*made)
    changed = [change(span) if n == index else span for n, span in enumerate(made)]
    with pytest.raises(OrderViolation, match="another"):
        require_safe_order(*changed)
    with pytest.raises(OrderViolation, match="another"):
        require_same_attempt(*changed)


def test_times_without_a_zone_are_no_times() -> None:
    listing, uncommitted, committed = spans(0, 1, 2, 3, 4, 5)
    without: datetime = listing.ended_at.replace(tzinfo=None)
    with pytest.raises(TypeError):
        require_safe_order(replace(listing, ended_at=without), uncommitted, committed)


def test_a_recheck_learns_of_commits_as_the_mark_did() -> None:
    require_same_source("metadata folder", "metadata folder")
    with pytest.raises(OrderViolation, match="from the refs dump, at the mark from the metadata folder"):
        require_same_source("refs dump", "metadata folder")
