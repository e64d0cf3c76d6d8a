"""The progress bar of a run on a terminal, a line per long step elsewhere, and the final screen."""

import io
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from lakefs_gc_assets.cli import progress
from lakefs_gc_assets.cli.common import show_progress
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.cli.progress import RunBar, StepLines, shown_bar, shown_items, shown_progress
from lakefs_gc_assets.collector.frame.frames import PHASES
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.spark import session
from lakefs_gc_assets_tests.cli.test_run import clean_environment
from lakefs_gc_assets_tests.harness import pseudo_terminal
from lakefs_gc_assets_tests.harness.pseudo_terminal import Ended
from lakefs_gc_assets_tests.runs.retained_repository import SECRET_VARIABLE

COMMAND = [sys.executable, "-c", "from lakefs_gc_assets.cli import main; main()"]
_INTERRUPTED = r"lakefs-gc: (run \w{20} was interrupted in \w+: start a new run|interrupted)$"


class Repository:
    """A sample repository on an embedded server, and a configuration that reaches it."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        self.folder = folder
        sample = make_sample_repository(server, objects=60)
        self.garbage = len(sample.garbage)
        self.configuration = demo.configuration(server, sample.repository)
        content = self.configuration.model_dump(exclude_defaults=True)
        content["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
        (folder / "lakefs-gc.yaml").write_text(yaml.safe_dump(content))
        self.environment = {**clean_environment(), SECRET_VARIABLE: server.secret_access_key, "TERM": "xterm-256color"}

    def on_terminal(self, *arguments: str, stops_at: str = "", **environment: str) -> Ended:
        """A command on a terminal; Ctrl-C is typed when a text appears."""
        return pseudo_terminal.run(
            [*COMMAND, *arguments],
            self.folder,
            {**self.environment, **environment},
            lambda written: bool(stops_at) and stops_at.encode() in written,
        )

    def holder(self) -> str | None:
        """Holder of the lock."""
        return lock.holder(Collector.from_loaded(Loaded(self.configuration, {}), SystemClock()).open().store)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with EmbeddedServer(tmp_path_factory.mktemp("server")) as server:
        yield Repository(server, tmp_path_factory.mktemp("folder"))


@pytest.mark.slow
def test_a_run_on_a_terminal_has_a_bar_and_leaves_ten_lines_at_most(repository: Repository) -> None:
    ended = repository.on_terminal("run", NO_COLOR="1")

    assert ended.status == 0, ended.written
    for at, phase in enumerate(PHASES.values(), 1):
        assert f"{at}/5 {phase}" in ended.written
    assert re.search(r"\d+/\d+ tasks", ended.written)
    lines = [line for line in ended.lines if not re.match(r"  \d/5 [a-z ]+ took ", line)]
    assert re.match(r"run \w{20}: clean$", lines[0])
    assert re.match(r"run \w{20} of \w+, clean: marked, nothing deleted", lines[1])
    assert len(lines) <= 10
    # No colours, only cursor movements.
    assert not re.search(r"\x1b\[[0-9;]*[1-9]m", ended.written)


@pytest.mark.slow
def test_ctrl_c_leaves_one_line_and_no_lock(repository: Repository) -> None:
    """The terminal sends the signal to every process of the command, Java included."""
    ended = repository.on_terminal("run", stops_at=PHASES["committed_df"])

    assert ended.status == Status.INTERRUPTED
    assert re.match(
        r"lakefs-gc: (run \w{20} was interrupted in committed_df: start a new run|interrupted)$", ended.lines[-1]
    )
    assert [line for line in ended.lines[:-1] if not re.match(r"run \w{20}: clean|  \d/5 ", line)] == []
    assert repository.holder() is None


@pytest.mark.slow
def test_a_run_that_is_terminated_leaves_one_line_and_no_lock(repository: Repository) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run"],
        cwd=repository.folder,
        env=repository.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 900
    while repository.holder() is None and time.monotonic() < until:
        time.sleep(0.2)
    # As systemd does: the signal reaches all processes of a service, Java included.
    os.killpg(process.pid, signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=900)

    assert (process.returncode, stdout) == (Status.INTERRUPTED, "")
    *before, last = stderr.splitlines()
    assert re.match(_INTERRUPTED, last)
    assert [line for line in before if not re.match(r"run \w{20}: clean|  \d/5 ", line)] == []
    assert repository.holder() is None


def test_there_is_a_bar_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with shown_progress(logging.INFO) as (lines, watch):
        assert lines == show_progress and type(watch) is StepLines
    for environment, bar in (({}, True), ({"TERM": "dumb"}, False), ({"COLUMNS": "40"}, False)):
        assert has_bar(monkeypatch, environment) is bar, environment
    for level in (logging.WARNING, logging.DEBUG):
        assert has_bar(monkeypatch, {}, level) is False


def has_bar(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str], level: int = logging.INFO) -> bool:
    with monkeypatch.context() as changed:
        for name, value in {"TERM": "xterm", "COLUMNS": "120", **environment}.items():
            changed.setenv(name, value)
        changed.setattr(
            progress, "Console", lambda **options: Console(file=io.StringIO(), force_terminal=True, highlight=False)
        )
        with shown_progress(level) as (_, watch):
            return isinstance(watch, RunBar)


def test_a_step_that_takes_long_leaves_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.0, 59.0, 59.0, 62.0, 62.0, 142.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    said: list[str] = []
    steps = StepLines(said.append)
    for step in ("store_df", "a check of something", "committed_df"):
        steps.begins(step)
        steps.ends(step)
    assert said == ["  3/5 reading commits took 0:01:20"]


def test_the_bar_says_how_long_tasks_take(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    bar = RunBar(Console(file=written, force_terminal=True, width=120, no_color=True, highlight=False))
    with bar.shown():
        bar.begins("store_df")
        bar.show_tasks(2, 8, 5.0)
        bar.ends("store_df")
        bar.begins("candidates")
        bar.begins("a check of something")
        bar.say("a [warning]\x1b]0;title\x07")
        bar.show_tasks(0, 8, 5.0)
    said = written.getvalue()
    assert "1/5 listing stored objects" in said and "2/8 tasks, 0.4 a second" in said and "0:00:15 left" in said
    assert r"a [warning]\x1b]0;title\x07" in said
    assert "4/5 subtracting" in said and "0/8 tasks" in said


def test_a_command_that_counts_has_a_bar_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 100.0, 100.0, 110.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(moments))
    written = io.StringIO()
    bar = RunBar(Console(file=written, force_terminal=True, width=120, no_color=True, highlight=False), "bringing back")
    bar.count("objects", 0, 3000)
    bar.count("objects", 1000, 3000)
    bar._bar.print(bar._bar)
    assert re.search(r"bringing back .* 1,000/3,000 objects, 100 a second .* 0:00:20 left", written.getvalue())


def test_a_command_without_a_terminal_counts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, said in ((False, "a line\n"), (True, "")):
        with shown_bar("forecasting", quiet) as (say, count):
            assert count is None
            say("a line")
        assert capsys.readouterr().err == said


def test_every_item_is_counted_after_it_was_taken() -> None:
    counts: list[tuple[int, int]] = []
    taken = [(item, list(counts)) for item in shown_items("ab", lambda *count: counts.append(count), [2])]
    assert taken == [("a", []), ("b", [(1, 2)])] and counts == [(1, 2), (2, 2)]
    assert [*shown_items("ab", None, [])] == ["a", "b"]


def test_what_spark_says_of_its_tasks_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[int, tuple[int, int]] | Exception] = [{}, {3: (1, 4), 4: (0, 4)}, RuntimeError("gone")]
    stages = iter([*answers, {3: (4, 4), 4: (2, 4)}])

    def tasks() -> dict[int, tuple[int, int]]:
        found = next(stages, {})
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(session, "tasks_of_stages", tasks)
    written = io.StringIO()
    bar = RunBar(Console(file=written, force_terminal=True, width=120, no_color=True))
    with bar.shown():
        until = time.monotonic() + 900
        while "6/8 tasks" not in written.getvalue() and time.monotonic() < until:
            time.sleep(0.05)
    assert "1/8 tasks" in written.getvalue() and "6/8 tasks" in written.getvalue()
