"""Opening a run: finding the slice windows that it needs, and adding them and a new run id as partitions."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector import planning
from lakefs_gc_assets.collector.plan import Flow
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


def open_run(instance: dg.DagsterInstance, collector: Collector, flow: Flow = Flow.CLEAN) -> OpenedRun:
    """Adds the partitions of a new run over every window that it needs.

    Raises ConfigurationError, LakeFSError or StorageError where the repository cannot be looked at.
    """
    repository = collector.open()
    needed, why_clean = planning.windows_to_collect(repository, flow)
    run_id = xids.issue_run_id(repository.clock.now())
    partitions = Names(collector.name).partitions
    windows = partitions.add(instance, run_id, needed)
    tags = partitions.tags(run_id, windows, flow.value)
    if why_clean is not None:
        tags[WHY_CLEAN_TAG] = why_clean[:_TAG_LENGTH]
    return OpenedRun(run_id, windows, tags, why_clean)


def run_config(sweep: bool, names: Names | None = None) -> dict[str, Any]:
    """Run configuration that decides whether candidates are deleted, whatever the settings say.

    Args:
        names: where a code location collects several repositories.
    """
    collection = names.of("collection") if names else "collection"
    return {"resources": {collection: {"config": {"sweep": sweep}}}}


def approval_config(run_id: str, names: Names | None = None) -> dict[str, Any]:
    """Run configuration that lets the last step of a dry run delete what the run found.

    Args:
        names: where a code location collects several repositories.
    """
    collection = names.of("collection") if names else "collection"
    return {"resources": {collection: {"config": {"approve_run": run_id}}}}
