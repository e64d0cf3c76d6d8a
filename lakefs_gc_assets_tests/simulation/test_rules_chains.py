"""Runs by retention rules that build on each other: each mark is compared with a full run's, see `exactness`."""

import pytest

from lakefs_gc_assets_tests.simulation import required
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.rules_chains import LEAST_RUNS, generate
from lakefs_gc_assets_tests.simulation.seeds import fresh

HISTORIES = 16


def test_they_mark_what_runs_that_list_everything_would() -> None:
    required.none_breaks_a_rule("unified", fresh(0, required.QUICK["unified"]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(required.PARTS))
def test_so_do_more_of_them(part: int) -> None:
    required.none_breaks_a_rule("unified", fresh(required.QUICK["unified"], HISTORIES)[part :: required.PARTS])


def test_a_seed_gives_the_same_history_and_the_same_end() -> None:
    required.a_seed_is_a_history("unified")


def test_runs_are_asked_for_one_after_the_other() -> None:
    for seed in range(50):
        assert sum(step.what == "start" for step in generate(seed).steps) >= LEAST_RUNS


def test_runs_that_list_nothing_look_at_all_that_expired() -> None:
    required.none_breaks_a_rule("committed", fresh(0, required.QUICK["committed"]))


@pytest.mark.slow
def test_so_do_more_of_these() -> None:
    required.none_breaks_a_rule("committed", fresh(required.QUICK["committed"], 5))


@pytest.mark.slow
def test_much_happens() -> None:
    """Requires that runs build on each other and find expired data, without which the histories would show nothing."""
    results = [play(generate(seed)) for seed in range(10)]
    figures = [result.figures for result in results]
    assert sum(result.compared for result in results) > 18
    assert sum(result.went for result in results) > 16
    assert sum(each.longest_chain >= 3 for each in figures) > 0
    assert sum(each.instead for each in figures) > 13
    assert sum(result.expired for result in results) > 32
