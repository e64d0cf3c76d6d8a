"""Where Spark's Python workers import pyspark from."""

from collections.abc import Sequence
from importlib.machinery import PathFinder


def without_archives(path: Sequence[str]) -> list[str]:
    """A search path without archives of sources, where pyspark is installed beside them; else the same path."""
    installed = [entry for entry in path if not entry.endswith(".zip")]
    found = all(PathFinder.find_spec(package, installed) for package in ("pyspark", "py4j"))
    return installed if found else list(path)
