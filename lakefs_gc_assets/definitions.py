"""The entry point of Dagster: definitions of the repositories in the configuration file."""

from functools import partial

import dagster as dg

from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import AllRepositories, Loaded, default_file, everything_from, read
from lakefs_gc_assets.defs.wiring import build_all
from lakefs_gc_assets.extensions.approvals import definitions as approvals
from lakefs_gc_assets.extensions.branches import definitions as branches
from lakefs_gc_assets.extensions.check import definitions as check
from lakefs_gc_assets.extensions.emr import definitions as emr
from lakefs_gc_assets.extensions.forecast import definitions as forecast
from lakefs_gc_assets.extensions.holdings import definitions as holdings
from lakefs_gc_assets.extensions.holdings import overview_definitions as holdings_overview
from lakefs_gc_assets.extensions.lifecycle import definitions as lifecycle
from lakefs_gc_assets.extensions.notifications import definitions as notifications
from lakefs_gc_assets.extensions.routine import definitions as routine
from lakefs_gc_assets.settings import Configuration

ROUTINE = (lifecycle.lifecycle_deletion, branches.stale_branches_deletion)
"""Functions that give the parts of the routine before its rules and its collection, in order."""
EXTENSIONS = (
    forecast.define,
    check.define,
    lifecycle.define,
    branches.define,
    approvals.define,
    partial(routine.define, ROUTINE),
    holdings.define,
    notifications.define,
    emr.define,
)
"""Functions that add definitions of extensions for each repository."""
OVER_ALL = [holdings_overview.define]
"""Functions that add definitions of extensions for all repositories together."""


def define_all(everything: AllRepositories) -> dg.Definitions:
    """Definitions of listed repositories, and those over all repositories of a configuration."""
    over_all = (define(everything) for define in OVER_ALL)
    return dg.Definitions.merge(build_all(everything.listed, SystemClock(), EXTENSIONS), *over_all)


@dg.definitions
def defs() -> dg.Definitions:
    """Definitions of the repositories in the configuration file; without a file, a graph to view, not to run."""
    file = default_file()
    alone = AllRepositories((Loaded(Configuration(), {}),))
    everything = everything_from(read(file), str(file)) if file else alone
    executor = dg.Definitions(executor=dg.in_process_executor)
    return dg.Definitions.merge(define_all(everything), executor)
