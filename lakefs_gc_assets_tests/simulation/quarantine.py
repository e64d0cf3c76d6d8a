"""Restores deleted objects and empties the quarantine with the product's own commands, while the world goes on."""

from collections.abc import Callable
from dataclasses import replace

from lakefs_gc_assets.collector import restore
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.purge import LiveCheck, purge_by
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.simulation.bucket import BucketView, address_of, in_quarantine, is_back
from lakefs_gc_assets_tests.simulation.clocks import CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import TASKS, Reached, Run, Watch, open_repository
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.oracle import Recheck, Violation, refuse_change
from lakefs_gc_assets_tests.simulation.retention_exactness import RetentionExactness
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.world import World

_CALL_SECONDS = 0.05
_QUARANTINE_DAYS = 1.0


class Command:
    """The process of a command other than collection."""

    def __init__(
        self, world: World, seen_servers: int, removed: Callable[[str, bool], None], *, page: int = 1000
    ) -> None:
        """Prepares the process.

        Args:
            removed: receives each key that is about to be deleted.
        """
        self.world, self.recheck = world, Recheck(world.time)
        self.machine = MachineClock(world.time, world.collector_skew)
        self.clock = CollectorClock(self.machine, world.pass_time)
        limit = world.setup.delete_limit
        self.view = BucketView(world.bucket, self.point, removed, self._written, page=page, delete_limit=limit)
        self.store = world.bucket.opened(self.view)
        self.api = CollectorsApi(world.servers, self.point, self.recheck.begins, self.machine, seen_servers)

    def point(self, call: str) -> bool:
        self.world.tick(_CALL_SECONDS)
        self.recheck.asked_at = self.world.time.now
        return False

    def _written(self, key: str, data: bytes) -> None:
        for run_id in self.world.oracle.runs:
            if key.startswith(run_folder.receipts(run_id)):
                self.world.oracle.receipts(run_id, data)
                return


def put_back(world: World, run_id: str, options: CollectionSettings) -> int:
    """Restores everything that a run moved to quarantine, and returns the count; refusals are only logged."""

    def removed(key: str, gone: bool) -> None:
        if address_of(key) is not None:
            raise Violation(f"{key} is removed by a restoration, and a deletion may yet be done")

    command = Command(world, 1, removed)
    repository = open_repository(command.api, command.store, options, command.clock)
    came_back, there = 0, {address for moved_by, address in in_quarantine(world.bucket) if moved_by == run_id}
    try:
        for each in restore.restore(repository, run_id, (), f"restore at {world.time.now}", world.log.append):
            assert each.fate.is_well or each.address not in there, each
            came_back += each.fate.is_well
    except CollectionError as refusal:
        world.log.append(f"restore: {refusal}")
    return came_back


def purge(
    world: World, exactness: Exactness, retention: RetentionExactness | None, options: CollectionSettings
) -> None:
    """Purges objects of all runs that were in quarantine for a day; refusals are only logged."""
    settings = options.model_copy(update={"quarantine_days": _QUARANTINE_DAYS})

    def removed(key: str, gone: bool) -> None:
        moved = address_of(key)
        if moved is not None and not is_back(world.bucket, key):
            world.oracle.deletion(*moved, command.recheck)

    command = Command(world, world.setup.seen_servers, removed)
    api, store, clock, recheck = command.api, command.store, command.clock, command.recheck
    others: list[Reached] = []
    if world.other is not None and world.other.around.also_live:
        bucket = world.other.repository.bucket
        seen = BucketView(bucket, command.point, refuse_change, refuse_change, page=1000, delete_limit=0)
        others.append((CollectorsApi(world.other.servers, command.point, lambda: None, command.machine, 1), seen))
    repository = open_repository(api, store, settings, clock, others=others)
    watch = Watch(world.oracle.listing, world.oracle.marked, recheck.opens, recheck.ends, exactness, retention)

    def check(plan: Plan, lock: Lock) -> LiveCheck[ArrowRows]:
        run = Run(api, store, settings, clock, plan.run_id, plan.owner, watch, world.log.append, [])
        step = Step(world.log.append, world.log.append, replace(repository, run=run), LocalEngine(TASKS), plan, lock)
        return LiveCheck(step)

    try:
        for each in purge_by(repository, None, f"purge at {world.time.now}", check, world.log.append):
            world.log.append(f"{each.address}: {each.fate}")
    except CollectionError as refusal:
        world.log.append(f"purge: {refusal}")
