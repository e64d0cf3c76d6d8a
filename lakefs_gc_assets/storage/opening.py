"""The supported kinds of store, and opening the store of a storage namespace."""

import os
import threading
from contextlib import nullcontext
from dataclasses import dataclass, field

from lakefs_gc_assets.errors import ConfigurationError, requiring
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import azure, gcs, local, s3
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, StoreKind
from lakefs_gc_assets.storage.signing import SignedStore, Signer

KINDS = (s3.KIND, gcs.KIND, azure.KIND, local.KIND)

_KINDS = {kind.name: kind for kind in KINDS}
_opened: dict[tuple[int, "StoreOpener"], ObjectStore] = {}
_opening = threading.Lock()


def kind_of(namespace: Namespace) -> StoreKind:
    """The kind of store that a namespace lies in. Raises ConfigurationError if it is not supported."""
    name = namespace.location.kind
    if name not in _KINDS:
        *others, last = (kind.addresses for kind in KINDS)
        raise ConfigurationError(
            f"storage namespace {namespace.uri} is on a store of kind {name!r}: supported are {', '.join(others)} and "
            f"{last}"
        )
    return _KINDS[name]


def open_store(settings: StoreSettings, namespace: Namespace) -> ObjectStore:
    """The store bound to a namespace. Raises ConfigurationError if its kind is unsupported or a setting is wrong."""
    if "@" in settings.endpoint_url:
        raise ConfigurationError("store.endpoint_url holds a user or password: credentials have settings of their own")
    kind = kind_of(namespace)
    if not kind.takes_encryption and (settings.server_side_encryption or settings.kms_key_id):
        raise ConfigurationError(
            f"store.server_side_encryption is for S3, and {namespace.uri} is none: other stores encrypt as the bucket "
            "or the account says"
        )
    with requiring(kind.extra, namespace.uri) if kind.extra else nullcontext():
        store = kind.open(settings, namespace)
    if not settings.signing_key:
        return store
    return SignedStore(store, Signer.from_setting(settings.signing_key, namespace.uri))


def readable_path(opener: OpensStore, key: str) -> str:
    """An object's name in other programs: a file's path, `s3://…`, `gs://…`, or lakeFS's spelling for Azure.

    Raises ConfigurationError if a local folder does not exist.
    """
    namespace = Namespace.parse(opener.namespace_uri)
    return kind_of(namespace).readable_path(opener.settings, namespace, key)


def browser_link(uri: str) -> str | None:
    """The link that shows an object in a browser after signing in; None if there is none."""
    location = parse_location(uri)
    kind = None if location is None else _KINDS.get(location.kind)
    if location is None or kind is None or kind.browser_link is None:
        return None
    return kind.browser_link(location.bucket, location.key)


@dataclass(frozen=True, slots=True)
class StoreOpener:
    """Opens a store in any process, once per process. Its repr shows no settings.

    It does not hold credentials from the environment. Each process reads them from its own environment, so Spark never
    writes them to a disk or sends them.
    """

    settings: StoreSettings = field(repr=False)
    namespace_uri: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", self.settings.by_reference())

    def open(self) -> ObjectStore:
        """The store, opened on the first call in this process.

        Raises the errors of open_store, and ConfigurationError if the environment lacks a credential.
        """
        with _opening:
            # A forked process must not use connections of its parent.
            key = (os.getpid(), self)
            if key not in _opened:
                _opened[key] = open_store(self.settings.with_credentials(), Namespace.parse(self.namespace_uri))
            return _opened[key]
