"""Whether the pictures of the UI are older than what draws it, by the times of commits."""

import subprocess
from pathlib import Path

from lakefs_gc_assets_tests.documentation.pages import ROOT

PICTURES = "docs/screens"
DRAWN_BY = (
    "lakefs_gc_assets/defs",
    "lakefs_gc_assets/definitions.py",
    "lakefs_gc_assets/collector/frame",
    "lakefs_gc_assets/extensions/playground/demo.py",
    "lakefs_gc_assets/extensions/playground/embedded/sample.py",
)
"""What draws the pages of the UI, and makes what they show."""


def outdated(root: Path = ROOT) -> str | None:
    """What is wrong with the pictures; None where they are newer than the code, or there is no checkout of git.

    Commits of the code that no picture shows count too: nobody can tell them apart without looking.
    """
    try:
        pictures, code = _last_commit(root, PICTURES), _last_commit(root, *DRAWN_BY)
    except (OSError, subprocess.CalledProcessError):
        return None
    if pictures is None:
        return f"{PICTURES} was never committed"
    if code is None or code <= pictures:
        return None
    return (
        f"the pictures in {PICTURES} are {(code - pictures) / 3600:.1f} hours older than the UI's code: take them "
        "anew as docs/screens.md says"
    )


def _last_commit(root: Path, *paths: str) -> int | None:
    """When one of these paths was last changed by a commit, in seconds since 1970; None where that never was."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct", "--", *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return int(found) if found else None
