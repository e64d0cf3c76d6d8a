"""Runs a target case by case, each from its own seed, and measures memory and lines now and then."""

import random
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import process_time
from types import FrameType
from typing import Any, TypeVar

import pyarrow as pa

from lakefs_gc_assets.errors import CollectionError

MEASURE_EVERY = 50
LONGEST_MESSAGE = 3000
"""Maximum characters of an error message: a person must be able to read it."""

Found = TypeVar("Found")
_POOLS: list[pa.MemoryPool] = []
"""Keeps pools alive: Arrow returns memory of a case to its pool, which must still exist then."""


@dataclass(frozen=True)
class Case:
    """One input and its check: `run` returns a word for the result, and raises if it is wrong.

    Attributes:
        size: bytes of the input.
    """

    size: int
    run: Callable[[], str]


@dataclass(frozen=True)
class Target:
    """A reader of data that others wrote.

    Attributes:
        make: makes the case of a generator.
        outcomes: words that must occur in a long run, or its cases are useless.
        base_bytes, bytes_each: limit of a case's memory: a base, and an addition for each byte of input.
        base_lines, lines_each: limit of the Python lines that it runs, likewise.
    """

    name: str
    make: Callable[[random.Random], Case]
    outcomes: frozenset[str] = frozenset({"error", "read"})
    base_bytes: int = 4 << 20
    bytes_each: int = 200
    base_lines: int = 20_000
    lines_each: int = 50


@dataclass(frozen=True)
class Figures:
    """Figures of a target's run; `seconds` of processor time."""

    cases: int
    seconds: float
    outcomes: Counter[str]
    most_bytes: int
    most_lines: int

    def __str__(self) -> str:
        words = ", ".join(f"{count:,} {word}" for word, count in sorted(self.outcomes.items()))
        return (
            f"{self.cases:,} cases, {self.cases / max(self.seconds, 1e-9):,.0f}/s: {words}; "
            f"at most {self.most_bytes:,} bytes and {self.most_lines:,} lines"
        )


class Failure(AssertionError):
    """A case with a wrong result, with the command that repeats it."""


def run(target: Target, cases: int, seed: int, first: int = 0) -> Figures:
    """Runs a number of cases from `first` on. Raises Failure."""
    outcomes: Counter[str] = Counter()
    most_bytes = most_lines = 0
    started = process_time()
    for number in range(first, first + cases):
        case = target.make(random.Random(seed << 40 | number))
        try:
            outcomes[case.run()] += 1
            if number % MEASURE_EVERY == 0:
                taken, lines = memory_of(case.run), lines_of(case.run)
                most_bytes, most_lines = max(most_bytes, taken), max(most_lines, lines)
                assert taken <= target.base_bytes + target.bytes_each * case.size, f"{taken:,} bytes of memory"
                assert lines <= target.base_lines + target.lines_each * case.size, f"{lines:,} lines of code"
        except Exception as error:
            command = f"python -m {__package__}.targets 1 {seed} {target.name}:{number}"
            raise Failure(f"{target.name}, input of {case.size} bytes: {error!r}. Again: {command}") from error
    return Figures(cases, process_time() - started, outcomes, most_bytes, most_lines)


def outcome(read: Callable[[], Found], right: Callable[[Found], object]) -> str:
    """Returns `error` if reading raises a readable error of ours; else `read`, unless `right` raises."""
    try:
        found = read()
    except CollectionError as error:
        require_clear(error)
        return "error"
    right(found)
    return "read"


def require_clear(error: CollectionError) -> None:
    """Raises AssertionError unless an error's text is printable, on one line and not too long."""
    text = str(error)
    assert text and len(text) <= LONGEST_MESSAGE, f"a message of {len(text)} characters: {text[:200]!r}"
    assert text.isprintable(), f"a message that cannot be shown: {text[:300]!r}"


def memory_of(run: Callable[[], object]) -> int:
    """Peak bytes that Python, numpy and Arrow held during a call."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    _POOLS.append(pool)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1] + int(pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


def lines_of(run: Callable[[], object]) -> int:
    """Number of Python lines that a call runs."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return lines
