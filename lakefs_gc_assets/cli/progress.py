"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lakefs_gc_assets.cli.common import show_progress
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.spark import session as spark_session

PHASES = dict(
    zip(
        STEPS,
        ("listing what is stored", "reading what is staged", "reading commits", "subtracting", "finishing"),
        strict=True,
    )
)
"""Description of each step in a few words."""

_POLLS = 4
"""Times per second that Spark is asked for its tasks, and the bar is drawn."""
_NARROWEST = 60
"""Minimum columns for a bar."""


@contextmanager
def shown_progress(level: int) -> Iterator[tuple[LogLine, "RunBar | None"]]:
    """Shows the progress of a run: as a bar on a terminal, else line by line.

    Yields the function that prints a line, and the watcher of steps. The bar disappears at the exit, in any case.

    Args:
        level: minimum level of lines, as in `logging`; only INFO has a bar.
    """
    console = Console(stderr=True, highlight=False)
    if level != logging.INFO or not console.is_terminal or console.is_dumb_terminal or console.width < _NARROWEST:
        yield show_progress, None
        return
    bar = RunBar(console)
    with bar.shown():
        yield bar.say, bar


@dataclass
class RunBar:
    """A bar for the current step; each step prints a line when it ends."""

    console: Console
    _bar: Progress = field(init=False)
    _task: TaskID = field(init=False)
    _last_note: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            transient=True,
            refresh_per_second=_POLLS,
            # Nothing else prints meanwhile, and results go to standard output untouched.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._begun("starting")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the bar until the exit, and polls Spark's tasks meanwhile."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(ended,), name="progress of tasks", daemon=True)
        with self._bar:
            thread.start()
            try:
                yield
            finally:
                ended.set()
                thread.join()

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._bar.console.print(escape(line), soft_wrap=True)

    def begins(self, step: str) -> None:
        """See Watch.begins."""
        self._last_note = ""
        if step in PHASES:
            self._bar.remove_task(self._task)
            self._task = self._begun(f"{STEPS.index(step) + 1}/{len(STEPS)} {PHASES[step]}")

    def _begun(self, phase: str) -> TaskID:
        return self._bar.add_task(phase, total=None, done="", left="")

    def notes(self, step: str, message: str) -> None:
        """See Watch.notes: a step's line at its end shows its last note."""
        self._last_note = message

    def ends(self, step: str) -> None:
        """See Watch.ends."""
        if step in PHASES and self._last_note:
            self.say(f"  {step}: {self._last_note}")

    def show_tasks(self, done: int, total: int, seconds: float) -> None:
        """Shows the finished tasks of Spark's current stages, and the estimated time for the others.

        Args:
            seconds: time since these stages began.
        """
        remaining = f"{_clock(seconds * (total - done) / done)} left" if 0 < done < total else ""
        progress = f"{done}/{total} tasks"
        self._bar.update(self._task, completed=done, total=total or None, done=progress, left=remaining, refresh=True)

    def _follow(self, ended: threading.Event) -> None:
        before: frozenset[int] = frozenset()
        since = time.monotonic()
        while not ended.wait(1 / _POLLS):
            with suppress(Exception):
                stages = spark_session.tasks_of_stages()
                if not stages:
                    continue
                if stages.keys().isdisjoint(before):
                    since = time.monotonic()
                before = frozenset(stages)
                done, total = (sum(counts) for counts in zip(*stages.values(), strict=True))
                self.show_tasks(done, total, time.monotonic() - since)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
