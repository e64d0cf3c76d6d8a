"""Objects of expired commits only: their facts come from ranges, not from a listing of the store."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation.bucket import encrypted, md5
from lakefs_gc_assets_tests.simulation.clocks import DAY
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import KINDS, RULES, SWEEP
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.playing import deterministic
from lakefs_gc_assets_tests.simulation.run_requests import Asked
from lakefs_gc_assets_tests.simulation.scenes import Ended, Scene
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import World

CONTENT = b"encrypted"
NAMED = md5(b"the ETag of what was copied")
"""The checksum that a copy keeps: it looks like the MD5 of its content, but is not."""


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A scene with a bucket in which a KMS key encrypts some objects."""
    with remembering(), deterministic(2):
        yield Scene(World.from_setup(replace(KINDS["committed"].setup, etags="foreign")))


def put(scene: Scene, path: str, content: bytes, checksum: str = "") -> Entry:
    """Stages an object on main whose MD5 the store reports."""
    world = scene.world
    while encrypted(key := world.issue(world.servers.servers[0])[0]):
        pass
    world.bucket.put_data(key, content)
    entry = Entry(key, 1, len(content), checksum or md5(content))
    world.repository.stage(world.repository.branches["main"], path, entry)
    return entry


def test_the_checksum_of_an_entry_is_no_etag_of_the_store(scene: Scene) -> None:
    """A copy is in a live and in an expired range, which both state the checksum that it keeps.

    Another copy, which only the expired range has, is staged over it. By this checksum the server lists no change.
    """
    put(scene, "a", CONTENT, NAMED)
    replaced = put(scene, "b", CONTENT, NAMED)
    for number in range(4):
        put(scene, f"d/{number}", b"another %d" % number)
    scene.do((("commit_now", (0, 0, 0)),))
    scene.do((("delete", (0, 1)), ("commit_now", (0, 0, 0))))
    assert "b" not in scene.world.repository.visible(scene.world.repository.branches["main"])
    scene.world.pass_time(10 * DAY)
    scene.world.repository.rules = RULES
    garbage = replaced.address
    scene.world.repository.stage(scene.world.repository.branches["main"], "a", replaced)
    assert not [*scene.world.repository.changes(scene.world.repository.branches["main"])]

    assert scene.start(SWEEP, Faults(), Asked(Flow.COMMITTED)) is Ended.WELL

    assert garbage in addresses(scene.store, scene.reported.run_id, "store_df")
    assert garbage not in addresses(scene.store, scene.reported.run_id, "candidates")
