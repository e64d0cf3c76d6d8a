"""Budgets of repositories: the trend of stored bytes, when it breaks a budget, and the rules that would keep it.

Nothing is deleted because of a budget: rules are proposals, taken from the newest forecast of the repository.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.errors import counted

LEAST_POINTS = 3
"""Minimum measurements for a trend."""
LEAST_SPAN = timedelta(days=2)
"""Minimum time between the first and the last one: bytes of a single day say nothing of a month."""
_DAY = timedelta(days=1)
_FAR = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Stored bytes at a time, UTC."""

    time: datetime
    bytes: int


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through measurements, by least squares.

    Attributes:
        bytes_per_day: its slope.
        last: the last measurement, from which the trend continues.
    """

    bytes_per_day: float
    last: Measurement

    @classmethod
    def from_measurements(cls, measurements: Sequence[Measurement]) -> "Trend | None":
        """The trend of measurements in the order of their times; None if they are too few or too close."""
        if len(measurements) < LEAST_POINTS or measurements[-1].time - measurements[0].time < LEAST_SPAN:
            return None
        first = measurements[0].time
        days = [(each.time - first) / _DAY for each in measurements]
        mean_days = sum(days) / len(days)
        mean_bytes = sum(each.bytes for each in measurements) / len(days)
        rises = sum((day - mean_days) * (each.bytes - mean_bytes) for day, each in zip(days, measurements, strict=True))
        return cls(rises / sum((day - mean_days) ** 2 for day in days), measurements[-1])

    def reaches(self, budget: int) -> datetime | None:
        """When the stored bytes exceed a budget, UTC; None if never, or not in a hundred years."""
        if self.last.bytes > budget:
            return self.last.time
        if self.bytes_per_day <= 0:
            return None
        ahead = (budget - self.last.bytes) / self.bytes_per_day
        return self.last.time + timedelta(days=ahead) if ahead < _FAR / _DAY else None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Retention rules that would bring a repository below its budget.

    Attributes:
        rules: name of the rules in the forecast, such as `30 days`.
        days: retention of all branches in days; None for the text of a policy.
        remaining_bytes: bytes that would be stored then.
        lost_commits: commits that the rules would expire: their data could no longer be read.
        freed_objects, freed_bytes: objects and bytes that a run would free.
    """

    rules: str
    days: int | None
    remaining_bytes: int
    lost_commits: int | None
    freed_objects: int
    freed_bytes: int

    def __str__(self) -> str:
        lost = "an unknown number of commits" if self.lost_commits is None else counted(self.lost_commits, "commits")
        return (
            f"{self.rules}: {size(self.remaining_bytes)} would stay; it loses {lost}, "
            f"{counted(self.freed_objects, 'objects')} and {size(self.freed_bytes)}"
        )


def propose(forecast: pa.Table, stored_bytes: int, budget: int) -> Iterator[Proposal]:
    """Yields the rules of a forecast that would keep a budget, the gentlest first.

    Args:
        forecast: rows of `stored_forecasts.FORECAST`.
        stored_bytes: bytes that the repository stores now.
    """
    rows = [row for row in forecast.to_pylist() if row["kind"] in (ScenarioKind.AGE, ScenarioKind.POLICY)]
    for row in sorted(rows, key=lambda row: (row["freed_bytes"], -(row["days"] or 0))):
        remaining = stored_bytes - row["freed_bytes"]
        if remaining <= budget:
            yield Proposal(
                row["name"],
                row["days"],
                remaining,
                row["commits_expired"],
                row["freed_objects"],
                row["freed_bytes"],
            )
