"""Running a collection in this process: for the command line, for EMR Serverless, and for demonstrations."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.clock import Clock
from lakefs_gc_assets.collector.frame.kinds import STEPS
from lakefs_gc_assets.collector.plan import Flow
from lakefs_gc_assets.defs import opening
from lakefs_gc_assets.defs.failures import kind_of
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.partitions import FLOW_TAG, asset_of
from lakefs_gc_assets.defs.resources import Collector, collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, Interrupted, RunFailed
from lakefs_gc_assets.settings import LaunchSettings, Loaded

Progress = Callable[[str], None]
_STACK = ("\tat ", "  File ", "Traceback ")
_LINE = 1000
_NOT_REACHED = "Dependencies for step "
"""How Dagster begins to say of each step after the one that failed that it is not made."""


def execute(
    loaded: Loaded,
    sweep: bool | None,
    progress: Progress,
    clock: Clock,
    home: dg.DagsterInstance,
    flow: Flow = Flow.CLEAN,
    level: int = logging.INFO,
) -> tuple[bool, str, CollectionError | None]:
    """Makes one run on an instance; returns whether it succeeded, its id, and what stopped it.

    Args:
        sweep: whether to delete; None for what the settings say.
        progress: is called with each line of the log.
        home: the instance that keeps the run's history.
        level: the least level of these lines, as in `logging`; with DEBUG also what Dagster says of each step.
    Raises:
        CollectionError: the run cannot be opened.
    """
    changes = {} if sweep is None else {"sweep": sweep}
    loaded, names = decided_here(loaded, **changes), Names.of_loaded(loaded)
    definitions = build(loaded, clock, {"console": line_logger(progress, level)})
    new = opening.open_run(home, opened(loaded, clock), flow)
    if level <= logging.INFO:
        progress(f"run {new.run_id}: {new.tags[FLOW_TAG]}, windows {new.windows[0]} to {new.windows[-1]}")
    job = definitions.resolve_job_def(names.of("collect"))
    console: dict[str, object] = {"loggers": {"console": {}}}
    result = job.execute_in_process(instance=home, tags=new.tags, run_config=console, raise_on_error=False)
    return result.success, new.run_id, _failure(result, new.run_id)


def execute_approved(
    loaded: Loaded,
    run_id: str,
    progress: Progress,
    clock: Clock,
    home: dg.DagsterInstance,
    level: int = logging.INFO,
) -> CollectionError | None:
    """Approves a dry run and makes its last step, which sweeps after a recheck; returns what stopped it.

    Args:
        progress, level: as for `execute`.
    Raises:
        CollectionError: where there is no such run.
    """
    loaded, names = decided_here(loaded, approve_run=run_id), Names.of_loaded(loaded)
    definitions = build(loaded, clock, {"console": line_logger(progress, level)})
    plan = plans.read(opened(loaded, clock).open().store, run_id)
    # The instance may be another one than that of the dry run.
    windows = names.partitions.add(home, run_id, plan.windows)
    result = definitions.resolve_job_def(names.of("collect")).execute_in_process(
        instance=home,
        tags=names.partitions.tags(run_id, windows, plan.flow.value),
        run_config={"loggers": {"console": {}}},
        asset_selection=[names.asset(STEPS[-1])],
        raise_on_error=False,
    )
    return _failure(result, run_id)


def decided_here(loaded: Loaded, **collection: object) -> Loaded:
    """The configuration of a process that makes a run itself: the file and this process decide what the run may do.

    Args:
        collection: settings of that section which the process changes.
    """
    content = loaded.configuration
    changes = {
        "launch": LaunchSettings(sweep="any"),
        "collection": content.collection.model_copy(update=collection),
    }
    return replace(loaded, configuration=content.model_copy(update=changes))


def opened(loaded: Loaded, clock: Clock) -> Collector:
    """The repository's resource outside of a run; secrets are read from the environment."""
    return collector(loaded.with_secrets(), clock)


@contextmanager
def instance() -> Iterator[dg.DagsterInstance]:
    """The instance of DAGSTER_HOME; without one, an instance that is gone with this process.

    Raises ConfigurationError where there is no such instance.
    """
    if os.environ.get("DAGSTER_HOME"):
        try:
            named = dg.DagsterInstance.get()
        except dg.DagsterError as error:
            raise ConfigurationError(f"DAGSTER_HOME: {one_line(str(error))}") from None
        with named as home:
            yield home
        return
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-") as folder, dg.DagsterInstance.ephemeral(folder) as home:
        yield home


def line_logger(progress: Progress, level: int = logging.INFO) -> dg.LoggerDefinition:
    """A console that shows a run's messages as plain lines.

    Args:
        level: of the lines that are told, as in `logging`; with DEBUG also what Dagster says of each step.
    """

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            meta = getattr(record, "dagster_meta", {})
            message = meta.get("orig_message") or record.getMessage()
            step = meta.get("step_key")
            if level > logging.DEBUG and (meta.get("dagster_event") or message.startswith(_NOT_REACHED)):
                return
            if step:
                message = f"{step}: {message.removeprefix(f'{asset_of(step)}: ')}"
            progress(f"  {message}")

    @dg.logger
    def lines(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("lakefs-gc", level)
        logger.addHandler(Lines())
        return logger

    return lines


def _failure(result: dg.ExecuteInProcessResult, run_id: str) -> CollectionError | None:
    """What the first check or step that failed said, in one line; None where none did."""
    start = f"run {run_id} failed:"
    for evaluation in result.get_asset_check_evaluations():
        if not evaluation.passed:
            return RunFailed(f"{start} {one_line(evaluation.description or evaluation.check_name)}")
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            said = data.user_failure_data
            if said and said.description:
                return RunFailed(f"{start} {event.step_key}: {said.description}", kind_of(said))
            if _was_interrupted(data.error):
                return Interrupted(f"run {run_id} was interrupted in {event.step_key}: make a new one")
            error = data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return RunFailed(f"{start} {event.step_key}: {one_line(error.message) if error else 'failed'}")
    return None if result.success else RunFailed(f"run {run_id} failed")


def _was_interrupted(error: SerializableErrorInfo | None) -> bool:
    """Whether an error is an interrupt, or is what went wrong while a step that was interrupted gave up."""
    if error is None:
        return False
    interrupt = error.cls_name == dg.DagsterExecutionInterruptedError.__name__
    return interrupt or _was_interrupted(error.cause) or _was_interrupted(error.context)


def one_line(text: str) -> str:
    """The beginning of a message, without the stack that may follow."""
    lines = takewhile(lambda line: not line.startswith(_STACK), text.strip().splitlines())
    return " ".join(line.strip() for line in lines)[:_LINE]
