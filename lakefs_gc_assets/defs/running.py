"""Running a collection in this process: for the command line, EMR Serverless, and demonstrations."""

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import dagster as dg

from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import INTERRUPTED
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.collector.standing_approvals import StandingApproval
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import jobs
from lakefs_gc_assets.defs.failures import kind_of, summary
from lakefs_gc_assets.defs.partitions import FLOW_TAG, Names, asset_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, Interrupted, LogLine, RunFailed, one_line
from lakefs_gc_assets.settings import LaunchSettings, lacks_deployment


class Watch(Protocol):
    """A watcher of the steps of a run, such as a progress bar. Steps have the names of their assets."""

    def begins(self, step: str) -> None:
        """A step begins."""
        ...

    def ends(self, step: str) -> None:
        """A step succeeded."""
        ...


@dataclass(frozen=True)
class AskedRun:
    """A requested run.

    Attributes:
        sweep: True to delete; None to use the settings.
        windows: the slice windows that it is limited to, as `slices.select_windows` takes them; empty for all.
    """

    sweep: bool | None = None
    flow: Flow = Flow.CLEAN
    windows: str = ""


@dataclass(frozen=True)
class Detail:
    """Level of detail for a run's log lines.

    Attributes:
        level: minimum level of these lines, as in `logging`; DEBUG includes Dagster's messages about steps.
        watch: watcher of steps, which replaces their messages; only warnings are then logged as lines.
    """

    level: int = logging.INFO
    watch: Watch | None = None


_NORMAL = Detail()
FEW_WRITES = {"DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS": "1", "DAGSTER_EVENT_BATCH_SIZE": "200"}
"""Variables by which Dagster stores one planned event per asset of a run instead of one per window, and on
PostgreSQL writes 200 events of windows at once.

Dagster's open-source storages ignore the windows of such an event. So the UI shows a window as missing until it is
made, not as under way, nor as failed if the run fails. Dagster has no public way to report either for single windows.
The asset `collection_history`, its check and the list of runs show failed runs."""
_NO_ASSET_EVENTS = {"dagster/defer_asset_events": "true"}
"""Tag by which Dagster stores no events of a run's assets. Otherwise it stores two for each window of each asset,
for pages that cannot be opened on an instance that ends with its process. With 2,001 windows they took 72 seconds of
processor time."""
_NOT_REACHED = "Dependencies for step "
"""Prefix of Dagster's message about each step that is skipped after a failed one."""
_WAITING = "waiting "
"""Prefix of a step's message about a wait of minutes, which the user must see."""


def execute(
    loaded: Loaded, asked: AskedRun, progress: LogLine, clock: Clock, home: dg.DagsterInstance, detail: Detail = _NORMAL
) -> tuple[str, CollectionError | None]:
    """Makes one run on an instance; returns its id, and its error if it failed.

    Args:
        progress: called with each line of the log.
        home: the instance that keeps the run's history.
    Raises:
        CollectionError: the run cannot be opened.
    """
    changes = {} if asked.sweep is None else {"sweep": asked.sweep}
    loaded = decided_here(loaded, **changes)
    job, collecting = _collect_job(loaded, clock, progress, detail), Collector.from_loaded(loaded, clock)
    new = jobs.open_run(home, collecting, asked.flow, windows=asked.windows)
    if detail.level <= logging.INFO:
        limited = f", {plans.describe_windows(new.windows)}" if asked.windows else ""
        progress(f"run {new.run_id}: {new.tags[FLOW_TAG]}{limited}")
    owner = str(uuid.uuid4())
    try:
        result = _collect(job, home, new.tags, owner)
    except BaseException as error:
        make_step.end_if_locked(new.run_id, collecting.last_opened(), owner, clock.now(), summary(error))
        raise
    failure = failure_of(result, new.run_id)
    if failure is not None:
        reason = INTERRUPTED if isinstance(failure, Interrupted) else str(failure)
        make_step.end_if_locked(new.run_id, collecting.last_opened(), owner, clock.now(), reason)
    return new.run_id, failure


def execute_approved(
    loaded: Loaded,
    run_id: str,
    progress: LogLine,
    clock: Clock,
    home: dg.DagsterInstance,
    detail: Detail = _NORMAL,
    standing: StandingApproval | None = None,
) -> None:
    """Approves a dry run and runs its last step, which sweeps after a recheck.

    Args:
        progress: called with each line of the log.
        standing: the standing approval that covers the candidates; None if the caller approves them.
    Raises:
        CollectionError: there is no such run, or its last step failed.
    """
    approving = {} if standing else {"approve_run": run_id}
    loaded, names = decided_here(loaded, **approving), Names.from_loaded(loaded)
    job = _collect_job(loaded, clock, progress, detail)
    store = Collector.from_loaded(loaded, clock).open().store
    plan = plans.read(store, run_id)
    if standing:
        sweeping.store_approval(store, sweeping.require_dry_run(store, run_id), clock.now(), standing)
        progress(f"run {run_id}: {standing} covers its candidates: deleting them after a recheck")
    # The instance may differ from the dry run's instance.
    tags = names.partitions.add_again(home, plan)
    if error := failure_of(_collect(job, home, tags, assets=[names.asset(STEPS[-1])]), run_id):
        raise error


def _collect_job(loaded: Loaded, clock: Clock, progress: LogLine, detail: Detail) -> dg.JobDefinition:
    for section, key in loaded.configuration.resource_keys.items():
        raise lacks_deployment(section, key)
    definitions = build(loaded, clock, loggers={"console": line_logger(progress, detail)})
    return definitions.resolve_job_def(Names.from_loaded(loaded).qualified("collect"))


def _collect(
    job: dg.JobDefinition,
    home: dg.DagsterInstance,
    tags: Mapping[str, str],
    owner: str | None = None,
    assets: Sequence[dg.AssetKey] | None = None,
) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(
        instance=home,
        tags={**tags, **(_NO_ASSET_EVENTS if home.is_ephemeral else {})},
        run_config={"loggers": {"console": {}}},
        raise_on_error=False,
        run_id=owner,
        asset_selection=assets,
    )


def decided_here(loaded: Loaded, **collection: object) -> Loaded:
    """The configuration of a process that makes a run itself: the file and this process decide the actions of the run.

    Args:
        collection: settings of the section `collection` to change.
    """
    content = loaded.configuration
    changes = {"launch": LaunchSettings(sweep="any"), "collection": content.collection.model_copy(update=collection)}
    return replace(loaded, configuration=content.model_copy(update=changes))


@contextmanager
def instance() -> Iterator[dg.DagsterInstance]:
    """The instance of DAGSTER_HOME; without one, an ephemeral instance.

    Runs over thousands of windows start in time on either, unless the environment sets FEW_WRITES otherwise.

    Raises ConfigurationError if there is no such instance.
    """
    if os.environ.get("DAGSTER_HOME"):
        try:
            named = dg.DagsterInstance.get()
        except dg.DagsterError as error:
            raise ConfigurationError(f"DAGSTER_HOME: {one_line(str(error))}") from None
        with named as home, _with_few_writes():
            yield home
        return
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-") as folder, dg.DagsterInstance.ephemeral(folder) as home:
        yield home


@contextmanager
def _with_few_writes() -> Iterator[None]:
    """Sets the unset variables of FEW_WRITES for this process: Dagster reads them from its environment."""
    added = {name: value for name, value in FEW_WRITES.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def line_logger(progress: LogLine, detail: Detail = _NORMAL) -> dg.LoggerDefinition:
    """A console that shows a run's messages as plain lines."""
    level, watch = detail.level, detail.watch

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            meta = getattr(record, "dagster_meta", {})
            message = meta.get("orig_message") or record.getMessage()
            step, event = meta.get("step_key"), meta.get("dagster_event")
            if watch is not None and step and event is not None:
                if event.event_type is dg.DagsterEventType.STEP_START:
                    watch.begins(asset_of(step))
                elif event.event_type is dg.DagsterEventType.STEP_SUCCESS:
                    watch.ends(asset_of(step))
            if record.levelno < level:
                return
            if level > logging.DEBUG and (event or message.startswith(_NOT_REACHED)):
                return
            if step:
                message = message.removeprefix(f"{asset_of(step)}: ")
                if watch is None or record.levelno >= logging.WARNING:
                    message = f"{step}: {message}"
                elif not message.startswith(_WAITING):
                    return
            progress(f"  {message}")

    @dg.logger
    def lines(_: dg.InitLoggerContext) -> logging.Logger:
        # Dagster logs the events of steps, which the watcher needs, at level DEBUG.
        logger = logging.Logger("lakefs-gc", level if watch is None else logging.DEBUG)
        logger.addHandler(Lines())
        return logger

    return lines


def failure_of(result: dg.ExecuteInProcessResult, run_id: str) -> CollectionError | None:
    """The error of the first blocking check or step that failed, in one line; None if none failed.

    Findings of checks that are not blocking are in the report.
    """
    start = f"run {run_id} failed"
    for evaluation in result.get_asset_check_evaluations():
        if evaluation.blocking and not evaluation.passed:
            return RunFailed(f"{start}: {one_line(evaluation.description or evaluation.check_name)}")
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            failure = data.user_failure_data
            if failure and failure.description:
                return RunFailed(f"{start} in {event.step_key}: {failure.description}", kind_of(failure.metadata))
            if _was_interrupted(event):
                return Interrupted(f"run {run_id} was interrupted in {event.step_key}: start a new run")
            error = data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return RunFailed(f"{start} in {event.step_key}: {one_line(error.message) if error else 'failed'}")
    return None if result.success else RunFailed(start)


def _was_interrupted(failed: dg.DagsterEvent) -> bool:
    """True if the error of a failed step is an interrupt, or happened while the interrupted step was ending."""
    errors = [failed.step_failure_data.error]
    while errors:
        if (error := errors.pop()) is not None:
            if error.cls_name == dg.DagsterExecutionInterruptedError.__name__:
                return True
            errors += [error.cause, error.context]
    return False
