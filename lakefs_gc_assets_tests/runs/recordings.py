"""Recordings of repositories by name: of real lakeFS servers, or made in this test run.

Recordings of real servers are beside the checkout, in `../shared`, never in it. The embedded server makes recordings of
the same shape in a few seconds, so that a clone alone can run the tests of replays; see `replay.made`. Facts that hold
only for a real server's recording, such as its figures, need the real one.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).resolve().parents[3] / "shared" / "lakefs" / "fixtures"
REAL = FIXTURES.is_dir()
"""True if recordings of real servers exist."""

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
"""Prefix of a name that selects the recording of this test run, even if there is a real one."""
FOLDER_VARIABLE = "LAKEFS_GC_MADE_RECORDINGS"
"""The environment variable with the folder of made recordings, for all processes of a test run."""


def folder_of(name: str) -> Path:
    """Folder of a recording: the real one if it exists, otherwise one that the tests make, now if necessary."""
    if REAL and not name.startswith(MADE_PREFIX):
        return FIXTURES / name
    # Import late: reading this module must start no server.
    from lakefs_gc_assets_tests.replay import made

    plain = name.removeprefix(MADE_PREFIX)
    return made.make_once(MADE_BY_NAME[plain], made_folder()) / plain


def made_folder() -> Path:
    """The folder of this run's recordings: the first process chooses it and passes it to its children."""
    if FOLDER_VARIABLE not in os.environ:
        os.environ[FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="lakefs-gc-recordings-")
    return Path(os.environ[FOLDER_VARIABLE])


def recorded(*names: str) -> list[Any]:
    """Parameters of a test of recordings; recordings that neither exist nor can be made are skipped."""
    return [pytest.param(name, marks=() if name in MADE_BY_NAME else needs_recordings) for name in names]


def recorded_and_made(*names: str) -> list[Any]:
    """The same, with made recordings besides the real ones: for cheap tests."""
    return recorded(*names) + [MADE_PREFIX + name for name in names if REAL and name in MADE_BY_NAME]
