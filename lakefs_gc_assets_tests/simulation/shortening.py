"""Shortens a failing history: leaves out steps as long as it fails in the same way."""

import re
from collections.abc import Callable
from dataclasses import replace

from lakefs_gc_assets_tests.simulation.bug import Bug
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import History, Step, play

NONE = Bug(tuple)
_NAMES = re.compile(r"\S*[0-9a-v]{20}\S*|\d+")


def failure(history: History, bug: Bug = NONE) -> Violation | None:
    """How a history fails, or None."""
    try:
        with bug.patches():
            play(history)
    except Violation as violation:
        return violation
    return None


def shortened(history: History, bug: Bug = NONE) -> History:
    """The shortest history found that fails in the same way, apart from names and numbers."""
    first = failure(history, bug)
    if first is None:
        raise ValueError("the history does not fail")
    wanted = _kind(first)

    def fails(steps: list[Step]) -> bool:
        found = failure(replace(history, steps=tuple(steps)), bug)
        return found is not None and _kind(found) == wanted

    return replace(history, steps=tuple(_without(list(history.steps), fails)))


def _kind(violation: Violation) -> str:
    return type(violation).__name__ + _NAMES.sub("", str(violation))


def _without(steps: list[Step], fails: Callable[[list[Step]], bool]) -> list[Step]:
    """Leaves out halves, then quarters, down to single steps."""
    size = len(steps) // 2
    while size:
        start = 0
        while start < len(steps):
            fewer = steps[:start] + steps[start + size :]
            if fails(fewer):
                steps = fewer
            else:
                start += size
        size //= 2
    return steps


def reported(history: History, bug: Bug = NONE) -> str:
    """Describes a failing history: its setup with the seed, its steps, and the failure."""
    lines = [f"seed {history.setup.seed}, {len(history.steps)} steps", repr(history.setup)]
    lines += [f"  {step}" for step in history.steps]
    return "\n".join([*lines, f"=> {failure(history, bug)}"])
