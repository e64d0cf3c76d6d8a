"""The checkpoint of a run, with which the next run checks only objects that may be new garbage.

- *sealed* slices: servers no longer write to them. The set is stored and only grows; it is never computed anew from a
  time, since a slice may appear late.
- *read*: ids of the ranges and metaranges whose addresses are known. Ids show which ranges are new, dates never do,
  because clients choose the dates of commits.
- *pending* objects: all objects in sealed slices, or in no slice, that no commit holds and that this run did not
  delete. They are staged, too young, could not be deleted, or were kept at the recheck. The next run decides again.
- *committed*: addresses of commits outside of sealed slices: the next run lists there.
- *tracked* ranges, by retention rules: see `BaseCheckpoint.tracked`. They replace *read* and *committed*.

The next run's universe is the listing of unsealed slices plus the pending objects. The committed addresses are the
checkpoint's plus the ranges not yet read. No object outside of this universe can have become garbage, unless it came
into a sealed slice late (a very long upload). Such an object waits for the next clean run.
"""

import hashlib
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, Engine, R
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame import files as frame_files
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CHECKPOINT_COMMITTED_DF,
    COMMITTED_DF,
    EXPIRED_DF,
    LIVE,
    LOST_DF,
    NOT_COMMITTED_DF,
    PENDING_DF,
    RANGES,
    STORE_DF,
    TIME,
    CommittedFigures,
    DeletedFigures,
    Frame,
    NoFigures,
    StoredFigures,
)
from lakefs_gc_assets.collector.frame.slices import SLICES, Folders, select_sealed, select_unsealed, slices_in_shards
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.live.current import Committed, KnownLive, named_once
from lakefs_gc_assets.collector.live.live_files import RangeRecords, each_once
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report, run_folder, tables
from lakefs_gc_assets.collector.records.figures import required
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint, Report
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.step import Step, Universe, place_by_address, require_own_plan, universe_of
from lakefs_gc_assets.errors import CollectionError, CorruptFile, OrderViolation, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, OTHER_WINDOW, SLICE_SPAN_SECONDS
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

_FILES_AT_ONCE = 4
"""Files of frames in memory at one time, with at most some 32 MiB each."""


def sealed_after(before: frozenset[str], listed: Iterable[str], cutoff: datetime, skew: timedelta) -> frozenset[str]:
    """The slices that are sealed after a run: already sealed ones, and listed ones that are no longer written to.

    A server writes to a slice for an hour by its own clock, which may be wrong by the skew.

    Args:
        cutoff: cutoff of the run, UTC.
    """
    limit = (cutoff - skew).timestamp() - SLICE_SPAN_SECONDS
    return before | {name for name in listed if layout.created_at(name) < limit}


def write_sealed(store: ObjectStore, run_id: str, attempt: str, slices: frozenset[str]) -> str:
    """Stores the sealed slices; returns the file's SHA-256."""
    return tables.write_ids(store, _sealed_key(run_id, attempt), slices)


def read_sealed(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> frozenset[str]:
    """The sealed slices of a run's checkpoint. Raises CorruptFile."""
    return tables.read_ids(store, _sealed_key(run_id, checkpoint.attempt), checkpoint.sealed_sha256)


def count_ids(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> int:
    """Number of ids in `read_ids`, or of tracked ranges, at lower cost than reading them.

    Raises CorruptFile if their file is missing, or was replaced.
    """
    if checkpoint.tracked_sha256 is not None:
        return count_ranges(store, run_id, checkpoint.attempt, checkpoint.tracked_sha256)
    return tables.count_run_ids(store, run_id, checkpoint.attempt, checkpoint.read_sha256)


def read_ids(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> Set[str]:
    """The ids of ranges and metaranges whose addresses are known for good: none by rules. Raises CorruptFile."""
    if checkpoint.tracked_sha256 is not None:
        return IdSet()
    return tables.read_run_ids(store, run_id, checkpoint.attempt, checkpoint.read_sha256)


def require_frames(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> tuple[FrameFile, ...]:
    """Returns the files of the frames in a run's checkpoint, without reading them.

    Raises CorruptFile if the manifest of a frame is missing, or was replaced.
    """
    frames = [(PENDING_DF, checkpoint.pending_digest)]
    if checkpoint.tracked_sha256 is None:
        frames.append((CHECKPOINT_COMMITTED_DF, checkpoint.committed_digest))
    files: list[FrameFile] = []
    for frame, digest in frames:
        key = run_folder.manifest(run_id, frame.name)
        manifest = fetch(store, key)
        if hashlib.sha256(manifest).hexdigest() != digest:
            raise CorruptFile(key, "digest", "the frame differs from the one in the report")
        files += Manifest.from_json(manifest, key, frame).files
    return tuple(files)


def require_files(store: ObjectStore, files: Sequence[FrameFile]) -> None:
    """Reads files of frames, some at once. Raises CorruptFile if a file was changed."""
    for _ in work_ahead(partial(frame_files.read_unchanged, store), files, _FILES_AT_ONCE):
        pass


def write_listed_slices(store: ObjectStore, run_id: str, attempt: str, slices: Iterable[str]) -> str:
    """Stores the slices that an attempt listed; returns the file's SHA-256."""
    return tables.write_ids(store, _listed_key(run_id, attempt), slices)


def read_listed_slices(store: ObjectStore, run_id: str, attempt: str) -> frozenset[str]:
    """The slices that an attempt listed. Raises CorruptFile."""
    return tables.read_ids(store, _listed_key(run_id, attempt))


def _sealed_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.folder(run_id)}sealed-{attempt}.parquet"


def _listed_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'store_df')}slices-{attempt}.parquet"


_TRACKED = "tracked ranges"


def write_ranges(store: ObjectStore, run_id: str, attempt: str, records: RangeRecords) -> str:
    """Stores the ranges that an attempt tracks at its commits step; returns the file's SHA-256."""
    return tables.put(store, _tracked_key(run_id, attempt), records.rows)


def read_ranges(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> RangeRecords:
    """The ranges that an attempt tracks. Raises CorruptFile if the file is missing, damaged or was replaced."""
    return _read_ranges(store, _tracked_key(run_id, attempt), sha256)


def write_expired(store: ObjectStore, run_id: str, attempt: str, records: RangeRecords) -> str:
    """Stores the expired ranges that an attempt checks; returns the file's SHA-256."""
    return tables.put(store, _expired_key(run_id, attempt), records.rows)


def read_expired(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> RangeRecords:
    """The expired ranges that an attempt checks. Raises CorruptFile if the file is missing, damaged or was replaced."""
    return _read_ranges(store, _expired_key(run_id, attempt), sha256)


def _read_ranges(store: ObjectStore, key: str, sha256: str) -> RangeRecords:
    parts = tables.decode_parts(RANGES, tables.get(store, key, sha256), key, _TRACKED)
    return RangeRecords.of_rows(pa.Table.from_batches(parts, RANGES))


def count_ranges(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> int:
    """Number of tracked ranges, at lower cost than reading them. Raises CorruptFile if the file is gone or replaced."""
    key = _tracked_key(run_id, attempt)
    return tables.count(tables.get(store, key, sha256), key, _TRACKED)


def _tracked_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'committed_df')}tracked-{attempt}.parquet"


def _expired_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'store_df')}expired-{attempt}.parquet"


class BaseCheckpoint:
    """A base run's report and checkpoint, and the slices, ids and frames that belong to the checkpoint.

    Raises CorruptFile if the report is missing or names no checkpoint, or if a file is not the one that it names.
    """

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self.run_id = run_id
        base_report = report.read(store, run_id)
        if base_report is None or base_report.checkpoint is None:
            raise CorruptFile(run_id, "report", "the report of the base run is gone")
        self.report: Report = base_report
        self.checkpoint: Checkpoint = base_report.checkpoint

    @property
    def sealed(self) -> frozenset[str]:
        """The sealed slices."""
        return read_sealed(self._store, self.run_id, self.checkpoint)

    @property
    def read_ids(self) -> Set[str]:
        """Ids of the ranges and metaranges whose addresses are known."""
        return read_ids(self._store, self.run_id, self.checkpoint)

    def add_read_ids(self, run_id: str, attempt: str, known: Set[str], new: Iterable[str]) -> str:
        """Stores for an attempt of the next run the ids known from this run, and the ids that it has read itself.

        Args:
            known: result of `read_ids`.

        Returns:
            The SHA-256 by which `tables.read_run_ids` finds them.

        Raises:
            CorruptFile: the file that `read_ids` read was replaced.
        """
        left = tables.StoredIds(self.run_id, self.checkpoint.attempt, self.checkpoint.read_sha256)
        return tables.add_run_ids(self._store, run_id, attempt, new, known, left)

    @property
    def tracked(self) -> RangeRecords:
        """The ranges that the base run tracked. Raises CorruptFile if it kept all commits.

        Runs by retention rules track the ranges that were live at the mark, since live ranges may expire. The next run
        reads all live ranges, and checks the objects of tracked ranges that are no longer live, without listing them.
        Every object that the base run left in sealed slices, and that is not pending, is in a range that was live in
        the base run. So neither the definition of live nor the reason of the expiry matters.

        Tracked ranges are compared with the ranges that are live at the mark, not at the start of the run: a range that
        expired in between would be missed, and not be tracked any more. The objects are old, so they may be found after
        uncommitted data was prepared.

        Runs of the flow `committed` seal nothing, and build only on each other. They track the expired ranges that they
        or their base runs checked, unless these had become live by the mark. Each object of such a range was deleted,
        is pending, or is in an untracked range that a commit has, which is read when it has expired, too. So the next
        run reads untracked expired ranges, and checks pending objects.
        """
        if self.checkpoint.tracked_sha256 is None:
            raise CorruptFile(run_folder.report(self.run_id), "checkpoint", "it is from a run that tracked no ranges")
        return read_ranges(self._store, self.run_id, self.checkpoint.attempt, self.checkpoint.tracked_sha256)

    def pending_objects(self, step: Step[R]) -> R:
        """The pending objects of the base run (LISTED).

        By retention rules they may have been committed since, and have expired. Objects that a run of the flow
        `committed` deleted meanwhile are excluded.
        """
        rows = self._rows(step, PENDING_DF, self.checkpoint.pending_digest)
        if not step.plan.follows_expiry:
            return rows
        return step.engine.without_exactly(rows, deleted_before(step, newer_than=self.run_id))

    def committed(self, step: Step[R]) -> R | None:
        """Committed addresses outside of sealed slices (LIVE); None by rules, since all live ranges are read then."""
        if self.checkpoint.tracked_sha256 is not None:
            return None
        return self._rows(step, CHECKPOINT_COMMITTED_DF, self.checkpoint.committed_digest)

    def heads(self, step: Step[R]) -> set[str]:
        """Metaranges of the branch heads that the base run saw. Raises OrderViolation and CorruptFile."""
        return {*step.stored_of(self.run_id, COMMITTED_DF).manifest.figures.heads.values()}

    def lost(self, step: Step[R]) -> R | None:
        """Addresses (LIVE) that were held by a branch head or staging although earlier runs had deleted them.

        None if there were none, or if they cannot be read: they only make a report complete.
        """
        if not (self.report.statistics.lost or self.report.statistics.named_again):
            return None
        try:
            frame = step.stored_of(self.run_id, LOST_DF)
        except (OrderViolation, CorruptFile) as error:
            step.warn(f"losses that run {self.run_id} reported are not examined again: {error}")
            return None
        return frame.rows(step.engine) if frame.manifest.span.attempt == self.checkpoint.attempt else None

    def _rows(self, step: Step[R], kind: Frame[NoFigures], digest: str) -> R:
        frame = step.stored_of(self.run_id, kind)
        if frame.manifest.digest != digest:
            raise CorruptFile(
                frame.uri, "digest", f"{kind.name} differs from the frame in the report of run {self.run_id}"
            )
        return frame.rows(step.engine)


def open_base_checkpoint(step: Step[R]) -> BaseCheckpoint | None:
    """The checkpoint of this run's base run; None if the run has none and checks all objects.

    Raises OrderViolation if the base run was repeated since: files of its two attempts do not belong together.
    """
    if step.plan.base_run is None:
        return None
    base = BaseCheckpoint(step.repository.store, step.plan.base_run)
    if base.checkpoint.attempt != step.plan.base_run_attempt:
        raise OrderViolation(f"the base run {base.run_id} was repeated after this run began: open a new run")
    return base


_MANY_ENTRIES = 8_000_000
"""Above this many entries, too many to look up, objects of live ranges with the same keys are excluded first."""


def store_expired(step: Step[R], base: BaseCheckpoint, committed: Committed) -> StoredFrame[NoFigures]:
    """Stores the objects that expired since the base run as the frame `expired`.

    Args:
        committed: all live ranges.

    Raises:
        CorruptFile: a tracked range of the base run is missing or damaged, or so is the file that names them.
    """
    began = step.repository.clock.now()
    expired = base.tracked.without(committed.ids)
    step.log(f"{len(expired):,} of {counted(base.checkpoint.tracked, 'ranges')} expired since run {base.run_id}")
    replacements = None
    if committed.tells_ranges and expired.entries > _MANY_ENTRIES:
        replacements = committed.records.covering(expired)
        entries, live = counted(expired.entries, "entries"), counted(len(replacements), "live ranges")
        step.log(f"they have {entries}; first leaving out entries of {live} with the same keys")
    written = step.write(EXPIRED_DF, find_expired(step, base, expired, replacements)) if expired else ()
    return step.complete(EXPIRED_DF, NoFigures(), written, started_at=began)


def find_expired(step: Step[R], base: BaseCheckpoint, expired: RangeRecords, replacements: RangeRecords | None) -> R:
    """Finds the objects (LISTED) of ranges that are no longer live, in sealed slices or in no slice.

    Objects that earlier runs deleted are excluded.

    Args:
        replacements: live ranges whose objects are excluded first, which can only keep objects: most objects of a range
            are in the range that replaced it. None for none.
    """
    engine = step.engine
    held = engine.where(References.from_step(step).entries(expired, replacements), _would_be_listed)
    return engine.without_exactly(select_sealed(engine, held, base.sealed), deleted_before(step))


def _would_be_listed(rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for each object in a place that a full listing includes: below `data/`, or directly in the root."""
    addresses = rows.column("address")
    return pc.or_(pc.starts_with(addresses, DATA_PREFIX), pc.invert(pc.match_substring(addresses, "/")))


def find_stored_live(step: Step[R], committed: Committed) -> KnownLive[R]:
    """The committed addresses that the previous run stored, if that run and this one are limited to some windows.

    A limited run stores the addresses of all live ranges, whichever window they lie in, and the ranges themselves. So a
    run over another window need not read these ranges. The result is exact: if one of the ranges is no longer live,
    nothing is taken. A range that a metarange now states differently is read.

    Nothing is taken from other runs. Those that build on a base run store only a part of the addresses, and a full run
    must notice ranges that are gone.

    Args:
        committed: everything that is live.
    """
    store, run_id, engine = step.repository.store, step.plan.previous_run, step.engine
    if run_id is None or not committed.tells_ranges:
        return KnownLive()
    try:
        earlier = plans.read(store, run_id)
        if not earlier.limited:
            return KnownLive()
        require_own_plan(earlier, step.repository)
        frame = step.stored_of(run_id, COMMITTED_DF)
        ranges = _read_live_ranges(store, earlier, frame)
        if frame.count > LOCAL_ROWS:
            # The driver reads fewer rows at once, below. Tasks would find damage too late to read the ranges instead.
            require_files(store, frame.manifest.files)
        rows = frame.rows(engine, *LIVE.names)
    except CollectionError as problem:
        step.warn(f"reading every range, not the addresses that run {run_id} stored: {problem}")
        return KnownLive()
    live = committed.records
    if gone := len(ranges.ids - live.ids):
        step.log(f"reading every range: {counted(gone, 'ranges')} of run {run_id} are no longer live")
        return KnownLive()
    alike = named_once(RangeRecords(each_once(pa.concat_tables([ranges.rows, live.rows]))))
    ids = ranges.ids - (ranges.ids - alike)
    step.log(f"{len(ids):,} of {counted(len(live), 'live ranges are')} not read: run {run_id} stored their addresses")
    place = partial(place_by_address, window_size=step.plan.slice_window)
    return KnownLive(ids, frame.count, engine.map_batches(rows, partial(map, place), LIVE), frame.count)


def _read_live_ranges(store: ObjectStore, earlier: Plan, committed: StoredFrame[CommittedFigures]) -> RangeRecords:
    """The live ranges whose addresses a limited run stored. Raises OrderViolation, CorruptFile."""
    attempt, tracked = committed.manifest.span.attempt, committed.figures.tracked_sha256
    if attempt != earlier.attempt or tracked is None:
        raise OrderViolation(f"{committed.uri} is of another attempt, or its live ranges are unknown")
    return read_ranges(store, earlier.run_id, attempt, tracked)


def write_checkpoint(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> Checkpoint | str:
    """Stores the files and frames of a checkpoint and returns it, or returns why the next run must be a clean one.

    The checkpoint exists once a report names it.
    """
    if reason := reason_for_none(step, outcomes):
        return reason
    engine, listed, committed = step.engine, step.stored(STORE_DF), step.stored(COMMITTED_DF)
    not_committed, universe = step.stored(NOT_COMMITTED_DF), universe_of(step, listed, committed)
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    # Without a listing no slice is sealed: the next run checks all objects again, wherever they lie.
    sealed = find_sealed(step) if step.plan.flow is not Flow.COMMITTED else None
    ended = engine.where_among(outcomes.rows(engine, "address", "outcome"), "outcome", receipts.NOT_THERE)
    deleted = engine.select(ended, "address")
    pending_rows = select_pending(
        engine, not_committed.rows(engine), sealed, deleted, not_committed.count + outcomes.count
    )
    with engine.in_background(partial(_store_committed, step, committed, sealed)) as stored_committed:
        pending = _store(step, PENDING_DF, pending_rows)
        pending_addresses = pending.rows(engine, "address")
        kept, lost = count_sealed(
            engine,
            _select_carried(engine, universe.rows("address"), sealed),
            _select_carried(engine, not_committed.rows(engine, "address"), sealed),
            pending_addresses,
            deleted,
            not_committed.count + pending.count + outcomes.count,
        )
        held = committed.rows(engine, "address")
        both = engine.count(engine.among_exactly(held, pending_addresses, committed.count + pending.count))
        carried = stored_committed()
    if problem := contradiction(both, lost):
        return problem
    sealed_before = required(listed.figures.sealed_objects)
    checkpoint = Checkpoint(
        attempt=attempt,
        sealed=len(sealed or ()),
        # Expired objects were among the sealed objects that commits held, and are counted again if they still are.
        sealed_objects=(
            0 if sealed is None else max(sealed_before - (committed.figures.expired_objects or 0), 0) + kept
        ),
        sealed_sha256=write_sealed(store, run_id, attempt, sealed or frozenset()),
        read=0,
        read_sha256="",
        pending=pending.count,
        pending_digest=pending.manifest.digest,
        committed=0,
        committed_digest="",
        pending_windows=tuple(sorted(pending.manifest.rows_by_window())),
        other_folders=listed.figures.other_folders,
    )
    figures = committed.figures
    return _track(step, checkpoint, figures) if carried is None else _carry(step, checkpoint, figures, carried)


def _store_committed(
    step: Step[R], committed: StoredFrame[CommittedFigures], sealed: frozenset[str] | None
) -> StoredFrame[NoFigures] | None:
    """Stores the committed objects outside of sealed slices; None by retention rules, because commits may expire."""
    if sealed is None or step.plan.flow.by_retention:
        return None
    return _store(step, CHECKPOINT_COMMITTED_DF, select_unsealed(step.engine, committed.rows(step.engine), sealed))


def _carry(
    step: Step[R], checkpoint: Checkpoint, figures: CommittedFigures, carried: StoredFrame[NoFigures]
) -> Checkpoint:
    """Adds the ranges that were read, and the committed objects, to a checkpoint."""
    return replace(
        checkpoint,
        read=tables.count_run_ids(step.repository.store, step.plan.run_id, checkpoint.attempt, figures.read_sha256),
        read_sha256=figures.read_sha256,
        committed=carried.count,
        committed_digest=carried.manifest.digest,
    )


def _track(step: Step[R], checkpoint: Checkpoint, figures: CommittedFigures) -> Checkpoint:
    """Adds the tracked ranges to a checkpoint by retention rules."""
    assert figures.tracked_sha256 is not None
    base = open_base_checkpoint(step)
    return replace(
        checkpoint,
        tracked=count_ranges(step.repository.store, step.plan.run_id, checkpoint.attempt, figures.tracked_sha256),
        tracked_sha256=figures.tracked_sha256,
        full_run=base.checkpoint.full_run if base else step.plan.run_id,
    )


def _store(step: Step[R], frame: Frame[NoFigures], rows: R) -> StoredFrame[NoFigures]:
    began = step.repository.clock.now()
    return step.complete(frame, NoFigures(), step.write_everywhere(frame, rows), started_at=began)


def reason_for_none(step: Step[R], outcomes: StoredFrame[DeletedFigures]) -> str | None:
    """The reason why the next run cannot build on this one; None if it can."""
    listed, committed = step.stored(STORE_DF), step.stored(COMMITTED_DF)
    if not outcomes.figures.swept:
        return "it was a dry run"
    if step.plan.flow.by_retention and committed.figures.tracked_sha256 is None:
        return (
            "it recorded no live ranges: its commits came from other sources than this repository's refs dump, or an "
            "earlier version of the collector read them"
        )
    if step.plan.flow is Flow.COMMITTED and _has_young(step, listed):
        return "an expired commit references objects without a time in their names that were younger than the cutoff"
    if is_limited(listed, universe_of(step, listed, committed)):
        return f"it was limited to {step.plan.scope}"
    if not _has_not_committed(step):
        return "its candidates were found by an earlier version of the collector"
    return None


def _has_young(step: Step[R], listed: StoredFrame[StoredFigures]) -> bool:
    """True if an object without a time in its name is younger than the cutoff.

    Its age is the age of its youngest entry, which the next run would not see.
    """
    moment = pa.scalar(step.plan.cutoff, TIME)

    def is_young(rows: pa.RecordBatch) -> pa.BooleanArray:
        return pc.and_(pc.is_null(rows.column("issued_at")), pc.greater_equal(rows.column("last_modified"), moment))

    rows = listed.rows(step.engine, "address", "issued_at", "last_modified")
    return step.engine.count(step.engine.where(rows, is_young)) > 0


def is_limited(listed: StoredFrame[StoredFigures], universe: Universe[R]) -> bool:
    """True if a run excluded windows: it did not list them, or knows of objects there that it does not collect."""
    has_others = any(frame.manifest.rows_by_window().get(OTHER_WINDOW) for frame in universe.frames)
    return bool(listed.figures.limited_to) or has_others


def _has_not_committed(step: Step[R]) -> bool:
    """True if this attempt has stored the frame `unheld`; earlier versions did not."""
    try:
        return step.stored(NOT_COMMITTED_DF).manifest.span.attempt == step.plan.attempt
    except OrderViolation:
        return False


def find_sealed(step: Step[R]) -> frozenset[str]:
    """The slices that are sealed after this run: all shards were listed, so a slice is complete in every shard."""
    base, plan = open_base_checkpoint(step), step.plan
    listed = read_listed_slices(step.repository.store, plan.run_id, plan.attempt)
    listed |= find_slices_in_shards(step, step.stored(STORE_DF))
    return sealed_after(base.sealed if base else frozenset(), listed, plan.cutoff, plan.skew)


def find_slices_in_shards(step: Step[R], listed: StoredFrame[StoredFigures]) -> frozenset[str]:
    """The slices of the sharded layout with listed or pending objects; only the names of objects show them."""
    if not Folders((), listed.figures.other_folders).shards:
        return frozenset()
    each = step.engine.map_batches(listed.rows(step.engine, "address"), slices_in_shards, SLICES)
    return frozenset(step.engine.collect(step.engine.distinct(each)).column("slice").to_pylist())


def _select_carried(engine: Engine[R], rows: R, sealed: Iterable[str] | None) -> R:
    """Rows that the next run does not find by itself: in sealed slices or in no slice; all rows if `sealed` is None."""
    return rows if sealed is None else select_sealed(engine, rows, sealed)


def select_pending(
    engine: Engine[R], not_committed: R, sealed: Iterable[str] | None, deleted: R, count: int | None = None
) -> R:
    """Selects the pending objects: in sealed slices, or in no slice, held by no commit, and not deleted.

    Args:
        not_committed: objects that no commit holds.
        sealed: sealed slices; None for objects wherever they lie.
        deleted: addresses whose deletion the store accepted, in this run or meanwhile in another one, compared as
            strings.
        count: approximate number of objects and addresses together, if known.
    """
    return engine.without_exactly(_select_carried(engine, not_committed, sealed), deleted, count)


def contradiction(both: int, lost: int) -> str | None:
    """The reason why the next run cannot build on the frames of a checkpoint; None if it can.

    Args:
        both: number of objects that would be pending although commits hold them.
        lost: number of objects in sealed slices, or in no slice, that no commit holds and that would be neither pending
            nor deleted.
    """
    if both:
        return f"{counted(both, 'objects')} would be pending although commits hold them"
    return f"{counted(lost, 'listed objects')} would be neither pending nor committed nor deleted" if lost else None


def count_sealed(
    engine: Engine[R], universe: R, not_committed: R, pending: R, deleted: R, count: int
) -> tuple[int, int]:
    """Counts objects of sealed slices by their state, to check the pending frame as it is stored.

    All rows have an address. Returns the numbers of objects that commits hold, and of lost ones, see `contradiction`.

    Args:
        universe: all objects.
        not_committed: objects that no commit holds.
        pending: objects of the pending frame.
        count: approximate number of rows of `not_committed`, `pending` and `deleted` together.
    """
    counts = engine.count_by_sets(not_committed, pending, deleted, count=count)
    is_not_committed = 1
    committed = engine.count(universe) - sum(n for sets, n in counts.items() if sets & is_not_committed)
    return committed, counts.get(is_not_committed, 0)
