"""Repeats a bulk delete for the keys that the service was too busy for, a few times, with growing pauses."""

import random
import time
from collections.abc import Callable, Sequence

from lakefs_gc_assets.storage.interface import DeleteOutcome

PAUSES = (0.25, 0.5, 1, 2)
"""Seconds between the calls."""


def insisting(
    delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]],
    keys: Sequence[str],
    was_busy: Callable[[DeleteOutcome], bool],
) -> dict[str, DeleteOutcome]:
    """Deletes keys, those that the service was too busy for again; returns the last outcome of each.

    Raises what `delete` raises.
    """
    said = delete(keys) if keys else {}
    for pause in PAUSES:
        busy = [key for key in keys if was_busy(said[key])]
        if not busy:
            break
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
        said |= delete(busy)
    return said
