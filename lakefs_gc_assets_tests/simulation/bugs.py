"""Every seeded bug, and the test or history that finds it.

`python -m lakefs_gc_assets_tests.simulation.bugs --list` prints one JSON object a line: the name of the bug (`bug`),
the functions of the product that have it (`changes`, each `module:function`), and how it is found (`found_by`): by
histories of a kind, the enumeration of faults, or a test of the run alone. If a test of the run finds it, `test` names
that test.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lakefs_gc_assets_tests.simulation.bug import Bug
from lakefs_gc_assets_tests.simulation.damaged_files import DAMAGE_BUGS
from lakefs_gc_assets_tests.simulation.fault_bugs import FAULT_BUGS
from lakefs_gc_assets_tests.simulation.final_runs import Kind
from lakefs_gc_assets_tests.simulation.guard_bugs import TESTED_BUGS
from lakefs_gc_assets_tests.simulation.kinds import KINDS


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
    for kind, histories in KINDS.items():
        yield from (Seeded(name, bug, kind, tests.get(name)) for name, bug in histories.bugs.items())
        in_histories |= histories.bugs.keys()
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
