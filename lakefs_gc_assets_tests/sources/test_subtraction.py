"""Subtraction and what is kept all the same, against plain Python sets."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collection.eligibility import Kept
from lakefs_gc_assets.collection.tables import LISTED, LIVE
from lakefs_gc_assets.sources import subtraction
from lakefs_gc_assets_tests.frames.frame_rows import listed

CUTOFF = datetime(2026, 11, 1, tzinfo=UTC)
OLD, YOUNG = CUTOFF - timedelta(microseconds=1), CUTOFF
MD5_A, MD5_B = "0" * 31 + "a", "0" * 31 + "b"
MULTIPART = MD5_A + "-2"
WINDOWS = ("legacy", "2026-11")

_FEW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
_ADDRESSES = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=12)


def stored(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=LISTED))


def live(spark: SparkSession, *addresses: str) -> DataFrame:
    rows = [{"address": address, "slice": None, "slice_window": "legacy"} for address in addresses]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=LIVE))


def addresses(frame: DataFrame) -> list[str]:
    return sorted(row.address for row in frame.collect())


@_FEW
@given(universe=_ADDRESSES, first=_ADDRESSES, second=_ADDRESSES)
def test_subtraction_is_that_of_sets(
    spark: SparkSession, universe: list[str], first: list[str], second: list[str]
) -> None:
    rows = stored(spark, *(listed(address) for address in sorted(set(universe))))
    found = subtraction.without(rows, live(spark, *first), live(spark, *second))
    assert addresses(found) == sorted(set(universe) - set(first) - set(second))
    exactly = subtraction.without_exactly(rows, live(spark, *first))
    assert addresses(exactly) == sorted(set(universe) - set(first))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (listed("old", last_modified=OLD, issued_at=OLD), None),
        (listed("written young", last_modified=YOUNG, issued_at=OLD), Kept.YOUNG),
        (listed("named young", last_modified=OLD, issued_at=YOUNG), Kept.YOUNG),
        (listed("no time where there must be one", last_modified=OLD, issued_at=None), Kept.YOUNG),
        (listed("flat", layout="flat", last_modified=OLD, issued_at=None, slice_window="legacy"), None),
        (listed("flat", layout="flat", last_modified=YOUNG, issued_at=None, slice_window="legacy"), Kept.YOUNG),
        (listed("?", layout="unrecognised", last_modified=OLD, issued_at=None), Kept.UNRECOGNISED),
        (listed("?", layout="unrecognised", last_modified=YOUNG, issued_at=None), Kept.UNRECOGNISED),
        (listed("elsewhere", slice_window="other", last_modified=OLD, issued_at=OLD), Kept.OTHER_WINDOW),
        (listed("in parts", etag=MULTIPART, last_modified=OLD, issued_at=OLD), Kept.MULTIPART),
        (listed("in parts, seen", etag=MULTIPART, last_modified=OLD, issued_at=OLD), None),
        (listed("in parts, seen, young", etag=MULTIPART, last_modified=YOUNG, issued_at=OLD), Kept.YOUNG),
        (listed("no etag", etag=None, last_modified=OLD, issued_at=OLD), None),
    ],
    ids=lambda value: value["address"] if isinstance(value, dict) else str(value),
)
def test_why_an_unreferenced_object_is_kept(spark: SparkSession, row: dict[str, Any], reason: Kept | None) -> None:
    sighted = live(spark, "in parts, seen", "in parts, seen, young", "in parts, seen")
    found = subtraction.kept_because(stored(spark, row), CUTOFF, WINDOWS, sighted).collect()
    assert [entry.kept for entry in found] == [reason.value if reason else None]


_CONTENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([None, MD5_A, MD5_B, MULTIPART, subtraction.EMPTY_MD5])), max_size=6
)


def known(size: int, etag: str | None) -> str | None:
    if etag is None:
        return subtraction.EMPTY_MD5 if size == 0 else None
    return None if "-" in etag else etag


@_FEW
@given(mine=_CONTENTS, theirs=_CONTENTS)
def test_same_content_is_same_size_and_no_other_md5(
    spark: SparkSession, mine: list[tuple[int, str | None]], theirs: list[tuple[int, str | None]]
) -> None:
    frame = spark.createDataFrame(
        [(str(number), size, etag) for number, (size, etag) in enumerate(mine)],
        "address string, size bigint, etag string",
    )
    others = spark.createDataFrame(theirs, "size bigint, etag string")
    expected = [
        str(number)
        for number, (size, etag) in enumerate(mine)
        if any(
            size == size_
            and (None in (known(size, etag), known(size_, etag_)) or known(size, etag) == known(size_, etag_))
            for size_, etag_ in theirs
        )
    ]
    assert addresses(subtraction.same_content(frame, others)) == sorted(expected)
