"""Purging quarantine on the embedded server after checking which objects are live: by command and by the UI's job."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository, SystemClock
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.cli.test_json import require_documented
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, began
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_collecting_expired import DAYS, status_of

OLD = ("branched", "hidden", "expired")


@dataclass
class Quarantined:
    """A repository whose first run moved objects of an expired commit, and whose second run moved unreferenced ones."""

    server: EmbeddedServer
    repository: str
    old: str
    new_metarange: str
    addresses: dict[str, str]
    folder: Path
    expired: str = ""
    dropped: str = ""

    @property
    def opened(self) -> OpenRepository:
        return Collector.from_loaded(self.loaded(), SystemClock()).open()

    def loaded(self, **changes: Any) -> Loaded:
        given = demo.configuration(self.server, self.repository)
        collection = given.collection.model_copy(update={"quarantine_days": 0, **changes})
        return Loaded(given.model_copy(update={"collection": collection}), {})

    def moved(self) -> set[str]:
        return {
            key.removeprefix(layout.QUARANTINE_PREFIX).partition("/")[2]
            for batch in self.opened.store.list(layout.QUARANTINE_PREFIX)
            for key in batch["key"].to_pylist()
        }

    def command(self, *arguments: str, answer: str | None = "--yes", **changes: float) -> Result:
        """Purges on plain tables; `answer` is a user's typed answer, or --yes."""
        server = self.server
        collection = {"wait_before_dump_seconds": 0, "quarantine_days": 0, **changes}
        content = {
            "repository": self.repository,
            "lakefs": {
                "endpoint": server.url,
                "access_key_id": server.access_key_id,
                "secret_access_key": {"env": "TEST_LAKEFS_SECRET"},
            },
            "store": {"local_root": str(server.objects_folder)},
            "collection": collection,
        }
        file = self.folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        given = ["purge", "--config", str(file), *(["--yes"] if answer == "--yes" else []), *arguments]
        with (
            mock.patch.object(Collector, "engine", lambda collector, *settings: LocalEngine()),
            mock.patch("lakefs_gc_assets.cli.common.start_as_configured"),
        ):
            return CliRunner().invoke(main, given, input=answer, env={"TEST_LAKEFS_SECRET": server.secret_access_key})

    def job(self, config: dict[str, Any] | None = None, **changes: Any) -> dg.ExecuteInProcessResult:
        job = build(self.loaded(**changes), SystemClock()).resolve_job_def("purge")
        with dg.DagsterInstance.ephemeral() as instance:
            return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)

    def sweep(self, flow: Flow, *names: str) -> str:
        """Moves objects as a run of a flow moves garbage."""
        repository = self.opened
        run = began(repository, DAY, flow=flow, repository=self.repository)
        held = Lock.acquire(repository.store, run_id=run.run_id, owner="run", now=NOW, expiry=HOUR)
        keys = [self.addresses[name] for name in names]
        sizes = pa.array([repository.store.head(key).size for key in keys], pa.int64())
        rows = candidates(*keys).drop_columns(["size"]).append_column("size", sizes)
        for moved in Quarantine(repository.store, run.run_id, held.token, repository.clock, run.attempt).delete(rows):
            assert set(moved["outcome"].to_pylist()) == {"quarantined"}
        held.release()
        # Clocks of servers and stores have whole seconds.
        for receipt in self.server.objects_folder.glob(f"**/{run.run_id}/receipts/*"):
            os.utime(receipt, (NOW.timestamp() - 60, NOW.timestamp() - 60))
        return run.run_id


@pytest.fixture
def quarantined(tmp_path: Path) -> Iterator[Quarantined]:
    with EmbeddedServer(tmp_path / "server", settings=ServerSettings()) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - 30 * DAYS):
            repository = clients.repository(server)
            addresses = {name: clients.upload(server, name, f"old {name}".encode()) for name in OLD}
            old = clients.commit(server, "old")["id"]
            addresses["dropped"] = clients.upload(server, "dropped", b"dropped")
            path = f"/repositories/{repository}/branches/main/objects"
            assert clients.call(server, "DELETE", path, path="dropped")[0] == 204
        with server.clock.at(now - 20 * DAYS):
            for name in OLD:
                clients.upload(server, name, f"new {name}".encode())
            new = clients.commit(server, "new")["meta_range_id"]
        rules = {"default_retention_days": 12, "branches": []}
        assert clients.call(server, "PUT", f"/repositories/{repository}/settings/gc_rules", rules)[0] == 204
        made = Quarantined(server, repository, old, new, addresses, tmp_path)
        made.expired, made.dropped = made.sweep(Flow.COMMITTED, *OLD), made.sweep(Flow.CLEAN, "dropped")
        yield made


def branch_on(quarantined: Quarantined, commit: str, name: str = "back") -> None:
    """Makes all objects of a commit live again."""
    body = {"name": name, "source": commit}
    path = f"/repositories/{quarantined.repository}/branches"
    assert clients.call(quarantined.server, "POST", path, body)[0] == 201


def test_nothing_is_purged_unless_somebody_says_so(quarantined: Quarantined, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = quarantined.command(answer=None)
    monkeypatch.setattr(sys.modules["lakefs_gc_assets.cli.common"], "is_on_terminal", lambda: True)
    declined = quarantined.command(answer="n\n")

    assert (refused.exit_code, declined.exit_code) == (1, 1)
    assert refused.stderr == "lakefs-gc: nothing was purged: there is no terminal to ask on, so give --yes\n"
    assert "Permanently delete 4 objects, " in declined.stderr
    assert declined.stderr.endswith("lakefs-gc: not confirmed: nothing was purged. Give --yes to skip the question\n")
    assert len(quarantined.moved()) == 4
    assert quarantined.command(answer="y\n").exit_code == 0
    assert quarantined.moved() == set()


def test_what_is_live_again_comes_back_and_the_rest_is_gone(quarantined: Quarantined) -> None:
    branch_on(quarantined, quarantined.old)
    assert [status_of(quarantined.server, "back", name) for name in OLD] == [410] * 3

    shown = quarantined.command("--dry-run")
    assert shown.exit_code == 0, shown.output
    assert f"run {quarantined.dropped}: 1 object, 7 B, due at " in shown.output
    assert "4 objects" in shown.output.splitlines()[-1]
    assert len(quarantined.moved()) == 4

    result = quarantined.command()

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    live = {quarantined.addresses[name] for name in OLD}
    assert set(lines[:-1]) == {f"{address}: live again, and brought back" for address in live}
    assert lines[-1] == "1 purged, 7 B freed, 3 live again, and brought back"
    assert [status_of(quarantined.server, "back", name) for name in OLD] == [200] * 3
    assert quarantined.moved() == live
    store = quarantined.opened.store
    assert across_runs.read_restoration(store) is not None
    outcomes = receipts.read(store, quarantined.dropped)["outcome"].to_pylist()
    assert outcomes.count("purged") == 1
    assert lock.holder(store) is None


def test_in_json(quarantined: Quarantined) -> None:
    branch_on(quarantined, quarantined.old)

    shown = json.loads(quarantined.command("--dry-run", "--json").stdout)
    assert {row["run_id"]: (row["objects"], row["due"]) for row in shown} == {
        quarantined.dropped: (1, True),
        quarantined.expired: (3, True),
    }
    assert {row["bytes"] for row in shown if row["objects"] == 1} == {7}
    assert all(row["due_at"].endswith("+00:00") for row in shown)
    result = quarantined.command("--json", "--quiet")

    assert (result.exit_code, result.stderr) == (0, "")
    *rows, last = map(json.loads, result.stdout.splitlines())
    fates = {quarantined.addresses[name]: "live again, and brought back" for name in OLD}
    require_documented("purge --json", rows)
    assert {row["address"]: row["fate"] for row in rows} == {**fates, quarantined.addresses["dropped"]: "purged"}
    assert last == {"counts": {"purged": 1, "live again, and brought back": 3}, "bytes_freed": 7}


def test_nothing_goes_before_its_time(quarantined: Quarantined) -> None:
    result = quarantined.command(quarantine_days=1)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "0 purged, 0 B freed")
    one = quarantined.command("--run-id", quarantined.expired, quarantine_days=1)
    assert one.exit_code == 1
    assert "lower collection.quarantine_days" in one.stderr
    assert len(quarantined.moved()) == 4


@pytest.mark.usefixtures("spark")
def test_the_job_shows_first_and_purges_when_it_is_confirmed(quarantined: Quarantined) -> None:
    def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
        assert result.success
        (output,) = [event.step_output_data for event in result.all_node_events if event.is_successful_output]
        return {name: value.value for name, value in output.metadata.items()}

    shown = metadata(quarantined.job())
    assert (shown["confirmed"], shown["objects"]) == (False, 4)
    assert "confirm: true" in shown["next"] and quarantined.addresses["dropped"] in shown["for_example"]
    assert len(quarantined.moved()) == 4

    done = metadata(quarantined.job({"ops": {"empty_quarantine": {"config": {"confirm": True}}}}))

    assert (done["confirmed"], done["purged"]) == (True, 4)
    assert done["bytes_freed"] == sum(len(f"old {name}") for name in OLD) + len("dropped")
    assert quarantined.moved() == set()


def test_nothing_is_purged_if_a_file_of_a_commit_is_missing(quarantined: Quarantined) -> None:
    quarantined.opened.store.delete([METADATA_PREFIX + quarantined.new_metarange])
    result = quarantined.command()
    assert (result.exit_code, len(quarantined.moved())) == (Status.FAILED, 4), result.output
    assert "the file is missing from the object store" in result.stderr
