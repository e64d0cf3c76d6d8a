"""Identities: the SHA-256 that tells lakeFS whether two entries are the same content.

Each field is hashed behind a byte for its type and, but for numbers, its length, so that no two lists of fields
collide. An entry's identity leaves out its address: the same bytes uploaded twice are the same entry
(lakeFS `pkg/ident`; checked against recorded identities).
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping

_STRING, _INT64, _STRING_LIST, _STRING_MAP = b"\x01", b"\x02\x08", b"\x03", b"\x04"


def _number(value: int) -> bytes:
    return _INT64 + struct.pack(">q", value)


def _string(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogateescape")
    return _STRING + _number(len(encoded)) + encoded


def _strings(values: Iterable[str]) -> bytes:
    encoded = [_string(value) for value in values]
    return _STRING_LIST + _number(len(encoded)) + b"".join(encoded)


def _map(values: Mapping[str, str]) -> bytes:
    pairs = b"".join(_string(key) + _string(values[key]) for key in sorted(values))
    return _STRING_MAP + _number(len(values)) + pairs


def entry_identity(size: int, etag: str, metadata: Mapping[str, str], content_type: str) -> bytes:
    """32 bytes that are equal where size, ETag, metadata and content type are; an empty content type is left out."""
    type_field = _string(content_type) if content_type else b""
    return hashlib.sha256(_number(size) + _string(etag) + _map(metadata) + type_field).digest()


def commit_id(
    committer: str,
    message: str,
    metarange_id: str,
    creation_date: int,
    metadata: Mapping[str, str],
    parents: Iterable[str],
) -> str:
    """64 hexadecimal digits over everything a commit says."""
    fields = (
        _string(committer),
        _string(message),
        _string(metarange_id),
        _number(creation_date),
        _map(metadata),
        _strings(parents),
    )
    return hashlib.sha256(b"".join(fields)).hexdigest()
