"""Progress of commands: a bar on a terminal, else a line for each long step of a run."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lakefs_gc_assets.cli.common import progress_unless, show_progress
from lakefs_gc_assets.collector.frame.frames import PHASES, STEPS
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import LogLine, counted, printable

if TYPE_CHECKING:
    from lakefs_gc_assets.spark import session as spark_session
else:
    spark_session = deferred("lakefs_gc_assets.spark.session")

_POLLS = 4
"""Polls of Spark's tasks, and updates of the bar, per second."""
_NARROWEST = 60
"""Minimum columns of the terminal for a bar."""
_LONG = 60
"""Minimum seconds of a step for a line."""
Item = TypeVar("Item")
Counted = Callable[[int, int], None]
"""Callback with the number of finished items, and the total."""


@contextmanager
def shown_progress(level: int) -> Iterator[tuple[LogLine, "StepLines | None"]]:
    """Shows the progress of a run: by a bar on a terminal, else by a line for each long step.

    Yields the function that prints a line, and the watcher of steps. The bar always disappears at the exit.

    Args:
        level: minimum level of lines, as in `logging`; only INFO has a watcher, instead of the steps' messages.
    """
    if level != logging.INFO:
        yield show_progress, None
    elif (console := _console_with_bar()) is None:
        yield show_progress, StepLines(show_progress)
    else:
        bar = RunBar(console)
        with bar.shown():
            yield bar.say, bar


@contextmanager
def shown_bar(phase: str, quiet: bool = False, unit: str = "tasks") -> Iterator[tuple[LogLine, Counted | None]]:
    """Shows a command's progress on a terminal, by a bar of Spark's tasks, or of items that the command counts.

    Yields the function that prints a line, and the callback for counts, which is None without a bar. The bar disappears
    at the exit.

    Args:
        quiet: True for neither bar nor lines.
        unit: noun for the items that the command counts.
    """
    console = None if quiet else _console_with_bar()
    if console is None:
        yield progress_unless(quiet), None
        return
    bar = RunBar(console, phase)
    with bar.shown():
        yield bar.say, partial(bar.count, unit)


def shown_items(items: Iterable[Item], count: Counted | None, total: Sequence[int]) -> Iterator[Item]:
    """Yields items, and shows their number and the total on a bar; `total` gets its value before the first item."""
    for done, item in enumerate(items, 1):
        yield item
        if count:
            count(done, *total)


def _console_with_bar() -> Console | None:
    """The terminal of standard error; None if it is not a terminal, or too narrow."""
    console = Console(stderr=True, highlight=False)
    fits = console.is_terminal and not console.is_dumb_terminal and console.width >= _NARROWEST
    return console if fits else None


class StepLines:
    """Prints a line at the end of each long step."""

    def __init__(self, say: LogLine) -> None:
        self._say = say
        self._since = time.monotonic()

    def begins(self, step: str) -> None:
        """See Watch.begins."""
        self._since = time.monotonic()

    def ends(self, step: str) -> None:
        """See Watch.ends."""
        took = time.monotonic() - self._since
        if step in PHASES and took >= _LONG:
            self._say(f"  {_phase(step)} took {_clock(took)}")


class RunBar(StepLines):
    """A bar for the current step."""

    def __init__(self, console: Console, phase: str = "starting") -> None:
        super().__init__(self.say)
        self._counts = False
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[done]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            refresh_per_second=_POLLS,
            # Print results above the bar on the same terminal, but write to a file or pipe directly.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=False,
        )
        self._task = self._begun(phase)

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
        self._bar.console.print(escape(printable(line)), soft_wrap=True)

    def begins(self, step: str) -> None:
        """See Watch.begins."""
        super().begins(step)
        if step in PHASES:
            self._bar.remove_task(self._task)
            self._task = self._begun(_phase(step))

    def _begun(self, phase: str) -> TaskID:
        return self._bar.add_task(phase, total=None, done="", left="")

    def show_tasks(self, done: int, total: int, seconds: float) -> None:
        """Shows the finished tasks of Spark's current stages, their rate, and the estimated remaining time.

        Args:
            seconds: time since these stages began.
        """
        remaining = f"{_clock(seconds * (total - done) / done)} left" if 0 < done < total else ""
        rate = f", {done / max(seconds, 1 / _POLLS):,.1f} a second" if done else ""
        progress = f"{done}/{counted(total, 'tasks')}{rate}"
        self._bar.update(self._task, completed=done, total=total or None, done=progress, left=remaining, refresh=True)

    def count(self, unit: str, done: int, total: int) -> None:
        """Shows the command's own count instead of Spark's tasks."""
        if not self._counts:
            self._counts, self._since = True, time.monotonic()
        rate = done / max(time.monotonic() - self._since, 1 / _POLLS)
        left = f"{_clock((total - done) / rate)} left" if 0 < done < total else ""
        progress = f"{done:,}/{total:,} {unit}, {rate:,.0f} a second"
        self._bar.update(self._task, completed=done, total=total or None, done=progress, left=left)

    def _follow(self, ended: threading.Event) -> None:
        before: frozenset[int] = frozenset()
        since = time.monotonic()
        while not ended.wait(1 / _POLLS) and not self._counts:
            if "pyspark" not in sys.modules:
                continue
            with suppress(Exception):
                stages = spark_session.tasks_of_stages()
                if not stages:
                    continue
                if stages.keys().isdisjoint(before):
                    since = time.monotonic()
                before = frozenset(stages)
                done, total = (sum(counts) for counts in zip(*stages.values(), strict=True))
                self.show_tasks(done, total, time.monotonic() - since)


def _phase(step: str) -> str:
    return f"{STEPS.index(step) + 1}/{len(STEPS)} {PHASES[step]}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
