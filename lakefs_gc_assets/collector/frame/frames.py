"""Frames of a run and their columns, each declared once, and the schemas of other tables that the run makes.

A frame is a table that a run stores beside its plan. Its figures are facts that its step counted or found; later steps,
the report, the checks and the UI read them. Its manifest stores them under these names.

The Arrow schemas of stored frames and their descriptions in the UI follow from the columns. The pandera models of
`defs/checks.py` declare the same columns, as a test proves. Addresses are relative to the storage namespace, times UTC,
sizes bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

import pyarrow as pa

from lakefs_gc_assets.collector.records.figures import StepFigures
from lakefs_gc_assets.collector.records.outcomes import Outcome, Why
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.layout import Layout

TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a frame.

    Attributes:
        description: its meaning in a sentence.
        allowed: the only values that it may have; empty for any.
        least: the smallest value that it may have; None for any.
        added: true if files of earlier versions lack it; it is null there.
    """

    name: str
    type: pa.DataType
    description: str
    nullable: bool = False
    allowed: tuple[str, ...] = ()
    least: int | None = None
    added: bool = False


Columns = tuple[Column, ...]


@cache
def arrow_schema(columns: Columns) -> pa.Schema:
    """The Arrow schema of a table with these columns."""
    return pa.schema([pa.field(column.name, column.type, nullable=column.nullable) for column in columns])


ADDRESS = Column("address", pa.string(), "Namespace-relative address, exactly as the object store spells the key.")
SLICE = Column("slice", pa.string(), "Slice that lakeFS wrote the object into; null outside of `data/<slice>/`.", True)
SLICE_WINDOW = Column(
    "slice_window",
    pa.string(),
    "Window of the slice, which is the partition; `legacy` without a slice.",
)
SIZE = Column("size", pa.int64(), "Size in bytes.", least=0)

LISTED_COLUMNS: Columns = (
    ADDRESS,
    SLICE,
    SLICE_WINDOW,
    Column(
        "layout",
        pa.string(),
        "Layout of the name; objects with unrecognised names are kept.",
        allowed=tuple(layout.value for layout in Layout if layout is not Layout.SPECIAL),
    ),
    Column("issued_at", TIME, "Time in the name, when lakeFS issued it; null for names without a time.", True),
    Column("last_modified", TIME, "Time of the last write, by the store."),
    SIZE,
    Column("etag", pa.string(), "ETag without quotes; null if the store has none, or the object was not listed.", True),
    Column(
        "storage_class",
        pa.string(),
        "Storage class or access tier, as the store spells it; null if it has none, the object was not listed, or the "
        "frame is of an earlier version.",
        nullable=True,
        added=True,
    ),
)

CANDIDATE_COLUMNS: Columns = (
    *LISTED_COLUMNS,
    Column(
        "why",
        pa.string(),
        "Reason why it is garbage; null in frames of earlier versions.",
        nullable=True,
        allowed=tuple(each.value for each in Why),
        added=True,
    ),
)

LIVE_COLUMNS: Columns = (ADDRESS, SLICE, SLICE_WINDOW)

RECEIPT_COLUMNS: Columns = (
    ADDRESS,
    SIZE,
    SLICE,
    SLICE_WINDOW,
    Column(
        "outcome",
        pa.string(),
        "dry_run, accepted by the store, quarantined, failed, kept_live at the recheck, kept_archived, or "
        "deleted_by_another_run.",
        allowed=tuple(each.value for each in Outcome if each not in (Outcome.COPIED, Outcome.RESTORED, Outcome.PURGED)),
    ),
    Column("error", pa.string(), "Error of the store for a failed deletion.", True),
    Column("decided_at", TIME, "Time when the outcome was known."),
    Column("attempt", pa.string(), "Attempt of the run that decided.", True),
    Column(
        "version_id",
        pa.string(),
        "Version of the delete marker that the store made; null if the bucket keeps no versions.",
        True,
    ),
    Column(
        "copy_etag",
        pa.string(),
        "ETag of the copy in quarantine; null without a copy, and in frames of earlier versions.",
        nullable=True,
        added=True,
    ),
)

UNRECOGNISED_COLUMNS: Columns = (ADDRESS, SLICE_WINDOW, SIZE)

SIGHTING_COLUMNS: Columns = (
    ADDRESS,
    SLICE_WINDOW,
    Column("first_listed_at", TIME, "Time when a run first listed it."),
)


LISTED = arrow_schema(LISTED_COLUMNS)
"""Objects of the store. `slice` and `issued_at` are null if the name has none."""

LIVE = arrow_schema(LIVE_COLUMNS)
"""Addresses that are referenced."""

RANGES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("min_key", pa.binary(), nullable=False),
        pa.field("max_key", pa.binary(), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("estimated_size", pa.int64(), nullable=False),
    ]
)
"""Ranges as metaranges name them: a RangeRecord as a row."""

HEAD_ENTRIES = pa.schema(
    [
        pa.field("range_id", pa.string(), nullable=False),
        pa.field("path", pa.binary(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("key", pa.string()),
    ]
)
"""Entries of branch heads that may hide a staged entry of the same content.

`etag` is the entry's checksum. `key` is the key of the committed object; it is null if that lies outside of the storage
namespace or is uncertain.
"""

RECEIPTS = arrow_schema(RECEIPT_COLUMNS)
"""Outcomes of candidates. `version_id` is that of the delete marker in a bucket with versions."""

COPIES = pa.schema(
    [
        pa.field("address", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string(), nullable=False),
        pa.field("etag", pa.string()),
        pa.field("key", pa.string(), nullable=False),
    ]
)
"""Copies in quarantine: `address` is the original address, `key` the key of the copy, `etag` the copy's ETag."""

SIGHTINGS = arrow_schema(SIGHTING_COLUMNS)
"""Unreferenced objects uploaded in parts, and when a run listed them for the first time."""


F = TypeVar("F")


@dataclass(frozen=True)
class Frame(Generic[F]):
    """One kind of frame.

    Attributes:
        name: name of the asset and of the frame's folder in the store; the manifest has it too.
        description: a sentence that describes its rows.
        figures: facts in its manifest beside files and times.
    """

    name: str
    description: str
    columns: Columns
    figures: type[F]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the stored columns."""
        return arrow_schema(self.columns)

    @property
    def added(self) -> tuple[str, ...]:
        """Names of columns that files of earlier versions lack."""
        return tuple(column.name for column in self.columns if column.added)


@dataclass(frozen=True)
class NoFigures:
    """A frame without figures of its own."""


@dataclass(frozen=True)
class StoredFigures(StepFigures):
    """Figures of the listing.

    Attributes:
        flow: kind of run, a value of Flow.
        last_read_slice: the newest slice that was listed; empty if none was.
        other_folders: names directly below `data/` that are not slices.
        nested_namespaces: repositories whose namespace lies inside of this one, or around it.
        repositories_not_checked: repositories on the same bucket whose references were not checked.
        repositories_unknown: answer of the server if it does not list repositories.
        inventory: manifest of the S3 Inventory that replaced a listing.
        why_clean: reason why a run that was to build on another one examines everything.
        base_run: the run that this one builds on.
        limited_to: the only windows that were listed, in words; empty if all were.
        expired_sha256: SHA-256 of the file that names `expired_ranges`; None if objects are listed.
    """

    flow: str
    last_read_slice: str
    other_folders: tuple[str, ...]
    nested_namespaces: tuple[str, ...]
    repositories_not_checked: tuple[str, ...]
    inventory: str | None = None
    why_clean: str | None = None
    base_run: str | None = None
    repositories_unknown: str | None = None
    limited_to: str = ""
    expired_sha256: str | None = None


@dataclass(frozen=True)
class ReasonsToStay:
    """Branches, tags, rules and policy at one moment: all that keeps commits. Without rules every commit stays.

    Attributes:
        branches, tags: commit id by name, hidden branches included; empty if every commit stays.
        rules: the server's rules; None if it has none.
        policy: the text of the policy file; empty without one.
    """

    branches: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    rules: RetentionRules | None = None
    policy: str = ""

    @property
    def commit_ids(self) -> frozenset[str]:
        """The commits that branches and tags name."""
        return frozenset((*self.branches.values(), *self.tags.values()))


@dataclass(frozen=True)
class UncommittedFigures(StepFigures):
    """Figures of the uncommitted data that the server wrote.

    Attributes:
        server_run_ids: ids under which the server wrote, for this repository alone.
        files: keys of the files, relative to the storage namespace.
        reasons_before: branches, tags and rules right before the preparation; None in flows that keep all commits.
        slowest_hooks: action file and branch of the hooks in `hooks_seconds`; empty without hooks.
        hooks_without_limit: a file and branch whose hooks have no known time limit, and why; empty if there is none.
        heads_before: commit id by branch right before the preparation, for each repository, this one's first.
    """

    server_run_ids: tuple[str, ...]
    files: tuple[str, ...]
    reasons_before: ReasonsToStay | None = None
    slowest_hooks: str = ""
    hooks_without_limit: str = ""
    heads_before: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class CommittedFigures(StepFigures):
    """Live commits, and facts about their files that were read.

    Attributes:
        commit_source: source of the commits.
        heads: metarange of the branch head, by branch.
        heads_before: as in UncommittedFigures; of this repository only branches that were on another commit then.
        read_sha256: SHA-256 of the file with the ids of all ranges and metaranges that this run and its base runs have
            read.
        retention: commits by the reason why they stay, in flows by retention.
        retention_rules: digest of the rules.
        retention_warnings: warnings about retention for a person.
        retention_guards: guards that retention tripped: name, figures, and remedy.
        retention_differences: differences between our definition and the server's list, one per line.
        tracked_sha256: SHA-256 of the file with the tracked ranges: all live ones in the flow `unified`, and of a run
            limited to some windows; all expired and examined ones in the flow `committed`. None if these are not known.
    """

    commit_source: str
    heads: Mapping[str, str]
    read_sha256: str
    retention: Mapping[str, int] = field(default_factory=dict)
    retention_rules: str | None = None
    retention_warnings: tuple[str, ...] = ()
    retention_guards: tuple[tuple[str, str, str], ...] = ()
    retention_differences: str = ""
    tracked_sha256: str | None = None
    heads_before: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class CandidateFigures(StepFigures):
    """Figures of the subtraction.

    Attributes:
        kept: unreferenced objects that stay, by reason (values of Kept).
        missing_examples, lost_examples, named_again_examples: a few such addresses.
        sweep_guards: guards that would refuse the sweep of this dry run, beside those that figures trip: name, figures,
            and remedy.
    """

    kept: Mapping[str, int]
    missing_examples: tuple[str, ...]
    lost_examples: tuple[str, ...] = ()
    named_again_examples: tuple[str, ...] = ()
    sweep_guards: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class DeletedFigures:
    """Outcomes of the candidates.

    Attributes:
        swept: true if they were to be deleted, false for a dry run.
    """

    swept: bool


STORE_DF = Frame("store_df", "Every object of the store that a run examined.", LISTED_COLUMNS, StoredFigures)
UNCOMMITTED_DF = Frame(
    "uncommitted_df", "Every address that is staged or tracked as copied.", LIVE_COLUMNS, UncommittedFigures
)
COMMITTED_DF = Frame(
    "committed_df",
    "Every address that a live commit references; in a run that builds on another one, only looked-up addresses.",
    LIVE_COLUMNS,
    CommittedFigures,
)
CANDIDATES_DF = Frame(
    "candidates",
    "Objects that nothing references and that are old enough for a sweep to delete.",
    CANDIDATE_COLUMNS,
    CandidateFigures,
)
DELETED_REPORT = Frame("deleted_report", "Outcome for each candidate.", RECEIPT_COLUMNS, DeletedFigures)
EXPIRED_DF = Frame(
    "expired",
    "Objects beside `store_df` that a run by retention rules examines: from ranges that expired since its base run.",
    LISTED_COLUMNS,
    NoFigures,
)
PROVISIONAL_DF = Frame(
    "provisional",
    "Addresses that are live without a commit: of compacted staging, and of young ranges that belong to no commit.",
    LIVE_COLUMNS,
    NoFigures,
)
NOT_COMMITTED_DF = Frame(
    "unheld", "Objects of `store_df` and `expired` that no live commit references.", LISTED_COLUMNS, NoFigures
)
UNRECOGNISED_DF = Frame(
    "unrecognised", "Unreferenced objects whose names lakeFS never makes.", UNRECOGNISED_COLUMNS, NoFigures
)
SIGHTINGS_DF = Frame(
    "sightings",
    "Unreferenced objects uploaded in parts, and when a run listed them for the first time.",
    SIGHTING_COLUMNS,
    NoFigures,
)
PENDING_DF = Frame("pending", "Objects that the next run examines again.", LISTED_COLUMNS, NoFigures)
CHECKPOINT_COMMITTED_DF = Frame(
    "checkpoint_committed", "Committed addresses outside of sealed slices.", LIVE_COLUMNS, NoFigures
)
LOST_DF = Frame(
    "lost",
    "Addresses that earlier runs deleted and a branch head or staging references; stored if there are any.",
    LIVE_COLUMNS,
    NoFigures,
)

STEPS: tuple[str, ...] = tuple(
    frame.name for frame in (STORE_DF, UNCOMMITTED_DF, COMMITTED_DF, CANDIDATES_DF, DELETED_REPORT)
)
"""The five frames that a run makes one after the other: the safe order, which is also the order of the assets."""

PHASES = dict(
    zip(
        STEPS,
        ("listing stored objects", "reading staged data", "reading commits", "subtracting", "finishing"),
        strict=True,
    )
)
"""Steps in a few words."""

FRAMES: Mapping[str, Frame[Any]] = {
    frame.name: frame
    for frame in (
        STORE_DF,
        UNCOMMITTED_DF,
        COMMITTED_DF,
        CANDIDATES_DF,
        DELETED_REPORT,
        EXPIRED_DF,
        PROVISIONAL_DF,
        NOT_COMMITTED_DF,
        UNRECOGNISED_DF,
        SIGHTINGS_DF,
        PENDING_DF,
        CHECKPOINT_COMMITTED_DF,
        LOST_DF,
    )
}
"""All kinds of frames by name: the five assets, and the frames that a run keeps beside them."""
