import pytest

from lakefs_gc_assets_tests.extensions.lifecycle.history_bugs import LIFECYCLE_HISTORY_BUGS
from lakefs_gc_assets_tests.extensions.lifecycle.simulated_lifecycle import generate, play
from lakefs_gc_assets_tests.simulation.oracle import Violation

FOUND_BY = {
    "deletes on the branch itself": 0,
    "branches of its own left": 0,
    "revert overwrites paths written again": 8,
    "own time taken for the time at which an entry came": 64,
    "receipts of its commits forgotten": 0,
}
"""A seed whose history shows each bug."""


def test_every_bug_has_a_history_and_changes_the_product() -> None:
    assert FOUND_BY.keys() == LIFECYCLE_HISTORY_BUGS.keys()
    assert all(bug.changes for bug in LIFECYCLE_HISTORY_BUGS.values())


@pytest.mark.parametrize("name", FOUND_BY)
def test_the_bug_is_noticed(name: str) -> None:
    with pytest.raises(Violation) as caught:
        play(generate(FOUND_BY[name]), LIFECYCLE_HISTORY_BUGS[name])
    assert type(caught.value) is Violation, "a crash, or garbage that stays, is not what is wrong"


@pytest.mark.parametrize("seed", sorted({*FOUND_BY.values()}))
def test_without_a_bug_the_same_history_passes(seed: int) -> None:
    played = play(generate(seed))
    assert played.expired and played.deleted
