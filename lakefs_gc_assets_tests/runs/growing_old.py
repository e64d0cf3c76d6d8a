"""Repositories in several clouds, which grow old at the same time: nothing of a young one may be collected."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import pytest


class GrowsOld(Protocol):
    """A repository of which all objects may be collected from a moment of `time.monotonic` on."""

    @property
    def old_at(self) -> float:
        """That moment."""
        ...


Made = TypeVar("Made", bound=GrowsOld)


def made_or_why_not(makers: Mapping[str, Callable[[], Made]]) -> dict[str, Made | str]:
    """What each maker makes, by the name of its cloud, or why that cloud is left out."""
    found: dict[str, Made | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except pytest.skip.Exception as reason:
            found[name] = str(reason)
    return found


def once_old(found: Made | str) -> Made:
    """What was made, as soon as it is old enough. Skips the test where there is none."""
    if isinstance(found, str):
        pytest.skip(found)
    time.sleep(max(found.old_at - time.monotonic(), 0))
    return found
