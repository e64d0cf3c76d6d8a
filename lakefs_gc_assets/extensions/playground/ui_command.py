"""`lakefs-gc ui`: the Dagster UI on your own repositories or on an embedded lakeFS server.

The UI is a child process that ends with this process. Its log goes to a file. The URL is printed once there is
something to see, such as a first dry run.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click
import urllib3
import yaml
from urllib3.exceptions import HTTPError

from lakefs_gc_assets.cli.common import JSON, answer, loaded_configurations, print_result, show_progress
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, load_all
from lakefs_gc_assets.defs.pages import PAGES_VARIABLE
from lakefs_gc_assets.defs.running import FEW_WRITES
from lakefs_gc_assets.errors import CollectionError, LogLine, requiring
from lakefs_gc_assets.extensions.playground.demo import playground
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet
from lakefs_gc_assets.extensions.playground.options import FOLDER, OBJECTS, RULES
from lakefs_gc_assets.extensions.playground.page_server import HOST, serve_pages

_OTHER_PORT = "give --port a free one (with make ui: PORT=3001)"
_DEFINITIONS = "lakefs_gc_assets.definitions"
_START_SECONDS = 600
_RUN_SECONDS = 1800
_END_SECONDS = 30
_ANSWER_SECONDS = 60
_ENDED = ("SUCCESS", "FAILURE", "CANCELED")
_INSTANCE = {
    "concurrency": {"pools": {"granularity": "run", "default_limit": 1}},
    "run_queue": {"dequeue_interval_seconds": 1},
    "run_retries": {"enabled": True, "max_retries": 0},
    "run_monitoring": {
        "enabled": True,
        "start_timeout_seconds": 300,
        "cancel_timeout_seconds": 300,
        "max_runtime_seconds": 86400,
    },
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
}
"""Settings of the project's dagster.yaml for one machine; the run queue is polled more often."""
LINEAGE = "/asset-groups~+key:*deleted_report"
"""Path of the lineage of each repository's five assets: its `deleted_report` with everything upstream.

The root of the UI shows runs. The global lineage also includes unconnected assets, of checks and forecasts.
"""
_INSTANCE_INFO = "query { instance { info } }"
_LOCATIONS = """query { workspaceOrError { ... on Workspace { locationEntries { name loadStatus
  locationOrLoadError { __typename ... on PythonError { message } } } } } }"""
_RUNS = """query { runsOrError(filter: {pipelineName: "collect"}, limit: 1) { ... on Runs { results {
  status } } } }"""
_LAUNCH = """mutation($parameters: ExecutionParams!) { launchRun(executionParams: $parameters) {
  __typename ... on PythonError { message } } }"""


@dataclass(frozen=True)
class DagsterUI:
    """The webserver and daemon started by `dagster dev`.

    Attributes:
        home: Dagster's home folder (DAGSTER_HOME), which holds its runs.
        log: file with the output of both.
    """

    url: str
    home: Path
    process: "subprocess.Popen[bytes]"
    log: Path

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data of a GraphQL answer. Raises urllib3's HTTPError while the UI does not answer."""
        body = {"query": query, "variables": variables}
        answer = urllib3.request("POST", f"{self.url}/graphql", json=body, timeout=_ANSWER_SECONDS, retries=False)
        data: dict[str, Any] = answer.json()["data"]
        return data

    def wait_until_loaded(self) -> str:
        """Waits for the code location; returns its name.

        Raises CollectionError if it cannot be loaded, or if another Dagster instance answers at the URL.
        """
        for _ in self._waiting(_START_SECONDS, "start"):
            try:
                self._require_own_instance()
                entries = self.ask(_LOCATIONS)["workspaceOrError"].get("locationEntries", [])
            except HTTPError:
                continue
            for entry in entries:
                if entry["loadStatus"] == "LOADED":
                    location = entry["locationOrLoadError"]
                    if location["__typename"] == "PythonError":
                        raise CollectionError(f"the definitions cannot be loaded: {location['message'].strip()}")
                    return str(entry["name"])
        raise AssertionError

    def _require_own_instance(self) -> None:
        """Raises CollectionError if another Dagster instance answers, on which nothing may be launched.

        Instances are told apart by the folder of their artifacts: their home, unless dagster.yaml names another.
        """
        answered = yaml.safe_load(self.ask(_INSTANCE_INFO)["instance"]["info"] or "") or {}
        own = yaml.safe_load((self.home / "dagster.yaml").read_text(encoding="utf-8")) or {}
        default = {"config": {"base_dir": str(self.home)}}
        folders = [info.get("local_artifact_storage", default).get("config") for info in (answered, own)]
        if not answered or folders[0] != folders[1]:
            raise CollectionError(f"another Dagster answers at {self.url}: {_OTHER_PORT}")

    def make_first_run(self, location: str, say: LogLine = print_result) -> None:
        """Makes a dry run by launching the job `open_run`, unless there is any run.

        Raises CollectionError if it is not made. A dry run that fails is no error: users can view it as well.
        """
        if self._newest_run() is not None:
            return
        say(f"the UI is at {self.url}; making a dry run there, so that there is something to look at")
        selector = {"repositoryName": "__repository__", "repositoryLocationName": location, "jobName": "open_run"}
        launched = self.ask(_LAUNCH, parameters={"selector": selector, "runConfigData": {}})["launchRun"]
        if launched["__typename"] != "LaunchRunSuccess":
            raise CollectionError(f"the first run could not be launched: {launched.get('message', launched)}")
        for _ in self._waiting(_RUN_SECONDS, "make a first run"):
            if (status := self._newest_run()) in _ENDED:
                if status != "SUCCESS":
                    show_progress("the dry run did not succeed: its page says why")
                return

    def _newest_run(self) -> str | None:
        runs = self.ask(_RUNS)["runsOrError"].get("results", [])
        return str(runs[0]["status"]) if runs else None

    def _waiting(self, seconds: float, what: str) -> Iterator[None]:
        """Yields once a second until the caller stops. Raises CollectionError with the end of the log."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                break
            yield
            time.sleep(1)
        raise CollectionError(f"the Dagster UI did not {what}; its log {self.log} ends: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "empty"


def require_free_port(port: int) -> None:
    """Raises CollectionError if the port is in use on this machine, or not permitted."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError as error:
        raise CollectionError(f"port {port} cannot be used ({error.strerror}): {_OTHER_PORT}") from None


@contextmanager
def started(environment: Mapping[str, str], port: int, home: Path) -> Iterator[DagsterUI]:
    """Starts webserver and daemon; ends them and all of their child processes."""
    log = home / "ui.log"
    command = [sys.executable, "-m", "dagster", "dev", "-m", _DEFINITIONS, "-h", HOST, "-p", str(port)]
    command += ["--log-level", "warning", "--code-server-log-level", "warning"]
    # Python warnings here concern Dagster's own deprecations, and mean nothing to users.
    fixed = {"DAGSTER_HOME": str(home), **FEW_WRITES}
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", **environment, **fixed}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield DagsterUI(f"http://{HOST}:{port}", home, process, log)
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            # Runs in progress have their own processes in its process group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Makes INT and TERM raise KeyboardInterrupt, even if a background script made this process ignore INT.

    Child processes started within the context have the default handlers, whatever this process inherited.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def prepare_home(home: Path) -> Path:
    """Creates a private folder for Dagster's runs, and a dagster.yaml if it has none.

    Returns its absolute path. An existing folder keeps its mode.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    with suppress(FileExistsError), (home / "dagster.yaml").open("x", encoding="utf-8") as file:
        yaml.safe_dump(_INSTANCE, file, sort_keys=False)
    return home.resolve()


def serve(
    environment: Mapping[str, str],
    port: int,
    home: Path,
    say: LogLine = print_result,
    tell: LogLine = print_result,
    *,
    first_run: bool = True,
) -> int:
    """Serves the UI until it ends, and returns its exit status.

    Args:
        home: a result of `prepare_home`; receives the UI's log.
        say: receives lines for the user.
        first_run: True to make a dry run first, unless there is any run.
        tell: receives the URL, once there is something to see.

    Raises:
        CollectionError: it does not start.
    """
    # The environment has the secret of the sample repository, which is set nowhere else.
    os.environ.update(environment)
    repositories = load_all(Path(environment[CONFIGURATION_VARIABLE]))
    # The same port each time, so that links of earlier runs keep working.
    with serve_pages(repositories, port + 1) as pages, started({PAGES_VARIABLE: pages}, port, home) as ui:
        location = ui.wait_until_loaded()
        if first_run:
            ui.make_first_run(location, say)
        tell(ui.url)
        return ui.process.wait()


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=CONFIGURATION_VARIABLE,
    help="Configuration file of your own repositories, which are shown in place of an embedded lakeFS; defaults to the "
    f"one in {CONFIGURATION_VARIABLE}.",
)
@FOLDER
@RULES
@OBJECTS
@click.option("--port", default=3000, show_default=True, help="Port of the UI.")
@JSON
def ui(file: Path | None, folder: Path, rules: RuleSet, objects: int, port: int, as_json: bool) -> None:
    """Starts the Dagster UI on the repositories of a configuration file, or on a sample repository to explore.

    The sample is on an embedded lakeFS; its first start makes a dry run, so that there is something to see. Your own
    repositories are not collected until you launch a run.

    The last line of output is the URL of the lineage of a repository's five assets. The UI listens only on this machine
    and ends on INT and TERM. The next port serves the pages of runs, to which the UI links. Dagster's records are kept
    in $DAGSTER_HOME, else in .dagster beside the configuration file or in the folder of the sample. If DAGSTER_HOME is
    set for other commands too, their runs show up in the UI.
    """
    with requiring("ui", "the Dagster UI"):
        import dagster_webserver  # noqa: F401
    require_free_port(port)
    status, say = 0, show_progress if as_json else print_result

    def print_url(url: str) -> None:
        if as_json:
            answer({"url": url}, indent=None)
        else:
            print_result(f"{url}{LINEAGE}")

    with suppress(KeyboardInterrupt), ending_on_signals():
        if file is not None:
            status = _serve_own(file, port, say, print_url)
        else:
            with playground(folder, rules=rules, objects=objects, port=0, say=say) as environment:
                status = serve(environment, port, _home(folder / "dagster"), say, print_url)
    sys.exit(status)


def _serve_own(file: Path, port: int, say: LogLine, print_url: LogLine) -> int:
    """Serves the UI of a file's repositories. Raises CollectionError if the file is wrong or lacks a secret."""
    names = [loaded.with_secrets().repository for loaded in loaded_configurations(file)]
    home = _home(file.parent / ".dagster")
    say(f"starting the Dagster UI of {', '.join(names)}; its runs are kept in {home}")
    return serve({CONFIGURATION_VARIABLE: str(file.resolve())}, port, home, say, print_url, first_run=False)


def _home(default: Path) -> Path:
    return prepare_home(Path(os.environ.get("DAGSTER_HOME") or default))
