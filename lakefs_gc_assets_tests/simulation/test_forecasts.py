"""Forecasts in simulated histories: each column equals the marks of a dry run with that policy."""

from collections import Counter
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets_tests.simulation.forecasting import Compared, compare
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed, fresh

QUICK = 1
HISTORIES = 17


def _compare_all(seeds: range, folder: Path) -> list[Compared]:
    found = []
    for seed in seeds:
        try:
            found.append(compare(seed, folder))
        except Violation as violation:
            pytest.fail(f"{violation}\nhistory {seed}; play it again with {SEED_VARIABLE}={draw_seed()}")
    return found


def test_a_forecast_says_what_each_run_would_mark(tmp_path: Path) -> None:
    found = _compare_all(fresh(0, QUICK), tmp_path)
    assert sum((each.scenarios for each in found), Counter[ScenarioKind]())[ScenarioKind.POLICY] >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_nor_do_more_histories_tell_them_apart(part: int, tmp_path: Path) -> None:
    _compare_all(fresh(QUICK, HISTORIES)[part::4], tmp_path)


@pytest.mark.slow
def test_much_is_compared(tmp_path: Path) -> None:
    """Requires that some objects may go, without which the histories would show nothing."""
    found = _compare_all(range(10), tmp_path)
    scenarios = sum((each.scenarios for each in found), Counter[ScenarioKind]())
    assert all(scenarios[kind] > 3 for kind in ScenarioKind)
    assert sum(each.marked for each in found) > 45
    assert sum(each.unasked for each in found) > 5
    assert sum(len(each.refused) for each in found) < 4
