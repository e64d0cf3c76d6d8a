"""Conversion of disk-full errors to our own, with the folder and a remedy instead of a stack trace."""

import errno
import os
import sqlite3

from lakefs_gc_assets.errors import DiskFull

_FULL = {errno.ENOSPC, errno.EDQUOT}
_IN_SQLITE = ("database or disk is full", "disk I/O error")
"""Messages of SQLite. The second one means that its journal or its shared memory found no space."""


def full_disk(error: BaseException | None) -> DiskFull | None:
    """Our error for an exception that a full disk caused; None for any other."""
    while error is not None:
        if isinstance(error, sqlite3.OperationalError) and str(error) in _IN_SQLITE:
            home = os.environ.get("DAGSTER_HOME")
            what = f"Dagster cannot store events in DAGSTER_HOME, {home}" if home else "SQLite cannot write its files"
            return DiskFull(
                f"{what}: {error}. Free space on that disk. If Dagster goes on to show a run as started, restart its "
                "code location and terminate the run in the UI, by force"
            )
        if isinstance(error, OSError) and error.errno in _FULL:
            where = f"{error.filename}: " if error.filename else ""
            why = f"{where}{os.strerror(error.errno)}. Free space on that disk"
            return DiskFull(f"{why}. Temporary files go to the folder that TMPDIR names")
        error = error.__cause__ or error.__context__
    return None
