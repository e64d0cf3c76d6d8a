"""Makes the plan of an attempt from the server, the store, three clocks and the base run, and chooses that base run.

If anything about the base run is doubtful, the next run checks all objects: it is a clean run, or a full one by
retention rules. Then it needs no earlier run, and its plan gives the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.frame.files import FrameFile
from lakefs_gc_assets.collector.frame.slices import Folders, folders, select_windows, windows_of
from lakefs_gc_assets.collector.incremental import checkpoint as checkpoints
from lakefs_gc_assets.collector.incremental.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.plan import ACTIVE_COMMITS, ALL_COMMITS, Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint, Report
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import Clocks, OpenRepository
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, CorruptFile, OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.s3.inventory import open_inventory


class NoBaseRun(CollectionError):
    """No earlier run can be the base run, so the run checks all objects; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class BaseRun:
    """A run that can be a base run, with its checkpoint.

    Attributes:
        files: files of the frames in its checkpoint; only their manifests were read.
    """

    plan: Plan
    report: Report
    checkpoint: Checkpoint
    sealed: frozenset[str]
    files: tuple[FrameFile, ...]

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.report.run_id


def find_newest(
    repository: OpenRepository, definition: str, before: str | None = None, flow: Flow = Flow.CLEAN
) -> BaseRun:
    """Finds the newest run that was to delete, if it can be a base run. Dry runs are skipped.

    Args:
        definition: the next run's definition of live objects.
        before: id of the next run, if it has one.
        flow: flow of the next run. Runs of the flow `committed`, which list nothing, build only on each other.

    Raises:
        NoBaseRun: there is no such run, or it cannot be a base run; the text gives the reason.
        StorageError: the store cannot be asked.
    """
    try:
        plan, report = _newest(repository.store, before, flow)
        checkpoint = report.checkpoint
        if checkpoint is None:
            why = f"it failed ({report.error})" if report.error is not None else report.no_checkpoint
            raise NoBaseRun(f"run {report.run_id} stored nothing to build on: {why or 'its report does not say why'}")
        _require_not_undone(repository.store, report.run_id)
        _require_alike(repository, plan, definition)
        run_id = report.run_id
        files = checkpoints.require_frames(repository.store, run_id, checkpoint)
        checkpoints.count_ids(repository.store, run_id, checkpoint)
        sealed = checkpoints.read_sealed(repository.store, run_id, checkpoint)
    except CorruptFile as corrupt:
        raise _unreadable(corrupt) from corrupt
    return BaseRun(plan, report, checkpoint, sealed, files)


def describe_live(repository: OpenRepository) -> str:
    """The definition of live objects in words, if every commit keeps its objects live."""
    others = sorted(other.facts.id for other in repository.others)
    words = f"{ALL_COMMITS}, also of {', '.join(others)}" if others else ALL_COMMITS
    settings = repository.settings
    if not settings.keep_unnamed_ranges:
        return f"{words}, without ranges that no commit names"
    return words if settings.keep_old_unnamed_ranges else f"{words}, without old ranges that no commit names"


def find_base_run(repository: OpenRepository, planned: Plan | None = None) -> BaseRun:
    """The base run for the next run: the newest one, if the folders and windows of the next run allow it too.

    Args:
        planned: the plan of the next run, if it has one. By default every commit keeps its objects live.

    Raises:
        NoBaseRun: no run can be its base run.
    """
    definition = planned.live_definition if planned else describe_live(repository)
    flow = planned.flow if planned else Flow.CLEAN
    base = find_newest(repository, definition, planned.run_id if planned else None, flow)
    there = folders(repository.store)
    known = Folders((), base.checkpoint.other_folders)
    # Earlier versions took objects in shards for sealed, and left no checkpoint when they saw a shard.
    expected = {*known.others, *(there.shards if known.shards else ())}
    if new := sorted(set(there.others).difference(expected)):
        raise NoBaseRun(
            f"`data/` has folders that are not slices and did not exist in run {base.run_id}: {', '.join(new[:5])}"
        )
    if planned is not None and planned.flow.by_retention:
        require_every_window(planned, there.slices)
    return base


def require_every_window(planned: Plan, slices: tuple[str, ...]) -> None:
    """Raises NoBaseRun if a run by retention rules does not collect every window with a slice that is old enough.

    Such a run lists all slices of its own windows, and nothing else.
    """
    if leaves_out_windows(planned, slices):
        raise NoBaseRun(f"it was limited to {planned.scope}")


def leaves_out_windows(planned: Plan, slices: tuple[str, ...]) -> bool:
    """True if a run leaves out `legacy`, or a window with a slice that is old enough."""
    old_enough = tuple(name for name in slices if layout.as_datetime(layout.created_at(name)) < planned.cutoff)
    return not {*windows_of(old_enough, planned.slice_window)} <= {*planned.windows}


def _unreadable(corrupt: CorruptFile) -> NoBaseRun:
    return NoBaseRun(f"a file of an earlier run cannot be read: {corrupt}")


def require_files(store: ObjectStore, base: BaseRun) -> None:
    """Reads the files of the frames in the base run's checkpoint. Raises NoBaseRun if a file is damaged or missing.

    The run reads them later as well. A run that is planned on a damaged file could only fail. So would each dry run
    after it, since a dry run never becomes the base run.
    """
    try:
        checkpoints.require_files(store, base.files)
    except CorruptFile as corrupt:
        raise _unreadable(corrupt) from corrupt


def require_earlier_cutoff(base: BaseRun, planned: Plan) -> None:
    """Raises NoBaseRun if the base run's cutoff is later than this run's, as it is after a clock was set back."""
    if base.plan.cutoff > planned.cutoff:
        raise NoBaseRun(
            f"run {base.run_id} had a later cutoff, {base.plan.cutoff:%F %T}Z, than this one, {planned.cutoff:%F %T}Z"
        )


def require_recent_full_listing(base: BaseRun, planned: Plan, settings: CollectionSettings) -> None:
    """Raises NoBaseRun if the last full run by rules began too long ago.

    Only a full run finds objects that came into a sealed slice late.
    """
    full_run = base.checkpoint.full_run
    if full_run is None:
        raise NoBaseRun(f"the report of run {base.run_id} lacks the last run that examined everything")
    began = layout.as_datetime(layout.created_at(full_run))
    if not timedelta() <= planned.started_at - began < timedelta(days=settings.full_listing_days):
        raise NoBaseRun(
            f"run {full_run} was the last to examine everything, at {began:%F %T}Z (collection.full_listing_days is "
            f"{settings.full_listing_days:g})"
        )


def require_none_failed_on(store: ObjectStore, base: BaseRun, planned: Plan) -> None:
    """Raises NoBaseRun if the previous run, or this run's previous attempt, had the same base run and failed.

    A failed dry run leaves the base run the same. If it could not read a file, such as a range that is gone, the next
    run could not either. A run also counts as failed if its report cannot be read.
    """
    for run_id in (planned.run_id, planned.previous_run):
        try:
            report = None if run_id is None else reports.read(store, run_id)
        except CorruptFile as corrupt:
            raise _unreadable(corrupt) from corrupt
        if report is not None and report.error is not None and report.base_run == base.run_id:
            raise NoBaseRun(f"run {run_id}, which built on run {base.run_id}, failed ({report.error})")


def newest_sweep(
    store: ObjectStore, before: str | None = None, limit: int | None = None, *, committed: bool = False
) -> Plan | None:
    """The plan of the newest run that listed and was to delete; None if there is none.

    Args:
        before: id of a run; only older runs are considered.
        limit: number of newest runs to consider; None for all.
        committed: True to find the newest run of the flow `committed`, which lists nothing.

    Raises:
        CorruptFile: the plan or the approval of a run that may be it cannot be read, or its plan is gone.
    """
    runs = EarlierRuns(store)
    for run_id in _earlier(runs, before, limit):
        known = runs.settled(run_id)
        if known is not None and (not known.base or (known.flow is Flow.COMMITTED) is not committed):
            continue
        if known is not None and not run_folder.has_plan(store, run_id):
            # Skipping it is not safe: an older run does not know the deletions of this one.
            raise CorruptFile.missing(run_folder.plan(run_id))
        plan = plans.read(store, run_id)
        # A run without a listing deletes objects that commits held. They are not among pending objects, unless they
        # were committed since and have expired. A run by rules excludes such objects of its base run.
        is_wanted = (plan.flow is Flow.COMMITTED) is committed
        if is_wanted and (plan.sweep or plans.read_approval(store, run_id) is not None):
            return plan
    return None


def _earlier(runs: EarlierRuns, before: str | None, limit: int | None = None) -> Iterator[str]:
    return islice((run_id for run_id in runs.newest_first() if before is None or run_id > before), limit)


def _newest(store: ObjectStore, before: str | None, flow: Flow) -> tuple[Plan, Report]:
    """Plan and report of the newest run that was to delete, and has ended. Raises NoBaseRun if there is none."""
    plan = newest_sweep(store, before, committed=flow is Flow.COMMITTED)
    if plan is None and flow is Flow.COMMITTED:
        raise NoBaseRun("no earlier run of the flow committed deleted")
    if plan is None and any(_earlier(EarlierRuns(store), before)):
        raise NoBaseRun("no earlier run listed and deleted: all were dry runs, or of the flow committed")
    if plan is None:
        raise NoBaseRun("there is no earlier run")
    report = reports.read(store, plan.run_id)
    if report is None:
        raise NoBaseRun(f"run {plan.run_id} is a sweep that has not ended")
    if report.attempt != plan.attempt:
        raise NoBaseRun(f"run {plan.run_id} is a sweep that was restarted and has not ended")
    return plan, report


def _require_not_undone(store: ObjectStore, run_id: str) -> None:
    """Raises NoBaseRun if objects were restored since: the checkpoint of the run lacks them."""
    restored = across_runs.read_restoration(store)
    if restored is not None and restored.concerns(run_id):
        raise NoBaseRun(f"{restored}, after run {run_id} was opened")


def _require_alike(repository: OpenRepository, earlier: Plan, definition: str) -> None:
    """Raises NoBaseRun if the next run differs in anything that the earlier run's checkpoint depends on."""
    now = {
        "repository": (earlier.repository, repository.facts.id),
        "storage namespace": (earlier.storage_namespace, repository.namespace.uri),
        "slice window": (earlier.slice_window, repository.settings.slice_window),
        "minimum age": (timedelta(seconds=earlier.min_age_seconds), repository.min_age),
        "grace period": (timedelta(seconds=earlier.grace_period_seconds), repository.api.grace_period()),
        "definition of what is live": (earlier.live_definition, definition),
    }
    for what, (before, after) in now.items():
        if before != after:
            raise NoBaseRun(f"run {earlier.run_id} had another {what}: {before}, now {after}")


_RUNS_CONSIDERED = 100
"""Maximum runs, newest first, in which `report_to_follow` looks for a sweep."""


def report_to_follow(store: ObjectStore, cadence: timedelta, now: datetime, followed: str | None) -> Report | str:
    """The report of the base run for the next optimized run, once that is due; otherwise the reason why none is.

    Only plans and reports in the store are read. They also know runs of the command line, and the latest run in an
    event log may be an old run that was repeated. The time in a run's id shows which run is the newest.

    A run is followed if it succeeded, or failed only at objects that cannot be deleted: these are recorded, and the
    next run knows them.

    Args:
        cadence: minimum time between the start of that run and the next one.
        followed: id of the run that was followed last; None for none. Runs that were opened before it count as
            followed: a run id states when it was opened, and newer ids are smaller.

    Raises:
        StorageError: the store cannot be asked.
    """
    try:
        newest = newest_sweep(store, limit=_RUNS_CONSIDERED)
        report = None if newest is None else reports.read(store, newest.run_id)
    except CorruptFile as corrupt:
        return f"the newest sweep cannot be read ({corrupt}): open a clean run that sweeps"
    if newest is None:
        return "there was no sweep yet: open a clean run that sweeps; optimized runs follow it"
    if report is None:
        return f"run {newest.run_id} is a sweep that has not ended"
    if report.dry_run:
        return f"run {newest.run_id} was approved, but has not deleted yet"
    if not report.is_complete and not report.only_undeletable:
        return (
            f"run {newest.run_id} did not succeed ({report.error or report.ending.value}): "
            "repeat it, or start a clean run"
        )
    if report.limited_to:
        return (
            f"run {report.run_id} was limited to {report.limited_to}, so no run can build on it: open a clean run that "
            "sweeps over all windows; optimized runs follow it"
        )
    if followed is not None and report.run_id >= followed:
        return f"run {report.run_id} was already followed"
    due = report.started_at + cadence
    if now < due:
        return f"run {report.run_id} will be followed from {due:%F %T}Z"
    return report


def begin(
    repository: OpenRepository,
    run_id: str,
    windows: tuple[str, ...],
    lock: Lock,
    flow: Flow = Flow.CLEAN,
    name: str | None = None,
) -> Plan:
    """Makes the plan of a new attempt and stores it.

    Args:
        lock: held and just written: its time in the store is the store's clock, and its owner becomes the run's.
        flow: the requested flow. An optimized run that cannot be exact becomes a clean one, and the plan gives the
            reason. The plan also gives it if a run by retention rules was to have a base run and lists everything.
        name: name under which the run is opened, if any.

    Raises:
        RunEnded: the run has already ended well.
        OrderViolation: the id is not one of ours, or its time is in the future; another Dagster run began the run; or
            the name means another run.
        ConfigurationError: the store cannot do the sweep mode, or the inventory is of another bucket.
        StorageError: the settings name an inventory that does not exist or is damaged.
        GuardTripped: the clocks disagree.
    """
    if not layout.is_xid(run_id):
        raise OrderViolation(f"{run_id!r} is not a run id: use the job open_run, which creates ids")
    if layout.is_to_come(run_id, repository.clock.now()):
        # After its sweep it would overtake every run that is opened before that time.
        opened_at = layout.as_datetime(layout.created_at(run_id))
        raise OrderViolation(f"the time in run id {run_id}, {opened_at:%F %T}Z, is in the future: use the job open_run")
    reports.require_not_ended(repository.store, run_id, windows)
    planned = make_plan(repository, run_id, windows, lock.owner, lock.store_clock, flow)
    planned = replace(with_inventory(repository, planned), no_lock=lock.why_unfenced, name=name)
    if planned.base_run is None and flow is not Flow.COMMITTED:
        planned = replace(planned, limited=leaves_out_windows(planned, folders(repository.store).slices))
    plans.write_first(repository.store, planned)
    if name is not None:
        plans.write_name(repository.store, planned)
    return planned


def make_plan(
    repository: OpenRepository, run_id: str, windows: tuple[str, ...], owner: str, store_clock: datetime, flow: Flow
) -> Plan:
    """Makes a plan without storing it.

    Args:
        owner: the first Dagster run of this collection.
        flow: as for `begin`.
        store_clock: the store's time of an object that was just written, UTC.

    Raises:
        GuardTripped: the clocks disagree.
    """
    settings, clock = repository.settings, repository.clock
    grace_period = repository.api.grace_period()
    clocks = Clocks.read(clock.now(), repository.api.server_clocks, store_clock)
    guards.require_clocks_agree(clocks, repository.skew)
    planned = Plan(
        flow=Flow.CLEAN,
        repository=repository.facts.id,
        storage_namespace=repository.namespace.uri,
        run_id=run_id,
        attempt=layout.XidGenerator().ascending(clock.now()),
        owner=owner,
        started_at=clock.now(),
        cutoff=clocks.cutoff(repository.min_age, grace_period, repository.skew),
        earliest_clock=clocks.earliest,
        min_age_seconds=repository.min_age.total_seconds(),
        grace_period_seconds=grace_period.total_seconds(),
        clock_skew_seconds=repository.skew.total_seconds(),
        slice_window=settings.slice_window,
        windows=windows,
        sweep=settings.sweep,
        live_definition=describe_live(repository),
        loosened=dict(repository.loosened),
        opened=repository.opened,
        only_addresses=settings.only_addresses,
        previous_run=next((other for other in EarlierRuns(repository.store).newest_first() if other > run_id), None),
    )
    if flow is Flow.OPTIMIZED:
        planned = _build_on_base_run(repository, planned, flow)
    elif flow.by_retention:
        planned = replace(planned, flow=flow, live_definition=ACTIVE_COMMITS)
        if settings.full_listing_days:
            planned = _build_on_base_run(repository, planned, flow)
    return planned


def with_inventory(repository: OpenRepository, plan: Plan) -> Plan:
    """Adds the newest inventory and its cutoff, if the settings name one and the run lists every object.

    Raises ConfigurationError if the inventory is of another bucket, StorageError if there is none or it is damaged.
    """
    settings = repository.settings
    if not settings.inventory or plan.follows_expiry or plan.flow not in (Flow.CLEAN, Flow.UNIFIED):
        return plan
    opened = open_inventory(repository.opener.settings, settings.inventory, repository.namespace)
    trusted = opened.created_at - timedelta(hours=settings.inventory_margin_hours) - plan.skew
    return replace(plan, inventory=opened.manifest, cutoff=min(plan.cutoff, trusted.replace(microsecond=0)))


def _build_on_base_run(repository: OpenRepository, planned: Plan, flow: Flow) -> Plan:
    """Adds the base run, if the run can be exact with it; otherwise adds the reason why not."""
    try:
        base = find_base_run(repository, planned)
        require_earlier_cutoff(base, planned)
        if flow.by_retention:
            require_recent_full_listing(base, planned, repository.settings)
            require_none_failed_on(repository.store, base, planned)
        require_files(repository.store, base)
    except NoBaseRun as reason:
        return replace(planned, why_clean=str(reason))
    return replace(planned, flow=flow, base_run=base.run_id, base_run_attempt=base.checkpoint.attempt)


def windows_to_collect(repository: OpenRepository, flow: Flow) -> tuple[tuple[str, ...], str | None]:
    """The windows that a new run needs, `legacy` first and then oldest first, and why it cannot be optimized.

    Only for choosing partitions: the plan decides again when the run has the lock.
    """
    size, slices = repository.settings.slice_window, folders(repository.store).slices
    every = windows_of(slices, size)
    if flow is not Flow.OPTIMIZED:
        return every, None
    try:
        base = find_base_run(repository)
    except NoBaseRun as reason:
        return every, str(reason)
    unsealed = tuple(name for name in slices if name not in base.sealed)
    # With `legacy`: names that lakeFS never makes belong there, even inside of a new slice.
    needed = {*base.checkpoint.pending_windows, *windows_of(unsealed, size)}
    return tuple(name for name in dict.fromkeys([*every, *sorted(needed)]) if name in needed), None


def choose_windows(
    repository: OpenRepository, flow: Flow, choice: str
) -> tuple[tuple[str, ...], tuple[str, ...], str | None]:
    """Every window that a run needs, the windows that it is limited to, and why it cannot be optimized.

    Args:
        choice: as for `slices.select_windows`; empty for all windows.
    Raises:
        ConfigurationError: there are no such windows, or a run of this flow cannot be limited to them.
    """
    if choice and flow not in (Flow.CLEAN, Flow.UNIFIED):
        raise ConfigurationError(
            f"a run of the flow {flow} cannot be limited to the windows {choice}: optimized runs list new objects in "
            "all windows, and committed runs list nothing. Choose the flow clean or unified, or omit the windows"
        )
    needed, why_clean = windows_to_collect(repository, flow)
    chosen = select_windows(needed, choice, repository.settings.slice_window) if choice else needed
    return needed, chosen, why_clean
