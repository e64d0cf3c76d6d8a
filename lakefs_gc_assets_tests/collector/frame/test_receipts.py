import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import LISTED, RECEIPTS
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import opener_in
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

RUN = "g4uk6erfnfus73frbnqg"


def candidates(*addresses: str) -> pa.Table:
    """Candidates in the schema of their frame."""
    rows = [
        {
            "address": address,
            "slice": None,
            "slice_window": "legacy",
            "layout": "flat",
            "last_modified": datetime(2026, 1, 1, tzinfo=UTC),
            "size": len(address),
        }
        for address in addresses
    ]
    return pa.Table.from_pylist(rows, LISTED)


def test_a_row_for_each_candidate() -> None:
    outcomes = [Outcome.ACCEPTED, Outcome.FAILED]
    table = receipts.table(candidates("a", "bb"), outcomes, [None, "AccessDenied"], NOW, "attempt", ["marker", None])
    assert table.schema == RECEIPTS
    common = {"slice": None, "slice_window": "legacy", "decided_at": NOW, "attempt": "attempt", "copy_etag": None}
    assert table.to_pylist() == [
        {"address": "a", "size": 1, "outcome": "accepted", "error": None, "version_id": "marker"} | common,
        {"address": "bb", "size": 2, "outcome": "failed", "error": "AccessDenied", "version_id": None} | common,
    ]


def test_an_outcome_for_each_candidate() -> None:
    with pytest.raises((ValueError, pa.ArrowInvalid)):
        receipts.table(candidates("a", "b"), [Outcome.ACCEPTED], [None], NOW)


@pytest.fixture
def opener(tmp_path: Path) -> StoreOpener:
    return opener_in(tmp_path)


class TestStored:
    def test_all_batches_are_read(self, store: ObjectStore) -> None:
        assert receipts.read(store, RUN) == RECEIPTS.empty_table()
        for number in range(3):
            one = receipts.table(candidates(f"data/{number}"), [Outcome.ACCEPTED], [None], NOW)
            receipts.write(store, RUN, f"batch{number}", one)
        receipts.write(store, "another", "batch", receipts.table(candidates("x"), [Outcome.FAILED], ["e"], NOW))
        found = receipts.read(store, RUN)
        assert found.schema == RECEIPTS
        assert sorted(found.column("address").to_pylist()) == ["data/0", "data/1", "data/2"]

    def test_files_are_read_in_their_order_several_at_once(self, store: ObjectStore) -> None:
        keys = []
        for number in range(40):
            one = receipts.table(candidates(f"data/{number}"), [Outcome.ACCEPTED], [None], NOW)
            receipts.write(store, RUN, f"batch{number}", one)
            keys.append(f"{run_folder.receipts(RUN)}batch{number}.parquet")
        began, reading = threading.Barrier(receipts._AT_ONCE, timeout=900), []

        def read(key: str) -> bytes:
            reading.append(key)
            if len(reading) <= receipts._AT_ONCE:
                began.wait()
            return store.get(key)

        found = list(receipts.read_files(cast(ObjectStore, SimpleNamespace(get=read)), keys))
        assert [row["address"] for table in found for row in table.to_pylist()] == [f"data/{n}" for n in range(40)]
        assert sorted(reading) == sorted(keys)

    @pytest.mark.parametrize("few", [True, False])
    def test_few_are_read_at_once_and_many_by_tasks(
        self, opener: StoreOpener, monkeypatch: pytest.MonkeyPatch, few: bool
    ) -> None:
        store, engine = opener.open(), LocalEngine(2)
        for number in range(7):
            one = receipts.table(candidates(f"data/{number}"), [Outcome.ACCEPTED], [None], NOW)
            receipts.write(store, RUN, f"batch{number}", one)
        monkeypatch.setattr(receipts, "_READ_HERE", 7 if few else 6)
        with mock.patch.object(engine, "read", wraps=engine.read) as by_tasks:
            rows = receipts.rows(engine, opener, receipts.keys(store, RUN))
        assert by_tasks.called is not few
        assert sorted(engine.collect(rows).column("address").to_pylist()) == [f"data/{n}" for n in range(7)]
        assert engine.count(receipts.rows(engine, opener, [])) == 0

    @pytest.mark.parametrize("content", [b"", b"no parquet", b"PAR1" + bytes(30) + b"PAR1"])
    def test_damaged_ones_end_the_run(self, store: ObjectStore, content: bytes) -> None:
        key = run_folder.receipts(RUN) + "batch.parquet"
        store.put(key, content)
        with pytest.raises(CorruptFile) as caught:
            receipts.read(store, RUN)
        assert (caught.value.file, caught.value.check) == (key, "receipts")

    def test_of_another_shape_end_the_run(self, store: ObjectStore) -> None:
        other = receipts.table(candidates("a"), [Outcome.ACCEPTED], [None], NOW).drop_columns(["outcome"])
        receipts.write(store, RUN, "batch", other)
        with pytest.raises(CorruptFile, match="receipts"):
            receipts.read(store, RUN)

    def test_with_an_outcome_that_does_not_exist_end_the_run(self, store: ObjectStore) -> None:
        rows = receipts.table(candidates("a", "b"), [Outcome.ACCEPTED] * 2, [None] * 2, NOW)
        outcomes = pa.array(["unheard of", "acceptee"])
        receipts.write(store, RUN, "batch", rows.set_column(4, RECEIPTS.field("outcome"), outcomes))
        with pytest.raises(CorruptFile, match="acceptee") as caught:
            receipts.read(store, RUN)
        key = run_folder.receipts(RUN) + "batch.parquet"
        assert (caught.value.file, caught.value.check) == (key, "receipts")

    @pytest.mark.parametrize("lacking", [["copy_etag"], ["attempt", "version_id", "copy_etag"]])
    def test_of_earlier_versions_name_no_attempt_no_delete_marker_and_no_copy(
        self, store: ObjectStore, lacking: list[str]
    ) -> None:
        rows = receipts.table(candidates("a", "b"), [Outcome.ACCEPTED] * 2, [None] * 2, NOW)
        receipts.write(store, RUN, "old", rows.drop_columns(lacking))
        found = receipts.read(store, RUN)
        assert found.schema == RECEIPTS
        assert found.equals(rows)

    @pytest.mark.parametrize("name", ["attempt", "version_id"])
    def test_that_lack_one_of_the_two_end_the_run(self, store: ObjectStore, name: str) -> None:
        rows = receipts.table(candidates("a"), [Outcome.ACCEPTED], [None], NOW)
        receipts.write(store, RUN, "batch", rows.drop_columns([name]))
        with pytest.raises(CorruptFile, match="receipts"):
            receipts.read(store, RUN)
