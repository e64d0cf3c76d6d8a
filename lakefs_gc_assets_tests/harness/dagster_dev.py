"""`dagster dev` as a user starts it, used through GraphQL as the UI does."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lakefs_gc_assets_tests.servers.free_ports import free_port

_LONGEST_SECONDS = 900
_PATIENT = {f"DAGSTER_{call}GRPC_TIMEOUT_SECONDS": "300" for call in ("", "SENSOR_", "SCHEDULE_", "REPOSITORY_")}
"""A busy machine answers slowly."""
PROJECT = Path(__file__).resolve().parents[2]
Found = TypeVar("Found")

_LOCATIONS = """query { workspaceOrError { ... on Workspace { locationEntries { name loadStatus
  locationOrLoadError { __typename ... on PythonError { message }
    ... on RepositoryLocation { repositories { name } } } } } } }"""
_LAUNCH = """mutation($parameters: ExecutionParams!) { launchRun(executionParams: $parameters) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
_AGAIN = """mutation($parent: String!) { launchRunReexecution(
  reexecutionParams: { parentRunId: $parent, strategy: FROM_FAILURE }) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
_MATERIALIZED = """query($path: [String!]!) { assetOrError(assetKey: { path: $path }) {
  ... on Asset { assetMaterializations(limit: 50) { runId } } } }"""
_START_SENSOR = """mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
  __typename ... on Sensor { sensorState { id status } } ... on PythonError { message } } }"""
_SENSOR = """query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) { __typename ... on Sensor {
  description sensorState { id status ticks(limit: 50) { status skipReason runIds cursor error { message } } } } } }"""
_STOP_SENSOR = """mutation($id: String!) { stopSensor(id: $id) { __typename ... on PythonError { message } } }"""
_FAILURES = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events { __typename
  ... on RunFailureEvent { error { message errorChain { error { message } } } }
  ... on ExecutionStepFailureEvent { failureMetadata { description } error { message } } } } } }"""
_EVERYTHING = """query($selector: RepositorySelector!) {
  runsOrError(limit: 50) { ... on Runs { results { runId runConfigYaml tags { key value } } } }
  allTopLevelResourceDetailsOrError(repositorySelector: $selector) { __typename
    ... on ResourceDetailsList { results { name description
      configuredValues { key value type } configFields { name description defaultValueAsJson } } } }
  repositoryOrError(repositorySelector: $selector) { ... on Repository { jobs { name description } } } }"""
_EVENTS = """query($id: ID!) { logsForRun(runId: $id) { ... on EventConnection { events {
  ... on MessageEvent { message } ... on DisplayableEvent { label description
    metadataEntries { label description ... on TextMetadataEntry { text }
      ... on MarkdownMetadataEntry { mdStr } } }
  ... on ErrorEvent { error { message stack errorChain { error { message } } } }
  ... on ExecutionStepFailureEvent { failureMetadata { label description } } } } } }"""
_RUNS = """query { runsOrError(limit: 50) { ... on Runs { results { runId jobName status startTime endTime
  tags { key value } } } } }"""


@dataclass(frozen=True)
class Run:
    """A Dagster run as the UI shows it."""

    run_id: str
    job: str
    status: str
    tags: Mapping[str, str]


@dataclass
class DagsterDev:
    """A webserver and a daemon with one code location.

    Attributes:
        headers: headers that a proxy adds to requests.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    location: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL answer. Raises AssertionError if the answer has errors."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        headers = {"Content-Type": "application/json", **self.headers}
        request = urllib.request.Request(f"{self.url}/graphql", body, headers)
        with urllib.request.urlopen(request, timeout=_LONGEST_SECONDS) as answer:
            content = json.load(answer)
        assert not content.get("errors"), content["errors"]
        data: dict[str, Any] = content["data"]
        return data

    def wait_for(self, what: str, look: Callable[[], Found | None]) -> Found:
        """Polls until `look` returns a value. Raises AssertionError with the log on timeout."""
        until = time.monotonic() + _LONGEST_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            if (found := look()) is not None:
                return found
            time.sleep(0.5)
        raise AssertionError(f"no {what} in {_LONGEST_SECONDS} s; the log ends:\n{self.log.read_text()[-5000:]}")

    def wait_until_loaded(self) -> None:
        """Waits for the code location. Raises AssertionError if it cannot be loaded."""

        def loaded() -> dict[str, Any] | None:
            try:
                entries = self.ask(_LOCATIONS)["workspaceOrError"].get("locationEntries", [])
            except OSError:
                return None
            return next((entry for entry in entries if entry["loadStatus"] == "LOADED"), None)

        entry = self.wait_for("code location", loaded)
        assert entry["locationOrLoadError"]["__typename"] == "RepositoryLocation", entry
        self.location = entry["name"]

    def launch(self, job: str, config: Mapping[str, Any] | None = None, tags: Mapping[str, str] | None = None) -> str:
        """Launches a job as its launchpad does; returns the id of the Dagster run."""
        selector = {**self._repository, "jobName": job}
        metadata = {"tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]}
        parameters = {"selector": selector, "runConfigData": config or {}, "executionMetadata": metadata}
        launched = self.ask(_LAUNCH, parameters=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run_id: str = launched["run"]["runId"]
        return run_id

    def post(self, target: str, body: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """The answer of the webserver to a request that any web page can make."""
        request = urllib.request.Request(f"{self.url}{target}", body.encode(), dict(headers), method="POST")
        with urllib.request.urlopen(request, timeout=_LONGEST_SECONDS) as answer:
            content: dict[str, Any] = json.load(answer)
        return content

    def launching(self, job: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The query and variables that launch a job."""
        parameters = {"selector": {**self._repository, "jobName": job}, "runConfigData": config or {}}
        return {"query": _LAUNCH, "variables": {"parameters": parameters}}

    def failures(self, run_id: str) -> str:
        """The failure shown on the page of a run."""
        return json.dumps(self.ask(_FAILURES, id=run_id)["logsForRun"]["events"])

    def everything(self) -> str:
        """All GraphQL data about runs, resources and jobs."""
        reported = [self.ask(_EVERYTHING, selector=self._repository)]
        return json.dumps(
            [*reported, *(self.ask(_EVENTS, id=run["runId"]) for run in reported[0]["runsOrError"]["results"])]
        )

    def again(self, run_id: str) -> str:
        """Re-executes a run from its failure, as the button does; returns the id of the new one."""
        launched = self.ask(_AGAIN, parent=run_id)["launchRunReexecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        new: str = launched["run"]["runId"]
        return new

    def materialized_by(self, asset: str) -> set[str]:
        """Ids of the runs on an asset's page."""
        found = self.ask(_MATERIALIZED, path=[asset])["assetOrError"].get("assetMaterializations", [])
        return {event["runId"] for event in found}

    def start_sensor(self, name: str) -> None:
        """Turns a sensor on."""
        started = self.ask(_START_SENSOR, selector=self._sensor(name))["startSensor"]
        assert started["sensorState"]["status"] == "RUNNING", started

    def stop_sensor(self, name: str) -> None:
        """Turns a sensor off."""
        stopped = self.ask(_STOP_SENSOR, id=self.sensor(name)["sensorState"]["id"])["stopSensor"]
        assert stopped["__typename"] == "StopSensorMutationResult", stopped

    def sensor(self, name: str) -> dict[str, Any]:
        """A sensor's description, state and last ticks."""
        found: dict[str, Any] = self.ask(_SENSOR, selector=self._sensor(name))["sensorOrError"]
        assert found["__typename"] == "Sensor", found
        return found

    def runs(self, job: str) -> list[Run]:
        """Runs of a job, oldest first."""
        found = [
            Run(run["runId"], run["jobName"], run["status"], {tag["key"]: tag["value"] for tag in run["tags"]})
            for run in self.ask(_RUNS)["runsOrError"]["results"]
        ]
        return [run for run in reversed(found) if run.job == job]

    @property
    def _repository(self) -> dict[str, str]:
        return {"repositoryName": "__repository__", "repositoryLocationName": self.location}

    def _sensor(self, name: str) -> dict[str, str]:
        return {**self._repository, "sensorName": name}


def commented(section: str) -> str:
    """A section that is commented out in dagster.yaml, without the comment signs; empty if `section` is empty."""
    lines = re.search(rf"^# {section}:\n(?:# .+\n)+", (PROJECT / "dagster.yaml").read_text(), re.MULTILINE)
    return re.sub(r"^# ", "", lines[0], flags=re.MULTILINE) if section and lines else ""


@contextmanager
def dagster_dev(
    home: Path, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], section: str = ""
) -> Iterator[DagsterDev]:
    """Starts `dagster dev` with our dagster.yaml, waits for the code location, and ends it with all its processes.

    Args:
        home: an empty folder for DAGSTER_HOME.
        section: a section to enable that is commented out in dagster.yaml.
        arguments: arguments that select the code to load.
        folder: working folder.
        environment: variables in addition to our own.
    """
    (home / "dagster.yaml").write_text((PROJECT / "dagster.yaml").read_text() + commented(section))
    port = free_port()
    command = [sys.executable, "-m", "dagster", "dev", *arguments, "-h", "127.0.0.1", "-p", str(port)]
    log = home / "dagster-dev.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **_PATIENT, "DAGSTER_HOME": str(home), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            dev = DagsterDev(f"http://127.0.0.1:{port}", process, log)
            dev.wait_until_loaded()
            yield dev
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            # End active runs as well; the process group is this process's own.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
