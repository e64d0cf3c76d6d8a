"""One file of earlier runs is damaged before a run: nothing is lost, and the work is done in the end.

`make test` damages a file of each kind of run, another one every time. `make test-slow` damages each kind of file once,
with alternating damage, and some files within histories. `make soak` plays every damage of every file.
"""

import logging
import random
import re
from collections.abc import Iterator, Sequence

import pytest

from lakefs_gc_assets_tests.simulation.bugs import KINDS as HISTORIES
from lakefs_gc_assets_tests.simulation.damaged_files import DAMAGE_BUGS, Damaged, class_of, damages, play, play_damaged
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import Kind as HistoryKind
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed

EVERY = {"approved": 2, "dry": 3, "optimized": 2, "purge": 3, "quarantine": 3}
"""Step of the sample by kind of run; for other kinds every kind of file is damaged."""
PLAYED = 2
"""Number of histories played of each kind."""


@pytest.fixture(autouse=True, scope="module")
def memory() -> Iterator[None]:
    """Caches decoded files: all tests here read the same ones."""
    logging.disable(logging.WARNING)
    with remembering():
        yield
    logging.disable(logging.NOTSET)


def require_all_pass(chosen: Sequence[Damaged]) -> None:
    for each in chosen:
        try:
            play(each)
        except Violation as violation:
            pytest.fail(f"{each}: {violation}; play it again with {SEED_VARIABLE}={draw_seed()}")


def each_class_once(kind: str) -> list[Damaged]:
    """One play for each kind of file, with and without the index; kinds of damage take turns."""
    groups: dict[tuple[str, bool], list[Damaged]] = {}
    for each in damages(kind):
        groups.setdefault((class_of(each.key), each.without_index), []).append(each)
    chosen = [group[number % len(group)] for number, group in enumerate(groups.values())]
    return chosen[:: EVERY.get(kind, 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_some_files_are_damaged(kind: str) -> None:
    require_all_pass([random.Random(draw_seed()).choice([*damages(kind)])])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_file_is_damaged_nothing_is_lost_and_the_work_is_done_in_the_end(kind: str) -> None:
    chosen = each_class_once(kind)
    assert len(chosen) > 3
    require_all_pass(chosen)


@pytest.mark.slow
@pytest.mark.parametrize("kind", HISTORIES)
def test_histories_in_which_files_are_damaged_lose_nothing(kind: HistoryKind) -> None:
    for seed in range(PLAYED):
        assert play_damaged(HISTORIES[kind].generate(seed))


@pytest.mark.parametrize("name", DAMAGE_BUGS)
def test_a_bug_is_noticed(name: str) -> None:
    bug = DAMAGE_BUGS[name]
    chosen = [
        each
        for each in damages(bug.kind)
        if (each.damage, each.without_index) == (bug.damage, bug.without_index) and re.search(bug.key, each.key)
    ]
    with bug.bug.patches(), pytest.raises(Violation):
        for each in chosen:
            play(each)
