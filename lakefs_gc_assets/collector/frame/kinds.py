"""The frames of a run: the name, the columns and the figures of each, declared once.

A frame is a table that a run stores beside its plan. Its figures are what the step that made it counted or learnt;
later steps, the report, the checks and the UI read them. They are stored in its manifest under these very names.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from lakefs_gc_assets.collector.frame.columns import (
    CANDIDATE_COLUMNS,
    LISTED_COLUMNS,
    LIVE_COLUMNS,
    RECEIPT_COLUMNS,
    SIGHTING_COLUMNS,
    UNRECOGNISED_COLUMNS,
    Columns,
    arrow_schema,
)

F = TypeVar("F")


@dataclass(frozen=True)
class Frame(Generic[F]):
    """One kind of frame.

    Attributes:
        name: of the asset, of the frame's folder in the store, and in its manifest.
        description: a sentence that says what its rows are.
        figures: facts in its manifest beside files and times.
    """

    name: str
    description: str
    columns: Columns
    figures: type[F]

    @property
    def schema(self) -> pa.Schema:
        """The columns as they are stored."""
        return arrow_schema(self.columns)

    @property
    def added(self) -> tuple[str, ...]:
        """Names of columns that files of earlier versions lack."""
        return tuple(column.name for column in self.columns if column.added)


@dataclass(frozen=True)
class NoFigures:
    """A frame without figures of its own."""


@dataclass(frozen=True)
class StoredFigures:
    """Figures of the listing.

    Attributes:
        flow: kind of run, a value of Flow.
        slices_listed, slices_skipped: how many slices were listed, and how many are too young for it.
        last_read_slice: the newest slice that was listed; empty where none was.
        other_folders: names directly below `data/` that are no slices.
        nested_namespaces: repositories whose namespace lies inside of this one, or around it.
        repositories_not_checked: repositories on the same bucket whose references were not looked at.
        repositories_unknown: what the server said where it does not list repositories.
        sealed_objects: objects that were known to be committed when the base run ended, and are not listed.
        inventory: manifest of the S3 Inventory that was read in place of a listing.
        why_clean: why a run that was to build on another one looks at everything.
        base_run, pending_before: the run that was built on, and how many objects waited there.
    """

    flow: str
    slices_listed: int
    slices_skipped: int
    last_read_slice: str
    other_folders: tuple[str, ...]
    nested_namespaces: tuple[str, ...]
    repositories_not_checked: tuple[str, ...]
    sealed_objects: int
    inventory: str | None = None
    why_clean: str | None = None
    base_run: str | None = None
    pending_before: int | None = None
    repositories_unknown: str | None = None


@dataclass(frozen=True)
class UncommittedFigures:
    """Figures of the uncommitted data that the server wrote.

    Attributes:
        server_run_ids: ids under which the server wrote, of this repository alone.
        pages: answers that count: those with a location, and empty ones that the server repeated.
        files: keys of the files, relative to the storage namespace.
    """

    server_run_ids: tuple[str, ...]
    pages: int
    files: tuple[str, ...]


@dataclass(frozen=True)
class CommittedFigures:
    """Live commits, and the files of them that were read.

    Attributes:
        commit_source: where commits were learnt from.
        commits: how many are live; `commits_fetched` of them were asked for one by one.
        metaranges_read, ranges_read: how many files were read by this run.
        entries_promised: entries that the metaranges count; None where commits come from a listing of files.
        heads: metarange of each branch's head, by the branch's name.
        sealed: the branch of each sealed staging token: its commit is under way, or failed and was not repeated.
        branches_before: how many branches there were by the run that this one is compared with; None for unknown.
        read_sha256: SHA-256 of the file with the ids of all ranges and metaranges that this run and those it builds
            on have read.
        retention: commits by the reason why they stay, in flows by retention.
        retention_rules: digest of the rules.
        retention_warnings: what a person must know.
        retention_guards: guards that retention tripped: name, figures, and what lifts it.
        retention_differences: where our definition and the server's list differ, a line each.
        unnamed_ranges: how many of the ranges that were read no commit names.
        compacted_bases: how many compacted bases the branches of this repository rest on.
        provisional_ranges: how many ranges of the frame `provisional` were read: of compacted bases, of other
            repositories' too, and young ones that nothing names; where it is 0 the run has no such frame.
        dump_at_once: whether refs were dumped right after uncommitted data, so that `sealed` may lack a token that was
            sealed shortly before.
        tracked_sha256: SHA-256 of the file with all ranges that are live, in flows by retention; None where it cannot
            be told which these are.
        expired, expired_bytes: objects that are looked at because ranges expired that the base run tracked.
        ranges_noted, addresses_noted: ranges that are live and were not read, and how many addresses they hold, each
            range for itself: only the addresses that the run looked up among their facts are in the frame.
    """

    commit_source: str
    commits: int
    commits_fetched: int
    metaranges_read: int
    ranges_read: int
    entries_promised: int | None
    heads: Mapping[str, str]
    sealed: Mapping[str, str]
    branches_before: int | None
    read_sha256: str
    retention: Mapping[str, int] = field(default_factory=dict)
    retention_rules: str | None = None
    retention_warnings: tuple[str, ...] = ()
    retention_guards: tuple[tuple[str, str, str], ...] = ()
    retention_differences: str = ""
    unnamed_ranges: int = 0
    compacted_bases: int = 0
    provisional_ranges: int = 0
    dump_at_once: bool = False
    tracked_sha256: str | None = None
    expired: int = 0
    expired_bytes: int = 0
    ranges_noted: int = 0
    addresses_noted: int = 0


@dataclass(frozen=True)
class CandidateFigures:
    """Figures of the subtraction.

    Attributes:
        kept: unreferenced objects that stay, by reason (values of Kept).
        paths_asked: how many paths were asked for, each branch counted.
        paths_unasked: how many more would have been, were it not for `hidden_suspect_limit`.
        missing, expected: addresses of branch heads and staging that the listing lacks, of how many it should have.
        missing_examples: a few of them.
        lost: addresses that earlier runs deleted and a branch head or staging holds all the same.
        lost_examples: a few of them.
        named_again: addresses that had expired by rule when earlier runs deleted them, and are referenced again.
        named_again_examples: a few of them.
        sweep_guards: guards beside those that figures trip and by which a dry run foresees that its sweep would be
            refused: name, figures, and what lifts it.
    """

    kept: Mapping[str, int]
    paths_asked: int
    missing: int
    expected: int
    missing_examples: tuple[str, ...]
    lost: int = 0
    lost_examples: tuple[str, ...] = ()
    paths_unasked: int = 0
    named_again: int = 0
    named_again_examples: tuple[str, ...] = ()
    sweep_guards: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class DeletedFigures:
    """Outcomes of the candidates.

    Attributes:
        swept: true if they were to be deleted; otherwise it was a dry run.
    """

    swept: bool


STORE_DF = Frame("store_df", "Every object of the store that a run looked at.", LISTED_COLUMNS, StoredFigures)
UNCOMMITTED_DF = Frame(
    "uncommitted_df", "Every address that is staged or tracked as copied.", LIVE_COLUMNS, UncommittedFigures
)
COMMITTED_DF = Frame(
    "committed_df",
    "Every address that a live commit holds; where a run builds on another one, as far as it asks for it.",
    LIVE_COLUMNS,
    CommittedFigures,
)
CANDIDATES_DF = Frame(
    "candidates",
    "Objects that nothing references and that are old enough: what a sweep deletes.",
    CANDIDATE_COLUMNS,
    CandidateFigures,
)
DELETED_REPORT = Frame("deleted_report", "What became of each candidate.", RECEIPT_COLUMNS, DeletedFigures)
EXPIRED_DF = Frame(
    "expired",
    "Objects beside `store_df` that a run by retention rules looks at: held by ranges that expired since its base run.",
    LISTED_COLUMNS,
    NoFigures,
)
PROVISIONAL_DF = Frame(
    "provisional",
    "Every address that is live though no commit holds it: of compacted staging, and young ranges that nothing names.",
    LIVE_COLUMNS,
    NoFigures,
)
NOT_COMMITTED_DF = Frame(
    "unheld", "Objects of `store_df` and `expired` that no live commit holds.", LISTED_COLUMNS, NoFigures
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
PENDING_DF = Frame("pending", "Objects that the next run asks for again.", LISTED_COLUMNS, NoFigures)
CHECKPOINT_COMMITTED_DF = Frame(
    "checkpoint_committed", "Committed addresses outside of sealed slices.", LIVE_COLUMNS, NoFigures
)
LOST_DF = Frame(
    "lost",
    "Addresses that earlier runs deleted and a branch head or staging holds; stored where there are any.",
    LIVE_COLUMNS,
    NoFigures,
)

STEPS: tuple[str, ...] = tuple(
    frame.name for frame in (STORE_DF, UNCOMMITTED_DF, COMMITTED_DF, CANDIDATES_DF, DELETED_REPORT)
)
"""The five frames that a run makes one after the other: the safe order, which is also the order of the assets."""

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
"""All kinds of frames by name: the five assets, and what a run keeps beside them."""
