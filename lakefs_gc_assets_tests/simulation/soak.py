"""Any number of histories, then every seeded bug afresh: `make soak HISTORIES=N SEED=S`.

There are five kinds: clean runs, optimized runs that build on each other, and runs by retention rules: single ones,
ones that build on each other and mostly list, and ones that mostly do not list. N of each kind are played. After that N
histories of all kinds in turn are played once more, and unneeded metadata is moved and purged after each, while others
write (`metadata`). Histories of consecutive seeds are spread over all cores. A failing history ends the soak and is
printed with its seed and, except for `metadata`, with its shortened steps.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

from lakefs_gc_assets_tests.extensions.check import test_unneeded_metadata
from lakefs_gc_assets_tests.simulation.final_runs import Kind
from lakefs_gc_assets_tests.simulation.kinds import KINDS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import play
from lakefs_gc_assets_tests.simulation.shortening import failure, reported, shortened

BOUND = 2000
"""Maximum histories played to find a seeded bug."""
_METADATA = "metadata"
_BATCH = 50
_TOLD_EVERY_SECONDS = 30.0
Item = TypeVar("Item")


@dataclass
class Sums:
    """Totals of many histories."""

    histories: int = 0
    steps: int = 0
    runs: int = 0
    kills: int = 0
    calls: int = 0
    deleted: int = 0
    losses: int = 0
    live: int = 0
    optimized: int = 0
    instead: int = 0
    compared: int = 0
    late: int = 0
    by_rules: int = 0
    defined: int = 0
    expired: int = 0
    too_late: int = 0
    unneeded: int = 0

    def add(self, other: "Sums") -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True)
class Batch:
    """Result of a few histories: totals, the seed of the first one that failed, and its failure."""

    sums: Sums
    failed: int | None = None
    how: str = ""


def played(kind: Kind, seeds: range) -> Batch:
    """Plays histories until one fails."""
    logging.disable(logging.WARNING)
    sums = Sums()
    for seed in seeds:
        try:
            result = play(KINDS[kind].generate(seed))
        except Violation as violation:
            return Batch(sums, seed, str(violation))
        figures = result.figures
        sums.add(
            Sums(
                histories=1,
                steps=result.steps,
                runs=figures.runs,
                kills=figures.kills,
                calls=figures.calls,
                deleted=result.deleted,
                losses=result.losses,
                live=result.live,
                optimized=figures.optimized,
                instead=figures.instead,
                compared=result.compared,
                late=result.late,
                by_rules=figures.by_rules,
                defined=result.defined,
                expired=result.expired,
                too_late=result.too_late,
            )
        )
    return Batch(sums)


def moved(seeds: range) -> Batch:
    """Plays histories of each kind in turn, then moves and purges their unneeded metadata, until one fails."""
    logging.disable(logging.WARNING)
    sums, kinds = Sums(), tuple(KINDS)
    for seed in seeds:
        try:
            unneeded = test_unneeded_metadata.play(kinds[seed % len(kinds)], seed)
        except AssertionError as error:
            return Batch(sums, seed, str(error))
        sums.add(Sums(histories=1, unneeded=unneeded))
    return Batch(sums)


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
    parser.add_argument("--no-bugs", action="store_true", help="play histories only")
    asked = parser.parse_args()
    kinds = tuple(kind for kind in KINDS if asked.kind in (kind, "all"))
    batches = [
        range(start, min(start + _BATCH, asked.seed + asked.histories))
        for start in range(asked.seed, asked.seed + asked.histories, _BATCH)
    ]
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
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


def _soaked(kind: Kind, batches: Iterator[Batch]) -> bool:
    sums, began = Sums(), time.monotonic()
    reported_at = began
    for batch in batches:
        sums.add(batch.sums)
        if batch.failed is not None:
            print(f"{kind} history {batch.failed} failed: {batch.how}; shortening it", flush=True)
            print(reported(shortened(KINDS[kind].generate(batch.failed))), flush=True)
            return False
        if time.monotonic() - reported_at >= _TOLD_EVERY_SECONDS:
            reported_at = time.monotonic()
            print(f"{kind}: so far {_line(sums, reported_at - began)}", flush=True)
    print(f"{kind}: {_line(sums, time.monotonic() - began)}", flush=True)
    return True


def _moved(batches: Iterator[Batch]) -> bool:
    sums, began = Sums(), time.monotonic()
    for batch in batches:
        sums.add(batch.sums)
        if batch.failed is not None:
            print(f"{_METADATA} history {batch.failed} failed: {batch.how}", flush=True)
            return False
    print(
        f"{_METADATA}: {sums.histories:,} histories in {time.monotonic() - began:,.0f} s, {sums.unneeded:,} unneeded "
        "files of metadata moved, put back or purged; no needed one was lost",
        flush=True,
    )
    return True


def _line(sums: Sums, seconds: float) -> str:
    return (
        f"{sums.histories:,} histories with {sums.steps:,} steps in {seconds:,.0f} s "
        f"({sums.histories / seconds:.1f} a second): {sums.runs:,} runs, {sums.kills:,} killed, {sums.calls:,} calls, "
        f"{sums.optimized:,} optimized to their end and {sums.instead:,} clean instead, {sums.compared:,} marks as a "
        f"clean run's but for late arrivals, {sums.late:,} of which clean runs found, {sums.by_rules:,} by retention "
        f"rules to their end, {sums.defined:,} marks by rules as defined, {sums.deleted:,} objects deleted, "
        f"{sums.expired:,} of which commits had held, {sums.live:,} live at the end; lost: {sums.losses:,} staged "
        f"again and {sums.too_late:,} expired ones brought back into use after the last recheck, no others"
    )


def _bugs(seeds: Iterable[tuple[str, int | None]]) -> bool:
    missed = []
    for name, seed in seeds:
        print(f"seeded bug: {name}: " + (f"found by history {seed}" if seed is not None else "NOT FOUND"), flush=True)
        if seed is None:
            missed.append(name)
    return not missed


if __name__ == "__main__":
    sys.exit(main())
