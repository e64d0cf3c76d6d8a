from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import HashSet
from lakefs_gc_assets.collector.live import facts, facts_of_ranges
from lakefs_gc_assets.collector.live.facts import FactFile, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES
from lakefs_gc_assets.collector.live.live_files import live_table
from lakefs_gc_assets.errors import CorruptFile, EngineFault
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.breaking import flipped
from lakefs_gc_assets_tests.collector.past_runs import DAY, IDS, NOW, SEALED

OPEN = IDS.descending(NOW - 2 * DAY)
NOTHING_SEALED = pa.array([], pa.string())
NAMESPACE = "s3://bucket/repo/"
FOLDER = HASHES.folder("run", "attempt")
ADDRESSES = st.lists(st.sampled_from([f"data/{place}" for place in range(12)]) | st.text(max_size=8), unique=True)


def hashes(addresses: list[str]) -> hashing.Hashes:
    return hashing.hashes(pa.array(addresses, pa.string()))


def record(store: LocalStore, ranges: dict[str, list[str]]) -> list[FactFile]:
    """Records ranges with these addresses, and with the same number of entries."""
    writer = FactWriter(HASHES, store, FOLDER)
    for range_id, addresses in ranges.items():
        range_record = RangeRecord(range_id, b"", b"", len(addresses), 0)
        rows = live_table(pa.array(addresses, pa.string()), "month")
        facts_of_ranges.record_hashes(writer, range_record, rows, NAMESPACE)
    writer.put()
    return files_of(store)


def files_of(store: LocalStore) -> list[FactFile]:
    return facts.files_of(HASHES, facts.list_files(store, FOLDER))


def looked_up(
    store: LocalStore,
    wanted: set[str],
    addresses: list[str],
    groups: int = 1,
    sealed: pa.StringArray = NOTHING_SEALED,
) -> tuple[dict[str, dict[str, object]], list[int]]:
    """Facts per range, and the matching hashes; the files are searched in `groups` groups."""
    files, asked = files_of(store), HashSet.from_hashes(hashes(addresses))
    batches = [
        batch
        for group in range(groups)
        for batch in facts_of_ranges.look_up_hashes(store, NAMESPACE, wanted, sealed, asked, files[group::groups])
    ]
    found = pa.Table.from_batches(batches)
    assert found.column("damage").null_count == found.num_rows
    reported, met = facts_of_ranges.split_sums_and_hits(found, asked)
    return {row["range_id"]: row for row in reported.to_pylist()}, met.tolist()


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), ADDRESSES),
    ADDRESSES,
    st.sets(st.sampled_from("abcdefghijk")),
    st.integers(1, 10),
    st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_of_what_is_looked_for_is_reported_what_wanted_ranges_hold(
    ranges: dict[str, list[str]], asked: list[str], wanted: set[str], values_of_a_file: int, groups: int
) -> None:
    with TemporaryDirectory() as folder, mock.patch.object(facts, "_VALUES_OF_A_FILE", values_of_a_file):
        store = LocalStore(Path(folder))
        record(store, ranges)
        reported, met = looked_up(store, wanted, asked, groups)
        assert reported == {
            range_id: {
                "range_id": range_id,
                "entries": len(own),
                "addresses": len(own),
                "total": int(np.sum(hashes(own)).astype(np.int64)),
            }
            for range_id, own in ranges.items()
            if range_id in wanted
        }
        held = {address for range_id in ranges.keys() & wanted for address in ranges[range_id]}
        assert met == sorted(hashes([*held.intersection(asked)]).tolist())


@given(ADDRESSES)
@settings(max_examples=50, deadline=None)
def test_what_is_noted_is_what_a_reading_sums_up(addresses: list[str]) -> None:
    range_record = RangeRecord("a", b"", b"", len(addresses), 0)
    rows = live_table(pa.array(addresses, pa.string()), "month")
    with TemporaryDirectory() as folder:
        record(LocalStore(Path(folder)), {"a": addresses})
        reported, _ = looked_up(LocalStore(Path(folder)), {"a"}, [])
    assert [reported["a"]] == facts_of_ranges.sum_up(range_record, rows).to_pylist()


def test_what_is_noted_again_is_the_same_file(tmp_path: Path) -> None:
    """A task may run twice."""
    ranges = {"a": ["data/x", "data/y"], "b": []}
    (first,) = record(LocalStore(tmp_path), ranges)
    assert record(LocalStore(tmp_path), ranges) == [first]
    assert first.values == 2


@pytest.mark.parametrize(
    ("addresses", "used"),
    [
        ([f"data/{SEALED}/{IDS.ascending(NOW)}"], True),
        ([f"data/{SEALED}/{IDS.ascending(NOW)}", f"data/{OPEN}/{IDS.ascending(NOW)}"], False),
        ([f"data/{OPEN}/odd name"], False),
        ([f"data/{SEALED}/odd name", "data/other", "root"], True),
        ([], True),
    ],
)
def test_only_ranges_in_sealed_slices_are_used(tmp_path: Path, addresses: list[str], used: bool) -> None:
    store = LocalStore(tmp_path)
    record(store, {"a": addresses, "b": [f"data/{SEALED}/{IDS.ascending(NOW)}"]})
    reported, met = looked_up(store, {"a", "b"}, addresses, sealed=pa.array([SEALED]))
    assert reported.keys() == ({"a", "b"} if used else {"b"})
    assert len(met) == (len(addresses) if used else 0)


def test_facts_of_an_attempt_lie_in_a_folder_of_their_own(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    files = record(store, {"a": ["data/x"]})
    assert facts.files_of(HASHES, facts.list_files(store, HASHES.folder("run", "another"))) == []
    assert facts.files_of(HASHES, facts.list_files(store, HASHES.root)) == files


def test_a_fact_names_each_slice_once(tmp_path: Path) -> None:
    store, name = LocalStore(tmp_path), IDS.ascending(NOW)
    addresses = [f"data/{SEALED}/{name}", f"data/{SEALED}/{name}x", f"data/{OPEN}/odd name", "data/other", "root"]
    (file,) = record(store, {"a": addresses})
    (slices,) = facts.read(HASHES, store, file).column("slices").to_pylist()
    assert sorted(slices) == sorted([SEALED, OPEN])


class TestDamage:
    """If anything is wrong with a file, its ranges have no facts."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path)

    @pytest.fixture
    def file(self, store: LocalStore) -> FactFile:
        (file,) = record(store, {"a": ["data/x", "data/y"], "b": ["data/z"]})
        return file

    def reported(self, store: LocalStore, file: FactFile) -> str:
        asked = HashSet.from_hashes(hashes(["data/x"]))
        batch, _ = facts_of_ranges.look_up_hashes(store, NAMESPACE, {"a", "b"}, NOTHING_SEALED, asked, [file])
        (row,) = batch.to_pylist()
        damage = row.pop("damage")
        assert set(row.values()) == {None}
        return str(damage)

    def test_a_file_that_is_gone(self, store: LocalStore, file: FactFile) -> None:
        store.delete([file.key])
        assert "missing" in self.reported(store, file)

    def test_a_flipped_bit_anywhere(self, store: LocalStore, file: FactFile) -> None:
        whole = store.get(file.key)
        for place in range(0, len(whole), 7):
            store.put(file.key, flipped(whole, place))
            with pytest.raises(CorruptFile, match="changed after it was written"):
                facts.read(HASHES, store, file)
            assert "changed after it was written" in self.reported(store, file)

    def test_a_file_that_was_cut_short(self, store: LocalStore, file: FactFile) -> None:
        store.put(file.key, store.get(file.key)[:-9])
        assert "changed after it was written" in self.reported(store, file)

    def test_fewer_hashes_than_the_name_says(self, store: LocalStore, file: FactFile) -> None:
        short = facts.put(HASHES, store, FOLDER, pa.table([["a"], [NAMESPACE], [2], [[]], [[1]]], schema=HASHES.schema))
        (other,) = (each for each in files_of(store) if each.key == short)
        assert "its name says 3" in self.reported(store, replace(other, values=file.values))

    def test_what_is_reported_in_part(self, store: LocalStore) -> None:
        """Ranges without their hashes would count as known to have none."""
        asked = HashSet.from_hashes(hashes(["data/x"]))
        files = record(store, {"a": ["data/x"], "b": ["data/y"]})
        looked_up_in = facts_of_ranges.look_up_hashes(store, NAMESPACE, {"a", "b"}, NOTHING_SEALED, asked, files)
        reported = pa.Table.from_batches(looked_up_in)
        for some in (reported.slice(0, 2), reported.slice(1), pa.concat_tables([reported, reported.slice(2)])):
            with pytest.raises(EngineFault, match="run again"):
                facts_of_ranges.split_sums_and_hits(some, asked)
