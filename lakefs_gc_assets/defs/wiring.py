"""The Dagster definitions of repositories: assets, checks, jobs, schedules, sensors and resources."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import assets, automation, checks, history, jobs, maintenance, resources
from lakefs_gc_assets.defs.io_manager import frame_io_manager
from lakefs_gc_assets.defs.partitions import REPOSITORY_TAG, Names
from lakefs_gc_assets.errors import ConfigurationError

_TAG_LENGTH = 63
"""Maximum length of the value of an asset's tag."""


@dataclass(frozen=True)
class Additions:
    """Definitions that an extension adds to a repository.

    Attributes:
        sensors: returns the sensors; called with the names of all of the repository's jobs.
    """

    assets: Sequence[dg.AssetSpec] = ()
    checks: Sequence[dg.AssetChecksDefinition] = ()
    jobs: Sequence[dg.JobDefinition] = ()
    schedules: Sequence[dg.ScheduleDefinition] = ()
    sensors: Callable[[Clock, Collection[str]], Sequence[dg.SensorDefinition]] = lambda clock, jobs: ()


Extension = Callable[[Names, Loaded], Additions]


def build(
    loaded: Loaded,
    clock: Clock,
    extensions: Sequence[Extension] = (),
    loggers: Mapping[str, dg.LoggerDefinition] | None = None,
) -> dg.Definitions:
    """The definitions of a repository; `loggers` in place of Dagster's own console."""
    alone = dg.Definitions(executor=dg.in_process_executor, loggers=loggers)
    return dg.Definitions.merge(_one(loaded, Names.from_loaded(loaded), clock, extensions), alone)


def build_all(repositories: Sequence[Loaded], clock: Clock, extensions: Sequence[Extension]) -> dg.Definitions:
    """The definitions of all repositories of a code location, without an executor for its other definitions.

    Several repositories have separate names; a single one has plain names, unless the configuration sets its `name`.

    Raises ConfigurationError if two repositories would have the same name.
    """
    names = [Names.from_loaded(loaded) for loaded in repositories]
    identifiers = [name.identifier for name in names]
    if twice := next((name for name in names if identifiers.count(name.identifier) > 1), None):
        raise ConfigurationError(
            f"two repositories would have the name {twice.identifier} in Dagster: set another `name` for one"
        )
    pairs = zip(repositories, names, strict=True)
    return dg.Definitions.merge(*(_one(loaded, name, clock, extensions) for loaded, name in pairs))


def _one(loaded: Loaded, names: Names, clock: Clock, extensions: Sequence[Extension]) -> dg.Definitions:
    settings, launch = loaded.configuration.automation, loaded.configuration.launch
    added = [define(names, loaded) for define in extensions]
    tags = {REPOSITORY_TAG: names.identifier[:_TAG_LENGTH], **loaded.configuration.tags}
    opening = jobs.open_run_job(names, launch)
    expire, purge = maintenance.expire_runs_job(names, settings), maintenance.purge_job(names, launch)
    sweep_within = timedelta(days=settings.sweep_within_days)
    *earlier, deleted_report = assets.define(names)
    collecting = dg.define_asset_job(
        names.qualified("collect"),
        selection=[*earlier, deleted_report],
        description=f"Collects one run id of repository {names.repository} over its windows. The job "
        f"{names.qualified('open_run')}, the schedules and the sensor launch it, or users materialize cells.",
        executor_def=dg.in_process_executor,
        tags={REPOSITORY_TAG: names.repository},
    )
    of_one_op = [
        opening,
        jobs.approve_job(names, launch),
        expire,
        maintenance.restore_job(names),
        purge,
        *(job for each in added for job in each.jobs),
    ]
    job_names = [collecting.name, *(job.name for job in of_one_op)]
    return dg.Definitions(
        assets=dg.map_asset_specs(
            # For searches in a catalog of many assets.
            lambda spec: spec.replace_attributes(
                group_name=names.qualified("garbage_collection"),
                owners=[*spec.owners, *loaded.configuration.owners],
                tags={**tags, **spec.tags},
            ),
            [
                *earlier,
                deleted_report,
                *history.define(names, sweep_within),
                *(spec for each in added for spec in each.assets),
            ],
        ),
        asset_checks=[
            *checks.define(names),
            *history.define_checks(names, sweep_within),
            *(check for each in added for check in each.checks),
        ],
        jobs=[collecting, *of_one_op],
        schedules=[
            *automation.define_schedules(names, settings, opening, expire, purge),
            *(schedule for each in added for schedule in each.schedules),
        ],
        sensors=[
            automation.launch_opened_runs(names, collecting, deleted_report),
            automation.follow_deleted_report(names, settings, deleted_report, collecting),
            *([automation.watch_sweeps(names, sweep_within)] if sweep_within else []),
            automation.note_failures(names, clock),
            *(sensor for each in added for sensor in each.sensors(clock, job_names)),
        ],
        resources={
            **resources.define(names, loaded, clock),
            names.qualified("frames"): frame_io_manager(names),
        },
    )
