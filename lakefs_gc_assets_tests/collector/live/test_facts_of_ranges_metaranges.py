from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.live import facts, facts_of_ranges
from lakefs_gc_assets.collector.live.facts import FactFile
from lakefs_gc_assets.collector.live.facts_of_ranges import METARANGES, METARANGES_LOOKED_UP, NAMED_RANGES
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.breaking import flipped

Named = Mapping[str, Sequence[RangeRecord]]
RECORDS = [
    RangeRecord(name, name.encode(), name.encode() * 2, count, 10 * count) for name in "abcdef" for count in (1, 2)
]
"""Two metaranges may state the same range in different ways, one of which is wrong."""
FOLDER = METARANGES.folder("run", "attempt")
NAMES = st.lists(st.sampled_from(RECORDS), unique=True, max_size=6)


def table(records: Sequence[RangeRecord]) -> pa.Table:
    return pa.table([[getattr(each, name) for each in records] for name in RANGES.names], schema=RANGES)


def rows_of(named: Named) -> pa.Table:
    each = (facts_of_ranges.name_ranges(name, place, table(named[name])) for place, name in enumerate(named))
    return facts_of_ranges.join_runs(pa.concat_tables([NAMED_RANGES.empty_table(), *each]))


def record(store: LocalStore, *files: Named) -> list[FactFile]:
    keys = [facts_of_ranges.put_metaranges(store, FOLDER, rows_of(named)) for named in files]
    return [file for file in files_of(store) if file.key in keys]


def files_of(store: LocalStore) -> list[FactFile]:
    return facts.files_of(METARANGES, facts.list_files(store, METARANGES.root))


def looked_up(store: LocalStore, wanted: set[str]) -> tuple[set[str], set[RangeRecord]]:
    """The metaranges with facts, and their ranges."""
    found = pa.Table.from_batches(
        facts_of_ranges.look_up_metaranges(store, wanted, files_of(store)), METARANGES_LOOKED_UP
    )
    assert found.column("damage").null_count == found.num_rows
    metaranges = found.filter(pc.is_null(found.column("min_key"))).column("id").to_pylist()
    rows = facts_of_ranges.select_ranges(found).to_pylist()
    return set(metaranges), {RangeRecord(**row) for row in rows}


@given(
    st.lists(st.dictionaries(st.sampled_from("mnopqrs"), NAMES), max_size=4),
    st.sets(st.sampled_from("mnopqrst")),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_of_metaranges_that_are_looked_for_all_ranges_are_reported_and_no_others(
    files: list[dict[str, list[RangeRecord]]], wanted: set[str], joined: bool
) -> None:
    with TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        recorded = record(store, *files)
        if joined:
            assert facts.merge(METARANGES, store, METARANGES.folder("next", "attempt"), recorded) == []
        known, ranges = looked_up(store, wanted)
        each = {
            metarange_id: {RangeRecord(**row) for row in rows.to_pylist()}
            for file in files_of(store)
            for metarange_id, rows in facts_of_ranges.split_by_metarange(
                facts_of_ranges.read_metaranges(store, file), wanted
            )
        }
    assert each.keys() == known and all(
        found in [{*named[name]} for named in files if name in named] for name, found in each.items()
    )
    assert known == {name for named in files for name in named if name in wanted}
    assert ranges == {record for named in files for name in named if name in wanted for record in named[name]}


@given(st.lists(NAMES, max_size=8), st.integers(1, 8))
@settings(max_examples=30, deadline=None)
def test_a_range_has_a_row_for_each_run_however_the_work_was_cut(lists: list[list[RangeRecord]], size: int) -> None:
    each = [facts_of_ranges.name_ranges(f"m{place}", place, table(records)) for place, records in enumerate(lists)]
    groups = [pa.concat_tables(each[start : start + size]) for start in range(0, len(each), size)]
    joined = NAMED_RANGES.empty_table()
    for group in groups:
        joined = facts_of_ranges.join_runs(pa.concat_tables([joined, group]))
    runs = {
        (record, first, last)
        for record in RECORDS
        for first, held in enumerate(lists)
        if record in held and not (first and record in lists[first - 1])
        for last in [next((end for end in range(first, len(lists)) if record not in lists[end]), len(lists)) - 1]
    }
    found = joined.filter(pc.is_valid(joined.column("min_key"))).to_pylist()
    reported = [(RangeRecord(*[row[name] for name in RANGES.names]), row["first"], row["last"]) for row in found]
    assert (set(reported), len(reported)) == (runs, len(runs))
    metaranges = joined.filter(pc.is_null(joined.column("min_key"))).to_pylist()
    assert sorted((row["id"], row["first"], row["last"], row["count"]) for row in metaranges) == [
        (f"m{place}", place, place, len(records)) for place, records in enumerate(lists)
    ]


def test_commits_that_follow_each_other_take_few_rows() -> None:
    """Each names twenty ranges, and replaces one range of the previous one."""
    records = [RangeRecord(f"{number:064x}", b"a", b"b", 1, 1) for number in range(120)]
    named = {f"m{place}": records[place : place + 20] for place in range(100)}
    assert rows_of(named).num_rows == 100 + 119


def test_what_is_noted_again_is_the_same_file(tmp_path: Path) -> None:
    """A task may run twice."""
    named = {"m": RECORDS[:3], "n": RECORDS[1:4]}
    assert len({*record(LocalStore(tmp_path), named, named)}) == 1


class TestDamage:
    """If anything is wrong with a file, none of its metaranges counts as known."""

    NAMED: ClassVar[Named] = {"m": RECORDS[:1], "n": [RECORDS[0], RECORDS[2]], "o": RECORDS[2:3], "p": []}

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        return LocalStore(tmp_path)

    @pytest.fixture
    def file(self, store: LocalStore) -> FactFile:
        (file,) = record(store, self.NAMED)
        return file

    def reported(self, store: LocalStore, file: FactFile) -> str:
        rows = [
            row for batch in facts_of_ranges.look_up_metaranges(store, {*"mnop"}, [file]) for row in batch.to_pylist()
        ]
        assert len(rows) == 1
        (row,) = rows
        damage = row.pop("damage")
        assert set(row.values()) == {None}
        return str(damage)

    def test_a_file_that_is_gone(self, store: LocalStore, file: FactFile) -> None:
        store.delete([file.key])
        assert "missing" in self.reported(store, file)

    def test_a_flipped_bit_anywhere(self, store: LocalStore, file: FactFile) -> None:
        whole = store.get(file.key)
        for place in range(0, len(whole), 17):
            store.put(file.key, flipped(whole, place))
            assert "changed after it was written" in self.reported(store, file)

    @pytest.mark.parametrize(
        "wrong",
        [
            lambda rows: [row for row in rows if row["id"] != "b"],
            lambda rows: [row for row in rows if row["id"] != "a"],
            lambda rows: [row for row in rows if row["id"] != "n"],
            lambda rows: [*rows, {**rows[-1], "id": "e", "min_key": b"e", "max_key": b"e"}],
            lambda rows: [{**row, "last": row["first"]} if row["id"] == "a" else row for row in rows],
            lambda rows: [{**row, "first": 0} if row["id"] == "b" else row for row in rows],
            lambda rows: [{**row, "id": "c"} if row["id"] == "b" else row for row in rows],
            lambda rows: [{**row, "last": 9} if row["id"] == "b" else row for row in rows],
            lambda rows: [{**row, "first": -1} if row["id"] == "a" else row for row in rows],
            lambda rows: [{**row, "first": 2, "last": 1} if row["id"] == "b" else row for row in rows],
            lambda rows: [{**row, "first": 1, "last": 1} if row["id"] == "o" else row for row in rows],
        ],
    )
    def test_rows_that_do_not_fit_what_was_noted_of_each_metarange(
        self, store: LocalStore, wrong: Callable[[list[dict[str, object]]], list[dict[str, object]]]
    ) -> None:
        rows = pa.Table.from_pylist(wrong(rows_of(self.NAMED).to_pylist()), NAMED_RANGES)
        with pytest.raises(CorruptFile, match="metaranges"):
            facts_of_ranges.put_metaranges(store, FOLDER, rows)
        key = facts.put(METARANGES, store, FOLDER, rows)
        (file,) = (each for each in files_of(store) if each.key == key)
        assert "metaranges" in self.reported(store, file)

    def test_fewer_rows_than_the_name_says(self, store: LocalStore, file: FactFile) -> None:
        (other,) = record(store, {"m": []})
        assert "its name says 6" in self.reported(store, replace(other, values=file.values))
