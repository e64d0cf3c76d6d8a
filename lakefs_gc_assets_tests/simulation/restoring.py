"""Restores deleted objects with the product's own command, while no collector works."""

from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.simulation.bucket import BucketView, address_of, in_quarantine
from lakefs_gc_assets_tests.simulation.clocks import CollectorClock, MachineClock
from lakefs_gc_assets_tests.simulation.collecting import open_repository
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi
from lakefs_gc_assets_tests.simulation.world import World

_CALL_SECONDS = 0.05


def put_back(world: World, run_id: str, options: CollectionSettings) -> int:
    """Restores everything that a run moved to quarantine, and returns the count; refusals are only logged."""

    def point(call: str) -> bool:
        world.tick(_CALL_SECONDS)
        return False

    def written(key: str, data: bytes) -> None:
        if key.startswith(run_folder.receipts(run_id)):
            world.oracle.receipts(run_id, data)

    def removed(key: str, gone: bool) -> None:
        if address_of(key) is not None:
            raise Violation(f"{key} is removed by a restoration, and a deletion may yet be done")

    machine = MachineClock(world.time, world.collector_skew)
    limit = world.setup.delete_limit
    view = BucketView(world.bucket, point, removed, written, page=1000, delete_limit=limit)
    api = CollectorsApi(world.servers, point, lambda: None, machine, 1)
    store = world.bucket.opened(view)
    repository = open_repository(api, store, options, CollectorClock(machine, world.pass_time))
    came_back, there = 0, {address for moved_by, address in in_quarantine(world.bucket) if moved_by == run_id}
    try:
        for each in restore.restore(repository, run_id, (), f"restore at {world.time.now}", world.log.append):
            assert each.fate.is_well or each.address not in there, each
            came_back += each.fate.is_well
    except CollectionError as refusal:
        world.log.append(f"restore: {refusal}")
    return came_back
