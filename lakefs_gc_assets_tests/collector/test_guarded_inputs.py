"""Checks of a run before any use of its engine."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import DELETED_REPORT, Frame
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep.passes import require_all_decided
from lakefs_gc_assets.errors import CollectionError, GuardTripped
from lakefs_gc_assets_tests.collector.made_frames import SWEPT, candidates, committed, listed, made_frame, uncommitted
from lakefs_gc_assets_tests.collector.past_runs import opened

__all__ = ["opened"]


def test_an_empty_live_set_is_not_swept_even_where_there_are_candidates(opened: OpenRepository) -> None:
    frames: list[StoredFrame[Any]] = [listed(100), uncommitted(0), committed(0), candidates(1)]
    by_name = {each.name: each for each in frames}

    def stored(frame: Frame[Any]) -> StoredFrame[Any]:
        return by_name[frame.name]

    # Any use of an engine fails.
    step = cast(Step[Any], SimpleNamespace(repository=opened, plan=SimpleNamespace(run_id="run"), stored=stored))

    with pytest.raises(GuardTripped, match="empty live set"):
        list(run.sweep_candidates(step, candidates(1)))


def test_outcomes_that_were_lost_end_the_run() -> None:
    require_all_decided(made_frame(DELETED_REPORT, 3, SWEPT), candidates(3))
    with pytest.raises(CollectionError, match="1 of 3 candidates"):
        require_all_decided(made_frame(DELETED_REPORT, 2, SWEPT), candidates(3))
