import pickle
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import HashSet, distinct

NAMES = st.text(max_size=80) | st.text(st.sampled_from("ab/é\x00\U0001f5d1"), max_size=3)
ADDRESSES = st.lists(NAMES, max_size=50)
FEW_HASHES = st.lists(st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1, 2**64 - 2]) | st.integers(0, 2**64 - 1))


def numbers(values: list[int]) -> hashing.Hashes:
    return np.array(values, np.uint64)


@pytest.mark.parametrize(
    ("text", "seed", "expected"),
    [
        # From the vectors of xxHash's own sanity check (seed 0) and from its documentation.
        ("", 0, 0xEF46DB3751D8E999),
        ("a", 0, 0xD24EC4F1A98C6E5B),
        ("abc", 0, 0x44BC2CF5AD770999),
        ("Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_hashes_are_those_of_the_specification(text: str, seed: int, expected: int) -> None:
    assert hashing.hashes(pa.array([text]), seed).tolist() == [expected]


@given(ADDRESSES, st.integers(0, 5), st.integers(0, 5))
def test_a_slice_of_an_array_hashes_as_its_strings(addresses: list[str], before: int, after: int) -> None:
    end = max(before, len(addresses) - after)
    part = pa.array(addresses, pa.string()).slice(before, end - before)

    alone = [hashing.hashes(pa.array([text], pa.string()))[0] for text in part.to_pylist()]

    assert hashing.hashes(part).tolist() == alone


def test_an_address_that_is_null_has_no_hash() -> None:
    with pytest.raises(ValueError, match="null"):
        hashing.hashes(pa.array(["a", None]))


@given(FEW_HASHES, FEW_HASHES)
def test_a_hash_is_among_others_or_not(wanted: list[int], others: list[int]) -> None:
    expected = [value in others for value in wanted]

    assert hashing.among(numbers(wanted), numbers(others)).tolist() == expected
    found = HashSet.from_hashes(numbers(others))
    assert found.has(numbers(wanted)).tolist() == expected
    met = np.zeros(len(found.ordered), np.bool_)
    for some in (wanted[::2], wanted[1::2]):
        found.mark(numbers(some), met)
    assert found.ordered[met].tolist() == sorted({*others}.intersection(wanted))


@given(st.integers(0, 2**64 - 1), st.integers(0, 64), st.lists(st.integers(0, 2**64 - 1), max_size=200))
def test_hashes_of_any_width_are_found(least: int, bits: int, offsets: list[int]) -> None:
    values = [least + offset % (min(2**bits, 2**64 - least)) for offset in offsets]
    near = [value + by for value in values for by in (-1, 0, 1) if 0 <= value + by < 2**64]

    found = HashSet.from_hashes(numbers(values))

    assert found.has(numbers(near)).tolist() == [value in {*values} for value in near]
    assert len(found.starts) <= len({*values}) + 1
    # Tasks get a pickled copy.
    assert pickle.loads(pickle.dumps(found)).has(numbers(near)).tolist() == found.has(numbers(near)).tolist()


@given(st.sets(st.integers(0, 300)), st.sets(st.integers(0, 300)))
def test_hashes_in_one_span_are_found(values: set[int], wanted: set[int]) -> None:
    """A hash far away makes spans so wide that one span has all other hashes."""
    found = HashSet.from_hashes(numbers([*values, 2**64 - 1]))
    assert found.has(numbers([*wanted])).tolist() == [value in values for value in wanted]


@given(FEW_HASHES, st.integers(1, 300))
def test_every_hash_belongs_to_one_of_the_parts(values: list[int], count: int) -> None:
    parts = hashing.parts(numbers(values), count)

    assert all(0 <= part < count for part in parts)
    assert sorted(zip(values, parts.tolist(), strict=True)) == list(
        zip(sorted(values), sorted(parts.tolist()), strict=True)
    )


@given(ADDRESSES)
def test_the_first_of_each_address_is_reported(addresses: list[str]) -> None:
    array = pa.array(addresses, pa.string())

    first = hashing.first_of_each(array, hashing.hashes(array))

    assert first.tolist() == [text not in addresses[:place] for place, text in enumerate(addresses)]


@given(ADDRESSES, st.data())
def test_addresses_of_the_same_hash_are_told_apart(addresses: list[str], data: st.DataObject) -> None:
    few = st.lists(st.integers(0, 1), min_size=len(addresses), max_size=len(addresses))
    of = dict(zip(addresses, data.draw(few), strict=True))
    same = numbers([of[text] for text in addresses])

    first = hashing.first_of_each(pa.array(addresses, pa.string()), same)

    assert first.tolist() == [text not in addresses[:place] for place, text in enumerate(addresses)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 7))))
def test_addresses_are_counted_by_their_sets(rows: list[tuple[int, int, int]]) -> None:
    one, other, bits = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])

    counts = hashing.count_by_sets(numbers(one), numbers(other), np.array([1 << bit for bit in bits], np.uint8))

    sets: dict[tuple[int, int], int] = {}
    for key, another, bit in rows:
        sets[key, another] = sets.get((key, another), 0) | 1 << bit
    assert {place: count for place, count in enumerate(counts.tolist()) if count} == Counter(sets.values())


@given(ADDRESSES, st.integers(0, 5))
def test_strings_of_another_type_hash_and_compare_as_the_same_strings(addresses: list[str], before: int) -> None:
    """Spark can be configured to use the large string type."""
    usual, large = (pa.array(addresses, kind).slice(before) for kind in (pa.string(), pa.large_string()))
    of = hashing.hashes(usual)

    assert hashing.hashes(large).tolist() == of.tolist()
    assert hashing.first_of_each(large, of).tolist() == hashing.first_of_each(usual, of).tolist()


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)))
def test_integers_each_once_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted({*values})


@given(st.lists(st.binary(min_size=2, max_size=2)))
def test_bytes_each_once_in_order(values: list[bytes]) -> None:
    assert distinct(np.array(values, "S2")).tolist() == sorted({value.rstrip(b"\x00") for value in values})
