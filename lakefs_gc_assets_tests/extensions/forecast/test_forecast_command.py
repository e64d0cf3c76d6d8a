"""`lakefs-gc forecast` on the embedded server."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.forecast.forecast import (
    ByFolder,
    FolderHolding,
    Forecast,
    Freed,
    Holding,
    ListedClasses,
    Portion,
)
from lakefs_gc_assets.extensions.forecast.forecast_command import describe, encode
from lakefs_gc_assets.extensions.forecast.scenarios import ByteHolder, Scenario
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import ReportSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE, RetainedRepository

Invoke = Callable[..., Result]
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetainedRepository]:
    """`file` was replaced 20 and 2 days ago, and `dev` has something of its own."""
    folder = tmp_path_factory.mktemp("forecast")
    with EmbeddedServer(folder / "server") as server:
        repository, now = RetainedRepository(server, folder), datetime.now(UTC)
        with server.clock.at(now - 40 * DAY):
            clients.repository(server)
            repository.put("v1")
            repository.commit("first", 40)
        with server.clock.at(now - 20 * DAY):
            repository.put("v2, longer")
            repository.commit("second", 20)
            repository.call("POST", "/branches", {"name": "dev", "source": "main"})
            repository.put("of dev", "elsewhere", "dev")
            repository.commit("of dev", 20, "dev")
        with server.clock.at(now - 2 * DAY):
            repository.put("v3")
            repository.commit("third", 2)
        repository.rules(7, main=30)
        repository.configuration(retention_policy=str(policy(folder, "in-force.yaml", "stale_after: 10d")))
        yield repository


def policy(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


@pytest.fixture
def forecast(made: RetainedRepository, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Calls the command, which works on plain tables."""
    monkeypatch.setenv(SECRET_VARIABLE, made.server.secret_access_key)
    monkeypatch.setattr(Collector, "engine", lambda collector, *settings: LocalEngine())
    monkeypatch.setattr("lakefs_gc_assets.cli.common.start_as_configured", mock.Mock())
    file = str(made.folder / "lakefs-gc.yaml")
    return lambda *arguments: CliRunner().invoke(main, ["forecast", "--config", file, *arguments])


def test_rules_side_by_side_and_who_holds_what(made: RetainedRepository, forecast: Invoke) -> None:
    shorter = policy(made.folder, "shorter.yaml", "{default: 1d, branches: {none: 1d}, replace: true}")
    store = LocalStore(made.server.objects_folder / "repo")
    objects = sorted(key for batch in store.list("data/") for key in batch["key"].to_pylist())

    result = forecast("--policy", str(shorter), "--days", "0", "--days", "30", "--days", "unlimited", "--json")

    assert result.exit_code == Status.WELL, result.output
    found = json.loads(result.stdout)
    rules: list[dict[str, Any]] = found["rules"]
    freed = [(rule["kind"], rule["name"], rule["freed_objects"], rule["freed_bytes"]) for rule in rules]
    assert freed == [
        ("in force", "rules in force", 0, 0),
        ("age", "0 days", 1, 2),
        ("age", "30 days", 0, 0),
        ("age", "unlimited", 0, 0),
        ("policy", str(shorter), 1, 2),
    ]
    assert [rule["days"] for rule in rules] == [None, 0, 30, None, None]
    assert any("there is no such branch" in note for note in rules[-1]["notes"])
    dev, main_branch, rest = found["holders"]
    assert (dev["name"], dev["held_bytes"], dev["alone_bytes"], dev["shared_bytes"]) == ("dev", 16, 6, 10)
    assert dev["stale"] and not main_branch["stale"]
    assert dev["if_deleted"] == {
        "commits_expired": 2,
        "freed_objects": 1,
        "freed_bytes": 6,
        "more_objects": 1,
        "more_bytes": 6,
    }
    assert main_branch["if_deleted"] is None
    assert (rest["kind"], rest["held_objects"]) == ("rest", 0)
    assert sorted(key for batch in store.list("data/") for key in batch["key"].to_pylist()) == objects
    assert lock.KEY not in {key for batch in store.list("_lakefs/") for key in batch["key"].to_pylist()}


def test_a_table_for_people(forecast: Invoke) -> None:
    result = forecast()
    assert result.exit_code == Status.WELL, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line]
    assert lines[0][:2] == ["repo:", "5"]
    named = [line[0] if line[0] == "unlimited" else " ".join(line[:2]) for line in lines[5:16]]
    assert named == [
        *(f"{days} day{'s' * (days != 1)}" for days in (0, 1, 3, 7, 14, 30, 60, 90, 180, 365)),
        "unlimited",
    ]
    assert any(line[:2] == ["branch", "dev"] and line[-1] == "stale" for line in lines)
    assert "nothing was deleted" in result.stdout


def test_folders_and_who_has_them(forecast: Invoke) -> None:
    lines = forecast("--days", "0", "--by-path", "1").stdout.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("folder"))
    assert [line.split() for line in lines[start + 1 :]][:3] == [
        ["(top", "level)", "4", "20", "B"],
        ["branch", "dev", "2", "16", "B", "6", "B"],
        ["branch", "main", "3", "14", "B", "4", "B"],
    ]
    assert lines[-1] == "an object that is in several folders counts in each of them"

    found = json.loads(forecast("--days", "0", "--by-path", "1", "--json").stdout)["by_path"]
    assert (found["depth"], found["others"]) == (1, None)
    (folder,) = found["folders"]
    assert (folder["folder"], folder["held_objects"], folder["held_bytes"]) == ("", 4, 20)
    assert folder["holders"][0] == {
        "kind": "branch",
        "name": "dev",
        "held_objects": 2,
        "held_bytes": 16,
        "alone_objects": 1,
        "alone_bytes": 6,
    }


def test_a_page_in_a_file_and_beside_what_is_stored(made: RetainedRepository, forecast: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "forecast.html"
    result = forecast("--html", str(file), "--by-path", "1")
    assert (result.exit_code, result.stdout) == (Status.WELL, "")
    store = LocalStore(made.server.objects_folder / "repo")
    stored = {key for batch in store.list("_lakefs/retention/") for key in batch["key"].to_pylist()}
    assert any(
        store.get(key) == file.read_bytes() for key in stored if key.endswith("retention_forecast/forecast.html")
    )
    assert b"polyline" in file.read_bytes() and b"(top level)" in file.read_bytes()


def test_many_folders_and_holders_are_cut_for_people() -> None:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    in_force = Freed(Scenario(ScenarioKind.IN_FORCE, "rules in force", 3), Amount(2, 2048))
    holdings = tuple(
        Holding(ByteHolder(ScenarioKind.BRANCH, f"b{n}", 1, now), Amount(5, 5), Amount(1, 1)) for n in range(7)
    )
    portions = tuple(Portion(Amount(1, n + 1), Amount()) for n in range(7))
    largest = tuple(FolderHolding(f"f{n}/", Amount(1, 100), portions) for n in range(25))
    reported = ByFolder(1, largest, FolderHolding(None, Amount(9, 900), portions), 4321)
    found = Forecast("repo", "id", now, now, 4, 5, Amount(9, 9), (in_force,), holdings, by_folder=reported)
    lines = [*describe(found)]
    assert sum(line.startswith("f") and "/" in line for line in lines) == 20
    assert lines.count("  2 more branches and tags have something there") == 20
    assert lines[-3] == "5 smaller folders are in the frame and with --json"
    assert lines[-2].split() == ["(the", "4,321", "smallest", "folders", "together)", "9", "900", "B"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--by-path", "0"), Status.USAGE, "by-path"),
        (("--html", "-", "--json"), Status.USAGE, "exclude each other"),
        (("--days", "-1"), Status.USAGE, "-1"),
        (("--days", "soon"), Status.USAGE, "soon"),
        (("--days", "40000"), Status.CONFIGURATION, "40000 days"),
        (("--policy", "nowhere.yaml"), Status.CONFIGURATION, "nowhere.yaml"),
    ],
)
def test_what_cannot_be_asked(forecast: Invoke, arguments: tuple[str, ...], status: Status, said: str) -> None:
    result = forecast(*arguments)
    assert result.exit_code == status
    assert said in result.stderr
    if "--json" in arguments:
        answer = json.loads(result.stdout)
        assert said in answer["error"] and answer["status"] == status
    else:
        assert result.stdout == ""


def test_what_is_kept_longer_without_a_branch_is_reported_as_less() -> None:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    in_force = Freed(Scenario(ScenarioKind.IN_FORCE, "rules in force", 3), Amount(2, 2048))
    deleted = Freed(Scenario(ScenarioKind.BRANCH, "dev", 1), Amount(1, 1024))
    dev = Holding(ByteHolder(ScenarioKind.BRANCH, "dev", 1, now - 3 * DAY), Amount(5, 5), Amount(1, 1), deleted)
    found = Forecast("repo", "id", now, now, 4, 5, Amount(9, 9), (in_force,), (dev,), undecided=True)
    assert found.more_if_deleted(dev) == Amount(-1, -1024)
    listed = ListedClasses("run", now, {"GLACIER": Amount(1, 2**30)})
    priced = replace(found, listed=listed, prices=ReportSettings(price_per_gb_month=2**20))
    assert "a run by the rules in force would save 2.00 USD a month" in [*describe(priced)]
    assert any("frees their bytes 1 day later" in line for line in describe(replace(found, quarantine_days=1)))
    assert "storage classes, as run run listed them: GLACIER 1 object, 1.0 GiB" in [*describe(priced)]
    assert encode(priced)["storage_classes"] == {"run_id": "run", "listed": {"GLACIER": {"objects": 1, "bytes": 2**30}}}
    lines = [*describe(found)]
    assert any("-1.0 KiB" in line for line in lines)
    assert "collection.hidden_suspect_limit" in lines[-1]
