"""Sensors that report ended runs to a webhook, if one is configured.

The posted body is `{"text": …}`, which Slack and compatible services accept. Tags of a launch can have any text, so
messages about the end of a run come from its stored report.
"""

import json
import os
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg
import urllib3
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential
from urllib3.exceptions import HTTPError, ProxyError, SSLError

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.collector.standing_approvals import NOT_COVERED
from lakefs_gc_assets.configuration_file import Loaded, environment_value
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.automation import is_collection
from lakefs_gc_assets.defs.jobs import ApprovableGarbage, approval_address
from lakefs_gc_assets.defs.partitions import (
    RUN_TAG,
    Names,
    Reaction,
    for_each_ended_run,
    run_id_in,
    run_key_of,
    selected,
)
from lakefs_gc_assets.defs.resources import Collector, end_of
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, CorruptFile, counted

if TYPE_CHECKING:
    from lakefs_gc_assets.lakefs.api import transport
else:
    transport = deferred("lakefs_gc_assets.lakefs.api.transport")

_SECTION = "notifications"
_FAILURES, _ENDS = "failure_webhook", "ended_webhook"
_SECONDS = 10
_ATTEMPTS = 3
_MAX_LETTERS = 3000
_KEPT = timedelta(days=7)
"""Messages about runs that ended longer ago are dropped."""


class MessageNotSent(CollectionError):
    """A message could not be sent now: the tick fails, and the next one retries."""


class _WebhookTransient(CollectionError):
    """The webhook failed, and a retry may succeed."""


class _WebhookRefused(CollectionError):
    """The webhook rejected the message."""


def define(names: Names, loaded: Loaded) -> Additions:
    """The sensors of the webhooks that the configuration sets."""
    configured = {name for section, name in loaded.secret_variables if section == _SECTION}

    def sensors(clock: Clock, jobs: Collection[str]) -> list[dg.SensorDefinition]:
        failures = [_tell_of_failures(names, loaded, clock, jobs)] if _FAILURES in configured else []
        return failures + ([_tell_of_runs(names, loaded, clock)] if _ENDS in configured else [])

    return Additions(sensors=sensors)


def post(url: str, text: str, sleep: Callable[[float], None], ca_bundle: str = "") -> None:
    """Posts a message to a webhook, with three attempts, through the proxy that the environment names for it.

    Raises CollectionError if all attempts fail. Its text omits the URL, which may be a secret.

    Args:
        text: shown literally: characters that Slack would read as links or mentions are escaped.
        ca_bundle: as the setting of this name.
    """
    shown = text if len(text) <= _MAX_LETTERS else f"{text[:_MAX_LETTERS]} …"
    escaped = shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    attempts = Retrying(
        retry=retry_if_exception_type(_WebhookTransient),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=wait_exponential(multiplier=1),
        sleep=sleep,
        reraise=True,
    )
    proxy = transport.proxy_from_environment(url)
    certificates = transport.trusted_certificates("notifications.ca_bundle", ca_bundle)
    options: dict[str, Any] = {"ca_certs": certificates} if certificates else {}
    pool = (
        urllib3.PoolManager(**options)
        if proxy is None
        else urllib3.ProxyManager(proxy.url, proxy_headers=transport.headers_for(proxy), **options)
    )
    with pool:
        attempts(_post_once, pool, url, json.dumps({"text": escaped}).encode())


def _post_once(pool: urllib3.PoolManager, url: str, body: bytes) -> None:
    try:
        answer = pool.request(
            "POST", url, body=body, headers={"Content-Type": "application/json"}, timeout=_SECONDS, retries=False
        )
    except ProxyError:
        raise _WebhookTransient(
            "the webhook cannot be reached through the proxy: check HTTP_PROXY or HTTPS_PROXY, or list the webhook's "
            "host in NO_PROXY to bypass the proxy"
        ) from None
    except SSLError:
        raise _WebhookTransient(
            "the webhook's certificate is not trusted: set notifications.ca_bundle to the certificates of its authority"
        ) from None
    except HTTPError as error:
        raise _WebhookTransient(f"the webhook cannot be reached: {type(error).__name__}") from None
    if answer.status >= 500 or answer.status in (408, 429):
        raise _WebhookTransient(f"the webhook answered {answer.status}")
    if answer.status >= 300:
        raise _WebhookRefused(f"the webhook answered {answer.status}")


def _tell_of_failures(names: Names, loaded: Loaded, clock: Clock, jobs: Collection[str]) -> dg.SensorDefinition:
    def tell(context: dg.SensorEvaluationContext, run: dg.DagsterRun, message: str) -> str | None:
        return _failed(context.instance, names, run, message) if is_about(names, run, jobs) else None

    return dg.SensorDefinition(
        name=names.qualified("tell_of_failures"),
        evaluation_fn=for_each_ended_run(
            dg.DagsterEventType.RUN_FAILURE, _teller(tell, names, loaded, _FAILURES, clock)
        ),
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Posts each failed run of {names.repository} to notifications.failure_webhook. It starts no runs.",
    )


def _tell_of_runs(names: Names, loaded: Loaded, clock: Clock) -> dg.SensorDefinition:
    @names.bound
    def evaluate(context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]) -> dg.SensorResult:
        def tell(context: dg.SensorEvaluationContext, run: dg.DagsterRun, _: str) -> str | None:
            return _ended(context, collector, names, run) if is_collection(names, run) else None

        react = _teller(tell, names, loaded, _ENDS, clock)
        return for_each_ended_run(dg.DagsterEventType.RUN_SUCCESS, react)(context)

    return dg.SensorDefinition(
        name=names.qualified("tell_of_runs"),
        evaluation_fn=evaluate,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Posts the outcome of each run of {names.repository} that came to its end to "
        "notifications.ended_webhook. It starts no runs.",
    )


def _teller(
    tell: Callable[[dg.SensorEvaluationContext, dg.DagsterRun, str], str | None],
    names: Names,
    loaded: Loaded,
    webhook: str,
    clock: Clock,
) -> Reaction:
    """A reaction that posts a message about a run, unless that is None.

    If the message cannot be sent, the tick fails, and the next one retries. A message that cannot be built, or that the
    webhook rejects, must not block later ones: a message with the run and the reason replaces it.
    """

    def replacement(run: dg.DagsterRun, why: CollectionError) -> str:
        return f"{_of(names)} Dagster run {run.run_id} ended, but no message about it could be posted: {why}"

    def react(context: dg.SensorEvaluationContext, run: dg.DagsterRun, message: str) -> dg.SkipReason | None:
        ended = end_of(context.instance, run.run_id)
        if ended is not None and clock.now() - ended > _KEPT:
            return None
        try:
            try:
                text = tell(context, run, message)
            except CorruptFile as damage:
                text = replacement(run, damage)
            if text is None:
                return None
            url, ca_bundle = _url(loaded, webhook), loaded.configuration.notifications.ca_bundle
            try:
                post(url, text, clock.sleep, ca_bundle)
            except _WebhookRefused as refusal:
                # A webhook that rejects everything also rejects this one, and then the tick fails.
                post(url, replacement(run, refusal), clock.sleep, ca_bundle)
        except CollectionError as error:
            raise MessageNotSent(
                f"no message about Dagster run {run.run_id} could be sent; the next tick tries again: {error}"
            ) from error
        return dg.SkipReason(f"a message about Dagster run {run.run_id} was sent")

    return react


def is_about(names: Names, run: dg.DagsterRun, jobs: Collection[str]) -> bool:
    """True if a Dagster run is one of the repository's jobs, or makes some of its assets."""
    return run.job_name in jobs or is_collection(names, run)


def _failed(instance: dg.DagsterInstance, names: Names, run: dg.DagsterRun, message: str) -> str:
    # The event of the run's end only says that steps failed; the steps' own events have the reasons.
    events = [entry.dagster_event for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)]
    failures = [event.step_failure_data.user_failure_data for event in events if event]
    reasons = [failure.description or "" for failure in failures if failure]
    key = run_key_of(run)
    called = key and (run_id_in(key) or (key if plans.is_name(key) else None))
    about = f" of run {called}" if called else ""
    why = "; ".join(filter(None, reasons)) or message or "failed"
    return f"{_of(names)} {run.job_name}{about} failed: {why}"


def _ended(context: dg.SensorEvaluationContext, collector: Collector, names: Names, run: dg.DagsterRun) -> str | None:
    """A message about the end of a run, from its report; None if this Dagster run made no report."""
    record = context.instance.get_run_record_by_id(run.run_id)
    store = collector.open(to_read=True).store
    run_id = _run_of(context.instance, names, run, collector)
    if run_id is None or record is None or record.start_time is None:
        return None
    try:
        report = reports.read(store, run_id)
    except CorruptFile as error:
        return f"{_of(names)} run {run_id} ended, but its report cannot be read: {error}"
    if report is None or report.ended_at.timestamp() < record.start_time:
        return None  # No report, or one that an earlier Dagster run made.
    asks_name = not launching.is_named_by_proxy(context.instance)
    approval = _approval(collector, run, plans.read(store, run_id), report, asks_name)
    return f"{_of(names)} {_in_words(report)}{approval}"


def _run_of(instance: dg.DagsterInstance, names: Names, run: dg.DagsterRun, collector: Collector) -> str | None:
    """The id of the run that a Dagster run collected; None if it made none, or its partitions are gone."""
    key = run_key_of(run)
    if key is None:
        # The job on EMR Serverless covers no partition, but tags its Dagster run.
        return run_id_in(run.tags.get(RUN_TAG, ""))
    if (run_id := run_id_in(key)) is not None:
        return run_id
    if not plans.is_name(key):
        return None
    try:
        cells = names.partitions.covered(instance, run)
    except dg.DagsterError:
        return None
    return collector.run_of(*selected(cells))


def _in_words(report: Report) -> str:
    mode = "dry run" if report.dry_run else "quarantine" if report.moved else "sweep"
    bytes_freed = report.statistics.deleted_bytes
    freed = f", {size(bytes_freed)} freed" if bytes_freed else ""
    found = counted(report.statistics.candidates or 0, "objects")
    counts = f" ({found} of garbage found, {report.did})" if report.counts else ""
    return f"{mode} of run {report.run_id} ({report.flow}): {report.ending.value}{freed}{counts}"


def _approval(collector: Collector, run: dg.DagsterRun, plan: Plan, report: Report, asks_name: bool) -> str:
    """Limit of a standing approval that a dry run met, and the launchpad that approves it, if the UI is known."""
    if not report.dry_run:
        return ""
    waits = "".join(f". It {warning}" for warning in report.warnings if warning.startswith(NOT_COVERED))
    if not collector.configuration.notifications.ui_url:
        return waits
    address = approval_address(collector, run, plan, ApprovableGarbage.from_report(report), asks_name=asks_name)
    return f"{waits}. To approve it: {address}" if address else waits


def _of(names: Names) -> str:
    return f"lakeFS garbage collection, {names.repository}:"


def _url(loaded: Loaded, name: str) -> str:
    variable = loaded.secret_variables[_SECTION, name]
    if variable not in os.environ:
        raise ConfigurationError(f"notifications.{name} is read from the variable {variable}, which is not set")
    return environment_value(variable)
