"""The listing of entries that expire by the rules of object lifecycle, as it is shown, stored and approved.

A listing has one group for each branch and rule. An approval names the digest of a listing. The deletion decides anew,
and takes only entries that the listing has and that still expire unchanged.
"""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from lakefs_gc_assets.collector.records.outcomes import Amount

FORMAT_VERSION = 1
ENTRIES = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("last_modified", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""Expired entries of a group, in order of path; `address` as the entry has it, relative or whole."""


@dataclass(frozen=True, slots=True)
class Group:
    """Entries of one branch that expire by one rule.

    Attributes:
        commit_id: head of the branch that was read.
        rule: name of the rule.
        expired: number and bytes of the entries.
        freed: objects that collection frees once all groups are deleted and the older commits have expired: those at
            no path that stays in a head or tag. An object of several groups counts in the first one. Uncommitted
            changes, and other paths of the same object, are not looked at. None if unknown.
        digest: digest of paths and addresses.
        folders: the largest folders with what expires in each, for display.
    """

    branch: str
    commit_id: str
    rule: str
    expired: Amount
    digest: str
    freed: Amount | None = None
    folders: tuple[tuple[str, Amount], ...] = ()


@dataclass(frozen=True, slots=True)
class KeptEntries:
    """A reason for which entries of a branch stay that a rule matches: all of them, or as many as it says."""

    branch: str
    rule: str
    why: str


@dataclass(frozen=True, slots=True)
class LifecycleListing:
    """Entries that expire in a repository. `made_at`: UTC."""

    repository: str
    made_at: datetime
    groups: tuple[Group, ...]
    kept: tuple[KeptEntries, ...] = ()
    format_version: int = field(default=FORMAT_VERSION)

    @property
    def expired(self) -> Amount:
        """Everything that would be deleted."""
        return Amount.total(group.expired for group in self.groups)

    @property
    def digest(self) -> str:
        """Digest of everything that would be deleted; empty for nothing."""
        stated = sorted([each.branch, each.rule, each.digest] for each in self.groups)
        return hashlib.sha256(json.dumps(stated).encode()).hexdigest()[:16] if stated else ""
