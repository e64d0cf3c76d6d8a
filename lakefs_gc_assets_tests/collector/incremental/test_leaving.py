from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lakefs_gc_assets.sources import carrying, tasks
from pyspark.sql import DataFrame, SparkSession

from lakefs_gc_assets.collector.frame.schemas import LISTED, LIVE
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

# Each example is a few Spark jobs: few of them, with many rows each.
FEW = settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
NOW = datetime(2026, 11, 20, tzinfo=UTC)
IDS = xids.Generator(b"abcde", 7)
SLICES = [IDS.descending(NOW - timedelta(days=days)) for days in (1, 40, 80)]
NAMES = [f"data/{folder}/{name}" for folder in (*SLICES, "old", SLICES[0] + "x") for name in ("a", "b", "c/d")]
ADDRESSES = st.sets(st.sampled_from([*NAMES, "root", "data/direct", f"x/data/{SLICES[0]}/a"]))
SETTLED = st.sets(st.sampled_from(SLICES))


@pytest.fixture(scope="module", autouse=True)
def session(spark: SparkSession) -> SparkSession:
    return spark


def frame(spark: SparkSession, rows: list[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema=schema))


def addresses_of(rows: DataFrame) -> Counter[str]:
    return Counter(row.address for row in rows.select("address").collect())


def folder_of(address: str) -> str | None:
    """The slice that an address lies in, told apart without a pattern."""
    parts = address.split("/")
    return parts[1] if parts[0] == "data" and len(parts) > 2 and parts[1] in SLICES else None


@FEW
@given(ADDRESSES, SETTLED)
def test_rows_are_of_settled_slices_or_of_others(spark: SparkSession, addresses: set[str], settled: set[str]) -> None:
    rows = frame(spark, [live(address) for address in sorted(addresses)], LIVE)

    inside, outside = (tasks.dataframe_of(of(rows, settled)) for of in (carrying.of_settled, carrying.of_unsettled))

    there = {address for address in addresses if folder_of(address) is None or folder_of(address) in settled}
    assert addresses_of(inside) == Counter(there)
    assert addresses_of(outside) == Counter(addresses - there)
    assert inside.columns == outside.columns == LIVE.names


@FEW
@given(ADDRESSES, SETTLED, ADDRESSES, ADDRESSES)
def test_open_is_what_is_settled_neither_committed_nor_deleted(
    spark: SparkSession, universe: set[str], settled: set[str], committed: set[str], deleted: set[str]
) -> None:
    found = carrying.still_open(
        frame(spark, [listed(address) for address in sorted(universe)], LISTED),
        settled,
        frame(spark, [live(address) for address in sorted(committed)], LIVE),
        frame(spark, [live(address) for address in sorted(deleted)], LIVE),
        rows=len(universe),
    )

    there = {address for address in universe if folder_of(address) is None or folder_of(address) in settled}
    assert addresses_of(found) == Counter(there - committed - deleted)
    assert found.columns == LISTED.names


def test_rows_return_to_the_window_of_their_address() -> None:
    names = [f"data/{folder}/{IDS.ascending(NOW)}" for folder in SLICES]
    rows = [{**listed(name), "slice_window": "other"} for name in [*names, "root"]]

    found = carrying.in_windows(pa.RecordBatch.from_pylist(rows, schema=LISTED), "month")

    windows = {row["address"]: row["slice_window"] for row in found.to_pylist()}
    assert windows == {**dict(zip(names, ["2026-11", "2026-10", "2026-09"], strict=True)), "root": "legacy"}
    assert found.schema == LISTED
