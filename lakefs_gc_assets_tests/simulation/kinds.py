"""The kinds of histories, and the bugs that each kind shows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lakefs_gc_assets_tests.simulation import histories
from lakefs_gc_assets_tests.simulation import retention_histories as by_rules
from lakefs_gc_assets_tests.simulation.bug import Bug
from lakefs_gc_assets_tests.simulation.chain_bugs import CHAIN_BUGS, COMMITTED_CHAIN_BUGS, RULES_CHAIN_BUGS
from lakefs_gc_assets_tests.simulation.clean_bugs import CLEAN_BUGS
from lakefs_gc_assets_tests.simulation.final_runs import Kind
from lakefs_gc_assets_tests.simulation.guard_bugs import HISTORY_BUGS
from lakefs_gc_assets_tests.simulation.hidden_bugs import AROUND_BUGS
from lakefs_gc_assets_tests.simulation.playing import History
from lakefs_gc_assets_tests.simulation.retention_bugs import RETENTION_BUGS
from lakefs_gc_assets_tests.simulation.surroundings import surrounded


@dataclass(frozen=True)
class Histories:
    """Histories of a kind, one for each seed."""

    generate: Callable[[int], History]
    bugs: Mapping[str, Bug]


KINDS: dict[Kind, Histories] = {
    "clean": Histories(
        lambda seed: surrounded(histories.generate(seed), histories.Maker),
        CLEAN_BUGS | HISTORY_BUGS["clean"] | AROUND_BUGS,
    ),
    "optimized": Histories(
        lambda seed: surrounded(histories.generate_chain(seed), histories.ChainMaker),
        CHAIN_BUGS | HISTORY_BUGS["optimized"],
    ),
    "retention": Histories(
        lambda seed: surrounded(by_rules.generate(seed), by_rules.RetentionMaker),
        RETENTION_BUGS | HISTORY_BUGS["retention"],
    ),
    "unified": Histories(
        lambda seed: surrounded(by_rules.generate_chain(seed), by_rules.RulesChainMaker),
        RULES_CHAIN_BUGS,
    ),
    "committed": Histories(
        lambda seed: surrounded(by_rules.generate_committed_chain(seed), by_rules.CommittedChainMaker),
        COMMITTED_CHAIN_BUGS,
    ),
}
