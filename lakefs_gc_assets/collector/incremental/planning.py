"""Making the plan: from what the server, the store and three clocks say at the start of an attempt."""

from dataclasses import replace
from datetime import datetime, timedelta

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.earlier.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.frame.slices import folders, windows_of
from lakefs_gc_assets.collector.incremental import base_run
from lakefs_gc_assets.collector.incremental.base_run import NoBaseRun, find_base_run, live_definition
from lakefs_gc_assets.collector.lock import Lock
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.records.plan import ACTIVE_COMMITS, Flow, Plan
from lakefs_gc_assets.collector.repository import Clocks, OpenRepository, require_copies
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.s3.inventory import open_inventory


def begin(
    repository: OpenRepository, run_id: str, windows: tuple[str, ...], owner: str, lock: Lock, flow: Flow = Flow.CLEAN
) -> Plan:
    """Makes the plan of a new attempt and stores it.

    Args:
        owner: the first Dagster run of this collection.
        lock: held, just written: its time in the store is the store's clock.
        flow: what is asked for; an optimized run that cannot be exact becomes a clean one, and the plan says why. So it
            does of a run by retention rules that lists everything although it was to build on another one.
    Raises:
        OrderViolation: the id is none of ours or of a time to come, the run has ended well already, or another Dagster
            run began it.
        ConfigurationError: the store cannot do what the sweep mode asks for, or the inventory is of another bucket.
        StorageError: there is no inventory where the settings name one, or it is damaged.
        GuardTripped: the clocks disagree.
    """
    if not layout.is_xid(run_id):
        raise OrderViolation(f"{run_id!r} is no run id: the job open_run makes them, add none by hand")
    if layout.is_to_come(run_id, repository.clock.now()):
        # Once it had swept it would overtake every run until then.
        opened_at = layout.as_datetime(layout.created_at(run_id))
        raise OrderViolation(
            f"run {run_id} is of {opened_at:%F %T}Z, which is to come: the job open_run makes ids, add none by hand"
        )
    if repository.settings.quarantines:
        require_copies(repository.store)
    earlier = report.read(repository.store, run_id)
    if earlier is not None and earlier.is_complete:
        raise OrderViolation(f"run {run_id} ended at {earlier.ended_at:%F %T}Z: open a new run instead")
    planned = make_plan(repository, run_id, windows, owner, lock.store_clock, flow)
    planned = replace(with_inventory(repository, planned), no_lock=lock.why_unfenced)
    plans.write_first(repository.store, planned)
    return planned


def make_plan(
    repository: OpenRepository, run_id: str, windows: tuple[str, ...], owner: str, store_clock: datetime, flow: Flow
) -> Plan:
    """A plan that is stored nowhere.

    Args:
        owner, flow: as for `begin`.
        store_clock: the store's time of something that was just written, UTC.
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
        live_definition=live_definition(repository),
        loosened=dict(repository.loosened),
        opened=repository.opened,
        previous_run=next((other for other in EarlierRuns(repository.store).newest_first() if other > run_id), None),
    )
    if flow is Flow.OPTIMIZED:
        planned = _build_on_base_run(repository, planned, flow)
    elif flow.by_retention:
        planned = replace(planned, flow=flow, live_definition=ACTIVE_COMMITS)
        if flow is Flow.UNIFIED and settings.full_listing_days:
            planned = _build_on_base_run(repository, planned, flow)
    return planned


def with_inventory(repository: OpenRepository, plan: Plan) -> Plan:
    """The plan, with the newest inventory and its cutoff where the settings name one and the run lists every object.

    Raises ConfigurationError where the inventory is of another bucket, StorageError where there is none or it is
    damaged.
    """
    settings = repository.settings
    if not settings.inventory or plan.follows_expiry or plan.flow not in (Flow.CLEAN, Flow.UNIFIED):
        return plan
    opened = open_inventory(repository.opener.settings, settings.inventory, repository.namespace)
    trusted = opened.created_at - timedelta(hours=settings.inventory_margin_hours) - plan.skew
    return replace(plan, inventory=opened.manifest, cutoff=min(plan.cutoff, trusted.replace(microsecond=0)))


def _build_on_base_run(repository: OpenRepository, planned: Plan, flow: Flow) -> Plan:
    """The plan of a run of a flow that builds on the one before where it can be as exact; elsewhere says why not."""
    try:
        base = find_base_run(repository, planned.run_id, planned.live_definition)
        base_run.require_earlier_cutoff(base, planned)
        if flow.by_retention:
            base_run.require_recent_full_listing(base, planned, repository.settings)
            base_run.require_none_failed_on(repository.store, base, planned)
        base_run.require_files(repository.store, base)
    except NoBaseRun as reason:
        return replace(planned, why_clean=str(reason))
    return replace(planned, flow=flow, base_run=base.run_id, base_run_attempt=base.checkpoint.attempt)


def windows_to_collect(repository: OpenRepository, flow: Flow) -> tuple[tuple[str, ...], str | None]:
    """The windows that a new run needs, `legacy` first and then oldest first, and why it cannot be optimized.

    Only for choosing partitions: the plan decides again when the run has the lock.
    """
    size, slices = repository.settings.slice_window, folders(repository.store).slices
    if flow is Flow.OPTIMIZED:
        try:
            base = find_base_run(repository)
        except NoBaseRun as reason:
            return windows_of(slices, size), str(reason)
        needed = set(base.checkpoint.pending_windows)
        unsealed = tuple(name for name in slices if name not in base.sealed)
        # With `legacy`, where names belong that lakeFS never makes, also inside of a new slice.
        needed.update(windows_of(unsealed, size))
        ordered = dict.fromkeys([*windows_of(slices, size), *sorted(needed)])
        return tuple(name for name in ordered if name in needed), None
    return windows_of(slices, size), None
