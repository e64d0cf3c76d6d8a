"""How old and how large garbage is, as pictures of `candidates`."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector.amount import Amount
from lakefs_gc_assets.collector.frame.kinds import CandidateFigures
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.page.garbage import AGES, SIZES, Garbage, count_by_month
from lakefs_gc_assets.collector.sizes import size
from lakefs_gc_assets.defs.pictures import bars
from lakefs_gc_assets.lakefs.layout import WindowSize

_MONTHS = 6


def pictures(
    frame: StoredFrame[CandidateFigures], garbage: Garbage, window_size: WindowSize, now: datetime
) -> dict[str, Any]:
    """What the page of `candidates` shows: garbage by age, by size, and by the month of its slice."""
    months = count_by_month(frame.manifest, window_size)
    shown: dict[str, Any] = {
        "garbage_by_age": _drawn("garbage by age", garbage.by_age, AGES),
        "garbage_by_size": _drawn("garbage by size", garbage.by_size, SIZES),
        "garbage_by_month": _drawn("garbage by the month of its slice", months, [*months][-_MONTHS:]),
    }
    if garbage.oldest is not None:
        # As a text: a number of the whole run would be plotted for each of its windows.
        shown["oldest_garbage_days"] = f"{(now - garbage.oldest) / timedelta(days=1):.1f}"
    return shown


def _drawn(title: str, groups: Mapping[str, Amount], order: Iterable[str]) -> dg.MarkdownMetadataValue:
    """Bars by bytes, or by objects where all are empty."""
    by_bytes = any(total for _, total in groups.values())
    found = [(name, *groups[name]) for name in order if name in groups]
    rows = [(f"{name}: {objects:,}, {size(total)}", total if by_bytes else objects) for name, objects, total in found]
    return bars(title, rows)
