from collections.abc import Iterator, Set
from typing import cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.tables import IdSet, lacking

DIGESTS = st.one_of(
    st.binary(min_size=32, max_size=32),
    # Zeros at the ends and in the middle, where fixed-width texts are easily truncated.
    st.lists(st.sampled_from([b"\0", b"\1", b"\xff"]), min_size=32, max_size=32).map(b"".join),
    st.integers(0, 32).map(lambda zeros: b"a" * (32 - zeros) + bytes(zeros)),
).map(bytes.hex)
OTHERS = st.sampled_from(["", "a", "a" * 63, "a" * 65, "A" * 64, "g" * 64, "\u0661" * 64, "a" * 63 + "\n", "\0" * 64])
IDS = st.sets(st.one_of(DIGESTS, OTHERS), max_size=40)


@pytest.fixture(autouse=True, scope="module")
def few_at_once() -> Iterator[None]:
    """Processes sets of a few ids in several parts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "_AT_ONCE", 7)
        yield


@given(IDS, IDS)
def test_it_is_a_set(ids: set[str], others: set[str]) -> None:
    found: Set[str] = IdSet([*ids, *ids])
    assert len(found) == len(ids)
    assert found == ids and ids == found and set(found) == ids
    assert (found == IdSet(others)) is (ids == others)
    assert all(name in found for name in ids)
    assert [name for name in others if name in found] == [name for name in others if name in ids]
    assert object() not in cast(Set[object], found)


@given(IDS, st.lists(st.one_of(DIGESTS, OTHERS)))
def test_what_it_lacks_is_reported_in_order(ids: set[str], asked: list[str]) -> None:
    mixed = [*asked, *sorted(ids), *asked]
    lacks = [name for name in mixed if name not in ids]
    assert lacking(IdSet(ids), mixed) == lacking(frozenset(ids), mixed) == lacks


@given(IDS, st.lists(st.one_of(DIGESTS, OTHERS)), st.integers(0, 9))
def test_part_of_a_column_is_as_good_as_a_column(ids: set[str], asked: list[str], start: int) -> None:
    column = pa.array([*asked, *sorted(ids), *asked], pa.string()).slice(start)
    assert set(IdSet.of_columns([column])) == set(column.to_pylist())
    assert IdSet(ids).lacks(column).tolist() == [name not in ids for name in column.to_pylist()]


@given(st.lists(DIGESTS, max_size=9), st.integers(0, 9), st.integers(0, 9))
def test_digests_are_those_of_the_names_in_a_column_and_not_of_those_before_it(
    names: list[str], start: int, length: int
) -> None:
    column = pa.array(names, pa.string()).slice(start, length)
    assert tables._as_digests(column).tobytes().hex() == "".join(column.to_pylist())


@given(IDS, IDS)
def test_sets_are_joined(ids: set[str], others: set[str]) -> None:
    for joined in (IdSet(ids) | IdSet(others), IdSet(ids) | frozenset(others), frozenset(ids) | IdSet(others)):
        assert isinstance(joined, IdSet)
        assert set(joined) == ids | others


@given(IDS, IDS)
def test_what_another_set_has_is_taken_away(ids: set[str], others: set[str]) -> None:
    for left in (IdSet(ids) - IdSet(others), IdSet(ids) - others):
        assert set(left) == ids - others
        assert list(left) == list(IdSet(ids - others))


@given(IDS)
def test_it_is_in_order_whatever_it_was_made_of(ids: set[str]) -> None:
    digests = sorted(name for name in ids if len(name) == 64 and not set(name) - set("0123456789abcdef"))
    ordered = [*digests, *sorted(ids - set(digests))]
    assert list(IdSet(sorted(ids, reverse=True))) == IdSet(ids).column().to_pylist() == ordered


def test_a_digest_takes_32_bytes() -> None:
    found = IdSet(f"{number:064x}" for number in range(1000))
    assert sum(each.nbytes for each in vars(found).values() if isinstance(each, np.ndarray)) == 32_000
