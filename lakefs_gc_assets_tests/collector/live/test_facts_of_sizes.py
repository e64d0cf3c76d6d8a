import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import facts, facts_of_ranges
from lakefs_gc_assets.collector.live.facts import FactFile, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.breaking import flipped

INTO = SIZES.folder("run", "attempt")
LARGE = st.integers(0, 2**62)


def numbers(values: list[int]) -> pa.Int64Array:
    return pa.array(values, pa.int64())


def record(store: LocalStore, ranges: dict[str, list[int]]) -> list[FactFile]:
    writer = FactWriter(SIZES, store, INTO)
    for range_id, sizes in ranges.items():
        facts_of_ranges.record_sizes(writer, range_id, numbers(sizes))
    writer.put()
    return files_of(store)


def files_of(store: LocalStore) -> list[FactFile]:
    return facts.files_of(SIZES, facts.list_files(store, INTO))


def looked_up(store: LocalStore, wanted: set[str], sizes: list[int]) -> dict[str, bool]:
    """Ranges with facts, each with True if it holds one of the sizes."""
    rows = [
        row
        for batch in facts_of_ranges.look_up_sizes(store, wanted, numbers(sizes), files_of(store))
        for row in batch.to_pylist()
    ]
    assert [row["damage"] for row in rows] == [None] * len(rows)
    return {row["range_id"]: row["holds"] for row in rows}


def by_range(rows: pa.Table) -> dict[str, list[int]]:
    """Sizes by range."""
    names = facts_of_ranges.range_ids_of(rows.schema.metadata)
    pairs = [(row["place"], row["size"]) for row in rows.to_pylist()]
    return {name: [size for place, size in pairs if place == number] for number, name in enumerate(names)}


@contextmanager
def small_files(sizes_of_a_file: int, sizes_of_a_block: int, read_whole: int) -> Iterator[None]:
    """Files of few sizes, in small blocks, which are read in parts."""
    small = replace(SIZES, rows_of_group=sizes_of_a_block)
    with ExitStack() as stack:
        for module, name, value in (
            (facts, "_VALUES_OF_A_FILE", sizes_of_a_file),
            (facts, "_READ_WHOLE", read_whole),
            (facts_of_ranges, "SIZES", small),
            (sys.modules[__name__], "SIZES", small),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.integers(0, 20) | LARGE)),
    st.lists(st.integers(0, 20) | LARGE),
    st.sets(st.sampled_from("abcdefghijk")),
    st.integers(1, 10),
    st.integers(1, 5),
    st.sampled_from([0, 256 * 1024]),
)
@settings(max_examples=40, deadline=None)
def test_a_range_holds_a_size_exactly_where_an_entry_has_it(
    ranges: dict[str, list[int]], sizes: list[int], wanted: set[str], of_a_file: int, of_a_block: int, whole: int
) -> None:
    with TemporaryDirectory() as folder, small_files(of_a_file, of_a_block, whole):
        store = LocalStore(Path(folder))
        for file in record(store, ranges):
            assert (
                by_range(facts.read(SIZES, store, file)).items()
                <= {name: sorted(set(own)) for name, own in ranges.items()}.items()
            )
        assert looked_up(store, wanted, sizes) == {
            range_id: not set(own).isdisjoint(sizes) for range_id, own in ranges.items() if range_id in wanted
        }


@given(st.lists(st.dictionaries(st.sampled_from("abcdefgh"), st.just([])), max_size=4), st.data())
def test_joined_facts_say_what_each_says(parts: list[dict[str, list[int]]], data: st.DataObject) -> None:
    """All facts about a range are equal."""
    truth = {
        name: data.draw(st.lists(st.integers(0, 9), unique=True)) for name in sorted({*"".join(map("".join, parts))})
    }
    joined = SIZES.join([joined_facts({name: truth[name] for name in part}) for part in parts])
    assert by_range(joined) == {name: sorted(sizes) for name, sizes in truth.items()}
    assert joined.column("size").to_pylist() == sorted(joined.column("size").to_pylist())


def joined_facts(ranges: dict[str, list[int]]) -> pa.Table:
    """The facts of a task that reads these ranges."""
    each = [
        facts_of_ranges.size_facts([name], np.array(sizes, np.int64), np.zeros(len(sizes), np.int32))
        for name, sizes in ranges.items()
    ]
    return SIZES.join(each)


def test_of_a_large_file_only_blocks_are_read_that_can_have_a_size(tmp_path: Path) -> None:
    class Watched(LocalStore):
        def get(self, key: str) -> bytes:
            read.append((key, 0, 0))
            return super().get(key)

        def get_part(self, key: str, start: int, end: int) -> bytes:
            read.append((key, start, end))
            return super().get_part(key, start, end)

    read: list[tuple[str, int, int]] = []
    store = Watched(tmp_path)
    ranges = {f"{number:064x}": [*range(number, 100_000, 4)] for number in range(4)}
    with small_files(1_000_000, 1_000, 0):
        (file,) = record(store, ranges)
        read.clear()
        reported = looked_up(store, {*ranges}, [40_002, 90_003])
        assert [reported[name] for name in ranges] == [False, False, True, True]
        (end_of_file, *blocks) = read
        assert end_of_file == (file.key, file.length - file.end, file.length)
        assert len(blocks) == 2 and sum(end - start for _, start, end in blocks) * 20 < file.length
        read.clear()
        assert looked_up(store, {*ranges}, [*range(0, 100_000, 4)])[f"{1:064x}"] is False
        assert read[1:] == [(file.key, 0, 0)], "most blocks are asked for: one request is cheaper"


def test_what_is_noted_again_is_the_same_file(tmp_path: Path) -> None:
    """A task may run twice."""
    ranges: dict[str, list[int]] = {"a": [3, 1, 3], "b": []}
    (first,) = record(LocalStore(tmp_path), ranges)
    assert record(LocalStore(tmp_path), ranges) == [first]
    assert first.values == 2


def test_files_of_other_versions_are_left_alone(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    (file,) = record(store, {"a": [1]})
    other = file.key.replace(f"/{SIZES.version}-", "/1-")
    store.put(other, store.get(file.key))
    store.put(file.key.replace(".parquet", ".sizes"), store.get(file.key))
    store.put(f"{INTO}notes.txt", b"")
    reported: list[str] = []
    assert facts.files_of(SIZES, facts.list_files(store, facts.ROOT), reported.append) == [file]
    assert reported == [other]


def test_nothing_recorded_is_no_file(tmp_path: Path) -> None:
    assert record(LocalStore(tmp_path), {}) == []


class TestDamage:
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path)

    def reported(self, store: LocalStore, file: FactFile) -> str:
        (batch,) = facts_of_ranges.look_up_sizes(store, {"a"}, numbers([1]), [file])
        (row,) = batch.to_pylist()
        assert (row["range_id"], row["holds"]) == (None, None)
        with pytest.raises(CorruptFile):
            facts.read(SIZES, store, file)
        return str(row["damage"])

    def test_of_a_file_that_is_gone_nothing_is_known(self, store: LocalStore) -> None:
        (file,) = record(store, {"a": [1]})
        store.delete([file.key])
        assert "missing" in self.reported(store, file)

    @pytest.mark.parametrize("whole", [0, 256 * 1024])
    def test_a_flipped_bit_is_noticed_wherever_it_is_read(self, store: LocalStore, whole: int) -> None:
        with small_files(100, 2, whole):
            (file,) = record(store, {"a": [1, 5, 9], "b": [2]})
            data, held = store.get(file.key), looked_up(store, {"a", "b"}, [9])
            noticed = 0
            for place in range(0, len(data), 11):
                store.put(file.key, flipped(data, place))
                with pytest.raises(CorruptFile):
                    facts.read(SIZES, store, file)
                (batch,) = facts_of_ranges.look_up_sizes(store, {"a", "b"}, numbers([9]), [file])
                rows = batch.to_pylist()
                if rows[0]["damage"]:
                    noticed += 1
                else:
                    assert {row["range_id"]: row["holds"] for row in rows} == held
            assert noticed > file.end // 11 - 1

    def test_a_file_that_was_cut_off_or_is_another_one(self, store: LocalStore) -> None:
        (file,) = record(store, {"a": [1, 2]})
        other = facts.put(SIZES, store, INTO, joined_facts({"a": [3]}))
        for data in (store.get(file.key)[:-1], b"", store.get(other)):
            store.put(file.key, data)
            assert "changed after it was written" in self.reported(store, file)


@given(st.lists(st.integers(0, 9_000_000)))
def test_files_become_one_while_none_is_larger_than_those_before_it(sizes: list[int]) -> None:
    files = [FactFile(f"{place:04}", 1, size, 1, "") for place, size in enumerate(sizes)]
    groups, most = facts.group(files), facts._VALUES_OF_A_FILE
    assert sorted(file.key for each in groups for file in each) == [file.key for file in files]
    assert all(len(each) == 1 or sum(file.values for file in each) <= most for each in groups)
    for before, after in pairwise(groups):
        total = sum(file.values for file in before)
        assert after[0].values > total or total + after[0].values > most
