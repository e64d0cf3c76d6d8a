"""Notes of what ranges hold or metaranges name, made when one is read, so that it need not be read again.

Its id is a hash of its content, addresses and sizes included: what was noted once stays true, in every run.

Notes are files in the run's folder, each complete by itself. Their names say the version of the format, how many values
a file has, and the SHA-256 of what is in it: a file that is not what was written is never believed, and one of another
name is left alone. Whatever is not noted, or cannot be read, is unknown, and what is unknown is read. A run takes over
the notes of the run that it builds on.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.stored import objects, run_folder, tables
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore

_VALUES_OF_A_FILE = 4_000_000
"""A task puts a file whenever it has noted so many; files that have as many are not merged."""
_FILES_AT_ONCE = 8
_Read = TypeVar("_Read")
_FILE = re.compile(r"(?P<version>\d{1,9})-(?P<values>\d{1,18})-(?P<digest>[0-9a-f]{64})\.parquet")


@dataclass(frozen=True, slots=True)
class NotesKind:
    """What is noted.

    Attributes:
        name: of the folder of the notes in the folder of a run.
        what: it in words.
        version: of the format, and of how addresses are read where these are noted.
        schema: of a file. The last column has integers or lists of them: the values, which a file's name counts.
        ascending: paths of columns of integers that hardly ever go down.
        join: makes of the rows of several files those of one.
    """

    name: str
    what: str
    version: int
    schema: pa.Schema
    ascending: tuple[str, ...]
    join: Callable[[Sequence[pa.Table]], pa.Table]

    def folder(self, run_id: str, attempt: str) -> str:
        """Where the notes of an attempt are, with a trailing slash.

        Another attempt has sealed other slices, and may take over nothing.
        """
        return f"{run_folder.frame(run_id, self.name)}{attempt}/"

    def values(self, rows: pa.Table) -> pa.ChunkedArray:
        """The values of rows, those of all lists together."""
        column = rows.column(self.schema.names[-1])
        return pc.list_flatten(column) if pa.types.is_list(column.type) else column


@dataclass(frozen=True, slots=True)
class NotesFolder:
    """Where notes go: a folder, its key with a trailing slash, of the store that an opener opens."""

    opener: OpensStore
    key: str


@dataclass(frozen=True, slots=True)
class NotesFile:
    """A file of notes.

    Attributes:
        values: how many it has, of all its ranges together.
        digest: SHA-256 of the file.
    """

    key: str
    values: int
    digest: str


class File(Protocol):
    """A file of notes of any kind."""

    @property
    def key(self) -> str:
        """Where it is in the store."""
        ...


_File = TypeVar("_File", bound=File)


class Notes:
    """Notes the values of ranges that a task reads, and puts them into files."""

    def __init__(self, kind: NotesKind, store: ObjectStore, folder: str) -> None:
        """Nothing is noted yet.

        Args:
            folder: where the files go, with a trailing slash.
        """
        self._kind, self._store, self._folder = kind, store, folder
        self._noted: dict[str, tuple[tuple[int, ...], pa.Int64Array]] = {}
        self._values = 0

    def add(self, range_id: str, values: pa.Int64Array, *about: int) -> None:
        """Notes a range: what the columns between its id and its values say, and the values."""
        self._noted[range_id] = about, values
        self._values += len(values)
        if self._values >= _VALUES_OF_A_FILE:
            self.put()

    def put(self) -> None:
        """Puts what was noted since the last time."""
        if self._noted:
            about, values = zip(*self._noted.values(), strict=True)
            offsets = pa.array(np.cumsum([0, *map(len, values)]), pa.int32())
            lists = pa.ListArray.from_arrays(offsets, pa.concat_arrays(values))
            columns = [[*self._noted], *map(list, zip(*about, strict=True)), lists]
            put(self._kind, self._store, self._folder, pa.table(columns, schema=self._kind.schema))
        self._noted, self._values = {}, 0


def files_of(
    kind: NotesKind,
    store: ObjectStore,
    run_id: str,
    attempt: str,
    of_other_version: Callable[[str], None] = lambda key: None,
) -> list[NotesFile]:
    """The files of an attempt's notes that this version can read.

    Args:
        of_other_version: receives the key of each file of notes of another version.
    """
    files: list[NotesFile] = []
    for each in store.list_level(kind.folder(run_id, attempt)).objects:
        match = _FILE.fullmatch(each.key.rpartition("/")[2])
        if match is not None and int(match["version"]) == kind.version:
            files.append(NotesFile(each.key, int(match["values"]), match["digest"]))
        elif match is not None:
            of_other_version(each.key)
    return files


def put(kind: NotesKind, store: ObjectStore, folder: str, rows: pa.Table) -> NotesFile:
    """Stores notes as one file; the same notes are the same file.

    Args:
        folder: with a trailing slash.
    """
    values = len(kind.values(rows))
    data = tables.encode(rows, kind.ascending)
    digest = hashlib.sha256(data).hexdigest()
    file = NotesFile(f"{folder}{kind.version}-{values}-{digest}.parquet", values, digest)
    store.put(file.key, data)
    return file


def read(kind: NotesKind, store: ObjectStore, file: NotesFile) -> pa.Table:
    """The notes of a file. Raises CorruptFile where it is missing, or is not what was written."""
    rows = tables.decode(kind.schema, tables.get(store, file.key, file.digest), file.key, kind.what)
    values = kind.values(rows)
    if values.null_count or len(values) != file.values:
        raise CorruptFile(
            file.key,
            kind.what,
            f"it has {len(values):,} values, {values.null_count:,} of them null; its name says {file.values:,}",
        )
    return rows


def describe(damage: CorruptFile) -> str:
    """What is wrong with a file, without the words of CorruptFile that the run ends: it goes on."""
    return f"{damage.file}: {damage.check}: {damage.detail}"


def group(files: Iterable[_File], count: Callable[[_File], int], most: int) -> list[list[_File]]:
    """The files that become one, from the smallest on: while one is no larger than twice all before it together.

    So there are few files, however many runs left some, and a value is seldom written again.

    Args:
        count: how many values a file has.
        most: so many values has one that several become.
    """
    groups: list[list[_File]] = []
    total = 0
    for file in sorted(files, key=lambda each: (count(each), each.key)):
        if groups and count(file) <= 2 * total and total + count(file) <= most:
            groups[-1].append(file)
            total += count(file)
        else:
            groups.append([file])
            total = count(file)
    return groups


def read_each(read: Callable[[_File], _Read], files: Iterable[_File]) -> tuple[list[_Read], list[str]]:
    """What is read of files, and what is wrong with those that cannot be read."""
    found: list[_Read] = []
    problems: list[str] = []
    for file in files:
        try:
            found.append(read(file))
        except CorruptFile as damage:
            problems.append(describe(damage))
    return found, problems


def join_each_once(tables_of_files: Sequence[pa.Table]) -> pa.Table:
    """The first row of each range, of notes that have one for each."""
    rows = pa.concat_tables(tables_of_files)
    places: dict[str, int] = {}
    for place, range_id in enumerate(rows.column("range_id").to_pylist()):
        places.setdefault(range_id, place)
    return rows.take(pa.array(places.values(), pa.int64()))


def take_over(kind: NotesKind, store: ObjectStore, files: Sequence[NotesFile], folder: str) -> list[str]:
    """Copies files of notes into another folder, small ones merged into one; says what is wrong with each that is lost.

    Args:
        folder: with a trailing slash.
    """
    groups = group(files, lambda file: file.values, _VALUES_OF_A_FILE)
    lost: list[str] = []
    for merged in groups:
        if len(merged) > 1:
            rows, problems = read_each(partial(read, kind, store), merged)
            lost += problems
            if rows:
                put(kind, store, folder, kind.join(rows))
    return lost + copy_files(store, [file.key for file, *more in groups if not more], folder)


def refute(store: ObjectStore, files: Sequence[NotesFile]) -> None:
    """Makes files of notes such that no run believes them: one of another content is none. Raises StorageError.

    They are not deleted, since dry runs need no right to delete.
    """
    for file in files:
        store.put(file.key, b"")


def copy_files(store: ObjectStore, keys: Sequence[str], folder: str) -> list[str]:
    """Copies files of notes into another folder; says what is wrong with each that is lost.

    Args:
        folder: with a trailing slash.
    """
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        copied = pool.map(partial(_copy, store, folder), keys)
        return [problem for problem in copied if problem is not None]


def _copy(store: ObjectStore, folder: str, key: str) -> str | None:
    """Copies a file; returns what went wrong."""
    try:
        objects.copy(store, key, folder + key.rpartition("/")[2])
    except StorageError as error:
        return str(error)
    return None
