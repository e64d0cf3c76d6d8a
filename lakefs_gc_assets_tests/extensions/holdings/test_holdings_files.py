from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import stored_holdings, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.stored_holdings import HOLDINGS
from lakefs_gc_assets.errors import CollectionError, CorruptFile
from lakefs_gc_assets.extensions.holdings import holdings_files
from lakefs_gc_assets.extensions.holdings.holdings_files import Holdings, HoldingsRow, HoldingState, Sharing
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.local import LocalStore

TIME = datetime(2026, 11, 29, 6, tzinfo=UTC)
NUMBERS = st.integers(0, 2**62)
ROWS = st.builds(
    HoldingsRow,
    st.sampled_from(["branch", "path", "metadata:team"]),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.none() | st.sampled_from(Sharing),
    st.sampled_from(HoldingState),
    NUMBERS,
    st.none() | NUMBERS,
)
HEADS = HoldingsRow("state", "head", None, HoldingState.HEAD, 2, 5)


def made(days: int = 0, rows: tuple[HoldingsRow, ...] = (HEADS,)) -> Holdings:
    time = TIME - timedelta(days=days)
    return Holdings("lake", "s3://lake/", layout.issue_run_id(time), time, "abc", rows)


@given(st.lists(ROWS, min_size=1, max_size=9))
def test_stored_holdings_read_back_unchanged(tmp_path_factory: pytest.TempPathFactory, rows: list[HoldingsRow]) -> None:
    store = LocalStore(tmp_path_factory.mktemp("store"))
    holdings = made(rows=tuple(rows))
    holdings_files.write(store, holdings)
    assert holdings_files.read(store, holdings.run_id) == holdings


def test_history_is_newest_first_ends_at_a_day_and_skips_damaged_files(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert [*holdings_files.history(store, "lake")] == []
    past = [made(days) for days in (3, 0, 1, 2)]
    for holdings in past:
        holdings_files.write(store, holdings)
    newest_first = sorted(past, key=lambda each: each.time, reverse=True)
    assert [*holdings_files.history(store, "lake")] == newest_first
    store.put(stored_holdings.key_of(newest_first[1].run_id), b"damaged")
    assert [*holdings_files.history(store, "lake", TIME - timedelta(days=2))] == [newest_first[0], newest_first[2]]


def test_file_without_rows_or_of_other_columns_is_refused(tmp_path: Path) -> None:
    store, run_id = LocalStore(tmp_path), layout.issue_run_id(TIME)
    for schema in (HOLDINGS, HOLDINGS.append(pa.field("cost", pa.int64()))):
        store.put(stored_holdings.key_of(run_id), tables.encode(schema.empty_table()))
        with pytest.raises(CorruptFile, match=r"has no rows|field names"):
            holdings_files.read(store, run_id)


def test_unknown_state_is_refused(tmp_path: Path) -> None:
    store, holdings = LocalStore(tmp_path), made()
    key = holdings_files.write(store, holdings)
    row = stored_holdings.read(store, holdings.run_id).to_pylist()[0] | {"state": "elsewhere"}
    store.put(key, tables.encode(pa.Table.from_pylist([row], schema=HOLDINGS)))
    with pytest.raises(CorruptFile, match="elsewhere"):
        holdings_files.read(store, holdings.run_id)


def test_what_is_no_run_id_names_no_file() -> None:
    with pytest.raises(CollectionError, match="not a run id"):
        stored_holdings.key_of("../plan")


def test_states_leave_out_unknown_sizes() -> None:
    rows = HEADS, HoldingsRow("state", "", None, HoldingState.METADATA, 1, None)
    assert made(rows=rows).states() == {HoldingState.HEAD: Amount(2, 5)}
