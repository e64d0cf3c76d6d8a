"""JSON output of commands has exactly the names that docs/command-line.md lists."""

import dataclasses
import json
import os
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from pyspark.sql import SparkSession

import lakefs_gc_assets
from lakefs_gc_assets.cli import COMMANDS, common, main
from lakefs_gc_assets.cli import status as status_command
from lakefs_gc_assets.cli.candidates import PLACES
from lakefs_gc_assets.cli.common import print_report
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, DELETED_REPORT
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo, demo_command, embedded_command
from lakefs_gc_assets.extensions.playground import ui_command as ui
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs import planted
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE

DOCUMENT = Path(__file__).parents[2] / "docs" / "command-line.md"
_ROW = re.compile(r"^\| (`[^|]*--json`[^|]*) \| ([^|]*) \|", re.MULTILINE)
_QUOTED = re.compile(r"`([^`]*)`")
PLANTED = {"TEST_STORE_SECRET": "planted/store+secret==", "TEST_SPARK_PROPERTY": "planted spark=property: #!"}
"""Secrets by the variables that the configuration names; no command prints one."""
# Spark tasks have the environment in which Spark was started, maybe by a test of another file in this process.
os.environ.update(PLANTED)
_REPORT = "and more"
"""Marks commands whose report has more names than the document lists."""


def documented() -> dict[str, tuple[set[str], bool]]:
    """Names in the output by command, and True if the list is complete."""
    found = {}
    for commands, names in _ROW.findall(DOCUMENT.read_text(encoding="utf-8")):
        for command in _QUOTED.findall(commands):
            found[command] = set(_QUOTED.findall(names)), _REPORT not in names
    return found


class Repository:
    """A repository with a dry run and a sweep into quarantine, in the working folder."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.secret = server.secret_access_key
        sample = make_sample_repository(server, objects=60)
        rules = {"default_retention_days": 7, "branches": []}
        path = f"/repositories/{sample.repository}/settings/gc_rules"
        assert clients.call(server, "PUT", path, rules)[0] == 204
        content = demo.configuration(server, sample.repository)
        self.dry = ArrowRuns(Loaded(content, {})).collect()
        collection = {"sweep": True, "max_candidate_share": 1, "sweep_mode": "quarantine"}
        sweeping = content.model_copy(update={"collection": content.collection.model_copy(update=collection)})
        self.swept = ArrowRuns(Loaded(sweeping, {})).collect()
        written = sweeping.model_dump(exclude_defaults=True)
        written["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
        written["store"]["secret_access_key"] = {"env": "TEST_STORE_SECRET"}
        written["spark"] = {"config": {"spark.hadoop.planted": {"env": "TEST_SPARK_PROPERTY"}}}
        self.name = sample.repository
        self.files = server.objects_folder / sample.repository / "_lakefs"
        self.planted = planted.spellings(self.secret, *PLANTED.values())
        (folder / "lakefs-gc.yaml").write_text(yaml.safe_dump(written))
        (folder / "rules.json").write_text(json.dumps(rules))
        self.folder = folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as server:
        yield Repository(server, tmp_path_factory.mktemp("folder"))


@pytest.fixture
def asked(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Output of a command that has finished."""
    monkeypatch.chdir(repository.folder)
    for variable, secret in {SECRET_VARIABLE: repository.secret, **PLANTED}.items():
        monkeypatch.setenv(variable, secret)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)

    def ask(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, [*arguments, "--json"])
        assert result.exit_code == status, result.output
        planted.require_absent(repository.planted, result.output + result.stderr, " ".join(arguments))
        return result.stdout

    return ask


def require_documented(command: str, content: Any) -> None:
    """Compares the names of an object, or of all objects of a list, with the document's."""
    names, all_of_them = documented()[command]
    rows = content if isinstance(content, list) else [content]
    assert rows, "nothing was answered, so nothing is compared"
    for row in rows:
        assert set(row) == names if all_of_them else names <= set(row), command


def test_every_command_has_json_and_is_documented() -> None:
    for name, command in leaves().items():
        assert any("--json" in each.opts for each in command.params), name
        assert f"{name} --json" in documented(), name


@pytest.mark.parametrize(
    "command",
    ["status", "doctor", "orphans list", "policy show", "policy check", "metrics", "purge --dry-run", "report"],
)
def test_what_a_command_answers(asked: Callable[..., str], command: str) -> None:
    require_documented(f"{command} --json", json.loads(asked(*command.split())))


def test_the_rules_that_are_set(asked: Callable[..., str]) -> None:
    answer = json.loads(asked("policy", "set", "--yes", "--quiet", "rules.json"))
    require_documented("policy set --json", answer)
    assert {each["branch"]: each["retention_seconds"] for each in answer["rules"]}["main"] == 7 * 86_400
    assert answer["refused_by"] == [] and answer["commits"]["known"] > 0


@pytest.mark.parametrize(
    ("command", "columns"),
    [("candidates", [*CANDIDATES_DF.schema.names, *PLACES.names]), ("deleted", DELETED_REPORT.schema.names)],
)
def test_a_frame_has_every_column(asked: Callable[..., str], command: str, columns: list[str]) -> None:
    lines = [json.loads(line) for line in asked(command, "--quiet").splitlines()]
    assert lines and all([*line] == columns for line in lines)
    assert asked(command, "--quiet") == CliRunner().invoke(main, [command, "--format", "json"]).stdout


def test_one_object(asked: Callable[..., str]) -> None:
    address = json.loads(asked("candidates").splitlines()[0])["address"]
    require_documented("explain --json", json.loads(asked("explain", "--quiet", address)))


def test_what_is_at_paths(asked: Callable[..., str], repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "start_as_configured", lambda arguments: None)
    monkeypatch.setattr(Collector, "engine", lambda collector, settings: LocalEngine())
    found = json.loads(asked("erase", "--quiet", f"lakefs://{repository.name}/**", status=Status.INCOMPLETE))
    require_documented("erase --json", found)
    assert found["addresses"] and found["remedies"]


def test_a_check(asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "start_as_configured", lambda arguments: None)
    monkeypatch.setattr(Collector, "engine", lambda collector, settings: LocalEngine())
    require_documented("fsck --json", json.loads(asked("fsck", "--quiet")))


def test_unneeded_metadata(asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "start_as_configured", lambda arguments: None)
    monkeypatch.setattr(Collector, "engine", lambda collector, settings: LocalEngine())
    listing = json.loads(asked("metadata", "--quiet"))
    require_documented("metadata --json", listing)
    assert listing["needed"] > 0
    # The last line counts, and nothing is old enough to be moved.
    assert json.loads(asked("metadata", "restore", "--yes")) == {"counts": {"put back": 0}}


def test_stale_branches(asked: Callable[..., str], repository: Repository) -> None:
    content = yaml.safe_load((repository.folder / "lakefs-gc.yaml").read_text())
    collection = {**content["collection"], "retention_policy": "stale.yaml", "max_branch_loss_share": 1}
    (repository.folder / "stale.yaml").write_text("stale_branches: [{branches: '*', max_age: 0d}]")
    (repository.folder / "other.yaml").write_text(yaml.safe_dump({**content, "collection": collection}))
    listing = json.loads(asked("branches", "list", "--quiet", "--config", "other.yaml"))
    require_documented("branches list --json", listing)
    arguments = ("--yes", "--config", "other.yaml")
    *deleted, last = [
        json.loads(line) for line in asked("branches", "approve", *arguments, listing["digest"]).splitlines()
    ]
    require_documented("branches approve --json", deleted)
    *back, restored = [json.loads(line) for line in asked("branches", "restore", *arguments).splitlines()]
    require_documented("branches restore --json", back)
    assert [each["branch"] for each in back] == [each["branch"] for each in deleted]
    counts = ({"counts": {"deleted": len(deleted)}}, {"counts": {"made again": len(back)}})
    assert (last, restored) == counts


def test_object_lifecycle(asked: Callable[..., str], repository: Repository) -> None:
    content = yaml.safe_load((repository.folder / "lakefs-gc.yaml").read_text())
    collection = {**content["collection"], "retention_policy": "lifecycle.yaml"}
    rule = "{name: newest, branches: '*', paths: '**', keep_newest: 1, of: objects}"
    (repository.folder / "lifecycle.yaml").write_text(f"lifecycle: [{rule}]")
    (repository.folder / "other.yaml").write_text(yaml.safe_dump({**content, "collection": collection}))
    listing = json.loads(asked("lifecycle", "list", "--quiet", "--config", "other.yaml"))
    require_documented("lifecycle list --json", listing)
    assert all(group["expired"]["objects"] for group in listing["groups"])


def test_what_is_brought_back(asked: Callable[..., str], repository: Repository) -> None:
    planned = json.loads(asked("restore", "--run-id", repository.swept.run_id, "--dry-run"))
    require_documented("restore --dry-run --json", planned)
    one = ("restore", "--run-id", repository.swept.run_id, "--address", planned[0]["address"], "--yes")
    *rows, last = [json.loads(line) for line in asked(*one).splitlines()]
    require_documented("restore --json", rows)
    assert last == {"counts": {"restored": 1}}


def test_a_new_configuration(asked: Callable[..., str]) -> None:
    options = ("--endpoint", "http://127.0.0.1:8000", "--repository", "a", "--store", "s3", "--out", "new.yaml")
    answer = json.loads(asked("init", *options))
    require_documented("init --json", answer)
    assert Path(answer["file"]).exists()


def leaves() -> dict[str, click.Command]:
    """All commands, by the words that call each."""
    found: dict[str, click.Command] = {}
    for name, lazy in COMMANDS.items():
        command = lazy.load()
        if isinstance(command, click.Group):
            found |= {f"{name} {each}": below for each, below in command.commands.items()}
        else:
            found[name] = command
    return found


def arguments_of(command: click.Command) -> list[str]:
    """A value for each argument and option that a command requires."""
    required = [each for each in command.params if each.required or each.name == "digest"]
    return [word for each in required for word in (*each.opts[:1], value_of(each)) if word != each.name]


def value_of(parameter: click.Parameter) -> str:
    """A value that the type of a parameter accepts."""
    if isinstance(parameter.type, click.Choice):
        return str(parameter.type.choices[0])
    return "2027-01-31" if isinstance(parameter.type, click.DateTime) else "x"


@pytest.mark.parametrize("words", sorted(leaves()))
def test_what_fails_is_answered_in_json_by_every_command(asked: Callable[..., str], words: str) -> None:
    def error(*arguments: str, status: int) -> str:
        answer = json.loads(asked(*words.split(), *arguments, status=status))
        assert set(answer) == {"error", "status"} and answer["status"] == status
        return str(answer["error"])

    command = leaves()[words]
    assert "--none-such" in error("--none-such", status=Status.USAGE)
    if any("--config" in each.opts for each in command.params):
        arguments = arguments_of(command)
        assert "none.yaml" in error("--config", "none.yaml", *arguments, status=Status.CONFIGURATION)


def test_an_error_that_nobody_expects_is_answered_in_json_too(
    asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("unexpected")

    monkeypatch.setattr(status_command, "_described", fail)
    assert json.loads(asked("status", status=1)) == {"error": "'unexpected'", "status": 1}


def test_a_question_that_is_not_answered_with_yes(asked: Callable[..., str], repository: Repository) -> None:
    answer = json.loads(asked("approve", "--quiet", repository.dry.run_id, status=1).splitlines()[-1])
    assert answer["status"] == 1


@pytest.mark.parametrize(("success", "ended_well", "status"), [(False, True, 7), (False, False, 6), (False, None, 6)])
def test_report_and_exit_status_of_a_run_agree(
    repository: Repository, capsys: pytest.CaptureFixture[str], success: bool, ended_well: bool | None, status: int
) -> None:
    found = dataclasses.replace(repository.dry, success=success, ended_well=ended_well)
    with pytest.raises(SystemExit) as ended:
        print_report(found, as_json=True)
    assert ended.value.code == status
    assert json.loads(capsys.readouterr().out)["success"] is success


def test_no_page_and_no_text_for_people_has_a_secret(
    asked: Callable[..., str], repository: Repository, tmp_path: Path
) -> None:
    page = f"report --again --html {tmp_path / 'report.html'}"
    for command in ("status", "doctor", "report", page, "policy show", "candidates", "metrics", "purge --dry-run"):
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code == 0, result.output
        planted.require_absent(repository.planted, result.output + result.stderr, command)
    opened = lakefs_gc_assets.open()
    for shown in (opened, opened.run(), opened.run().report, opened.run().candidates):
        planted.require_absent(repository.planted, f"{shown!r} {shown}", "what a notebook shows")
    refused = CliRunner().invoke(main, ["status"], env={SECRET_VARIABLE: "planted and wrong"})
    assert refused.exit_code != 0
    crashed = f"{refused.output} {''.join(traceback.format_exception(refused.exception))}"
    planted.require_absent({"planted and wrong", *repository.planted}, crashed, "a failure")
    left = {**dict(planted.contents(tmp_path)), **dict(planted.contents(repository.files))}
    assert any(name.endswith("report.html") for name in left)
    for name, content in left.items():
        planted.require_absent(repository.planted, content, name)


@pytest.mark.slow
def test_runs_forecasts_and_purges(
    asked: Callable[..., str], repository: Repository, spark: SparkSession, tmp_path: Path
) -> None:
    dry = json.loads(asked("run", "--dry-run", "--quiet"))
    require_documented("run --json", dry)
    require_documented("approve --json", json.loads(asked("approve", "--yes", "--quiet", dry["run_id"])))
    require_documented("forecast --json", json.loads(asked("forecast", "--quiet", "--days", "7")))
    page = CliRunner().invoke(main, ["forecast", "--quiet", "--days", "7", "--html", str(tmp_path / "forecast.html")])
    assert page.exit_code == 0, page.output
    left = {**dict(planted.contents(tmp_path)), **dict(planted.contents(repository.files))}
    assert {"forecast.html", "runs.json"} <= {Path(name).name for name in left}
    for name, content in left.items():
        planted.require_absent(repository.planted, content, name)
    last = json.loads(asked("purge", "--quiet", "--yes").splitlines()[-1])
    assert set(last) == {"counts", "bytes_freed"}


def test_what_is_served(asked: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    with monkeypatch.context() as changed:
        changed.setattr(embedded_command, "threading", SimpleNamespace(Event=Interrupted))
        answer = json.loads(asked("embedded", "--folder", str(tmp_path / "e"), "--objects", "10", "--port", "0"))
    require_documented("embedded --json", answer)
    assert Path(answer["environment"][CONFIGURATION_VARIABLE]).exists()

    @contextmanager
    def play(*_: Any, say: Callable[[str], None], **__: Any) -> Iterator[dict[str, str]]:
        say("a line for a person")
        yield {}

    def serve(environment: Any, port: int, log: Path, say: Callable[[str], None], tell: Callable[[str], None]) -> int:
        say("another one")
        tell("http://127.0.0.1:3000")
        return 0

    monkeypatch.setattr(ui, "playground", play)
    monkeypatch.setattr(ui, "serve", serve)
    require_documented("ui --json", json.loads(asked("ui", "--folder", str(tmp_path / "u"))))


@pytest.mark.parametrize("well", [True, False])
def test_what_the_demo_found(asked: Callable[..., str], monkeypatch: pytest.MonkeyPatch, well: bool) -> None:
    def show(folder: Path, rules: str, objects: int, console: Any, store_url: str) -> bool:
        console.print("what a person reads")
        return well

    monkeypatch.setattr(demo_command, "show", show)
    monkeypatch.setattr("lakefs_gc_assets.cli.common.start_as_usual", lambda arguments: None)
    answer = json.loads(asked("demo", status=0 if well else 1))
    require_documented("demo --json", answer)
    assert answer == {"well": well}
