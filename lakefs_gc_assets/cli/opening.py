"""Opening the repository that a command is about, on the clock of this machine."""

from dataclasses import replace

from lakefs_gc_assets.collector.clock import SystemClock
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.running import opened
from lakefs_gc_assets.settings import Loaded


def open_collector(loaded: Loaded) -> Collector:
    """The repository's resource outside of a Dagster run."""
    return opened(loaded, SystemClock())


def open_to_look(loaded: Loaded, **changes: object) -> OpenRepository:
    """The repository, with changed settings; nothing is waited for, as nothing is going to be deleted.

    Raises CollectionError.
    """
    repository = open_collector(loaded).open()
    settings = repository.settings.model_copy(update={"wait_before_dump_seconds": 0, **changes})
    return replace(repository, settings=settings)
