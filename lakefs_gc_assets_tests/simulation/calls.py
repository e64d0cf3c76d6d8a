"""Kinds of calls before which a test can stop or fail a collector."""

import re

SWEEPING = "sweeping: "
"""Prefix of patterns that match only calls of a run's last step."""
CALLS = tuple(
    re.compile(pattern)
    for pattern in (
        "list_level data/",
        "prepare_uncommitted",
        "diff|branches",
        "start_refs_dump",
        "refs_dump",
        "get _lakefs/[0-9a-f]{64}",
        "stat",
        "delete (?!_lakefs/retention/gc/uncommitted/)",
        "put_if_absent",
        "retention_rules",
        "start_prepare_commits|prepare_commits_task|prepare_commits$",
        # Listing and mark read this file too. A sweep reads it first, before all its other work.
        f"{SWEEPING}get _lakefs/retention/gc/uncommitted/restored.json",
    )
)
CALLS_OF_ALL = 9
"""Number of leading patterns whose calls runs of every flow make."""


def is_of(kind: re.Pattern[str], call: str, *, sweeping: bool) -> bool:
    """True if a call is of a kind.

    Args:
        sweeping: True if the run is at its last step.
    """
    return bool(kind.match(call) or (sweeping and kind.match(SWEEPING + call)))
