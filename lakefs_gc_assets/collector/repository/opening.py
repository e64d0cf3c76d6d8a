"""Opens a repository: asks the server for it, and opens its store. Neither Dagster nor Spark is needed."""

from dataclasses import replace

from lakefs_gc_assets.collector.repository.repository import Clock, OpenRepository, require_writable
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import Configuration, StoreSettings, lacks_deployment
from lakefs_gc_assets.storage.opening import StoreOpener


def open_repository(
    configuration: Configuration, clock: Clock, store: StoreSettings | None = None, to_read: bool = False
) -> OpenRepository:
    """Asks the server for the repository of a configuration, and for those of `also_live`, and opens their store.

    Args:
        configuration: with its secrets.
        store: settings of the store, where a deployment completes them; by default those of the configuration.
        to_read: true to open a read-only repository too.
    Raises:
        ConfigurationError: the configuration names no repository, or something else is missing or wrong.
        LakeFSError, ReadOnlyRepository: the server does not tell of a repository, or refuses to collect it.
    """
    if not configuration.repository:
        raise ConfigurationError("no repository is named: set `repository` in the configuration file")
    if store is None and configuration.store.resource:
        raise lacks_deployment("store", configuration.store.resource)

    def opened(name: str) -> OpenRepository:
        api = LakeFSClient(configuration.lakefs, name, clock)
        facts = api.repository()
        # Before the store is opened, whose errors would say less about the repository.
        if not to_read:
            require_writable(facts)
        namespace = Namespace.parse(facts.storage_namespace)
        opener = StoreOpener(store or configuration.store, namespace.uri)
        return OpenRepository(facts, namespace, api, opener.open(), opener, configuration.collection, clock)

    others = tuple(map(opened, configuration.collection.also_live))
    return replace(opened(configuration.repository), others=others)
