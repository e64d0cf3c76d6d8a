"""The UI's contents and actions, requested over GraphQL: an instance and a code location in this process."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.reconstruct import ReconstructableJob
from dagster._core.execution.api import execute_run
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._utils.hosted_user_process import recon_job_from_origin
from dagster_graphql.schema import create_schema
from starlette.datastructures import Headers

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded, load
from lakefs_gc_assets.defs import jobs
from lakefs_gc_assets.defs.jobs import OpenedRun
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.harness.dagster_dev import commented

REPOSITORY = "sample"
SECRET_VARIABLE = "TEST_SCREENS_SECRET"
_LAUNCHED_HERE = {
    "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"},
    "run_coordinator": yaml.safe_load(commented("run_coordinator"))["run_coordinator"],
}
_LAUNCH = """mutation($parameters: ExecutionParams!) { launchPipelineExecution(executionParams: $parameters) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } ... on PipelineNotFoundError { message } } }"""
_RUN = """query($run: ID!) { runOrError(runId: $run) { ... on Run { status tags { key value } } } }"""


@dataclass
class Screens:
    """A repository of an embedded server as the UI shows it.

    Attributes:
        instance: its runs are made in this process, while they are launched.
    """

    server: EmbeddedServer
    instance: dg.DagsterInstance
    loaded: Loaded
    context: WorkspaceProcessContext

    def ask(self, query: str, headers: Mapping[str, str] | None = None, /, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL answer. Raises AssertionError if the query is refused."""
        request = self.context.create_request_context(SimpleNamespace(headers=Headers(headers)))
        answer = asyncio.run(create_schema().execute_async(query, context_value=request, variable_values=variables))
        assert not answer.errors, answer.errors
        assert answer.data is not None
        data: dict[str, Any] = answer.data
        return data

    def open(self, flow: Flow = Flow.CLEAN, sweep: bool = False) -> OpenedRun:
        """Opens a run over every window it needs, as the job open_run does."""
        permit = Permit("open_run", sweep=sweep)
        return jobs.open_run(self.instance, Collector.from_loaded(self.loaded, SystemClock()), flow, permit)

    def launch(
        self,
        job: str,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        assets: Sequence[str] | None = None,
        checks: Sequence[tuple[str, str]] | None = None,
        user: str = "",
    ) -> str:
        """Launches a job, or some of its assets and checks, as the UI does; returns the id of the Dagster run.

        Args:
            checks: asset and name per check.
            user: user who launches it, as a proxy states in a header; none without a proxy.
        """
        selector: dict[str, Any] = {**self.location, "pipelineName": job}
        if assets is not None:
            selector["assetSelection"] = [{"path": [name]} for name in assets]
        if checks is not None:
            selector["assetCheckSelection"] = [{"assetKey": {"path": [asset]}, "name": name} for asset, name in checks]
        metadata = {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]}
        parameters = {
            "selector": selector,
            "mode": "default",
            "runConfigData": config or {},
            "executionMetadata": metadata,
        }
        headers = {"X-Forwarded-User": user} if user else {}
        launched = self.ask(_LAUNCH, headers, parameters=parameters)["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        self.instance.launch_run(run_id, self.context.create_request_context())  # As the daemon does from the queue.
        run = self.instance.get_run_by_id(run_id)
        assert run is not None and run.job_code_origin is not None
        # Without the launcher: GraphQL is answered in an event loop, and a run has its own.
        execute_run(recon_job_from_origin(run.job_code_origin), run, self.instance)
        return run_id

    def collect(self, opened: OpenedRun) -> str:
        """Makes an opened run; returns the id of the Dagster run."""
        return self.launch("collect", tags=opened.tags)

    def status(self, run: str) -> str:
        """Final status of a Dagster run."""
        status: str = self.ask(_RUN, run=run)["runOrError"]["status"]
        return status

    def tags(self, run: str) -> dict[str, str]:
        """The tags of a Dagster run."""
        return {tag["key"]: tag["value"] for tag in self.ask(_RUN, run=run)["runOrError"]["tags"]}

    @property
    def location(self) -> dict[str, str]:
        """The code location in the form of GraphQL selectors."""
        (location,) = self.context.create_request_context().code_locations
        (repository,) = location.get_repositories()
        return {"repositoryName": repository, "repositoryLocationName": location.name}


@contextmanager
def open_screens(
    folder: Path, storage: Mapping[str, Any] | None = None, **sections: dict[str, Any]
) -> Iterator[Screens]:
    """Serves a sample repository from a folder and loads its definitions.

    Args:
        storage: additional sections of dagster.yaml.
        sections: additional sections of the configuration.
    """
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        server = stack.enter_context(EmbeddedServer(folder / "lakefs"))
        make_sample_repository(server, objects=40, repository=REPOSITORY)
        content = configuration(server, REPOSITORY).model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
        content["launch"] = {"sweep": "any"}
        for section, values in sections.items():
            content[section] = {**content.get(section, {}), **values}
        file = folder / "lakefs-gc.yaml"
        file.write_text(yaml.safe_dump(content), encoding="utf-8")
        environment.setenv(CONFIGURATION_VARIABLE, str(file))
        environment.setenv(SECRET_VARIABLE, server.secret_access_key)
        overrides = {**_LAUNCHED_HERE, **(storage or {})}
        instance = stack.enter_context(dg.instance_for_test(overrides=overrides, temp_dir=str(folder)))
        # Dagster caches the last job that this process ran, which may be of the server of an earlier test.
        ReconstructableJob.get_repository_definition.cache_clear()
        ReconstructableJob.get_definition.cache_clear()
        origin = LoadableTargetOrigin(executable_path=None, module_name="lakefs_gc_assets.definitions")
        target = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin))
        context = stack.enter_context(WorkspaceProcessContext(instance, target))
        yield Screens(server, instance, load(file), context)
