"""Sensors that report ended runs, to a webhook if one is configured.

The posted body is `{"text": …}`, which Slack and compatible services accept.
"""

import json
import os
from collections.abc import Collection, Iterator

import dagster as dg
import urllib3
from urllib3.exceptions import HTTPError

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.repository import Clock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.history import ENDING_TAG, FREED_TAG, HISTORY, MODE_TAG, Historian
from lakefs_gc_assets.defs.partitions import FLOW_TAG, Names, run_id_of
from lakefs_gc_assets.defs.sensors import EndedRunSensor
from lakefs_gc_assets.errors import CollectionError, ConfigurationError

_SECTION = "notifications"
_FAILURES, _ENDS = "failure_webhook", "ended_webhook"
_SECONDS = 10
_MAX_EVENTS = 50


def define(names: Names, loaded: Loaded, clock: Clock, jobs: Collection[str]) -> list[dg.SensorDefinition]:
    """The sensors of one repository.

    Args:
        jobs: names of its jobs, whose failures are reported; failed collections without a job are reported too.
    """
    configured = {name for section, name in loaded.secret_variables if section == _SECTION}
    failures = _failure_sensor(names, loaded, clock, jobs, _FAILURES in configured)
    return [failures, *([_ended_sensor(names, loaded)] if _ENDS in configured else [])]


def post(url: str, text: str) -> None:
    """Posts a message to a webhook. Raises CollectionError, without the URL, which may be a secret, if that fails."""
    try:
        answer = urllib3.request(
            "POST",
            url,
            body=json.dumps({"text": text}).encode(),
            headers={"Content-Type": "application/json"},
            timeout=_SECONDS,
            retries=False,
        )
    except HTTPError as error:
        raise CollectionError(f"the webhook cannot be reached: {type(error).__name__}") from None
    if answer.status >= 300:
        raise CollectionError(f"the webhook answered {answer.status}")


def _failure_sensor(
    names: Names, loaded: Loaded, clock: Clock, jobs: Collection[str], posts: bool
) -> dg.SensorDefinition:
    webhook = "posts it to notifications.failure_webhook" if posts else "notifications.failure_webhook would get it"

    def sensor(context: dg.RunStatusSensorContext) -> Iterator[dg.SkipReason]:
        run = context.dagster_run
        if not is_about(names, run, jobs):
            yield dg.SkipReason("a run of something else")
            return
        error = context.dagster_event.message or "failed"
        if _collects(names, run) and ENDING_TAG not in run.tags:
            now = clock.now()
            Historian(context.instance, names, run, context.log.warning).failed(None, run_id_of(run), now, error)
        if posts:
            post(_url(loaded, _FAILURES), _failed(context.for_run_failure(), names, error))

    return EndedRunSensor(
        name=names.qualified("note_failures"),
        run_status=dg.DagsterRunStatus.FAILURE,
        run_status_sensor_fn=sensor,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Notes each failed run of {names.repository} in {HISTORY}, also one whose process was killed, and "
        f"{webhook}. It starts nothing.",
    )


def _ended_sensor(names: Names, loaded: Loaded) -> dg.SensorDefinition:
    def sensor(context: dg.RunStatusSensorContext) -> Iterator[dg.SkipReason]:
        run = context.dagster_run
        if not _collects(names, run) or ENDING_TAG not in run.tags:
            yield dg.SkipReason("no run that collects")
            return
        post(_url(loaded, _ENDS), _ended(context, names))

    return EndedRunSensor(
        name=names.qualified("tell_of_runs"),
        run_status=dg.DagsterRunStatus.SUCCESS,
        run_status_sensor_fn=sensor,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Posts to notifications.ended_webhook what each run of {names.repository} did that came to its "
        "end. It starts nothing.",
    )


def is_about(names: Names, run: dg.DagsterRun, jobs: Collection[str]) -> bool:
    """True if a Dagster run is one of the repository's jobs, or makes some of its assets."""
    return run.job_name in jobs or _collects(names, run)


def _collects(names: Names, run: dg.DagsterRun) -> bool:
    ours = {names.asset(step) for step in STEPS}
    return run.job_name == names.qualified("collect") or bool(ours & set(run.asset_selection or ()))


def _failed(context: dg.RunFailureSensorContext, names: Names, error: str) -> str:
    run = context.dagster_run
    # Dagster's event only says that steps failed; the steps' own events have the reasons.
    reasons = [
        event.step_failure_data.user_failure_data.description or ""
        for event in context.get_step_failure_events()
        if event.step_failure_data.user_failure_data
    ]
    return f"{_of(names, run)} failed: {'; '.join(filter(None, reasons)) or error}"


def _ended(context: dg.RunStatusSensorContext, names: Names) -> str:
    run = context.dagster_run
    freed = run.tags.get(FREED_TAG)
    text = f"{_of(names, run)}: {run.tags[ENDING_TAG]}{f', {freed} freed' if freed else ''}"
    for record in context.instance.fetch_materializations(names.asset(HISTORY), limit=_MAX_EVENTS).records:
        event = record.asset_materialization
        shown = {name: value.value for name, value in event.metadata.items()} if event else {}
        if shown.get("dagster_run") == run.run_id:
            return f"{text} ({shown['found_objects']:,} objects of garbage found, {shown['deleted_objects']:,} deleted)"
    return text


def _of(names: Names, run: dg.DagsterRun) -> str:
    what = run.tags.get(MODE_TAG) or run.job_name
    flow = f" ({run.tags[FLOW_TAG]})" if FLOW_TAG in run.tags else ""
    about = f" of run {run_id}" if (run_id := run_id_of(run)) else ""
    return f"lakeFS garbage collection, {names.repository}: {what}{about}{flow}"


def _url(loaded: Loaded, name: str) -> str:
    variable = loaded.secret_variables[_SECTION, name]
    if variable not in os.environ:
        raise ConfigurationError(f"notifications.{name} comes from the variable {variable}, which is not set")
    return os.environ[variable]
