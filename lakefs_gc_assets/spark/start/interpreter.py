"""Python's own housekeeping, in processes that start, make one run and end."""

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_OBJECTS = 100_000
"""How many more there are than at the last look for unreachable cycles, before the next."""


def look_for_cycles_seldom() -> None:
    """Lets Python look for unreachable cycles of objects a hundred times less often, and not at all as it ends.

    By default a small run spends two seconds on it, half of them at its end.
    """
    gc.set_threshold(_OBJECTS)
    atexit.register(gc.freeze)


class _WithoutPandas(MetaPathFinder):
    """Finds no pandas, wherever it is installed. None in its place in `sys.modules` is no sign to compiled modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Raises ModuleNotFoundError for pandas; leaves all other modules to other finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=fullname)


def leave_out_pandas() -> None:
    """Lets a process of workers find no pandas, which takes half a second and 40 MB to import.

    pyarrow imports it wherever it is installed, to see whether a value is one of pandas'; no task has such values. A
    driver cannot do without: pyspark refuses `mapInArrow` where there is none.
    """
    sys.meta_path.insert(0, _WithoutPandas())
