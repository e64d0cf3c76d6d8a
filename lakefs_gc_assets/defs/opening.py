"""Opening a run: finding the slice windows that it needs, and adding them and a new run id as partitions."""

from dataclasses import dataclass

import dagster as dg

from lakefs_gc_assets.collector import planning
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.partitions import WHY_CLEAN_TAG
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.lakefs import xids

_TAG_LENGTH = 500


@dataclass(frozen=True)
class OpenedRun:
    """A run that is ready to be launched: its id, its windows in order, and the tags of the Dagster run.

    Attributes:
        why_clean: why an optimized run was asked for and a clean one is to be expected; None where it is what was asked
            for. The run decides again once it holds the lock.
    """

    run_id: str
    windows: tuple[str, ...]
    tags: dict[str, str]
    why_clean: str | None = None


def open_run(
    instance: dg.DagsterInstance, collector: Collector, flow: Flow = Flow.CLEAN, permit: Permit | None = None
) -> OpenedRun:
    """Adds the partitions of a new run over every window that it needs.

    Args:
        permit: what the run may do; None where its process decides that, as the command line's does.
    Raises:
        ConfigurationError, LakeFSError or StorageError: the repository cannot be looked at, or the file does not allow
            what a launch asks for.
    """
    repository = collector.open() if permit is None else collector.open_for(permit)
    needed, why_clean = planning.windows_to_collect(repository, flow)
    run_id = xids.issue_run_id(repository.clock.now())
    partitions = Names(collector.name).partitions
    windows = partitions.add(instance, run_id, needed)
    tags = partitions.tags(run_id, windows, flow.value)
    if permit is not None:
        launching.write(instance, collector.name, run_id, permit)
        tags |= permit.tags
    if why_clean is not None:
        tags[WHY_CLEAN_TAG] = why_clean[:_TAG_LENGTH]
    return OpenedRun(run_id, windows, tags, why_clean)
