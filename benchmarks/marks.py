"""Measured figures beside their marks."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Measure:
    """One figure.

    Attributes:
        mark: required minimum, or maximum if `at_most`; None for figures without a mark.
        load: number of runnable processes on the machine in the minute before, including ours.
    """

    name: str
    value: float
    unit: str
    mark: float | None = None
    at_most: bool = True
    load: float = 0

    @property
    def reached(self) -> bool | None:
        """True if the mark is reached; None without a mark."""
        if self.mark is None:
            return None
        return self.value <= self.mark if self.at_most else self.value >= self.mark

    def as_json(self) -> dict[str, Any]:
        """The figure, its mark, and True if it is reached."""
        return {**asdict(self), "reached": self.reached}

    def __str__(self) -> str:
        told = f"{self.name:58} {self.value:>14,.1f} {self.unit:12}"
        if self.mark is None:
            return f"{told} {'':26} load {self.load:.1f}"
        bound = "at most" if self.at_most else "at least"
        verdict = "reached" if self.reached else "MISSED"
        return f"{told} {bound:8} {self.mark:>11,.1f} {verdict:7} load {self.load:.1f}"


def at_most(name: str, value: float, unit: str, mark: float) -> Measure:
    """A figure that should be small."""
    return Measure(name, value, unit, mark, True, os.getloadavg()[0])


def at_least(name: str, value: float, unit: str, mark: float) -> Measure:
    """A figure that should be large."""
    return Measure(name, value, unit, mark, False, os.getloadavg()[0])


def figure(name: str, value: float, unit: str) -> Measure:
    """A figure without a mark."""
    return Measure(name, value, unit, load=os.getloadavg()[0])


def summary(measures: Sequence[Measure]) -> str:
    """Numbers of reached and missed marks."""
    reached = sum(measure.reached is True for measure in measures)
    missed = sum(measure.reached is False for measure in measures)
    return f"{reached} marks reached, {missed} missed"
