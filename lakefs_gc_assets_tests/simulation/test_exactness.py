"""Allowed differences between optimized and clean runs: a history for each, and checks that no other passes."""

from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.frame.slices import UnsealedSlices
from lakefs_gc_assets_tests.simulation.clocks import HOUR
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import History, Result, Step, play
from lakefs_gc_assets_tests.simulation.run_oracles import Exactness
from lakefs_gc_assets_tests.simulation.world import Setup

OLD = Step("time", "seconds", (int(30 * HOUR),))
REPLACED = (Step("w0", "upload_now", (0, 0, 1, 0)), Step("w0", "upload_now", (0, 0, 2, 0)))
"""The first of two objects at one path is garbage."""
FINISH = Step("c0", "finish")
CLEAN, OPTIMIZED = ((Step("c0", "start", (1, 0, 0, 0, flow, 0)), FINISH) for flow in range(2))
SETTLED = (*REPLACED, Step("w1", "upload", (0, 1, 3, 0)), OLD, *CLEAN)
"""A clean run seals a slice that an unfinished upload belongs to."""
ARRIVED = (Step("w1", "go_on", (0,)), Step("w1", "crash", (0,)), OLD)


def played(*steps: Step, setup: Setup = Setup(old_objects=0)) -> Result:  # noqa: B008
    return play(History(setup, steps), quiet=False)


def test_an_optimized_run_deletes_what_waited_and_what_is_new() -> None:
    reset = Step("w0", "reset_branch", (0,))
    result = played(*REPLACED, OLD, *CLEAN, reset, *REPLACED, OLD, *OPTIMIZED)
    assert (result.deleted, result.figures.optimized, result.compared, result.late) == (3, 1, 1, 0)


class TestLateArrivals:
    def test_they_wait_for_a_clean_run_which_says_so(self) -> None:
        result = played(*SETTLED, *ARRIVED, *OPTIMIZED)
        assert (result.deleted, result.figures.optimized, result.compared) == (1, 1, 1)
        result = played(*SETTLED, *ARRIVED, *OPTIMIZED, *CLEAN)
        assert (result.deleted, result.late) == (2, 1)

    def test_nothing_else_is_called_late(self) -> None:
        with mock.patch.object(Exactness, "_late", lambda *arguments: False):
            with pytest.raises(Violation, match="does not find"):
                played(*SETTLED, *ARRIVED, *OPTIMIZED)
            with pytest.raises(Violation, match="it was there before"):
                played(*SETTLED, *ARRIVED, *CLEAN)


class TestShards:
    """Two servers write to slices of their own. The first upload begins the older slice, which stays empty."""

    SHARDED = Setup(old_objects=0, layout="sharded")
    BEGUN = (Step("w1", "upload", (0, 1, 3, 1)), Step("time", "seconds", (int(HOUR / 6),)))
    LATE = (*BEGUN, *REPLACED, OLD, *CLEAN, *ARRIVED)

    def test_a_slice_that_appears_behind_the_newest_sealed_one_waits_for_a_clean_run(self) -> None:
        result = played(*self.LATE, *OPTIMIZED, setup=self.SHARDED)
        assert (result.deleted, result.figures.optimized, result.compared) == (1, 1, 1)
        result = played(*self.LATE, *OPTIMIZED, *CLEAN, setup=self.SHARDED)
        assert (result.deleted, result.late) == (2, 1)

    def test_all_newer_slices_are_listed(self) -> None:
        newer = (*REPLACED, Step("time", "seconds", (int(2 * HOUR),)), *REPLACED, OLD)
        result = played(*REPLACED, OLD, *CLEAN, *newer, *OPTIMIZED, setup=self.SHARDED)
        # The second and third pair of objects replace the objects of the pair before, too.
        assert (result.deleted, result.figures.optimized, result.compared, result.late) == (5, 1, 1, 0)

    def test_an_object_that_was_there_before_is_not_called_late(self) -> None:
        """A run that stops at the newest slice, sealed or not, is caught."""
        stop = mock.patch.object(UnsealedSlices, "contains", lambda self, keys: pa.repeat(False, len(keys)))
        with stop, pytest.raises(Violation, match="does not find"):
            played(*REPLACED, OLD, *CLEAN, *REPLACED, OLD, *OPTIMIZED, setup=self.SHARDED)


@pytest.mark.parametrize("later", [HOUR, 0])
def test_what_a_store_only_called_deleted_waits_for_a_clean_run(later: float) -> None:
    """A run that lists right after may have another clock: it checks whether the object exists."""
    until_delete, pretend = Step("c0", "until", (7, 1)), Step("c0", "pretend_delete", (1,))
    steps = (*REPLACED, OLD, CLEAN[0], until_delete, pretend, FINISH)
    result = played(*steps, *OPTIMIZED, Step("time", "seconds", (int(later),)), *CLEAN)
    assert (result.figures.optimized, result.deleted, result.late) == (1, 2, 1)


def test_a_run_limited_to_some_windows_is_followed_by_a_clean_one() -> None:
    waits = Step("w0", "upload_now", (0, 1, 3, 0))
    month = Step("time", "seconds", (int(32 * 24 * HOUR),))
    limited = Step("c0", "start", (1, 0, 0, 0, 1, 1))
    result = played(waits, month, *REPLACED, *CLEAN, OLD, limited, FINISH, *OPTIMIZED)
    assert (result.figures.optimized, result.figures.instead) == (1, 1)
