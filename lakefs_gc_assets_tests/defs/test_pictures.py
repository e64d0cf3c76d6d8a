"""Pictures: what is counted for them, and that Dagster shows them without a click."""

import re
from base64 import b64decode
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import dagster as dg
import pyarrow as pa

from lakefs_gc_assets.defs.garbage import AGES, SIZES, Garbage, count_batches
from lakefs_gc_assets.defs.pictures import bars

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SHOWN_AT_ONCE = 1000
"""Dagster shows shorter Markdown where it stands."""


def drawn(picture: dg.MarkdownMetadataValue) -> tuple[list[int], list[str]]:
    """Lengths of the bars, and the words beside them."""
    found = re.fullmatch(r"!\[[^]]*\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)", picture.md_str or "")
    assert found is not None, picture
    svg = ElementTree.fromstring(b64decode(found[1]))
    path, text = svg
    lengths = [int(length) for length in re.findall(r"h(\d+)", path.attrib["d"])]
    return lengths, [each.text or "" for each in text]


def test_bars_have_their_lengths_and_words() -> None:
    lengths, words = drawn(bars("title", [("a <b> & c", 8), ("little", 0.001), ("none", 0)]))

    assert lengths == [160, 1, 0]
    assert words == ["a <b> & c", "little", "none"]


def test_six_bars_are_shown_without_a_click() -> None:
    picture = bars("garbage by the month of its slice", [(f"91 to 365 days: {10**9:,}, 999.9 GiB", 1)] * 6)

    assert len(picture.md_str or "") < SHOWN_AT_ONCE


def test_nothing_is_said_to_be_nothing() -> None:
    assert bars("title", []).md_str == bars("title", [("a", 0)]).md_str == "none"


def counted(*objects: tuple[timedelta, int]) -> Garbage:
    written = pa.array([NOW - age for age, _ in objects], pa.timestamp("us", "UTC"))
    sizes = pa.array([size for _, size in objects], pa.int64())
    batch = pa.RecordBatch.from_arrays([written, sizes], names=["last_modified", "size"])
    return Garbage.of_counts(count_batches([batch.slice(0, 2), batch.slice(2), batch.slice(0, 0)], NOW))


def test_every_object_is_in_one_group_by_age_and_in_one_by_size() -> None:
    borders = [
        (age + moment, size)
        for age in AGES.values()
        for moment in (-timedelta.resolution, timedelta())
        for size in SIZES.values()
    ]
    found = counted(*borders)

    for groups in (found.by_age, found.by_size):
        assert sum(objects for objects, _ in groups.values()) == len(borders)
        assert sum(total for _, total in groups.values()) == sum(size for _, size in borders)
    assert found.oldest == NOW - max(AGES.values())


def test_borders_belong_to_the_older_and_larger_group() -> None:
    day = timedelta(days=1)
    found = counted((2 * day, 2**16), (2 * day - timedelta.resolution, 2**16 - 1), (-day, 0), (3650 * day, 2**40))

    assert found.by_age == {"< 2 days": (2, 2**16 - 1), "2 to 7 days": (1, 2**16), "over a year": (1, 2**40)}
    assert found.by_size == {"< 64 KiB": (2, 2**16 - 1), "64 KiB to 1 MiB": (1, 2**16), "> 4 GiB": (1, 2**40)}
