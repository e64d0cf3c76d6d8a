"""What is staged on a branch and not committed: entries, and tombstones for deleted committed paths."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lakefs_gc_assets.embedded import committed
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.entries import Entry

_Row = tuple[bytes, bytes | None, bytes | None]
"""Path, identity, data of what is staged; identity and data None for a tombstone."""


def encode_path(path: str) -> bytes:
    """A path as it is stored and ordered."""
    return path.encode("utf-8", "surrogateescape")


def decode_path(path: bytes) -> str:
    """A path out of its stored form, which `encode_path` makes."""
    return path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between staging and commit; `identity` and `data` are None where the path was removed."""

    type: Literal["added", "changed", "removed"]
    path: bytes
    identity: bytes | None
    data: bytes | None
    base_data: bytes | None


def put(database: sqlite3.Connection, token: str, path: str, entry: Entry) -> None:
    """Stages an entry."""
    database.execute(
        "INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)",
        (token, encode_path(path), entry.identity, entry.encode()),
    )


def remove(core: Core, database: sqlite3.Connection, token: str, metarange_id: str, path: str) -> None:
    """Stages a deletion: a tombstone where the metarange that the branch rests on has the path, else nothing stays."""
    key = encode_path(path)
    if committed.lookup(core, metarange_id, key) is None:
        drop_path(database, token, path)
    else:
        put_record(database, token, key, None)


def put_record(database: sqlite3.Connection, token: str, path: bytes, record: committed.Record | None) -> None:
    """Stages a committed record as it is, or with None a tombstone."""
    _, identity, data = record or (path, None, None)
    database.execute("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?)", (token, path, identity, data))


def drop(database: sqlite3.Connection, token: str) -> None:
    """Forgets everything staged."""
    database.execute("DELETE FROM staged WHERE token = ?", (token,))


def drop_path(database: sqlite3.Connection, token: str, path: str) -> None:
    """Forgets what is staged at one path."""
    database.execute("DELETE FROM staged WHERE token = ? AND path = ?", (token, encode_path(path)))


def drop_prefix(database: sqlite3.Connection, token: str, prefix: str) -> None:
    """Forgets what is staged below a prefix."""
    key = encode_path(prefix)
    database.execute(
        "DELETE FROM staged WHERE token = ? AND path >= ? AND substr(path, 1, ?) = ?", (token, key, len(key), key)
    )


def find(database: sqlite3.Connection, token: str, path: str) -> tuple[bool, bytes | None]:
    """Whether anything is staged at a path, and the entry's data; None for a tombstone."""
    row = database.execute(
        "SELECT data FROM staged WHERE token = ? AND path = ?", (token, encode_path(path))
    ).fetchone()
    return (False, None) if row is None else (True, row[0])


def scan(database: sqlite3.Connection, token: str, start: bytes = b"") -> Iterator[_Row]:
    """Path, identity, data of what is staged, in order; identity and data None for a tombstone."""
    yield from database.execute(
        "SELECT path, identity, data FROM staged WHERE token = ? AND path >= ? ORDER BY path", (token, start)
    )


def changes(
    core: Core,
    database: sqlite3.Connection,
    token: str,
    metarange_id: str,
    compacted_base: str = "",
    start: bytes = b"",
) -> Iterator[Change]:
    """Staged differences from the commit, in order of path. To be used up inside the transaction it began in.

    As in lakeFS, a staged entry whose identity equals the committed one at its path is no difference.

    Args:
        compacted_base: the metarange that what was staged before was folded into; empty for none.
    """
    following = committed.at_or_after(core, metarange_id, start)
    rows = scan(database, token, start)
    if compacted_base:
        rows = _over_compacted(database, rows, metarange_id, compacted_base, start)
    for path, identity, data in rows:
        if following is not None and following[0] < path:
            following = committed.at_or_after(core, metarange_id, path)
        base = following if following is not None and following[0] == path else None
        if data is None:
            if base is not None:
                yield Change("removed", path, None, None, base[2])
        elif base is None:
            yield Change("added", path, identity, data, None)
        elif base[1] != identity:
            yield Change("changed", path, identity, data, base[2])


def _over_compacted(
    database: sqlite3.Connection, staged: Iterator[_Row], metarange_id: str, compacted_base: str, start: bytes
) -> Iterator[_Row]:
    """What is staged, and where nothing is what the compacted base has otherwise than the commit."""
    head, base = (
        {path: (identity, data) for path, identity, data in committed.scan(database, metarange, start)}
        for metarange in (metarange_id, compacted_base)
    )
    nothing = (None, None)
    rows: dict[bytes, tuple[bytes | None, bytes | None]] = {
        path: base.get(path, nothing)
        for path in head.keys() | base.keys()
        if base.get(path, nothing)[0] != head.get(path, nothing)[0]
    }
    rows |= {path: (identity, data) for path, identity, data in staged}
    for path in sorted(rows):
        yield (path, *rows[path])
