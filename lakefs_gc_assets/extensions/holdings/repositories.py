"""The repositories of a configuration: its entries, and names on the server that its patterns cover.

Repositories are discovered anew for each overview. The list of entries may name repositories of several servers;
patterns concern the server of the shared section `lakefs`.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

from lakefs_gc_assets.collector.repository.repository import Clock
from lakefs_gc_assets.configuration_file import AllRepositories, Loaded
from lakefs_gc_assets.errors import AccessDenied, CollectionError, ConfigurationError, NotFound, NotSupported
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import Configuration, lacks_deployment
from lakefs_gc_assets.storage.interface import Level, ObjectFacts, ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

AT_ONCE = 32
"""Repositories that are read side by side: reading waits for answers most of the time."""
_EVERY = "every-repository"
"""A client names one repository; the call that lists all of them does not use it."""


@dataclass(frozen=True)
class FoundRepository:
    """A repository of the configuration.

    Attributes:
        label: its name in Dagster and in the overview.
        configuration: with its secrets; None if one is not set.
        namespace: None if the server does not have the repository or cannot be asked.
        is_gone: True if the server says that there is no such repository.
        why: the reason without a namespace.
    """

    label: str
    configuration: Configuration | None = field(default=None, repr=False)
    namespace: Namespace | None = None
    is_gone: bool = False
    why: str = ""

    def open(self) -> ObjectStore:
        """The store of its namespace, for reading alone. Raises CollectionError."""
        assert self.configuration is not None and self.namespace is not None
        settings, written = self.configuration.store, parse_location(self.namespace.uri)
        if settings.resource:
            raise lacks_deployment("store", settings.resource)
        if settings.signing_key or written is None or not written.key:
            return StoreOpener(settings, self.namespace.uri).open()
        # Connecting takes 17 ms of processor time and much memory: repositories of one bucket share its store.
        root = StoreOpener(settings, self.namespace.uri.removesuffix(written.key)).open()
        return cast(ObjectStore, _StoreBelow(root, self.namespace.location.key))


@dataclass(frozen=True, slots=True)
class _StoreBelow:
    """The objects of a store below a prefix, for reading."""

    store: ObjectStore
    prefix: str

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return self.store.get(self.prefix + key)

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        level = self.store.list_level(self.prefix + prefix)
        return Level(
            tuple(each.removeprefix(self.prefix) for each in level.prefixes),
            tuple(self._relative(each) for each in level.objects),
        )

    def _relative(self, facts: ObjectFacts) -> ObjectFacts:
        return replace(facts, key=facts.key.removeprefix(self.prefix))


def find_repositories(everything: AllRepositories, clock: Clock) -> list[FoundRepository]:
    """Every repository of a configuration, sorted by label. An error at one of them is in its `why`.

    Sends one request for each thousand repositories of the server, and one for each entry of the list that this server
    does not have.

    Raises:
        ConfigurationError: a secret of the shared sections is not set, or the server refuses to list repositories.
        LakeFSError: the server cannot be asked for the list.
    """
    found: list[FoundRepository] = []
    on_server: dict[str, str] = {}
    server = None
    if everything.discovery is not None:
        server = everything.shared.with_secrets().lakefs
        try:
            listed = LakeFSClient(server, _EVERY, clock).repositories()
        except (AccessDenied, NotSupported) as refusal:
            raise ConfigurationError(
                f"the server does not list its repositories ({refusal}): grant its user fs:ListRepositories on *, or "
                "remove `discover` and list the repositories"
            ) from refusal
        on_server = {facts.id: facts.storage_namespace for facts in listed}
    asked: list[tuple[Loaded, Configuration]] = []
    for loaded in everything.listed:
        try:
            configuration = loaded.with_secrets()
        except ConfigurationError as error:
            found.append(FoundRepository(loaded.configuration.label, why=str(error)))
            continue
        namespace = on_server.pop(configuration.repository, None) if configuration.lakefs == server else None
        if namespace is None:
            asked.append((loaded, configuration))
        else:
            found.append(_found(configuration, namespace))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found += pool.map(lambda each: _ask(each[1], clock), asked)
    if everything.discovery is not None:
        labels = {each.label for each in found}
        for name, namespace in on_server.items():
            if everything.discovery.covers(name) and name not in labels:
                try:
                    found.append(_found(everything.discovery.loaded(name).with_secrets(), namespace))
                except ConfigurationError as error:
                    found.append(FoundRepository(name, why=str(error)))
    return sorted(found, key=lambda each: each.label)


def _ask(configuration: Configuration, clock: Clock) -> FoundRepository:
    """A repository by its own request."""
    try:
        facts = LakeFSClient(configuration.lakefs, configuration.repository, clock).repository()
    except CollectionError as error:
        is_gone = isinstance(error, NotFound)
        return FoundRepository(configuration.label, configuration, is_gone=is_gone, why=str(error))
    return _found(configuration, facts.storage_namespace)


def _found(configuration: Configuration, namespace: str) -> FoundRepository:
    try:
        return FoundRepository(configuration.label, configuration, Namespace.parse(namespace))
    except ConfigurationError as error:
        return FoundRepository(configuration.label, configuration, why=str(error))
