import json
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import LEGACY_WINDOW, Layout, Name
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
