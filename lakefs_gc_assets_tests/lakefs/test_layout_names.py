from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets_tests.lakefs.test_layout import MADE_BY_LAKEFS, MADE_BY_OTHERS, NOT_ITS_DATA

SIZES: tuple[WindowSize, ...] = ("month", "day", "hour", "slice")
XIDS = st.binary(min_size=12, max_size=12).map(layout.encode_xid)
SLICES = st.sampled_from([layout.encode_xid(bytes([byte]) * 12) for byte in (0, 1, 127, 200, 255)]) | XIDS
SIGNATURE = ",LUas8wrQe8Hzoq3Ux5a4TOJhAC6mWEfg4QyauNaM7XQ"
SUFFIXES = st.sampled_from(["", "", SIGNATURE, ".multipart", ".part_00001", ".part_00033_1", ".part_10001"])
USUAL = st.builds(lambda slice_name, xid, end: f"data/{slice_name}/{xid}{end}", SLICES, XIDS, SUFFIXES)
SHARDED = USUAL.map(lambda address: address.replace("data/", "data/!ab/c/"))
FIXED = st.sampled_from([address for address, _ in MADE_BY_LAKEFS] + MADE_BY_OTHERS + NOT_ITS_DATA)
ODD = st.text(max_size=30) | st.text(max_size=12).map(lambda text: "data/" + text)
SPOILT = st.builds(lambda usual, end: usual + end, USUAL, st.text(min_size=1, max_size=2))
ADDRESSES = st.lists(USUAL | SHARDED | FIXED | ODD | SPOILT, max_size=12)


def one_by_one(addresses: list[str], size: WindowSize) -> list[tuple[Any, ...]]:
    found = [layout.parse(address) for address in addresses]
    return [(name.layout.value, name.slice, layout.window(name.slice, size), name.issued_at) for name in found]


def at_once(addresses: pa.StringArray, size: WindowSize) -> list[tuple[Any, ...]]:
    found = layout.read_names(addresses, size)
    columns = (found.layouts, found.slices, found.windows, found.issued_at)
    assert [column.type for column in columns] == [pa.string(), pa.string(), pa.string(), pa.timestamp("us", "UTC")]
    assert [len(column) for column in columns] == [len(addresses)] * 4
    seconds = [None if time is None else int(time.timestamp()) for time in found.issued_at.to_pylist()]
    return list(zip(*(column.to_pylist() for column in columns[:3]), seconds, strict=True))


@given(ADDRESSES, st.sampled_from(SIZES))
def test_whole_columns_say_what_single_names_say(addresses: list[str], size: WindowSize) -> None:
    assert at_once(pa.array(addresses, pa.string()), size) == one_by_one(addresses, size)


@given(st.lists(USUAL, max_size=12), st.sampled_from(SIZES))
def test_columns_of_usual_names_alone(addresses: list[str], size: WindowSize) -> None:
    assert at_once(pa.array(addresses, pa.string()), size) == one_by_one(addresses, size)


@given(ADDRESSES, st.lists(USUAL, max_size=8), st.data())
def test_parts_of_a_column(addresses: list[str], usual: list[str], data: st.DataObject) -> None:
    for whole in (addresses, usual):
        start = data.draw(st.integers(0, len(whole)))
        length = data.draw(st.integers(0, len(whole) - start))
        part = pa.array(whole, pa.string()).slice(start, length)
        assert at_once(part, "hour") == one_by_one(whole[start : start + length], "hour")


def test_an_empty_column() -> None:
    assert at_once(pa.array([], pa.string()), "month") == []


@pytest.mark.parametrize("others", [[], [MADE_BY_LAKEFS[0][0]], ["odd"], [MADE_BY_LAKEFS[0][0], "odd"]])
def test_a_missing_address_is_an_error(others: list[str]) -> None:
    for addresses in ([None, *others], [*others, None]):
        with pytest.raises(ValueError, match="null"):
            layout.read_names(pa.array(addresses, pa.string()), "month")
