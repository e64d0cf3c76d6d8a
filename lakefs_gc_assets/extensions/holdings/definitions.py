"""The asset and job `holdings`, and the sensor that makes them after each run.

The asset has no partitions, so Dagster plots its numbers over time. The job takes no lock and deletes nothing.
"""

from collections.abc import Collection
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, Engine
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.jobs import one_op_job
from lakefs_gc_assets.defs.pages import bars, table
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import Additions
from lakefs_gc_assets.errors import CollectionError, LogLine
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, Holdings, Sharing
from lakefs_gc_assets.extensions.holdings.make_holdings import make_holdings, newest_report, read_stored
from lakefs_gc_assets.spark.faults import errors_of_spark
from lakefs_gc_assets.storage.interface import ObjectStore

HOLDINGS = "holdings"
_BARS = 6
_ROWS = 200


class HoldingsConfig(dg.Config):
    """Nothing to configure: the section `holdings` of the configuration file has the settings."""


def holdings_now(collector: Collector, log: LogLine, warn: LogLine) -> tuple[ObjectStore, Holdings]:
    """The repository's store, and the holdings after its newest finished run, made if they are not stored.

    Raises CollectionError as `make_holdings` does, also if a Spark worker raised it.
    """
    opened, settings = collector.open(to_read=True), collector.configuration.holdings

    def choose_engine(rows: int) -> Engine[Any]:
        return LocalEngine() if rows <= LOCAL_ROWS else collector.engine(opened.settings)

    with errors_of_spark():
        found = make_holdings(opened, choose_engine, log, warn, settings.lens_depth, tuple(settings.lens_metadata))
    return opened.store, found


def define(names: Names, loaded: Loaded) -> Additions:
    """Definitions of holdings for a repository."""
    job = holdings_job(names)

    def sensors(clock: Clock, jobs: Collection[str]) -> list[dg.SensorDefinition]:
        return [follow_runs(names, job, loaded.configuration.automation.sensor_interval_seconds)]

    return Additions(assets=[holdings_asset(names)], jobs=[job], sensors=sensors)


def holdings_asset(names: Names) -> dg.AssetSpec:
    """The asset of one repository, which the job `holdings` reports."""
    return dg.AssetSpec(
        key=names.asset(HOLDINGS),
        description=f"Bytes of {names.repository} after its newest run: by state, and by the branches, folders and "
        f"commits that hold them. The job {names.qualified(HOLDINGS)} adds them up: launch it to see them here, or "
        f"turn on the sensor {names.qualified('follow_runs')}, which launches it after each run.",
        kinds={"parquet"},
    )


def holdings_job(names: Names) -> dg.JobDefinition:
    """The job that adds up holdings and reports them as a materialization of the asset."""
    description = (
        f"Adds up the bytes of {names.repository} after its newest run, by state and holder. Reads only what changed "
        "since the time before. Deletes nothing."
    )

    @one_op_job(names, HOLDINGS, "add_up_holdings", HoldingsConfig, description, in_pool=False)
    def holdings(context: dg.OpExecutionContext, collector: Collector, config: HoldingsConfig) -> None:
        """Adds up the holdings after the newest finished run."""
        _, found = holdings_now(collector, context.log.info, context.log.warning)
        context.log_event(dg.AssetMaterialization(names.asset(HOLDINGS), metadata=describe_metadata(found)))

    return holdings


def follow_runs(names: Names, job: dg.JobDefinition, interval: int) -> dg.SensorDefinition:
    """The sensor that launches the job once for each finished run; off until it is turned on."""

    @dg.sensor(
        name=names.qualified("follow_runs"),
        job=job,
        minimum_interval_seconds=interval,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Launches {names.qualified(HOLDINGS)} after each finished run of {names.repository}.",
    )
    @names.bound
    def sensor(
        context: dg.SensorEvaluationContext, collector: dg.ResourceParam[Collector]
    ) -> dg.RunRequest | dg.SkipReason:
        repository = collector.open(to_read=True)
        try:
            report = newest_report(repository)
        except CollectionError as error:
            return dg.SkipReason(str(error))
        if read_stored(repository.store, report, context.log.warning) is not None:
            return dg.SkipReason(f"the holdings after run {report.run_id} are stored")
        return dg.RunRequest(run_key=f"holdings-{report.run_id}-{report.ended_at:%Y%m%dT%H%M%SZ}")

    return sensor


def describe_metadata(found: Holdings) -> dict[str, Any]:
    """Metadata of holdings for the UI: numbers, which are plotted, a chart and a table of branches."""
    numbers = {f"{state.value}_bytes": amount.bytes for state, amount in found.states().items()}
    alone, shared = (
        {row.key: row.bytes or 0 for row in found.of(Dimension.BRANCH) if row.held is sharing} for sharing in Sharing
    )
    branches = sorted(alone.keys() | shared.keys(), key=lambda each: (-alone.get(each, 0), -shared.get(each, 0), each))
    most = [(f"{branch}: {size(alone.get(branch, 0))}", alone.get(branch, 0)) for branch in branches[:_BARS]]
    columns = dict.fromkeys(("branch", "alone", "shared"), "string")
    rows = ((branch, size(alone.get(branch, 0)), size(shared.get(branch, 0))) for branch in branches[:_ROWS])
    return {
        "run_id": found.run_id,
        **numbers,
        "held_alone": bars("bytes held alone", most),
        "branches": table(columns, rows),
    }
