"""The wiring, and nothing else: what Dagster loads."""

from collections.abc import Mapping

import dagster as dg

from lakefs_gc_assets import automation, checks
from lakefs_gc_assets.assets import candidates, committed_df, deleted_report, store_df, uncommitted_df
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.collection.clock import Clock, SystemClock
from lakefs_gc_assets.configuration import Configuration, Loaded, default_file, load
from lakefs_gc_assets.frames.io_manager import FrameIOManager
from lakefs_gc_assets.partitions import RunPartitions
from lakefs_gc_assets.resources import resources


def build(loaded: Loaded, clock: Clock, loggers: Mapping[str, dg.LoggerDefinition] | None = None) -> dg.Definitions:
    """The definitions of one repository; `loggers` in place of Dagster's own console."""
    partitions = RunPartitions(loaded.configuration.repository)
    graph = Graph(partitions)
    collect = automation.collect_job()
    given = resources(loaded, clock)
    return dg.Definitions(
        assets=[
            module.define(graph) for module in (store_df, uncommitted_df, committed_df, candidates, deleted_report)
        ],
        asset_checks=checks.define(partitions),
        jobs=[collect, automation.open_run_job],
        sensors=[automation.launch_opened_runs(collect)],
        resources={**given, "frames": FrameIOManager(collector=given["collector"])},
        executor=dg.in_process_executor,
        loggers=loggers,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The repository of the configuration file; without a file, the graph can be looked at and not run."""
    file = default_file()
    return build(load(file) if file else Loaded(Configuration(), {}), SystemClock())
