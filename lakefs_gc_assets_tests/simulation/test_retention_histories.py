"""Runs by retention rules in simulated histories: the commits that stay are those in the world's own log of heads."""

import pytest

from lakefs_gc_assets_tests.simulation import required
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.retention_histories import generate
from lakefs_gc_assets_tests.simulation.seeds import fresh

HISTORIES = 32


def test_nothing_goes_that_a_head_within_its_window_had() -> None:
    required.none_breaks_a_rule("retention", fresh(0, required.QUICK["retention"]))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(required.PARTS))
def test_nor_do_more_of_them(part: int) -> None:
    required.none_breaks_a_rule("retention", fresh(required.QUICK["retention"], HISTORIES)[part :: required.PARTS])


def test_a_seed_gives_the_same_history_and_the_same_end() -> None:
    required.a_seed_is_a_history("retention")


@pytest.mark.slow
def test_much_happens() -> None:
    """Requires that data expires and comes back, without which the histories would show nothing."""
    results = [play(generate(seed)) for seed in range(10, 20)]
    figures = [result.figures for result in results]
    assert sum(each.by_rules for each in figures) > 19
    assert sum(result.defined for result in results) > 35
    assert sum(result.expired for result in results) > 10
    assert sum(result.too_late for result in results) > 1
    assert sum(result.live for result in results) > 60
    assert sum(each.kills for each in figures) > 0
