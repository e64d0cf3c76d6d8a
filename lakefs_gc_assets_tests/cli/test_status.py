"""`lakefs-gc status` on an embedded server with reports in its store."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status as ExitStatus
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began, ended
from lakefs_gc_assets_tests.defs.automated import Automated, automated, server

__all__ = ["automated", "server"]

Status = Callable[..., Result]


@pytest.fixture
def status(automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Status:
    file = automated.write_configuration(tmp_path, "TEST_STATUS_SECRET")
    monkeypatch.setenv("TEST_STATUS_SECRET", automated.server.secret_access_key)
    return lambda *arguments: CliRunner().invoke(main, ["status", "--config", str(file), *arguments])


def test_in_lines(automated: Automated, status: Status) -> None:
    assert status().stdout.splitlines()[1:] == ["lock: free", "no runs yet"]
    swept = ended(automated.repository, began(automated.repository, DAY))
    running = began(automated.repository, HOUR)

    lines = status().stdout.splitlines()

    assert lines[0].startswith("sample at local://sample")
    assert lines[2] == f"{running.run_id}  not ended"
    assert lines[3].startswith(f"{swept.run_id}  {swept.started_at:%F %T}Z  clean, sweep: ")
    assert status("--runs", "1").stdout.splitlines() == lines[:3]


def test_run_limited_to_addresses_is_shown_as_an_erasure(automated: Automated, status: Status) -> None:
    ended(
        automated.repository,
        began(automated.repository, DAY, only_addresses=("data/a", "data/b")),
        counts={"listed": 3},
    )
    assert "clean, erasure of 2 addresses: deleted; " in status().stdout


def test_in_json(automated: Automated, status: Status) -> None:
    store = automated.repository.store
    swept = ended(automated.repository, began(automated.repository, DAY))
    running = began(automated.repository, HOUR)
    Lock.acquire(store, run_id=running.run_id, owner="somebody", now=NOW, expiry=HOUR)

    found = json.loads(status("--json").stdout)

    sections = {"repository", "storage_namespace", "read_only", "lock", "quarantine", "standing_approvals", "runs"}
    assert found.keys() == sections
    assert (found["repository"], found["read_only"], found["quarantine"]) == ("sample", False, [])
    assert found["standing_approvals"] == {}
    assert re.match(rf"held by somebody \(.+\) for run {running.run_id} since ", found["lock"])
    first, second = found["runs"]
    assert first == {"run_id": running.run_id, "report": None}
    assert second["run_id"] == swept.run_id
    stored = report.read(store, swept.run_id)
    assert stored is not None and second["report"] == json.loads(stored.to_json())


def test_one_damaged_report_is_reported_and_the_others_are_shown(automated: Automated, status: Status) -> None:
    store = automated.repository.store
    swept = ended(automated.repository, began(automated.repository, DAY))
    damaged = ended(automated.repository, began(automated.repository, HOUR))
    store.put(run_folder.report(damaged.run_id), b"damaged")

    answer = status()
    assert answer.exit_code == ExitStatus.INCOMPLETE
    lines = answer.stdout.splitlines()
    assert f"{damaged.run_id}  its report cannot be read: " in lines[2]
    assert lines[3].startswith(f"{swept.run_id}  {swept.started_at:%F %T}Z  clean, sweep: ")

    first, second = json.loads(status("--json").stdout)["runs"]
    assert (first["report"], "report.json" in first["error"]) == (None, True)
    assert second["report"]["run_id"] == swept.run_id


def test_a_part_that_cannot_be_read_is_named_and_the_others_are_shown(
    automated: Automated, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = [ended(automated.repository, began(automated.repository, hours * HOUR)) for hours in (1, 2, 3)]
    store = automated.repository.store
    for plan in plans:
        store.put(sweeping.key(plan.run_id, "data/some/object"), b"copy")
    refused = (run_folder.report(plans[1].run_id), sweeping.key(plans[1].run_id, ""), lock.KEY)
    get, head, list_below = LocalStore.get, LocalStore.head, LocalStore.list

    def refusing(call: Callable[..., object]) -> Callable[..., object]:
        def asked(self: LocalStore, key: str) -> object:
            if key in refused:
                raise StorageError("403")
            return call(self, key)

        return asked

    for name, call in (("get", get), ("head", head), ("list", list_below)):
        monkeypatch.setattr(LocalStore, name, refusing(call))
    answer = status()
    assert answer.exit_code == ExitStatus.INCOMPLETE
    lines = answer.stdout.splitlines()
    assert lines[1] == "lock: it cannot be read: 403"
    of_runs = {plan.run_id: [line for line in lines if plan.run_id in line] for plan in plans}
    in_quarantine, report_line = of_runs[plans[1].run_id]
    assert "stay: 403" in in_quarantine and "its report cannot be read: 403" in report_line
    assert all(len(of_runs[plans[place].run_id]) == 2 for place in (0, 2)) and len(lines) == 8

    answer = status("--json")
    assert answer.exit_code == ExitStatus.INCOMPLETE
    found = json.loads(answer.stdout)
    in_errors = [f"{plans[1].run_id}: its report cannot be read: 403", "lock: it cannot be read: 403", in_quarantine]
    assert found["errors"] == in_errors
    assert [run["report"] is None for run in found["runs"]] == [False, True, False]
    monkeypatch.undo()
    store.delete([sweeping.key(plan.run_id, "data/some/object") for plan in plans])


def test_standing_approvals_that_cannot_be_fetched_are_named_and_the_rest_is_shown(
    automated: Automated, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(automated.repository, began(automated.repository, DAY))
    usual = status()
    get = LocalStore.get

    def refusing(self: LocalStore, key: str) -> bytes:
        if "standing-approvals/" in key:
            raise StorageError("403")
        return get(self, key)

    monkeypatch.setattr(LocalStore, "get", refusing)
    answer = status()
    assert answer.exit_code == ExitStatus.INCOMPLETE
    before, after = usual.stdout.splitlines(), answer.stdout.splitlines()
    assert [line for line in after if line not in before] == ["standing approvals: they cannot be read: 403"]
    assert len(after) == len(before) + 1
    assert json.loads(status("--json").stdout)["errors"] == ["standing approvals: they cannot be read: 403"]


def test_copies_of_a_run_that_cannot_be_judged_are_reported(automated: Automated, status: Status) -> None:
    store = automated.repository.store
    plans = [began(automated.repository, hours * HOUR) for hours in (1, 2, 3)]
    for plan in plans:
        store.put(sweeping.key(plan.run_id, "data/some/object"), b"copy")
    store.put(run_folder.plan(plans[0].run_id), b"damaged")
    store.put(run_folder.plan(plans[1].run_id), replace(plans[1], repository="another").to_json())

    lines = [line for line in status().stdout.splitlines() if line.startswith("quarantine: ")]
    assert len(lines) == 3
    assert f"of run {plans[2].run_id}" in lines[0]
    for plan, why, line in zip(plans, ("plan.json", "is of repository another"), lines[1:], strict=False):
        assert f"objects of run {plan.run_id} stay: " in line and why in line

    reported = json.loads(status("--json").stdout)["quarantine"]
    assert [(each["run_id"], "error" in each) for each in reported] == [
        (plans[2].run_id, False),
        *((plan.run_id, True) for plan in plans[:2]),
    ]
