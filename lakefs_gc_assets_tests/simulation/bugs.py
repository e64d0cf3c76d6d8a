"""Every seeded bug, the kinds of histories, and the test or history that finds each bug.

`python -m lakefs_gc_assets_tests.simulation.bugs --list` prints one JSON object a line: the name of the bug (`bug`),
the functions of the product that have it (`changes`, each `module:function`), and how it is found (`found_by`): by
histories of a kind, the enumeration of faults, or a test of the run alone. If a test of the run finds it, `test` names
that test.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lakefs_gc_assets_tests.simulation import histories
from lakefs_gc_assets_tests.simulation import retention_histories as by_rules
from lakefs_gc_assets_tests.simulation.bug import Bug
from lakefs_gc_assets_tests.simulation.clean_bugs import CLEAN_BUGS
from lakefs_gc_assets_tests.simulation.damaged_files import DAMAGE_BUGS
from lakefs_gc_assets_tests.simulation.faults import FAULT_BUGS
from lakefs_gc_assets_tests.simulation.flow_bugs import (
    CHAIN_BUGS,
    COMMITTED_CHAIN_BUGS,
    RETENTION_BUGS,
    RULES_CHAIN_BUGS,
)
from lakefs_gc_assets_tests.simulation.guard_bugs import AROUND_BUGS, HISTORY_BUGS, TESTED_BUGS
from lakefs_gc_assets_tests.simulation.playing import History, Kind
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


@dataclass(frozen=True)
class Seeded:
    """A seeded bug and how it is found."""

    name: str
    bug: Bug
    found_by: Kind | Literal["faults", "unit"]
    test: str | None = None

    def to_json(self) -> str:
        """The bug as one line of JSON."""
        reported = {"bug": self.name, "changes": ", ".join(self.bug.changes), "found_by": self.found_by}
        return json.dumps(reported | ({"test": self.test} if self.test else {}))


def seeded() -> Iterator[Seeded]:
    """All seeded bugs."""
    tests = {name: f"{each.test.__module__}:{each.test.__qualname__}" for name, each in TESTED_BUGS.items()}
    in_histories: set[str] = set()
    for kind, made in KINDS.items():
        yield from (Seeded(name, bug, kind, tests.get(name)) for name, bug in made.bugs.items())
        in_histories |= made.bugs.keys()
    yield from (Seeded(name, each.bug, "faults") for name, each in FAULT_BUGS.items())
    yield from (Seeded(name, each.bug, "faults") for name, each in DAMAGE_BUGS.items())
    for name, tested in TESTED_BUGS.items():
        if name not in in_histories:
            yield Seeded(name, tested.bug, "unit", tests[name])


def main() -> None:
    """Prints all seeded bugs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", required=True, help="print one JSON object a line")
    parser.parse_args()
    for each in seeded():
        print(each.to_json())


if __name__ == "__main__":
    main()
