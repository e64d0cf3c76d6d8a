"""Under `dagster dev`, processes are killed in the middle of a sweep: first Spark's JVM, then the run's own process.

A sensor follows the sweep when it has succeeded. During the run and afterwards, planted secrets are searched for in
everything that other users can see of it.
"""

import json
import os
import signal
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs.partitions import run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.harness import process_tree
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT, DagsterDev, Run, dagster_dev
from lakefs_gc_assets_tests.runs import planted
from lakefs_gc_assets_tests.servers.free_ports import free_port

_HALTING_WORKERS = """
import sys, time, uuid
from pathlib import Path

if "lakefs_gc_assets.spark.start.worker_daemon" in sys.orig_argv:
    from lakefs_gc_assets.storage.local import LocalStore

    delete, folder = LocalStore.delete, Path(__file__).parent

    def halting(self, keys):
        if any(key.startswith("_lakefs/") for key in keys):
            return delete(self, keys)
        (folder / f"{uuid.uuid4()}.call").touch()
        while len(list(folder.glob("*.call"))) > int((folder / "allowed").read_text() or 0):
            time.sleep(0.1)
        return delete(self, keys)

    LocalStore.delete, LocalStore.delete_limit = halting, 4
else:
    from lakefs_gc_assets.collector.frame import files
    from lakefs_gc_assets.spark import engine

    # Else the driver itself would do everything with so few objects.
    files.LOCAL_ROWS = engine.LOCAL_ROWS = -1
"""
"""Loaded when Python starts: deletes take a few objects each, and halt after the allowed number of calls.

The collector's own deletes do not count: each task removes a small object to learn the store's time.
"""


@dataclass(frozen=True)
class Halting:
    """A folder whose `sitecustomize.py` makes Spark's Python workers halt in the middle of a sweep."""

    folder: Path
    store: ObjectStore

    def allow(self, calls: int) -> None:
        """Allows `calls` more deletes."""
        (self.folder / "allowed").write_text(str(len(list(self.folder.glob("*.call"))) + calls))

    def halted(self, run_id: str, known: int = 0) -> int | None:
        """Number of batches with stored receipts, once there are new ones and the sweep halts."""
        waits = len(list(self.folder.glob("*.call"))) > int((self.folder / "allowed").read_text())
        batches = len(receipts.keys(self.store, run_id))
        return batches if waits and batches > known else None


SECRET_VARIABLE = "TEST_LAKEFS_SECRET"
SENSOR = "follow_deleted_report"
FOLLOWED, FLOW = "lakefs/followed_run_id", "lakefs/flow"
STORE_SECRET_VARIABLE, TOKEN_VARIABLE = "TEST_STORE_SECRET", "TEST_STORE_TOKEN"
STORE_SECRET, TOKEN = "planted/store+secret==", "planted//session+token=="
ACCESS_KEY_VARIABLE, PROPERTY_VARIABLE = "TEST_STORE_KEY", "TEST_SPARK_PROPERTY"
ACCESS_KEY, PROPERTY = "AKIAplantedinnofieldofsecrets", "planted spark=property: #!"
_SPARK_PAGES = (
    "environment",
    "allexecutors",
    "jobs",
    "stages?details=true",
    "sql?details=true&planDescription=true&length=1000",
)
"""Pages of Spark's REST service about an application."""


def written(server: EmbeddedServer, repository: str, folder: Path, **sections: dict[str, Any]) -> Path:
    """A configuration file that deletes, including in launched runs; its secret is in the environment."""
    content = demo.configuration(server, repository).model_dump(exclude_defaults=True)
    content["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
    content["collection"]["sweep"] = True
    content["launch"] = {"sweep": "any"}
    content["spark"] = {"master": "local[2]", "driver_memory": "1g", "config": {"spark.ui.enabled": "false"}}
    file = folder / "lakefs-gc.yaml"
    file.write_text(yaml.safe_dump({**content, **sections}))
    return file


def run_id_of(run: Run) -> str:
    return run_id_in(run.tags["dagster/asset_partition_range_start"].partition("|")[0]) or ""


def require_no_secrets_in_processes(dev: DagsterDev, spark_ui: str, secrets: Mapping[str, str]) -> None:
    """Checks Spark's pages, and arguments and environments of processes, during a sweep.

    Args:
        secrets: by the environment variables that pass them to the configuration.
    """
    spelt = planted.spellings(*secrets.values())
    (application,) = json.loads(_read(f"{spark_ui}/api/v1/applications"))
    for page in _SPARK_PAGES:
        text = _read(f"{spark_ui}/api/v1/applications/{application['id']}/{page}")
        assert len(text) > 100
        planted.require_absent(spelt, text, page)
    planted.require_absent(spelt, _read(f"{spark_ui}/environment/"), "the UI")
    processes = process_tree.descendants(dev.process.pid)
    assert any("worker_daemon" in process_tree.command(pid) for pid in processes)
    for pid in processes:
        command, environment = process_tree.command(pid), process_tree.environment(pid)
        planted.require_absent(spelt, command, f"the command {command[:100]}")
        for variable, secret in secrets.items():
            environment = environment.replace(f"{variable}={secret}", "")
        planted.require_absent(spelt, environment, f"another variable of {command[:100]}")


def require_only_this_machine_reaches(dev: DagsterDev) -> None:
    """Requires that every listening socket of a run's processes is a loopback socket."""
    run = jvm(dev)
    listening = [each for pid in (run, *process_tree.descendants(run)) for each in process_tree.listening(pid)]
    assert listening
    assert {address.is_loopback for address in listening} == {True}, listening


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=900) as answer:
        text: str = answer.read().decode()
    return text


def jvm(dev: DagsterDev) -> int:
    """The only Spark JVM that a run has started."""
    (found,) = [pid for pid in process_tree.descendants(dev.process.pid) if "SparkSubmit" in process_tree.command(pid)]
    return found


def shown(dev: DagsterDev, run_id: str, *statuses: str) -> Run | None:
    """A run once it has a status from `statuses`."""
    return next((run for run in dev.runs("collect") if run.run_id == run_id and run.status in statuses), None)


def follower(dev: DagsterDev) -> Run | None:
    """The run that the sensor launched, once it has succeeded."""
    runs = [run for run in dev.runs("collect") if FOLLOWED in run.tags]
    assert not [run for run in runs if run.status == "FAILURE"], dev.log.read_text()[-5000:]
    return runs[0] if runs and runs[0].status == "SUCCESS" else None


def ended_ticks(dev: DagsterDev) -> list[dict[str, Any]] | None:
    """The sensor's ticks, once none is in progress: stopping a sensor does not interrupt its current tick."""
    ticks: list[dict[str, Any]] = dev.sensor(SENSOR)["sensorState"]["ticks"]
    return None if any(tick["status"] == "STARTED" for tick in ticks) else ticks


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_killed_sweeps_are_shown_as_failed_and_go_on_and_are_followed_once(tmp_path: Path) -> None:
    home, changed, events, files = (tmp_path / name for name in ("home", "changed", "events", "files"))
    for folder in (home, changed, events, files):
        folder.mkdir()
    (changed / "sitecustomize.py").write_text(_HALTING_WORKERS)
    with EmbeddedServer(tmp_path / "lakefs") as server:
        sample = make_sample_repository(server, objects=120)
        port = free_port()
        properties = {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(port),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            # Its name does not suggest a secret.
            "spark.hadoop.planted": {"env": PROPERTY_VARIABLE},
        }
        file = written(
            server,
            sample.repository,
            tmp_path,
            spark={"master": "local[2]", "driver_memory": "1g", "config": properties},
            automation={"optimized_every_hours": 0.001, "sensor_interval_seconds": 3},
            store={
                "local_root": str(server.objects_folder),
                "access_key_id": {"env": ACCESS_KEY_VARIABLE},
                "secret_access_key": {"env": STORE_SECRET_VARIABLE},
                "session_token": {"env": TOKEN_VARIABLE},
            },
        )
        secrets = {
            SECRET_VARIABLE: server.secret_access_key,
            STORE_SECRET_VARIABLE: STORE_SECRET,
            TOKEN_VARIABLE: TOKEN,
            ACCESS_KEY_VARIABLE: ACCESS_KEY,
            PROPERTY_VARIABLE: PROPERTY,
        }
        environment = {
            CONFIGURATION_VARIABLE: str(file),
            "PYTHONPATH": str(changed),
            # Broadcasts, shuffles, and other files of Spark; files of a killed JVM remain.
            "SPARK_LOCAL_DIRS": str(files),
            **secrets,
        }
        store = (
            Collector.from_loaded(Loaded(demo.configuration(server, sample.repository), {}), SystemClock()).open().store
        )

        halting = Halting(changed, store)
        halting.allow(2)
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment) as dev:
            dev.launch("open_run")
            first = dev.wait_for("run under way", lambda: next(iter(dev.runs("collect")), None))
            run_id = run_id_of(first)

            batches = dev.wait_for("first batches", lambda: halting.halted(run_id))
            require_no_secrets_in_processes(dev, f"http://127.0.0.1:{port}", secrets)
            require_only_this_machine_reaches(dev)
            planted.require_absent(planted.spellings(*secrets.values()), dev.everything(), "GraphQL")
            os.kill(jvm(dev), signal.SIGKILL)
            assert dev.wait_for("end of the run", lambda: shown(dev, first.run_id, "FAILURE", "SUCCESS"))
            left = demo.still_stored(server, sample)
            assert 0 < len(left) < len(sample.garbage)
            reported = report.read(store, run_id)
            assert reported is not None and not reported.success

            halting.allow(3)
            second = dev.again(first.run_id)
            dev.wait_for("more batches", lambda: halting.halted(run_id, batches))
            os.kill(process_tree.parent(jvm(dev)), signal.SIGKILL)
            assert dev.wait_for("end of the run", lambda: shown(dev, second, "FAILURE", "SUCCESS"))
            assert 0 < len(demo.still_stored(server, sample)) < len(left)
            reported = report.read(store, run_id)
            assert reported is not None and not reported.success

            halting.allow(1000)
            assert dev.sensor("launch_opened_runs")["sensorState"]["status"] == "RUNNING"
            assert dev.sensor(SENSOR)["sensorState"]["status"] == "STOPPED"
            dev.start_sensor(SENSOR)
            third = dev.again(second)
            dev.wait_for("end of the run", lambda: shown(dev, third, "FAILURE", "SUCCESS"))
            optimized = dev.wait_for("optimized run that ended", lambda: follower(dev))
            dev.stop_sensor(SENSOR)
            ticks = dev.wait_for("last tick of the stopped sensor to end", lambda: ended_ticks(dev))

            *killed, following = dev.runs("collect")[:4]
            assert [run.status for run in killed] == ["FAILURE", "FAILURE", "SUCCESS"]
            assert following == optimized
            followed = {run.run_id: run.tags[FOLLOWED] for run in dev.runs("collect")[3:]}
            assert dev.materialized_by("candidates") - followed.keys() == {first.run_id}
            assert dev.materialized_by("deleted_report") - followed.keys() == {third}

        assert FOLLOWED not in killed[-1].tags
        assert (optimized.tags[FLOW], optimized.tags[FOLLOWED]) == ("optimized", run_id)
        assert optimized.tags["dagster/sensor_name"] == SENSOR
        assert len(set(followed.values())) == len(followed), "a report was followed twice"
        assert {tick["status"] for tick in ticks} == {"SKIPPED", "SUCCESS"}
        launches = [tick["runIds"] for tick in ticks if tick["cursor"] == run_id and tick["runIds"]]
        assert launches == [[optimized.run_id]]
        clean, next_report = report.read(store, run_id), report.read(store, run_id_of(optimized))
        assert clean is not None and next_report is not None
        assert (clean.success, clean.dry_run, clean.counts["deleted"]) == (True, False, len(sample.garbage))
        assert (next_report.success, next_report.dry_run) == (True, False)
        assert (next_report.flow, next_report.base_run, next_report.why_clean) == ("optimized", run_id, None)
        assert next_report.started_at > clean.ended_at
        assert demo.still_stored(server, sample) == []
        assert unreadable(server, sample) == []
        spelt = planted.spellings(*secrets.values(), planted.basic(server.access_key_id, server.secret_access_key))
        seen = [home, events, files, server.objects_folder / sample.repository / "_lakefs"]
        assert all(any(planted.contents(folder)) for folder in seen)
        for folder in seen:
            for name, content in planted.contents(folder):
                planted.require_absent(spelt, content, name)
