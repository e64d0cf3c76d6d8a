"""Repositories in several clouds that age at the same time: no object of a young one may be collected."""

import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import pytest


class GrowsOld(Protocol):
    """A repository whose objects may all be collected from a moment of `time.monotonic` on."""

    @property
    def old_at(self) -> float:
        """The moment from which they may."""
        ...


Made = TypeVar("Made", bound=GrowsOld)


def made_or_why_not(makers: Mapping[str, Callable[[], Made]]) -> dict[str, Made | str]:
    """The makers' repositories by the name of their cloud, or the reason why that cloud is skipped."""
    found: dict[str, Made | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except pytest.skip.Exception as reason:
            found[name] = str(reason)
    return found


def once_old(found: Made | str) -> Made:
    """Returns the repository as soon as it is old enough. Skips the test if there is none."""
    if isinstance(found, str):
        pytest.skip(found)
    time.sleep(max(found.old_at - time.monotonic(), 0))
    return found
