"""Garbage collection for lakeFS repositories, as a Dagster asset graph on PySpark.

From Python, `lakefs_gc_assets.open` gives the results of runs; everything else is imported when it is needed.
"""

import os as _os
from typing import TYPE_CHECKING

from lakefs_gc_assets.deferred import deferred as _deferred

if TYPE_CHECKING:
    from pathlib import Path

    from lakefs_gc_assets import results
    from lakefs_gc_assets.results import Repository
    from lakefs_gc_assets.settings import Configuration
else:
    results = _deferred("lakefs_gc_assets.results")

__all__: list[str] = []
"""Empty, so that `from lakefs_gc_assets import *` does not replace the built-in function `open`."""

# Otherwise Arrow's allocator keeps freed memory, half of a small run's driver. It reads this variable when loaded.
_os.environ.setdefault("MIMALLOC_PURGE_DELAY", "0")


def open(configuration: "str | Path | Configuration | None" = None, *, repository: str | None = None) -> "Repository":
    """Opens a repository to look at its runs; nothing is changed, and no lock is taken.

    Args:
        configuration: a configuration file, or its content; by default the file that LAKEFS_GC_CONFIG names, else
            lakefs-gc.yaml in the working folder.
        repository: which one of a file's repositories, by its name there.
    Raises:
        ConfigurationError: there is no such file or repository, a setting is wrong, or a secret's variable is not set.
        LakeFSError: the server cannot be asked where the repository lies.

    For example `open("lakefs-gc.yaml").run("latest").candidates.to_pandas()`.
    """
    return results.open_repository(configuration, repository)
