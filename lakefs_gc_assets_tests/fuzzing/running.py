"""Running a target: case after case, each from a seed of its own, its memory and its steps measured now and then."""

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
"""Characters: an error is to be read by a person, whatever the file that it is about holds."""

Found = TypeVar("Found")
_POOLS: list[pa.MemoryPool] = []
"""What Arrow still holds of a case goes back to the pool it came from, which must be there then."""


@dataclass(frozen=True)
class Case:
    """One input and what is asked of it: `run` returns a word for what came out, and raises where that is wrong."""

    size: int
    run: Callable[[], str]


@dataclass(frozen=True)
class Target:
    """Something that reads what others wrote.

    Attributes:
        make: the case that a generator leads to.
        outcomes: words that must come out now and then, or the cases are none.
        base_bytes, bytes_each: memory that a case may take: the first, and the second for each byte of input.
        base_lines, lines_each: lines of Python that it may run through, likewise.
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
    """What a run of a target came to; `seconds` of processor time."""

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
    """A case that came out wrong; says how to run it alone."""


def run(target: Target, cases: int, seed: int, first: int = 0) -> Figures:
    """Runs so many cases from the first one on. Raises Failure."""
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
            command = f"python -m {__package__} 1 {seed} {target.name}:{number}"
            raise Failure(f"{target.name}, input of {case.size} bytes: {error!r}. Again: {command}") from error
    return Figures(cases, process_time() - started, outcomes, most_bytes, most_lines)


def outcome(read: Callable[[], Found], right: Callable[[Found], object]) -> str:
    """`error` where reading raises one of ours that a person can read; else `read`, once `right` has not objected."""
    try:
        found = read()
    except CollectionError as error:
        require_clear(error)
        return "error"
    right(found)
    return "read"


def require_clear(error: CollectionError) -> None:
    """Raises AssertionError unless the text of an error can be shown in one line, and is not too long."""
    text = str(error)
    assert text and len(text) <= LONGEST_MESSAGE, f"a message of {len(text)} characters: {text[:200]!r}"
    assert text.isprintable(), f"a message that cannot be shown: {text[:300]!r}"


def memory_of(run: Callable[[], object]) -> int:
    """The most bytes that Python, numpy and Arrow held at a time for a call."""
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
    """How many lines of Python a call runs through."""
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
