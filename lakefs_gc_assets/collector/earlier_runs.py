"""Facts about earlier runs: what they deleted or brought back, what they stored, and what they saw first.

An index of runs lies beside the lock. Without it, a run looks for a plan in every folder beside its own, the server's
and those of other programs included, and reads plans and reports of many runs. With it, it lists the folders, reads the
index, and looks only into folders that the index does not name. So its requests do not grow with the number of runs.

The index says nothing that could become false. A folder without a plan is none of ours for ever, since a run writes its
plan first. Of our own runs it names those that are settled: that ended well, or that a newer run has overtaken and that
therefore delete nothing more. One thing can still become of a dry run: it is approved. It is taken out then, before
anything is deleted. Whatever the index does not name is looked at; where it is missing, damaged or of another version,
that is everything.

The number of branches that a repository had is learnt here too, for the guard that compares it with what is left. The
previous run is not the one to compare with: a run that the guard refused leaves no count, and a dry run counts what is
left although nobody has agreed to the loss. Only a sweep that succeeded has passed the guard, or a setting let it.

The LastModified of an object uploaded in parts may be the moment its upload began, so it is collected only when an
earlier run listed it long enough ago. Each run keeps its sightings of such objects beside its frames, dry runs too.
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
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.outcomes import (
    MULTIPART_ETAG,
    MULTIPART_SIGHTING_SECONDS,
    Outcome,
    RunStatistics,
)
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import records_json, run_folder
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
    """Facts that later runs need about a run that changes no more, except by an approval.

    Attributes:
        base: whether it was to delete, so that no run builds on an older one of its kind. Earlier versions say so of no
            run of the flow `committed`, and none of those can be built on.
        swept: whether it deleted, and succeeded.
        branches: how many branches it counted; None where its report does not say.
        sightings: whether it stored sightings of objects uploaded in parts.
        deleted: whether it may have deleted something, or moved it to quarantine.
        repository: whose run it is, where the index says so: several repositories can share a namespace.
        limited: whether it listed some windows alone.
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
        others: folders beside those of our runs, which hold no plan.
    """

    runs: tuple[SettledRun, ...] = ()
    others: tuple[str, ...] = ()
    format_version: int = FORMAT_VERSION


class EarlierRuns:
    """Our runs in a namespace as they are listed now, and what the index says of them."""

    def __init__(self, store: ObjectStore) -> None:
        """Lists the folders and reads the index. Raises StorageError where the store cannot be asked."""
        self._store = store
        self._names = run_folder.folders(store)
        index = _read(store)
        self._others = frozenset(index.others)
        self._settled = {run.run_id: run for run in index.runs}

    def newest_first(self) -> Iterator[str]:
        """The ids of our runs; a folder that the index does not name is looked into when its turn comes."""
        return (name for name in self._names if name in self._settled or self._is_ours(name))

    def settled(self, run_id: str) -> SettledRun | None:
        """The index's entry of a run; None if it has none, so that the run's own files must be read."""
        return self._settled.get(run_id)

    def is_of(self, run_id: str, repository: str) -> bool:
        """True if a run was made for this repository; false also where its plan cannot be read."""
        settled = self._settled.get(run_id)
        if settled is not None and settled.repository:
            return settled.repository == repository
        try:
            return plans.read(self._store, run_id).repository == repository
        except CollectionError:
            return False

    def _is_ours(self, name: str) -> bool:
        return name not in self._others and run_folder.has_plan(self._store, name)


def note(store: ObjectStore, plan: Plan, report: Report, warn: LogLine) -> None:
    """Brings the index up to date at the end of a run, whose lock is held.

    The run itself joins it where it succeeded, as do runs that ended meanwhile without doing so. Without a lock that
    holds nothing is written: it might bring back what a sweep that began meanwhile took out.

    Args:
        warn: called with what went wrong: without an index the next run reads more, and that is all.
    """
    if plan.no_lock is not None:
        return
    try:
        before, etag = _read_with_etag(store)
        after = _brought_up_to_date(store, before, plan, report)
        if after != before:
            _put(store, after, etag)
    except CollectionError as error:
        warn(f"the index of runs could not be brought up to date, so the next run looks at more folders: {error}")


def forget(store: ObjectStore, run_id: str) -> None:
    """Takes a run out of the index, since something is to become of it: to be called before anything is deleted.

    Where somebody else changes the index meanwhile, it is emptied: the next run looks at everything.

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


def _brought_up_to_date(store: ObjectStore, before: _Index, plan: Plan, report: Report) -> _Index:
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
        elif settled := _look_at(store, name, overtaken=newest_sweep is not None and name > newest_sweep):
            settled_runs[name] = settled
            if settled.swept:
                newest_sweep = min(name, newest_sweep or name)
    there = frozenset(names)
    return _Index(tuple(settled_runs[name] for name in names if name in settled_runs), tuple(sorted(others & there)))


def _look_at(store: ObjectStore, run_id: str, *, overtaken: bool) -> SettledRun | None:
    """The index entry of another run; None as for `_settle`, or if its files cannot be read."""
    try:
        return _settle(store, plans.read(store, run_id), reports.read(store, run_id), overtaken=overtaken)
    except CorruptFile:
        return None


def _settle(store: ObjectStore, plan: Plan, report: Report | None, *, overtaken: bool) -> SettledRun | None:
    """The index entry of a run; None if the run may still change.

    Args:
        overtaken: true if a newer run has swept, so that this one deletes nothing more.
    """
    run_id, ended_well = plan.run_id, report is not None and report.is_complete
    swept = report is not None and report.is_complete and not report.dry_run
    approved = not swept and plans.read_approval(store, run_id) is not None
    if not overtaken and (not ended_well or approved):
        return None
    statistics = report.statistics if report else RunStatistics()
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
    """True if a run stored sightings, or if they cannot be read: later runs then say what is wrong with them."""
    try:
        return files_module.read_manifest(store, run_id, SIGHTINGS_DF).rows > 0
    except OrderViolation:
        return False
    except CorruptFile:
        return True


def _read(store: ObjectStore) -> _Index:
    """The index; an empty one where there is none, or where it cannot be relied on."""
    try:
        return records_json.read(store, _Index, KEY) or _Index()
    except CorruptFile:
        return _Index()


def _read_with_etag(store: ObjectStore) -> tuple[_Index, str]:
    """The index, and the ETag of what is stored, read before it; `_ABSENT` where nothing is stored."""
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
    """The most branches that any run of a repository counted since its newest successful sweep, that one included.

    Runs that failed count for nothing, however many there were; dry runs may raise the number and never lower it.
    Where no run swept yet, it is the most that any dry run counted. Goes by `count_branches`; a run of which
    nothing can be read is passed over, and older runs count then as well.

    Args:
        run_id: only runs older than it are looked at.
        repository: its id; runs of others that share its storage namespace do not count.
        warn: receives a warning for each run whose report cannot be read.
        present: branches that are there now; those that were deleted as stale since a run count as not counted by it.
    Returns:
        Branches with a commit that holds something; None where no earlier run counted them.
    Raises:
        StorageError: the store cannot be asked.
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
    """Number of branches that a run counted (None if unknown), and whether it swept and succeeded.

    The index of runs says so, else the run's report. Where the report cannot be read or is gone, the manifests of its
    frames do, as far as the run came to its end.

    Args:
        settled: the index's facts about the run.
        warn: receives a warning where the report cannot be read.
    """
    if settled is not None:
        return settled.branches, settled.swept
    try:
        report = reports.read(store, run_id)
    except CorruptFile as corrupt:
        report = None
        warn(f"how many branches run {run_id} counted is not in its report, which cannot be read: {corrupt}")
    if report is not None:
        return report.statistics.branches, report.is_complete and not report.dry_run
    try:
        # Stored right before the report, when every guard had passed.
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
    """Number of branches that a run counted, without those that were deleted as stale since.

    Records are read only if fewer are there now. Without the frame that names what the run counted, none is left out.

    Args:
        counted: number of branches that it counted.
        present: branches that are there now.
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
"""Addresses, each with the attempt of the run that deleted it (null in receipts of old versions), and when; UTC."""
_ASKED_AT_ONCE = 16
"""Objects that a task asks the store for at once."""


def deleted_before(step: Step[R], since: datetime | None = None, newer_than: str | None = None) -> R:
    """Addresses (`address`) of `deletions`."""
    return step.engine.select(deletions(step, since, newer_than), "address")


def deletions(step: Step[R], since: datetime | None = None, newer_than: str | None = None) -> R:
    """Objects that earlier runs deleted or moved to quarantine, and nobody restored (DELETIONS).

    A finished sweep lists them in its report, in few files; an unfinished one in its receipts. Receipts also
    replace a file of the report that cannot be read. Receipts that cannot be read are left out with a warning: their
    objects may become candidates again, and everything that is live still stays.

    Args:
        since: leaves out what was deleted earlier; UTC.
        newer_than: a run; only runs that were opened after it are looked at.
    """
    runs = EarlierRuns(step.repository.store)
    newer = takewhile(lambda run_id: newer_than is None or run_id < newer_than, runs.newest_first())
    return _deleted_by(step, runs, newer, since)


def deleted_since(step: Step[R], moment: datetime) -> R:
    """Objects (DELETIONS) that other runs deleted or moved to quarantine since a moment, and nobody restored.

    A run that a newer one has overtaken deletes nothing. So runs are read newest first, up to the first one whose sweep
    ended before the moment: the reads do not grow with the number of earlier runs.

    Args:
        moment: UTC, by the clocks of the machines that swept.
    Raises:
        StorageError: the store cannot be asked.
    """
    runs = EarlierRuns(step.repository.store)
    swept = _runs_that_may_have_swept_since(step.repository.store, runs, moment)
    return _deleted_by(step, runs, swept, moment)


def are_gone(opener: OpensStore, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for addresses without an object: somebody may have put one back by other means than `restore`."""
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
    """When the sweep of a run came to its end, UTC; None where it did not, or where its report cannot be read."""
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
    rows = engine.union(of_reports, receipts.rows(engine, opener, keys, _exclude))
    deleted = engine.where_among(rows, "outcome", receipts.GONE)
    if any_restored:
        restored = engine.where_among(rows, "outcome", (Outcome.RESTORED.value,))
        deleted = engine.without_matching(deleted, restored, ("address", "attempt"))
    if since is not None:
        moment = pa.scalar(since, RECEIPTS.field("decided_at").type)
        deleted = engine.where(deleted, lambda batch: pc.greater_equal(batch.column("decided_at"), moment))
    return engine.select(deleted, *DELETIONS.names)


def _read_reported(opener: OpensStore, group: Sequence[FrameFile]) -> Iterator[pa.RecordBatch]:
    """The rows (RECEIPTS) of a task's share of files, and the receipts of each run of which a file cannot be read."""
    damaged: dict[str, None] = {}

    def note(damage: CorruptFile) -> None:
        _log.warning("receipts are read instead of the damaged %s (%s)", damage.file, damage.detail)
        damaged[run_folder.run_of(damage.file)] = None

    yield from files_module.reader(opener, RECEIPTS, added=DELETED_REPORT.added, damaged=note)(group)
    for run_id in damaged:
        yield from receipts.read(opener.open(), run_id, _exclude).cast(nullable(RECEIPTS)).to_batches()


def _exclude(damage: CorruptFile) -> None:
    _log.warning("what run %s deleted is not fully known: %s", run_folder.run_of(damage.file), damage)


def report_files(store: ObjectStore, run_id: str) -> tuple[FrameFile, ...] | None:
    """The files that say what a run's sweep deleted; None where they are not known, and its receipts are to say it."""
    try:
        manifest = files_module.read_manifest(store, run_id, DELETED_REPORT)
    except (OrderViolation, CorruptFile):
        return None
    return manifest.files if manifest.figures.swept else None


def newest_run(store: ObjectStore, *, sweeps: bool = False) -> str:
    """The id of the newest run that came to its end. Raises CollectionError where there is none.

    Args:
        sweeps: whether dry runs are passed over.
    """
    for run_id in run_folder.newest_runs(store):
        try:
            ended = reports.read(store, run_id)
        except CorruptFile as corrupt:
            # An older run, chosen without a word, would be taken for the newest.
            raise CollectionError(f"{corrupt} Name another run: `lakefs-gc status` lists all runs") from corrupt
        if ended is not None and ended.counts and not (sweeps and ended.dry_run):
            return run_id
    if sweeps:
        raise CollectionError(
            "no sweep has come to its end yet: `lakefs-gc approve RUN` sweeps what a dry run found, `lakefs-gc status` "
            "lists all runs"
        )
    raise CollectionError(
        "no run has come to its end yet: `lakefs-gc run` makes a dry run, `lakefs-gc status` lists all runs"
    )


def read_manifest(store: ObjectStore, frame: str, run_id: str) -> Manifest[Any]:
    """The manifest of a frame of a run. Raises CollectionError where there is none."""
    plans.read(store, run_id)
    try:
        return files_module.read_manifest(store, run_id, FRAMES[frame])
    except OrderViolation:
        raise CollectionError(
            f"run {run_id} has no {frame} stored: it ended before, or they were removed because the run is old"
        ) from None


_RUNS_READ = 20
"""Maximum runs to read, the newest first."""
MOST_RESTORED = 100_000
"""Maximum addresses to return; with more, none are."""


def restored_before(store: ObjectStore, run_id: str) -> pa.Array:
    """Addresses that the newest earlier runs deleted and somebody brought back; none if more than MOST_RESTORED.

    One call tells of a repository where nothing ever was.

    Args:
        run_id: the run that asks.
    Raises:
        CollectionError: what is left of it cannot be read.
    """
    addresses: list[str] = []
    if across_runs.read_restoration(store) is not None:
        earlier = (earlier_id for earlier_id in run_folder.newest_runs(store) if earlier_id != run_id)
        for earlier_id in islice(earlier, _RUNS_READ):
            addresses += _restored_of(store, earlier_id)
            if len(addresses) > MOST_RESTORED:
                return pa.array([], pa.string())
    return pa.array(addresses, pa.string())


def _restored_of(store: ObjectStore, run_id: str) -> list[str]:
    addresses = list[str]()
    for rows in receipts.read_files(store, receipts.keys(store, run_id, receipts.OF_RESTORE)):
        addresses += rows.filter(pc.equal(rows.column("outcome"), Outcome.RESTORED.value))["address"].to_pylist()
    return addresses


_KEPT_FOR_LONGER = "objects uploaded in parts that an earlier run saw are kept for longer: {damage}"


def read_sightings(step: Step[R], before: datetime) -> R:
    """Sightings (SIGHTINGS) by the newest runs that listed before a moment; of an address the earliest counts.

    A run hands on the first sightings of what it lists itself, so of the runs that the index knows the newest of each
    flow is read, and those before it that were limited to some windows: flows differ in what they list, and in what
    nothing references. Sightings that are damaged are left out and named in the log: without them objects are only
    kept for longer.
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
    """Sightings long enough before this run's listing."""
    limit = pa.scalar(listing_started_at - timedelta(seconds=MULTIPART_SIGHTING_SECONDS), TIME)
    return engine.where(sightings, lambda batch: pc.less_equal(batch.column("first_listed_at"), limit))


def keep_sightings(step: Step[R], unreferenced: R, multipart: int, earlier: R, listing_ended_at: datetime) -> None:
    """Stores the sightings of this run: unreferenced objects uploaded in parts, with the end of their first listing.

    Args:
        unreferenced: rows of the listing.
        multipart: number of them that were uploaded in parts.
        earlier: as `read_sightings` gives them.
        listing_ended_at: by then they were there; at its start they may not have been.
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
    """Tells earlier sightings from those of this run, which alone have a window."""
    for batch in batches:
        yield batch.set_column(1, SIGHTINGS.field("slice_window"), pa.nulls(batch.num_rows, pa.string()))


def _earliest_of_listed(rows: pa.Table) -> pa.Table:
    """The earliest sighting of each address that this run lists."""
    sums = [("slice_window", "max"), ("first_listed_at", "min")]
    earliest = rows.group_by("address").aggregate(sums).select(["address", "slice_window_max", "first_listed_at_min"])
    return earliest.filter(pc.is_valid(earliest.column("slice_window_max"))).rename_columns(SIGHTINGS.names)


def is_multipart(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Which objects were uploaded in parts."""
    return pc.match_substring_regex(rows.column("etag"), MULTIPART_ETAG)
