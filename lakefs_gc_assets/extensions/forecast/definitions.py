"""The asset `retention_forecast`: bytes that other retention rules would free, and bytes of each branch and tag.

It has no partitions, so Dagster plots its numbers over time. It is independent of runs: it takes no lock, deletes
nothing, and need not wait for a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector.records import stored_forecasts
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.records.stored_forecasts import NAME
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.collector.retention.rules import Policy
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.jobs import one_op_job
from lakefs_gc_assets.defs.pages import bars, bullets, stored_page, table
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import ConfigurationError, LogLine, StorageError
from lakefs_gc_assets.extensions.forecast import forecast, page
from lakefs_gc_assets.extensions.forecast.forecast import Forecast, Holding
from lakefs_gc_assets.extensions.forecast.scenarios import AGES
from lakefs_gc_assets.spark.faults import errors_of_spark

JOB = "forecast"
_UNLIMITED = -1
# Maximum retention periods, and maximum policies, of one launch: each is a scenario.
_MOST_SCENARIOS = 100
_BARS = 6
_ROWS = 200
_NAME = 22
_SHOWN_AGES = (0, 7, 30, 90, 365)


class ForecastConfig(dg.Config):
    """Rules to compare with the rules in force, and how finely."""

    days: list[int] = Field(
        default=[_UNLIMITED if days is None else days for days in AGES],
        description="Retention of all branches and dangling commits, in days; -1 for unlimited.",
    )
    policies: dict[str, str] = Field(
        default={},
        description="More policies to compare: the text of a policy file, by a name.",
    )
    by_path: int = Field(
        default=0,
        ge=0,
        le=16,
        description="Also show the bytes of each folder and its holders, for folders of this depth; 0: do not.",
    )


def forecast_now(
    collector: Collector,
    note: LogLine,
    ages: Sequence[int | None] = AGES,
    policies: Mapping[str, Policy] | None = None,
    depth: int = 0,
) -> tuple[str, Forecast]:
    """Makes a forecast on Spark and stores its page. Does not wait, since nothing will be deleted.

    Args:
        note: receives log lines.
        ages, policies, depth: as for `forecast.make`.
    Returns:
        The URI of the storage namespace, and the forecast.
    Raises:
        CollectionError: as `forecast.make`, also if a Spark worker raised it.
    """
    opened = collector.open().dumping_at_once()
    with errors_of_spark():
        result = forecast.make(opened, collector.engine(opened.settings), note, ages, policies, depth)
    result = replace(result, prices=collector.configuration.report)
    try:
        page.write(opened.store, result)
    except StorageError as error:
        note(f"the page of the forecast could not be stored: {error}")
    return opened.namespace.uri, result


def define(names: Names, loaded: Loaded) -> Additions:
    """Definitions of forecasts for a repository."""
    return Additions(assets=[forecast_asset(names)], jobs=[forecast_job(names)])


def forecast_asset(names: Names) -> dg.AssetSpec:
    """The forecast asset of one repository, which the job `forecast` reports.

    It is not materializable: otherwise "Materialize all" in the global lineage would make a forecast with every run.
    """
    return dg.AssetSpec(
        key=names.asset(NAME),
        description=f"Bytes that other retention rules would free in {names.repository}: exactly those that a run of "
        "flow committed with these rules would mark at that moment. Also the bytes of each branch and tag, and those "
        f"freed without it. The job {names.qualified(JOB)} makes it: launch that to see it here. It deletes nothing, "
        "takes no lock, and may be made beside a run. `freed_objects` and `freed_bytes` are the objects and bytes "
        "that the rules in force free; the page has all figures in full.",
        kinds={"pyspark", "parquet"},
    )


def forecast_job(names: Names) -> dg.JobDefinition:
    """The job that makes a forecast and reports it as a materialization of the asset."""
    description = (
        f"Shows the bytes that other retention rules would free in {names.repository}, and the bytes of each branch "
        "and tag. Deletes nothing."
    )

    @one_op_job(names, JOB, NAME, ForecastConfig, description, in_pool=False)
    def retention_forecast(context: dg.OpExecutionContext, collector: Collector, config: ForecastConfig) -> None:
        """Makes a forecast, and its page."""
        # Dagster would report a limit on the field as a list of errors with the whole configuration.
        for name, scenarios in (("days", config.days), ("policies", config.policies)):
            if len(scenarios) > _MOST_SCENARIOS:
                raise ConfigurationError(
                    f"{name} has {len(scenarios)} entries: a forecast compares at most {_MOST_SCENARIOS}"
                )
        ages = [None if days == _UNLIMITED else days for days in config.days]
        policies = rules.parse_policies(config.policies)
        namespace, result = forecast_now(collector, context.log.info, ages, policies, config.by_path)
        shown = stored_page(collector, namespace + stored_forecasts.page_key(result.forecast_id), result.forecast_id)
        context.log_event(dg.AssetMaterialization(names.asset(NAME), metadata={**described(result), "page": shown}))

    return retention_forecast


def described(result: Forecast) -> dict[str, Any]:
    """Metadata of a forecast for the UI: numbers, which are plotted, both tables, and charts.

    The UI truncates content that is wider than its page, so names are short and tables have few columns.
    """
    in_force = result.in_force
    notes = [result.when_freed] if result.when_freed else []
    notes += [f"{freed.scenario.name}: {note}" for freed in result.rules for note in freed.scenario.notes]
    return {
        "forecast_id": result.forecast_id,
        "commits": result.commits,
        "ranges": result.ranges,
        "held_objects": result.stored.objects,
        "held_bytes": result.stored.bytes,
        "freed_objects": in_force.amount.objects,
        "freed_bytes": in_force.amount.bytes,
        "freed_by_days": _curve(result),
        "rules": _rules(result),
        "held_alone": _holders(result.holdings),
        "branches_and_tags": _holdings(result),
        **({"folders": _folders(result)} if result.by_folder and result.by_folder.largest else {}),
        **({"notes": bullets(notes)} if notes else {}),
    }


def _curve(result: Forecast) -> dg.MarkdownMetadataValue:
    """A bar chart of the bytes freed by some ages, and by the rules in force."""
    by_days = {freed.scenario.days: freed for freed in result.rules if freed.scenario.days is not None}
    days_shown = [days for days in _SHOWN_AGES if days in by_days] or sorted(by_days)[: _BARS - 1]
    shown = [result.in_force, *(by_days[days] for days in days_shown)]
    return bars(
        "bytes freed", [(f"{freed.scenario.name}: {size(freed.amount.bytes)}", freed.amount.bytes) for freed in shown]
    )


def _holders(holdings: Sequence[Holding]) -> dg.MarkdownMetadataValue:
    """A bar chart of the branches and tags that hold most bytes alone."""
    most = sorted(holdings, key=lambda holding: -holding.alone.bytes)[:_BARS]
    return bars(
        "bytes held alone",
        [(f"{_shortened(holding.holder.name)}: {size(holding.alone.bytes)}", holding.alone.bytes) for holding in most],
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}"


def _rules(result: Forecast) -> dg.TableMetadataValue:
    columns = {"retention": "string", "freed": "string", "objects": "int", "commits": "int"}
    rows = (
        (freed.scenario.name, size(freed.amount.bytes), freed.amount.objects, freed.scenario.commits_expired)
        for freed in result.rules
    )
    return table(columns, rows)


def _holdings(result: Forecast) -> dg.TableMetadataValue:
    """A table of branches and tags, most bytes held alone first, limited to a page of rows."""
    rows = []
    for holding in sorted(result.holdings, key=lambda holding: -holding.alone.bytes)[:_ROWS]:
        holder, more = holding.holder, result.more_if_deleted(holding)
        kind = f"{holder.kind.value} " if holder.kind else ""
        name = f"{kind}{_shortened(holder.name)}{' (stale)' if holder.stale else ''}"
        freed = "" if more is None else f"+ {size(more.bytes)}"
        rows.append((name, size(holding.alone.bytes), size(holding.in_all.bytes), freed))
    return table(dict.fromkeys(("name", "alone", "in all", "if deleted"), "string"), rows)


def _folders(result: Forecast) -> dg.TableMetadataValue:
    """A table of the largest folders, with the branch or tag that holds most bytes of each."""
    assert result.by_folder is not None
    rows = []
    for folder in result.by_folder.largest:
        holders = forecast.portions(result, folder)
        most, held_by = "", ""
        if holders:
            most, held_by = size(holders[0][1].in_all.bytes), _shortened(holders[0][0].holder.name)
        rows.append((_shortened(folder.folder or "(top level)"), size(folder.stored.bytes), most, held_by))
    return table(dict.fromkeys(("folder", "in all", "most", "held by"), "string"), rows)
