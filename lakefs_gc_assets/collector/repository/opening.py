"""Opens a repository: reads its facts from the server, and opens its store. Needs neither Dagster nor Spark."""

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
    """Reads the configured repository and the others in `also_live` from the server, and opens their stores.

    Args:
        configuration: with its secrets.
        store: settings of the store, if a deployment completes them; by default as configured.
        to_read: True to open a read-only repository as well.
    Raises:
        ConfigurationError: the configuration names no repository, or something else is missing or wrong.
        LakeFSError, ReadOnlyRepository: the server does not return a repository, or refuses to collect it.
    """
    if not configuration.repository:
        raise ConfigurationError("no repository is configured: set `repository` in the configuration file")
    if store is None and configuration.store.resource:
        raise lacks_deployment("store", configuration.store.resource)

    def opened(name: str) -> OpenRepository:
        api = LakeFSClient(configuration.lakefs, name, clock)
        facts = api.repository()
        # Checked before the store is opened, whose errors would say less about the repository.
        if not to_read:
            require_writable(facts)
        namespace = Namespace.parse(facts.storage_namespace)
        opener = StoreOpener(store or configuration.store, namespace.uri)
        return OpenRepository(facts, namespace, api, opener.open(), opener, configuration.collection, clock)

    others = tuple(map(opened, configuration.collection.also_live))
    return replace(opened(configuration.repository), others=others)
