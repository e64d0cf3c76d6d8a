import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import LEGACY_WINDOW, Layout, Name, WindowSize
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, needs_recordings

SLICE = "g4uk6erfnfus73frbnqg"
SLICE_CREATED = 1_762_770_885
OBJECT = "dc0n8tpksdu988af5sdg"
SIGNATURE = "LUas8wrQe8Hzoq3Ux5a4TOJhAC6mWEfg4QyauNaM7XQ"
RAW = st.binary(min_size=12, max_size=12).map(layout.encode_xid)

MADE_BY_LAKEFS = [
    (f"data/{SLICE}/{OBJECT}", Layout.SLICE),
    (f"data/{SLICE}/{OBJECT},{SIGNATURE}", Layout.SLICE),
    (f"data/!ab/c/{SLICE}/{OBJECT}", Layout.SHARDED),
    (f"data/!_-/Z/{SLICE}/{OBJECT},{SIGNATURE}", Layout.SHARDED),
    (f"data/{SLICE}/{OBJECT}.multipart", Layout.SLICE),
    (f"data/{SLICE}/{OBJECT}.part_00001", Layout.SLICE),
    (f"data/{SLICE}/{OBJECT}.part_10000", Layout.SLICE),
    (f"data/{SLICE}/{OBJECT}.part_00033_1", Layout.SLICE),
    (f"data/{SLICE}/{OBJECT}.part_01025_1_2", Layout.SLICE),
    (f"data/!ab/c/{SLICE}/{OBJECT}.part_00001", Layout.SHARDED),
    ("data/repo-main:0b7bf2b6-2d0f-4f6a-9d62-0a7e9d3b2f5e/V1StGXR8_Z5jdHi6B-myT", Layout.TOKEN),
    ("data/repo:repo-main:0b7bf2b6-2d0f-4f6a-9d62-0a7e9d3b2f5e/V1StGXR8_Z5jdHi6B-my", Layout.TOKEN),
    ("d41d8cd98f00b204e9800998ecf8427e", Layout.FLAT),
]

NOT_ITS_DATA = ["_lakefs/dummy", "_lakefs/" + "0" * 64, "_lakefs/", "dummy", "_lakefs/retention/gc/rules/config.json"]

MADE_BY_OTHERS = [
    "",
    "data",
    "data/",
    "_lakefs",
    "dummy2",
    "data/dummy",
    f"/data/{SLICE}/{OBJECT}",
    f"data//{SLICE}/{OBJECT}",
    f"data/{SLICE}//{OBJECT}",
    f"data/{SLICE}/{OBJECT}/",
    f"data/{SLICE}/{OBJECT}/x",
    f"data/{SLICE}/{OBJECT}\n",
    f"data/{SLICE}/{OBJECT}.txt",
    f"data/{SLICE}/{OBJECT.upper()}",
    f"data/{SLICE.upper()}/{OBJECT}",
    f"Data/{SLICE}/{OBJECT}",
    f"x/data/{SLICE}/{OBJECT}",
    f"repo2/data/{SLICE}/{OBJECT}",
    f"data/repo2/data/{SLICE}/{OBJECT}",
    f"data/{SLICE}/{OBJECT[:-1]}1",
    f"data/{SLICE[:-1]}1/{OBJECT}",
    f"data/{SLICE}/{OBJECT},",
    f"data/{SLICE}/{OBJECT},{SIGNATURE[:-1]}",
    f"data/{SLICE}/{OBJECT},{SIGNATURE}x",
    f"data/{SLICE}/{OBJECT},{SIGNATURE[:-1]}=",
    f"data/{SLICE}/{OBJECT}%2C{SIGNATURE}",
    f"data/{SLICE}/{OBJECT}.part",
    f"data/{SLICE}/{OBJECT}.part_",
    f"data/{SLICE}/{OBJECT}.part_1",
    f"data/{SLICE}/{OBJECT}.part_00000",
    f"data/{SLICE}/{OBJECT}.part_10001",
    f"data/{SLICE}/{OBJECT}.part_000001",
    f"data/{SLICE}/{OBJECT}.part_0000\N{ARABIC-INDIC DIGIT ONE}",
    f"data/{SLICE}/{OBJECT}.part_00001_",
    f"data/{SLICE}/{OBJECT}.part_00001_2",
    f"data/{SLICE}/{OBJECT}.part_00001_1_1",
    f"data/{SLICE}/{OBJECT}.part_00001_1_2_3",
    f"data/{SLICE}/{OBJECT}.part_00001\n",
    f"data/{SLICE}/{OBJECT}.part_00001.multipart",
    f"data/{SLICE}/{OBJECT}.multipart_1",
    f"data/{SLICE}/{OBJECT}.MULTIPART",
    f"data/{SLICE}/{OBJECT},{SIGNATURE}.part_00001",
    f"data/{SLICE}/{OBJECT},{SIGNATURE}.multipart",
    f"data/{SLICE}/.part_00001",
    f"data/{SLICE}.multipart",
    f"data/{SLICE}/manual.part_00001",
    f"data/{OBJECT}.part_00001",
    "data/repo:token/V1StGXR8_Z5jdHi6B-myT.part_00001",
    "d41d8cd98f00b204e9800998ecf8427e.multipart",
    f"data/{SLICE}/manual",
    f"data/!abc/c/{SLICE}/{OBJECT}",
    f"data/!ab/cd/{SLICE}/{OBJECT}",
    f"data/ab/c/{SLICE}/{OBJECT}",
    f"data/!ab/c/{SLICE}/x/{OBJECT}",
    "data/repo:token/short",
    "data/repo:token/V1StGXR8_Z5jdHi6B-myT/x",
    "data/repo/V1StGXR8_Z5jdHi6B-myT",
    "data/:token/V1StGXR8_Z5jdHi6B-myT",
    "data/repo:/V1StGXR8_Z5jdHi6B-myT",
    "data/a photo:of us/V1StGXR8_Z5jdHi6B-myT",
    "data/repo:tok\nen/V1StGXR8_Z5jdHi6B-myT",
    "D41D8CD98F00B204E9800998ECF8427E",
    "d41d8cd98f00b204e9800998ecf8427",
    "d41d8cd98f00b204e9800998ecf8427e\n",
    "data/d41d8cd98f00b204e9800998ecf8427e",
    "\N{ARABIC-INDIC DIGIT ZERO}" * 32,
]


@pytest.mark.parametrize(("address", "expected"), MADE_BY_LAKEFS)
def test_names_that_lakefs_makes(address: str, expected: Layout) -> None:
    assert layout.parse(address).layout is expected


@pytest.mark.parametrize("address", NOT_ITS_DATA)
def test_its_own_files_are_no_data(address: str) -> None:
    assert layout.parse(address) == Name(Layout.SPECIAL)


@pytest.mark.parametrize("address", MADE_BY_OTHERS)
def test_names_that_lakefs_never_makes(address: str) -> None:
    assert layout.parse(address) == Name(Layout.UNRECOGNISED)


def composed(target: str, numbers: list[int]) -> set[str]:
    """Names of all helper objects of an upload with these part numbers, as the server's compose.go builds them."""
    parts = [f"{target}.part_{number:05}" for number in numbers]
    names, layer = {f"{target}.multipart", *parts}, 1
    while len(parts) > 32:
        following: list[str] = []
        for start in range(0, len(parts), 32):
            chunk = parts[start : start + 32]
            if len(chunk) == 1 or (len(chunk) < 32 and len(following) + len(chunk) <= 32):
                following += chunk
            else:
                following.append(f"{chunk[0]}_{layer}")
        names.update(following)
        parts, layer = following, layer + 1
    return names


@settings(max_examples=20)
@given(st.integers(0, 10_000) | st.sampled_from([32, 33, 63, 64, 65, 1024, 1025, 1055, 1056, 9_999, 10_000]), st.data())
def test_every_helper_object_of_an_upload_in_parts_is_recognised(parts: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, 10_001 - parts) if parts else st.just(1))
    target = f"data/{SLICE}/{OBJECT}"
    for name in composed(target, list(range(first, first + parts))):
        assert layout.parse(name) == layout.parse(target)


@given(st.text("._0123456789abmprtuil", max_size=22) | st.from_regex(r"\.part_[0-9]{1,6}(_[0-9]){0,3}", fullmatch=True))
def test_no_other_suffix_is_recognised(suffix: str) -> None:
    number, *rounds = suffix.removeprefix(".part_").split("_")
    is_part = suffix.startswith(".part_") and len(number) == 5 and number.isdigit() and 1 <= int(number) <= 10_000
    is_made = suffix in ("", ".multipart") or (is_part and rounds in ([], ["1"], ["1", "2"]))
    assert (layout.parse(f"data/{SLICE}/{OBJECT}{suffix}").layout is Layout.SLICE) is is_made


@given(st.sampled_from([address for address, _ in MADE_BY_LAKEFS]), st.text(min_size=1, max_size=3), st.integers(0, 80))
def test_a_name_with_more_in_it_is_never_of_a_slice_it_does_not_lie_in(address: str, more: str, at: int) -> None:
    changed = address[: at % len(address)] + more + address[at % len(address) :]
    found = layout.parse(changed)
    if found.layout is Layout.SLICE:
        assert changed.split("/")[1] == found.slice
        assert layout.is_xid(changed.split("/")[2][: layout.XID_LENGTH])


@given(RAW, RAW, st.sampled_from(["", "," + SIGNATURE]), st.sampled_from(["", "!ab/c/"]))
def test_the_time_of_a_name_is_the_later_of_its_two(slice_name: str, xid: str, signature: str, shard: str) -> None:
    found = layout.parse(f"data/{shard}{slice_name}/{xid}{signature}")
    assert found.issued_at == max(layout.created_at(slice_name), layout.issued_at(xid))
    assert (found.layout, found.slice) == ((Layout.SHARDED, None) if shard else (Layout.SLICE, slice_name))


def test_names_without_a_time_have_none() -> None:
    for address in ("d41d8cd98f00b204e9800998ecf8427e", "data/repo:token/V1StGXR8_Z5jdHi6B-myT"):
        assert layout.parse(address).issued_at is None


@pytest.mark.parametrize(
    ("size", "expected"),
    [("month", "2025-11"), ("day", "2025-11-10"), ("hour", "2025-11-10T10"), ("slice", SLICE)],
)
def test_windows_of_a_slice(size: layout.WindowSize, expected: str) -> None:
    assert layout.created_at(SLICE) == SLICE_CREATED
    assert layout.window(SLICE, size) == expected
    assert layout.window(None, size) == LEGACY_WINDOW


def test_windows_begin_in_utc() -> None:
    def window_at(*moment: int) -> str:
        return layout.window(layout.XidGenerator().descending(datetime(*moment, tzinfo=UTC)), "month")  # type: ignore[misc,arg-type]

    assert window_at(2026, 2, 28, 23, 59, 59) == "2026-02"
    assert window_at(2026, 3, 1) == "2026-03"


@given(RAW, RAW, st.sampled_from(["month", "day", "hour"]))
def test_windows_sort_like_their_slices(one: str, other: str, size: layout.WindowSize) -> None:
    if layout.created_at(one) <= layout.created_at(other):
        assert layout.window(one, size) <= layout.window(other, size)


@needs_recordings
def test_names_of_a_real_server() -> None:
    found: dict[Layout, set[str]] = {}
    for row in json.loads((FIXTURES / "small" / "listing.json").read_text()):
        found.setdefault(layout.parse(row["key"]).layout, set()).add(row["key"])
    written_by_hand = {"data/manual-1/m1", "data/stray-1/s0", "legacy00000001", "manual/1/m0", "stray-root-1"}
    assert found.pop(Layout.UNRECOGNISED) == written_by_hand
    assert all(key.startswith("_lakefs/") for key in found.pop(Layout.SPECIAL))
    assert found.keys() == {Layout.SLICE}
    assert sum("," in key for key in found[Layout.SLICE]) > 5


# Names of objects.


SIZES: tuple[WindowSize, ...] = ("month", "day", "hour", "slice")
XIDS = st.binary(min_size=12, max_size=12).map(layout.encode_xid)
SLICES = st.sampled_from([layout.encode_xid(bytes([byte]) * 12) for byte in (0, 1, 127, 200, 255)]) | XIDS
SIGNATURE_IN_NAME = ",LUas8wrQe8Hzoq3Ux5a4TOJhAC6mWEfg4QyauNaM7XQ"
SUFFIXES = st.sampled_from(["", "", SIGNATURE_IN_NAME, ".multipart", ".part_00001", ".part_00033_1", ".part_10001"])
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


# Ids of slices and objects.


RAW_IDS = st.binary(min_size=12, max_size=12)
SECONDS = st.integers(0, (1 << 32) - 1)
UNTIL_2094 = 3_931_046_656
"""At this second, the 32 bits that count down to the year 4000 wrap around."""


def moment(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@given(RAW_IDS)
def test_twenty_characters_and_back(raw: bytes) -> None:
    xid = layout.encode_xid(raw)
    assert layout.is_xid(xid)
    assert layout.decode_xid(xid) == raw


@given(RAW_IDS, RAW_IDS)
def test_sorts_like_the_bytes(one: bytes, other: bytes) -> None:
    assert (layout.encode_xid(one) < layout.encode_xid(other)) == (one < other)


def test_reads_what_the_library_documents() -> None:
    # The example of rs/xid's own tests.
    assert layout.encode_xid(bytes([0x4D, 0x88, 0xE1, 0x5B, 0x60, 0xF4, 0x86, 0xE4, 0x28, 0x41, 0x2D, 0xC9])) == (
        "9m4e2mr0ui3e8a215n4g"
    )
    assert layout.issued_at("9m4e2mr0ui3e8a215n4g") == 1300816219


def test_reads_a_slice_of_a_real_server() -> None:
    assert layout.as_datetime(layout.created_at("g4uk6erfnfus73frbnqg")) == datetime(
        2025, 11, 10, 10, 34, 45, tzinfo=UTC
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0" * 19,
        "0" * 21,
        "0" * 19 + "1",
        "0" * 19 + "v",
        "w" + "0" * 19,
        "A" + "0" * 19,
        "0" * 19 + "\n",
        "\N{DEVANAGARI DIGIT ZERO}" * 20,
    ],
)
def test_anything_else_is_no_xid(text: str) -> None:
    assert not layout.is_xid(text)
    with pytest.raises(ValueError, match="not an xid"):
        layout.decode_xid(text)


@given(st.text(max_size=22) | st.text(layout.XID_ALPHABET, min_size=19, max_size=21))
def test_an_xid_is_what_encodes_to_itself(text: str) -> None:
    if layout.is_xid(text):
        assert layout.encode_xid(layout.decode_xid(text)) == text


def test_twelve_bytes_are_needed() -> None:
    for count in (0, 11, 13):
        with pytest.raises(ValueError, match="12 bytes"):
            layout.encode_xid(bytes(count))


@given(SECONDS, st.integers(0, 999_999))
def test_an_issued_id_says_its_whole_second(seconds: int, microseconds: int) -> None:
    now = moment(seconds) + timedelta(microseconds=microseconds)
    assert layout.issued_at(layout.XidGenerator().ascending(now)) == seconds
    assert layout.created_at(layout.XidGenerator().descending(now)) == seconds
    assert layout.as_datetime(seconds) == moment(seconds)


@given(st.lists(st.integers(0, UNTIL_2094), min_size=2, max_size=2, unique=True).map(sorted))
def test_newest_slices_and_oldest_objects_sort_first(two: list[int]) -> None:
    earlier, later = map(moment, two)
    issue = layout.XidGenerator()
    assert issue.descending(later) < issue.descending(earlier)
    assert issue.ascending(earlier) < issue.ascending(later)


def test_the_zone_of_a_moment_does_not_matter() -> None:
    now = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-7)))
    assert layout.issued_at(layout.XidGenerator().ascending(now)) == int(now.timestamp())


def test_no_two_ids_of_a_process_are_the_same() -> None:
    issue = layout.XidGenerator(machine=b"12345", counter=0xFF_FFF0)
    now = moment(1_700_000_000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: issue.ascending(now), range(2000)))
    assert len(set(found)) == 2000


@given(st.integers(0, UNTIL_2094 * 1_000_000 - 2), st.integers(1, 3_000_000))
def test_a_later_run_sorts_first_also_within_a_second(first: int, later: int) -> None:
    one, other = (moment(0) + timedelta(microseconds=each) for each in (first, first + later))
    if other < moment(UNTIL_2094):
        assert layout.issue_run_id(other) < layout.issue_run_id(one)
    assert layout.created_at(layout.issue_run_id(one)) == first // 1_000_000
    assert layout.issue_run_id(one) != layout.issue_run_id(one)
