"""Adds the job that makes a run on EMR Serverless, if the configuration names an application."""

from typing import TYPE_CHECKING

from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.defs.partitions import Names
from lakefs_gc_assets.defs.wiring import Additions

if TYPE_CHECKING:
    from lakefs_gc_assets.extensions.emr import collect_job
else:
    # Deferred: only runs on EMR Serverless need its libraries.
    collect_job = deferred("lakefs_gc_assets.extensions.emr.collect_job")


def define(names: Names, loaded: Loaded) -> Additions:
    """The job `collect_on_emr_serverless`, if `emr_serverless.application_id` is set."""
    if not loaded.configuration.emr_serverless.application_id:
        return Additions()
    return Additions(jobs=[collect_job.collect_job(names, loaded)])
