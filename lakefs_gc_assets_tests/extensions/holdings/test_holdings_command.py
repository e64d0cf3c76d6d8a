"""`lakefs-gc holdings` and the job `holdings` after runs on the embedded server."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded, load_all
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.holdings.definitions import define
from lakefs_gc_assets.extensions.holdings.holdings_command import describe
from lakefs_gc_assets.extensions.holdings.holdings_files import Holdings, HoldingsRow, HoldingState
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository

Invoke = Callable[..., Result]
DAY = timedelta(days=1)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RetainedRepository]:
    """Two branches, and a file that was replaced."""
    with EmbeddedServer(tmp_path / "server") as server:
        monkeypatch.setenv(SECRET_VARIABLE, server.secret_access_key)
        repository, now = RetainedRepository(server, tmp_path), datetime.now(UTC)
        with server.clock.at(now - 40 * DAY):
            clients.repository(server)
            repository.put("v1", "a/file")
            repository.commit("first", 40)
        with server.clock.at(now - 20 * DAY):
            repository.call("POST", "/branches", {"name": "dev", "source": "main"})
            repository.put("v2, longer", "a/file")
            repository.put("other", "b/file")
            repository.commit("second", 20)
        repository.configuration(wait_before_dump_seconds=0, wait_before_recheck_seconds=0)
        yield repository


@pytest.fixture
def holdings(made: RetainedRepository) -> Invoke:
    file = str(made.folder / "lakefs-gc.yaml")
    return lambda *arguments: CliRunner().invoke(main, ["holdings", "--config", file, *arguments])


def loaded(made: RetainedRepository) -> Loaded:
    (only,) = load_all(made.folder / "lakefs-gc.yaml")
    return only


def test_command_in_a_process_of_its_own_has_the_libraries_that_it_needs(made: RetainedRepository) -> None:
    """Commands that never start Spark leave out pandas; this one may need both."""
    program = "from lakefs_gc_assets.cli import main; main()"
    command = [sys.executable, "-c", program, "holdings", "--config", str(made.folder / "lakefs-gc.yaml")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert "no run of repo has finished" in ended.stderr, ended.stderr


def test_lines_for_people_and_growth_since_a_day(made: RetainedRepository, holdings: Invoke) -> None:
    ArrowRuns(loaded(made)).collect()
    result = holdings()
    assert result.exit_code == Status.WELL, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["head", "17", "B", "3", "objects"] in lines and ["history", "0", "B", "0", "objects"] in lines
    assert ["main:", "15", "B", "alone,", "2", "objects"] in lines
    assert ["dev:", "2", "B", "alone,", "1", "object"] in lines
    assert ["a/:", "12", "B", "alone,", "2", "objects"] in lines

    made.put("v3", "b/file")
    made.commit("third", 0)
    ArrowRuns(loaded(made)).collect()
    found = json.loads(holdings("--json", "--since", f"{datetime.now(UTC):%Y-%m-%d}").stdout)
    (commit,) = found["since"]["commits"]
    assert (commit["commit_id"], commit["objects"], commit["bytes"]) == (made.commits["third"], 1, 2)
    assert commit["commit"]["branch"] == "main"
    assert {row["key"]: row["bytes"] for row in found["rows"] if row["dimension"] == "commit"} == {
        made.commits["third"]: 2
    }
    printed = holdings("--by", "committer", "--since", f"{datetime.now(UTC):%Y-%m-%d}").stdout.splitlines()
    assert any(line.startswith(f"  commit {made.commits['third'][:12]} by ") for line in printed)


def test_storage_classes_are_shown_by_state() -> None:
    rows = [
        HoldingsRow("storage_class", "GLACIER", None, None, 2, 5),
        HoldingsRow("storage_class", "GLACIER", None, HoldingState.GARBAGE, 1, 3),
        HoldingsRow("storage_class", "STANDARD", None, HoldingState.STAGED, 1, 9),
    ]
    found = Holdings("repo", "s3://repo/", "run", datetime.now(UTC), "", tuple(rows))
    assert [*describe(found, ["storage_class"], None)][1:] == [
        "by storage_class:",
        "  STANDARD: 9 B staged, 1 object",
        "  GLACIER: 5 B in commits, 2 objects; 3 B garbage, 1 object",
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--by", "color"), Status.USAGE, "no dimension"),
        (("--since", "yesterday"), Status.USAGE, "yesterday"),
        (("--since", "2020-01-01"), Status.FAILED, "are stored for 2020-01-01 or earlier"),
        (("--since", "2999-01-01"), Status.FAILED, "except those of the newest run"),
    ],
)
def test_what_cannot_be_shown(
    made: RetainedRepository, holdings: Invoke, arguments: tuple[str, ...], status: Status, said: str
) -> None:
    ArrowRuns(loaded(made)).collect()
    result = holdings(*arguments)
    assert result.exit_code == status and said in result.stderr


def test_job_reports_the_asset_and_the_sensor_launches_it_once(
    made: RetainedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    definitions = build(loaded(made), SystemClock(), [define])
    sensor = definitions.resolve_sensor_def("follow_runs")

    def launched(home: dg.DagsterInstance) -> list[str | None]:
        given = {"collector": Collector.from_loaded(loaded(made), SystemClock())}
        with dg.build_sensor_context(home, resources=given) as context:
            return [request.run_key for request in sensor.evaluate_tick(context).run_requests or []]

    with running.instance() as home:
        assert launched(home) == []
        ended = ArrowRuns(loaded(made)).collect()
        run_id = ended.run_id
        assert launched(home) == [f"holdings-{run_id}-{ended.ended_at:%Y%m%dT%H%M%SZ}"]
        assert definitions.resolve_job_def("holdings").execute_in_process(instance=home).success
        event = home.get_latest_materialization_event(dg.AssetKey("holdings"))
        assert event is not None and event.asset_materialization is not None
        metadata = {name: each.value for name, each in event.asset_materialization.metadata.items()}
        assert (metadata["run_id"], metadata["head_bytes"], metadata["garbage_bytes"]) == (run_id, 17, 0)
        assert launched(home) == []
