from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.records import plan, run_folder
from lakefs_gc_assets.collector.records.plan import Approval
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.local.store import LocalStore

GIVEN = Approval("g4uk6erfnfus73frbnqg", "attempt", "0" * 64, datetime(2026, 11, 21, 12, tzinfo=UTC))


def test_is_read_as_it_was_given(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert plan.read_approval(store, GIVEN.run_id) is None
    plan.write_approval(store, GIVEN)
    assert plan.read_approval(store, GIVEN.run_id) == GIVEN


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 9}'])
def test_one_that_cannot_be_read_ends_the_run(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put(run_folder.approval(GIVEN.run_id), content)
    with pytest.raises(CorruptFile, match=r"approval\.json"):
        plan.read_approval(store, GIVEN.run_id)


def test_one_of_another_run_ends_the_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    plan.write_approval(store, GIVEN)
    store.put(run_folder.approval("other"), store.get(run_folder.approval(GIVEN.run_id)))
    with pytest.raises(CorruptFile) as refused:
        plan.read_approval(store, "other")
    assert refused.value.args == (
        run_folder.approval("other"),
        "approval",
        f"it is the approval of run {GIVEN.run_id}",
    )
