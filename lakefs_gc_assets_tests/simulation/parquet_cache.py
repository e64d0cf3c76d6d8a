"""Parquet in a simulation, for speed alone: files are encoded plainly, and what was written is known without decoding.

The first file of each schema is decoded all the same, and must hold what was written. What nobody wrote here, such as a
damaged file, is decoded by Arrow.
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
"""Schemas whose rows were found to be read as they were written."""


@dataclass
class ParquetMemory:
    """What files hold, by their bytes."""

    tables: dict[bytes, pa.Table] = field(default_factory=dict)
    files: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def patches(self) -> dict[str, Callable[..., object]]:
        """What stands in for functions and classes of `pyarrow.parquet`, by name."""
        return {
            "ParquetWriter": self._writer,
            "ParquetFile": self._file,
            "write_table": lambda table, where, **options: where.write(self.encode(table)),
            "read_table": lambda source: _RememberedFile(self, source, {}).read(),
        }

    def _writer(self, where: BinaryIO, schema: pa.Schema, **options: Any) -> Any:
        if "store_schema" in options:
            # Who writes facts asks where each row group ends.
            return _Writer(where, schema, **options)
        return _RememberingWriter(self, where, schema)

    def _file(self, source: BinaryIO, **options: Any) -> Any:
        data = source.read()
        if data in self.tables:
            return _RememberedFile(self, io.BytesIO(data), options)
        return _File(pa.BufferReader(data), **options)

    def encode(self, table: pa.Table) -> bytes:
        """A table as a file."""
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
        """What a file holds. Raises what Arrow raises where it cannot be read."""
        if data not in self.tables:
            self.tables[data] = _File(pa.BufferReader(data), **options).read(use_threads=False)
        return self.tables[data]


class _RememberingWriter:
    """Stands in for `pq.ParquetWriter`; the file is written when it is closed."""

    def __init__(self, memory: ParquetMemory, where: BinaryIO, schema: pa.Schema) -> None:
        self._memory, self._where, self._schema = memory, where, schema
        self._rows: list[pa.Table] = []

    def write_table(self, rows: pa.Table) -> None:
        self._rows.append(rows)

    def close(self) -> None:
        self._where.write(self._memory.encode(pa.concat_tables(self._rows or [self._schema.empty_table()])))


@dataclass(frozen=True)
class _Metadata:
    """What a footer says."""

    num_rows: int


class _RememberedFile:
    """Stands in for `pq.ParquetFile`, with all rows in one row group."""

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
