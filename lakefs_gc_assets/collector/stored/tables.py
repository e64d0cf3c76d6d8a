"""Small tables as parquet files in the store: their pages have checksums, and only what was written is read back."""

import hashlib
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

_ROWS_OF_A_PART = 65_536
_MAX_MEMORY = 2 << 30
"""Bytes of rows that are read into memory."""
_ROWS_AT_ONCE = 2_048
"""Rows that are read before their memory is counted. Writers repeat texts of up to 1 MiB, so that these need 2 GiB."""


def encode(table: pa.Table, ascending: Sequence[str] = ()) -> bytes:
    """A table as a file.

    Args:
        ascending: paths of columns of integers that hardly ever go down, which are stored as differences.
    """
    buffer = io.BytesIO()
    differences = {"use_dictionary": False, "column_encoding": dict.fromkeys(ascending, "DELTA_BINARY_PACKED")}
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True, **(differences if ascending else {}))
    return buffer.getvalue()


def put(store: ObjectStore, key: str, table: pa.Table) -> str:
    """Stores a table as one file; returns its SHA-256, which names this very content."""
    data = encode(table)
    store.put(key, data)
    return hashlib.sha256(data).hexdigest()


def get(store: ObjectStore, key: str, sha256: str | None = None) -> bytes:
    """The file of a table. Raises CorruptFile where it is missing or, given its SHA-256, another one."""
    data = fetch(store, key)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptFile(key, "checksum", "the file was changed after it was written")
    return data


def decode_parts(
    schema: pa.Schema, data: bytes, file: str, what: str, added: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Reads a table that `encode` wrote, some rows at a time, so that they need not all be in memory.

    Args and errors are those of `decode`; damage is found at the latest with the last rows.
    """
    with opened(data, file, what) as stored:
        # A file without rows has no batch that could be compared with the schema.
        if stored.schema_arrow.names not in (schema.names, [name for name in schema.names if name not in added]):
            raise ValueError(f"it has the columns {', '.join(stored.schema_arrow.names)}")
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
    """Reads a table that `encode` wrote, with exactly the columns of the schema. Raises CorruptFile(file, what, …).

    Args:
        added: the last columns, where files of earlier versions have none of them: null there.
        groups: the row groups that are read; None for all.
    """
    with opened(data, file, what) as stored:
        table = _declared(read_rows(stored, groups=groups), schema, added)
        if groups is None:
            _compare_with_footer(table.num_rows, stored)
        return table


def count(data: bytes, file: str, what: str) -> int:
    """The number of rows that `encode` wrote, by the footer. Raises CorruptFile(file, what, …) without one."""
    with opened(data, file, what) as stored:
        return int(stored.metadata.num_rows)


@contextmanager
def opened(data: bytes | bytearray, file: str, what: str) -> Iterator[pq.ParquetFile]:
    """A file as parquet. Raises CorruptFile(file, what, …) for whatever is found wrong with it until the exit."""
    try:
        yield pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(file, what, f"cannot be read: {error}") from None


def read_rows(
    stored: pq.ParquetFile, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> pa.Table:
    """Reads rows into memory, and stops beyond 2 GiB: a file of some kilobytes can hold that many.

    Args:
        columns: names of the columns; None for all.
        groups: the row groups; None for all.

    Raises:
        ValueError: the rows need more memory.
        pa.ArrowException, OSError: the file cannot be read.
    """
    # No footer says how many rows are one part: one that says too few would lose the others.
    parts = list(_read_parts(stored, sys.maxsize, columns, groups))
    return parts[0] if parts else stored.read_row_groups([], columns, use_threads=False)


def _read_parts(
    stored: pq.ParquetFile, rows: int, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Reads rows in parts of so many, and a rest; nothing where there are none. See `read_rows`."""
    batches: list[pa.RecordBatch] = []
    count = needed = 0
    chosen = range(stored.num_row_groups) if groups is None else groups
    at_once = max(1, min(rows, _ROWS_AT_ONCE))
    # Threads that read other columns outlive a failed read, and can crash the process.
    for batch in stored.iter_batches(at_once, row_groups=list(chosen), columns=columns, use_threads=False):
        count += batch.num_rows
        needed += sum(map(_memory_of, batch.columns))
        if needed > _MAX_MEMORY:
            raise ValueError(
                f"its rows need over {_MAX_MEMORY >> 20:,} MiB of memory: the program writes smaller files"
            )
        batches.append(batch)
        if count >= rows:
            yield pa.Table.from_batches(batches)
            batches, count, needed = [], 0, 0
    if batches:
        yield pa.Table.from_batches(batches)


def _memory_of(array: pa.Array) -> int:
    """Bytes of an array; of one that stores repeated texts once, of the texts without that."""
    if pa.types.is_dictionary(array.type):
        return int(pc.sum(pc.binary_length(array.dictionary).take(array.indices), min_count=0).as_py())
    return int(array.nbytes)


def _compare_with_footer(rows: int, stored: pq.ParquetFile) -> None:
    """Raises ValueError where a file gives other than the rows that its footer says."""
    if rows != stored.metadata.num_rows:
        raise ValueError(f"{rows} rows, its footer says {stored.metadata.num_rows}")


def _declared(rows: pa.Table, schema: pa.Schema, added: Sequence[str]) -> pa.Table:
    """The rows as a table of the schema. Raises ArrowException or ValueError where they are none."""
    if not set(added).intersection(rows.column_names):
        for name in added:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    table = rows.cast(schema)
    table.validate(full=True)
    nulls = [column.name for column in schema if not column.nullable and table.column(column.name).null_count]
    if nulls:
        raise ValueError(f"{nulls[0]} is null")
    return table
