"""Python's own housekeeping, in processes that start, make one run and end."""

import atexit
import gc

_OBJECTS = 100_000
"""How many more there are than at the last look for unreachable cycles, before the next."""


def look_for_cycles_seldom() -> None:
    """Lets Python look for unreachable cycles of objects a hundred times less often, and not at all as it ends.

    By default a small run spends two seconds on it, half of them at its end.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(gc.freeze)
