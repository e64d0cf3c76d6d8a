"""Metadata in SQLite: repositories, branches, tags, commits, staged entries, and the records of every range.

Range records are kept here as well as in the files, so that a path is found without reading a file; the files are what
a collector reads. One connection, one lock: calls that change something run one after the other.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS repositories (
    id TEXT PRIMARY KEY, storage_namespace TEXT NOT NULL, default_branch TEXT NOT NULL,
    creation_date INTEGER NOT NULL, read_only INTEGER NOT NULL, metadata TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS branches (
    repository TEXT, id TEXT, commit_id TEXT NOT NULL, staging_token TEXT NOT NULL, hidden INTEGER NOT NULL,
    compacted_base TEXT NOT NULL DEFAULT '', PRIMARY KEY (repository, id)
);
CREATE TABLE IF NOT EXISTS tags (
    repository TEXT, id TEXT, commit_id TEXT NOT NULL, PRIMARY KEY (repository, id)
);
CREATE TABLE IF NOT EXISTS commits (
    repository TEXT, id TEXT, committer TEXT NOT NULL, message TEXT NOT NULL, metarange_id TEXT NOT NULL,
    creation_date INTEGER NOT NULL, metadata TEXT NOT NULL, parents TEXT NOT NULL,
    version INTEGER NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (repository, id)
);
CREATE TABLE IF NOT EXISTS staged (
    token TEXT, path BLOB, identity BLOB, data BLOB, PRIMARY KEY (token, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS range_records (
    range_id TEXT, path BLOB, identity BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY (range_id, path)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS metaranges (
    id TEXT, position INTEGER, range_id TEXT NOT NULL, min_path BLOB NOT NULL, max_path BLOB NOT NULL,
    PRIMARY KEY (id, position)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    storage_namespace TEXT, id TEXT, PRIMARY KEY (storage_namespace, id)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS retention_rules (
    repository TEXT PRIMARY KEY, default_days INTEGER NOT NULL, branches TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS issued_addresses (
    repository TEXT, address TEXT, issued_at INTEGER NOT NULL, PRIMARY KEY (repository, address)
);
CREATE TABLE IF NOT EXISTS copies (
    repository TEXT, address TEXT NOT NULL, copied_at INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS uploads (
    id TEXT PRIMARY KEY, repository TEXT NOT NULL, branch TEXT NOT NULL, path TEXT NOT NULL, address TEXT NOT NULL,
    content_type TEXT NOT NULL, metadata TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS parts (
    upload_id TEXT, number INTEGER, etag TEXT NOT NULL, content BLOB NOT NULL, PRIMARY KEY (upload_id, number)
);
"""


class Database:
    """The connection and its lock. Safe to use from several threads."""

    def __init__(self, file: Path) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.executescript(_SCHEMA)
        if "compacted_base" not in {row[1] for row in self._connection.execute("PRAGMA table_info(branches)")}:
            # A file of an earlier version.
            self._connection.execute("ALTER TABLE branches ADD COLUMN compacted_base TEXT NOT NULL DEFAULT ''")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Everything inside happens, or nothing; nobody else reads or writes meanwhile. May be nested."""
        with self._lock:
            if self._depth == 0:
                self._connection.execute("BEGIN")
            self._depth += 1
            try:
                yield self._connection
            except BaseException:
                self._depth -= 1
                if self._depth == 0:
                    self._connection.execute("ROLLBACK")
                raise
            self._depth -= 1
            if self._depth == 0:
                self._connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._connection.close()
