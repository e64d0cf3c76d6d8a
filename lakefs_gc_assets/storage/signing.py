"""Signatures of the files that runs write to the store, so that runs trust no file of another writer.

A store with keys signs each record and table on write and verifies it on read; callers see the content without the
signature. A file without a valid signature counts as damaged, and no run acts on it. The signature is an HMAC with
SHA-256. It covers the storage namespace, the file's own key and its content, so a file of another repository or run
cannot take its place.

Three kinds of files of runs are unsigned: files whose digest a signed file names, facts (their names contain the
signature), and files that decide nothing; see `is_signed`. Files of lakeFS are unsigned too.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lakefs_gc_assets.errors import ConfigurationError, CorruptFile
from lakefs_gc_assets.lakefs.layout import RUNS_PREFIX, SIGNATURE
from lakefs_gc_assets.storage.interface import (
    DeleteOutcome,
    Level,
    ObjectFacts,
    ObjectStore,
)

SHORTEST_KEY = 32
"""Minimum characters of a key."""
_SEPARATORS = re.compile(r"[\s,]+")
_SIGNED = re.compile(
    # Runs read every file in these two folders.
    r"names/.+|[^/]+/receipts/.+|"
    r"(?!lock\.json|facts/|[^/]+/uncommitted/)(?:[^/]+/)*(?!part-|read-earlier-|counted\.)[^/]+\.(?:json|parquet)"
)
_BROKEN_OFF = re.compile(r"_lakefs/retention/gc/quarantine/[^/]+/purging/[^/]+")
"""Lists of the copies that a purge is about to delete."""
_IN_RECORD, _IN_TABLE = (f',"{SIGNATURE}": "'.encode(), b'"'), (b"lakefs-gc signature ", b"")
_DIGITS = 64
_DIGITS_ONLY = re.compile(rb"[0-9a-f]{64}")
_PARQUET_END = 8
"""Bytes of a table after its footer: the footer's length (4 bytes) and the magic number (4 bytes)."""
_FURTHER_ABILITIES = (
    "list_between",
    "listings_at_once",
    "remove_delete_marker",
    "versions",
    "delete_version",
    "part_sizes",
)
"""Methods and attributes that only some stores have. None reads or writes a signed file."""


def is_signed(key: str) -> bool:
    """True for a file that is signed: lists of a purge, and records and tables of runs, with these exceptions.

    Every run takes the lock anew. A signed file names parts of frames and ids read earlier with their digest.
    Names of facts contain the signature. Counts for a page are for display only. The server writes the files in a
    folder `uncommitted/`.
    """
    if key.startswith(RUNS_PREFIX):
        return _SIGNED.fullmatch(key, len(RUNS_PREFIX)) is not None
    return _BROKEN_OFF.fullmatch(key) is not None


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs files of a storage namespace with the first key, and verifies them with all keys."""

    keys: tuple[bytes, ...] = field(repr=False)
    namespace: str

    @classmethod
    def from_setting(cls, text: str, namespace: str) -> "Signer":
        """A signer with the keys of `store.signing_key`. Raises ConfigurationError if a key is too short."""
        keys = [key for key in _SEPARATORS.split(text) if key]
        if not keys or min(map(len, keys)) < SHORTEST_KEY:
            raise ConfigurationError(
                f"store.signing_key: each key has at least {SHORTEST_KEY} characters; `openssl rand -hex 32` makes one"
            )
        return cls(tuple(key.encode() for key in keys), namespace)

    def sign(self, key: str, data: bytes | bytearray) -> str:
        """The signature of a file, in 64 hexadecimal digits."""
        return self._sign(self.keys[0], key, data)

    def is_signature(self, signature: str, key: str, data: bytes | bytearray) -> bool:
        """True if a text is this file's signature by any of the keys."""
        return any(hmac.compare_digest(self._sign(each, key, data), signature) for each in self.keys)

    def _sign(self, secret: bytes, key: str, data: bytes | bytearray) -> str:
        header = json.dumps(["lakefs-gc-assets 1", self.namespace, key]).encode()
        signature = hmac.new(secret, header + b"\n", hashlib.sha256)
        signature.update(data)
        return signature.hexdigest()


def content_name(store: object, key: str, data: bytes | bytearray) -> str:
    """64 hexadecimal digits that name the content of a file: its signature if the store signs, else its SHA-256."""
    if isinstance(store, SignedStore):
        return store.signer.sign(key, data)
    return hashlib.sha256(data).hexdigest()


def is_content_name(store: object, name: str, key: str, data: bytes | bytearray) -> bool:
    """True if `content_name` gives this name for a file, with any of the keys."""
    if isinstance(store, SignedStore):
        return store.signer.is_signature(name, key, data)
    return hashlib.sha256(data).hexdigest() == name


class SignedStore:
    """A store that signs and verifies the files of runs, and delegates the rest to the wrapped store.

    It has the optional methods of stores that the wrapped store has.
    """

    def __init__(self, store: ObjectStore, signer: Signer) -> None:
        self._store = store
        self.signer = signer
        self.delete_limit = store.delete_limit
        # `isinstance` looks up a protocol's attributes on each object.
        for name in _FURTHER_ABILITIES:
            if hasattr(store, name):
                setattr(self, name, getattr(store, name))

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list."""
        return self._store.list(prefix)

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        return self._store.list_level(prefix)

    def get(self, key: str) -> bytes:
        """See ObjectStore.get; without the signature. Raises also CorruptFile if the signature is missing or wrong."""
        data = self._store.get(key)
        return self._verified(key, data) if is_signed(key) else data

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """See GivesObjects.get_part. Signed files are never read in parts."""
        assert not is_signed(key), key
        return self._store.get_part(key, start, end)

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head; the size is that of the stored file, with its signature."""
        return self._store.head(key)

    def put(self, key: str, data: bytes) -> str | None:
        """See ObjectStore.put."""
        return self._store.put(key, self._signed(key, data))

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        return self._store.put_if_absent(key, self._signed(key, data))

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return self._store.put_if_match(key, self._signed(key, data), etag)

    def copy(self, source: str, target: str) -> ObjectFacts:
        """See ObjectStore.copy."""
        return self._store.copy(source, target)

    def copy_if_absent(self, source: str, target: str) -> None:
        """See ObjectStore.copy_if_absent."""
        self._store.copy_if_absent(source, target)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete."""
        return self._store.delete(keys)

    def _signed(self, key: str, data: bytes) -> bytes:
        if not is_signed(key):
            return data
        place, (begins, ends) = _place(key, data), _around(key)
        return b"".join((data[:place], begins, self.signer.sign(key, data).encode(), ends, data[place:]))

    def _verified(self, key: str, stored: bytes) -> bytes:
        end, (begins, ends) = _place(key, stored), _around(key)
        start = end - len(begins) - _DIGITS - len(ends)
        signature = stored[start + len(begins) : end - len(ends)]
        if start < 0 or stored[start:end] != begins + signature + ends or not _DIGITS_ONLY.fullmatch(signature):
            raise CorruptFile(
                key,
                SIGNATURE,
                "it is not signed, and store.signing_key is set: it was written before that, or by another program",
            )
        data = stored[:start] + stored[end:]
        if not self.signer.is_signature(signature.decode(), key, data):
            raise CorruptFile(
                key,
                SIGNATURE,
                "it was not signed by a key of store.signing_key, or was changed, moved or copied after that",
            )
        return data


def _around(key: str) -> tuple[bytes, bytes]:
    """The bytes before and after a signature: an entry of a record, or text that no reader of a table reads."""
    return _IN_RECORD if key.endswith(".json") else _IN_TABLE


def _place(key: str, data: bytes) -> int:
    """Offset at which a signature begins in an unsigned file, or ends in a signed one.

    It is before the closing brace of a record, or right before the footer of a table.
    """
    if key.endswith(".json"):
        return len(data) - 1
    return len(data) - _PARQUET_END - int.from_bytes(data[-_PARQUET_END:][:4], "little")
