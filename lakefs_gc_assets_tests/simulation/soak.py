"""Any number of histories, then every seeded bug afresh: `make soak HISTORIES=N SEED=S`.

There are five kinds: clean runs, optimized runs that build on each other, and runs by retention rules: single ones,
ones that build on each other and mostly list, and ones that mostly do not list. N of each kind are played. After that N
histories of all kinds in turn are played once more, and unneeded metadata is moved and purged after each, while others
write (`metadata`). Histories of consecutive seeds are spread over all cores. A failing history ends the soak and is
printed with its seed and, except for `metadata`, with its shortened steps.

With `--faults`, it plays every fault of every call of every kind of run with every recovery instead, and every damage
of every file that earlier runs left. Another run follows each play days later.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import Pool

from lakefs_gc_assets_tests.extensions.check import test_unneeded_metadata
from lakefs_gc_assets_tests.simulation import damaged_files, faults
from lakefs_gc_assets_tests.simulation.bugs import KINDS
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS as RUNS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import Kind, failure, play, reported, shortened

BOUND = 2000
"""Maximum histories played to find a seeded bug."""
_METADATA = "metadata"
_BATCH, _BATCH_OF_FAULTS = 50, 200
_TOLD_EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class Batch:
    """Result of a few histories: totals, the seed of the first one that failed, and its failure."""

    totals: Counter[str]
    failed: int | None = None
    how: str = ""


def played(kind: Kind, seeds: range) -> Batch:
    """Plays histories until one fails."""
    logging.disable(logging.WARNING)
    totals: Counter[str] = Counter()
    for seed in seeds:
        try:
            totals.update(play(KINDS[kind].generate(seed)).totals())
        except Violation as violation:
            return Batch(totals, seed, str(violation))
        totals["histories"] += 1
    return Batch(totals)


def moved(seeds: range) -> Batch:
    """Plays histories of each kind in turn, then moves and purges their unneeded metadata, until one fails."""
    logging.disable(logging.WARNING)
    totals, kinds = Counter[str](), tuple(KINDS)
    for seed in seeds:
        try:
            unneeded = test_unneeded_metadata.play(kinds[seed % len(kinds)], seed)
        except AssertionError as error:
            return Batch(totals, seed, str(error))
        totals.update(histories=1, unneeded=unneeded)
    return Batch(totals)


def found(kind: Kind, name: str, seeds: Iterable[int]) -> int | None:
    """The first seed whose history shows a bug."""
    logging.disable(logging.WARNING)
    generate, bug = KINDS[kind].generate, KINDS[kind].bugs[name]
    return next((seed for seed in seeds if type(failure(generate(seed), bug)) is Violation), None)


def main() -> int:
    """Returns exit status 0 if no history fails and every bug is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kind", choices=(*KINDS, _METADATA, "all"), default="all")
    parser.add_argument("--faults", choices=(*RUNS, "all"), help="break every call of a kind of run instead")
    parser.add_argument("--no-bugs", action="store_true", help="play histories only")
    asked = parser.parse_args()
    kinds = tuple(kind for kind in KINDS if asked.kind in (kind, "all"))
    batches = [
        range(start, min(start + _BATCH, asked.seed + asked.histories))
        for start in range(asked.seed, asked.seed + asked.histories, _BATCH)
    ]
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        if asked.faults:
            return _break(pool, RUNS if asked.faults == "all" else (asked.faults,))
        for kind in kinds:
            if not _soaked(kind, pool.imap_unordered(partial(played, kind), batches)):
                return 1
        if asked.kind in (_METADATA, "all") and not _moved(pool.imap_unordered(moved, batches)):
            return 1
        if asked.no_bugs:
            return 0
        seeds = range(asked.seed, asked.seed + BOUND)
        wanted = [(kind, name, seeds) for kind in kinds for name in KINDS[kind].bugs]
        names = [name for _, name, _ in wanted]
        return 0 if _bugs(zip(names, pool.starmap(found, wanted, 1), strict=True)) else 1


def broken(chosen: tuple[faults.Play | damaged_files.Damaged, ...]) -> list[str]:
    """Messages of the plays of runs that fail."""
    logging.disable(logging.WARNING)
    found = []
    with remembering():
        for each in chosen:
            try:
                if isinstance(each, faults.Play):
                    faults.play(each)
                else:
                    damaged_files.play(each)
            except Violation as violation:
                found.append(f"{each}: {violation}")
    return found


def _break(pool: Pool, kinds: Iterable[str]) -> int:
    for kind in kinds:
        began = time.monotonic()
        chosen: list[faults.Play | damaged_files.Damaged] = [*faults.plays(kind), *damaged_files.damages(kind)]
        parts = [tuple(chosen[start : start + _BATCH_OF_FAULTS]) for start in range(0, len(chosen), _BATCH_OF_FAULTS)]
        for found in pool.imap_unordered(broken, parts):
            if found:
                print("\n".join(found), flush=True)
                return 1
        seconds = time.monotonic() - began
        print(f"{kind}: {len(faults.whole(kind).calls)} calls, {len(chosen):,} faults in {seconds:,.0f} s", flush=True)
    return 0


def _soaked(kind: Kind, batches: Iterator[Batch]) -> bool:
    totals, began = Counter[str](), time.monotonic()
    reported_at = began
    for batch in batches:
        totals.update(batch.totals)
        if batch.failed is not None:
            print(f"{kind} history {batch.failed} failed: {batch.how}; shortening it", flush=True)
            print(reported(shortened(KINDS[kind].generate(batch.failed))), flush=True)
            return False
        if time.monotonic() - reported_at >= _TOLD_EVERY_SECONDS:
            reported_at = time.monotonic()
            print(f"{kind}: so far {_line(totals, reported_at - began)}", flush=True)
    print(f"{kind}: {_line(totals, time.monotonic() - began)}", flush=True)
    return True


def _moved(batches: Iterator[Batch]) -> bool:
    totals, began = Counter[str](), time.monotonic()
    for batch in batches:
        totals.update(batch.totals)
        if batch.failed is not None:
            print(f"{_METADATA} history {batch.failed} failed: {batch.how}", flush=True)
            return False
    seconds = time.monotonic() - began
    print(
        f"{_METADATA}: {totals['histories']:,} histories in {seconds:,.0f} s, {totals['unneeded']:,} unneeded files of "
        "metadata moved, put back or purged; no needed one was lost",
        flush=True,
    )
    return True


def _line(totals: Counter[str], seconds: float) -> str:
    words = (
        "{histories:,} histories with {steps:,} steps in {seconds:,.0f} s ({rate:.1f} a second): {runs:,} runs, "
        "{kills:,} killed, {calls:,} calls, {optimized:,} optimized to their end and {instead:,} clean instead, "
        "{compared:,} marks as a clean run's but for late arrivals, {late:,} of which clean runs found, {by_rules:,} "
        "by retention rules to their end, {defined:,} marks by rules as defined, {deleted:,} objects deleted, "
        "{expired:,} of which commits had held, {live:,} live at the end; lost: {losses:,} staged again and "
        "{too_late:,} expired ones brought back into use after the last recheck, no others"
    )
    return words.format(**totals, seconds=seconds, rate=totals["histories"] / seconds)


def _bugs(seeds: Iterable[tuple[str, int | None]]) -> bool:
    missed = []
    for name, seed in seeds:
        print(f"seeded bug: {name}: " + (f"found by history {seed}" if seed is not None else "NOT FOUND"), flush=True)
        if seed is None:
            missed.append(name)
    return not missed


if __name__ == "__main__":
    sys.exit(main())
