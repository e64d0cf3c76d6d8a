import pytest

from lakefs_gc_assets_tests.simulation.bugs import BUGS
from lakefs_gc_assets_tests.simulation.histories import generate
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play

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
    "6 hours instead of 24": 1,
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
    "resume without recheck": 1199,
    "two collectors at once": 213,
    "receipts written before the delete": 0,
    "success claimed on partial failure": 39,
}
"""The first seed whose history shows the bug; `make soak` looks for them afresh."""


def test_every_bug_has_a_history() -> None:
    assert FOUND_BY.keys() == BUGS.keys()


@pytest.mark.parametrize(("name", "seed"), FOUND_BY.items())
def test_the_bug_is_noticed(name: str, seed: int) -> None:
    bug = BUGS[name]
    with bug.patches(), pytest.raises(Violation) as caught:
        play(generate(seed), make_run=bug.run)
    assert type(caught.value) is Violation, "a crash, or garbage that stays, is not what is wrong"


@pytest.mark.parametrize("seed", sorted(set(FOUND_BY.values())))
def test_without_a_bug_the_same_history_passes(seed: int) -> None:
    play(generate(seed))
