"""An index of earlier runs beside the lock, with the facts that later runs need.

Without it, a run looks for a plan in every folder beside its own, the server's and those of other programs included,
and reads plans and reports of many runs. With it, it lists the folders, reads the index, and looks only into folders
that the index does not name. So its requests do not grow with the number of earlier runs.

The index says nothing that could become false. A folder without a plan is none of ours for ever, since a run writes its
plan first. Of our own runs it names those that are settled: that ended well, or that a newer run has overtaken and that
therefore delete nothing more. One thing can still become of a dry run: it is approved. It is taken out then, before
anything is deleted. Whatever the index does not name is looked at; where it is missing, damaged or of another version,
that is everything.

The number of branches that a repository had is learnt here too, for the guard that compares it with what is left. The
previous run is not the one to compare with: a run that the guard refused leaves no count, and a dry run counts what is
left although nobody has agreed to the loss. Only a sweep that succeeded has passed the guard, or a setting let it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from lakefs_gc_assets.collector.frame import manifest, receipts
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, DELETED_REPORT, SIGHTINGS_DF
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.records.statistics import RunStatistics
from lakefs_gc_assets.collector.stored import records_json, run_folder
from lakefs_gc_assets.errors import (
    CollectionError,
    CorruptFile,
    LogLine,
    NotOffered,
    OrderViolation,
    PreconditionFailed,
)
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there, head_if_there

FORMAT_VERSION = 1
KEY = f"{run_folder.ROOT}runs.json"
_ABSENT = ""


@dataclass(frozen=True, slots=True)
class SettledRun:
    """Facts that later runs need about a run that changes no more, except by an approval.

    Attributes:
        base: whether it listed and was to delete, so that no run builds on an older one.
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

    def is_stored(self, run_id: str) -> bool:
        """True if the plan of a run that the index names is still stored."""
        return run_folder.has_plan(self._store, run_id)

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
        base=plan.flow is not Flow.COMMITTED and (plan.sweep or swept or approved),
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
        return manifest.read(store, run_id, SIGHTINGS_DF).rows > 0
    except OrderViolation:
        return False
    except CorruptFile:
        return True


def _read(store: ObjectStore) -> _Index:
    """The index; an empty one where there is none, or where it cannot be relied on."""
    try:
        data = get_if_there(store, KEY)
        return _Index() if data is None else records_json.decode(_Index, FORMAT_VERSION, data, KEY)
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


def branch_baseline(store: ObjectStore, run_id: str, repository: str, warn: LogLine) -> int | None:
    """The most branches that any run of a repository counted since its newest successful sweep, that one included.

    Runs that failed count for nothing, however many there were; dry runs may raise the number and never lower it.
    Where no run swept yet, it is the most that any dry run counted. Goes by `count_branches`; a run of which
    nothing can be read is passed over, and older runs count then as well.

    Args:
        run_id: only runs older than it are looked at.
        repository: its id; runs of others that share its storage namespace do not count.
        warn: receives a warning for each run whose report cannot be read.
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
        ended, committed = manifest.read(store, run_id, DELETED_REPORT), manifest.read(store, run_id, COMMITTED_DF)
    except (OrderViolation, CorruptFile):
        return None, False
    if ended.span.attempt != committed.span.attempt:
        return None, False
    return len(committed.figures.heads), ended.figures.swept
