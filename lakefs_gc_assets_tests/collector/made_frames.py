"""Hand-made frames: some with rows, and some that are never read, because their manifests suffice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from lakefs_gc_assets.collector.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collector.engine.port import Engine, R, nullable
from lakefs_gc_assets.collector.frame.files import FileWriter, FrameFile, Manifest, Span, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    STORE_DF,
    UNCOMMITTED_DF,
    CandidateFigures,
    CommittedFigures,
    DeletedFigures,
    F,
    Frame,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.live.current import Committed, Unread
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.storage.interface import OpensStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi
from lakefs_gc_assets_tests.runs.made_ranges import range_records


def opener_in(folder: Path, name: str = "repo") -> StoreOpener:
    """The opener of a new repository in a folder."""
    (folder / name).mkdir(exist_ok=True)
    return StoreOpener(StoreSettings(local_root=str(folder)), f"local://{name}")


def opened_by(opener: StoreOpener, **settings: Any) -> OpenRepository:
    """A repository with the store of an opener; its server's answers are irrelevant."""
    api = ScriptedApi()
    return OpenRepository(
        api.repository(),
        Namespace.parse(opener.namespace_uri),
        api,
        opener.open(),
        opener,
        CollectionSettings(**settings),
        HandClock(),
    )


def made_step(
    engine: Engine[R], repository: OpenRepository, plan: Plan = PLAN, note: LogLine = lambda line: None
) -> Step[R]:
    """A step of a run without a lock.

    Args:
        note: called with each line that the step logs, and with each warning.
    """
    return Step(note, note, repository, engine, plan, cast(Lock, None))


def found_live(step: Step[Any], *ranges: RangeRecord) -> Committed:
    """Live commits with these ranges."""
    own = Unread(step.repository, CommitSource.REFS_DUMP, (), range_records(ranges), ())
    return Committed(LiveCommits(CommitSource.REFS_DUMP, NOW, NOW, (), (), {}), (own,), None)


LISTED_FIGURES = StoredFigures(
    flow="clean",
    slices_listed=1,
    slices_skipped=0,
    last_read_slice="",
    other_folders=(),
    nested_namespaces=(),
    repositories_not_checked=(),
    sealed_objects=0,
)
UNCOMMITTED_FIGURES = UncommittedFigures(("server-run",), files=(), pages=1)
COMMITTED_FIGURES = CommittedFigures(
    commit_source="metadata folder",
    commits=1,
    commits_fetched=0,
    metaranges_read=0,
    ranges_read=0,
    entries_promised=7,
    unnamed_ranges=0,
    heads={},
    branches_before=None,
    read_sha256="0" * 64,
)
CANDIDATE_FIGURES = CandidateFigures(
    kept={}, missing_examples=(), paths_asked=0, paths_unasked=0, missing=0, expected=0, lost=0
)
SWEPT = DeletedFigures(swept=True)


def made_frame(frame: Frame[F], rows: int, figures: F) -> StoredFrame[F]:
    """A frame with one file, which does not exist."""
    span = Span(frame.name, "run", "attempt", NOW, NOW)
    files = (FrameFile(frame.name, "legacy", rows, 1, "0" * 64),)
    return StoredFrame(frame, Manifest(span, files, figures), cast(Any, None))


def listed(rows: int) -> StoredFrame[StoredFigures]:
    """A listing."""
    return made_frame(STORE_DF, rows, LISTED_FIGURES)


def uncommitted(rows: int) -> StoredFrame[UncommittedFigures]:
    """Staged objects."""
    return made_frame(UNCOMMITTED_DF, rows, UNCOMMITTED_FIGURES)


def committed(rows: int) -> StoredFrame[CommittedFigures]:
    """Objects of commits; their metaranges promise seven entries."""
    return made_frame(COMMITTED_DF, rows, COMMITTED_FIGURES)


def candidates(rows: int) -> StoredFrame[CandidateFigures]:
    """Candidates for deletion."""
    return made_frame(CANDIDATES_DF, rows, CANDIDATE_FIGURES)


def frame_of_rows(opener: OpensStore, frame: Frame[F], rows: Sequence[Mapping[str, Any]], figures: F) -> StoredFrame[F]:
    """A frame with these rows, in a file for each window."""
    table = pa.Table.from_pylist(rows, schema=nullable(frame.schema))
    writer = FileWriter(opener.open(), f"{frame.name}/", nullable(frame.schema))
    for batch in table.to_batches():
        writer.write(batch)
    span = Span(frame.name, "run", "attempt", NOW, NOW)
    return StoredFrame(frame, Manifest(span, tuple(writer.close()), figures), opener)
