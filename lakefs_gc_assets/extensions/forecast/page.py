"""The page of a forecast: bytes that other retention rules would free, by rule, branch, tag and folder."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakefs_gc_assets.collector.page import markup
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.stored_forecasts import page_key
from lakefs_gc_assets.extensions.forecast.forecast import FolderHolding, Forecast, Freed, portions
from lakefs_gc_assets.storage.interface import ObjectStore

_HOLDERS = 5
_TICK_GAP, _LABEL_GAP, _LABEL_ROOM = 0.0567, 0.0905, 0.1167
"""Minimum distances, as shares of the drawing's width or height: between two ticks, between two labelled dots, and from
the right edge to a label that starts at its dot."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A retention period in the drawing of a curve.

    Attributes:
        x, y: shares of the drawing's width and height, from the left and from the top.
        is_ticked: True if there is room for the days below the drawing.
        label_anchor: the end of the label that touches the dot, `start` or `end`; None if there is no room for it.
    """

    freed: Freed
    x: float
    y: float
    is_ticked: bool
    label_anchor: str | None


def write(store: ObjectStore, forecast: Forecast) -> None:
    """Makes and stores the page of a forecast. Raises StorageError."""
    store.put(page_key(forecast.forecast_id), render(forecast))


def render(forecast: Forecast) -> bytes:
    """The page of a forecast: one HTML file that loads nothing, well below 1 MB however large the repository is."""
    ages = sorted((freed for freed in forecast.rules if freed.scenario.days is not None), key=_days)
    most = max(freed.amount.bytes for freed in (forecast.in_force, *ages)) or 1
    return markup.render(
        Path(__file__).with_name("forecast.html"),
        forecast.forecast_id,
        forecast=forecast,
        most=most,
        dots=curve(ages, most) if ages and _days(ages[0]) < _days(ages[-1]) else [],
        holdings=sorted(forecast.holdings, key=lambda holding: (-holding.in_all.bytes, holding.title)),
        cost=cost,
        held_by=partial(_held_by, forecast),
    )


def cost(forecast: Forecast, count: int) -> str:
    """Monthly cost of bytes, distributed over storage classes as a run listed them; empty without prices."""
    by_class = {name: amount.bytes for name, amount in forecast.listed.amounts.items()} if forecast.listed else {}
    total = sum(by_class.values())
    return markup.cost(forecast.prices, total or count, by_class, count / total if total else 1)


def _held_by(forecast: Forecast, folder: FolderHolding) -> str:
    holders = portions(forecast, folder)
    named = [f"{holding.title} {size(portion.in_all.bytes)}" for holding, portion in holders[:_HOLDERS]]
    more = len(holders) - len(named)
    return ", ".join([*named, f"{more:,} more"] if more else named)


def curve(ages: Sequence[Freed], most: int) -> list[Dot]:
    """Draws the bytes freed against the retention period in days.

    Args:
        ages: results for at least two different ages, in order.
        most: bytes at the top of the drawing.
    """
    first, last = (math.log1p(_days(ages[place])) for place in (0, -1))
    dots = []
    ticked, labelled = -math.inf, math.inf
    for freed in ages:
        x, y = (math.log1p(_days(freed)) - first) / (last - first), 1 - freed.amount.bytes / most
        if is_ticked := x - ticked >= _TICK_GAP:
            ticked = x
        if has_label := abs(y - labelled) >= _LABEL_GAP:
            labelled = y
        dots.append(Dot(freed, x, y, is_ticked, ("end" if x > 1 - _LABEL_ROOM else "start") if has_label else None))
    return dots


def _days(freed: Freed) -> int:
    days = freed.scenario.days
    assert days is not None
    return days
