"""The asset and job over all repositories of a code location, and the schedule that makes the overview.

The asset has no partitions, so Dagster plots its numbers over time. Repositories that the configuration covers by
patterns are looked up when the job runs; they have no assets and jobs of their own.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.repository.repository import Clock, SystemClock
from lakefs_gc_assets.configuration_file import AllRepositories
from lakefs_gc_assets.defs.failures import readable
from lakefs_gc_assets.defs.history import CheckVerdict
from lakefs_gc_assets.defs.pages import bars, bullets, place, table
from lakefs_gc_assets.defs.partitions import newest_metadata
from lakefs_gc_assets.extensions.holdings import overview_page
from lakefs_gc_assets.extensions.holdings.overview import AlertKind, History, Overview, Standing, make_overview

ASSET = "repositories_overview"
JOB = "overview"
_OP = "make_overview"
_PAGE = "repositories.html"
_BARS, _ROWS = 6, 200
_ALERTS = "alerts_by_kind"
CHECKS: Mapping[AlertKind, tuple[str, str]] = MappingProxyType(
    {
        AlertKind.UNREADABLE: ("repositories_readable", "Every repository, its store and its secrets can be read."),
        AlertKind.VANISHED: ("no_repository_vanished", "No repository vanished since the overview before."),
        AlertKind.FAILED_RUN: ("newest_runs_succeeded", "The newest run of every repository succeeded."),
        AlertKind.GROWTH: (
            "growth_within_limit",
            "No repository grew by more than overview.growth_alert_share in a week.",
        ),
        AlertKind.BUDGET: (
            "budgets_kept",
            "No repository breaks its budget, or will within overview.budget_alert_days.",
        ),
    }
)
"""Name and description of the check for each kind of alert, so that Dagster's own alerts cover every repository."""


def define(everything: AllRepositories, clock: Clock | None = None) -> dg.Definitions:
    """The overview of a configuration with several repositories, or one that keeps overviews; else nothing."""
    first = (everything.listed[0] if everything.listed else everything.shared).configuration
    if everything.discovery is None and len(everything.listed) < 2 and not first.overview.history:
        return dg.Definitions()
    description = (
        "Shows all repositories of the configuration: stored bytes, garbage, cost a month, trends, and alerts about "
        "growth and budgets. Reads reports of runs; lists and deletes nothing."
    )

    @dg.op(name=_OP, description=description)
    def make(context: dg.OpExecutionContext) -> None:
        with readable():
            overview = make_overview(everything, clock or SystemClock(), context.log.warning)
            page: dict[str, Any] = {}
            if history := History.from_configuration(everything):
                history.write(overview)
                history.store.put(_PAGE, overview_page.render(overview))
                page = {"page": place(everything.shared.configuration.overview.history.rstrip("/") + f"/{_PAGE}")}
        for alert in overview.alerts:
            context.log.warning(f"{alert.kind}: {alert.repository}: {alert.text}")
        context.log_event(dg.AssetMaterialization(ASSET, metadata={**described(overview), **page}))
        for kind, (name, _) in CHECKS.items():
            verdict = judge(kind, alert_texts(overview))
            evaluation = dg.AssetCheckEvaluation(dg.AssetKey(ASSET), name, verdict.passed, {}, description=verdict.why)
            # Dagster records a check here, too; only its types leave that out.
            context.log_event(evaluation)  # type: ignore[arg-type]

    @dg.job(name=JOB, description=description, executor_def=dg.in_process_executor)
    def job() -> None:
        make()

    asset = dg.AssetSpec(
        ASSET,
        description="All repositories of the configuration, with and without an entry of their own. The job "
        f"{JOB} makes it: launch that to see it here. Figures of vanished repositories stay.",
        group_name="garbage_collection",
        kinds={"lakefs"},
    )
    schedule = dg.ScheduleDefinition(
        name="daily_overview",
        cron_schedule=first.overview.cron,
        execution_timezone=first.automation.time_zone,
        job=job,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Makes the overview of all repositories. Cron: overview.cron.",
    )
    checks = [_define_check(kind) for kind in CHECKS]
    return dg.Definitions(assets=[asset], asset_checks=checks, jobs=[job], schedules=[schedule])


def _define_check(kind: AlertKind) -> dg.AssetChecksDefinition:
    """A check of the asset, which the job reports. Launched alone, it judges the newest overview again."""
    name, description = CHECKS[kind]

    @dg.asset_check(asset=ASSET, name=name, description=description)
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        verdict = judge(kind, newest_metadata(context.instance, dg.AssetKey(ASSET)).get(_ALERTS, {}))
        return dg.AssetCheckResult(passed=verdict.passed, description=verdict.why)

    return check


def alert_texts(overview: Overview) -> dict[str, list[str]]:
    """Alerts as text by kind, at most 200 of each."""
    return {
        kind.value: [f"{alert.repository}: {alert.text}" for alert in overview.alerts if alert.kind is kind][:_ROWS]
        for kind in AlertKind
    }


def judge(kind: AlertKind, texts: Mapping[str, Sequence[str]]) -> CheckVerdict:
    """The verdict of a check: passed if there are no alerts of its kind.

    Args:
        texts: as from `alert_texts`; empty before the first overview.
    """
    of_kind = texts.get(kind.value, ())
    return CheckVerdict(not of_kind, "; ".join(of_kind) or "no repository")


def described(overview: Overview) -> Mapping[str, Any]:
    """Metadata of an overview for the UI: numbers, which are plotted, charts, and a table of the largest."""
    totals = overview.totals
    present = [row for row in overview.rows if row.standing is not Standing.VANISHED]
    largest = sorted(present, key=lambda row: -(row.stored_bytes or 0))
    alerts = [f"{alert.repository}: {alert.kind}: {alert.text}" for alert in overview.alerts]
    vanished = [row for row in overview.rows if row.standing is Standing.VANISHED]
    return {
        "repositories": totals.repositories,
        "stored_bytes": totals.stored_bytes,
        "garbage_bytes": totals.garbage_bytes,
        "unknown": totals.unknown,
        "alerts": len(overview.alerts),
        _ALERTS: dg.MetadataValue.json(alert_texts(overview)),
        **{f"monthly_cost_{currency}": amount for currency, amount in totals.monthly_cost.items()},
        "what_needs_attention": bullets(alerts[:_ROWS]),
        "largest": bars(
            "stored bytes",
            [(f"{row.repository}: {size(row.stored_bytes or 0)}", row.stored_bytes or 0) for row in largest[:_BARS]],
        ),
        "by_repository": table(
            dict.fromkeys(("repository", "stored", "garbage", "a day", "swept"), "string"),
            [
                (
                    row.repository,
                    "unknown" if row.stored_bytes is None else size(row.stored_bytes),
                    "unknown" if row.garbage_bytes is None else size(row.garbage_bytes),
                    "unknown" if row.bytes_per_day is None else overview_page.signed(row.bytes_per_day),
                    f"{row.swept_at:%F}" if row.swept_at else "",
                )
                for row in largest[:_ROWS]
            ],
        ),
        **(
            {"vanished": bullets(f"{row.repository}: last seen {row.seen_at:%F}" for row in vanished)}
            if vanished
            else {}
        ),
    }
