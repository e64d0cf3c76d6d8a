import pytest

from lakefs_gc_assets_tests.simulation.bugs import BUGS
from lakefs_gc_assets_tests.simulation.histories import generate
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play

FOUND_BY: dict[str, int] = {}
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
