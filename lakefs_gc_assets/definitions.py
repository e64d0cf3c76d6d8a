"""The wiring, and nothing else: what Dagster loads."""

from collections.abc import Mapping

import dagster as dg

from lakefs_gc_assets import checks
from lakefs_gc_assets.assets import candidates, committed_df, deleted_report, store_df, uncommitted_df
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.automation import expiring, following, jobs, schedules
from lakefs_gc_assets.collection.clock import Clock, SystemClock
from lakefs_gc_assets.configuration import Configuration, Loaded, default_file, load
from lakefs_gc_assets.frames.io_manager import FrameIOManager
from lakefs_gc_assets.naming import Names
from lakefs_gc_assets.resources import resources


def build(loaded: Loaded, clock: Clock, loggers: Mapping[str, dg.LoggerDefinition] | None = None) -> dg.Definitions:
    """The definitions of one repository; `loggers` in place of Dagster's own console."""
    return _one(loaded, Names(loaded.configuration.label), clock, loggers)


def _one(
    loaded: Loaded, names: Names, clock: Clock, loggers: Mapping[str, dg.LoggerDefinition] | None
) -> dg.Definitions:
    graph = Graph(names)
    settings = loaded.configuration.automation
    collecting, opening = jobs.collect_job(names), jobs.open_run_job(names)
    expire = expiring.expire_runs_job(names, settings)
    given = resources(loaded, clock)
    return dg.Definitions(
        assets=[
            module.define(graph) for module in (store_df, uncommitted_df, committed_df, candidates, deleted_report)
        ],
        asset_checks=checks.define(names),
        jobs=[collecting, opening, expire],
        schedules=schedules.define(names, settings, opening, expire),
        sensors=[
            jobs.launch_opened_runs(names, opening, collecting),
            following.follow_deleted_report(names, settings, collecting),
        ],
        resources=names.all_of({**given, "frames": FrameIOManager(collector=given["collector"])}),
        executor=dg.in_process_executor,
        loggers=loggers,
    )


@dg.definitions
def defs() -> dg.Definitions:
    """The repository of the configuration file; without a file, the graph can be looked at and not run."""
    file = default_file()
    return build(load(file) if file else Loaded(Configuration(), {}), SystemClock())
