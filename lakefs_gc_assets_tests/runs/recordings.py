"""Recordings of repositories by their names: of real lakeFS servers, or made in this run of the tests.

Those of real servers lie beside the checkout, in `../shared`, never in it. The embedded server makes recordings of the
same shape in a few seconds, so that a clone alone tests what a replay can show; see `replay.made`. What is true of a
real server's recording only, such as its figures, needs the real one.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "lakefs" / "fixtures"
REAL = FIXTURES.is_dir()
"""Whether recordings of real servers are there."""

needs_recordings = pytest.mark.skipif(
    not REAL, reason="recordings of a real lakeFS server are not beside this checkout (../shared)"
)

MADE_BY_NAME = {
    "empty": "empty",
    "small": "small",
    "merge-dangling": "merge-dangling",
    **{f"chain/{number}": "chain" for number in (1, 2, 3, 4)},
}
"""Names of the recordings that the tests make, each with the group that is made at once."""
MADE_PREFIX = "made/"
"""Before a name: the recording of this run of the tests, even where there is a real one."""
FOLDER_VARIABLE = "LAKEFS_GC_MADE_RECORDINGS"
"""The environment variable that names the folder of made recordings, for all processes of a run of the tests."""


def folder_of(name: str) -> Path:
    """Where a recording lies: the real one where it is there, otherwise the one that the tests make, made by now."""
    if REAL and not name.startswith(MADE_PREFIX):
        return FIXTURES / name
    # Recordings are made where they are needed: reading this module starts no server.
    from lakefs_gc_assets_tests.replay import made

    plain = name.removeprefix(MADE_PREFIX)
    return made.make_once(MADE_BY_NAME[plain], made_folder()) / plain


def made_folder() -> Path:
    """The folder of this run's made recordings: chosen by the process that asks first, and told to those it starts."""
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="lakefs-gc-recordings-")
    return Path(os.environ[FOLDER_VARIABLE])


def recorded(*names: str) -> list[Any]:
    """Parameters of a test of recordings; skipped are those that nobody makes and that are not there."""
    return [pytest.param(name, marks=() if name in MADE_BY_NAME else needs_recordings) for name in names]


def recorded_and_made(*names: str) -> list[Any]:
    """The same, and besides the real ones those that the tests make: for tests that cost little."""
    return recorded(*names) + [MADE_PREFIX + name for name in names if REAL and name in MADE_BY_NAME]
