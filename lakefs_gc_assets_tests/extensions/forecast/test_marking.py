import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.extensions.forecast import marking
from lakefs_gc_assets.extensions.forecast.marking import HELD, HELD_RANGES, SUMS

WIDTH = 16
BITS = st.integers(0, 2 ** (8 * WIDTH) - 1)
FIRST = datetime(2026, 11, 1, tzinfo=UTC)

ROWS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.booleans(), st.integers(0, 3), st.integers(0, 3), BITS), max_size=30
)


def row(address: str, certain: bool, days: int, size: int, bits: int) -> dict[str, Any]:
    reported = {"last_modified": FIRST + timedelta(days=days), "size": size} if certain else {}
    return {"address": address, "certain": certain, "held": bits.to_bytes(WIDTH, "little"), **reported}


def table(rows: list[Any]) -> pa.Table:
    return pa.Table.from_pylist([row(*each) for each in rows], schema=HELD)


@given(ROWS, st.integers(0, 2**32))
def test_an_address_has_the_bits_of_all_its_rows_and_the_facts_of_the_youngest(rows: list[Any], seed: int) -> None:
    found = {each["address"]: each for each in marking.unite(table(rows)).to_pylist()}
    assert found.keys() == {address for address, *_ in rows}
    for address, each in found.items():
        mine = [other for other in rows if other[0] == address]
        bits = 0
        for *_, more in mine:
            bits |= more
        assert int.from_bytes(each["held"], "little") == bits
        youngest = max(((days, size) for _, certain, days, size, _ in mine if certain), default=None)
        assert each["certain"] == (youngest is not None)
        if youngest is not None:
            assert (each["last_modified"], each["size"]) == (FIRST + timedelta(days=youngest[0]), youngest[1])
    # The result does not depend on rows that tasks united before.
    random.Random(seed).shuffle(rows)
    halves = [marking.unite(table(half)) for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :])]
    again = marking.unite(pa.concat_tables(halves))
    assert sorted(again.to_pylist(), key=lambda each: str(each["address"])) == sorted(
        found.values(), key=lambda each: str(each["address"])
    )


@given(st.lists(BITS, max_size=10), BITS, st.integers(0, 3))
def test_rows_by_their_bits(rows: list[int], wanted: int, skipped: int) -> None:
    whole = table([("a", True, 0, 0, bits) for bits in rows])
    batch = pa.concat_batches(whole.to_batches()) if rows else pa.RecordBatch.from_pylist([], schema=HELD)
    batch, rows = batch.slice(skipped), rows[skipped:]
    asked = marking.as_bytes(wanted, WIDTH)
    assert marking.lacks_some(asked, batch).to_pylist() == [bits & wanted != wanted for bits in rows]
    added = [held for each in marking.add_bits(asked, [batch]) for held in each.column("held").to_pylist()]
    assert [int.from_bytes(held, "little") for held in added] == [bits | wanted for bits in rows]


@given(ROWS)
def test_objects_are_counted_by_their_bits(rows: list[Any]) -> None:
    certain = [each for each in rows if each[1]]
    batches = [batch for each in (certain[:5], certain[5:]) for batch in table(each).to_batches()]
    found = pa.Table.from_batches(marking.count(batches), SUMS).to_pylist()
    assert len({each["held"] for each in found}) == len(found)
    for each in found:
        sizes = [size for *_, size, bits in certain if bits.to_bytes(WIDTH, "little") == each["held"]]
        assert (each["objects"], each["bytes"]) == (len(sizes), sum(sizes))
    assert sum(each["objects"] for each in found) == len(certain)


@given(ROWS, st.integers(0, 2 ** (8 * WIDTH) - 1))
def test_what_stays_in_all_scenarios_is_only_counted(rows: list[Any], every: int) -> None:
    whole = marking.unite(table(rows))
    found = marking.settle(marking.as_bytes(every, WIDTH), whole)
    certain = [each for each in whole.to_pylist() if each["certain"]]
    going = [each for each in certain if int.from_bytes(each["held"], "little") & every != every]
    assert [each for each in found.to_pylist() if each["address"]] == [{**each, "objects": 1} for each in going]
    sums = [each for each in found.to_pylist() if not each["address"]]
    assert len({each["held"] for each in sums}) == len(sums) <= len(certain) - len(going)
    batches = [batch for each in (found[:2], found[2:]) for batch in each.to_batches()]
    counted = pa.Table.from_batches(marking.count(batches), SUMS).sort_by("held")
    plainly = pa.table(whole.filter(whole.column("certain"))).to_batches()
    assert counted.equals(pa.Table.from_batches(marking.count(plainly), SUMS).sort_by("held"))


RANGES_HELD = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 2), BITS), max_size=20)


def held_ranges(rows: list[Any]) -> pa.Table:
    reported = [
        {"id": id_, "min_key": b"a", "max_key": b"z", "count": count, "estimated_size": 0, "held": bits}
        for id_, count, bits in ((*each[:2], marking.as_bytes(each[2], WIDTH)) for each in rows)
    ]
    return pa.Table.from_pylist(reported, schema=HELD_RANGES)


def bits_by_range(ranges: pa.Table) -> dict[tuple[str, int], int]:
    found = {(row["id"], row["count"]): int.from_bytes(row["held"], "little") for row in ranges.to_pylist()}
    assert len(found) == ranges.num_rows
    return found


@given(RANGES_HELD, st.integers(0, 20), st.sets(st.sampled_from("abcdef")), BITS)
def test_a_range_has_the_bits_of_all_that_name_it(rows: list[Any], cut: int, among: set[str], more: int) -> None:
    """Two counts for one id are two ranges, one of which cannot be read."""
    expected = dict[tuple[str, int], int]()
    for id_, count, bits in rows:
        expected[id_, count] = expected.get((id_, count), 0) | bits
    parts = [marking.unite_ranges(held_ranges(part)) for part in (rows[:cut], rows[cut:])]
    found = marking.unite_ranges(pa.concat_tables(parts))
    assert bits_by_range(found) == expected
    assert marking.entries_of(found) == sum(count for _, count in expected)
    added = marking.add_bits_where(found, pa.chunked_array([sorted(among)], pa.string()), marking.as_bytes(more, WIDTH))
    assert bits_by_range(added) == {
        (id_, count): bits | more if id_ in among else bits for (id_, count), bits in expected.items()
    }


def test_rows_with_bits_of_different_lengths_are_an_error() -> None:
    with pytest.raises(pa.ArrowInvalid):
        marking.words_of(pa.array([b"12345678", b"1"], pa.binary()))
