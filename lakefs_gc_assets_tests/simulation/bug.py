"""A seeded bug: functions of the product replaced by what a hurried collector does instead."""

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

Replacement = tuple[object, str, object]
"""A module or class of the product, the name of something in it, and what stands there instead."""
ArrowStep = Step[ArrowRows]
_PRODUCT = lakefs_gc_assets.__name__
UNNAMED_LEFT_OUT: Replacement = (current, "find_unnamed", lambda *arguments: Unnamed((), range_records([])))
"""Takes ranges that no commit names for orphans."""


@dataclass(frozen=True)
class Bug:
    """A change of the code that ships, and of nothing else that decides what a run does.

    It takes one rule out, together with what would end the run, or make up for it by chance.

    Attributes:
        replacements: makes what is replaced, anew for each play: some of it remembers what happened.
        changed: the functions that have the bug, where these are not what is replaced.
    """

    replacements: Callable[[], Sequence[Replacement]]
    changed: tuple[Callable[..., object], ...] = ()

    @contextmanager
    def patches(self) -> Iterator[None]:
        """The product has the bug meanwhile. What watches a play wraps what stands there then."""
        with ExitStack() as stack:
            for owner, name, replacement in self.replacements():
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    @property
    def changes(self) -> tuple[str, ...]:
        """What of the product the bug is in: the module, a colon, and the name in it."""
        if self.changed:
            return tuple(f"{function.__module__}:{function.__qualname__}" for function in self.changed)
        named = (_place(owner, name) for owner, name, _ in self.replacements())
        return tuple(dict.fromkeys(place for place in named if place.startswith(f"{_PRODUCT}.")))


@dataclass(frozen=True)
class TestedBug:
    """A bug, and the test that fails with it."""

    bug: Bug
    test: Callable[[], None]

    __test__ = False


def replaced(*replacements: Replacement) -> Bug:
    """A bug that remembers nothing."""
    return Bug(lambda: replacements)


def without_unnamed(bug: Bug) -> Bug:
    """A bug of what is known to be committed: ranges that no known commit names, which would make up for it, go too."""
    return Bug(lambda: (*bug.replacements(), UNNAMED_LEFT_OUT), bug.changed)


def without_call(owner: object, name: str, caller: Callable[..., object], answer: object = None) -> Bug:
    """One call of a check is left out: the one in a function; others still make it.

    Args:
        owner: the module or class in which that function looks the check up.
        answer: what the function is told instead.
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
    """Stands in place of a check that raises where something is wrong."""
