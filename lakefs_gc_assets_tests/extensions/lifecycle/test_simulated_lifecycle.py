import pytest

from lakefs_gc_assets_tests.extensions.lifecycle.history_bugs import LIFECYCLE_HISTORY_BUGS, STALE_BRANCH_BUGS
from lakefs_gc_assets_tests.extensions.lifecycle.simulated_lifecycle import generate, play
from lakefs_gc_assets_tests.simulation.oracle import Violation

FOUND_BY = {
    "deletes on the branch itself": 0,
    "branches of its own left": 8,
    "revert overwrites paths written again": 8,
    "own time taken for the time at which an entry came": 64,
    "receipts of its commits forgotten": 0,
}
"""A seed whose history shows each bug."""
STALE_FOUND_BY = {"last commit of a branch ignored": 0, "uncommitted changes of a stale branch ignored": 7}
"""The same for bugs of stale branches."""


def test_every_bug_has_a_history_and_changes_the_product() -> None:
    assert FOUND_BY.keys() == LIFECYCLE_HISTORY_BUGS.keys()
    assert STALE_FOUND_BY.keys() == STALE_BRANCH_BUGS.keys()
    assert all(bug.changes for bug in (*LIFECYCLE_HISTORY_BUGS.values(), *STALE_BRANCH_BUGS.values()))


@pytest.mark.parametrize("name", FOUND_BY)
def test_the_bug_is_noticed(name: str) -> None:
    with pytest.raises(Violation) as caught:
        play(generate(FOUND_BY[name]), LIFECYCLE_HISTORY_BUGS[name])
    assert type(caught.value) is Violation, "a crash, or garbage that stays, is not what is wrong"


@pytest.mark.parametrize("seed", sorted({*FOUND_BY.values()}))
def test_without_a_bug_the_same_history_passes(seed: int) -> None:
    played = play(generate(seed))
    assert played.expired and played.deleted


@pytest.mark.parametrize("name", STALE_FOUND_BY)
def test_a_bug_of_stale_branches_is_noticed(name: str) -> None:
    with pytest.raises(Violation) as caught:
        play(generate(STALE_FOUND_BY[name], retires=True), STALE_BRANCH_BUGS[name])
    assert type(caught.value) is Violation


def test_stale_branches_go_beside_lifecycle_and_collectors() -> None:
    assert sum(play(generate(seed, retires=True)).retired for seed in range(8))


@pytest.mark.slow
@pytest.mark.parametrize("retires", [False, True])
def test_many_histories_pass(retires: bool) -> None:
    played = [play(generate(seed, retires=retires)) for seed in range(100, 160)]
    assert sum(each.expired for each in played) > 50 and sum(each.came_back for each in played) > 20
    assert not retires or sum(each.retired for each in played) > 10
