from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.lakefs import xids

RAW = st.binary(min_size=12, max_size=12)
SECONDS = st.integers(0, (1 << 32) - 1)
UNTIL_2094 = 3_931_046_656
"""Then the 32 bits that count down to the year 4000 start anew."""


def moment(seconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


@given(RAW)
def test_twenty_characters_and_back(raw: bytes) -> None:
    xid = xids.encode(raw)
    assert xids.is_xid(xid)
    assert xids.decode(xid) == raw


@given(RAW, RAW)
def test_sorts_like_the_bytes(one: bytes, other: bytes) -> None:
    assert (xids.encode(one) < xids.encode(other)) == (one < other)


def test_reads_what_the_library_documents() -> None:
    # The example of rs/xid's own tests.
    assert xids.encode(bytes([0x4D, 0x88, 0xE1, 0x5B, 0x60, 0xF4, 0x86, 0xE4, 0x28, 0x41, 0x2D, 0xC9])) == (
        "9m4e2mr0ui3e8a215n4g"
    )
    assert xids.issued_at("9m4e2mr0ui3e8a215n4g") == 1300816219


def test_reads_a_slice_of_a_real_server() -> None:
    assert xids.as_datetime(xids.created_at("g4uk6erfnfus73frbnqg")) == datetime(2025, 11, 10, 10, 34, 45, tzinfo=UTC)


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
    assert not xids.is_xid(text)
    with pytest.raises(ValueError, match="not an xid"):
        xids.decode(text)


@given(st.text(max_size=22) | st.text(xids.ALPHABET, min_size=19, max_size=21))
def test_an_xid_is_what_encodes_to_itself(text: str) -> None:
    if xids.is_xid(text):
        assert xids.encode(xids.decode(text)) == text


def test_twelve_bytes_are_needed() -> None:
    for count in (0, 11, 13):
        with pytest.raises(ValueError, match="12 bytes"):
            xids.encode(bytes(count))


@given(SECONDS, st.integers(0, 999_999))
def test_an_issued_id_says_its_whole_second(seconds: int, microseconds: int) -> None:
    now = moment(seconds) + timedelta(microseconds=microseconds)
    assert xids.issued_at(xids.Generator().ascending(now)) == seconds
    assert xids.created_at(xids.Generator().descending(now)) == seconds
    assert xids.as_datetime(seconds) == moment(seconds)


@given(st.lists(st.integers(0, UNTIL_2094), min_size=2, max_size=2, unique=True).map(sorted))
def test_newest_slices_and_oldest_objects_sort_first(two: list[int]) -> None:
    earlier, later = map(moment, two)
    issue = xids.Generator()
    assert issue.descending(later) < issue.descending(earlier)
    assert issue.ascending(earlier) < issue.ascending(later)


def test_the_zone_of_a_moment_does_not_matter() -> None:
    now = datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=-7)))
    assert xids.issued_at(xids.Generator().ascending(now)) == int(now.timestamp())


def test_no_two_ids_of_a_process_are_the_same() -> None:
    issue = xids.Generator(machine=b"12345", counter=0xFF_FFF0)
    now = moment(1_700_000_000)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: issue.ascending(now), range(2000)))
    assert len(set(found)) == 2000


@given(st.integers(0, UNTIL_2094 * 1_000_000 - 2), st.integers(1, 3_000_000))
def test_a_later_run_sorts_first_also_within_a_second(first: int, later: int) -> None:
    one, other = (moment(0) + timedelta(microseconds=each) for each in (first, first + later))
    if other < moment(UNTIL_2094):
        assert xids.issue_run_id(other) < xids.issue_run_id(one)
    assert xids.created_at(xids.issue_run_id(one)) == first // 1_000_000
    assert xids.issue_run_id(one) != xids.issue_run_id(one)
