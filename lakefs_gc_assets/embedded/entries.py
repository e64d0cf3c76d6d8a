"""The records inside lakeFS's files, in protobuf's wire format: entries, ranges, commits, branches, tags, rules.

Fields as in lakeFS's `catalog.proto` and `graveler.proto`; a field with its default value is left out.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lakefs_gc_assets.embedded.identities import entry_identity
from lakefs_gc_assets.embedded.tables import varint
from lakefs_gc_assets.lakefs.addresses import AddressType

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def _number(tag: int, value: int) -> bytes:
    return varint(tag << 3 | _VARINT) + varint(value & 0xFFFF_FFFF_FFFF_FFFF) if value else b""


def _bytes(tag: int, value: bytes, *, always: bool = False) -> bytes:
    return varint(tag << 3 | _BYTES) + varint(len(value)) + value if value or always else b""


def _string(tag: int, value: str, *, always: bool = False) -> bytes:
    return _bytes(tag, value.encode("utf-8", "surrogateescape"), always=always)


def _string_map(tag: int, values: Mapping[str, str]) -> bytes:
    return b"".join(_bytes(tag, _string(1, key) + _string(2, values[key]), always=True) for key in sorted(values))


def _timestamp(tag: int, seconds: int) -> bytes:
    return _bytes(tag, _number(1, seconds), always=True)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in order. Raises ValueError for a broken message."""
    position, end = 0, len(message)
    while position < end:
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            number, position = _read_varint(message, position)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            length, position = _read_varint(message, position)
        elif kind in (_FIXED32, _FIXED64):
            length = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {kind}")
        if position + length > end:
            raise ValueError("message ends inside a field")
        yield key >> 3, message[position : position + length]
        position += length


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise ValueError("message ends inside a number")


def _signed(number: int) -> int:
    """An int64 out of its two's complement."""
    return number - (1 << 64) if number >> 63 else number


def _as_text(value: int | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a path of a branch or commit stands for.

    Attributes:
        address: relative to the storage namespace, or in full where `address_type` is FULL.
        last_modified: seconds since 1970 UTC.
    """

    address: str
    address_type: AddressType
    size: int
    etag: str
    last_modified: int
    content_type: str = "application/octet-stream"
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> bytes:
        """Equal for equal content, wherever it lies."""
        return entry_identity(self.size, self.etag, self.metadata, self.content_type)

    def encode(self) -> bytes:
        """The record as lakeFS stores it."""
        return (
            _string(1, self.address)
            + _timestamp(2, self.last_modified)
            + _number(3, self.size)
            + _string(4, self.etag)
            + _string_map(5, self.metadata)
            + _number(6, self.address_type)
            + _string(7, self.content_type)
        )

    def with_metadata(self, metadata: Mapping[str, str]) -> "Entry":
        """This entry with other user metadata; the object stays where it is."""
        return replace(self, metadata=dict(metadata))


def decode_entry(message: bytes) -> Entry:
    """Reads what `Entry.encode` wrote. Raises ValueError for a broken message."""
    address, seconds, size, etag, kind, content_type = "", 0, 0, "", 0, ""
    metadata: dict[str, str] = {}
    for tag, value in fields(message):
        if isinstance(value, int):
            if tag == 3:
                size = _signed(value)
            elif tag == 6:
                kind = value
        elif tag == 1:
            address = _as_text(value)
        elif tag == 2:
            parts = (part for number, part in fields(value) if number == 1 and isinstance(part, int))
            seconds = _signed(next(parts, 0))
        elif tag == 4:
            etag = _as_text(value)
        elif tag == 5:
            pair = {number: _as_text(part) for number, part in fields(value)}
            metadata[pair.get(1, "")] = pair.get(2, "")
        elif tag == 7:
            content_type = _as_text(value)
    return Entry(address, AddressType(kind), size, etag, seconds, content_type, metadata)


def range_data(min_key: bytes, max_key: bytes, estimated_size: int, count: int) -> bytes:
    """A metarange's record of one range."""
    return _bytes(1, min_key) + _bytes(2, max_key) + _number(3, estimated_size) + _number(4, count)


def commit_data(
    commit_id: str,
    committer: str,
    message: str,
    creation_date: int,
    metarange_id: str,
    metadata: Mapping[str, str],
    parents: Iterable[str],
    version: int,
    generation: int,
) -> bytes:
    """A commit in a refs dump."""
    return (
        _string(1, commit_id)
        + _string(2, committer)
        + _string(3, message)
        + _timestamp(4, creation_date)
        + _string(5, metarange_id)
        + _string_map(6, metadata)
        + b"".join(_string(7, parent, always=True) for parent in parents)
        + _number(8, version)
        + _number(9, generation)
    )


def branch_data(
    branch_id: str,
    commit_id: str,
    staging_token: str,
    sealed_tokens: Iterable[str],
    hidden: bool,
    compacted_base: str = "",
) -> bytes:
    """A branch in a refs dump, with the metarange that a compaction of its staging left."""
    return (
        _string(1, branch_id)
        + _string(2, commit_id)
        + _string(3, staging_token)
        + b"".join(_string(4, token, always=True) for token in sealed_tokens)
        + _number(5, int(hidden))
        + _string(6, compacted_base)
    )


_BRANCH_FIELDS = ("id", "commit_id", "staging_token", "sealed_tokens", "hidden", "compacted_base_meta_range_id")


def branch_schema() -> str:
    """The fields of `branch_data` as a dump states them: a descriptor of the message in protobuf's JSON form."""
    fields = [
        {
            "name": name,
            "number": number,
            "label": "LABEL_REPEATED" if name == "sealed_tokens" else "LABEL_OPTIONAL",
            "type": "TYPE_BOOL" if name == "hidden" else "TYPE_STRING",
        }
        for number, name in enumerate(_BRANCH_FIELDS, 1)
    ]
    return json.dumps({"name": "BranchData", "field": fields})


def tag_data(tag_id: str, commit_id: str) -> bytes:
    """A tag in a refs dump."""
    return _string(1, tag_id) + _string(2, commit_id)


def retention_rules(default_days: int, branches: Mapping[str, int]) -> bytes:
    """The rules file; empty where nothing is set."""
    return _number(1, default_days) + b"".join(
        _bytes(2, _string(1, branch) + _number(2, days), always=True) for branch, days in branches.items()
    )
