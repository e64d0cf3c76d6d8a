from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.frames import CHECKPOINT_COMMITTED_DF, EXPIRED_DF, PENDING_DF, Frame, NoFigures
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.checkpoint import (
    BaseCheckpoint,
    count_ranges,
    open_base_checkpoint,
    read_ranges,
    store_expired,
    write_ranges,
)
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import found_live, made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, SEALED, began, ended, opened
from lakefs_gc_assets_tests.collector.past_runs import IDS as RUN_IDS
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_range
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.servers.stores import local_store
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

__all__ = ["local_store", "opened"]

CUTOFF = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
IDS = layout.XidGenerator()
SLICES = st.builds(lambda hours: IDS.descending(CUTOFF + hours * HOUR / 2), st.integers(-20, 20))


def carried(store: ObjectStore, sealed: frozenset[str], read: frozenset[str]) -> Checkpoint:
    """The record of a checkpoint stored as run `run`, attempt `attempt`."""
    return Checkpoint(
        attempt="attempt",
        sealed=len(sealed),
        sealed_objects=0,
        sealed_sha256=checkpoint.write_sealed(store, "run", "attempt", sealed),
        read=len(read),
        read_sha256=tables.write_run_ids(store, "run", "attempt", read),
        pending=0,
        pending_digest="",
        committed=0,
        committed_digest="",
        pending_windows=(),
        other_folders=(),
    )


class TestSettled:
    @pytest.mark.parametrize(
        ("before_cutoff", "sealed"),
        [(2 * HOUR + SECOND, True), (2 * HOUR, False), (HOUR, False), (-HOUR, False)],
    )
    def test_a_slice_is_sealed_an_interval_and_the_skew_before_the_cutoff(
        self, before_cutoff: timedelta, sealed: bool
    ) -> None:
        name = IDS.descending(CUTOFF - before_cutoff)
        assert checkpoint.sealed_after(frozenset(), [name], CUTOFF, HOUR) == (
            frozenset([name]) if sealed else frozenset()
        )

    @given(st.sets(SLICES), st.sets(SLICES), st.timedeltas(timedelta(), timedelta(hours=5)))
    def test_the_set_only_grows_and_only_by_what_was_listed(
        self, before: set[str], listed: set[str], skew: timedelta
    ) -> None:
        after = checkpoint.sealed_after(frozenset(before), listed, CUTOFF, skew)
        assert before <= after <= before | listed


def test_what_a_run_left_is_read_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    left = carried(store, frozenset(["one", "two"]), frozenset(["a" * 64]))
    assert checkpoint.read_sealed(store, "run", left) == {"one", "two"}
    assert checkpoint.read_ids(store, "run", left) == {"a" * 64}
    assert checkpoint.count_ids(store, "run", left) == 1


def test_listed_slices_are_those_of_the_attempt(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    checkpoint.write_listed_slices(store, "run", "first", ["one"])
    checkpoint.write_listed_slices(store, "run", "second", [])
    assert checkpoint.read_listed_slices(store, "run", "first") == {"one"}
    assert checkpoint.read_listed_slices(store, "run", "second") == frozenset()
    with pytest.raises(CorruptFile, match="existence"):
        checkpoint.read_listed_slices(store, "run", "third")


# The checkpoint of the base run.


LOST = "the report of the base run is gone"


def step_of(repository: OpenRepository, base_run: str | None, attempt: str | None) -> Step[Any]:
    """A step without an engine: any use of the engine fails."""
    plan = SimpleNamespace(base_run=base_run, base_run_attempt=attempt)
    return cast(Step[Any], SimpleNamespace(repository=repository, plan=plan))


def test_a_clean_run_builds_on_nothing(opened: OpenRepository) -> None:
    assert open_base_checkpoint(step_of(opened, None, None)) is None


def test_what_the_base_run_concluded_is_read_where_it_left_it(opened: OpenRepository) -> None:
    before = began(opened, DAY)
    report = ended(opened, before)
    found = BaseCheckpoint(opened.store, before.run_id)
    assert (found.run_id, found.report, found.checkpoint) == (before.run_id, report, report.checkpoint)
    assert found.sealed == {SEALED} and found.read_ids == {"a" * 64}


@pytest.mark.parametrize("left", ["no report", "a report without a checkpoint"])
def test_a_base_run_that_left_nothing_is_named(opened: OpenRepository, left: str) -> None:
    before = began(opened, DAY)
    ended(opened, before, checkpoint=None)
    if left == "no report":
        opened.store.delete([run_folder.report(before.run_id)])
    with pytest.raises(CorruptFile) as refused:
        BaseCheckpoint(opened.store, before.run_id)
    assert (refused.value.file, refused.value.check, refused.value.detail) == (before.run_id, "report", LOST)


class TestFrames:
    """Frames of a base run, as a later run reads them."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> OpenRepository:
        """A repository whose frames are read from a folder."""
        return opened_by(opener_in(tmp_path))

    def put(self, repository: OpenRepository, plan: Plan, frame: Frame[NoFigures], row: dict[str, Any]) -> str:
        """Stores a frame with this row; returns the digest of its manifest."""
        step = made_step(LocalEngine(), repository, plan)
        rows = step.engine.table(pa.Table.from_pylist([row], schema=nullable(frame.schema)))
        return step.complete(frame, NoFigures(), step.write(frame, rows)).manifest.digest

    def left(self, repository: OpenRepository) -> tuple[Step[ArrowRows], BaseCheckpoint]:
        """A step of a later run, and its base: one pending object, and one committed address."""
        before = began(repository, DAY)
        made = ended(repository, before)
        assert made.checkpoint is not None
        left = replace(
            made.checkpoint,
            pending_digest=self.put(repository, before, PENDING_DF, listed("data/waits")),
            committed_digest=self.put(repository, before, CHECKPOINT_COMMITTED_DF, live("data/committed")),
        )
        reports.write(repository.store, replace(made, checkpoint=left))
        plan = replace(before, run_id="later", base_run=before.run_id, base_run_attempt=before.attempt)
        step = made_step(LocalEngine(), repository, plan)
        found = open_base_checkpoint(step)
        assert found is not None
        return step, found

    def test_are_those_of_the_base_run(self, stored: OpenRepository) -> None:
        step, found = self.left(stored)
        pending, committed = found.pending_objects(step), found.committed(step)
        assert committed is not None
        assert step.engine.collect(pending).to_pylist() == [listed("data/waits") | {"slice_window": "other"}]
        assert step.engine.collect(committed).to_pylist() == [live("data/committed") | {"slice_window": "other"}]

    @pytest.mark.parametrize("frame", [PENDING_DF, CHECKPOINT_COMMITTED_DF], ids=lambda frame: frame.name)
    def test_that_were_made_again_are_named(self, stored: OpenRepository, frame: Frame[NoFigures]) -> None:
        step, found = self.left(stored)
        row = listed("data/another") if frame is PENDING_DF else live("data/another")
        self.put(stored, replace(step.plan, run_id=found.run_id), frame, row)
        read = found.pending_objects if frame is PENDING_DF else found.committed
        with pytest.raises(CorruptFile) as reported:
            read(step)
        assert (reported.value.file, reported.value.check) == (step.stored_of(found.run_id, frame).uri, "digest")
        assert reported.value.detail == f"{frame.name} differs from the frame in the report of run {found.run_id}"


# Tracked ranges.


KEY = "_lakefs/retention/gc/uncommitted/run/committed_df/tracked-attempt.parquet"
NUMBERS = st.integers(0, 2**63 - 1)
RECORDS = st.lists(
    st.builds(RangeRecord, st.text("0123456789abcdef", min_size=64, max_size=64), *[st.binary()] * 2, *[NUMBERS] * 2)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(RECORDS)
def test_are_read_as_they_were_written(local_store: ObjectStore, records: list[RangeRecord]) -> None:
    sha256 = write_ranges(local_store, "run", "attempt", range_records(records))
    assert read_ranges(local_store, "run", "attempt", sha256) == range_records(records)
    assert count_ranges(local_store, "run", "attempt", sha256) == len(records)


def test_that_are_missing_damaged_or_others_end_the_run(local_store: ObjectStore) -> None:
    record = RangeRecord("a" * 64, b"a", b"b", 1, 2)
    sha256 = write_ranges(local_store, "run", "attempt", range_records([record]))
    others = write_ranges(local_store, "run", "attempt", range_records([record, record]))
    for asked in (read_ranges, count_ranges):
        with pytest.raises(CorruptFile, match="checksum"):
            asked(local_store, "run", "attempt", sha256)
        with pytest.raises(CorruptFile, match="existence"):
            asked(local_store, "run", "another", sha256)
    assert count_ranges(local_store, "run", "attempt", others) == 2
    local_store.put(KEY, local_store.get(KEY)[:-9])
    with pytest.raises(CorruptFile, match="checksum"):
        read_ranges(local_store, "run", "attempt", others)


# Objects expired since the base run, with real range files.


OPEN = RUN_IDS.descending(NOW - 2 * DAY)
SEALED_ONE, OPEN_ONE = (f"data/{name}/{RUN_IDS.ascending(NOW - 9 * DAY)}" for name in (SEALED, OPEN))


@pytest.fixture
def repository(tmp_path: Path) -> OpenRepository:
    folder = tmp_path / "namespace"
    folder.mkdir()
    return opened_by(StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://namespace"))


def following(repository: OpenRepository, tracked: list[RangeRecord]) -> tuple[Step[ArrowRows], BaseCheckpoint]:
    """A run that builds on one with rules, which tracked some ranges and sealed a slice."""
    before = began(repository, 3 * DAY, flow=Flow.UNIFIED)
    left = ended(repository, before).checkpoint
    assert left is not None
    sha256 = checkpoint.write_ranges(repository.store, before.run_id, before.attempt, range_records(tracked))
    left = replace(left, tracked=len(tracked), tracked_sha256=sha256, full_run=before.run_id)
    ended(repository, before, checkpoint=left)
    plan = began(repository, DAY, flow=Flow.UNIFIED, base_run=before.run_id, base_run_attempt=before.attempt)
    return made_step(LocalEngine(), repository, plan), BaseCheckpoint(repository.store, before.run_id)


def test_what_ranges_held_in_sealed_slices_that_are_live_no_more(repository: OpenRepository) -> None:
    entries: dict[str | bytes, Staged] = {
        "sealed": Staged(SEALED_ONE, size=7, etag="a" * 32),
        "again": Staged(SEALED_ONE, size=7, etag="a" * 32),
        "not sealed": Staged(OPEN_ONE),
        "no slice": Staged("data/other"),
        "root": Staged("root"),
        "never listed": Staged("somewhere/else"),
        "elsewhere": Staged("s3://other/x", AddressType.FULL),
    }
    dead, live = put_range(repository.store, entries), put_range(repository.store, {"live": Staged(SEALED_ONE + "x")})
    step, before = following(repository, [dead, live])
    new = put_range(repository.store, {"new": Staged(SEALED_ONE + "y")})

    found = store_expired(step, before, found_live(step, live, new))

    rows = {row["address"]: row for row in found.table().to_pylist()}
    assert rows.keys() == {SEALED_ONE, "data/other", "root"} and found.count == 3
    assert (rows[SEALED_ONE]["size"], rows[SEALED_ONE]["etag"]) == (7, None)
    assert step.stored(EXPIRED_DF).manifest.digest == found.manifest.digest


def test_what_an_earlier_run_deleted_is_left_out(repository: OpenRepository) -> None:
    step, before = following(repository, [put_range(repository.store, {"a": Staged(SEALED_ONE), "b": Staged("root")})])
    gone = step.engine.table(pa.table({"address": [SEALED_ONE]}))
    with mock.patch.object(checkpoint, "deleted_before", lambda step: gone):
        assert store_expired(step, before, found_live(step)).table().column("address").to_pylist() == ["root"]


@pytest.mark.parametrize("many", [True, False])
def test_of_much_that_expired_what_live_ranges_with_the_same_keys_hold_is_left_out_first(
    repository: OpenRepository, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    """A range with other keys is not read: its objects are looked up in its facts."""
    one, other, third = (f"{SEALED_ONE[:-1]}{letter}" for letter in "012")
    dead = put_range(repository.store, {"a": Staged(one), "b": Staged(other), "c": Staged(third)})
    before_and_now = put_range(repository.store, {"c again": Staged(third)})
    new = put_range(repository.store, {"b": Staged(other), "d": Staged(SEALED_ONE + "x")})
    step, before = following(repository, [dead, before_and_now])
    repository.store.delete([METADATA + before_and_now.id])
    monkeypatch.setattr(checkpoint, "_MANY_ENTRIES", 2 if many else 3)

    found = store_expired(step, before, found_live(step, before_and_now, new))

    left_out = {other} if many else set()
    assert {*found.table().column("address").to_pylist()} == {one, other, third} - left_out


def test_nothing_is_read_where_all_are_live(repository: OpenRepository) -> None:
    gone = RangeRecord("a" * 64, b"a", b"b", 1, 2)
    step, before = following(repository, [gone])
    assert store_expired(step, before, found_live(step, gone)).count == 0


@pytest.mark.parametrize("damaged", [False, True])
def test_a_range_that_is_gone_or_damaged_ends_the_run(repository: OpenRepository, damaged: bool) -> None:
    record = put_range(repository.store, {"a": Staged(SEALED_ONE)})
    step, before = following(repository, [record])
    key = METADATA + record.id
    data = repository.store.get(key)
    repository.store.delete([key])
    if damaged:
        repository.store.put(key, data[:-1])
    with pytest.raises(CorruptFile, match=record.id):
        store_expired(step, before, found_live(step))


def test_a_range_is_as_it_was_when_it_was_tracked(repository: OpenRepository) -> None:
    record = put_range(repository.store, {"a": Staged(SEALED_ONE)})
    step, before = following(repository, [replace(record, count=2)])
    with pytest.raises(CorruptFile, match=record.id):
        store_expired(step, before, found_live(step))
