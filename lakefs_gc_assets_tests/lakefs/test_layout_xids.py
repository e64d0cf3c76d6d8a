from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.lakefs import layout

RAW = st.binary(min_size=12, max_size=12)
SECONDS = st.integers(0, (1 << 32) - 1)
UNTIL_2094 = 3_931_046_656
"""At this second, the 32 bits that count down to the year 4000 wrap around."""


def moment(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@given(RAW)
def test_twenty_characters_and_back(raw: bytes) -> None:
    xid = layout.encode_xid(raw)
    assert layout.is_xid(xid)
    assert layout.decode_xid(xid) == raw


@given(RAW, RAW)
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
