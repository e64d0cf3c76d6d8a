from collections import Counter

import pytest

from lakefs_gc_assets_tests.simulation.bugs import KINDS, seeded
from lakefs_gc_assets_tests.simulation.faults import scene_before
from lakefs_gc_assets_tests.simulation.guard_bugs import TESTED_BUGS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import Kind, Result, play

FOUND_BY: dict[Kind, dict[str, int]] = {
    "clean": {
        "committed read before uncommitted": 234,
        "listing after prepare": 342,
        "copies read first": 38,
        "the last page's location only": 13,
        "an empty page taken for the end": 5,
        "a branch deleted during prepare unnoticed": 29,
        "empty live set accepted": 234,
        "cutoff from LastModified alone": 116,
        "cutoff from the name alone": 146,
        "6 hours instead of 24": 985,
        "no skew": 985,
        "the earliest clock for mark too old": 771,
        "dump taken as a snapshot": 234,
        "tags forgotten": 234,
        "hidden staged entries ignored": 66,
        "multipart seen once": 66,
        "a range skipped on error": 234,
        "trailing slash and //": 234,
        "full addresses not normalised": 234,
        "hash used in an intersection": 339,
        "frames of two attempts mixed": 43,
        "recheck without new commits": 342,
        "recheck older than the sweep": 539,
        "resume without recheck": 339,
        "two collectors at once": 3188,
        "receipts written before the delete": 234,
        "success claimed on partial failure": 163,
        "mark never too old": 771,
        "dump right after uncommitted data": 234,
        "brought back since: not asked": 68,
        "own addresses: not asked": 626,
        "recheck: source of commits not compared": 339,
        "hooks not looked for": 28,
        "recheck: branches not counted": 227,
        "recheck: uncommitted data not compared": 5,
        "figures: no nested namespaces": 9,
        "figures: other repositories taken for none": 234,
        "figures: no branches before": 66,
        "ranges that no commit names taken for orphans": 9,
        "recheck: ranges that no commit names taken for orphans": 131,
        "gap in the listing not looked for": 130,
        "gap in shards not looked for": 247,
        "guards of amount not raised": 66,
        "what other runs deleted since the listing not asked": 1,
        "other repositories: staged references not asked for": 1,
        "other repositories: commits not asked for": 70,
        "recheck: other repositories not asked again": 26,
        "purge: nothing looked for": 146,
        "restoration not written down": 68,
    },
    "optimized": {
        "what is live for now taken for committed": 15,
        "new commits chosen by date": 4,
        "new commits chosen by the last run's timestamp": 7,
        "stop at the last read slice": 9,
        "pending without subtracting committed": 9,
        "too young without subtracting committed": 2,
        "ranges of the recheck marked as read": 16,
        "sealed recomputed and shrinking": 9,
        "committed left out of the checkpoint": 9,
        "committed in shards left out of the checkpoint": 6,
        "what lies in shards taken for sealed": 6,
        "shards listed down to one slice too early": 6,
        "failed deletions dropped": 12,
        "a dry run as base run": 12,
        "checkpoint without success": 2,
        "first slice from an unsorted frame": 15,
        "rows outside the run's windows dropped from the checkpoint": 1,
    },
    "retention": {
        "rules that cannot be read taken for none": 62,
        "rules that cannot be read taken for zero days": 62,
        "no rules taken for zero days": 1,
        "recheck of new commits alone": 9,
        "recheck of uncommitted data alone": 136,
        "ages from the clock ahead of the others": 8,
        "age not strict": 523,
        "last parents followed": 14,
        "dangling commits ignored": 135,
        "dangling commits taken for heads": 439,
        "a walk's own rule instead of the longest": 14,
        "the oldest commit of each period kept": 96,
        "days that begin at noon": 96,
        "dates in doubt believed": 96,
        "the server's list alone": 439,
        "tags forgotten by retention rules": 439,
        "uncommitted data ignored": 7,
        "what active commits hold not subtracted": 1,
        "age taken from the commit's date": 206,
        "commits of object lifecycle counted": 21,
        "marks of object lifecycle believed without receipts": 21,
        "claimed dates of commits believed": 2,
        "times of files believed in place of dates": 0,
        "failed deletions taken for done": 58,
        "what was brought back taken for gone": 9,
        "recheck: guards of the rules not raised": 439,
        "commits that expire taken for lasting": 135,
        "figures: no guards of the rules": 133,
        "reasons before the recheck forgotten": 136,
    },
    "unified": {
        "what earlier runs counted believed": 1,
        "metaranges looked for where runs begin alone": 17,
        "notes that lack a range believed": 17,
        "ranges that were live before taken for read": 6,
        "what was live before taken over": 6,
        "only new ranges tracked": 8,
        "nothing pending by rules": 6,
        "notes of what expired taken for held": 6,
        "what notes hold not subtracted": 6,
        "what expired not looked up in notes": 6,
        "one part of what is looked up taken for all": 6,
        "ranges in slices that are not sealed noted": 6,
        "other repositories: their metaranges noted": 21,
        "notes that lack an address believed": 6,
    },
    "committed": {
        "nothing pending where nothing is listed": 22,
        "ranges that were looked at and are live again tracked": 18,
    },
}
"""A seed whose history shows each bug, by kind; several bugs share one if possible. `make soak` finds the first seed.
"""
FOUND = [(kind, name, seed) for kind, bugs in FOUND_BY.items() for name, seed in bugs.items()]


def test_every_bug_changes_the_product_and_has_a_name_of_its_own() -> None:
    found = [*seeded()]
    assert not [each.name for each in found if not each.bug.changes]
    assert not [name for name, count in Counter(each.name for each in found).items() if count > 1]
    assert len(found) >= 100


def test_every_bug_has_a_history() -> None:
    assert {kind: bugs.keys() for kind, bugs in FOUND_BY.items()} == {
        kind: histories.bugs.keys() for kind, histories in KINDS.items()
    }


@pytest.mark.parametrize(("kind", "name", "seed"), FOUND)
def test_the_bug_is_noticed(kind: Kind, name: str, seed: int) -> None:
    bug = KINDS[kind].bugs[name]
    with bug.patches(), pytest.raises(Violation) as caught:
        play(KINDS[kind].generate(seed))
    assert type(caught.value) is Violation, "a crash, or garbage that stays, is not what is wrong"


PASSED: dict[tuple[Kind, int], Result] = {}
"""Results of histories that were played without a bug, for the test of what happens in them."""


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), sorted({(kind, seed) for kind, _, seed in FOUND}))
def test_without_a_bug_the_same_history_passes(kind: Kind, seed: int) -> None:
    PASSED[kind, seed] = play(KINDS[kind].generate(seed))


MINIMUMS: dict[Kind, dict[str, int]] = {
    "clean": {"deleted": 120, "live": 220, "kills": 1, "sweeps": 70},
    "optimized": {"deleted": 75, "live": 170, "compared": 24, "instead": 9, "optimized": 26, "long chains": 3},
    "retention": {"deleted": 70, "live": 100, "defined": 78, "expired": 33, "by_rules": 45, "kills": 1},
    "unified": {"deleted": 53, "compared": 13, "went": 16, "expired": 30, "instead": 12, "long chains": 1},
    "committed": {"deleted": 19, "defined": 24, "expired": 7, "by_rules": 13, "long chains": 0},
}
"""Totals that the histories of a kind must exceed: without them the histories would show nothing."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", MINIMUMS)
def test_much_happens_in_these_histories(kind: Kind) -> None:
    totals: Counter[str] = Counter()
    for seed in {*FOUND_BY[kind].values()}:
        result = PASSED.get((kind, seed)) or play(KINDS[kind].generate(seed))
        totals.update(result.totals())
        totals["long chains"] += result.figures.longest_chain >= 3
    assert not {name: totals[name] for name, minimum in MINIMUMS[kind].items() if totals[name] <= minimum}


@pytest.fixture(scope="module")
def scenes() -> None:
    """Prepares scenes without a bug."""
    for kind in ("clean", "approved", "unified", "optimized", "purge"):
        scene_before(kind)


@pytest.mark.usefixtures("scenes")
@pytest.mark.parametrize("name", TESTED_BUGS)
def test_a_test_of_the_run_notices_the_bug(name: str) -> None:
    tested = TESTED_BUGS[name]
    with tested.bug.patches(), pytest.raises((AssertionError, pytest.fail.Exception)):
        tested.test()
