from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.outcomes import Amount
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


def made(days: int = 0, rows: tuple[HoldingsRow, ...] = ()) -> Holdings:
    time = TIME - timedelta(days=days)
    return Holdings("lake", "s3://lake/", layout.issue_run_id(time), time, "abc", rows)


@given(st.lists(ROWS, max_size=9))
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
    store.put(holdings_files.key_of(newest_first[1].run_id), b"damaged")
    assert [*holdings_files.history(store, "lake", TIME - timedelta(days=2))] == [newest_first[0], newest_first[2]]


@pytest.mark.parametrize("metadata", [None, {"format": "2"}, {"format": "1", "repository": "lake"}])
def test_file_of_another_format_is_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    store, run_id = LocalStore(tmp_path), layout.issue_run_id(TIME)
    rows = holdings_files.ROWS.empty_table().replace_schema_metadata(metadata)
    store.put(holdings_files.key_of(run_id), tables.encode(rows))
    with pytest.raises(CorruptFile, match="its format is"):
        holdings_files.read(store, run_id)


def test_unknown_state_is_refused(tmp_path: Path) -> None:
    store, holdings = LocalStore(tmp_path), made()
    key = holdings_files.write(store, holdings)
    with tables.opened(store.get(key), key, "holdings") as stored:
        schema = stored.schema_arrow
    row = {"dimension": "state", "key": "", "state": "elsewhere", "objects": 1}
    store.put(key, tables.encode(pa.Table.from_pylist([row], schema=schema)))
    with pytest.raises(CorruptFile, match="elsewhere"):
        holdings_files.read(store, holdings.run_id)


def test_what_is_no_run_id_names_no_file() -> None:
    with pytest.raises(CollectionError, match="not a run id"):
        holdings_files.key_of("../plan")


def test_states_leave_out_unknown_sizes() -> None:
    rows = [
        HoldingsRow("state", "head", None, HoldingState.HEAD, 2, 5),
        HoldingsRow("state", "", None, HoldingState.METADATA, 1, None),
    ]
    assert replace(made(), rows=tuple(rows)).states() == {HoldingState.HEAD: Amount(2, 5)}
