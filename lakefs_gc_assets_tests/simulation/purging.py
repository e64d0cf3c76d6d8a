"""Empties the quarantine with the product's own command, in a world that goes on meanwhile."""

from dataclasses import replace

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck, purge_by
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.simulation.bucket import BucketView, address_of, is_back
from lakefs_gc_assets_tests.simulation.clocks import CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import TASKS, Reached, Run, Watch, open_repository
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.oracle import Recheck, refuse_change
from lakefs_gc_assets_tests.simulation.retention_exactness import RetentionExactness
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.world import World

_CALL_SECONDS = 0.05
_QUARANTINE_DAYS = 1.0


def purge(
    world: World, exactness: Exactness, retention: RetentionExactness | None, options: CollectionSettings
) -> None:
    """Purges objects of all runs that were in quarantine for a day; refusals are only logged."""
    settings = options.model_copy(update={"quarantine_days": _QUARANTINE_DAYS})
    machine, recheck = MachineClock(world.time, world.collector_skew), Recheck(world.time)
    clock = CollectorClock(machine, world.pass_time)

    def point(call: str) -> bool:
        world.tick(_CALL_SECONDS)
        recheck.asked_at = world.time.now
        return False

    def removed(key: str, gone: bool) -> None:
        moved = address_of(key)
        if moved is not None and not is_back(world.bucket, key):
            world.oracle.deletion(*moved, recheck)

    def written(key: str, data: bytes) -> None:
        for run_id in world.oracle.runs:
            if key.startswith(run_folder.receipts(run_id)):
                world.oracle.receipts(run_id, data)

    limit = world.setup.delete_limit
    view = world.bucket.opened(BucketView(world.bucket, point, removed, written, page=1000, delete_limit=limit))
    api = CollectorsApi(world.servers, point, recheck.begins, machine, world.setup.seen_servers)
    others: list[Reached] = []
    if world.other is not None and world.other.around.also_live:
        bucket = world.other.repository.bucket
        seen = BucketView(bucket, point, refuse_change, refuse_change, page=1000, delete_limit=0)
        others.append((CollectorsApi(world.other.servers, point, lambda: None, machine, 1), seen))
    repository = open_repository(api, view, settings, clock, others=others)
    watch = Watch(world.oracle.listing, world.oracle.marked, recheck.opens, recheck.ends, exactness, retention)

    def check(plan: Plan, lock: Lock) -> LiveCheck[ArrowRows]:
        run = Run(api, view, settings, clock, plan.run_id, plan.owner, watch, world.log.append, [])
        step = Step(world.log.append, world.log.append, replace(repository, run=run), LocalEngine(TASKS), plan, lock)
        return LiveCheck(step)

    try:
        for each in purge_by(repository, None, f"purge at {world.time.now}", check, world.log.append):
            world.log.append(f"{each.address}: {each.fate}")
    except CollectionError as refusal:
        world.log.append(f"purge: {refusal}")
