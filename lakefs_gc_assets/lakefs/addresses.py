"""The canonical form of an address: relative to the storage namespace, exactly as the object store spells the key.

lakeFS stores addresses relative, in full, or in a deprecated form that may be either. Servers, clients and importers
use different schemes for one bucket (`s3` or `s3a`; `https` or `abfs` on Azure), and may double slashes or escape
characters. Every spelling that *may* mean a key counts as that key: for referenced data, this can only keep more.

lakeFS parses a full address as a URL: it decodes the path and drops a query (lakeFS server, `pkg/block/namespace.go`).
It parses a storage namespace in the same way: keys of `s3://bucket/my%20repo` begin with `my repo/`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote

from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX

_S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
_GS_SCHEMES = frozenset({"gs", "gcs"})
_AZURE_SCHEMES = frozenset({"https", "http", "abfs", "abfss", "wasb", "wasbs", "az", "azure", "adl"})
_ODD = re.compile(r"[%?]|//|^/|/$")
_ESCAPED = re.compile("[%?]")
_SLASHES = re.compile("//+")
_NO_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_WILD = re.compile(r"\\(.)|(\*\*)|(\*)", re.DOTALL)
_ALIASES = ("-s3alias", "--op-s3", "--ol-s3", "--xa-s3", ".mrap")
_ARN = "arn:"
"""Suffixes of access point aliases, and the prefix of an access point's full name."""


class AddressType(IntEnum):
    """Interpretation of an entry's address (`Entry.address_type` of lakeFS)."""

    BY_PREFIX_DEPRECATED = 0
    RELATIVE = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class Location:
    """A full address: store kind (`s3`, `gs`, `azure`, `local`, …), bucket or container, key without leading slash."""

    kind: str
    bucket: str
    key: str

    @property
    def is_access_point(self) -> bool:
        """True if the bucket is an access point of S3, which may lead to any bucket.

        Aliases of access points look like buckets, and only AWS can resolve them. So an address with an alias may lie
        in a namespace if its path does.
        """
        return self.kind == "s3" and (self.bucket.endswith(_ALIASES) or self.bucket.startswith(_ARN))

    def may_share_bucket(self, other: "Location") -> bool:
        """True if both lie in one bucket, or may do so because one is an access point."""
        if (self.kind, self.bucket) == (other.kind, other.bucket):
            return True
        return self.kind == other.kind and (self.is_access_point or other.is_access_point)


def parse_wildcards(path: str) -> tuple[str, str]:
    """Parses a path: `*` stands for any text without a slash, `**` for any text. A backslash escapes a character.

    Returns the text before the first wildcard, and a regular expression for the whole path, empty without a wildcard.
    """
    literal, expression, is_literal, end = "", "", True, 0
    for wild in _WILD.finditer(path):
        plain, end = path[end : wild.start()] + (wild[1] or ""), wild.end()
        literal += plain if is_literal else ""
        expression += re.escape(plain)
        if wild[1] is None:
            is_literal = False
            expression += ".*" if wild[2] else "[^/]*"
    return (literal + path[end:], "") if is_literal else (literal, expression + re.escape(path[end:]))


def parse_location(uri: str) -> Location | None:
    """Parses a full address; None if it has no scheme."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not scheme or "/" in scheme:
        return None
    scheme = scheme.lower()
    host, _, path = rest.partition("/")
    if scheme in _AZURE_SCHEMES:
        return _azure(host, path)
    kind = "s3" if scheme in _S3_SCHEMES else "gs" if scheme in _GS_SCHEMES else scheme
    if kind == "s3" and host.startswith(_ARN):
        name, _, path = path.partition("/")
        host = f"{host}/{name}"
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
        uri: address from lakeFS, with exactly one trailing slash.
        location: location of its objects, with the path decoded; the key is empty or ends with a slash.
    """

    uri: str
    location: Location

    @classmethod
    def parse(cls, storage_namespace: str) -> "Namespace":
        """Parses `storage_namespace` of a repository.

        Raises ConfigurationError if it is not a full address, or lakeFS could not decode it.
        """
        uri = storage_namespace.rstrip("/") + "/"
        location = parse_location(uri)
        if location is None or (location.kind != "local" and not all(location.bucket.split("/"))):
            raise ConfigurationError(
                f"storage namespace {storage_namespace!r} is not an address with a scheme such as s3://bucket/path"
            )
        key = _decoded(location, storage_namespace).strip("/")
        return cls(uri, Location(location.kind, location.bucket, f"{key}/" if key else ""))

    @property
    def is_escaped(self) -> bool:
        """True if addresses may be spelled unlike the namespace's URI, because lakeFS decodes its path."""
        return bool(_ESCAPED.search(self.uri))

    def may_lie_elsewhere(self, address: str) -> bool:
        """True if an address counts as inside only because an access point's bucket or a server's folder is unknown."""
        location = parse_location(address)
        return location is not None and location.bucket != self.location.bucket and any(self._readings(address))

    def relative(self, full_address: str) -> str | None:
        """The key below this namespace that a full address names, spelled as given; None if it lies outside."""
        return next(self._readings(full_address), None)

    def _readings(self, full_address: str) -> Iterator[str]:
        """Every key below this namespace that a full address may name; the spelling as given comes first."""
        if full_address.startswith(self.uri):
            yield full_address[len(self.uri) :]
            return
        location = parse_location(full_address)
        if location is None:
            return
        if location.kind == "local":
            yield from self._below_folders(location)
        if not self.location.may_share_bucket(location):
            return
        for key in _spellings(location.key):
            if key.startswith(self.location.key):
                yield key[len(self.location.key) :]

    def _below_folders(self, location: Location) -> Iterator[str]:
        """Every key that an absolute path may name, for any folder of the blockstore; lakeFS's own names come first.

        On the blockstore `local`, a server puts its folder in front of addresses: for `local://repo` they begin with
        `local:///var/lakefs/repo/`. The folder may be mounted elsewhere on this machine, so any folder is accepted.
        """
        if self.location.kind != "local" or location.bucket:
            return
        own = "/" + f"{self.location.bucket}/{self.location.key}".lstrip("/")
        keys: list[str] = []
        for path in _spellings(location.key):
            start = path.find(own, 1)
            while start > 0:
                keys.append(path[start + len(own) :])
                start = path.find(own, start + 1)
        yield from sorted(keys, key=lambda key: not key.startswith((METADATA_PREFIX, DATA_PREFIX)))

    def live_keys(self, address: str, address_type: int) -> tuple[str, ...]:
        """Every key that a reference may mean; empty if it lies outside the namespace.

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


def _decoded(location: Location, storage_namespace: str) -> str:
    """The path of a storage namespace as Go's net/url decodes it; lakeFS appends keys to it."""
    path = location.key.partition("?")[0]
    try:
        if "%" in location.bucket or _NO_ESCAPE.search(path):
            raise ValueError
        return unquote(path, errors="strict")
    except ValueError:
        raise ConfigurationError(
            f"storage namespace {storage_namespace!r} cannot be decoded: lakeFS itself cannot read it, or keeps keys "
            "there that are no Unicode text"
        ) from None


def _spellings(key: str) -> tuple[str, ...]:
    """Spellings of a key: as given first, then decoded, without query, with single slashes, without outer slashes."""
    if not _ODD.search(key):
        return (key,)
    spellings: dict[str, None] = {}
    for text in (key, key.partition("?")[0]):
        for decoded in (text, unquote(text)):
            for form in (decoded, _SLASHES.sub("/", decoded)):
                spellings |= dict.fromkeys((form, form.lstrip("/"), form.rstrip("/"), form.strip("/")))
    return tuple(form for form in spellings if form.strip("/"))
