"""Facts about ranges and metaranges, recorded when one is read, so that later runs need not read it again.

The id of a range or metarange is a hash of its content, so a fact stays true in every run. All facts of a repository
are parquet files in one folder, by their kind and by the attempt that recorded them. Files are never changed. A name
states the version of the format, the number of values, and the length and digest of the file's end, which has digests
of the rest. So a changed file is never used, and a file with any other name is ignored. A range or metarange
without a fact, or with a damaged one, is read.

A run without a base run uses only the facts of its own attempt, and so notices files that are gone. A run with a base
run, or limited to some windows, uses the facts of all runs. Sweeps tidy up, see `references.tidy_facts`.
"""

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, delete_all
from lakefs_gc_assets.storage.signing import content_name, is_content_name

ROOT = f"{layout.RUNS_PREFIX}facts/"
"""Folder of all facts."""

_VALUES_OF_A_FILE = 4_000_000
"""Values that a task collects before it writes a file. Files of this size are not merged."""
_READ_WHOLE = 256 * 1024
"""Maximum bytes of a file that is read with one request: several requests would save hardly anything."""
_REQUESTS_AT_ONCE = 8
_DIGEST_BYTES = 16
_NAME = re.compile(
    r"[^/]+/[^/]+/(?P<version>\d{1,9})-(?P<values>\d{1,18})-(?P<end>\d{1,18})-"
    r"(?P<digest>[0-9a-f]{64})\.parquet"
)
_ENDS, _DIGESTS = b"ends", b"digests"
"""Metadata of a file: the ends of its row groups, and their digests."""


@dataclass(frozen=True, slots=True)
class FactKind:
    """A kind of facts.

    Attributes:
        name: name of the folder.
        what: the facts in words.
        version: version of the format, and of how ranges are read when these facts are recorded.
        schema: schema of a file. The last column has integers or lists of integers: the values.
        ascending: paths of columns of integers that hardly ever go down.
        join: makes one table from the tables of several files, whose schemas have the metadata of the files.
        rows_of_group: rows in a row group, if parts of files are read; None if files are read whole.
    """

    name: str
    what: str
    version: int
    schema: pa.Schema
    ascending: tuple[str, ...]
    join: Callable[[Sequence[pa.Table]], pa.Table]
    rows_of_group: int | None = None

    @property
    def root(self) -> str:
        """The folder of all its facts, with a trailing slash."""
        return f"{ROOT}{self.name}/"

    def folder(self, run_id: str, attempt: str) -> str:
        """The folder of the facts that an attempt records, with a trailing slash."""
        return f"{self.root}{run_id}/{attempt}/"

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """The values of rows; lists are flattened."""
        column = rows.column(self.schema.names[-1])
        return pc.list_flatten(column) if pa.types.is_list(column.type) else column


@dataclass(frozen=True, slots=True)
class FactsFolder:
    """A folder of a store in which facts of a kind are recorded; its key has a trailing slash."""

    kind: FactKind
    opener: OpensStore
    key: str

    def writer(self) -> "FactWriter":
        """A writer of facts, for one task."""
        return FactWriter(self.kind, self.opener.open(), self.key)


@dataclass(frozen=True, slots=True)
class FactFile:
    """A file of facts.

    Attributes:
        length: size of the file in bytes.
        values: number of its values.
        end: size of its end in bytes, from the end of the last row group on.
        digest: digest of the end, see `signing.content_name`.
    """

    key: str
    length: int
    values: int
    end: int
    digest: str


class FactWriter:
    """Collects facts of one kind that a task learns, and writes files of them."""

    def __init__(self, kind: FactKind, store: ObjectStore, folder: str) -> None:
        """Starts without facts.

        Args:
            folder: folder of the files, with a trailing slash.
        """
        self._kind, self._store, self._folder = kind, store, folder
        self._rows: list[pa.Table] = []
        self._values = 0

    def add(self, rows: pa.Table) -> None:
        """Collects facts, in the kind's schema."""
        self._rows.append(rows)
        self._values += len(self._kind.values(rows))
        if self._values >= _VALUES_OF_A_FILE:
            self.put()

    def put(self) -> None:
        """Writes the facts that were collected since the last call."""
        if self._rows:
            put(self._kind, self._store, self._folder, self._kind.join(self._rows))
        self._rows, self._values = [], 0


def list_files(store: ObjectStore, folder: str) -> dict[str, int]:
    """Keys and lengths of all files in a folder, at any depth, in order of their keys.

    Args:
        folder: folder of all facts, of a kind, or of an attempt, with a trailing slash.
    """
    batches = [*store.list(folder)]
    return dict(sorted((row["key"], row["size"]) for batch in batches for row in batch.to_pylist()))


def files_of(
    kind: FactKind, stored: Mapping[str, int], of_other_version: Callable[[str], None] = lambda key: None
) -> list[FactFile]:
    """The files of a kind that this version can read.

    Args:
        stored: keys and lengths, as from `list_files`.
        of_other_version: receives the keys of files of the kind that have another version.
    """
    files: list[FactFile] = []
    for key, length in stored.items():
        match = _NAME.fullmatch(key.removeprefix(kind.root))
        if match is not None and int(match["version"]) == kind.version:
            files.append(FactFile(key, length, int(match["values"]), int(match["end"]), match["digest"]))
        elif match is not None:
            of_other_version(key)
    return files


def put(kind: FactKind, store: ObjectStore, folder: str, rows: pa.Table) -> str:
    """Writes facts as one file; returns its key. The same facts get the same name.

    Args:
        folder: with a trailing slash.
        rows: facts in the kind's schema; the metadata of their schema is stored as well.
    """
    data, end = _encode(kind, rows)
    beginning = f"{folder}{kind.version}-{len(kind.values(rows))}-{end}"
    key = f"{beginning}-{content_name(store, beginning, data[len(data) - end :])}.parquet"
    store.put(key, data)
    return key


def _encode(kind: FactKind, rows: pa.Table) -> tuple[bytes, int]:
    """A file, and the length of its end."""
    sink, ends, digests = io.BytesIO(), [0], b""
    columns = dict.fromkeys(kind.ascending, "DELTA_BINARY_PACKED")
    options = {"compression": "zstd", "write_page_checksum": True, "use_dictionary": False, "store_schema": False}
    with pq.ParquetWriter(sink, rows.schema, column_encoding=columns, **options) as writer:
        size = kind.rows_of_group or max(rows.num_rows, 1)
        for start in range(0, rows.num_rows, size):
            writer.write_table(rows.slice(start, size), row_group_size=size)
            ends.append(sink.tell())
            digests += _digest(sink.getbuffer()[ends[-2] :])
        parts = {_ENDS: np.array(ends[1:], np.int64).tobytes(), _DIGESTS: digests}
        writer.add_key_value_metadata({**(rows.schema.metadata or {}), **parts})
    return sink.getvalue(), sink.tell() - ends[-1]


def _digest(data: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(data).digest()[:_DIGEST_BYTES]


def read(kind: FactKind, store: ObjectStore, file: FactFile) -> pa.Table:
    """The facts of a file, with the metadata of their schema. Raises CorruptFile if the file was changed."""
    stored = StoredFacts(kind, store, file)
    rows = stored.read(stored.groups)
    values = kind.values(rows)
    if values.null_count or len(values) != file.values:
        raise CorruptFile(
            file.key,
            kind.what,
            f"it has {len(values):,} values, {values.null_count:,} null; its name says {file.values:,}",
        )
    return rows.replace_schema_metadata(stored.metadata)


class StoredFacts:
    """A file of facts. Its end is read at once, its row groups when they are needed.

    Attributes:
        metadata: metadata of the schema that was written.
    """

    def __init__(self, kind: FactKind, store: ObjectStore, file: FactFile, *, in_parts: bool = False) -> None:
        """Reads the end of a file, or all of it.

        Args:
            in_parts: True to read a large file in parts.

        Raises:
            CorruptFile: the file is missing, or was changed.
        """
        self._kind, self._store, self._file = kind, store, file
        self._in_parts = in_parts and file.length > _READ_WHOLE
        self._data: bytes | bytearray = b""
        if self._in_parts:
            self._data = bytearray(file.length)
            self._fetch((file.length - file.end, file.length))
        else:
            self._data = self._whole()
        beginning = file.key.removesuffix(f"-{file.digest}.parquet")
        if not is_content_name(store, file.digest, beginning, self._data[len(self._data) - file.end :]):
            raise self._damaged("the file was changed after it was written, or is not signed by our key")
        with tables.opened(self._data, file.key, kind.what) as stored:
            self._footer = stored.metadata
            self.metadata: dict[bytes, bytes] = dict(stored.schema_arrow.metadata)
        self._ends: npt.NDArray[np.int64] = np.frombuffer(self.metadata.pop(_ENDS), np.int64)
        self._digests = self.metadata.pop(_DIGESTS)

    @property
    def groups(self) -> range:
        """All row groups."""
        return range(len(self._ends))

    def groups_of(self, values: pa.Int64Array) -> list[int]:
        """The row groups whose first column, which is in ascending order in the file, can have one of some values."""
        bounds = (self._footer.row_group(group).column(0).statistics for group in self.groups)
        least, greatest = np.array([(each.min, each.max) for each in bounds], np.int64).reshape(-1, 2).T
        wanted = np.sort(values.to_numpy())
        has_some = np.searchsorted(wanted, greatest, "right") > np.searchsorted(wanted, least, "left")
        return [*map(int, np.flatnonzero(has_some))]

    def read(self, groups: Sequence[int]) -> pa.Table:
        """The rows of some row groups, which are given in order. Raises CorruptFile."""
        spans = [(int(self._ends[group - 1]) if group else 0, int(self._ends[group])) for group in groups]
        if self._in_parts and 2 * sum(end - start for start, end in spans) > self._file.length - self._file.end:
            self._data, self._in_parts = self._whole(), False
        elif self._in_parts:
            joined: list[tuple[int, int]] = []
            for start, end in spans:
                if joined and joined[-1][1] == start:
                    joined[-1] = joined[-1][0], end
                else:
                    joined.append((start, end))
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
                [*pool.map(self._fetch, joined)]
        for group, (start, end) in zip(groups, spans, strict=True):
            if _digest(self._data[start:end]) != self._digests[group * _DIGEST_BYTES :][:_DIGEST_BYTES]:
                raise self._damaged(f"row group {group} was changed after it was written")
        return tables.decode(self._kind.schema, self._data, self._file.key, self._kind.what, groups=groups)

    def _whole(self) -> bytes:
        data = tables.get(self._store, self._file.key)
        if len(data) != self._file.length:
            raise self._damaged("the file was changed after it was written")
        return data

    def _fetch(self, span: tuple[int, int]) -> None:
        assert isinstance(self._data, bytearray)
        try:
            part = self._store.get_part(self._file.key, *span)
        except ObjectNotFound:
            raise CorruptFile.missing(self._file.key) from None
        if len(part) != span[1] - span[0]:
            raise self._damaged("the file was changed after it was written")
        memoryview(self._data)[slice(*span)] = part

    def _damaged(self, how: str) -> CorruptFile:
        return CorruptFile(self._file.key, self._kind.what, how)


def describe(damage: CorruptFile) -> str:
    """Describes the damage of a file, without CorruptFile's words about the end of the run: the run goes on."""
    return f"{damage.file}: {damage.check}: {damage.detail}"


def group(files: Iterable[FactFile]) -> list[list[FactFile]]:
    """Groups files to merge, smallest first. A file joins a group that has at least half as many values.

    So there are few files, however many runs record some, and a value is seldom written again.
    """
    groups: list[list[FactFile]] = []
    total = 0
    for file in sorted(files, key=lambda each: (each.values, each.key)):
        if groups and file.values <= 2 * total and total + file.values <= _VALUES_OF_A_FILE:
            groups[-1].append(file)
            total += file.values
        else:
            groups.append([file])
            total = file.values
    return groups


def merge(kind: FactKind, store: ObjectStore, folder: str, files: Sequence[FactFile]) -> list[str]:
    """Merges files into one and deletes them; returns the damage of files that cannot be read.

    Damaged files are deleted as well, since no run can use them.

    Args:
        folder: folder of the merged file, with a trailing slash.

    Raises:
        StorageError: the merged file could not be written, or a file could not be deleted.
    """
    read_tables: list[pa.Table] = []
    problems: list[str] = []
    for file in files:
        try:
            read_tables.append(read(kind, store, file))
        except CorruptFile as damage:
            problems.append(describe(damage))
    written = put(kind, store, folder, kind.join(read_tables)) if read_tables else None
    delete_all(store, [file.key for file in files if file.key != written])
    return problems


def drop_older(store: ObjectStore, stored: Mapping[str, int], run_id: str, attempt: str) -> dict[str, int]:
    """Deletes the facts of older runs and of this run's other attempts; returns the other files.

    Args:
        stored: keys and lengths of all facts, as from `list_files`.

    Raises:
        StorageError: a file could not be deleted.
    """
    kept: dict[str, int] = {}
    for key, length in stored.items():
        recorded_by = key.removeprefix(ROOT).split("/")[1:-1]
        # Newer runs have smaller ids.
        if len(recorded_by) != 2 or recorded_by[0] < run_id or recorded_by == [run_id, attempt]:
            kept[key] = length
    delete_all(store, [key for key in stored if key not in kept])
    return kept


def drop_of_run(store: ObjectStore, run_id: str) -> int:
    """Deletes the facts that a run recorded; returns the number of files. Raises StorageError."""
    return delete_all(store, [key for key in list_files(store, ROOT) if f"/{run_id}/" in key.removeprefix(ROOT)])


def refute(store: ObjectStore, files: Sequence[FactFile]) -> None:
    """Overwrites files with empty ones, so that no run uses them. Raises StorageError.

    They are not deleted, since dry runs need no right to delete.
    """
    for file in files:
        store.put(file.key, b"")


def each_readable(
    open_file: Callable[[FactFile], Iterator[pa.RecordBatch]], files: Iterable[FactFile], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows that a function reads from each file, or one row with the fault in its column `damage`."""
    for file in files:
        try:
            yield from [*open_file(file)]
        except CorruptFile as damage:
            yield pa.RecordBatch.from_pylist([{"damage": describe(damage)}], schema)
