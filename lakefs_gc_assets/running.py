"""Running a collection in this process, and telling a person what runs did: what the command line is made of."""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile

import dagster as dg

from lakefs_gc_assets import automation, emptying
from lakefs_gc_assets.collection import lock, report, run_folder
from lakefs_gc_assets.collection.clock import Clock, SystemClock
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.report import Report
from lakefs_gc_assets.configuration import Loaded
from lakefs_gc_assets.definitions import build
from lakefs_gc_assets.errors import CollectionError, ConfigurationError
from lakefs_gc_assets.naming import Names
from lakefs_gc_assets.partitions import FLOW_TAG
from lakefs_gc_assets.resources import Collector, collector
from lakefs_gc_assets.sizes import size

Progress = Callable[[str], None]
_STACK = ("\tat ", "  File ", "Traceback ")
_LINE = 1000


def collect(
    loaded: Loaded, sweep: bool | None, progress: Progress, clock: Clock | None = None, flow: Flow = Flow.CLEAN
) -> tuple[bool, list[str]]:
    """Opens a run and makes it in this process.

    Args:
        sweep: whether to delete; None for what the settings say.
        progress: is told each line as it happens.
    Returns:
        Whether the run succeeded, and what to tell of it.
    Raises:
        CollectionError: where the run could not be opened, or a step ended it.
    """
    clock = clock or SystemClock()
    with instance() as home:
        succeeded, run_id, error = execute(loaded, sweep, progress, clock, home, flow)
    if error is not None:
        raise CollectionError(f"run {run_id} failed: {error}")
    found = report.read(opened(loaded, clock).open().store, run_id)
    if found is None:
        raise CollectionError(f"run {run_id} left no report")
    return succeeded and found.success, described(found)


def execute(
    loaded: Loaded,
    sweep: bool | None,
    progress: Progress,
    clock: Clock,
    home: dg.DagsterInstance,
    flow: Flow = Flow.CLEAN,
) -> tuple[bool, str, str | None]:
    """Makes one run on an instance; returns whether it succeeded, its id, and what stopped it."""
    definitions, names = build(loaded, clock, {"console": line_logger(progress)}), Names.of_loaded(loaded)
    new = automation.open_run(home, opened(loaded, clock), flow)
    progress(f"run {new.run_id}: {new.tags[FLOW_TAG]}, windows {new.windows[0]} to {new.windows[-1]}")
    job = definitions.resolve_job_def(names.of("collect"))
    config = {"loggers": {"console": {}}, **({} if sweep is None else automation.run_config(sweep, names))}
    result = job.execute_in_process(instance=home, tags=new.tags, run_config=config, raise_on_error=False)
    return result.success, new.run_id, _failure(result)


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


def line_logger(progress: Progress) -> dg.LoggerDefinition:
    """A console that shows a run's messages as plain lines."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = getattr(record, "dagster_meta", {}).get("orig_message") or record.getMessage()
            step = getattr(record, "dagster_meta", {}).get("step_key")
            if not getattr(record, "dagster_meta", {}).get("dagster_event"):
                progress(f"  {step}: {message}" if step else f"  {message}")

    @dg.logger
    def lines(_: dg.InitLoggerContext) -> logging.Logger:
        logger = logging.Logger("lakefs-gc", logging.INFO)
        logger.addHandler(Lines())
        return logger

    return lines


def _failure(result: dg.ExecuteInProcessResult) -> str | None:
    """What the first check or step that failed said, in one line; None where none did."""
    for evaluation in result.get_asset_check_evaluations():
        if not evaluation.passed:
            return one_line(evaluation.description or evaluation.check_name)
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data and data.user_failure_data.description:
                return f"{event.step_key}: {data.user_failure_data.description}"
            error = data.error
            while error is not None and error.cause is not None:
                error = error.cause
            return f"{event.step_key}: {one_line(error.message) if error else 'failed'}"
    return None if result.success else "the run failed"


def one_line(text: str) -> str:
    """The beginning of a message, without the stack that may follow."""
    lines = takewhile(lambda line: not line.startswith(_STACK), text.strip().splitlines())
    return " ".join(line.strip() for line in lines)[:_LINE]


def described(found: Report) -> list[str]:
    """What a person wants to know of a run that came to its end, in lines."""
    counts, sizes = found.counts, found.object_bytes
    lines = [
        f"run {found.run_id} of {found.repository}, {found.flow}: {found.ending.value}",
        *([f"  a clean run, because {found.why_clean}"] if found.why_clean else []),
        f"  listed      {counts['listed']:>12,} objects, {size(sizes['listed'])}, "
        f"{counts['slices_listed']:,} slices, cutoff {found.cutoff:%F %T}Z",
        f"  uncommitted {counts['uncommitted']:>12,} addresses",
        f"  committed   {counts['committed']:>12,} addresses in {counts['commits']:,} commits, "
        f"by the {found.commit_source}, {counts['ranges_read']:,} ranges read",
        f"  candidates  {counts['candidates']:>12,} objects, {size(sizes['candidates'])}",
        *(f"  kept        {count:>12,} objects: {reason}" for reason, count in sorted(found.kept.items())),
    ]
    if found.moved:
        lines.append(
            f"  quarantined {counts['quarantined']:>12,} objects, {size(sizes['quarantined'])}: moved, not freed"
        )
    if not found.dry_run and (counts["deleted"] or not found.moved):
        lines.append(f"  deleted     {counts['deleted']:>12,} objects, {size(sizes['deleted'])}")
    if not found.dry_run:
        lines.append(
            f"  not gone    {counts['failed']:>12,} failed, {counts['kept_live']:,} kept as live at the recheck"
        )
    lines += [f"  warning: {warning}" for warning in found.warnings]
    if found.dry_run and counts["candidates"]:
        lines.append("  this was a dry run: nothing was deleted; --sweep deletes")
    return lines


def summary(loaded: Loaded, runs: int) -> Iterator[str]:
    """The last runs, newest first, and the lock."""
    repository = opened(loaded, SystemClock()).open()
    yield f"{repository.facts.id} at {repository.namespace.uri}"
    holder = lock.holder(repository.store)
    yield f"lock: {holder}" if holder else "lock: free"
    quarantine = emptying.to_purge(repository, None)
    for moved in (*quarantine.due, *quarantine.waiting):
        there = f"{moved.copies.num_rows:,} objects, {size(moved.size)}"
        yield f"quarantine: {there} of run {moved.run_id}, due {quarantine.due_at(moved):%F %T}Z"
    run_ids = tuple(islice(run_folder.newest_runs(repository.store), runs))
    for run_id in run_ids:
        found = report.read(repository.store, run_id)
        yield f"{run_id}  {_line(found)}" if found else f"{run_id}  not ended"
    if not run_ids:
        yield "no runs yet"


def _line(found: Report) -> str:
    kind = "dry run" if found.dry_run else "sweep"
    start = f"{found.started_at:%F %T}Z  {found.flow}, {kind}: {found.ending.value}"
    if not found.counts:
        return f"{start}: {one_line(found.error or '')}"
    return f"{start}; {found.counts['candidates']:,} candidates, {found.did}"
