"""Runs on a cluster and over Spark Connect, from the command line, with nothing changed but the settings of `spark`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.embedded import bucket, demo
from lakefs_gc_assets.embedded.sample import Sample, make_sample_repository, unreadable
from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CONFIGURATION_VARIABLE
from lakefs_gc_assets_tests import clusters

pytestmark = pytest.mark.timeout(900)
_SECRET = "LAKEFS_GC_TEST_SECRET"
_PHASES = ("store_df: cutoff", "uncommitted_df: prepare", "committed_df: ", "candidates: ", "deleted_report: recheck")
"""What the command says when a phase has begun."""


@dataclass
class Collected:
    """A sample repository on an embedded server, and the command that collects it."""

    folder: Path
    server: EmbeddedServer
    sample: Sample

    def run(self, flow: str, spark: dict[str, Any], told: Callable[[str], None] = lambda line: None) -> str:
        """Makes a sweeping run; returns its table. Its lines are told as they come."""
        content = demo.configuration(self.server, self.sample.repository).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": _SECRET}
        content["spark"] = spark
        file = self.folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        command = [sys.executable, "-c", "from lakefs_gc_assets.cli import main; main()", "run"]
        with subprocess.Popen(
            [*command, "--sweep", "--flow", flow],
            env={**_environment(), CONFIGURATION_VARIABLE: str(file), _SECRET: self.server.secret_access_key},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                told(line)
            table = process.stdout.read()
        assert process.returncode == 0, "".join(lines)
        return table

    def require_collected(self) -> None:
        """All garbage is gone and nothing else."""
        assert unreadable(self.server, self.sample) == []
        assert demo.still_stored(self.server, self.sample) == []


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "LAKEFS_"))}


@pytest.fixture
def collected(tmp_path: Path) -> Iterator[Collected]:
    with bucket.server(tmp_path / "lakefs", "oss", "", None) as server:
        yield Collected(tmp_path, server, make_sample_repository(server, objects=60))


@pytest.mark.slow
def test_a_standalone_cluster_that_loses_executors(collected: Collected, tmp_path: Path) -> None:
    killed: list[str] = []

    with clusters.standalone(tmp_path) as cluster:
        properties = {
            "spark.driver.host": "127.0.0.1",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.python.daemon.module": "lakefs_gc_assets.spark.start.worker_daemon",
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.sql.shuffle.partitions": "4",
        }
        spark = {"master": cluster.master, "config": properties}

        def kill(line: str) -> None:
            for phase in _PHASES:
                if phase in line and phase not in killed and cluster.kill_an_executor():
                    killed.append(phase)

        table = collected.run("clean", spark, kill)
        assert killed == list(_PHASES)
        assert f"{len(collected.sample.garbage)} objects" in table
        collected.require_collected()

        again = collected.run("optimized", spark)
        assert "optimized: nothing to delete" in again
        assert "0 slices" in again and "0 ranges read" in again
        collected.require_collected()


@pytest.mark.slow
def test_spark_connect(collected: Collected, tmp_path: Path) -> None:
    with clusters.connect_server(tmp_path) as address:
        assert "clean: deleted" in collected.run("clean", {"remote": address})
        collected.require_collected()
        again = collected.run("optimized", {"remote": address})
        assert "optimized: nothing to delete" in again
        assert "0 slices" in again and "0 ranges read" in again
        collected.require_collected()
