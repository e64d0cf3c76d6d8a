import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lakefs_gc_assets.sources import subtraction
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collector.eligibility import Kept
from lakefs_gc_assets.collector.frame.schemas import LISTED, LIVE
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

# Each example is a Spark job: few of them, with many rows each.
FEW = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
CUTOFF = datetime(2026, 11, 20, tzinfo=UTC)
JUST_BEFORE = CUTOFF - timedelta(microseconds=1)
MOMENTS = st.sampled_from([CUTOFF - timedelta(days=9), JUST_BEFORE, CUTOFF, CUTOFF + timedelta(days=9)])
ADDRESSES = st.lists(st.text(st.sampled_from("ab/é\x00\U0001f5d1 "), max_size=3), max_size=60)
MD5S = st.sampled_from([character * 32 for character in "abc"])
ETAGS = st.none() | MD5S | st.sampled_from(["a" * 32 + "-2", "A" * 32, "", "W/x", subtraction.EMPTY_MD5])

HIDDEN = pa.schema([pa.field("address", pa.string()), pa.field("size", pa.int64()), pa.field("etag", pa.string())])


@pytest.fixture(scope="module", autouse=True)
def session(spark: SparkSession) -> SparkSession:
    return spark


def frame(spark: SparkSession, rows: list[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def listing(spark: SparkSession, addresses: list[str]) -> DataFrame:
    return frame(spark, [listed(address) for address in addresses], LISTED)


def living(spark: SparkSession, addresses: list[str]) -> DataFrame:
    return frame(spark, [live(address) for address in addresses], LIVE)


def addresses_of(rows: DataFrame) -> Counter[str]:
    return Counter(row.address for row in rows.select("address").collect())


def explained(rows: DataFrame) -> str:
    """The plan as it is before Spark has seen any row, in lower case."""
    with redirect_stdout(io.StringIO()) as plan:
        rows.explain()
    return plan.getvalue().lower()


@FEW
@given(ADDRESSES, ADDRESSES, ADDRESSES)
def test_what_is_live_is_taken_away(spark: SparkSession, universe: list[str], one: list[str], other: list[str]) -> None:
    left = subtraction.without(listing(spark, universe), living(spark, one), living(spark, other), rows=len(universe))

    assert addresses_of(left) == Counter(address for address in universe if address not in {*one, *other})
    assert left.columns == LISTED.names


@pytest.fixture
def told_only(spark: SparkSession) -> Iterator[None]:
    """Spark does not look for itself how large a frame is."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)
    yield
    spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")


@pytest.mark.parametrize(("rows", "sent"), [(None, False), (4, True), (10**9, False)])
@pytest.mark.usefixtures("told_only")
def test_few_rows_are_sent_to_every_task_and_many_are_not(spark: SparkSession, rows: int | None, sent: bool) -> None:
    universe, gone = listing(spark, ["a", "b", "c"]), living(spark, ["b", "d", "b", "e"])

    joined = {
        "ac": [subtraction.without_exactly(universe, gone, rows)],
        "b": [subtraction.among_exactly(universe, gone, rows)],
    }

    for left, frames in joined.items():
        for found in frames:
            assert addresses_of(found) == Counter(left)
            assert ("broadcast" in explained(found)) is sent


@FEW
@given(ADDRESSES, ADDRESSES, ADDRESSES)
def test_addresses_are_counted_by_the_frames_that_have_them(
    spark: SparkSession, first: list[str], second: list[str], third: list[str]
) -> None:
    frames = [first, second, third]

    found = subtraction.count_by_sets(*(living(spark, addresses) for addresses in frames), rows=9)

    assert found == Counter(
        sum(1 << number for number, addresses in enumerate(frames) if address in addresses)
        for address in {*first, *second, *third}
    )


@FEW
@given(ADDRESSES, ADDRESSES)
def test_strings_are_taken_away_exactly(spark: SparkSession, universe: list[str], gone: list[str]) -> None:
    left = subtraction.without_exactly(listing(spark, universe), living(spark, gone))

    assert addresses_of(left) == Counter(address for address in universe if address not in gone)
    assert left.columns == LISTED.names


def test_nothing_live_takes_nothing_away(spark: SparkSession) -> None:
    left = subtraction.without(listing(spark, ["data/a"]), living(spark, []), living(spark, []), rows=1)

    assert addresses_of(left) == Counter(["data/a"])


def test_a_live_row_without_an_address_takes_nothing_away(spark: SparkSession) -> None:
    nullable = pa.schema([column.with_nullable(True) for column in LIVE])
    nameless = frame(spark, [{**live("x"), "address": None}], nullable)

    left = subtraction.without(listing(spark, ["data/a", ""]), nameless, rows=3)

    assert addresses_of(left) == Counter(["data/a", ""])


UNREFERENCED = st.lists(
    st.builds(
        lambda layout, issued, modified, window, etag: {
            "layout": layout,
            "issued_at": issued,
            "last_modified": modified,
            "slice_window": window,
            "etag": etag,
        },
        st.sampled_from([layout.value for layout in Layout if layout is not Layout.SPECIAL]),
        st.none() | MOMENTS,
        MOMENTS,
        st.sampled_from(["legacy", "2026-10", "2026-11", "other"]),
        ETAGS,
    ),
    min_size=10,
    max_size=80,
)


def expected_reason(row: dict[str, Any], windows: set[str], sighted: set[str]) -> str | None:
    """The rules, one after the other, in plain words."""
    if row["layout"] == "unrecognised":
        return Kept.UNRECOGNISED.value
    if row["last_modified"] >= CUTOFF:
        return Kept.YOUNG.value
    if row["issued_at"] is not None and row["issued_at"] >= CUTOFF:
        return Kept.YOUNG.value
    if row["issued_at"] is None and row["layout"] in ("slice", "sharded"):
        return Kept.YOUNG.value
    if row["slice_window"] not in windows:
        return Kept.OTHER_WINDOW.value
    parts = re.fullmatch(r"[0-9a-f]{32}-[0-9]+", row["etag"] or "")
    return Kept.MULTIPART.value if parts and row["address"] not in sighted else None


@FEW
@given(UNREFERENCED, st.sets(st.sampled_from(["legacy", "2026-10", "2026-11"]), min_size=1), st.data())
def test_each_reason_to_keep_is_told(
    spark: SparkSession, changes: list[dict[str, Any]], windows: set[str], data: st.DataObject
) -> None:
    rows = [listed(f"data/{number}", **change) for number, change in enumerate(changes)]
    sighted = data.draw(st.sets(st.sampled_from([row["address"] for row in rows])))
    sightings = living(spark, sorted(sighted) * 2)

    told = subtraction.kept_because(frame(spark, rows, LISTED), CUTOFF, sorted(windows), sightings)

    assert {row.address: row.kept for row in told.collect()} == {
        row["address"]: expected_reason(row, windows, sighted) for row in rows
    }
    assert told.count() == len(rows)
    assert set(told.columns) == {*LISTED.names, "kept"}


CONTENTS = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), ETAGS), max_size=40)


def same(one: tuple[int, str | None], other: tuple[int, str | None]) -> bool:
    """Whether two objects may have the same content, as far as sizes and plain MD5 say."""

    def digest(content: tuple[int, str | None]) -> str | None:
        if content[0] == 0:
            return subtraction.EMPTY_MD5
        return content[1] if content[1] is not None and re.fullmatch("[0-9a-f]{32}", content[1]) else None

    return one[0] == other[0] and (digest(one) is None or digest(other) is None or digest(one) == digest(other))


@FEW
@given(CONTENTS, CONTENTS)
def test_what_may_have_the_same_content_is_found(
    spark: SparkSession, mine: list[tuple[int, str | None]], theirs: list[tuple[int, str | None]]
) -> None:
    def contents(rows: list[tuple[int, str | None]]) -> DataFrame:
        named = [{"address": str(number), "size": size, "etag": etag} for number, (size, etag) in enumerate(rows)]
        return frame(spark, named, HIDDEN)

    found = subtraction.same_content(contents(mine), contents(theirs))

    assert addresses_of(found) == Counter(
        str(number) for number, content in enumerate(mine) if any(same(content, other) for other in theirs)
    )
    assert found.columns == HIDDEN.names
