from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.schemas import LISTED, LIVE
from lakefs_gc_assets.collector.incremental.leaving import (
    CheckpointCounts,
    count_checkpoint,
    select_pending,
    select_sealed,
    select_unsealed,
)
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets_tests.arrow_engine import ArrowEngine, ArrowRows
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

ENGINE = ArrowEngine()
NOW = datetime(2026, 11, 20, tzinfo=UTC)
IDS = xids.Generator(b"abcde", 7)
SLICES = [IDS.descending(NOW - timedelta(days=days)) for days in (1, 40, 80)]
NAMES = [f"data/{folder}/{name}" for folder in (*SLICES, "old", SLICES[0] + "x") for name in ("a", "b", "c/d")]
ADDRESSES = st.sets(st.sampled_from([*NAMES, "root", "data/direct", f"x/data/{SLICES[0]}/a"]))
SETTLED = st.sets(st.sampled_from(SLICES))


def frame(rows: list[dict[str, Any]], schema: pa.Schema) -> ArrowRows:
    return ENGINE.table(pa.Table.from_pylist(rows, schema=schema))


def addresses_of(rows: ArrowRows) -> Counter[str]:
    return Counter(ENGINE.collect(rows).column("address").to_pylist())


def folder_of(address: str) -> str | None:
    """The slice that an address lies in, told apart without a pattern."""
    parts = address.split("/")
    return parts[1] if parts[0] == "data" and len(parts) > 2 and parts[1] in SLICES else None


@given(ADDRESSES, SETTLED)
def test_rows_are_of_sealed_slices_or_of_others(addresses: set[str], sealed: set[str]) -> None:
    rows = frame([live(address) for address in sorted(addresses)], LIVE)

    inside, outside = (of(ENGINE, rows, sealed) for of in (select_sealed, select_unsealed))

    there = {address for address in addresses if folder_of(address) is None or folder_of(address) in sealed}
    assert addresses_of(inside) == Counter(there)
    assert addresses_of(outside) == Counter(addresses - there)
    assert inside.schema.names == outside.schema.names == LIVE.names


@given(ADDRESSES, SETTLED, ADDRESSES, ADDRESSES)
def test_pending_is_what_is_sealed_neither_committed_nor_deleted(
    universe: set[str], sealed: set[str], committed: set[str], deleted: set[str]
) -> None:
    found = select_pending(
        ENGINE,
        frame([listed(address) for address in sorted(universe)], LISTED),
        sealed,
        frame([live(address) for address in sorted(committed)], LIVE),
        frame([live(address) for address in sorted(deleted)], LIVE),
        count=len(universe),
    )

    there = {address for address in universe if folder_of(address) is None or folder_of(address) in sealed}
    assert addresses_of(found) == Counter(there - committed - deleted)
    assert found.schema.names == LISTED.names


@given(ADDRESSES, ADDRESSES, ADDRESSES, ADDRESSES)
def test_what_is_pending_is_counted_against_what_there_was(
    there: set[str], waiting: set[str], committed: set[str], deleted: set[str]
) -> None:
    listed_rows, pending_rows, held, gone = (
        frame([live(address) for address in sorted(each)], LIVE) for each in (there, waiting, committed, deleted)
    )

    counts = count_checkpoint(ENGINE, listed_rows, pending_rows, held, gone, count=9)

    assert counts.both == len(waiting & committed)
    assert counts.lost == len(there - waiting - committed - deleted)
    assert counts.committed == len((there & committed) - waiting - deleted) + counts.lost


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (CheckpointCounts(committed=9, both=0, lost=0), None),
        (CheckpointCounts(committed=9, both=1, lost=0), "1 objects would be pending although commits hold them"),
        (CheckpointCounts(committed=9, both=0, lost=2), "2 listed objects would be neither pending nor committed"),
    ],
)
def test_what_would_make_the_next_run_inexact_is_said(counts: CheckpointCounts, said: str | None) -> None:
    assert (counts.contradiction is None) if said is None else (said in str(counts.contradiction))
