"""One canonical form of an address: relative to the storage namespace, exactly as the object store spells the key.

lakeFS stores addresses relative, in full, or in a deprecated form that may be either; servers, clients and importers
spell the same bucket as `s3` or `s3a`, the same Azure container as `https` or `abfs`, and may double slashes or escape
characters. Every spelling that *may* mean a key counts as that key: for referenced data this can only keep more.
lakeFS reads a full address as a URL: it decodes the path and drops a query (lakeFS server, `pkg/block/namespace.go`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote

from lakefs_gc_assets.errors import ConfigurationError

_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
_GS_SCHEMES = frozenset({"gs", "gcs"})
_AZURE_SCHEMES = frozenset({"https", "http", "abfs", "abfss", "wasb", "wasbs", "az", "azure", "adl"})
_ODD = re.compile(r"[%?]|//|^/|/$")
_SLASHES = re.compile("//+")


class AddressType(IntEnum):
    """How lakeFS says an entry's address is to be read (`Entry.address_type`)."""

    BY_PREFIX_DEPRECATED = 0
    RELATIVE = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Location:
    """A full address: store kind (`s3`, `gs`, `azure`, `local`, …), bucket or container, key without leading slash."""

    kind: str
    bucket: str
    key: str


def parse_location(uri: str) -> Location | None:
    """Reads a full address; None where it has no scheme."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme or "/" in scheme:
        return None
    scheme = scheme.lower()
    host, _, path = rest.partition("/")
    if scheme in _AZURE_SCHEMES:
        return _azure(host, path)
    kind = "s3" if scheme in _S3_SCHEMES else "gs" if scheme in _GS_SCHEMES else scheme
    return Location(kind, host, path)


def _azure(host: str, path: str) -> Location:
    container, at, account_host = host.partition("@")
    if not at:
        account_host = host
        container, _, path = path.lstrip("/").partition("/")
    return Location("azure", f"{account_host.split('.')[0].lower()}/{container}", path)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A repository's storage namespace, the root that canonical addresses are relative to.

    Attributes:
        uri: as lakeFS gives it, with exactly one trailing slash.
        location: the same, taken apart; its key is empty or ends with a slash.
    """

    uri: str
    location: Location

    @classmethod
    def parse(cls, storage_namespace: str) -> "Namespace":
        """Reads `storage_namespace` of a repository. Raises ConfigurationError where it is no full address."""
        uri = storage_namespace.rstrip("/") + "/"
        location = parse_location(uri)
        if location is None or (location.kind != "local" and not all(location.bucket.split("/"))):
            raise ConfigurationError(
                f"storage namespace {storage_namespace!r} is not an address with a scheme such as s3://bucket/path"
            )
        return cls(uri, Location(location.kind, location.bucket, location.key.lstrip("/")))

    def relative(self, full_address: str) -> str | None:
        """The key below this namespace that a full address names, spelled as given; None where it lies outside."""
        return next(self._readings(full_address), None)

    def _readings(self, full_address: str) -> Iterator[str]:
        """Every key below this namespace that a full address may name, as given first."""
        if full_address.startswith(self.uri):
            yield full_address[len(self.uri) :]
            return
        location = parse_location(full_address)
        if location is None or (location.kind, location.bucket) != (self.location.kind, self.location.bucket):
            return
        for key in _spellings(location.key):
            if key.startswith(self.location.key):
                yield key[len(self.location.key) :]

    def live_keys(self, address: str, address_type: int) -> tuple[str, ...]:
        """Every key that a reference may mean; empty where it lies outside the namespace.

        Args:
            address: as stored in an entry or in uncommitted data.
            address_type: one of AddressType; an unknown number is read like BY_PREFIX_DEPRECATED.
        """
        if parse_location(address) is None:
            readings = [address]
        elif address_type == AddressType.RELATIVE:
            readings = [address, *self._readings(address)]
        else:
            readings = [*self._readings(address)]
        return tuple(dict.fromkeys(key for reading in readings if reading for key in _spellings(reading)))


def _spellings(key: str) -> tuple[str, ...]:
    """The key as given first, then decoded, without a query, with single slashes and without outer ones."""
    if not _ODD.search(key):
        return (key,)
    found: dict[str, None] = {}
    for text in (key, key.partition("?")[0]):
        for decoded in (text, unquote(text)):
            for form in (decoded, _SLASHES.sub("/", decoded)):
                found |= dict.fromkeys((form, form.lstrip("/"), form.rstrip("/"), form.strip("/")))
    return tuple(form for form in found if form.strip("/"))
