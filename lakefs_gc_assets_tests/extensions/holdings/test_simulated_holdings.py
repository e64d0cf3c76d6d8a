"""In simulated histories, holdings equal a plain count of the world, and seeded bugs are noticed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.extensions.holdings import attribution, head_parts, run_states
from lakefs_gc_assets.extensions.holdings.holdings_files import HoldingState, Sharing
from lakefs_gc_assets_tests.extensions.holdings.simulated_holdings import HoldingsPlayer
from lakefs_gc_assets_tests.simulation import histories
from lakefs_gc_assets_tests.simulation.bug import Bug, replaced
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import History
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed, fresh

KINDS: Mapping[str, Callable[[int], History]] = MappingProxyType(
    {"clean": histories.generate, "optimized": histories.generate_chain}
)
QUICK = 3
SLOW = 40


def play_all(kind: str, seeds: Iterable[int]) -> Counter[str]:
    """Plays histories. Fails at the first after one of whose runs holdings differ from the world."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += HoldingsPlayer(KINDS[kind](seed)).play()
        except Violation as violation:
            pytest.fail(f"{violation}\n{kind} history {seed}; play it again with {SEED_VARIABLE}={draw_seed()}")
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_holdings_are_the_plain_count_of_the_world(kind: str) -> None:
    assert play_all(kind, fresh(0, QUICK))["runs"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_more_histories_reach_every_state(kind: str) -> None:
    seen = play_all(kind, fresh(QUICK, SLOW))
    assert not {state for state in HoldingState if state is not HoldingState.EXPIRED and not seen[state]}, seen


def _all_not_committed(step: Any, not_committed: Any, committed: Any) -> Any:
    return not_committed.rows(step.engine, "address", "size", "storage_class")


BUGS: Mapping[str, tuple[int, Bug]] = MappingProxyType(
    {
        "alone taken for shared": (
            0,
            replaced((attribution, "Sharing", SimpleNamespace(ALONE=Sharing.SHARED, SHARED=Sharing.ALONE))),
        ),
        "objects at several paths counted twice": (0, replaced((attribution, "_spread_once", lambda *rows: ()))),
        "new addresses not looked for in other parts": (
            3,
            replaced((head_parts, "_has_come", lambda batch: pa.repeat(False, batch.num_rows))),
        ),
        "objects of unlisted slices taken for listed": (
            0,
            replaced((attribution, "unlisted_slices", lambda names, cutoff: pa.nulls(len(names), pa.string()))),
        ),
        "garbage and young objects counted as staged, too": (0, replaced((run_states, "_staged", _all_not_committed))),
        "garbage that was deleted counted": (0, replaced((run_states, "_GONE", ()))),
        "sealed objects of the base run left out": (
            0,
            replaced((run_states, "_add_up_sealed", lambda *about: Amount())),
        ),
    }
)
"""Mistakes in holdings, each with the seed of a history of optimized runs that shows it."""


@pytest.mark.parametrize("name", BUGS)
def test_seeded_bug_is_noticed(name: str) -> None:
    seed, bug = BUGS[name]
    with bug.patches(), pytest.raises(Violation):
        HoldingsPlayer(KINDS["optimized"](seed)).play()
