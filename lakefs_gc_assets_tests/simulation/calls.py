"""Kinds of calls before which a collector can be told to stop, or to fail."""

import re

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
        "get _lakefs/retention/gc/uncommitted/restored.json",
    )
)
CALLS_OF_ALL = 9
"""So many of them are made by runs of every flow."""
