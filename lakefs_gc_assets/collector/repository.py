"""One repository, opened: what the steps of a collection work with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from lakefs_gc_assets.collector.clock import Clock
from lakefs_gc_assets.errors import ConfigurationError, ReadOnlyRepository
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, Repository
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import CopiesObjects, ObjectStore, OpensStore


@dataclass(frozen=True)
class OpenRepository:
    """A repository's facts, its server, its store and the clock.

    Attributes:
        opener: opens the same store again in another process.
        others: repositories whose references into this one's namespace count as well.
        loosened: settings that a launch changed for this run, `sweep` among them where it asked for that.
        opened: true if the run was opened; otherwise somebody materializes assets under an id of their own choice.
    """

    facts: Repository
    namespace: Namespace
    api: LakeFSApi
    store: ObjectStore
    opener: OpensStore
    settings: CollectionSettings
    clock: Clock
    others: tuple["OpenRepository", ...] = ()
    loosened: Mapping[str, bool | int | float] = field(default_factory=dict)
    opened: bool = True

    @property
    def skew(self) -> timedelta:
        """The margin below every clock."""
        return timedelta(minutes=self.settings.clock_skew_minutes)

    @property
    def min_age(self) -> timedelta:
        """The minimum age that the settings ask for."""
        return timedelta(hours=self.settings.min_age_hours)


def require_writable(facts: Repository) -> None:
    """Raises ReadOnlyRepository where lakeFS would refuse to prepare a collection."""
    if facts.read_only:
        raise ReadOnlyRepository(
            f"repository {facts.id} is read-only: lakeFS refuses to prepare a collection of it, and nothing in it can "
            "become garbage"
        )


def require_copies(store: ObjectStore) -> CopiesObjects:
    """The store, as one that copies objects by itself. Raises ConfigurationError where it cannot."""
    if not isinstance(store, CopiesObjects):
        raise ConfigurationError(
            "collection.sweep_mode is quarantine, and this kind of store cannot copy by itself: set it to delete"
        )
    return store


def relative(repository: OpenRepository, address: str) -> str:
    """The address below the storage namespace. Raises ConfigurationError where it lies outside."""
    if parse_location(address) is None:
        return address
    key = repository.namespace.relative(address)
    if not key:
        raise ConfigurationError(
            f"{address} lies outside of {repository.namespace.uri}: objects there are never collected"
        )
    return key
