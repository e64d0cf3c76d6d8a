from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.live import live_files
from lakefs_gc_assets.collector.live.live_files import REQUEST_WEIGHT, RangeRecords, pack, unpack, weight_of
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets_tests.runs.made_ranges import range_records

RECORDS = st.lists(
    st.builds(
        RangeRecord,
        st.integers(0, 30).map(lambda number: f"{number:064x}") | st.text("odd ", max_size=3),
        st.binary(max_size=4),
        st.binary(max_size=4),
        st.integers(0, 10**9),
        st.integers(0, 10**9),
    ),
    max_size=40,
)
in_parts = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_files, "_AT_ONCE", 7)


@in_parts
@given(RECORDS)
def test_are_reported_as_they_were_in_order(records: list[RangeRecord]) -> None:
    found = range_records(records)
    places = [(record.min_key, record.id) for record in found]
    assert places == sorted((record.min_key, record.id) for record in records)
    assert sorted(found, key=repr) == sorted(records, key=repr)
    assert len(found) == len(records)
    assert set(found.ids) == {record.id for record in records}
    assert found.entries == sum(record.count for record in records)


@in_parts
@given(RECORDS, st.integers(1, 5))
def test_rows_in_any_chunks_and_order_of_columns_are_the_same(records: list[RangeRecord], rows: int) -> None:
    whole = range_records(records)
    table = whole.rows.cast(nullable(RANGES)).select(RANGES.names[::-1])
    cut = [table.slice(start, rows) for start in range(0, len(records), rows)]
    assert RangeRecords.of_rows(pa.concat_tables([table.slice(0, 0), *cut])) == whole


def test_rows_without_an_id_are_refused() -> None:
    rows = pa.Table.from_pylist([{"min_key": b"a", "max_key": b"b", "count": 1, "estimated_size": 1}], nullable(RANGES))
    with pytest.raises(ValueError, match="null"):
        RangeRecords.of_rows(rows)


@in_parts
@given(RECORDS, st.data())
def test_those_that_are_known_are_left_out(records: list[RangeRecord], data: st.DataObject) -> None:
    names = sorted({record.id for record in records})
    known = data.draw(st.sets(st.sampled_from([*names, "f" * 64])))
    whole = range_records(records)
    for ids in (known, IdSet(known)):
        assert list(whole.without(ids)) == [record for record in whole if record.id not in known]


def test_where_none_is_known_nothing_is_copied() -> None:
    records = range_records([RangeRecord("a" * 64, b"a", b"b", 1, 1)])
    assert records.without({"b" * 64}) is records


def test_two_statements_about_one_range_stay_two() -> None:
    one, other = (RangeRecord("a" * 64, b"a", b"b", count, 1) for count in (1, 2))
    assert set(range_records([one, other])) == {one, other}
    assert len(range_records([one, other]).ids) == 1


@in_parts
@given(RECORDS, st.integers(1, 9))
def test_tasks_have_each_range_once_and_neighbours(records: list[RangeRecord], tasks: int) -> None:
    found = range_records(records)
    groups = [list(unpack(packed)) for packed in pack(found.rows, tasks)]
    assert len(groups) <= tasks and all(groups)
    assert [record for group in groups for record in group] == list(found)


def test_tasks_read_about_the_same_number_of_entries() -> None:
    records = [RangeRecord(f"{number:064x}", b"%4d" % number, b"", number % 7 * 9_000, 0) for number in range(700)]
    weights = [sum(map(weight_of, unpack(packed))) for packed in pack(range_records(records).rows, 7)]
    assert len(weights) == 7
    assert max(weights) - min(weights) <= 2 * (REQUEST_WEIGHT + 54_000)


def test_ranges_of_few_entries_take_a_request_each() -> None:
    counts = [2 * REQUEST_WEIGHT, *[0] * 10]
    records = [RangeRecord(f"{place:064x}", b"%2d" % place, b"", count, 0) for place, count in enumerate(counts)]
    assert [len([*unpack(packed)]) for packed in pack(range_records(records).rows, 2)] == [4, 7]


def test_a_task_has_none_but_its_own() -> None:
    records = range_records(
        RangeRecord(f"{number:064x}", b"%9d" % number, b"%9d" % number, 1, 0) for number in range(1_000)
    )
    (whole,) = pack(records.rows, 1)
    assert max(map(len, pack(records.rows, 100))) < len(whole) / 10


def spans(bounds: list[int], name: str) -> RangeRecords:
    """A range from each bound to the next one."""
    return range_records(
        RangeRecord(f"{name}{start:03}", b"%03d" % start, b"%03d" % (end - 1), 1, 1)
        for start, end in pairwise(sorted({*bounds}))
    )


@in_parts
@given(st.lists(st.integers(0, 60), max_size=12), st.lists(st.integers(0, 60), max_size=6))
def test_of_ranges_of_one_branch_those_cover_others_that_have_their_keys(own: list[int], theirs: list[int]) -> None:
    live, dead = spans(own, "l"), spans(theirs, "d")

    chosen = live.covering(dead)

    expected = {
        each.id
        for other in dead
        for each in [each for each in live if each.min_key <= other.max_key and other.min_key <= each.max_key][:4]
    }
    assert {*chosen.ids} == expected


@in_parts
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6),
)
def test_of_any_ranges_some_cover_others(own: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> None:
    live, dead = (
        range_records(
            RangeRecord(f"{name}{number:03}", b"%03d" % min(keys), b"%03d" % max(keys), 1, 1)
            for number, keys in enumerate(each)
        )
        for name, each in (("l", own), ("d", theirs))
    )

    chosen = live.covering(dead)

    assert {*chosen.ids} <= {*live.ids} and len(chosen) <= 4 * len(dead)
    for each in chosen:
        assert any(each.min_key <= other.max_key and other.min_key <= each.max_key for other in dead)
    # A version with the same keys is always found.
    same = {(each.min_key, each.max_key) for each in live} & {(each.min_key, each.max_key) for each in dead}
    for least, greatest in same:
        assert any(each.min_key <= greatest and least <= each.max_key for each in chosen)
