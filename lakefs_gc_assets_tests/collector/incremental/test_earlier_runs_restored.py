"""Restored objects, by their receipts."""

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.incremental.earlier_runs import restored_before
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import HOUR, NOW, began, opened

__all__ = ["opened"]


def note(opened: OpenRepository, run_id: str, name: str, outcome: Outcome, *addresses: str) -> None:
    """Writes the receipts of a batch."""
    count = len(addresses)
    rows = receipts.table(candidates(*addresses), [outcome] * count, [None] * count, NOW, "attempt")
    receipts.write(opened.store, run_id, name, rows)


def reported_nothing(found: pa.Array) -> bool:
    """True for an empty array of addresses, which can still be compared with others."""
    return bool(found.type == pa.string()) and len(found) == 0


@pytest.fixture
def swept(opened: OpenRepository) -> str:
    """A run that moved three objects to quarantine, two of which were restored."""
    run_id = began(opened, 2 * HOUR).run_id
    note(opened, run_id, "batch", Outcome.QUARANTINED, "data/a", "data/b", "data/c")
    across_runs.write_restoration(opened.store, run_id, NOW)
    note(opened, run_id, f"{receipts.OF_RESTORE}1", Outcome.RESTORED, "data/a")
    note(opened, run_id, f"{receipts.OF_RESTORE}2", Outcome.RESTORED, "data/c")
    note(opened, run_id, f"{receipts.OF_PURGE}1", Outcome.PURGED, "data/b")
    return run_id


def test_only_what_came_back_is_reported(opened: OpenRepository, swept: str) -> None:
    assert sorted(restored_before(opened.store, "another").to_pylist()) == ["data/a", "data/c"]
    assert reported_nothing(restored_before(opened.store, swept))


def test_where_nothing_ever_came_back_one_call_tells_so(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "newest_runs", pytest.fail)
    assert reported_nothing(restored_before(opened.store, "run"))


def test_too_many_are_not_reported(opened: OpenRepository, swept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_runs, "MOST_RESTORED", 1)
    assert reported_nothing(restored_before(opened.store, "another"))
    monkeypatch.setattr(earlier_runs, "MOST_RESTORED", 2)
    assert sorted(restored_before(opened.store, "another").to_pylist()) == ["data/a", "data/c"]


def test_the_twenty_newest_runs_besides_the_one_that_asks_are_looked_at(opened: OpenRepository) -> None:
    runs = [began(opened, hours * HOUR).run_id for hours in range(22)]
    for number, run_id in enumerate(runs):
        note(opened, run_id, f"{receipts.OF_RESTORE}1", Outcome.RESTORED, f"data/{number}")
    across_runs.write_restoration(opened.store, runs[-1], NOW)
    found = restored_before(opened.store, runs[3])
    assert found.type == pa.string()
    assert found.to_pylist() == [f"data/{number}" for number in range(21) if number != 3]


def test_receipts_that_are_damaged_are_said_to_be(opened: OpenRepository, swept: str) -> None:
    opened.store.put(f"{run_folder.receipts(swept)}{receipts.OF_RESTORE}3.parquet", b"nothing")
    with pytest.raises(CorruptFile):
        restored_before(opened.store, "another")
