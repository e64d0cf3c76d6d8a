"""Facts about earlier runs: their deletions and restorations, their stored frames, and their first sightings.

An index of runs is stored beside the lock. With it, a run lists the folders, reads the index, and examines only folders
that the index does not name. So the number of requests does not grow with the number of runs. Without the index, a run
looks for a plan in every folder, the server's and other programs' included, and reads plans and reports of many runs.

The index only states facts that stay true. A folder without a plan is never ours, since a run writes its plan first. Of
our runs it names the settled ones: runs that ended well, or that a newer run has overtaken, so that they delete nothing
more. A settled dry run can still be approved; `forget` then removes it before anything is deleted. If the index is
missing, damaged or of another version, every folder is examined.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Engine, R, nullable
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame import files as files_module
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest
from lakefs_gc_assets.collector.frame.frames import (
    COMMITTED_DF,
    DELETED_REPORT,
    FRAMES,
    RECEIPTS,
    SIGHTINGS,
    SIGHTINGS_DF,
    TIME,
    NoFigures,
)
from lakefs_gc_assets.collector.records import across_runs, records_json, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.figures import Statistics
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, MULTIPART_SIGHTING_SECONDS, Outcome
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import (
    CollectionError,
    CorruptFile,
    LogLine,
    NotOffered,
    OrderViolation,
    PreconditionFailed,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, head_if_there

_log = logging.getLogger(__name__)

FORMAT_VERSION = 1
KEY = f"{layout.RUNS_PREFIX}runs.json"
_ABSENT = ""


@dataclass(frozen=True, slots=True)
class SettledRun:
    """Facts that later runs need about a run that no longer changes, except by an approval.

    Attributes:
        base: True if it was to delete, so that no run builds on an older one of its kind. Indexes of earlier versions
            have False for all runs of the flow `committed`, and no run can build on those.
        swept: True if it deleted, and succeeded.
        branches: number of branches that it counted; None if its report does not say.
        sightings: True if it stored sightings of multipart uploads.
        deleted: True if it may have deleted objects, or moved them to quarantine.
        repository: id of its repository, if the index has it: several repositories can share a namespace.
        limited: True if it listed only some windows.
    """

    run_id: str
    flow: Flow
    base: bool
    swept: bool
    branches: int | None
    sightings: bool
    deleted: bool
    repository: str = ""
    limited: bool = False


@dataclass(frozen=True, slots=True)
class _Index:
    """The stored index.

    Attributes:
        others: folders without a plan, beside our runs.
    """

    runs: tuple[SettledRun, ...] = ()
    others: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION


class EarlierRuns:
    """Our runs in a namespace, as listed now, and their entries in the index."""

    def __init__(self, store: ObjectStore) -> None:
        """Lists the folders and reads the index. Raises StorageError if the store cannot be read."""
        self._store = store
        self._names = run_folder.folders(store)
        index = _read(store)
        self._others = frozenset(index.others)
        self._settled = {run.run_id: run for run in index.runs}

    def newest_first(self) -> Iterator[str]:
        """The ids of our runs. A folder that the index does not name is examined when the iteration reaches it."""
        for name in self._names:
            if name in self._settled or (name not in self._others and run_folder.has_plan(self._store, name)):
                yield name

    def settled(self, run_id: str) -> SettledRun | None:
        """The index's entry of a run; None if it has none, so that the run's own files must be read."""
        return self._settled.get(run_id)

    def is_of(self, run_id: str, repository: str) -> bool:
        """True if a run was made for this repository; False also if its plan cannot be read."""
        settled = self._settled.get(run_id)
        if settled is not None and settled.repository:
            return settled.repository == repository
        try:
            return plans.read(self._store, run_id).repository == repository
        except CollectionError:
            return False


def update_index(store: ObjectStore, plan: Plan, report: Report, warn: LogLine) -> None:
    """Updates the index at the end of a run, whose lock is held.

    Adds the run itself if it succeeded, and runs that ended meanwhile without an update. Without an enforced lock,
    nothing is written: the update might restore an entry that a sweep has removed meanwhile.

    Args:
        warn: receives errors. Without an index the next run only reads more.
    """
    if plan.no_lock is not None:
        return
    try:
        before, etag = _read_with_etag(store)
        after = _updated(store, before, plan, report)
        if after != before:
            _put(store, after, etag)
    except CollectionError as error:
        warn(f"the index of runs could not be updated, so the next run reads more folders: {error}")


def forget(store: ObjectStore, run_id: str) -> None:
    """Removes a run from the index, before it deletes anything.

    If another process changes the index meanwhile, the index is emptied, and the next run examines every folder.

    Raises StorageError.
    """
    index, etag = _read_with_etag(store)
    remaining = tuple(run for run in index.runs if run.run_id != run_id)
    if len(remaining) == len(index.runs):
        return
    try:
        _put(store, replace(index, runs=remaining), etag)
    except (PreconditionFailed, NotOffered):
        store.put(KEY, records_json.encode(_Index()))


def _updated(store: ObjectStore, before: _Index, plan: Plan, report: Report) -> _Index:
    """The index with this run and runs that it lacks, if they are settled, and without folders that are gone."""
    settled_runs, others = {run.run_id: run for run in before.runs}, set(before.others)
    if own := _settle(store, plan, report, overtaken=False):
        settled_runs[own.run_id] = own
    names = run_folder.folders(store)
    newest_sweep = min((name for name in names if name in settled_runs and settled_runs[name].swept), default=None)
    for name in names:
        if name in settled_runs or name in others or name == plan.run_id:
            continue
        if not run_folder.has_plan(store, name):
            others.add(name)
        elif settled := _settle_other(store, name, overtaken=newest_sweep is not None and name > newest_sweep):
            settled_runs[name] = settled
            if settled.swept:
                newest_sweep = min(name, newest_sweep or name)
    there = frozenset(names)
    return _Index(tuple(settled_runs[name] for name in names if name in settled_runs), tuple(sorted(others & there)))


def _settle_other(store: ObjectStore, run_id: str, *, overtaken: bool) -> SettledRun | None:
    """The index entry of another run; None as for `_settle`, or if its files cannot be read."""
    try:
        return _settle(store, plans.read(store, run_id), reports.read(store, run_id), overtaken=overtaken)
    except CorruptFile:
        return None


def _settle(store: ObjectStore, plan: Plan, report: Report | None, *, overtaken: bool) -> SettledRun | None:
    """The index entry of a run; None if the run may still change.

    Args:
        overtaken: True if a newer run has swept, so that this one deletes nothing more.
    """
    run_id, ended_well = plan.run_id, report is not None and report.is_complete
    swept = report is not None and report.is_complete and not report.dry_run
    approved = not swept and plans.read_approval(store, run_id) is not None
    if not overtaken and (not ended_well or approved):
        return None
    statistics = report.statistics if report else Statistics()
    return SettledRun(
        run_id,
        plan.flow,
        base=plan.sweep or swept or approved,
        swept=swept,
        branches=statistics.branches,
        sightings=_has_sightings(store, run_id),
        deleted=bool(swept and (statistics.deleted, statistics.quarantined) != (0, 0))
        or (not ended_well and bool(receipts.keys(store, run_id))),
        repository=plan.repository,
        limited=report is not None and bool(report.limited_to),
    )


def _has_sightings(store: ObjectStore, run_id: str) -> bool:
    """True if a run stored sightings, or if they are unreadable: later runs then report the damage."""
    try:
        return files_module.read_manifest(store, run_id, SIGHTINGS_DF).rows > 0
    except OrderViolation:
        return False
    except CorruptFile:
        return True


def _read(store: ObjectStore) -> _Index:
    """The index; an empty one if it is missing or cannot be relied on."""
    try:
        return records_json.read(store, _Index, KEY) or _Index()
    except CorruptFile:
        return _Index()


def _read_with_etag(store: ObjectStore) -> tuple[_Index, str]:
    """The index, and the ETag of its object, read before it; `_ABSENT` if there is none."""
    facts = head_if_there(store, KEY)
    if facts is None:
        return _Index(), _ABSENT
    return _read(store), facts.etag or _ABSENT


def _put(store: ObjectStore, index: _Index, etag: str) -> None:
    """Stores the index in place of the version with this ETag. Raises PreconditionFailed, AlreadyExists."""
    data = records_json.encode(index)
    if etag == _ABSENT:
        store.put_if_absent(KEY, data)
    else:
        store.put_if_match(KEY, data, etag)


def branch_baseline(
    store: ObjectStore, run_id: str, repository: str, warn: LogLine, present: Collection[str]
) -> int | None:
    """The maximum number of branches that a run counted since the newest successful sweep, that sweep included.

    The guard on branches compares the present number with it. A successful sweep has passed that guard, or a setting
    lifted it. Failed runs do not lower the number, and dry runs can only raise it: no user has agreed to the loss that
    they count. If no run has swept yet, the maximum of all dry runs is returned. If no file of a run is readable, the
    run is skipped, and older runs count as well. See `count_branches`.

    Args:
        run_id: only older runs are examined.
        repository: id of the repository; runs of others that share its storage namespace do not count.
        warn: receives a warning for each run whose report cannot be read.
        present: existing branches. Branches deleted as stale since a run are subtracted from its count.
    Returns:
        Number of branches whose head holds an object; None if no earlier run counted them.
    Raises:
        StorageError: the store cannot be read.
    """
    most: int | None = None
    runs = EarlierRuns(store)
    for earlier in runs.newest_first():
        if earlier <= run_id or not runs.is_of(earlier, repository):
            continue
        branches, swept = count_branches(store, earlier, runs.settled(earlier), warn)
        if branches is None:
            continue
        branches = without_deleted(store, earlier, repository, branches, present, warn)
        most = branches if most is None else max(most, branches)
        if swept:
            break
    return most


def count_branches(
    store: ObjectStore, run_id: str, settled: SettledRun | None, warn: LogLine
) -> tuple[int | None, bool]:
    """Number of branches that a run counted (None if unknown), and True if it swept and succeeded.

    Both come from the index of runs, else from the run's report. If the report is unreadable or gone, the manifests of
    a finished run's frames have them.

    Args:
        settled: the index's facts about the run.
        warn: receives a warning if the report cannot be read.
    """
    if settled is not None:
        return settled.branches, settled.swept
    try:
        report = reports.read(store, run_id)
    except CorruptFile as corrupt:
        report = None
        warn(f"the number of branches in run {run_id} is unknown, since its report cannot be read: {corrupt}")
    if report is not None:
        return report.statistics.branches, report.is_complete and not report.dry_run
    try:
        # Stored right before the report, after every guard had passed.
        ended, committed = (
            files_module.read_manifest(store, run_id, DELETED_REPORT),
            files_module.read_manifest(store, run_id, COMMITTED_DF),
        )
    except (OrderViolation, CorruptFile):
        return None, False
    if ended.span.attempt != committed.span.attempt:
        return None, False
    return len(committed.figures.heads), ended.figures.swept


def without_deleted(
    store: ObjectStore, run_id: str, repository: str, counted: int, present: Collection[str], warn: LogLine
) -> int:
    """Number of branches that a run counted, minus branches that were deleted as stale since then.

    Records are read only if there are fewer branches now. Without the frame that names the counted branches, nothing is
    subtracted.

    Args:
        counted: number of branches that it counted.
        present: existing branches.
    """
    if len(present) >= counted:
        return counted
    try:
        committed = files_module.read_manifest(store, run_id, COMMITTED_DF)
    except (OrderViolation, CorruptFile):
        return counted
    deleted = across_runs.branches_we_deleted(store, repository, committed.span.ended_at, warn)
    return counted - len(deleted.intersection(committed.figures.heads).difference(present))


DELETIONS = pa.schema([RECEIPTS.field("address"), RECEIPTS.field("attempt"), RECEIPTS.field("decided_at")])
"""Deleted addresses with the deleting run's attempt (null in receipts of old versions) and the time in UTC."""
_ASKED_AT_ONCE = 16
"""Maximum concurrent requests of a task to the store."""


def deleted_before(step: Step[R], since: datetime | None = None, newer_than: str | None = None) -> R:
    """The addresses (`address`) of `deletions`."""
    return step.engine.select(deletions(step, since, newer_than), "address")


def deletions(step: Step[R], since: datetime | None = None, newer_than: str | None = None) -> R:
    """Objects that earlier runs deleted or moved to quarantine, and that were not restored (DELETIONS).

    A finished sweep lists them in its report, in few files; an unfinished one lists them in its receipts. Receipts also
    replace an unreadable file of the report. Unreadable receipts are left out with a warning: their objects may become
    candidates again, while everything live still stays.

    Args:
        since: leaves out earlier deletions; UTC.
        newer_than: a run; only runs opened after it are examined.
    """
    runs = EarlierRuns(step.repository.store)
    newer = takewhile(lambda run_id: newer_than is None or run_id < newer_than, runs.newest_first())
    return _deleted_by(step, runs, newer, since)


def deleted_since(step: Step[R], moment: datetime) -> R:
    """Objects (DELETIONS) that other runs deleted or moved to quarantine since a moment, and that were not restored.

    A run that a newer one has overtaken deletes nothing. So runs are read newest first, up to the first whose sweep
    ended before the moment: the number of reads does not grow with the number of earlier runs.

    Args:
        moment: UTC, by the clocks of the machines that swept.
    Raises:
        StorageError: the store cannot be read.
    """
    runs = EarlierRuns(step.repository.store)
    swept = _runs_that_may_have_swept_since(step.repository.store, runs, moment)
    return _deleted_by(step, runs, swept, moment)


def are_gone(opener: OpensStore, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for addresses without an object: an object may have been put back by other means than `restore`."""
    facts = work_ahead(partial(head_if_there, opener.open()), rows.column("address").to_pylist(), _ASKED_AT_ONCE)
    return pa.array([each is None for each in facts], pa.bool_())


def _runs_that_may_have_swept_since(store: ObjectStore, runs: EarlierRuns, moment: datetime) -> Iterator[str]:
    for run_id in runs.newest_first():
        yield run_id
        settled = runs.settled(run_id)
        if settled is None or settled.swept:
            ended = _sweep_ended_at(store, run_id)
            if ended is not None and ended < moment:
                return


def _sweep_ended_at(store: ObjectStore, run_id: str) -> datetime | None:
    """When the sweep of a run ended, UTC; None if it did not, or if its report is unreadable."""
    try:
        ended = reports.read(store, run_id)
    except CorruptFile:
        return None
    if ended is None or ended.dry_run or ended.ending is Ending.FAILED:
        return None
    return ended.ended_at


def _deleted_by(step: Step[R], runs: EarlierRuns, run_ids: Iterable[str], since: datetime | None) -> R:
    store, opener, engine = step.repository.store, step.repository.opener, step.engine
    any_restored = across_runs.read_restoration(store) is not None
    reported: list[FrameFile] = []
    keys: list[str] = []
    for run_id in run_ids:
        settled = runs.settled(run_id)
        if run_id == step.plan.run_id or (settled is not None and not settled.deleted):
            continue
        files = report_files(store, run_id) if settled is not None and settled.swept else None
        if files is None:
            keys += receipts.keys(store, run_id)
        else:
            reported += files
            keys += receipts.keys(store, run_id, receipts.OF_RESTORE) if any_restored else []
    of_reports = files_module.rows_of_files(engine, reported, partial(_read_reported, opener), RECEIPTS)
    rows = engine.union(of_reports, receipts.rows(engine, opener, keys, _warn_of_lost_receipts))
    deleted = engine.where_among(rows, "outcome", receipts.GONE)
    if any_restored:
        restored = engine.where_among(rows, "outcome", (Outcome.RESTORED.value,))
        deleted = engine.without_matching(deleted, restored, ("address", "attempt"))
    if since is not None:
        moment = pa.scalar(since, RECEIPTS.field("decided_at").type)
        deleted = engine.where(deleted, lambda batch: pc.greater_equal(batch.column("decided_at"), moment))
    return engine.select(deleted, *DELETIONS.names)


def _read_reported(opener: OpensStore, group: Sequence[FrameFile]) -> Iterator[pa.RecordBatch]:
    """The rows (RECEIPTS) of a task's share of files. If a file is damaged, the receipts of its run are read, too."""
    damaged: dict[str, None] = {}

    def note(damage: CorruptFile) -> None:
        _log.warning("receipts are read instead of the damaged %s (%s)", damage.file, damage.detail)
        damaged[run_folder.run_of(damage.file)] = None

    yield from files_module.reader(opener, RECEIPTS, added=DELETED_REPORT.added, damaged=note)(group)
    for run_id in damaged:
        yield from receipts.read(opener.open(), run_id, _warn_of_lost_receipts).cast(nullable(RECEIPTS)).to_batches()


def _warn_of_lost_receipts(damage: CorruptFile) -> None:
    _log.warning("some deletions of run %s are unknown: %s", run_folder.run_of(damage.file), damage)


def report_files(store: ObjectStore, run_id: str) -> tuple[FrameFile, ...] | None:
    """The files that list a sweep's deletions; None if they are unknown, so that receipts must be read."""
    try:
        manifest = files_module.read_manifest(store, run_id, DELETED_REPORT)
    except (OrderViolation, CorruptFile):
        return None
    return manifest.files if manifest.figures.swept else None


def newest_run(store: ObjectStore, *, sweeps: bool = False) -> str:
    """The id of the newest finished run. Raises CollectionError if there is none.

    Args:
        sweeps: True to skip dry runs.
    """
    for run_id in run_folder.newest_runs(store):
        try:
            ended = reports.read(store, run_id)
        except CorruptFile as corrupt:
            # An older run, silently chosen, would be taken for the newest.
            raise CollectionError(f"{corrupt} Give another run: `lakefs-gc status` lists all runs") from corrupt
        if ended is not None and ended.counts and not (sweeps and ended.dry_run):
            return run_id
    if sweeps:
        raise CollectionError(
            "no sweep has finished yet: `lakefs-gc approve RUN` deletes the candidates of a dry run, `lakefs-gc "
            "status` lists all runs"
        )
    raise CollectionError(
        "no run has finished yet: `lakefs-gc run` starts a dry run, `lakefs-gc status` lists all runs"
    )


def read_manifest(store: ObjectStore, frame: str, run_id: str) -> Manifest[Any]:
    """The manifest of a frame of a run. Raises CollectionError if there is none."""
    plans.read(store, run_id)
    try:
        return files_module.read_manifest(store, run_id, FRAMES[frame])
    except OrderViolation:
        raise CollectionError(
            f"run {run_id} has no {frame} stored: it ended before, or they were removed because the run is old"
        ) from None


_RUNS_READ = 20
"""Maximum runs to read, newest first."""
MOST_RESTORED = 100_000
"""Maximum addresses to return; if there are more, none are returned."""


def restored_before(store: ObjectStore, run_id: str) -> pa.Array:
    """Addresses that the newest earlier runs deleted and that were restored; none if more than MOST_RESTORED.

    For a repository without any restoration, one call is enough.

    Args:
        run_id: the present run, which is skipped.
    Raises:
        CollectionError: the remaining records cannot be read.
    """
    addresses: list[str] = []
    if across_runs.read_restoration(store) is not None:
        earlier = (earlier_id for earlier_id in run_folder.newest_runs(store) if earlier_id != run_id)
        for earlier_id in islice(earlier, _RUNS_READ):
            for rows in receipts.read_files(store, receipts.keys(store, earlier_id, receipts.OF_RESTORE)):
                restored = rows.filter(pc.equal(rows.column("outcome"), Outcome.RESTORED.value))
                addresses += restored["address"].to_pylist()
            if len(addresses) > MOST_RESTORED:
                return pa.array([], pa.string())
    return pa.array(addresses, pa.string())


_KEPT_FOR_LONGER = "objects uploaded in parts that an earlier run saw are kept for longer: {damage}"


def read_sightings(step: Step[R], before: datetime) -> R:
    """Sightings (SIGHTINGS) by the newest runs that listed before a moment. The earliest sighting of an address counts.

    LastModified of a multipart upload may be the time when the upload began. So such an object is collected only if an
    earlier run, possibly a dry run, listed it long enough ago.

    A run passes on the first sightings of objects that it lists itself. So for each flow, only the newest unlimited run
    of the index is read, and newer runs that were limited to some windows. Flows differ in the objects that they list,
    and in their unreferenced objects. Damaged sightings are skipped and logged: without them objects are only kept
    longer.
    """
    engine = step.engine
    sightings = [engine.table(SIGHTINGS.empty_table())]
    runs, flows = EarlierRuns(step.repository.store), set[Flow]()
    for run_id in islice(runs.newest_first(), _RUNS_READ):
        settled = runs.settled(run_id)
        if settled is not None and (not settled.sightings or settled.flow in flows):
            continue
        try:
            frame = step.stored_of(run_id, SIGHTINGS_DF)
            if frame.manifest.span.ended_at <= before and run_id != step.plan.run_id:
                sightings.append(frame.rows(engine, damaged_files=_warn_of_damage))
                if settled is not None and not settled.limited:
                    flows.add(settled.flow)
        except OrderViolation:
            continue
        except CorruptFile as damage:
            step.warn(_KEPT_FOR_LONGER.format(damage=damage))
    return engine.union(*sightings)


def _warn_of_damage(damage: CorruptFile) -> None:
    _log.warning(_KEPT_FOR_LONGER.format(damage=damage))


def select_old_enough(engine: Engine[R], sightings: R, listing_started_at: datetime) -> R:
    """Sightings that are long enough before this run's listing."""
    limit = pa.scalar(listing_started_at - timedelta(seconds=MULTIPART_SIGHTING_SECONDS), TIME)
    return engine.where(sightings, lambda batch: pc.less_equal(batch.column("first_listed_at"), limit))


def store_sightings(step: Step[R], unreferenced: R, multipart: int, earlier: R, listing_ended_at: datetime) -> None:
    """Stores this run's sightings: unreferenced multipart uploads with the end of their first listing.

    Args:
        unreferenced: rows of the listing.
        multipart: number of multipart uploads among them.
        earlier: the result of `read_sightings`.
        listing_ended_at: the objects existed by then; at the start of the listing they may not have.
    """
    engine = step.engine
    written: tuple[FrameFile, ...] = ()
    if multipart:
        listed = engine.select(engine.where(unreferenced, is_multipart), "address", "slice_window")
        rows = engine.union(
            engine.map_batches(listed, partial(_sighted_at, listing_ended_at), SIGHTINGS),
            engine.map_batches(earlier, _without_window, SIGHTINGS),
        )
        count = multipart + engine.count(earlier)
        written = step.write(SIGHTINGS_DF, engine.map_by_address(rows, _earliest_of_listed, SIGHTINGS, count))
    step.complete(SIGHTINGS_DF, NoFigures(), written)


def _sighted_at(moment: datetime, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.append_column("first_listed_at", pa.array([moment] * batch.num_rows, TIME))


def _without_window(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Clears the window of earlier sightings, so that only this run's sightings have one."""
    for batch in batches:
        yield batch.set_column(1, SIGHTINGS.field("slice_window"), pa.nulls(batch.num_rows, pa.string()))


def _earliest_of_listed(rows: pa.Table) -> pa.Table:
    """The earliest sighting of each address that this run lists."""
    sums = [("slice_window", "max"), ("first_listed_at", "min")]
    earliest = rows.group_by("address").aggregate(sums).select(["address", "slice_window_max", "first_listed_at_min"])
    return earliest.filter(pc.is_valid(earliest.column("slice_window_max"))).rename_columns(SIGHTINGS.names)


def is_multipart(rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for multipart uploads."""
    return pc.match_substring_regex(rows.column("etag"), MULTIPART_ETAG)
