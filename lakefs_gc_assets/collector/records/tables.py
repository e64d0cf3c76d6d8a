"""Small tables as parquet files in the store, and sets of ids that need little memory.

The pages of the files have checksums, and reads verify them.
"""

import hashlib
import io
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress, islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

_ROWS_OF_A_PART = 65_536
_MAX_MEMORY = 2 << 30
"""Maximum bytes of rows that are read into memory."""
_ROWS_AT_ONCE = 2_048
"""Rows that are read before their memory is counted. Writers repeat texts of up to 1 MiB, so these rows can need 2
GiB."""


def encode(table: pa.Table, ascending: Sequence[str] = ()) -> bytes:
    """A table as a file.

    Args:
        ascending: paths of integer columns that hardly ever decrease, which are stored as differences.
    """
    buffer = io.BytesIO()
    differences = {"use_dictionary": False, "column_encoding": dict.fromkeys(ascending, "DELTA_BINARY_PACKED")}
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True, **(differences if ascending else {}))
    return buffer.getvalue()


def put(store: ObjectStore, key: str, table: pa.Table) -> str:
    """Stores a table as one file; returns its SHA-256, which identifies this exact content."""
    data = encode(table)
    store.put(key, data)
    return hashlib.sha256(data).hexdigest()


def get(store: ObjectStore, key: str, sha256: str | None = None) -> bytes:
    """The file of a table. Raises CorruptFile if it is missing or does not have the given SHA-256."""
    data = fetch(store, key)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptFile(key, "checksum", "the file was changed after it was written")
    return data


def decode_parts(
    schema: pa.Schema, data: bytes, file: str, what: str, added: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Reads a table written by `encode`, some rows at a time, so that they need not all fit in memory.

    Args and errors are those of `decode`. Damage is found with the last rows at the latest.
    """
    with opened(data, file, what) as stored:
        # A file without rows has no batch to compare with the schema.
        if stored.schema_arrow.names not in (schema.names, [name for name in schema.names if name not in added]):
            raise ValueError(f"it has other columns: {', '.join(stored.schema_arrow.names)}")
        rows = 0
        for stored_part in _read_parts(stored, _ROWS_OF_A_PART):
            part = _declared(stored_part, schema, added)
            rows += part.num_rows
            yield from part.to_batches()
        _compare_with_footer(rows, stored)


def decode(
    schema: pa.Schema,
    data: bytes | bytearray,
    file: str,
    what: str,
    added: Sequence[str] = (),
    groups: Sequence[int] | None = None,
) -> pa.Table:
    """Reads a table written by `encode`, with exactly the columns of the schema. Raises CorruptFile(file, what, …).

    Args:
        added: the last columns. Files of earlier versions lack all or the last ones, which are then null.
        groups: the row groups that are read; None for all.
    """
    with opened(data, file, what) as stored:
        table = _declared(read_rows(stored, groups=groups), schema, added)
        if groups is None:
            _compare_with_footer(table.num_rows, stored)
        return table


def count(data: bytes, file: str, what: str) -> int:
    """Number of rows by the footer of a file from `encode`. Raises CorruptFile(file, what, …) without a footer."""
    with opened(data, file, what) as stored:
        return int(stored.metadata.num_rows)


@contextmanager
def opened(data: bytes | bytearray, file: str, what: str) -> Iterator[pq.ParquetFile]:
    """A file as parquet. Raises CorruptFile(file, what, …) for any damage found before the exit."""
    try:
        yield pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(file, what, f"cannot be read: {error}") from None


def read_rows(
    stored: pq.ParquetFile, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> pa.Table:
    """Reads rows into memory, and stops beyond 2 GiB, which a file of some kilobytes can hold.

    Args:
        columns: names of the columns; None for all.
        groups: the row groups; None for all.

    Raises:
        ValueError: the rows need more memory.
        pa.ArrowException, OSError: the file cannot be read.
    """
    # The footer's row count is not used as the part size: if it were too small, rows would be lost.
    parts = list(_read_parts(stored, sys.maxsize, columns, groups))
    return parts[0] if parts else stored.read_row_groups([], columns, use_threads=False)


def _read_parts(
    stored: pq.ParquetFile, rows: int, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Reads rows in parts of `rows` rows, the last one smaller; nothing if there are no rows. See `read_rows`."""
    batches: list[pa.RecordBatch] = []
    count = needed = 0
    chosen = range(stored.num_row_groups) if groups is None else groups
    at_once = max(1, min(rows, _ROWS_AT_ONCE))
    # Threads that read other columns outlive a failed read and can crash the process.
    for batch in stored.iter_batches(at_once, row_groups=list(chosen), columns=columns, use_threads=False):
        count += batch.num_rows
        needed += sum(map(_memory_of, batch.columns))
        if needed > _MAX_MEMORY:
            raise ValueError(f"its rows need over {_MAX_MEMORY >> 20:,} MiB of memory, more than this program writes")
        batches.append(batch)
        if count >= rows:
            yield _whole(batches)
            batches, count, needed = [], 0, 0
    if batches:
        yield _whole(batches)


def _whole(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Batches as a table in one piece, since work per batch would cost more for many small batches."""
    return pa.Table.from_batches(batches).combine_chunks()


def _memory_of(array: pa.Array) -> int:
    """Bytes of an array; for a dictionary, bytes of the expanded texts."""
    if pa.types.is_dictionary(array.type):
        return int(pc.sum(pc.binary_length(array.dictionary).take(array.indices), min_count=0).as_py())
    return int(array.nbytes)


def _compare_with_footer(rows: int, stored: pq.ParquetFile) -> None:
    """Raises ValueError if a file has other rows than its footer says."""
    if rows != stored.metadata.num_rows:
        raise ValueError(f"it has {rows} rows, but its footer says {stored.metadata.num_rows}")


def _declared(rows: pa.Table, schema: pa.Schema, added: Sequence[str]) -> pa.Table:
    """The rows as a table of the schema. Raises ArrowException or ValueError if they do not fit it."""
    lacking = [name for name in added if name not in rows.column_names]
    # Each version appends its columns to those of the version before.
    if lacking == [*added][len(added) - len(lacking) :]:
        for name in lacking:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    table = rows.cast(schema)
    table.validate(full=True)
    nulls = [column.name for column in schema if not column.nullable and table.column(column.name).null_count]
    if nulls:
        raise ValueError(f"{nulls[0]} is null")
    return table


_DIGEST = "^[0-9a-f]{64}$"
_DIGITS = 64
_AT_ONCE = 65_536
"""Maximum ids that exist as Python strings at a time."""
Digests = npt.NDArray[np.bytes_]
_BYTES = np.dtype(f"S{_DIGITS // 2}")
_NONE: Digests = np.empty(0, _BYTES)


class IdSet(Set[str]):
    """A set of ids. It iterates in order, digests first.

    The id of a range or metarange is a digest of 64 hexadecimal digits. It takes 32 bytes here, and at least 160 in a
    Python set. Other ids are kept as they are.
    """

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self._digests, self._others = _NONE, frozenset[str]()
        self._take(pa.array(some, pa.string()) for some in _parts(ids))

    @classmethod
    def from_ids(cls, ids: Iterable[str]) -> "IdSet":
        """A set of the ids; an IdSet is returned as it is."""
        return ids if isinstance(ids, IdSet) else cls(ids)

    @classmethod
    def of_columns(cls, columns: Iterable[pa.StringArray]) -> "IdSet":
        """The ids of columns without nulls, each column at most about 100,000 ids long."""
        id_set = cls()
        id_set._take(columns)
        return id_set

    def _take(self, columns: Iterable[pa.StringArray]) -> None:
        """Fills a new set with the ids of columns."""
        digests, others = [self._digests], set[str]()
        for column in columns:
            are_digests = pc.match_substring_regex(column, _DIGEST)
            digests.append(_as_digests(column.filter(are_digests)))
            others.update(column.filter(pc.invert(are_digests)).to_pylist())
        # `np.unique` hashes the values, which takes eight times as long.
        ordered = np.sort(np.concatenate(digests), kind="stable")
        is_first = np.ones(len(ordered), np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self._digests, self._others = ordered[is_first], frozenset(others)

    def __len__(self) -> int:
        return len(self._digests) + len(self._others)

    def __iter__(self) -> Iterator[str]:
        for chunk in self.column().iterchunks():
            yield from chunk.to_pylist()

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and not self.lacking([name])

    def __or__(self, others: Set[str]) -> "IdSet":  # type: ignore[override]
        more, joined = IdSet.from_ids(others), IdSet()
        new = more._digests[~self._has(more._digests)]
        joined._digests = np.insert(self._digests, np.searchsorted(self._digests, new), new)
        joined._others = self._others | more._others
        return joined

    __ror__ = __or__

    def __sub__(self, others: Set[Any]) -> "IdSet":
        fewer, left = IdSet.from_ids(others), IdSet()
        left._digests = self._digests[~fewer._has(self._digests)]
        left._others = self._others - fewer._others
        return left

    def lacking(self, ids: Iterable[str]) -> list[str]:
        """The given ids that are not in this set, in their order."""
        return [name for some in _parts(ids) for name in compress(some, self.lacks(pa.array(some, pa.string())))]

    def lacks(self, ids: pa.StringArray) -> npt.NDArray[np.bool_]:
        """True for each id that is not in this set; at most about 100,000 ids, without nulls."""
        are_digests = pc.match_substring_regex(ids, _DIGEST)
        others = ids.filter(pc.invert(are_digests)).to_pylist()
        lacks, places = np.empty(len(ids), np.bool_), are_digests.to_numpy(zero_copy_only=False)
        lacks[places] = ~self._has(_as_digests(ids.filter(are_digests)))
        lacks[~places] = [name not in self._others for name in others]
        return lacks

    def _has(self, digests: Digests) -> npt.NDArray[np.bool_]:
        if not len(self._digests):
            return np.zeros(len(digests), np.bool_)
        at = np.minimum(np.searchsorted(self._digests, digests), len(self._digests) - 1)
        there: npt.NDArray[np.bool_] = self._digests[at] == digests
        return there

    def column(self) -> pa.ChunkedArray:
        """The ids as text, in the order of the iteration."""
        starts = range(0, len(self._digests), _AT_ONCE)
        chunks = [_as_text(self._digests[start : start + _AT_ONCE]) for start in starts]
        return pa.chunked_array([*chunks, pa.array(sorted(self._others), pa.string())], pa.string())


def lacking(known: Set[str], ids: Sequence[str]) -> list[str]:
    """The given ids that are not known, in their order."""
    return known.lacking(ids) if isinstance(known, IdSet) else [name for name in ids if name not in known]


def _parts(ids: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(ids)
    while some := list(islice(remaining, _AT_ONCE)):
        yield some


def _as_digests(names: pa.StringArray) -> Digests:
    """Names as digests; each name must be a digest."""
    if not len(names):
        return _NONE
    _, ends, text = names.buffers()
    start = np.frombuffer(ends, np.int32)[names.offset]
    digits = text.slice(start, len(names) * _DIGITS).to_pybytes().decode()
    return np.frombuffer(bytes.fromhex(digits), _BYTES)


def _as_text(digests: Digests) -> pa.StringArray:
    ends = pa.array(np.arange(len(digests) + 1, dtype=np.int32) * _DIGITS)
    return pa.StringArray.from_buffers(len(digests), ends.buffers()[1], pa.py_buffer(digests.tobytes().hex().encode()))


_SCHEMA = pa.schema([pa.field("id", pa.string(), nullable=False)])


def write_ids(store: ObjectStore, key: str, ids: Iterable[str]) -> str:
    """Stores ids; returns the SHA-256 of the file."""
    column = ids.column() if isinstance(ids, IdSet) else pa.chunked_array([sorted(set(ids))], pa.string())
    return put(store, key, pa.table([column], schema=_SCHEMA))


def read_ids(store: ObjectStore, key: str, sha256: str | None = None) -> frozenset[str]:
    """The ids of a file. Raises CorruptFile if it is missing, unreadable or does not have the given SHA-256."""
    return frozenset(name for part in read_id_parts(store, key, sha256) for name in part.to_pylist())


def read_id_parts(store: ObjectStore, key: str, sha256: str | None = None) -> Iterator[pa.StringArray]:
    """Yields the ids of a file, a few at a time. Raises CorruptFile as `read_ids` does."""
    data = get(store, key, sha256)
    for batch in decode_parts(_SCHEMA, data, key, "ids"):
        yield batch.column("id")


def count_ids(store: ObjectStore, key: str, sha256: str | None = None) -> int:
    """Number of ids in a file, by its footer. Raises CorruptFile as `read_ids` does, except for damaged pages."""
    return count(get(store, key, sha256), key, "ids")


_SMALL = 65_536
"""Ids (2 MB) that a run may write beside an earlier file with the others; for a large file, 1/32 of its ids."""
_SMALL_PART = 32
_IDS_OF_FILE = pa.field("ids_of_file", pa.int64())
_OWN_FILE = pa.schema([pa.field("id", pa.string(), nullable=False), _IDS_OF_FILE])
"""Ids that were read. In the row that names the earlier file, `id` is its SHA-256 and `ids_of_file` its number of
ids. That column is null for ids. Files of earlier versions hold all ids and lack it."""


@dataclass(frozen=True, slots=True)
class StoredIds:
    """Reference to the ids of ranges and metaranges that a run's attempt and its base runs have read.

    An id is a hash of the content, so no run needs to read a range again. Many ids are in two files. The run's own file
    has the ids read since the last compaction, and the SHA-256 of an earlier file with all others. A run copies the
    earlier file from its base run and writes its own. When the newer ids are no longer few, it compacts both into one.
    So each run's folder holds all its ids, and the folders of earlier runs can be deleted.

    Attributes:
        sha256: SHA-256 of the run's own file; None accepts any content.
    """

    run_id: str
    attempt: str
    sha256: str | None = None

    @property
    def key(self) -> str:
        """Key of the run's own file."""
        return f"{run_folder.frame(self.run_id, 'committed_df')}read-{self.attempt}.parquet"

    @property
    def earlier_key(self) -> str:
        """Key of the earlier file, if there is one."""
        return f"{run_folder.frame(self.run_id, 'committed_df')}read-earlier-{self.attempt}.parquet"


@dataclass(frozen=True, slots=True)
class _EarlierFile:
    sha256: str
    ids: int


def write_run_ids(store: ObjectStore, run_id: str, attempt: str, ids: Iterable[str]) -> str:
    """Stores the ids that an attempt's commits step and its base runs have read; returns the file's SHA-256."""
    whole, stored = IdSet.from_ids(ids), StoredIds(run_id, attempt)
    if len(whole) <= _SMALL:
        return _put_run_ids(store, stored, whole)
    sha256 = write_ids(store, stored.earlier_key, whole)
    return _put_run_ids(store, stored, IdSet(), _EarlierFile(sha256, len(whole)))


def add_run_ids(
    store: ObjectStore, run_id: str, attempt: str, new: Iterable[str], known: Set[str], known_from: StoredIds
) -> str:
    """Stores ids that an attempt's commits step has read, beside those of its base run; returns the file's SHA-256.

    Args:
        known: result of `read_run_ids` for `known_from`.
    Raises:
        CorruptFile: the file of that run has changed since it was read.
    """
    since, earlier = _read_own(store, known_from)
    since |= IdSet.from_ids(new) - known
    stored = StoredIds(run_id, attempt)
    few = max(_SMALL, earlier.ids // _SMALL_PART if earlier else 0)
    if len(since) <= few and (earlier is None or _copied(store, known_from.earlier_key, stored.earlier_key)):
        return _put_run_ids(store, stored, since, earlier)
    return write_run_ids(store, run_id, attempt, known | since)


def _copied(store: ObjectStore, source: str, target: str) -> bool:
    """True if the store could copy the file. A file system may lack hard links."""
    try:
        store.copy(source, target)
    except StorageError:
        return False
    return True


def read_run_ids(store: ObjectStore, run_id: str, attempt: str, sha256: str | None = None) -> Set[str]:
    """The ids that an attempt's commits step and its base runs have read. Raises CorruptFile."""
    stored = StoredIds(run_id, attempt, sha256)
    since, earlier = _read_own(store, stored)
    if earlier is None:
        return since
    others = IdSet.of_columns(read_id_parts(store, stored.earlier_key, earlier.sha256))
    return others | since if since else others


def count_run_ids(store: ObjectStore, run_id: str, attempt: str, sha256: str) -> int:
    """Number of ids in `read_run_ids`, counted by the footer. Raises CorruptFile if a file is missing or changed."""
    stored = StoredIds(run_id, attempt, sha256)
    since, earlier = _read_own(store, stored)
    return len(since) + (count_ids(store, stored.earlier_key, earlier.sha256) if earlier else 0)


def _put_run_ids(store: ObjectStore, stored: StoredIds, since: IdSet, earlier: _EarlierFile | None = None) -> str:
    """Stores a run's own file; returns its SHA-256."""
    names, numbers = since.column().chunks, [pa.nulls(len(since), pa.int64())]
    if earlier:
        names, numbers = [*names, pa.array([earlier.sha256])], [*numbers, pa.array([earlier.ids], pa.int64())]
    columns = [pa.chunked_array(names, pa.string()), pa.chunked_array(numbers, pa.int64())]
    return put(store, stored.key, pa.table(columns, schema=_OWN_FILE))


def _read_own(store: ObjectStore, stored: StoredIds) -> tuple[IdSet, _EarlierFile | None]:
    """The ids in a run's own file, and the earlier file that it names. Raises CorruptFile."""
    named: list[_EarlierFile] = []

    def ids() -> Iterator[pa.StringArray]:
        data = get(store, stored.key, stored.sha256)
        for batch in decode_parts(_OWN_FILE, data, stored.key, "ids", added=[_IDS_OF_FILE.name]):
            names, numbers = batch.columns
            files = pc.is_valid(numbers)
            rows = zip(names.filter(files).to_pylist(), numbers.filter(files).to_pylist(), strict=True)
            named.extend(_EarlierFile(*row) for row in rows)
            yield names.filter(pc.invert(files))

    since = IdSet.of_columns(ids())
    if len(named) > 1:
        raise CorruptFile(stored.key, "ids", f"it names {len(named)} earlier files, but there can be only one")
    return since, next(iter(named), None)
