"""Names of the work in Spark's UI, event log and history server: of jobs, their groups or tags, and of functions.

Names belong to the thread's context, so work in the background keeps them (`tasks.in_background`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

_DESCRIPTION, _GROUP = "spark.job.description", "spark.jobGroup.id"
_JOINED = " > "
"""Between names of functions that run one after another in the same task."""
C = TypeVar("C", bound=Callable[..., Any])


@dataclass(frozen=True)
class Work:
    """The work that the current thread does.

    Attributes:
        run: repository and id of the run; empty outside of one.
        step: name of the step.
        action: what the step does now; empty if it has no name.
    """

    run: str = ""
    step: str = "lakefs-gc"
    action: str = ""


_current: ContextVar[Work] = ContextVar("work", default=Work())  # noqa: B039


@contextmanager
def named(work: str, run: str = "") -> Iterator[None]:
    """Names the work of this thread until the exit.

    Args:
        work: name of a step, if a run is given; otherwise of an action of the step.
        run: repository and id of a run.
    """
    before = _current.get()
    # A token would be refused if a generator of the caller went on in another context.
    _current.set(Work(run, work) if run else replace(before, action=work))
    try:
        yield
    finally:
        _current.set(before)


@contextmanager
def shown(spark: SparkSession, functions: str) -> Iterator[None]:
    """Shows the work's name at all jobs that this thread starts until the exit: as description and group, or as tags.

    The session may belong to others, so their own description and group are restored.

    Args:
        functions: names of the functions that the jobs run, for a step that did not name its action.
    """
    work = _current.get()
    description, group = f"{work.step}: {work.action or functions}", work.run or work.step
    if hasattr(spark, "_jsc"):
        context = spark.sparkContext
        properties = {_DESCRIPTION: description, _GROUP: group}
        before = {name: context.getLocalProperty(name) for name in properties}
        _set(context, properties)
        try:
            yield
        finally:
            _set(context, before)
        return
    # Spark Connect has neither groups nor descriptions. Its tags must not contain commas.
    tags = {text.replace(",", ";") for text in (description, group)} - spark.getTags()
    for tag in tags:
        spark.addTag(tag)
    try:
        yield
    finally:
        for tag in tags:
            spark.removeTag(tag)


def _set(context: Any, properties: dict[str, Any]) -> None:
    for name, value in properties.items():
        context.setLocalProperty(name, value)


def name_of(function: Any) -> str:
    """Name for Spark's plan; of a lambda, the name of the function around it."""
    while not hasattr(function, "__qualname__"):
        if not isinstance(function, partial):
            return type(function).__name__
        function = function.func
    names = [name for name in function.__qualname__.split(".") if name != "<locals>"]
    chosen = next((name for name in reversed(names) if name != "<lambda>"), "function")
    return str(chosen).strip("_")


def renamed(function: C, *parts: Any) -> C:
    """The function itself, with a name for Spark's plan: the names of its parts, in the order in which they run."""
    function.__name__ = function.__qualname__ = _JOINED.join(
        dict.fromkeys(part if isinstance(part, str) else name_of(part) for part in parts if part is not iter)
    )
    return function


def together(names: Iterable[str]) -> str:
    """Names of the functions of several frames, each once."""
    return ", ".join(dict.fromkeys(filter(None, names)))
