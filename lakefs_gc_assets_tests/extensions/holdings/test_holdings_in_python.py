from dataclasses import replace
from pathlib import Path

import pytest

import lakefs_gc_assets
from lakefs_gc_assets.collector.records import stored_holdings
from lakefs_gc_assets.errors import CollectionError, CorruptFile
from lakefs_gc_assets.extensions.holdings import holdings_files
from lakefs_gc_assets.extensions.holdings.holdings_files import Holdings, HoldingsRow, HoldingState, Sharing
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW
from lakefs_gc_assets_tests.extensions.holdings.lake import IDS, Lake, lake

__all__ = ["lake"]


def test_holdings_of_all_runs_are_one_table_newest_first(lake: Lake, tmp_path: Path) -> None:
    store = LocalStore(lake.create("alpha"))
    file = lake.write_configuration(tmp_path)
    with pytest.raises(CollectionError, match="lakefs-gc holdings"):
        lakefs_gc_assets.open(file, repository="alpha").holdings()
    rows = (
        HoldingsRow("state", "head", None, HoldingState.HEAD, 3, 30),
        HoldingsRow("branch", "main", Sharing.ALONE, HoldingState.HEAD, 2, None),
    )
    older = Holdings("alpha", "local://alpha/", IDS.descending(NOW - DAY), NOW - DAY, "", rows)
    newer = replace(older, run_id=IDS.descending(NOW), time=NOW, rows=rows[:1])
    foreign = replace(older, run_id=IDS.descending(NOW), repository="another")
    for holdings in (older, newer, foreign):
        holdings_files.write(store, holdings)

    table = lakefs_gc_assets.open(file, repository="alpha").holdings()

    assert table.schema.names == ["run_id", "time", "dimension", "key", "held", "state", "objects", "bytes"]
    assert table["run_id"].to_pylist() == [newer.run_id, older.run_id, older.run_id]
    assert table["time"].to_pylist() == [NOW, NOW - DAY, NOW - DAY]
    assert table["bytes"].to_pylist() == [30, 30, None]

    store.put(stored_holdings.key_of(newer.run_id), b"damaged")
    with pytest.raises(CorruptFile):
        lakefs_gc_assets.open(file, repository="alpha").holdings()
