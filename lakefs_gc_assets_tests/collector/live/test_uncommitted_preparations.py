import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult
from lakefs_gc_assets_tests.collector.past_runs import DAY, IDS, NOW, began, ended, opened

__all__ = ["opened"]

MARKED, RECHECKED, FOREIGN = (IDS.descending(NOW - days * DAY) for days in (7, 8, 9))
FILE = IDS.ascending(NOW)


def swept(opened: OpenRepository, days: int, *server_run_ids: str, named: bool = True) -> Plan:
    """A successful run that deleted, after the server had prepared."""
    plan = began(opened, days * DAY)
    figures = {"server_run_ids": list(server_run_ids), "pages": 1, "files": 1}
    manifest = records_json.with_digest(
        {"format_version": 2, "files": [], "inputs": {}, "span": {}, "figures": figures}
    )
    opened.store.put(run_folder.manifest(plan.run_id, "uncommitted_df"), manifest)
    ended(opened, plan, dry_run=False, server_run_ids=server_run_ids if named else ())
    for server_run_id in server_run_ids:
        prepared(opened, server_run_id)
    return plan


def prepared(opened: OpenRepository, server_run_id: str, name: str = FILE) -> str:
    key = f"{run_folder.folder(server_run_id)}uncommitted/{name}"
    opened.store.put(key, b"the server's")
    return key


def there(opened: OpenRepository, run_id: str) -> list[str]:
    """Names of files in a folder, sorted."""
    folder = run_folder.folder(run_id)
    return sorted(key.removeprefix(folder) for batch in opened.store.list(folder) for key in batch["key"].to_pylist())


def expire(opened: OpenRepository) -> list[str]:
    expired = expiring.decide(opened.store, 1).expired
    for run in expired:
        expiring.remove_frames(opened.store, run)
    return [run.run_id for run in expired]


def test_what_the_server_prepared_for_an_old_run_goes_with_its_frames(opened: OpenRepository) -> None:
    newest, old = swept(opened, 1, MARKED), swept(opened, 2, RECHECKED)
    prepared(opened, FOREIGN)
    assert expire(opened) == [old.run_id]
    assert there(opened, RECHECKED) == []
    assert there(opened, MARKED) == there(opened, FOREIGN) == [f"uncommitted/{FILE}"]
    assert "report.json" in there(opened, old.run_id) and "report.json" in there(opened, newest.run_id)


def test_what_a_recheck_made_it_prepare_goes_once_it_is_noted(opened: OpenRepository) -> None:
    swept(opened, 1, FOREIGN)
    old = swept(opened, 2, MARKED)
    prepared(opened, RECHECKED)
    uncommitted.record_preparations(opened.store, old.run_id, [RECHECKED, MARKED])
    uncommitted.record_preparations(opened.store, old.run_id, [RECHECKED])
    assert uncommitted.recorded_preparations(opened.store, old.run_id) == sorted([RECHECKED, MARKED])
    expire(opened)
    assert there(opened, RECHECKED) == there(opened, MARKED) == []
    assert uncommitted.recorded_preparations(opened.store, old.run_id) == []


def test_notes_are_enough_where_a_run_failed_before_it_had_a_frame(opened: OpenRepository) -> None:
    swept(opened, 1, FOREIGN)
    swept(opened, 2, MARKED)
    old = began(opened, 3 * DAY, sweep=False)
    uncommitted.record_preparations(opened.store, old.run_id, [RECHECKED])
    prepared(opened, RECHECKED)
    assert old.run_id in expire(opened)
    assert there(opened, RECHECKED) == []
    assert there(opened, old.run_id) == ["plan.json"]


def test_the_manifest_is_enough_where_the_report_names_none(opened: OpenRepository) -> None:
    swept(opened, 1, FOREIGN)
    swept(opened, 2, MARKED, named=False)
    expire(opened)
    assert there(opened, MARKED) == []


@pytest.mark.parametrize("name", ["part.parquet", f"folder/{FILE}", "x"], ids=["file", "folder", "short"])
def test_only_files_with_a_servers_name_go(opened: OpenRepository, name: str) -> None:
    swept(opened, 1, FOREIGN)
    swept(opened, 2, MARKED)
    prepared(opened, RECHECKED, "x")
    prepared(opened, MARKED, name)
    opened.store.put(f"{run_folder.folder(MARKED)}notes.txt", b"somebody's")
    expire(opened)
    assert f"uncommitted/{name}" in there(opened, MARKED)
    assert "notes.txt" in there(opened, MARKED)


def test_what_a_run_that_stays_names_as_well_stays(opened: OpenRepository) -> None:
    swept(opened, 1, MARKED)
    swept(opened, 2, MARKED)
    expire(opened)
    assert there(opened, MARKED) == [f"uncommitted/{FILE}"]


def test_a_run_of_ours_is_no_preparation(opened: OpenRepository) -> None:
    newest = swept(opened, 1, FOREIGN)
    mine = prepared(opened, newest.run_id)
    swept(opened, 2, newest.run_id)
    expire(opened)
    assert mine.removeprefix(run_folder.folder(newest.run_id)) in there(opened, newest.run_id)


@pytest.mark.parametrize(
    "wrong", ["..", "../../rules", "x", "", f"{MARKED}/uncommitted"], ids=["up", "away", "short", "empty", "below"]
)
def test_what_is_no_id_of_a_server_names_nothing(opened: OpenRepository, wrong: str) -> None:
    swept(opened, 1, FOREIGN)
    old = began(opened, 2 * DAY)
    figures = {"server_run_ids": [wrong, 7]}
    opened.store.put(run_folder.manifest(old.run_id, "uncommitted_df"), records_json.with_digest({"figures": figures}))
    ended(opened, old, dry_run=False, server_run_ids=(wrong,))
    prepared(opened, MARKED)
    opened.store.put("_lakefs/retention/gc/rules/config.json", b"rules")
    expire(opened)
    assert there(opened, MARKED) == [f"uncommitted/{FILE}"]
    assert opened.store.get("_lakefs/retention/gc/rules/config.json") == b"rules"


@pytest.mark.parametrize("change", ["not JSON", "changed", "no figures"])
def test_a_manifest_that_cannot_be_read_names_nothing(opened: OpenRepository, change: str, tmp_path: Path) -> None:
    swept(opened, 1, FOREIGN)
    old = swept(opened, 2, MARKED, named=False)
    key = run_folder.manifest(old.run_id, "uncommitted_df")
    content = json.loads(opened.store.get(key))
    contents = {
        "not JSON": b"{",
        "changed": json.dumps(content | {"figures": {"server_run_ids": [MARKED, RECHECKED]}}).encode(),
        "no figures": records_json.with_digest({"files": []}),
    }
    opened.store.put(key, contents[change])
    expire(opened)
    assert there(opened, MARKED) == [f"uncommitted/{FILE}"]


def test_it_may_be_repeated_after_a_failure(opened: OpenRepository) -> None:
    swept(opened, 1, FOREIGN)
    swept(opened, 2, MARKED)
    run = expiring.decide(opened.store, 1).expired[0]
    assert expiring.remove_frames(opened.store, run) > 0
    assert expiring.remove_frames(opened.store, run) == 0


def test_manifest_report_and_notes_name_them_together(opened: OpenRepository) -> None:
    plan = swept(opened, 1, MARKED)
    ended(opened, plan, dry_run=False, server_run_ids=(RECHECKED,))
    uncommitted.record_preparations(opened.store, plan.run_id, [FOREIGN])
    entries = {run_folder.frame(plan.run_id, "uncommitted_df"), uncommitted.folder_of_records(plan.run_id)}
    run = expiring.PastFolder(plan.run_id, (), frozenset(entries))
    assert expiring.preparations_of(opened.store, run) == {MARKED, RECHECKED, FOREIGN}
    opened.store.put(run_folder.report(plan.run_id), b"{")
    assert expiring.preparations_of(opened.store, run) == {MARKED, FOREIGN}


@pytest.mark.parametrize("refused", [False, True])
def test_each_note_is_deleted_once_and_one_that_stays_is_named(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    plan = began(opened, DAY)
    uncommitted.record_preparations(opened.store, plan.run_id, [MARKED, RECHECKED, FOREIGN])
    asked: list[str] = []

    def delete(keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        asked.extend(keys)
        result = DeleteResult.FAILED if refused else DeleteResult.ACCEPTED
        return [DeleteOutcome(key, result, "denied") for key in keys]

    monkeypatch.setattr(opened.store, "delete", delete)
    monkeypatch.setattr(opened.store, "delete_limit", 2)
    if refused:
        with pytest.raises(
            StorageError, match=f"{uncommitted.folder_of_records(plan.run_id)}.* could not be deleted: denied"
        ):
            uncommitted.delete_records_of_preparations(opened.store, plan.run_id)
        return
    assert uncommitted.delete_records_of_preparations(opened.store, plan.run_id) == 3
    assert asked == [uncommitted.folder_of_records(plan.run_id) + name for name in sorted([MARKED, RECHECKED, FOREIGN])]
    assert uncommitted.remove_preparation(opened.store, plan.run_id) == 0, "a run of ours is no preparation"
