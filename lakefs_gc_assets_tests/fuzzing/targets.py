"""All fuzz targets, by name.

`python -m lakefs_gc_assets_tests.fuzzing.targets CASES SEED [TARGET[:FIRST] …]` fuzzes them all, or the named ones. The
process may use little more memory than it has after loading its targets: a decompression bomb ends in an error.
"""

import logging
import resource
import sys
from pathlib import Path

from lakefs_gc_assets_tests.fuzzing import s3_answers, stored_files, tables
from lakefs_gc_assets_tests.fuzzing.fuzzer import Target, run

_MODULES = (tables, stored_files, s3_answers)
TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}


_WARM_UP = 60
_MORE_MEMORY = 2 << 30  # Arrow reserves address space by the gigabyte
_PAGE = resource.getpagesize()


def main(arguments: list[str]) -> None:
    """Runs the targets one after the other and prints their figures."""
    cases, seed = int(arguments[0]), int(arguments[1])
    logging.disable(logging.CRITICAL)
    for name in arguments[2:] or TARGETS:
        target, _, first = name.partition(":")
        _limit_memory(None)
        run(TARGETS[target], min(cases, _WARM_UP), seed)
        _limit_memory(_MORE_MEMORY)
        figures = run(TARGETS[target], cases, seed, int(first or 0))
        missing = TARGETS[target].outcomes - figures.outcomes.keys()
        print(f"{target}: {figures}", flush=True)
        if missing and cases > _WARM_UP:
            sys.exit(f"{target}: no case came out as {', '.join(sorted(missing))}")


def _limit_memory(more: int | None) -> None:
    """Limits this process's address space to its present size plus `more` bytes, if the system reports its size."""
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        has = int(statistics.read_text().split()[0]) * _PAGE
        resource.setrlimit(resource.RLIMIT_AS, (hard if more is None else has + more, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
