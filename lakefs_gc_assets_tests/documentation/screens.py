"""Checks by commit times that the pictures of the UI are newer than the code that draws it."""

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
"""Code that draws the pages of the UI and produces the content they show."""


def outdated(root: Path = ROOT) -> str | None:
    """A problem with the pictures; None if they are newer than the code, or without a git checkout.

    Any commit to this code counts, even if it changes no picture: only a person could tell the difference.
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
    """Time of the last commit to these paths, in seconds since 1970; None if there is none."""
    command = ["git", "-C", str(root), "log", "-1", "--format=%ct", "--", *paths]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return int(found) if found else None
