from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import range_notes, range_sizes
from lakefs_gc_assets.collector.live.range_notes import NotesFile
from lakefs_gc_assets.collector.live.range_sizes import SIZES, RangeSizes
from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.local.store import LocalStore

INTO = range_sizes.folder("run")
ANY_SIZE = st.integers(0, 2**62)


def numbers(values: list[int]) -> pa.Int64Array:
    return pa.array(values, pa.int64())


def note(store: LocalStore, ranges: dict[str, list[int]], into: str = INTO) -> list[NotesFile]:
    noted = RangeSizes(store, into)
    for range_id, sizes in ranges.items():
        noted.note(range_id, numbers(sizes))
    noted.put()
    return range_sizes.files_of(store, "run")


def looked_up(store: LocalStore, wanted: set[str], sizes: list[int]) -> dict[str, bool]:
    """Whether each range that is noted holds one of the sizes."""
    rows = [
        row
        for file in range_sizes.files_of(store, "run")
        for batch in range_sizes.look_up(store, wanted, numbers(sizes), file)
        for row in batch.to_pylist()
    ]
    assert [row["damage"] for row in rows] == [None] * len(rows)
    return {row["range_id"]: row["holds"] for row in rows}


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(0, 20) | ANY_SIZE)),
    st.lists(st.integers(0, 20) | ANY_SIZE),
    st.sets(st.sampled_from("abcdefghijk")),
    st.integers(1, 10),
)
@settings(max_examples=50)
def test_a_range_holds_a_size_exactly_where_an_entry_has_it(
    ranges: dict[str, list[int]], sizes: list[int], wanted: set[str], sizes_of_a_file: int
) -> None:
    with TemporaryDirectory() as folder, mock.patch.object(range_notes, "_VALUES_OF_A_FILE", sizes_of_a_file):
        store = LocalStore(Path(folder))
        note(store, ranges)
        assert looked_up(store, wanted, sizes) == {
            range_id: not set(own).isdisjoint(sizes) for range_id, own in ranges.items() if range_id in wanted
        }


def test_what_is_noted_again_is_the_same_file(tmp_path: Path) -> None:
    """As when a task is made twice."""
    ranges = {"a": [3, 1, 3], "b": []}
    (first,) = note(LocalStore(tmp_path), ranges)
    assert note(LocalStore(tmp_path), ranges) == [first]
    assert first.values == 2


def test_files_of_other_versions_are_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (file,) = note(store, {"a": [1]})
    store.put(file.key.replace("/2-", "/1-"), store.get(file.key))
    store.put(f"{INTO}notes.txt", b"")
    assert range_sizes.files_of(store, "run") == [file]


def test_nothing_noted_is_no_file(tmp_path: Path) -> None:
    assert note(LocalStore(tmp_path), {}) == []


class TestDamage:
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path)

    def told(self, store: LocalStore, file: NotesFile) -> str:
        (batch,) = range_sizes.look_up(store, {"a"}, numbers([1]), file)
        (row,) = batch.to_pylist()
        assert (row["range_id"], row["holds"]) == (None, None)
        with pytest.raises(CorruptFile):
            range_notes.read(SIZES, store, file)
        return str(row["damage"])

    def test_of_a_file_that_is_gone_nothing_is_known(self, store: LocalStore) -> None:
        (file,) = note(store, {"a": [1]})
        store.delete([file.key])
        assert "missing" in self.told(store, file)

    def test_a_flipped_bit_anywhere_is_noticed(self, store: LocalStore) -> None:
        (file,) = note(store, {"a": [1, 5, 9], "b": [2]})
        whole = store.get(file.key)
        for place in range(0, len(whole), 7):
            store.put(file.key, whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(CorruptFile, match="changed after it was written"):
                range_notes.read(SIZES, store, file)

    def test_a_file_with_fewer_sizes_than_its_name_says(self, store: LocalStore) -> None:
        (file,) = note(store, {"a": [1, 2]})
        sha256 = tables.put(store, file.key, pa.table([["a"], [[2]]], schema=SIZES.schema))
        file = replace(file, digest=sha256)
        assert "its name says 2" in self.told(store, file)

    def test_a_file_with_other_columns(self, store: LocalStore) -> None:
        (file,) = note(store, {"a": [1, 2]})
        file = replace(file, digest=tables.put(store, file.key, pa.table({"range_id": ["a"]})))
        assert "cannot be read" in self.told(store, file)


@given(st.lists(st.integers(1, 5_000_000)))
def test_whatever_stays_is_larger_than_all_that_is_merged_together(sizes: list[int]) -> None:
    files = [NotesFile(str(place), size, "") for place, size in enumerate(sizes)]
    merged = range_notes.choose_merged(files)
    assert all(file.values < 4_000_000 for file in merged)
    left = sorted(file.values for file in files if file not in merged and file.values < 4_000_000)
    together = sum(file.values for file in merged)
    if merged:
        assert len(merged) > 1
        assert not left or left[0] > together
    else:
        assert len(left) < 2


def test_of_a_range_that_was_noted_twice_one_row_is_kept() -> None:
    rows = pa.table([["a", "b", "a"], [[1], [2], [1]]], schema=SIZES.schema)
    assert range_notes.each_once(rows).to_pylist() == [
        {"range_id": "a", "sizes": [1]},
        {"range_id": "b", "sizes": [2]},
    ]
