"""Committed entries as ranges and metaranges, commits, and the references that name commits.

Ranges are written as files and stored in the database. Their ids are SHA-256 over records and properties. A range ends
at a path whose hash is divisible by `range_entries`, or at `range_bytes`. So equal content gives equal ranges, and a
commit with few changes writes few files.
"""

import hashlib
import heapq
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakefs_gc_assets.extensions.playground.embedded import formats
from lakefs_gc_assets.extensions.playground.embedded.core import Core, bad_request, not_found
from lakefs_gc_assets.extensions.playground.embedded.formats import (
    map_field,
    number_field,
    table,
    text_field,
    time_field,
)
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.lakefs.formats.sstables import encode_varint
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

Record = tuple[bytes, bytes, bytes]
"""Path, identity, data."""


def _signed_varint(number: int) -> bytes:
    return encode_varint(number << 1)


def record_value(identity: bytes, data: bytes) -> bytes:
    """Identity and data as one value, each after its length as a signed varint of Go."""
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
    """A range or metarange to be written; `records` are keys and whole values."""

    id: str
    records: list[tuple[bytes, bytes]]
    properties: Mapping[str, str]


def _table_file(kind: str, records: list[Record], size: int, more: Mapping[str, str]) -> TableFile:
    properties = {
        "type": kind,
        "min_key": _decoded(records[0][0]) if records else "",
        "max_key": _decoded(records[-1][0]) if records else "",
        "count": str(len(records)),
        "estimated_size_bytes": str(size),
        **more,
    }
    pairs = [(path, record_value(identity, data)) for path, identity, data in records]
    digest = hashlib.sha256()
    for path, value in pairs:
        digest.update(encode_varint(len(path)) + path + encode_varint(len(value)) + value)
    for name in sorted(properties):
        digest.update(f"{name}={properties[name]}\n".encode("utf-8", "surrogateescape"))
    return TableFile(digest.hexdigest(), pairs, properties)


def _decoded(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def write_metarange(
    core: Core,
    repository: ServedRepository,
    records: Iterable[Record],
    *,
    more_properties: Mapping[str, str] | None = None,
) -> str:
    """Writes records, which are sorted by path, as ranges and a metarange; returns the metarange's id."""
    more = more_properties or {}
    range_records: list[Record] = []
    metarange_rows: list[tuple[int, str, bytes, bytes]] = []
    with core.database.transaction() as database:
        splits = _split(records, core.settings.range_entries, core.settings.range_bytes)
        for position, part in enumerate(splits):
            file = _table_file("ranges", part.records, part.size, more)
            first, last = part.records[0][0], part.records[-1][0]
            range_records.append(
                (last, file.id.encode(), formats.range_data(first, last, part.size, len(part.records)))
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


def _write_file(core: Core, repository: ServedRepository, file: TableFile, *, anew: bool = False) -> bool:
    """Writes a file unless the namespace has it; returns True if it is new there.

    Args:
        anew: write an existing file again, as lakeFS does with each metarange that it assembles.
    """
    with core.database.transaction() as database:
        inserted = database.execute(
            "INSERT OR IGNORE INTO files VALUES (?, ?)", (repository.storage_namespace, file.id)
        ).rowcount
        if inserted or anew:
            content = table(file.records, file.properties)
            core.blockstore.put(repository.storage_namespace, METADATA_PREFIX + file.id, content)
    return bool(inserted)


def scan_records(database: sqlite3.Connection, metarange_id: str, start: bytes = b"") -> Iterator[Record]:
    """Records of a metarange from this path on, in order. Consume it within the transaction in which it began."""
    ranges = database.execute(
        "SELECT range_id FROM metaranges WHERE id = ? AND max_path >= ? ORDER BY position", (metarange_id, start)
    )
    for (range_id,) in ranges:
        yield from database.execute(
            "SELECT path, identity, data FROM range_records WHERE range_id = ? AND path >= ? ORDER BY path",
            (range_id, start),
        )


def all_records(core: Core, metarange_id: str) -> list[Record]:
    """All records of a metarange, by path."""
    with core.database.transaction() as database:
        return list(scan_records(database, metarange_id))


def next_record(core: Core, metarange_id: str, path: bytes) -> Record | None:
    """The first record of a metarange at or after this path; None if there is none."""
    with core.database.transaction() as database:
        return next(scan_records(database, metarange_id, path), None)


def find_record(core: Core, metarange_id: str, path: bytes) -> Record | None:
    """The record of one path; None if the metarange has none."""
    record = next_record(core, metarange_id, path)
    return record if record is not None and record[0] == path else None


_CURRENT_VERSION = 1
_SHORTEST_PREFIX = 6
_REFERENCE = re.compile(r"([^~^@]+)((?:[~^][0-9]{0,4})*)@?")
_STEP = re.compile(r"([~^])([0-9]*)")


@dataclass(frozen=True, slots=True)
class ServedCommit:
    """A commit; `creation_date` in seconds since 1970 UTC, `metarange_id` empty for a first commit."""

    id: str
    committer: str
    message: str
    metarange_id: str
    creation_date: int
    metadata: Mapping[str, str]
    parents: tuple[str, ...]
    version: int
    generation: int

    @property
    def main_parent(self) -> str | None:
        """The parent that retention follows: the first, or the last in commits of version 0."""
        if not self.parents:
            return None
        return self.parents[-1 if self.version == 0 else 0]

    def encode(self) -> bytes:
        """The commit as a record of a refs dump."""
        return (
            text_field(1, self.id)
            + text_field(2, self.committer)
            + text_field(3, self.message)
            + time_field(4, self.creation_date)
            + text_field(5, self.metarange_id)
            + map_field(6, self.metadata)
            + b"".join(text_field(7, parent, always=True) for parent in self.parents)
            + number_field(8, self.version)
            + number_field(9, self.generation)
        )

    def as_json(self) -> dict[str, Any]:
        """The form that the API returns."""
        return {
            "id": self.id,
            "parents": list(self.parents),
            "committer": self.committer,
            "message": self.message,
            "creation_date": self.creation_date,
            "meta_range_id": self.metarange_id,
            "metadata": dict(self.metadata),
            "generation": self.generation,
            "version": self.version,
        }


@dataclass(frozen=True, slots=True)
class Description:
    """Committer, message and metadata of a commit; `date` in seconds since 1970 UTC, by default now."""

    committer: str
    message: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    date: int | None = None


def add(
    core: Core,
    repository: ServedRepository,
    described: Description,
    metarange_id: str,
    parents: tuple[str, ...],
    generation: int,
) -> ServedCommit:
    """Stores a commit. Equal content gives an equal id, so a repeated commit is stored once."""
    committer, message, metadata = described.committer, described.message, described.metadata
    date = core.clock.seconds() if described.date is None else described.date
    commit_id = formats.commit_id(committer, message, metarange_id, date, metadata, parents)
    commit = ServedCommit(
        commit_id, committer, message, metarange_id, date, metadata, parents, _CURRENT_VERSION, generation
    )
    store_record(core, repository, commit)
    return commit


def store_record(core: Core, repository: ServedRepository, commit: ServedCommit) -> None:
    """Stores a commit under its id."""
    with core.database.transaction() as database:
        database.execute(
            "INSERT OR REPLACE INTO commits VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                repository.id,
                commit.id,
                commit.committer,
                commit.message,
                commit.metarange_id,
                commit.creation_date,
                json.dumps(dict(commit.metadata)),
                json.dumps(commit.parents),
                commit.version,
                commit.generation,
            ),
        )


def get(core: Core, repository: ServedRepository, commit_id: str) -> ServedCommit:
    """The commit with exactly this id. Raises ApiFailure 404."""
    with core.database.transaction() as database:
        row = database.execute(
            "SELECT * FROM commits WHERE repository = ? AND id = ?", (repository.id, commit_id)
        ).fetchone()
    if row is None:
        raise not_found("commit")
    return _from_row(row)


def every(core: Core, repository: ServedRepository) -> list[ServedCommit]:
    """All commits, dangling ones included, by id."""
    with core.database.transaction() as database:
        rows = database.execute("SELECT * FROM commits WHERE repository = ? ORDER BY id", (repository.id,)).fetchall()
    return [_from_row(row) for row in rows]


def resolve(core: Core, repository: ServedRepository, reference: str, doing: str = "") -> ServedCommit:
    """The commit that a reference names. Raises ApiFailure 400, or 404 with a message that begins with `doing`.

    A reference is a branch, a tag, a commit id or an unambiguous prefix of one. After it, `~2` goes back two first
    parents, `^2` goes to the second parent, and `@` excludes staged changes of a branch.
    """
    match = _REFERENCE.fullmatch(reference)
    name, steps = (match[1], match[2]) if match else (reference, "")
    commit = _named(core, repository, name, doing)
    for sign, digits in _STEP.findall(steps):
        number = int(digits or 1)
        for parent in [1] * number if sign == "~" else [number] * bool(number):
            if parent > len(commit.parents):
                raise not_found(doing)
            commit = get(core, repository, commit.parents[parent - 1])
    return commit


def _named(core: Core, repository: ServedRepository, reference: str, doing: str) -> ServedCommit:
    with core.database.transaction() as database:
        for table in ("branches", "tags"):
            row = database.execute(
                f"SELECT commit_id FROM {table} WHERE repository = ? AND id = ?",  # noqa: S608
                (repository.id, reference),
            ).fetchone()
            if row:
                return get(core, repository, row[0])
        if len(reference) < _SHORTEST_PREFIX:
            raise not_found(doing)
        rows = database.execute(
            "SELECT id FROM commits WHERE repository = ? AND substr(id, 1, ?) = ? LIMIT 2",
            (repository.id, len(reference), reference),
        ).fetchall()
    if not rows:
        raise not_found(doing)
    if len(rows) > 1:
        raise bad_request(f"{reference}: reference is ambiguous")
    return get(core, repository, rows[0][0])


def log(core: Core, repository: ServedRepository, start: ServedCommit) -> Iterator[ServedCommit]:
    """A commit and its ancestors. The newest commit reached so far always comes next."""
    return _ancestry(core, repository, start, lambda commit: (commit.creation_date, commit.generation))


def merge_base(
    core: Core, repository: ServedRepository, left: ServedCommit, right: ServedCommit
) -> ServedCommit | None:
    """The common ancestor with the highest generation."""
    ancestors = {commit.id for commit in log(core, repository, left)}
    by_generation = _ancestry(core, repository, right, lambda commit: (commit.generation, commit.creation_date))
    return next((commit for commit in by_generation if commit.id in ancestors), None)


def _ancestry(
    core: Core, repository: ServedRepository, start: ServedCommit, priority: Callable[[ServedCommit], tuple[int, int]]
) -> Iterator[ServedCommit]:
    commits = {commit.id: commit for commit in every(core, repository)}
    reached = {start.id}
    waiting = [((0, 0), 0, start)]
    while waiting:
        commit = heapq.heappop(waiting)[2]
        yield commit
        for parent in commit.parents:
            if parent not in reached and parent in commits:
                reached.add(parent)
                first, second = priority(commits[parent])
                heapq.heappush(waiting, ((-first, -second), len(reached), commits[parent]))


def _from_row(row: tuple[Any, ...] | sqlite3.Row) -> ServedCommit:
    _, commit_id, committer, message, metarange_id, creation_date, metadata, parents, version, generation = row
    return ServedCommit(
        commit_id,
        committer,
        message,
        metarange_id,
        creation_date,
        json.loads(metadata),
        tuple(json.loads(parents)),
        version,
        generation,
    )
