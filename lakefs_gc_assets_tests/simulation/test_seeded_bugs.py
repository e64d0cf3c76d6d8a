import pytest

from lakefs_gc_assets_tests.simulation import chains, histories
from lakefs_gc_assets_tests.simulation.bugs import BUGS, Bug
from lakefs_gc_assets_tests.simulation.chain_bugs import CHAIN_BUGS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import History, play

FOUND_BY = {
    "committed read before uncommitted": 65,
    "listing after prepare": 18,
    "copies read first": 28,
    "the last page's location only": 13,
    "an empty page taken for the end": 5,
    "a branch deleted during prepare unnoticed": 28,
    "empty live set accepted": 1,
    "cutoff from LastModified alone": 116,
    "cutoff from the name alone": 8,
    "6 hours instead of 24": 4,
    "no skew": 985,
    "the earliest clock for mark too old": 143,
    "dump taken as a snapshot": 19,
    "tags forgotten": 19,
    "hidden staged entries ignored": 7,
    "multipart seen once": 4,
    "a range skipped on error": 2,
    "trailing slash and //": 35,
    "full addresses not normalised": 2,
    "hash used in an intersection": 193,
    "frames of two attempts mixed": 30,
    "recheck without new commits": 140,
    "recheck older than the sweep": 539,
    "resume without recheck": 193,
    "two collectors at once": 213,
    "receipts written before the delete": 0,
    "success claimed on partial failure": 39,
}
"""The first seed whose history of clean runs shows the bug; `make soak` looks for them afresh."""

CHAINS_FOUND_BY = {
    "new commits chosen by date": 4,
    "new commits chosen by the last run's timestamp": 4,
    "stop at the last read slice": 0,
    "open without subtracting committed": 0,
    "too young without subtracting committed": 28,
    "ranges of the recheck marked as read": 3,
    "settled recomputed and shrinking": 0,
    "carried committed left out": 0,
    "failed deletions dropped": 12,
    "a dry run as predecessor": 0,
    "carry without success": 0,
    "first slice from an unsorted frame": 0,
    "rows outside the run's windows dropped from the carry": 1,
}
"""The same for histories of optimized runs."""


def test_every_bug_has_a_history() -> None:
    assert FOUND_BY.keys() == BUGS.keys()
    assert CHAINS_FOUND_BY.keys() == CHAIN_BUGS.keys()


@pytest.mark.parametrize(("name", "seed"), FOUND_BY.items())
def test_the_bug_is_noticed(name: str, seed: int) -> None:
    require_noticed(histories.generate(seed), BUGS[name])


@pytest.mark.parametrize(("name", "seed"), CHAINS_FOUND_BY.items())
def test_the_bug_of_optimized_runs_is_noticed(name: str, seed: int) -> None:
    require_noticed(chains.generate(seed), CHAIN_BUGS[name])


def require_noticed(history: History, bug: Bug) -> None:
    with bug.patches(), pytest.raises(Violation) as caught:
        play(history, make_run=bug.run)
    assert type(caught.value) is Violation, "a crash, or garbage that stays, is not what is wrong"


@pytest.mark.parametrize("seed", sorted(set(FOUND_BY.values())))
def test_without_a_bug_the_same_history_passes(seed: int) -> None:
    play(histories.generate(seed))


@pytest.mark.parametrize("seed", sorted(set(CHAINS_FOUND_BY.values())))
def test_without_a_bug_the_same_history_of_optimized_runs_passes(seed: int) -> None:
    play(chains.generate(seed))
