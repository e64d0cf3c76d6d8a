"""Making the plan: from what the server, the store and three clocks say at the start of an attempt."""

from lakefs_gc_assets.collection import cutoff, plan, report, run_folder
from lakefs_gc_assets.collection.cutoff import Clocks
from lakefs_gc_assets.collection.lock import Lock
from lakefs_gc_assets.collection.plan import Flow, Plan
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs import xids


def begin(repository: OpenRepository, run_id: str, windows: tuple[str, ...], owner: str, lock: Lock) -> Plan:
    """Makes the plan of a new attempt and stores it.

    Args:
        owner: the first Dagster run of this collection.
        lock: held, just written: its time in the store is the store's clock.
    Raises:
        OrderViolation: the id is none of ours, the run has ended well already, or another Dagster run began it.
        GuardTripped: the clocks disagree.
    """
    if not xids.is_xid(run_id):
        raise OrderViolation(f"{run_id!r} is no run id: the job open_run makes them, add none by hand")
    earlier = report.read(repository.store, run_id)
    if earlier is not None and earlier.success:
        raise OrderViolation(f"run {run_id} ended at {earlier.ended_at:%F %T}Z: open a new run instead")
    settings, clock = repository.settings, repository.clock
    grace_period = repository.api.grace_period()
    clocks = Clocks.read(clock.now(), repository.api.server_clocks, lock.store_clock)
    cutoff.require_agreement(clocks, repository.skew)
    made = Plan(
        flow=Flow.CLEAN,
        repository=repository.facts.id,
        storage_namespace=repository.namespace.uri,
        run_id=run_id,
        attempt=xids.Generator().ascending(clock.now()),
        owner=owner,
        started_at=clock.now(),
        cutoff=cutoff.cutoff(clocks, repository.min_age, grace_period, repository.skew),
        min_age_seconds=repository.min_age.total_seconds(),
        grace_period_seconds=grace_period.total_seconds(),
        clock_skew_seconds=repository.skew.total_seconds(),
        slice_window=settings.slice_window,
        windows=windows,
        sweep=settings.sweep,
        previous_run=next((other for other in run_folder.newest_runs(repository.store) if other > run_id), None),
    )
    plan.write_first(repository.store, made)
    return made
