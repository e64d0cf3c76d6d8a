import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from benchmarks.repositories import make_files
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import STORE_DF, StoredFigures
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage import local as local_store
from lakefs_gc_assets.storage.interface import ListsInOrder
from lakefs_gc_assets.storage.opening import StoreOpener, open_store
from lakefs_gc_assets.storage.s3.inventory import Inventory
from lakefs_gc_assets_tests.collector.made_frames import LISTED_FIGURES, made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server
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
from lakefs_gc_assets_tests.spark.frame_rows import RUN_ID
from lakefs_gc_assets_tests.storage.s3 import inventories
from lakefs_gc_assets_tests.storage.s3.inventories import Version

__all__ = ["bucket", "replaying", "s3_server"]

BORN = datetime(2026, 11, 1, tzinfo=UTC)
CUTOFF = BORN + timedelta(days=9)
PLAN_OF_NOVEMBER = replace(PLAN, run_id=RUN_ID, slice_window="month", windows=("2026-11",))
TASKS = 16
"""As many tasks as four workers have."""
ISSUE = layout.XidGenerator(b"12345", 0)


def slice_of(count: int, created: datetime) -> list[str]:
    """Objects of a slice that filled within an hour."""
    name = ISSUE.descending(created)
    return [f"data/{name}/{ISSUE.ascending(created + timedelta(hours=number / count))}" for number in range(count)]


@pytest.fixture
def opener(tmp_path: Path) -> StoreOpener:
    return opener_in(tmp_path, "repository")


def stored(opener: StoreOpener, large: int) -> StoredFrame[StoredFigures]:
    parts = listing.listing(opener.open(), CUTOFF)
    step = made_step(LocalEngine(), opened_by(opener, listing_partitions=TASKS), PLAN_OF_NOVEMBER)
    files = listing.list_parts(step, parts, large)
    return step.unfinished(STORE_DF, LISTED_FIGURES, files)


def test_of_a_slice_with_half_of_all_objects_no_task_lists_much(opener: StoreOpener, tmp_path: Path) -> None:
    large = slice_of(6000, BORN)
    others = [name for hour in range(1, 25) for name in slice_of(250, BORN + timedelta(hours=hour))]
    make_files(tmp_path / "repository", large + others, BORN.timestamp())

    frame = stored(opener, large=500)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(large + others)
    # All rows are in one window, so each task wrote one file.
    rows = [file.rows for file in frame.manifest.files]
    assert max(rows) <= sum(rows) / 5
    assert len(rows) > TASKS


def test_a_large_slice_is_listed_by_several_calls_at_once(opener: StoreOpener, tmp_path: Path) -> None:
    large, other = slice_of(2000, BORN), slice_of(10, BORN + timedelta(hours=1))
    make_files(tmp_path / "repository", large + other, BORN.timestamp())
    store, under_way, most = opener.open(), 0, 0
    assert isinstance(store, ListsInOrder)
    list_between = type(store).list_between

    def watched(self: Any, prefix: str, *given: Any, **named: Any) -> Iterator[Any]:
        nonlocal under_way, most
        of_large = large[0].startswith(prefix) and prefix != layout.DATA_PREFIX
        under_way += of_large
        most = max(most, under_way)
        try:
            time.sleep(0.01)
            yield from list_between(self, prefix, *given, **named)
        finally:
            under_way -= of_large

    with mock.patch.object(type(store), "list_between", watched):
        parts = [part for part in listing.listing(store, CUTOFF).parts if part.prefix]
        found = pa.Table.from_batches(listing.list_all(store, parts, "month", large=200))

    assert Counter(found["address"].to_pylist()) == Counter(large + other)
    assert 1 < most <= 4


def test_a_large_folder_that_is_no_slice_is_shared_out(
    opener: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object in it, in the root or in a shard is listed once."""
    monkeypatch.setattr(local_store, "BATCH_ROWS", 50)
    flat = [sha256(bytes([number % 256, number // 256])).hexdigest()[:32] for number in range(1000)]
    large, shard = [f"data/old/{name}" for name in flat], [f"data/!ab/c/{name}" for name in flat[:300]]
    slice_ = slice_of(300, BORN)
    make_files(tmp_path / "repository", flat + large + shard + slice_, BORN.timestamp())
    store = opener.open()

    parts = listing.cut_large_parts(store, listing.listing(store, CUTOFF), "month", large=100)

    shares = [
        [key for batch in listing.list_all(store, [part], "month") for key in batch["address"].to_pylist()]
        for part in parts
    ]
    assert Counter(key for share in shares for key in share) == Counter(flat + large + shard + slice_)
    pieces = Counter(part.prefix for part in parts)
    assert min(pieces[""], pieces["data/old/"]) > 5
    assert pieces["data/!ab/"] == pieces[slice_[0].rpartition("/")[0] + "/"] == 1
    assert max(map(len, shares)) == 300


@pytest.mark.parametrize(
    ("windows", "listed", "elsewhere"),
    [
        (None, ["", "data/", "data/other/", "october", "november"], 0),
        (["legacy", "2026-10", "2026-11"], ["", "data/", "data/other/", "october", "november"], 0),
        (["legacy"], ["", "data/", "data/other/"], 2),
        (["2026-10"], ["october"], 1),
        (["2026-10", "2026-11"], ["october", "november"], 0),
    ],
)
def test_only_slices_of_the_windows_are_listed(
    opener: StoreOpener, tmp_path: Path, windows: list[str] | None, listed: list[str], elsewhere: int
) -> None:
    dates = {"october": BORN - timedelta(days=9), "november": BORN, "too young": CUTOFF + timedelta(hours=1)}
    slices = {name: slice_of(1, date)[0] for name, date in dates.items()}
    make_files(tmp_path / "repository", ["0" * 32, "data/other/x", *slices.values()], BORN.timestamp())
    names = {address.rpartition("/")[0] + "/": name for name, address in slices.items()}

    found = listing.listing(opener.open(), CUTOFF, windows=windows)

    assert sorted(names.get(part.prefix, part.prefix) for part in found.parts) == sorted(listed)
    assert (len(found.slices_elsewhere), len(found.skipped_slices)) == (elsewhere, 1)
    assert found.limited == (windows is not None and len(windows) < 3)


def test_what_is_not_large_is_listed_in_one_round_of_few_files(opener: StoreOpener, tmp_path: Path) -> None:
    names = [name for hour in range(40) for name in slice_of(50, BORN + timedelta(hours=hour))]
    make_files(tmp_path / "repository", names, BORN.timestamp())

    frame = stored(opener, large=1000)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(names)
    assert len(frame.manifest.files) == TASKS


def test_roots_and_foreign_folders_are_listed_in_pieces_too_and_other_windows_are_told_apart(
    opener: StoreOpener, tmp_path: Path
) -> None:
    flat = [f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for number in range(5000)]
    foreign = [f"data/foreign/{number % 3}/é{number:05} x" for number in range(5000)]
    stray = [f"data/{number}" for number in range(3000)]
    october = slice_of(100, BORN - timedelta(days=2))
    november = slice_of(100, BORN)
    make_files(tmp_path / "repository", sorted(flat + foreign + stray + october + november), BORN.timestamp())

    frame = stored(opener, large=1000)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(flat + foreign + stray + october + november)
    assert frame.manifest.rows_by_window() == {"2026-11": 100, "other": 13_100}
    assert max(file.rows for file in frame.manifest.files) <= 13_200 / 3


def test_nothing_is_no_file(opener: StoreOpener) -> None:
    assert stored(opener, large=1000).manifest.files == ()


# Expired objects.


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


# Listings from an inventory.


HOUR = timedelta(hours=1)


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("small", deletes="overlay", max_candidate_share=1, sweep=True)


def reported(runs: PlainRuns, created: datetime) -> str:
    """Writes an inventory of the current objects in two files; returns the folder of the reports."""
    repository = runs.repository
    location = repository.namespace.location
    listed = pa.Table.from_batches(repository.store.list("")).to_pylist()
    versions = [
        Version(location.key + row["key"], row["size"], row["last_modified"], row["etag"], True, False)
        for row in listed
    ]
    bucket = open_store(repository.opener.settings, Namespace.parse(f"s3://{location.bucket}"))
    folder = f"{location.key}inventories/daily/"
    half = len(versions) // 2
    files = [versions[:half], versions[half:]]
    inventories.write(bucket, folder, "Parquet", files, created=created, sourceBucket=location.bucket)
    return f"s3://{location.bucket}/{folder}"


def collected(runs: PlainRuns) -> Report:
    opened = runs.open()
    result = runs.make(opened)
    assert result.success, result.failures
    return runs.report(opened.run_id)


class TestTheCutoff:
    """A report is trusted for objects older than it by the margin and the skew."""

    @staticmethod
    def planned(folder: Path, monkeypatch: pytest.MonkeyPatch, plan: plans.Plan, created: datetime) -> plans.Plan:
        """The plan with a report made at this moment, which is trusted for objects 30 hours older."""
        opener = opener_in(folder, "repository")
        found = Inventory(opener, "s3://reports/manifest.json", created, "", True, (), ())
        monkeypatch.setattr(planning, "open_inventory", lambda *arguments: found)
        opened = opened_by(opener, inventory="s3://reports/", inventory_margin_hours=30)
        return planning.with_inventory(opened, plan)

    @pytest.mark.parametrize("flow", [Flow.CLEAN, Flow.UNIFIED])
    def test_is_the_margin_and_the_skew_before_the_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow
    ) -> None:
        plan = replace(PLAN, flow=flow, clock_skew_seconds=1800)
        found = self.planned(tmp_path, monkeypatch, plan, plan.cutoff + timedelta(seconds=2.5))
        assert found.cutoff == (plan.cutoff + timedelta(seconds=2.5) - 30.5 * HOUR).replace(microsecond=0)
        assert found.inventory == "s3://reports/manifest.json"

    def test_is_the_plans_where_that_is_earlier(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        plan = replace(PLAN, flow=Flow.CLEAN, clock_skew_seconds=1800)
        assert self.planned(tmp_path, monkeypatch, plan, plan.cutoff + 31 * HOUR).cutoff == plan.cutoff

    @pytest.mark.parametrize("flow", [Flow.OPTIMIZED, Flow.COMMITTED])
    def test_of_a_run_that_does_not_look_at_every_object_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow
    ) -> None:
        plan = replace(PLAN, flow=flow)
        assert self.planned(tmp_path, monkeypatch, plan, plan.cutoff - HOUR) == plan


def test_an_inventory_finds_what_a_listing_does_and_deletes_it_once(runs: PlainRuns) -> None:
    runs.settings["inventory"] = reported(runs, runs.clock.moment - HOUR)
    first = collected(runs)
    plan = plans.read(runs.repository.store, first.run_id)
    assert plan.inventory is not None and plan.inventory.startswith(runs.settings["inventory"])
    garbage = truth_classes("small")["unreferenced"] - {"data/stray-1/s0"}
    assert set(runs.addresses(first.run_id, "candidates")) == garbage
    assert first.counts["deleted"] == len(garbage)
    of_class = {kind: amounts["STANDARD"]["objects"] for kind, amounts in first.storage_classes.items()}
    assert of_class == {kind: first.counts[kind] for kind in ("listed", "candidates")}

    runs.clock.moment += HOUR
    again = collected(runs)
    assert (again.counts["candidates"], again.counts["deleted"]) == (0, 0)


def test_what_an_inventory_may_lack_or_misstate_is_kept(runs: PlainRuns) -> None:
    created = runs.server.recorded_at + HOUR
    runs.settings |= {"inventory": reported(runs, created), "inventory_margin_hours": 30}
    report = collected(runs)
    assert report.cutoff == (created - 31 * HOUR).replace(microsecond=0)
    assert (report.counts["candidates"], report.counts["deleted"]) == (0, 0)
    assert report.counts["listed"] > 0
