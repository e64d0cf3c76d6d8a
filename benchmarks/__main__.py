"""Measures the collector and holds it against its marks: `make bench`, or `python -m benchmarks [SUITE …] [--json]`.

Suites: decode, listing, subtraction; empty, small, laboratory, large, linear, skewed, forecast; and only where they are
named, bottom-line, change, rules, windows, libraries and scaling.
Repositories are made once, in `.benchmarks/`, which is not measured. Exit status 1 where a mark is missed.
"""

import argparse
import json
import sys
from collections.abc import Callable

from benchmarks import decoding, listing, subtracting, whole_runs
from benchmarks.counting import Counts
from benchmarks.marks import Measure, summary
from benchmarks.prices import cost
from benchmarks.runs import Run

_PHASES: dict[str, Callable[[], list[Measure]]] = {
    "decode": decoding.measured,
    "listing": listing.measured,
    "subtraction": subtracting.measured,
}


def main() -> None:
    """Prints each figure beside its mark, then how many marks are reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*_PHASES, *whole_runs.SUITES]
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"of {', '.join(names)}")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    asked = parser.parse_args()
    chosen: list[str] = asked.suites or [name for name in names if name not in whole_runs.ASKED_FOR_ONLY]
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"there is no suite {unknown[0]}: there are {', '.join(names)}")
    measures: list[Measure] = []
    runs: dict[str, Run] = {}

    def tell(found: list[Measure]) -> None:
        measures.extend(found)
        for measure in found if not asked.json else []:
            print(measure, flush=True)

    def show(title: str, made: Run, least: Counts | None = None) -> None:
        runs[title] = made
        whole_runs.show_table(title, made, least)

    for name in chosen:
        if name in _PHASES:
            tell(_PHASES[name]())
    if set(chosen) & set(whole_runs.SUITES):
        whole_runs.warm_up()
    for name in chosen:
        if name in whole_runs.SUITES:
            tell(whole_runs.SUITES[name](show))
    if asked.json:
        content = {
            "measures": [measure.as_json() for measure in measures],
            "runs": {title: {**made.as_json(), "us_dollars": cost(made.counts)} for title, made in runs.items()},
        }
        print(json.dumps(content, indent=1))
    print(summary(measures), file=sys.stderr if asked.json else sys.stdout)
    sys.exit(any(measure.reached is False for measure in measures))


if __name__ == "__main__":
    main()
