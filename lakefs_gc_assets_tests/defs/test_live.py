"""A user's evening: `dagster dev`, a switch in the UI, one clean run, and the automatic runs that follow."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs.partitions import run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT, DagsterDev, Run, dagster_dev

SECRET_VARIABLE = "TEST_LAKEFS_SECRET"
SENSOR = "follow_deleted_report"
FOLLOWED, FLOW = "lakefs/followed_run_id", "lakefs/flow"


def written(server: EmbeddedServer, repository: str, folder: Path, **sections: dict[str, Any]) -> Path:
    """A configuration file that deletes, including in launched runs; its secret is in the environment."""
    content = configuration(server, repository).model_dump(exclude_defaults=True)
    content["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
    content["collection"]["sweep"] = True
    content["launch"] = {"sweep": "any"}
    content["spark"] = {"master": "local[2]", "driver_memory": "1g", "config": {"spark.ui.enabled": "false"}}
    file = folder / "lakefs-gc.yaml"
    file.write_text(yaml.safe_dump({**content, **sections}))
    return file


def run_id_of(run: Run) -> str:
    return run_id_in(run.tags["dagster/asset_partition_range_start"].partition("|")[0]) or ""


def ended(dev: DagsterDev, number: int) -> Run | None:
    """The run of the job collect at index `number`, once it has succeeded."""
    runs = dev.runs("collect")
    assert not [run for run in runs if run.status == "FAILURE"], dev.log.read_text()[-5000:]
    return runs[number] if len(runs) > number and runs[number].status == "SUCCESS" else None


def ended_ticks(dev: DagsterDev) -> list[dict[str, Any]] | None:
    """The sensor's ticks, once none is in progress: stopping a sensor does not interrupt its current tick."""
    ticks: list[dict[str, Any]] = dev.sensor(SENSOR)["sensorState"]["ticks"]
    return None if any(tick["status"] == "STARTED" for tick in ticks) else ticks


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_clean_run_is_followed_by_an_optimized_one_by_itself_and_once(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server:
        sample = make_sample_repository(server, objects=60)
        automation = {"optimized_every_hours": 0.001, "sensor_interval_seconds": 3}
        file = written(server, sample.repository, tmp_path, automation=automation)
        environment = {CONFIGURATION_VARIABLE: str(file), SECRET_VARIABLE: server.secret_access_key}
        with dagster_dev(home, ["-w", "workspace.yaml"], PROJECT, environment) as dev:
            assert dev.sensor(SENSOR)["sensorState"]["status"] == "STOPPED"
            assert dev.sensor("launch_opened_runs")["sensorState"]["status"] == "RUNNING"
            dev.start_sensor(SENSOR)
            dev.launch("open_run")
            clean = dev.wait_for("clean run that ended", lambda: ended(dev, 0), 400)
            optimized = dev.wait_for("optimized run that ended", lambda: ended(dev, 1), 400)
            dev.stop_sensor(SENSOR)
            ticks = dev.wait_for("last tick of the stopped sensor to end", lambda: ended_ticks(dev), 60)
            runs = dev.runs("collect")

        assert (clean.tags[FLOW], clean.tags.get(FOLLOWED)) == ("clean", None)
        assert (optimized.tags[FLOW], optimized.tags[FOLLOWED]) == ("optimized", run_id_of(clean))
        assert optimized.tags["dagster/sensor_name"] == SENSOR
        followed = [run.tags[FOLLOWED] for run in runs[1:]]
        assert len(set(followed)) == len(followed), "a report was followed twice"
        assert {tick["status"] for tick in ticks} == {"SKIPPED", "SUCCESS"}
        assert [tick["runIds"] for tick in ticks if tick["cursor"] == run_id_of(clean) and tick["runIds"]] == [
            [optimized.run_id]
        ]

        loaded = Loaded(configuration(server, sample.repository), {})
        store = Collector.from_loaded(loaded, SystemClock()).open().store
        first, second = (report.read(store, run_id_of(run)) for run in (clean, optimized))
        assert first is not None and second is not None
        assert (first.flow, first.success, first.dry_run, first.counts["deleted"]) == (
            "clean",
            True,
            False,
            len(sample.garbage),
        )
        assert (second.flow, second.success, second.dry_run, second.base_run, second.why_clean) == (
            "optimized",
            True,
            False,
            first.run_id,
            None,
        )
        assert second.started_at > first.ended_at
        assert unreadable(server, sample) == []
