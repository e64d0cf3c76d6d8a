"""A repository of an embedded server with its definitions and a Dagster instance, without Dagster processes."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.sensor_definition import SensorExecutionData

from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.partitions import RunPartitions, run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.collector.scripted import HandClock

REPOSITORY = "sample"


@dataclass
class Automated:
    """A repository, the instance, and the clock of both.

    Attributes:
        changes: changed settings of the configuration, by section.
    """

    server: EmbeddedServer
    instance: dg.DagsterInstance
    clock: HandClock = field(default_factory=lambda: HandClock(NOW))
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def loaded(self) -> Loaded:
        """The configuration."""
        content = configuration(self.server, REPOSITORY).model_dump()
        for section, values in self.changes.items():
            content[section] |= values
        return Loaded(Configuration.model_validate(content), {})

    @property
    def definitions(self) -> dg.Definitions:
        """Definitions as Dagster would load them."""
        return build(self.loaded, self.clock)

    @property
    def collector(self) -> Collector:
        """The resource of sensors."""
        return Collector.from_loaded(self.loaded, self.clock)

    @property
    def repository(self) -> OpenRepository:
        """The repository, opened."""
        return self.collector.open()

    def write_configuration(self, folder: Path, variable: str) -> Path:
        """Writes a configuration file whose secret is in an environment variable."""
        content = configuration(self.server, REPOSITORY).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": variable}
        file = folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content))
        return file

    @property
    def run_ids(self) -> Sequence[str]:
        """The partitions of runs: ids without their times, and names."""
        keys = self.instance.get_dynamic_partitions(RunPartitions(REPOSITORY).run_ids.name or "")
        return [run_id_in(key) or key for key in keys]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A server with a small repository; each test leaves it without runs."""
    with EmbeddedServer(tmp_path_factory.mktemp("lakefs")) as server:
        make_sample_repository(server, objects=40, repository=REPOSITORY)
        yield server


def new_instance(factory: pytest.TempPathFactory) -> AbstractContextManager[dg.DagsterInstance]:
    """An instance with a separate home. Dagster fills the first home in 0.3 s; copying it takes a fifth of that."""
    filled = factory.getbasetemp() / "dagster_home"
    if not filled.exists():
        filled.mkdir()
        with dg.instance_for_test(temp_dir=str(filled)):
            pass
    home = shutil.copytree(filled, factory.mktemp("dagster_home"), dirs_exist_ok=True)
    return dg.instance_for_test(temp_dir=str(home))


@pytest.fixture
def automated(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Automated]:
    """The repository without any run."""
    with new_instance(tmp_path_factory) as instance:
        found = Automated(server, instance)
        yield found
        found.changes.clear()
        store = found.repository.store
        for batch in store.list("_lakefs/retention/gc/uncommitted/"):
            store.delete(batch.column("key").to_pylist())


def sensed(instance: dg.DagsterInstance, definitions: dg.Definitions, cursor: str = "-1") -> SensorExecutionData:
    """The sensor's answer to the first end of a run after its cursor."""
    sensor, repository = definitions.resolve_sensor_def("launch_opened_runs"), definitions.get_repository_def()
    with dg.build_sensor_context(instance, cursor, repository_def=repository) as context:
        return sensor.evaluate_tick(context)


def output_of(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Metadata that the only op of a job adds to its output."""
    assert result.success
    (output,) = [event.step_output_data for event in result.all_node_events if event.is_successful_output]
    return {name: value.value for name, value in output.metadata.items()}


def failure_in(result: dg.ExecuteInProcessResult) -> str:
    """The message of the only step that failed."""
    (failed,) = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    return (failed.user_failure_data and failed.user_failure_data.description) or ""
