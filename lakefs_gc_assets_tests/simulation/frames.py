"""Frames of the simulated collector: rows with the span, inputs and figures that a stored frame's manifest has.

They outlive a collector that is killed, as frames in the store do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets_tests.simulation.plain import Row


@dataclass(frozen=True)
class Frame:
    """One stored frame.

    Attributes:
        inputs: the very frames that it was made from.
    """

    span: Span
    rows: tuple[Row, ...]
    inputs: tuple["Frame", ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def addresses(self) -> frozenset[str]:
        return frozenset(row["address"] for row in self.rows)

    @property
    def object_bytes(self) -> int:
        return sum(row["size"] for row in self.rows)


Shelf = dict[tuple[str, str], Frame]
"""Frames by run id and name."""
