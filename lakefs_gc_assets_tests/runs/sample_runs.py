"""The sample repository, and its runs by the command, with only the settings of `spark` changed."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import Sample, make_sample_repository, unreadable
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.clusters.spark_clusters import QUICKLY

_SECRET = "LAKEFS_GC_TEST_SECRET"


@dataclass
class SampleRuns:
    """A sample repository on an embedded server, and the command that collects it."""

    folder: Path
    server: EmbeddedServer
    sample: Sample

    @property
    def store(self) -> ObjectStore:
        """The object store of the repository."""
        blockstore = self.server.core.blockstore
        return blockstore.open(f"{blockstore.scheme}{self.sample.repository}")

    def objects(self) -> set[str]:
        """The addresses of all stored data objects."""
        return {key for batch in self.store.list("data/") for key in batch.column("key").to_pylist()}

    def run(
        self,
        flow: str,
        spark: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        collection: Mapping[str, Any] | None = None,
        reported: Callable[[str], None] = lambda line: None,
    ) -> str:
        """Makes a sweeping run and returns its table; passes its lines on as they come."""
        content = demo.configuration(self.server, self.sample.repository).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": _SECRET}
        content["collection"] |= collection or {}
        content["spark"] = dict(spark)
        file = self.folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        secret = {CONFIGURATION_VARIABLE: str(file), _SECRET: self.server.secret_access_key}
        command = [sys.executable, "-c", "from lakefs_gc_assets.cli import main; main()", "run"]
        with subprocess.Popen(
            [*command, "--sweep", "--flow", flow, "--verbose"],
            env={**_environment(), **QUICKLY, **(environment or {}), **secret},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                reported(line)
            table = process.stdout.read()
        assert process.returncode == 0, "".join(lines)
        return table

    def require_collected(self) -> None:
        """Requires that all garbage is gone and nothing else."""
        assert unreadable(self.server, self.sample) == []
        assert demo.still_stored(self.server, self.sample) == []


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER_", "LAKEFS_"))}


@pytest.fixture
def sample_runs(tmp_path: Path) -> Iterator[SampleRuns]:
    """A small sample repository before any collection."""
    with demo.open_server(tmp_path / "lakefs", "oss", "", None) as server:
        yield SampleRuns(tmp_path, server, make_sample_repository(server, objects=60))
