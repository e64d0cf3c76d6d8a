"""A seeded bug: product functions replaced by the mistakes of a hurried collector."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, cast
from unittest import mock

import lakefs_gc_assets
from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.live import current
from lakefs_gc_assets.collector.live.references import Unnamed
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets_tests.runs.made_ranges import range_records


def replace(until: ExitStack, owner: object, name: str, replacement: object) -> None:
    """Replaces an attribute of the module or class itself until the stack is closed."""
    until.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, replacement)


Replacement = tuple[object, str, object]
"""A module or class of the product, the name of an attribute, and its replacement."""
ArrowStep = Step[ArrowRows]
_PRODUCT = lakefs_gc_assets.__name__
UNNAMED_LEFT_OUT: Replacement = (current, "find_unnamed", lambda *arguments: Unnamed((), range_records([])))
"""Treats ranges that no commit names as orphans."""


@dataclass(frozen=True)
class Bug:
    """A change of the shipped code alone; nothing else in the world changes.

    It removes one rule, together with checks that would end the run or hide the bug by chance.

    Attributes:
        replacements: makes the replacements anew for each play, since some have state.
        changed: the functions that have the bug, if they differ from those replaced.
    """

    replacements: Callable[[], Sequence[Replacement]]
    changed: tuple[Callable[..., object], ...] = ()

    @contextmanager
    def patches(self) -> Iterator[None]:
        """Applies the bug to the product. Watchers of a play wrap the replaced functions."""
        with ExitStack() as stack:
            for owner, name, replacement in self.replacements():
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    @property
    def changes(self) -> tuple[str, ...]:
        """Places in the product that have the bug, each as `module:name`."""
        if self.changed:
            return tuple(f"{function.__module__}:{function.__qualname__}" for function in self.changed)
        named = (_place(owner, name) for owner, name, _ in self.replacements())
        return tuple(dict.fromkeys(place for place in named if place.startswith(f"{_PRODUCT}.")))


@dataclass(frozen=True)
class TestedBug:
    """A bug and the test that fails with it."""

    bug: Bug
    test: Callable[[], None]

    __test__ = False


def replaced(*replacements: Replacement) -> Bug:
    """A bug without state."""
    return Bug(lambda: replacements)


def without_unnamed(bug: Bug) -> Bug:
    """A bug in the set of committed addresses. It also drops ranges that no known commit names, which would hide it."""
    return Bug(lambda: (*bug.replacements(), UNNAMED_LEFT_OUT), bug.changed)


def without_call(owner: object, name: str, caller: Callable[..., object], answer: object = None) -> Bug:
    """Leaves out the call of a check in one function; other functions still call it.

    Args:
        owner: the module or class in which that function looks the check up.
        answer: the value that the function gets instead.
    """
    check: Callable[..., object] = getattr(owner, name)
    code = cast(FunctionType, caller).__code__

    def called(*arguments: Any, **named: Any) -> object:
        return answer if sys._getframe(1).f_code is code else check(*arguments, **named)

    return Bug(lambda: ((owner, name, called),), (caller,))


def _place(owner: object, name: str) -> str:
    if isinstance(owner, ModuleType):
        return f"{owner.__name__}:{name}"
    assert isinstance(owner, type)
    return f"{owner.__module__}:{owner.__qualname__}.{name}"


def ignored(*arguments: object, **named: object) -> None:
    """Replaces a check that raises if it finds a fault."""
