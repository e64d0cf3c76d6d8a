from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF, UNCOMMITTED_DF
from lakefs_gc_assets.collector.reporting import (
    find_empty_live_set,
    find_live_candidates,
    find_losses,
    find_young_candidates,
)
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector import made_frames
from lakefs_gc_assets_tests.collector.made_frames import (
    CANDIDATE_FIGURES,
    COMMITTED_FIGURES,
    UNCOMMITTED_FIGURES,
    frame_of_rows,
    made_frame,
)
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

ENGINE = LocalEngine()
CUTOFF = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def opener(tmp_path: Path) -> StoreOpener:
    (tmp_path / "repository").mkdir()
    return StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://repository")


def test_candidates_that_are_live_are_reported(opener: StoreOpener) -> None:
    rows = [listed(f"data/{number}") for number in range(60)]
    candidates = frame_of_rows(opener, CANDIDATES_DF, rows, CANDIDATE_FIGURES)
    held = [live(f"data/{number}") for number in range(25, 90)]
    committed = frame_of_rows(opener, COMMITTED_DF, [*held, live("data/25")], COMMITTED_FIGURES)
    staged = frame_of_rows(opener, UNCOMMITTED_DF, [live("data/7")], UNCOMMITTED_FIGURES)
    nothing = frame_of_rows(opener, UNCOMMITTED_DF, [], UNCOMMITTED_FIGURES)

    (violation,) = find_live_candidates(ENGINE, candidates, nothing, committed)
    both = find_live_candidates(ENGINE, candidates, staged, committed)

    assert (violation.rule, violation.rows) == ("disjoint from committed_df", 35)
    assert len(set(violation.detail.split(", "))) == 20
    assert [(each.rule, each.rows) for each in both] == [("disjoint from uncommitted_df", 1), (violation.rule, 35)]
    others = frame_of_rows(opener, CANDIDATES_DF, rows[:7] + rows[8:20], CANDIDATE_FIGURES)
    assert find_live_candidates(ENGINE, others, staged, committed) == []


@pytest.mark.parametrize(
    ("change", "young"),
    [
        ({}, False),
        ({"last_modified": CUTOFF}, True),
        ({"last_modified": CUTOFF - timedelta(microseconds=1)}, False),
        ({"issued_at": CUTOFF}, True),
        ({"issued_at": CUTOFF - timedelta(microseconds=1)}, False),
        ({"issued_at": None}, False),
        ({"issued_at": None, "last_modified": CUTOFF}, True),
    ],
)
def test_candidates_as_young_as_the_cutoff_are_reported(
    opener: StoreOpener, change: dict[str, Any], young: bool
) -> None:
    rows = [listed("data/a", **change), listed("data/b")]

    found = find_young_candidates(ENGINE, frame_of_rows(opener, CANDIDATES_DF, rows, CANDIDATE_FIGURES), CUTOFF)

    assert [violation.rows for violation in found] == ([1] if young else [])


@pytest.mark.parametrize(("committed", "candidates", "reported"), [(0, 1, True), (1, 1, False), (0, 0, False)])
def test_an_empty_live_set_is_reported_where_anything_would_go(committed: int, candidates: int, reported: bool) -> None:
    frames = made_frames.listed(100), made_frames.uncommitted(0), made_frames.committed(committed)

    found = find_empty_live_set(*frames, made_frames.candidates(candidates))

    assert [violation.rule for violation in found] == (["empty live set"] if reported else [])


def test_what_earlier_runs_deleted_and_is_held_is_reported() -> None:
    lost = replace(CANDIDATE_FIGURES, lost=2, lost_examples=("data/a", "data/b"))

    (violation,) = find_losses(made_frame(CANDIDATES_DF, 1, lost))

    assert (violation.rule, violation.rows) == ("nothing deleted is live", 2)
    assert "data/a, data/b" in violation.detail and "lakefs-gc restore" in violation.detail
    assert find_losses(made_frames.candidates(1)) == []
