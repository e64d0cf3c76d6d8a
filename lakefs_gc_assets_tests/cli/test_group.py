"""Commands are imported when invoked, and Spark starts before that."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from lakefs_gc_assets.cli import COMMANDS, common, main
from lakefs_gc_assets.cli.group import MEANINGS, LazyCommand, LazyGroup, Status, one_line_errors, status_of
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.errors import (
    AccessDenied,
    CollectionError,
    ConfigurationError,
    CorruptFile,
    GuardTripped,
    Interrupted,
    LockHeld,
    LockLost,
    RunFailed,
)
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session

HEAVY = {"boto3", "dagster", "jinja2", "numba", "numpy", "pandas", "pyarrow", "pydantic", "pyspark", "rich"}


def test_the_list_of_commands_imports_none_of_them() -> None:
    program = (
        "import sys\n"
        "from lakefs_gc_assets.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=True)

    assert set(COMMANDS) <= set(ended.stdout.split())
    imported = set(ended.stderr.split())
    assert "lakefs_gc_assets.cli.group" in imported
    assert imported.isdisjoint(HEAVY)
    assert imported.isdisjoint(lazy.target.partition(":")[0] for lazy in COMMANDS.values())


def test_commands_that_only_read_import_neither_spark_nor_dagster() -> None:
    """Opening a repository imports neither; the server refuses the connection here.

    `doctor` names the version of pyspark.
    """
    program = (
        "import sys\n"
        "from lakefs_gc_assets.cli import COMMANDS, common\n"
        "from lakefs_gc_assets.configuration_file import Loaded\n"
        "from lakefs_gc_assets.errors import LakeFSError\n"
        "from lakefs_gc_assets.settings import Configuration\n"
        "from lakefs_gc_assets.spark.start import process\n"
        "process.exclude_pandas()\n"
        "for name, each in COMMANDS.items():\n"
        "    if name != 'doctor' and each.before is None and not each.serves:\n"
        "        each.load()\n"
        "lakefs = {'endpoint': 'http://127.0.0.1:9', 'access_key_id': 'a', 'secret_access_key': 'b'}\n"
        "content = {'repository': 'repo', 'lakefs': lakefs, 'store': {'local_root': '/nowhere'}}\n"
        "try:\n"
        "    common.open_repository(Loaded(Configuration.model_validate(content), {}))\n"
        "except LakeFSError:\n"
        "    print(*sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=True)

    imported = set(ended.stdout.split())
    assert "lakefs_gc_assets.lakefs.api.transport" in imported
    assert imported.isdisjoint({"dagster", "jinja2", "pandas", "pandera", "pyspark"})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    printed = CliRunner().invoke(main, ["completion", shell])
    assert printed.exit_code == 0, printed.stderr
    assert f"_LAKEFS_GC_COMPLETE={shell}_complete" in printed.stdout
    asked = CliRunner().invoke(main, ["completion", shell, "--json"])
    assert json.loads(asked.stdout) == {"shell": shell, "script": printed.stdout.removesuffix("\n")}
    if shell == "bash":
        check = 'eval "$0"; complete -p lakefs-gc'
        bound = subprocess.run(["bash", "-c", check, printed.stdout], capture_output=True, text=True, check=True)
        assert bound.stdout.split()[-1] == "lakefs-gc"


def completed(*words: str) -> set[str]:
    """Completions that bash is offered for the last word."""
    environment = {
        **os.environ,
        "_LAKEFS_GC_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    program = "import sys; from lakefs_gc_assets.cli import main; main(prog_name='lakefs-gc')"
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=True)
    assert ended.stderr == ""
    return {line.removeprefix("plain,") for line in ended.stdout.splitlines()}


def test_a_shell_completes_commands_and_their_options() -> None:
    assert completed("lakefs-gc", "") == set(COMMANDS)
    assert completed("lakefs-gc", "de") == {"deleted", "demo"}
    assert completed("lakefs-gc", "init", "--store-") == {"--store-endpoint"}


def test_completion_begins_nothing(group: click.Group) -> None:
    found = ShellComplete(group, {}, "group", "_GROUP_COMPLETE").get_completions(["late"], "--he")

    assert [item.value for item in found] == ["--help"]
    assert events == []


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_module_and_the_list_says_what_it_says_of_itself(name: str) -> None:
    command = COMMANDS[name].load()

    assert command.name == name
    assert COMMANDS[name].target.rpartition(".")[2] in (f"{name}:{name}", f"{name}_command:{name}")
    first = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    assert first == COMMANDS[name].short_help or first.startswith(f"{COMMANDS[name].short_help} ")


@pytest.mark.parametrize("name", COMMANDS)
def test_an_answer_that_a_page_is_said_to_describe_is_described_there(name: str) -> None:
    page = Path("docs/command-line.md")
    helps = [each.help or "" for each in COMMANDS[name].load().params if isinstance(each, click.Option)]
    if any(str(page) in text for text in helps):
        assert f"`{name} --json`" in (Path(__file__).parents[2] / page).read_text()


@click.command()
def _late() -> None:
    events.append("command")


def _begin(arguments: list[str]) -> None:
    events.append(f"begin {arguments}")


@click.command()
def _failing() -> None:
    raise CollectionError("it is broken. Mend it")


events: list[str] = []


@pytest.fixture
def group() -> Iterator[click.Group]:
    here = f"{__name__}:"
    commands = {
        "failing": LazyCommand(f"{here}_failing", "Fails."),
        "late": LazyCommand(f"{here}_late", "Is late.", f"{here}_begin"),
    }
    yield LazyGroup("group", lazy_commands=commands)
    events.clear()


def test_what_takes_long_begins_before_the_command(group: click.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    load = LazyCommand.load

    def noted(self: LazyCommand) -> click.Command:
        events.append("import")
        return load(self)

    monkeypatch.setattr(LazyCommand, "load", noted)
    CliRunner().invoke(group, ["late"])

    assert events == ["begin []", "import", "command"]


def test_an_error_is_one_line(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["failing"])

    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "lakefs-gc: it is broken. Mend it\n")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SparkSettings]:
    """Settings of started sessions; the configuration in the working folder asks for two cores."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    content: dict[str, Any] = {"repository": "a", "spark": {"master": "local[2]"}}
    Path("lakefs-gc.yaml").write_text(yaml.safe_dump(content))
    content["spark"]["master"] = "local[3]"
    Path("other.yaml").write_text(yaml.safe_dump(content))
    found: list[SparkSettings] = []
    monkeypatch.setattr(spark_session, "start", found.append)
    return found


@pytest.mark.parametrize(
    ("arguments", "master"),
    [
        ([], "local[2]"),
        (["--flow", "unified", "--sweep"], "local[2]"),
        (["--sweep", "--config", "other.yaml"], "local[3]"),
        (["--config=other.yaml", "--flow", "clean"], "local[3]"),
    ],
)
def test_spark_starts_as_the_configuration_says(
    started: list[SparkSettings], arguments: list[str], master: str
) -> None:
    common.start_as_configured(arguments)

    assert [settings.master for settings in started] == [master]


def test_an_optimized_run_starts_a_cluster_s_session_and_leaves_a_local_one_to_its_first_task(
    started: list[SparkSettings],
) -> None:
    common.start_as_configured(["--flow=optimized", "--sweep"])
    assert started == []

    Path("lakefs-gc.yaml").write_text(yaml.safe_dump({"repository": "a", "spark": {"remote": "sc://spark:15002"}}))
    common.start_as_configured(["--flow", "optimized"])
    assert [settings.remote for settings in started] == ["sc://spark:15002"]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--config", "nowhere.yaml"]])
def test_spark_does_not_start_for_a_command_that_cannot_use_it(
    started: list[SparkSettings], arguments: list[str]
) -> None:
    common.start_as_configured(arguments)

    assert started == []


def test_a_dry_purge_needs_no_spark(started: list[SparkSettings]) -> None:
    common.start_unless_dry(["--dry-run", "--config", "other.yaml"])
    assert started == []

    common.start_unless_dry(["--config", "other.yaml"])
    assert len(started) == 1


def test_the_demo_starts_spark_with_its_defaults(started: list[SparkSettings]) -> None:
    common.start_as_usual(["--help"])
    assert started == []

    common.start_as_usual(["--objects", "60"])
    assert started == [SparkSettings()]


def test_a_command_that_is_misspelt_begins_nothing_and_is_guessed() -> None:
    result = CliRunner().invoke(main, ["rnu", "--sweep"])
    assert result.exit_code == Status.USAGE
    assert "No such command 'rnu'. Did you mean" in result.stderr and "'run'" in result.stderr


def _groups() -> list[str]:
    return [name for name, lazy in COMMANDS.items() if isinstance(lazy.load(), click.Group)]


def test_config_stands_after_the_name_of_every_command_that_reads_it() -> None:
    without = {name for name, lazy in COMMANDS.items() if "file" not in {each.name for each in lazy.load().params}}
    # These commands need no configuration; `init` writes it.
    assert without == {"completion", "demo", "embedded", "init"}


@pytest.mark.parametrize("name", _groups())
def test_config_stands_before_and_after_the_name_of_a_command_in_a_group(name: str, tmp_path: Path) -> None:
    def named_file(*arguments: str) -> str:
        result = CliRunner().invoke(main, [name, *arguments])
        assert result.exit_code == Status.CONFIGURATION, result.output
        return result.stderr

    group = COMMANDS[name].load()
    assert isinstance(group, click.Group)
    show = "show" if "show" in group.commands else "list"
    first, second = str(tmp_path / "first.yaml"), str(tmp_path / "second.yaml")
    assert first in named_file("--config", first, show)
    assert first in named_file(show, "--config", first)
    assert second in named_file("--config", first, show, "--config", second)
    if isinstance(group, click.Group) and group.invoke_without_command:
        assert first in named_file("--config", first)


def test_a_repository_that_stands_before_the_name_is_used(tmp_path: Path) -> None:
    file = tmp_path / "lakefs-gc.yaml"
    lakefs = "{endpoint: 'http://127.0.0.1:1', access_key_id: a, secret_access_key: {env: TEST_GROUP_UNSET}}"
    file.write_text(f"lakefs: {lakefs}\nrepositories: [{{repository: one}}, {{repository: two}}]\n")
    result = CliRunner().invoke(main, ["policy", "--config", str(file), "--repository", "two", "show"])
    assert result.exit_code == Status.CONFIGURATION and "TEST_GROUP_UNSET" in result.stderr


# Exit statuses: each kind of error has its own, listed by the command line.


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CollectionError("a"), Status.FAILED),
        (AccessDenied("a"), Status.FAILED),
        (CorruptFile("a", "b", "c"), Status.FAILED),
        (ConfigurationError("a"), Status.CONFIGURATION),
        (GuardTripped("a", "b", "c"), Status.REFUSED),
        (LockHeld("a"), Status.LOCKED),
        (LockLost("a"), Status.LOCKED),
        (Interrupted("a"), Status.INTERRUPTED),
        (RunFailed("a"), Status.FAILED),
        (RunFailed("a", LockHeld), Status.LOCKED),
        (RunFailed("a", GuardTripped), Status.REFUSED),
    ],
)
def test_each_kind_of_error_has_its_status(
    error: CollectionError, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(error) is status
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise error
    assert ended.value.code == status
    assert capsys.readouterr().err == f"lakefs-gc: {error}\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_in_one_line_and_lets_go_of_what_is_held(
    capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    before, released = signal.getsignal(signal.SIGTERM), False
    # A shell starts background processes with interrupts ignored.
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit) as ended, one_line_errors():
        try:
            os.kill(os.getpid(), number)
        finally:
            released = True
    signal.signal(signal.SIGINT, outside)
    assert (ended.value.code, released) == (Status.INTERRUPTED, True)
    assert capsys.readouterr().err == "lakefs-gc: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


STUCK = """
import sys
import time
from datetime import UTC, datetime, timedelta
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.storage.local import LocalStore
from obstore.store import S3Store
from lakefs_gc_assets.cli import group

@group.click.command()
def wait():
    store, hour = LocalStore(sys.argv[3]), timedelta(hours=1)
    lock = Lock.acquire(store, run_id="run", owner="owner", now=datetime.now(UTC), expiry=hour)
    if sys.argv[4] == "silent":
        group.SECONDS_TO_RELEASE = 0.1
        LocalStore.put_if_match = lambda *_: time.sleep(600)
    print("waiting", flush=True)
    options = {"timeout": "600s", "allow_http": True}
    S3Store("bucket", endpoint=sys.argv[2], skip_signature=True, client_options=options).get("key")

group.SECONDS_TO_LEAVE = 1.0
commands = {"wait": group.LazyCommand("__main__:wait", "")}
group.LazyGroup("stuck", lazy_commands=commands).main(["wait"])
"""


@pytest.mark.parametrize(
    ("store", "outcome"),
    [("answers", " is released"), ("silent", r" stays until \d{4}-.* UTC, unless `lakefs-gc unlock`.*")],
)
def test_sigterm_ends_a_command_in_time_that_waits_in_native_code(tmp_path: Path, store: str, outcome: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", STUCK, "wait", endpoint, str(tmp_path), store]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
            try:
                silent.settimeout(900)
                with silent.accept()[0]:
                    process.terminate()
                    # The call itself would time out after 600 seconds.
                    _, said = process.communicate(timeout=500)
            finally:
                process.kill()
    assert process.returncode == Status.INTERRUPTED
    cause = "interrupted; gave up after 1 s, since the server or the store did not answer"
    assert re.fullmatch(f"lakefs-gc: {cause}: the repository's lock{outcome}\n", said), said


def test_the_help_and_the_page_about_scripts_list_every_status() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert list(MEANINGS) == list(Status)
    for status, meaning in MEANINGS.items():
        assert re.search(rf"^ +{status} +{re.escape(meaning)}$", shown, re.MULTILINE), status
        assert f"| {status} | {meaning} |" in page


def test_the_version() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"lakefs-gc \d+\.\d+\.\d+\n", result.stdout)


def test_nothing_follows_the_last_line(tmp_path: Path) -> None:
    """Threads of Spark may still print while the process ends."""
    late = "import atexit, os; atexit.register(os.write, 2, b'late');"
    code = f"{late} from lakefs_gc_assets.cli import main; main(['status'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("lakefs-gc: no configuration: give --config")
    assert "late" not in done.stderr
