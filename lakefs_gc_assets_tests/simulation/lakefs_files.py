"""Files as lakeFS writes them into the simulated bucket. A process encodes each content once."""

import hashlib
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.extensions.playground.embedded import formats
from lakefs_gc_assets.extensions.playground.embedded.commits import ServedCommit as EmbeddedCommit
from lakefs_gc_assets.extensions.playground.embedded.formats import table
from lakefs_gc_assets.lakefs.addresses import AddressType
from lakefs_gc_assets.lakefs.api.models import Branch, Commit
from lakefs_gc_assets.lakefs.formats.sstables import encode_varint
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.simulation.bucket import Bucket

_ENTRIES_OF_A_RANGE = 6
_UNCOMMITTED_SCHEMA = pa.schema(
    [pa.field("physical_address", pa.string(), nullable=False), pa.field("creation_date", pa.int64(), nullable=False)]
)
Record = tuple[bytes, bytes, bytes]
"""Key, identity, data."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The entry of a path.

    Attributes:
        address_type: 1 relative to the namespace, 2 in full.
        metadata: a number for each content of user metadata.
        soft_at: when it was staged without a promise of lakeFS (StageObject, or an import of an own address).
        mtime: when it was staged, seconds since 1970.
    """

    address: str
    address_type: int
    size: int
    etag: str
    metadata: int = 0
    soft_at: float | None = None
    mtime: int = field(default=0, compare=False, repr=False)

    @property
    def identity(self) -> tuple[int, str, int]:
        """Equal for equal content at any address."""
        return self.size, self.etag, self.metadata


@dataclass(frozen=True, slots=True)
class TableFile:
    """A range or metarange; bounds are its keys."""

    id: str
    data: bytes
    first: bytes
    last: bytes
    count: int


def _signed(number: int) -> bytes:
    return encode_varint(number << 1)


@lru_cache(maxsize=20_000)
def _table(kind: str, entity: str, records: tuple[Record, ...]) -> TableFile:
    first, last = (records[0][0], records[-1][0]) if records else (b"", b"")
    properties = {
        "type": kind,
        "min_key": first.decode(),
        "max_key": last.decode(),
        "count": str(len(records)),
        "estimated_size_bytes": "0",
    }
    if entity:
        properties |= {"entity": entity, "schema_name": f"io.treeverse.lakefs.graveler.{entity.capitalize()}Data"}
    pairs = [(key, _signed(len(identity)) + identity + _signed(len(data)) + data) for key, identity, data in records]
    name = hashlib.sha256(repr((kind, entity, records)).encode()).hexdigest()
    return TableFile(name, table(pairs, properties), first, last, len(records))


def _put(bucket: Bucket, file: TableFile, *, anew: bool = False) -> None:
    key = METADATA_PREFIX + file.id
    if anew or key not in bucket.objects:
        bucket.put(key, file.data)


def _put_metarange(bucket: Bucket, parts: Sequence[TableFile], entity: str = "", *, anew: bool = False) -> str:
    records = tuple(
        (part.last, part.id.encode(), formats.range_data(part.first, part.last, 0, part.count)) for part in parts
    )
    for part in parts:
        _put(bucket, part)
    file = _table("metaranges", entity, records)
    _put(bucket, file, anew=anew)
    return file.id


@lru_cache(maxsize=20_000)
def _record(path: str, entry: Entry) -> Record:
    identity = hashlib.sha256(repr(entry.identity).encode()).digest()
    metadata = {"m": str(entry.metadata)} if entry.metadata else {}
    address_type = AddressType(entry.address_type)
    stored = formats.Entry(entry.address, address_type, entry.size, entry.etag, 1_700_000_000, metadata=metadata)
    return path.encode(), identity, stored.encode()


def put_commit_objects(bucket: Bucket, entries: Mapping[str, Entry], *, anew: bool = True) -> str:
    """Writes the metarange of a commit with these entries; commits share ranges of the same content.

    Args:
        anew: rewrites an existing metarange, as servers do when they write one (`pkg/pyramid/tier_fs.go` of lakeFS
            stores without checking for it).
    """
    parts: list[TableFile] = []
    records: list[Record] = []
    for path in sorted(entries):
        records.append(_record(path, entries[path]))
        if zlib.crc32(path.encode()) % _ENTRIES_OF_A_RANGE == 0:
            parts.append(_table("ranges", "", tuple(records)))
            records = []
    if records:
        parts.append(_table("ranges", "", tuple(records)))
    return _put_metarange(bucket, parts, anew=anew)


def embedded_commit(commit: Commit) -> EmbeddedCommit:
    """A commit as the embedded server stores it."""
    return EmbeddedCommit(
        commit.id,
        "",
        "",
        commit.metarange_id,
        commit.creation_date,
        {},
        commit.parents,
        commit.version,
        commit.generation,
    )


def put_dumped_commits(bucket: Bucket, commits: Sequence[Commit]) -> str:
    """Writes the table of commits of a refs dump; returns its metarange."""
    return _put_dumped(
        bucket,
        "commit",
        [(commit.id, embedded_commit(commit).encode()) for commit in commits],
    )


class DumpedBranch(Protocol):
    """A branch in a dump."""

    name: str
    commit_id: str
    base_id: str


def put_dumped_branches(bucket: Bucket, branches: Sequence[DumpedBranch]) -> str:
    """Writes the table of branches; see `put_dumped_commits`."""
    rows = [
        (
            branch.name,
            formats.branch_data(branch.name, branch.commit_id) + formats.text_field(6, branch.base_id),
        )
        for branch in branches
    ]
    return _put_dumped(bucket, "branch", rows)


def put_dumped_tags(bucket: Bucket, tags: Sequence[Branch]) -> str:
    """Writes the table of tags; see `put_dumped_commits`."""
    return _put_dumped(bucket, "tag", [(tag.id, formats.tag_data(tag.id, tag.commit_id)) for tag in tags])


def _put_dumped(bucket: Bucket, entity: str, rows: Sequence[tuple[str, bytes]]) -> str:
    records = tuple(sorted((name.encode(), name.encode(), data) for name, data in rows))
    return _put_metarange(bucket, [_table("ranges", entity, records)] if records else [], entity)


@lru_cache(maxsize=5_000)
def uncommitted_file(addresses: tuple[str, ...]) -> bytes:
    """A file of prepare_uncommited."""
    rows = pa.table([pa.array(addresses, pa.string()), [0] * len(addresses)], schema=_UNCOMMITTED_SCHEMA)
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, compression="gzip", use_dictionary=["physical_address"])
    return buffer.getvalue()
