"""Objects expired since the base run, with real range files."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, store_expired
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_steps import found_live, made_step, opened_by
from lakefs_gc_assets_tests.collector.past_runs import DAY, IDS, NOW, SEALED, began, ended
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_range
from lakefs_gc_assets_tests.runs.made_ranges import range_records

OPEN = IDS.descending(NOW - 2 * DAY)
SEALED_ONE, OPEN_ONE = (f"data/{name}/{IDS.ascending(NOW - 9 * DAY)}" for name in (SEALED, OPEN))


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
