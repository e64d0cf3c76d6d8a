"""Opening the store that a storage namespace lies in."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lakefs_gc_assets.deferred import deferred
from lakefs_gc_assets.errors import ConfigurationError, requiring
from lakefs_gc_assets.lakefs.addresses import Location, Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets.storage.s3.store import S3Store

if TYPE_CHECKING:
    from lakefs_gc_assets.storage.azure import store as azure
    from lakefs_gc_assets.storage.gcs import store as gcs
else:
    # Deferred: only those who have such a store need its libraries.
    azure = deferred("lakefs_gc_assets.storage.azure.store")
    gcs = deferred("lakefs_gc_assets.storage.gcs.store")

_opened: dict[tuple[int, "StoreOpener"], ObjectStore] = {}
_opening = threading.Lock()


def open_store(settings: StoreSettings, namespace: Namespace) -> ObjectStore:
    """The store bound to a namespace. Raises ConfigurationError where its kind is not supported or a setting lacks."""
    if "@" in settings.endpoint_url:
        raise ConfigurationError("store.endpoint_url holds a user or password: credentials have settings of their own")
    if namespace.location.kind != "s3" and (settings.server_side_encryption or settings.kms_key_id):
        raise ConfigurationError(
            f"store.server_side_encryption is for S3, and {namespace.uri} is none: other stores encrypt as the bucket "
            "or the account says"
        )
    match namespace.location.kind:
        case "s3":
            return S3Store(settings, namespace.location)
        case "gs":
            with requiring("gcs", namespace.uri):
                return gcs.GCSStore(settings, namespace.location)
        case "azure":
            with requiring("azure", namespace.uri):
                return azure.AzureStore(settings, namespace)
        case "local":
            return LocalStore(_folder(settings, namespace))
        case kind:
            raise ConfigurationError(
                f"storage namespace {namespace.uri} is on a store of kind {kind!r}: supported are s3:// (AWS and "
                "services that speak S3), gs://, https:// and abfss:// (Azure) and local://"
            )


def readable_path(opener: "StoreOpener", key: str) -> str:
    """How other programs name an object of a store: as a file's path, `s3://…`, `gs://…`, or as lakeFS spells Azure's.

    Raises ConfigurationError where a folder is not there.
    """
    namespace = Namespace.parse(opener.namespace_uri)
    match namespace.location.kind:
        case "local":
            return str(_folder(opener.settings, namespace) / key)
        case "azure":
            return namespace.uri + key
        case kind:
            # lakeFS may spell it s3a, and escaped.
            return f"{kind}://{namespace.location.bucket}/{namespace.location.key}{key}"


def _folder(settings: StoreSettings, namespace: Namespace) -> Path:
    """The folder of a `local://` namespace, which lakeFS joins to the path of its blockstore."""
    if not settings.local_root:
        raise ConfigurationError(
            f"storage namespace {namespace.uri} is a folder: set store.local_root to lakeFS's blockstore.local.path"
        )
    relative = _below_root(namespace.location)
    if ".." in relative.parts:
        raise ConfigurationError(f"storage namespace {namespace.uri} leads out of store.local_root")
    folder = Path(settings.local_root).expanduser() / relative
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder {folder} for {namespace.uri}: see to store.local_root")
    return folder


def _below_root(location: Location) -> Path:
    return Path(location.bucket, location.key.strip("/"))


@dataclass(frozen=True, slots=True)
class StoreOpener:
    """How to open a store, to hand to other processes; each opens its own once. Its text shows no settings.

    Credentials that come from the environment it does not hold: each process reads them from its own, so that they are
    in nothing which Spark writes to a disk or sends.
    """

    settings: StoreSettings = field(repr=False)
    namespace_uri: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", self.settings.by_reference())

    def open(self) -> ObjectStore:
        """The store, opened on the first call in this process.

        Raises what open_store raises, and ConfigurationError where the environment lacks a credential.
        """
        with _opening:
            # A forked process must not use connections of its parent.
            key = (os.getpid(), self)
            if key not in _opened:
                _opened[key] = open_store(self.settings.with_credentials(), Namespace.parse(self.namespace_uri))
            return _opened[key]
