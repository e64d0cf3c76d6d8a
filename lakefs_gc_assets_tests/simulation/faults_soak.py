"""Every fault of every call of every kind of run with every recovery, on all cores: a part of `make soak`.

It also plays every damage of every file that earlier runs left. Another run follows each play days later.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time

from lakefs_gc_assets_tests.simulation import damaged_files
from lakefs_gc_assets_tests.simulation.damaged_files import Damaged
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS
from lakefs_gc_assets_tests.simulation.faults import Play, play, plays, whole
from lakefs_gc_assets_tests.simulation.oracle import Violation

_BATCH = 200


def broken(chosen: tuple[Play | Damaged, ...]) -> list[str]:
    """Messages of the plays that fail."""
    logging.disable(logging.WARNING)
    found = []
    with remembering():
        for each in chosen:
            try:
                if isinstance(each, Damaged):
                    damaged_files.play(each)
                else:
                    play(each)
            except Violation as violation:
                found.append(f"{each}: {violation}")
    return found


def main() -> int:
    """Returns exit status 0 if no play fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for kind in KINDS if asked.kind == "all" else (asked.kind,):
            began = time.monotonic()
            chosen: list[Play | Damaged] = [*plays(kind), *damaged_files.damages(kind)]
            parts = [tuple(chosen[start : start + _BATCH]) for start in range(0, len(chosen), _BATCH)]
            for found in pool.imap_unordered(broken, parts):
                if found:
                    print("\n".join(found), flush=True)
                    return 1
            seconds = time.monotonic() - began
            print(f"{kind}: {len(whole(kind).calls)} calls, {len(chosen):,} faults in {seconds:,.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
