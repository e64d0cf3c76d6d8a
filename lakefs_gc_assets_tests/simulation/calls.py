"""Kinds of calls before which a collector can be told to stop, or to fail."""

import re

SWEEPING = "sweeping: "
"""Begins the pattern of a kind of which only calls of a run's last step are."""
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
        # A listing and a mark ask this too. The first of a sweep comes before all that it does.
        f"{SWEEPING}get _lakefs/retention/gc/uncommitted/restored.json",
    )
)
CALLS_OF_ALL = 9
"""So many of them are made by runs of every flow."""


def is_of(kind: re.Pattern[str], call: str, *, sweeping: bool) -> bool:
    """Whether a call is of a kind. `sweeping`: whether the run is at its last step."""
    return bool(kind.match(call) or (sweeping and kind.match(SWEEPING + call)))
