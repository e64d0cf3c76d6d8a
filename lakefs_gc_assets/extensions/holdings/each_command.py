"""`lakefs-gc each`: another command for each repository of the configuration, one after the other or side by side."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import CONFIG, JSON, answer, configuration_path, print_result, show_progress
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import everything_from, read
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.holdings.repositories import find_repositories

_MOST_AT_ONCE = 64
_PROGRAM = (sys.executable, "-c", "from lakefs_gc_assets.cli import main; main(prog_name='lakefs-gc')")
_FAILURES_SHOWN = 20


@click.command(context_settings={"allow_interspersed_args": False})
@CONFIG
@click.option(
    "--at-once",
    default=1,
    show_default=True,
    type=click.IntRange(1, _MOST_AT_ONCE),
    help="Number of repositories side by side. Each `run` has a Spark session of spark.driver_memory.",
)
@JSON
@click.argument("command", nargs=-1, required=True)
def each(file: Path | None, at_once: int, as_json: bool, command: tuple[str, ...]) -> None:
    """Calls a command for each repository of the configuration, one after the other or side by side.

    For example `lakefs-gc each --at-once 4 run --dry-run`. COMMAND is any command with the option --repository, and its
    options. Repositories that `discover` covers are included. Each call is a process of its own, which asks no
    questions. Its lines begin with the name of its repository.

    If a call fails, the others go on, the last line names it, and the exit status is 6.
    """
    path = configuration_path(file)
    everything = everything_from(read(path), str(path))
    name, *options = command
    root = click.get_current_context().find_root()
    called = root.command.get_command(root, name) if isinstance(root.command, click.Group) else None
    if called is None or all("--repository" not in each.opts for each in called.params):
        raise click.UsageError(f"{name} is no command with the option --repository.")
    # The only repository of a file needs no name, and its label may be another one.
    is_only = everything.discovery is None and len(everything.listed) == 1
    calls = _Calls(as_json)
    failures = []
    labels = [found.label for found in find_repositories(everything, SystemClock())]
    with ThreadPoolExecutor(at_once) as pool:
        try:
            ends = {
                pool.submit(
                    calls.call,
                    label,
                    [name, "--config", str(path), *([] if is_only else ["--repository", label]), *options],
                ): label
                for label in labels
            }
            for end in as_completed(ends):
                if status := end.result():
                    failures.append(f"{ends[end]} (exit status {status})")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            calls.terminate()
            raise
    if failures:
        more = ", …" if len(failures) > _FAILURES_SHOWN else ""
        what = f"{len(failures):,} of {counted(len(labels), 'repositories')}"
        show_progress(f"{name} failed for {what}: {', '.join(failures[:_FAILURES_SHOWN])}{more}")
        sys.exit(Status.INCOMPLETE)


@dataclass
class _Calls:
    """Processes of commands, each for one repository.

    Attributes:
        as_json: True to print a JSON object for each call in place of its output.
    """

    as_json: bool
    _running: list["subprocess.Popen[str]"] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, repository: str, words: Iterable[str]) -> int:
        """Calls a command for a repository, prints its output, and returns its exit status."""
        began, output = time.monotonic(), list[str]()
        with subprocess.Popen(
            [*_PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            with self._lock:
                self._running.append(process)
            assert process.stdout is not None and process.stderr is not None
            errors = threading.Thread(target=_pass, args=(process.stderr, repository, show_progress))
            errors.start()
            if self.as_json:
                output = [*process.stdout]
            else:
                _pass(process.stdout, repository, print_result)
            errors.join()
            status = process.wait()
        with self._lock:
            self._running.remove(process)
            if self.as_json:
                seconds = round(time.monotonic() - began, 1)
                text = "".join(output)
                answer({"repository": repository, "status": status, "seconds": seconds, "output": text}, indent=None)
        return status

    def terminate(self) -> None:
        """Asks the running processes to end: they release their locks."""
        with self._lock:
            for process in self._running:
                process.terminate()


def _pass(lines: Iterable[str], repository: str, show: Callable[[str], None]) -> None:
    for line in lines:
        show(f"{repository}: {line.rstrip()}")
