"""Committed entries: ranges and metaranges, written as files and kept in the database.

A range ends where the hash of a path says so, about each `range_entries` entries, or at `range_bytes`: where content
is equal, ranges are, and a commit that changes little writes little. Ids are SHA-256 over records and properties.
"""

import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lakefs_gc_assets.embedded import entries
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.embedded.tables import table, varint
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

Record = tuple[bytes, bytes, bytes]
"""Path, identity, data."""


def _signed_varint(number: int) -> bytes:
    return varint(number << 1)


def record_value(identity: bytes, data: bytes) -> bytes:
    """Identity and data as one value, each behind its length as Go writes signed numbers."""
    return _signed_varint(len(identity)) + identity + _signed_varint(len(data)) + data


@dataclass(slots=True)
class _Range:
    records: list[Record] = field(default_factory=list)
    size: int = 0


def _split(records: Iterable[Record], entry_target: int, byte_limit: int) -> Iterator[_Range]:
    current = _Range()
    for record in records:
        path, identity, data = record
        current.records.append(record)
        current.size += len(path) + len(identity) + len(data)
        if zlib.crc32(path) % entry_target == 0 or current.size >= byte_limit:
            yield current
            current = _Range()
    if current.records:
        yield current


@dataclass(frozen=True, slots=True)
class TableFile:
    """A range or metarange about to be written; `records` are keys and whole values."""

    id: str
    records: list[tuple[bytes, bytes]]
    properties: Mapping[str, str]


def _table_file(kind: str, records: list[Record], size: int, more: Mapping[str, str]) -> TableFile:
    properties = {
        "type": kind,
        "min_key": _text(records[0][0]) if records else "",
        "max_key": _text(records[-1][0]) if records else "",
        "count": str(len(records)),
        "estimated_size_bytes": str(size),
        **more,
    }
    pairs = [(path, record_value(identity, data)) for path, identity, data in records]
    digest = hashlib.sha256()
    for path, value in pairs:
        digest.update(varint(len(path)) + path + varint(len(value)) + value)
    for name in sorted(properties):
        digest.update(f"{name}={properties[name]}\n".encode("utf-8", "surrogateescape"))
    return TableFile(digest.hexdigest(), pairs, properties)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def write(
    core: Core,
    repository: Repository,
    records: Iterable[Record],
    *,
    more_properties: Mapping[str, str] | None = None,
) -> str:
    """Writes records, in order of path, as ranges and a metarange; returns the metarange's id."""
    more = more_properties or {}
    range_records: list[Record] = []
    metarange_rows: list[tuple[int, str, bytes, bytes]] = []
    with core.database.transaction() as database:
        splits = _split(records, core.settings.range_entries, core.settings.range_bytes)
        for position, part in enumerate(splits):
            file = _table_file("ranges", part.records, part.size, more)
            first, last = part.records[0][0], part.records[-1][0]
            range_records.append(
                (last, file.id.encode(), entries.range_data(first, last, part.size, len(part.records)))
            )
            metarange_rows.append((position, file.id, first, last))
            if _write_file(core, repository, file):
                database.executemany(
                    "INSERT OR IGNORE INTO range_records VALUES (?, ?, ?, ?)",
                    ((file.id, *record) for record in part.records),
                )
        size = sum(len(path) + len(identity) + len(data) for path, identity, data in range_records)
        metarange = _table_file("metaranges", range_records, size, more)
        if _write_file(core, repository, metarange, anew=True):
            database.executemany(
                "INSERT OR IGNORE INTO metaranges VALUES (?, ?, ?, ?, ?)",
                ((metarange.id, *row) for row in metarange_rows),
            )
    return metarange.id


def _write_file(core: Core, repository: Repository, file: TableFile, *, anew: bool = False) -> bool:
    """Writes a file that the namespace does not have; tells whether it is new there.

    Args:
        anew: write one that it has once more, as lakeFS does with each metarange that it puts together.
    """
    with core.database.transaction() as database:
        inserted = database.execute(
            "INSERT OR IGNORE INTO files VALUES (?, ?)", (repository.storage_namespace, file.id)
        ).rowcount
        if inserted or anew:
            content = table(file.records, file.properties)
            core.blockstore.put(repository.storage_namespace, METADATA_PREFIX + file.id, content)
    return bool(inserted)


def scan(database: sqlite3.Connection, metarange_id: str, start: bytes = b"") -> Iterator[Record]:
    """Records of a metarange from this path on, in order. To be used up inside the transaction it began in."""
    ranges = database.execute(
        "SELECT range_id FROM metaranges WHERE id = ? AND max_path >= ? ORDER BY position", (metarange_id, start)
    )
    for (range_id,) in ranges:
        yield from database.execute(
            "SELECT path, identity, data FROM range_records WHERE range_id = ? AND path >= ? ORDER BY path",
            (range_id, start),
        )


def records(core: Core, metarange_id: str) -> list[Record]:
    """Every record of a metarange, in order of path."""
    with core.database.transaction() as database:
        return list(scan(database, metarange_id))


def at_or_after(core: Core, metarange_id: str, path: bytes) -> Record | None:
    """The first record of a metarange at this path or behind it, None where there is none."""
    with core.database.transaction() as database:
        return next(scan(database, metarange_id, path), None)


def lookup(core: Core, metarange_id: str, path: bytes) -> Record | None:
    """The record of one path, None where the metarange has none."""
    found = at_or_after(core, metarange_id, path)
    return found if found is not None and found[0] == path else None
