"""One call of a whole run goes wrong, each call in turn.

`make test` breaks some calls of each kind of run, others every time; another run follows days later. `make test-slow`
breaks each twelfth or twenty-fourth call, others every time, and alternates faults and recoveries. `make soak` plays
every fault of every call, with every recovery.
"""

import logging
import random
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import pytest

from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.failing_calls import distinct
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS
from lakefs_gc_assets_tests.simulation.faults import FAULT_BUGS, Play, Recovery, play, plays, whole
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed


@pytest.fixture(autouse=True, scope="module")
def memory() -> Iterator[None]:
    """Caches decoded files: all tests here read the same ones."""
    logging.disable(logging.WARNING)
    with remembering():
        yield
    logging.disable(logging.NOTSET)


EVERY = dict.fromkeys(("optimized", "committed", "unified", "following", "purge"), 24) | {"restore": 2}
"""One of this many calls is broken; for other kinds one of twelve."""
SOME = 3
"""Number of faults played of each kind of run in a quick test."""


def drawn_part(kind: str) -> slice:
    """Selects the calls of a kind to break."""
    every = EVERY.get(kind, 12)
    return slice(draw_seed() % every, None, every)


def each_call_once(kind: str) -> list[Play]:
    """Alternates faults and recoveries. Skips the leading calls that a clean run makes as well."""
    calls, clean = whole(kind).calls, whole("clean").calls
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(calls, clean, strict=False))
    same = 0 if kind == "clean" else len(list(pairs))
    chosen = []
    for number, call in list(enumerate(calls, 1))[same:][drawn_part(kind)]:
        faults = distinct(call)
        chosen.append(Play(kind, faults[number % len(faults)], number, list(Recovery)[number // len(faults) % 2]))
    return chosen


def require_all_pass(chosen: Sequence[Play], *, follow: bool = False) -> None:
    for each in chosen:
        try:
            play(each, follow=follow)
        except Violation as violation:
            pytest.fail(f"{each}: {violation}; play it again with {SEED_VARIABLE}={draw_seed()}")


@pytest.mark.parametrize("kind", KINDS)
def test_some_calls_go_wrong_and_another_run_days_later_finds_nothing_amiss(kind: str) -> None:
    drawn = random.Random(draw_seed())
    require_all_pass(drawn.sample([*plays(kind)], SOME), follow=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_call_goes_wrong_nothing_is_lost_or_claimed_and_the_work_is_done_in_the_end(kind: str) -> None:
    chosen = each_call_once(kind)
    assert len(chosen) > 5
    require_all_pass(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["clean", "quarantine", "purge"])
def test_every_fault_of_every_call_that_deletes_or_tells_of_it(kind: str) -> None:
    words = re.compile("delete |put .*(/receipts/|/report.json|/deleted_report/manifest.json)")
    chosen = [each for each in plays(kind) if words.match(whole(kind).calls[each.at - 1])][drawn_part(kind)]
    assert len(chosen) > 5
    require_all_pass(chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_the_garbage_of_the_world_is_worth_the_name(kind: str) -> None:
    found = whole(kind)
    assert len(found.gone) + len(found.back) >= {"dry": 0, "committed": 3}.get(kind, 6)
    assert sum(call.startswith("delete ") for call in found.calls) >= {"dry": 0, "restore": 0, "committed": 2}.get(
        kind, 3
    )


def test_a_purge_brings_back_some_and_deletes_others() -> None:
    calls = whole("purge").calls
    for reported in ("copy_if_absent ", "put .*/receipts/restored-", "put .*/receipts/purged-", "put .*/restored.json"):
        assert sum(re.match(reported, call) is not None for call in calls) > 1, reported


@pytest.mark.parametrize("name", FAULT_BUGS)
def test_a_bug_is_noticed(name: str) -> None:
    bug = FAULT_BUGS[name]
    calls = enumerate(whole(bug.kind).calls, 1)
    chosen = [
        Play(bug.kind, bug.fault, number, recovery)
        for number, call in calls
        if re.match(bug.calls, call)
        for recovery in Recovery
    ]
    with bug.bug.patches(), pytest.raises(Violation):
        for each in chosen:
            play(each, follow=False)
