"""Parquet in a simulation, for speed alone: files are encoded plainly, and written rows are reused without decoding.

The first file of each schema is decoded to check that it keeps its rows. Arrow decodes all other bytes, such as a
damaged file.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

_Writer, _File = pq.ParquetWriter, pq.ParquetFile
_PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}
_proven: set[pa.Schema] = set()
"""Schemas proven to keep their rows when written and read."""


@dataclass
class ParquetMemory:
    """Contents of files, by their bytes."""

    tables: dict[bytes, pa.Table] = field(default_factory=dict)
    files: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def patches(self) -> dict[str, Callable[..., object]]:
        """Replacements for functions and classes of `pyarrow.parquet`, by name."""
        return {
            "ParquetWriter": self._writer,
            "ParquetFile": self._file,
            "write_table": lambda table, where, **options: where.write(self.encode(table)),
            "read_table": lambda source: _RememberedFile(self, source, {}).read(),
        }

    def _writer(self, where: BinaryIO, schema: pa.Schema, **options: Any) -> Any:
        if "store_schema" in options:
            # Writers of facts need the end of each row group.
            return _Writer(where, schema, **options)
        return _RememberingWriter(self, where, schema)

    def _file(self, source: BinaryIO, **options: Any) -> Any:
        data = source.read()
        if data in self.tables:
            return _RememberedFile(self, io.BytesIO(data), options)
        return _File(pa.BufferReader(data), **options)

    def encode(self, table: pa.Table) -> bytes:
        """Encodes a table as a file."""
        table = table.combine_chunks()
        content = (*table.schema.names, *(batch.serialize().to_pybytes() for batch in table.to_batches()))
        if content not in self.files:
            self.files[content] = self._encode(table)
        return self.files[content]

    def _encode(self, table: pa.Table) -> bytes:
        buffer = io.BytesIO()
        with _Writer(buffer, table.schema, **_PLAIN) as writer:
            writer.write_table(table)
        data = buffer.getvalue()
        if table.schema not in _proven:
            if not self.decode(data, {}).equals(table):
                raise AssertionError(f"parquet does not keep rows of {table.schema}")
            _proven.add(table.schema)
        self.tables[data] = table
        return data

    def decode(self, data: bytes, options: dict[str, Any]) -> pa.Table:
        """Decodes a file. Raises Arrow's errors if it cannot be read."""
        if data not in self.tables:
            self.tables[data] = _File(pa.BufferReader(data), **options).read(use_threads=False)
        return self.tables[data]


class _RememberingWriter:
    """Replaces `pq.ParquetWriter`; writes the file when it is closed."""

    def __init__(self, memory: ParquetMemory, where: BinaryIO, schema: pa.Schema) -> None:
        self._memory, self._where, self._schema = memory, where, schema
        self._rows: list[pa.Table] = []

    def write_table(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def close(self) -> None:
        self._where.write(self._memory.encode(pa.concat_tables(self._rows or [self._schema.empty_table()])))


@dataclass(frozen=True)
class _Metadata:
    """Facts of a footer."""

    num_rows: int


class _RememberedFile:
    """Replaces `pq.ParquetFile`, with all rows in one row group."""

    num_row_groups = 1

    def __init__(self, memory: ParquetMemory, source: BinaryIO, options: dict[str, Any]) -> None:
        self._table = memory.decode(source.read(), options)
        self.schema_arrow = self._table.schema
        self.metadata = _Metadata(self._table.num_rows)

    def read(self, columns: Sequence[str] | None = None, use_threads: bool = False) -> pa.Table:
        return self._table if columns is None else self._table.select(list(columns))

    def read_row_groups(
        self, row_groups: Sequence[int], columns: Sequence[str] | None = None, use_threads: bool = False
    ) -> pa.Table:
        return self.read(columns) if row_groups else self.read(columns).slice(0, 0)

    def iter_batches(
        self,
        batch_size: int,
        row_groups: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
        use_threads: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        return iter(self.read(columns).to_batches(max_chunksize=batch_size))
