"""The commands of the how-tos, run line by line as a reader would, against an embedded server.

A comment right before a block of commands says why the block cannot be run here.
"""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import lakefs_gc_assets
from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, REPOSITORIES, Loaded
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.results import Run
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.documentation.pages import DOCS, PROGRAM, ROOT, Block, commands, fenced, name_of
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

HOW_TOS = sorted((DOCS / "how-to").glob("*.md"))
NOT_RUN = {"routine": 5} | dict.fromkeys(
    (
        *(
            "approve",
            "first-run",
            "github-actions",
            "in-parts",
            "inventories",
            "many-repositories",
            "metadata",
            "own-project",
        ),
        *("schedule", "ui"),
    ),
    1,
)
"""Number of blocks by page that no test runs."""
_KEY, _SECRET = "LAKEFS_ACCESS_KEY_ID", "LAKEFS_SECRET_ACCESS_KEY"
_FILE = "lakefs-gc.yaml"
_WAITS = {"wait_before_dump_seconds": 0, "wait_before_recheck_seconds": 0}
_OF_THE_SERVER = ("repository", "lakefs", "store", "spark")
"""Sections of examples about servers and machines that do not exist here."""
_PUT_INTO = re.compile(r"\b[Pp]ut\s(?:it|them)\sinto\s`([\w.]+)`")
_OF_A_SHELL = re.compile(r"[|<>&;$]")
_COMMAND = re.compile(r"(?:^|[ /])(?:lakefs-gc|make|dagster|dg) \S", re.MULTILINE)


def _played(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that follows how-tos; commands that need Spark share the session of the tests."""
    for mark in (pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("spark")):
        test = mark(test)
    return test


def blocks(page: Path) -> list[Block]:
    return list(fenced(page.read_text()))


def lines(block: Block) -> list[str]:
    """The commands of a block, each as a reader would type it."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("page", HOW_TOS, ids=name_of)
def test_every_block_of_commands_is_run_or_says_why_not(page: Path) -> None:
    found = blocks(page)

    for block in found:
        if block.language != "python" and _COMMAND.search(block.text):
            assert block.language == "bash" or block.not_run, f"line {block.line}"
    assert sum(bool(block.not_run) for block in found) == NOT_RUN.get(page.stem, 0)
    in_blocks = [words for block in found for words in commands(f"```{block.language}\n{block.text}```\n")]
    assert list(commands(page.read_text())) == in_blocks, "commands stand in fenced blocks"


def test_every_page_with_commands_that_can_be_run_has_a_test_that_runs_them() -> None:
    to_run = {page.stem for page in HOW_TOS if any(b.language == "bash" and not b.not_run for b in blocks(page))}

    elsewhere = {
        "erase",
        "holdings",
        "lifecycle",
        "lifecycle-acting",
        "orphans",
    }  # Tests of these extensions run their commands in-process.
    assert to_run == elsewhere | set(re.findall(r"follow\(\"([\w-]+)\"\)", Path(__file__).read_text()))


def test_the_steps_of_the_readme_are_those_of_the_first_run() -> None:
    steps = (ROOT / "README.md").read_text().partition("## Your repository")[2].partition("\n## ")[0]
    in_readme = [line.split()[1] for line in steps.splitlines() if line.strip().startswith(f"{PROGRAM} ")]
    shown = [words[0] for words in commands((DOCS / "how-to" / "first-run.md").read_text())]

    assert in_readme == ["init", "doctor", "run", "candidates", "report", "approve"]
    assert [name for name in dict.fromkeys(shown) if name in in_readme] == in_readme


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_the_units_of_the_routine_are_such_as_systemd_reads(tmp_path: Path) -> None:
    service, timer, metrics = (b.text for b in blocks(DOCS / "how-to" / "routine.md") if b.language == "ini")
    program = tmp_path / ".venv" / "bin" / PROGRAM
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    commands_of = [line for line in service.splitlines() if line.startswith("ExecStart=")]
    files = {
        "lakefs-gc.service": service,
        "lakefs-gc.timer": timer,
        "lakefs-gc-metrics.service": service.replace("\n".join(commands_of), metrics.strip()),
        "lakefs-gc-metrics.timer": timer.replace("Sat 02:00", "hourly"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("/srv/lakefs-gc", str(tmp_path)).replace("=lakefs-gc\n", "=root\n"))

    words = ["systemd-analyze", "verify", *(str(tmp_path / name) for name in files)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert (done.returncode, [line for line in done.stderr.splitlines() if str(tmp_path) in line]) == (0, [])


@dataclass
class Reader:
    """A reader who follows how-tos in a separate folder.

    Attributes:
        repository: repository of the server that the commands are about.
        collection: settings that replace the time that passes between steps.
        said: standard output by command as typed.
    """

    server: EmbeddedServer
    folder: Path
    repository: str
    collection: dict[str, Any] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)

    @property
    def configuration(self) -> Configuration:
        return configuration(self.server, self.repository)

    @property
    def newest_run(self) -> Run:
        return next(lakefs_gc_assets.open(self.configuration).runs())

    @property
    def file(self) -> Path:
        return self.folder / _FILE

    def write(self, content: Mapping[str, Any]) -> None:
        """Writes the configuration file, without waits."""
        collection = {**content.get("collection", {}), **_WAITS, **self.collection}
        self.file.write_text(yaml.safe_dump({**content, "collection": collection}))

    def configure(self) -> None:
        """Writes a configuration file that reaches the server; secrets are in the environment."""
        content = self.configuration.model_dump(exclude_defaults=True)
        content["lakefs"] |= {"access_key_id": {"env": _KEY}, "secret_access_key": {"env": _SECRET}}
        self.write(content)

    def follow(self, name: str, folder: Path = DOCS / "how-to") -> None:
        """Follows a page from its beginning to its end."""
        text = (folder / f"{name}.md").read_text()
        begin = 0
        for block in fenced(text):
            place = text.index(block.text, begin)
            before, begin = text[begin:place], place + len(block.text)
            if named := _PUT_INTO.findall(before.rpartition("\n## ")[2]):
                (self.folder / named[-1]).write_text(block.text)
            elif block.language == "yaml" and self.file.exists():
                self._set(yaml.safe_load(block.text))
            elif block.language == "bash" and not block.not_run:
                for line in lines(block):
                    self._run(line)

    def _set(self, example: dict[str, Any]) -> None:
        """Adds an example of settings to the configuration file."""
        content = yaml.safe_load(self.file.read_text())
        if REPOSITORIES in example:
            content.pop("repository", None)
        for section, values in example.items():
            if section not in _OF_THE_SERVER:
                content[section] = {**content.get(section, {}), **values} if isinstance(values, dict) else values
        self.write(content)

    def _run(self, line: str) -> None:
        """Runs a command, answers its prompts, and keeps its output. It must succeed.

        It runs in this process, whose Spark it uses, unless it needs a shell.
        """
        typed = re.sub(r"\b(RUN|ADDRESS|DIGEST)\b", lambda word: self._word(word[0]), line)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            _KEY: self.server.access_key_id,
            _SECRET: self.server.secret_access_key,
            "SLACK_FAILURES": "http://127.0.0.1:1/failures",
            "SLACK_RUNS": "http://127.0.0.1:1/runs",
        }
        with pytest.MonkeyPatch.context() as patch, chdir(self.folder):
            for variable in (CONFIGURATION_VARIABLE, "DAGSTER_HOME"):
                patch.delenv(variable, raising=False)
            for variable, value in environment.items():
                patch.setenv(variable, value)
            program, *words = shlex.split(typed)
            if program == PROGRAM and not _OF_A_SHELL.search(typed):
                ended = CliRunner().invoke(main, words, input=self._answer(line))
                status, stdout, stderr = ended.exit_code, ended.stdout, ended.stderr
            else:
                shell = ["bash", "-euo", "pipefail", "-c", typed]
                done = subprocess.run(shell, capture_output=True, text=True, check=False)
                status, stdout, stderr = done.returncode, done.stdout, done.stderr
        assert status == 0, f"{typed}\n{stdout}\n{stderr}"
        assert self.server.secret_access_key not in stdout + stderr
        self.said[line] = stdout
        if line == "lakefs-gc init":
            self.write(yaml.safe_load(self.file.read_text()))

    def _answer(self, line: str) -> str:
        if line == "lakefs-gc init":
            return f"{self.server.url}\n{self.repository}\nlocal\n{self.server.objects_folder.resolve()}\n"
        return "y\n"

    def _word(self, word: str) -> str:
        """A reader's replacement for a word in capitals: the newest run, one of its objects, or a printed digest."""
        if word == "DIGEST":
            return self.said["lakefs-gc branches"].rpartition("approve ")[2].partition("`")[0]
        newest = self.newest_run
        return newest.id if word == "RUN" else str(newest.candidates.to_arrow()["address"][0])

    def collect(self, **collection: Any) -> None:
        """Makes a run, without Spark, before the page begins."""
        content = self.configuration.model_dump()
        content["collection"] |= collection
        ArrowRuns(Loaded(Configuration.model_validate(content), {})).collect()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with a sample repository that has garbage of every kind, and no configuration file yet."""
    (tmp_path / "folder").mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server:
        yield Reader(server, tmp_path / "folder", make_sample_repository(server, objects=60).repository)


def candidates_of(reader: Reader) -> int:
    """Number of objects that another run would find to be garbage."""
    reader.collect()
    return len(reader.newest_run.candidates)


@_played
def test_a_first_run(reader: Reader) -> None:
    reader.follow("first-run")

    found = len((reader.folder / "candidates.csv").read_text().splitlines()) - 1
    assert found > 0
    assert len(reader.said["lakefs-gc deleted"].splitlines()[1:]) == found
    assert "dry run: ready\nsweep: ready" in reader.said["lakefs-gc doctor"]
    assert (reader.folder / "run.html").read_text().startswith("<!")
    assert candidates_of(reader) == 0


@_played
def test_a_sweep_into_quarantine(reader: Reader) -> None:
    # The days for which objects stay in quarantine have passed.
    reader.collection = {"quarantine_days": 0}
    reader.configure()
    reader.follow("quarantine")

    assert "moved to quarantine" in reader.said["lakefs-gc run --sweep"]
    assert "0 in quarantine" not in reader.said["lakefs-gc purge --dry-run"]
    assert candidates_of(reader) == 0


@_played
def test_undoing_a_sweep(reader: Reader) -> None:
    reader.collect(sweep=True, sweep_mode="quarantine")
    gone = len(reader.newest_run.candidates)
    reader.configure()
    reader.follow("undo")

    assert candidates_of(reader) == gone > 0


@_played
def test_the_tutorial(reader: Reader) -> None:
    reader.collection = {"sweep_mode": "quarantine"}
    reader.configure()
    reader.follow("tutorial", DOCS)

    assert "nothing deleted" in reader.said["lakefs-gc run"]
    assert "moved to quarantine" in reader.said["lakefs-gc approve RUN"]
    assert reader.said["lakefs-gc restore RUN --yes"].endswith(" restored\n")
    assert (reader.folder / "run.html").read_text().startswith("<!")


@_played
def test_commands_for_other_schedulers(reader: Reader) -> None:
    reader.configure()
    reader.follow("airflow")
    found = reader.newest_run.candidates
    reader.follow("github-actions")

    assert len(found) > 0 and candidates_of(reader) == 0


def test_the_dag_of_airflow_calls_commands_of_its_page() -> None:
    text = (DOCS / "how-to" / "airflow.md").read_text()
    (dag,) = [block.text for block in fenced(text) if block.language == "python"]
    calls = [node for node in ast.walk(ast.parse(dag)) if isinstance(node, ast.Call)]
    given = [word.value for call in calls for word in call.keywords if word.arg == "bash_command"]
    commands_given = [node.value for node in given if isinstance(node, ast.Constant)]
    (skipped,) = re.findall(r'"skip_on_exit_code": (\d+)', dag)

    assert len(commands_given) == len(given) == 2
    assert {*commands_given} <= {line for block in fenced(text) if block.language == "bash" for line in lines(block)}
    assert int(skipped) == Status.LOCKED


def test_the_workflow_of_github_calls_commands_of_its_page() -> None:
    text = (DOCS / "how-to" / "github-actions.md").read_text()
    (workflow,) = [yaml.safe_load(block.text) for block in fenced(text) if block.language == "yaml"]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    given = [line.strip() for step in steps for line in step.get("run", "").splitlines()]
    called = {re.sub(r"\$\{\{ needs.dry-run.outputs.run \}\}", "RUN", line) for line in given}
    shown = {line for block in fenced(text) if block.language == "bash" for line in lines(block)}

    assert shown < called
    assert workflow["jobs"]["approve"]["environment"] and workflow["jobs"]["approve"]["needs"] == "dry-run"


@_played
def test_retention_rules(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with EmbeddedServer(tmp_path / "lakefs", settings=ServerSettings()) as server:
        now = datetime.now(UTC)
        with server.clock.at(now - timedelta(days=60)):
            clients.repository(server)
            clients.upload(server, "replaced", b"old")
            clients.commit(server, "old")
        with server.clock.at(now - timedelta(days=40)):
            clients.upload(server, "replaced", b"new")
            clients.commit(server, "new")
        # Before the first run: a branch that a run missed is not old.
        with server.clock.at(now - timedelta(days=100)):
            clients.call(server, "POST", "/repositories/repo/branches", {"name": "scratch-a", "source": "main"})
            clients.upload(server, "forgotten", b"forgotten", branch="scratch-a")
            clients.commit(server, "forgotten", branch="scratch-a")
        reader = Reader(server, tmp_path / "folder", "repo")
        reader.configure()
        reader.follow("retention")

        assert "28d" in reader.said["lakefs-gc policy set rules.json"]
        assert "56d" in reader.said["lakefs-gc policy check policy.yaml"]
        _header, found = reader.said["lakefs-gc candidates"].splitlines()
        assert "only expired commits hold it" in found
        assert reader.said["lakefs-gc approve RUN"].partition("\n")[0].endswith("committed: deleted")

        reader.follow("stale-branches")

        assert "1 deleted\n" in reader.said["lakefs-gc branches approve DIGEST"]
        assert "1 made again\n" in reader.said["lakefs-gc branches restore"]


@_played
def test_many_repositories(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server:
        for name in ("measurements", "images"):
            clients.repository(server, name)
            clients.upload(server, "a", b"a", name=name)
            clients.commit(server, "first", name=name)
        reader = Reader(server, tmp_path / "folder", "images")
        reader.configure()
        reader.follow("many-repositories")

        assert "measurements at local://measurements" in reader.said["lakefs-gc status --repository measurements"]
        assert reader.said["lakefs-gc status --all"].startswith("2 repositories at ")
        assert "<h1>2 repositories</h1>" in (reader.folder / "repositories.html").read_text()
        assert "images: lock: free" in reader.said["lakefs-gc each status --runs 1"]


@_played
def test_watching_and_finding_out_what_went_wrong(reader: Reader) -> None:
    reader.collect()
    reader.configure()
    reader.follow("monitoring")
    reader.follow("notify")
    reader.follow("approve")
    reader.follow("check")
    reader.follow("metadata")

    assert "lakefs_gc_last_run_success" in (reader.folder / "lakefs-gc.prom").read_text()
    assert "USD" in (reader.folder / "run.html").read_text()
    assert reader.said["lakefs-gc explain ADDRESS"]
    assert reader.said["lakefs-gc fsck"].endswith(": whole\n")
    assert "files of metadata are unneeded" in reader.said["lakefs-gc metadata"]
