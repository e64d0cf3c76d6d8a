"""Optimized runs in simulated histories: each mark is compared with a clean run's, see `exactness`."""

import pytest

from lakefs_gc_assets_tests.simulation import required
from lakefs_gc_assets_tests.simulation.chains import LEAST_RUNS, generate
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.seeds import fresh

HISTORIES = 21


def test_optimized_runs_mark_what_clean_ones_would() -> None:
    required.none_breaks_a_rule("optimized", fresh(0, required.QUICK["optimized"]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(required.PARTS))
def test_nor_do_more_of_them(part: int) -> None:
    required.none_breaks_a_rule("optimized", fresh(required.QUICK["optimized"], HISTORIES)[part :: required.PARTS])


def test_a_seed_gives_the_same_history_and_the_same_end() -> None:
    required.a_seed_is_a_history("optimized")


def test_runs_are_asked_for_one_after_the_other() -> None:
    for seed in range(100):
        starts = [step for step in generate(seed).steps if step.what == "start"]
        assert len(starts) >= LEAST_RUNS


@pytest.mark.slow
def test_much_happens() -> None:
    """Requires that runs build on each other, without which the histories would show nothing."""
    results = [play(generate(seed)) for seed in range(12)]
    figures = [result.figures for result in results]
    assert sum(result.compared for result in results) > 19
    assert sum(each.longest_chain >= 3 for each in figures) > 2
    assert sum(each.instead for each in figures) > 11
    assert sum(each.kills for each in figures) > 0
    assert sum(result.deleted for result in results) > 85
    assert sum(result.live for result in results) > 150
