"""Files in the format of a lakeFS server, put into a store: ranges, metaranges, refs dumps, uncommitted data."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.api.models import Branch, Commit, RefsDump
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import TableBytes, framed, integer, text

METADATA = "_lakefs/"


@dataclass(frozen=True)
class Staged:
    """One entry of a range; `modified` is in seconds since 1970, UTC."""

    address: str
    type: int = AddressType.RELATIVE
    size: int = 10
    etag: str = "0" * 32
    modified: int | None = None


def put_table(store: ObjectStore, table: TableBytes) -> str:
    data = table.build()
    name = hashlib.sha256(data).hexdigest()
    store.put(METADATA + name, data)
    return name


def put_range(store: ObjectStore, entries: Mapping[str | bytes, Staged]) -> RangeRecord:
    """A range of objects, and its record in a metarange."""
    records = sorted(
        (
            path.encode() if isinstance(path, str) else path,
            framed(
                bytes(32),
                text(1, entry.address)
                + (b"" if entry.modified is None else text(2, integer(1, entry.modified)))
                + integer(3, entry.size)
                + text(4, entry.etag)
                + integer(6, entry.type),
            ),
        )
        for path, entry in entries.items()
    )
    return _stated(put_table(store, TableBytes(records)), records)


def _stated(name: str, records: Sequence[tuple[bytes, bytes]]) -> RangeRecord:
    return RangeRecord(name, records[0][0], records[-1][0], len(records), 0)


def put_metarange(store: ObjectStore, parts: Sequence[RangeRecord], **properties: bytes) -> str:
    records = [
        (
            part.max_key,
            framed(
                part.id.encode(),
                text(1, part.min_key)
                + text(2, part.max_key)
                + integer(3, part.estimated_size)
                + integer(4, part.count),
            ),
        )
        for part in sorted(parts, key=lambda part: part.max_key)
    ]
    return put_table(store, TableBytes(records, {"type": b"metaranges", **properties}))


def put_commit_objects(store: ObjectStore, entries: Mapping[str | bytes, Staged]) -> str:
    """A metarange with one range, or without a range if there are no entries."""
    return put_metarange(store, [put_range(store, entries)] if entries else [])


def put_dump(
    store: ObjectStore,
    commits: Sequence[Commit],
    branches: Sequence[Branch],
    tags: Sequence[Branch] = (),
    compacted: Mapping[str, str] = MappingProxyType({}),
) -> RefsDump:
    """A finished dump; each table in ranges of two records.

    Args:
        compacted: base metarange by branch.
    """
    heads = {
        head.id: text(1, head.id)
        + text(2, head.commit_id)
        + (text(6, compacted[head.id]) if head.id in compacted else b"")
        for head in branches
    }
    return RefsDump(
        True,
        None,
        _put_entity(store, "commit", {commit.id: commit_message(commit) for commit in commits}),
        _put_entity(store, "branch", heads),
        _put_entity(store, "tag", {tag.id: text(1, tag.id) + text(2, tag.commit_id) for tag in tags}),
    )


def _put_entity(store: ObjectStore, entity: str, messages: Mapping[str, bytes]) -> str:
    records = sorted((name.encode(), framed(name.encode(), message)) for name, message in messages.items())
    property_ = {"entity": entity.encode()}
    parts = [records[start : start + 2] for start in range(0, len(records), 2)]
    stated = [_stated(put_table(store, TableBytes(part, property_)), part) for part in parts]
    return put_metarange(store, stated, **property_)


def commit_message(commit: Commit) -> bytes:
    return (
        text(1, commit.id)
        + text(4, integer(1, commit.creation_date))
        + text(5, commit.metarange_id)
        + b"".join(text(7, parent) for parent in commit.parents)
        + integer(8, commit.version)
        + integer(9, commit.generation)
    )


def put_uncommitted(store: ObjectStore, key: str, addresses: Sequence[str | None]) -> None:
    """One file of uncommitted data, with the columns that a server writes."""
    table = pa.table(
        {"physical_address": pa.array(addresses, pa.string()), "creation_date": pa.array([0] * len(addresses))}
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="gzip")
    store.put(key, buffer.getvalue())
