import pytest

from lakefs_gc_assets_tests.simulation import required
from lakefs_gc_assets_tests.simulation.histories import generate
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.seeds import fresh

HISTORIES = 48
ONCE_FAILED = (1003735, 202811900)
"""Seeds whose histories broke a rule before a fix of the code."""


def test_those_that_once_broke_a_rule_break_none() -> None:
    required.none_breaks_a_rule("clean", ONCE_FAILED)


def test_no_history_breaks_a_rule() -> None:
    required.none_breaks_a_rule("clean", fresh(0, required.QUICK["clean"]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(required.PARTS))
def test_nor_do_more_of_them(part: int) -> None:
    required.none_breaks_a_rule("clean", fresh(required.QUICK["clean"], HISTORIES)[part :: required.PARTS])


def test_a_seed_gives_the_same_history_and_the_same_end() -> None:
    required.a_seed_is_a_history("clean")


def test_there_are_three_writers_or_more() -> None:
    for seed in range(100):
        actors = {step.actor for step in generate(seed).steps}
        assert len([actor for actor in actors if actor.startswith("w")]) >= 3


@pytest.mark.slow
def test_much_happens() -> None:
    """Requires deletions, kills and kept objects, without which the histories would show nothing."""
    results = [play(generate(seed)) for seed in range(16)]
    assert sum(result.deleted for result in results) > 50
    assert sum(result.live for result in results) > 90
    assert sum(result.figures.kills for result in results) > 0
    assert sum(result.figures.sweeps for result in results) > 27
