"""A stored frame: its parquet files, on any object store, and its manifest.

The manifest names the files of a frame, the time when it was made, and its expected content. A frame exists once its
manifest does. Files that no manifest names, left by failed or repeated tasks, are never read. A run writes each frame
once, and every later step reads the stored frame.

The engine's tasks write and read files through our own interface of the store, so no connector jar is needed.
"""

import hashlib
import io
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, Engine, R, ReadItem, nullable
from lakefs_gc_assets.collector.engine.work import spread_by_weight, work_ahead
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS, F, Frame
from lakefs_gc_assets.collector.records import figures as declared
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.records_json import entries, read_time, require_digest, with_digest
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW
from lakefs_gc_assets.storage.interface import GivesObjects, ObjectStore, OpensStore, fetch, get_if_there, read_ahead


@dataclass(frozen=True, slots=True)
class Span:
    """Time span in which a frame was made, UTC, with its run and attempt.

    Attributes:
        waited_seconds: part of that time spent on protective waits; 0 in manifests of earlier versions.
    """

    frame: str
    run_id: str
    attempt: str
    started_at: datetime
    ended_at: datetime
    waited_seconds: float = 0.0

    @property
    def worked_seconds(self) -> float:
        """Seconds of work, without waits."""
        return max((self.ended_at - self.started_at).total_seconds() - self.waited_seconds, 0.0)


def require_same_attempt(*spans: Span) -> None:
    """Raises OrderViolation if frames belong to different runs or attempts."""
    first = spans[0]
    for other in spans[1:]:
        if (other.run_id, other.attempt) != (first.run_id, first.attempt):
            raise OrderViolation(
                f"{first.frame} is of run {first.run_id}, attempt {first.attempt}, but {other.frame} of run "
                f"{other.run_id}, attempt {other.attempt}. Materialize {other.frame} and the later assets again"
            )


def require_same_source(source: str, marked: str) -> None:
    """Raises OrderViolation if the commits of a recheck come from another source than those at the mark.

    A recheck skips the ranges and metaranges whose ids the mark has read. A listing of metadata files may show a
    metarange and lack a range that was written before it. Only another listing is sure to find that range.

    Args:
        source, marked: source of commits at the recheck and at the mark.
    """
    if source != marked:
        raise OrderViolation(f"commits come from the {source}, but at the mark from the {marked}: open a new run")


def require_safe_order(listing: Span, uncommitted: Span, committed: Span) -> None:
    """Raises OrderViolation unless listing, preparation and reading of commits followed each other in one attempt.

    An object that is uploaded, staged or committed while a collection runs must be seen by a later step at the latest.
    That holds if the listing ended before the preparation of uncommitted data began, and if the preparation ended
    before commits were read.
    """
    require_same_attempt(listing, uncommitted, committed)
    for earlier, later in ((listing, uncommitted), (uncommitted, committed)):
        if not earlier.started_at <= earlier.ended_at <= later.started_at <= later.ended_at:
            raise OrderViolation(
                f"{later.frame} began at {later.started_at:%F %T.%f}Z, before {earlier.frame} was complete at "
                f"{earlier.ended_at:%F %T.%f}Z, so it may lack live objects. Materialize {later.frame} and "
                "the later assets again"
            )


FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True)
class FrameFile:
    """One parquet file.

    Attributes:
        object_bytes: sum of the column `size`, if the frame has one.
        classes: objects and bytes by storage class, for rows that name one.
    """

    key: str
    slice_window: str
    rows: int
    bytes: int
    sha256: str
    object_bytes: int = 0
    classes: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Manifest(Generic[F]):
    """One stored frame.

    Attributes:
        span: the time, attempt and run in which it was made.
        inputs: manifest digests of the frames it was made from, by name.
        figures: figures that its step counted.
        stored_as: the exact bytes it was read from; None if it is not stored yet, or was changed since.
    """

    span: Span
    files: tuple[FrameFile, ...]
    figures: F
    inputs: Mapping[str, str] = field(default_factory=dict)
    stored_as: bytes | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def object_bytes(self) -> int:
        """Bytes of all objects in the rows."""
        return sum(file.object_bytes for file in self.files)

    @property
    def classes(self) -> dict[str, Amount]:
        """Objects and bytes by storage class, for rows that name one."""
        sums: dict[str, Amount] = {}
        for file in self.files:
            for name, amount in file.classes.items():
                sums[name] = sums.get(name, Amount()).plus(*amount)
        return sums

    def rows_by_window(self) -> dict[str, int]:
        """Rows by window; windows without rows are absent."""
        rows: dict[str, int] = {}
        for file in self.files:
            rows[file.slice_window] = rows.get(file.slice_window, 0) + file.rows
        return rows

    @property
    def digest(self) -> str:
        """SHA-256 of the stored manifest, which identifies this exact content of the frame."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """The manifest as it is stored."""
        if self.stored_as is not None:
            return self.stored_as
        content = {
            "format_version": FORMAT_VERSION,
            "span": self.span,
            "files": self.files,
            "inputs": dict(self.inputs),
            "figures": declared.manifest_entries(self.span.frame, vars(self.figures)),
        }
        return with_digest(content)

    @classmethod
    def from_json(cls, data: bytes, key: str, frame: Frame[F]) -> "Manifest[F]":
        """Reads a stored manifest. Raises CorruptFile if it is unreadable or belongs to another frame."""
        try:
            content = json.loads(data)
            if content["format_version"] != FORMAT_VERSION:
                raise CorruptFile(
                    key, "format version", f"{content['format_version']}, this program reads {FORMAT_VERSION}"
                )
            span: dict[str, Any] = content["span"]
            times: dict[str, datetime] = {name: read_time(span[name]) for name in ("started_at", "ended_at")}
            files = tuple(FrameFile(**file) for file in content["files"])
            require_digest(content)
            if span["frame"] != frame.name:
                raise ValueError(f"it is the manifest of another frame, {span['frame']}")
            stated = declared.manifest_entries(frame.name, content["figures"])
            figures = _reader(frame.name).validate_json(json.dumps(stated), strict=True)
            manifest = cls(Span(**{**span, **times}), files, figures, content["inputs"])
            # Not an argument of the constructor: `dataclasses.replace` must not keep the bytes of the old content.
            object.__setattr__(manifest, "stored_as", data)
            return manifest
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise CorruptFile(key, "manifest", f"cannot be read: {error}") from None


@cache
def _reader(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(FRAMES[name].figures)


def read_spans(store: ObjectStore, run_id: str, attempt: str) -> tuple[Span, ...]:
    """Time spans of the finished steps of an attempt, in order; unreadable manifests are skipped."""
    spans = []
    for step in STEPS:
        with suppress(OrderViolation, CorruptFile):
            spans.append(read_manifest(store, run_id, FRAMES[step]).span)
    return tuple(span for span in spans if span.attempt == attempt)


def write_manifest(store: ObjectStore, manifest: Manifest[Any]) -> None:
    """Stores a manifest, which makes its frame exist. Replaces one of an earlier attempt."""
    store.put(run_folder.manifest(manifest.span.run_id, manifest.span.frame), manifest.to_json())


def read_manifest(store: ObjectStore, run_id: str, frame: Frame[F]) -> Manifest[F]:
    """The stored manifest. Raises OrderViolation if the frame does not exist yet, CorruptFile."""
    key = run_folder.manifest(run_id, frame.name)
    data = get_if_there(store, key)
    if data is None:
        raise OrderViolation(f"{frame.name} of run {run_id} does not exist: materialize it first")
    return Manifest.from_json(data, key, frame)


T = TypeVar("T")
_SAMPLED_FILES = 5
"""Maximum files that a sample is taken from, if these have enough rows."""
_FILE_BYTES = 32 * 1024 * 1024
_ROWS_WAITING = 1 << 17
"""Rows that a task buffers before it writes them. Without a buffer, thousands of windows would each get row groups
of a few rows, which take several times the bytes and the time."""
_PUT_AT_ONCE = 8
"""Files that a task uploads at once. With thousands of windows a task writes thousands of files; one after another,
each would wait for the store's answer."""
WRITTEN = pa.schema([pa.field("file", pa.string(), nullable=False)])
"""Rows in which a task reports each file it wrote: a FrameFile as JSON."""


class FileWriter:
    """Collects a task's rows by window, and uploads a window's file when it is large enough."""

    def __init__(self, store: ObjectStore, folder: str, schema: pa.Schema) -> None:
        self._store, self._folder, self._schema = store, folder, schema
        self._open: dict[str, _OpenFile] = {}
        self._waiting = 0
        self.written: list[FrameFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows of any windows."""
        # The cast rejects nulls in columns that are not nullable.
        table = pa.Table.from_batches([batch]).select(self._schema.names).cast(self._schema)
        for window, rows in _by_window(table):
            self._open.setdefault(window, _OpenFile(self._schema)).add(rows)
        self._waiting += table.num_rows
        if self._waiting >= _ROWS_WAITING:
            for file in self._open.values():
                file.flush()
            self._waiting = 0
            self._put([window for window, file in self._open.items() if file.size >= _FILE_BYTES])

    def close(self) -> list[FrameFile]:
        """Uploads the remaining rows; returns every file written."""
        self._put([*self._open])
        return self.written

    def _put(self, windows: Sequence[str]) -> None:
        # Threads only upload: each thread that encodes parquet keeps some megabytes.
        self.written += work_ahead(self._put_file, map(self._finish, windows), _PUT_AT_ONCE)

    def _finish(self, window: str) -> tuple[FrameFile, bytes]:
        file = self._open.pop(window)
        data = file.finish()
        key = f"{self._folder}slice_window={window}/part-{uuid.uuid4().hex}.parquet"
        digest = hashlib.sha256(data).hexdigest()
        return FrameFile(key, window, file.rows, len(data), digest, file.object_bytes, file.classes), data

    def _put_file(self, finished: tuple[FrameFile, bytes]) -> FrameFile:
        file, data = finished
        self._store.put(file.key, data)
        return file


def _by_window(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yields the rows by window, in their order."""
    windows = table.column("slice_window").combine_chunks().dictionary_encode()
    names, numbers = windows.dictionary.to_pylist(), windows.indices.to_numpy()
    if len(names) > 1:
        # Sorted once: filtering rows by window would take one pass per window.
        order = np.argsort(numbers, kind="stable")
        table, numbers = table.take(order), numbers[order]
    bounds = np.searchsorted(numbers, np.arange(len(names) + 1)).tolist()
    for name, (start, end) in zip(names, pairwise(bounds), strict=True):
        yield name, table.slice(start, end - start)


class _OpenFile:
    def __init__(self, schema: pa.Schema) -> None:
        self._buffer = io.BytesIO()
        # Most values differ: a dictionary costs time and does not make files smaller.
        self._writer = pq.ParquetWriter(self._buffer, schema, compression="zstd", use_dictionary=False)
        self._waiting: list[pa.Table] = []
        self.rows = 0
        self.object_bytes = 0
        self.classes: dict[str, Amount] = {}

    @property
    def size(self) -> int:
        return self._buffer.tell()

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)

    def flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting = []
        self._writer.write_table(rows)
        self.rows += rows.num_rows
        if "size" in rows.column_names:
            self.object_bytes += pc.sum(rows.column("size")).as_py() or 0
        if "storage_class" in rows.column_names:
            groups = rows.group_by("storage_class", use_threads=False)
            for row in groups.aggregate([("size", "count"), ("size", "sum")]).to_pylist():
                if (name := row["storage_class"]) is not None:
                    self.classes[name] = self.classes.get(name, Amount()).plus(row["size_count"], row["size_sum"])

    def finish(self) -> bytes:
        self.flush()
        self._writer.close()
        return self._buffer.getvalue()


Placed = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Sets the column `slice_window` of a batch to the window that each row is stored in."""


def in_windows(batch: pa.RecordBatch, windows: Sequence[str]) -> pa.RecordBatch:
    """Moves rows outside of a run's windows to the window `other`."""
    position = batch.schema.get_field_index("slice_window")
    own = batch.column(position)
    chosen = pc.if_else(pc.is_in(own, value_set=pa.array(windows, pa.string())), own, OTHER_WINDOW)
    return batch.set_column(position, batch.schema.field(position), chosen)


def write_task(
    open_store: Callable[[], ObjectStore], folder: str, schema: pa.Schema, placed: Placed
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that stores a task's rows and yields one row (WRITTEN) per file."""

    def write_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = FileWriter(open_store(), folder, schema)
        for batch in batches:
            if batch.num_rows:
                writer.write(placed(batch))
        files = writer.close()
        if files:
            yield pa.record_batch([[json.dumps(entries(file)) for file in files]], schema=WRITTEN)

    return write_files


def frame_files(written: pa.Table) -> tuple[FrameFile, ...]:
    """The files that tasks reported (WRITTEN)."""
    return tuple(FrameFile(**json.loads(file)) for file in written.column("file").to_pylist())


def read_unchanged(store: GivesObjects, file: FrameFile) -> bytes:
    """The bytes of a frame's file. Raises CorruptFile if it is missing, or its size or SHA-256 differs."""
    data = fetch(store, file.key)
    if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise CorruptFile(file.key, "digest", "the frame's file was changed after it was written")
    return data


def read_file(
    store: GivesObjects,
    file: FrameFile,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    added: Sequence[str] = (),
) -> pa.Table:
    """One file of a frame, with all columns or some, all nullable.

    Args:
        added: columns that a file of an earlier version may lack: null there.
    Raises:
        CorruptFile: it is missing, was changed, or has other columns than the schema.
    """
    data = read_unchanged(store, file)
    try:
        # There are as many tasks as cores. A command that exits while Arrow starts its threads would abort. Arrow reads
        # a Python file ahead in a thread regardless of `use_threads`.
        parquet = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        stored = nullable(parquet.schema_arrow)
        there = frozenset(stored.names)
        chosen = None if columns is None else [name for name in columns if name in there]
        table = tables.read_rows(parquet, chosen)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFile(file.key, "parquet", f"cannot be read: {error}") from None
    if table.num_rows != file.rows:
        raise CorruptFile(file.key, "rows", f"it has {table.num_rows} rows, but its manifest says {file.rows}")
    wanted = nullable(schema)
    if stored != pa.schema([column for column in wanted if column.name in there or column.name not in added]):
        raise CorruptFile(file.key, "columns", f"{_columns(stored)}; the frame has {_columns(schema)}")
    names = columns or wanted.names
    arrays = [table.column(name) if name in there else pa.nulls(file.rows, wanted.field(name).type) for name in names]
    return pa.Table.from_arrays(arrays, schema=pa.schema([wanted.field(name) for name in names]))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def reader(
    opener: OpensStore,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    added: Sequence[str] = (),
    damaged: Callable[[CorruptFile], None] | None = None,
) -> Callable[[Sequence[FrameFile]], Iterator[pa.RecordBatch]]:
    """A function that reads a task's share of files and fetches the next ones ahead.

    Args:
        columns, added: as for `read_file`.
        damaged: called for each unreadable file, whose rows are then skipped; by default such a file is an error.
    """

    def read_frame(group: Sequence[FrameFile]) -> Iterator[pa.RecordBatch]:
        with read_ahead(opener.open(), ((file.key, file.bytes) for file in group)) as store:
            for file in group:
                try:
                    yield from read_file(store, file, schema, columns, added).to_batches()
                except CorruptFile as damage:
                    if damaged is None:
                        raise
                    damaged(damage)

    return read_frame


def rows_of_files(
    engine: Engine[R], files: Sequence[FrameFile], read: ReadItem[Sequence[FrameFile]], schema: pa.Schema
) -> R:
    """The rows that a function reads from files: in this process if they are few, otherwise in tasks."""
    if sum(file.rows for file in files) <= LOCAL_ROWS:
        return engine.table(pa.Table.from_batches(read(files), nullable(schema)))
    groups = spread_by_weight(files, engine.tasks, lambda file: file.bytes)
    return engine.read([[group] for group in groups], read, nullable(schema))


def sample(
    store: ObjectStore, files: Sequence[FrameFile], schema: pa.Schema, rows: int, added: Sequence[str] = ()
) -> pa.Table:
    """Rows of a frame from many slices, read from a few of its files.

    Args:
        added: columns that files of an earlier version lack.
    """
    smallest: dict[str, FrameFile] = {}
    for file in sorted(files, key=lambda file: (file.slice_window, file.bytes)):
        smallest.setdefault(file.slice_window, file)
    chosen = _spread([*smallest.values()], _SAMPLED_FILES)
    parts: list[pa.Table] = []
    for place, file in enumerate([*chosen, *(file for file in files if file not in chosen)]):
        if place >= len(chosen) and sum(part.num_rows for part in parts) >= rows:
            break
        parts.append(_spread_rows(read_file(store, file, schema, added=added), rows))
    return _spread_rows(pa.concat_tables(parts), rows) if parts else nullable(schema).empty_table()


def _spread_rows(table: pa.Table, rows: int) -> pa.Table:
    """Up to `rows` rows of a table: first one from each slice, then others at equal distances."""
    count = table.num_rows
    by = "slice" if "slice" in table.column_names else "slice_window"
    numbered = pa.table({"by": table.column(by), "at": np.arange(count)})
    first = sorted(numbered.group_by("by", use_threads=False).aggregate([("at", "min")]).column("at_min").to_pylist())
    places = dict.fromkeys([*_spread(first, rows), *_spread(range(count), rows), *range(min(count, rows))])
    return table.take(pa.array(sorted([*places][:rows]), pa.int64()))


def _spread(values: Sequence[T], most: int) -> list[T]:
    """Up to `most` values at equal distances, including the first and the last."""
    if len(values) <= most or most < 2:
        return [*values[:most]]
    return [values[place * (len(values) - 1) // (most - 1)] for place in range(most)]


@dataclass(frozen=True)
class StoredFrame(Generic[F]):
    """A stored frame. Its rows are read only when they are used."""

    frame: Frame[F]
    manifest: Manifest[F]
    opener: OpensStore

    @classmethod
    def from_run(cls, store: ObjectStore, opener: OpensStore, run_id: str, frame: Frame[F]) -> "StoredFrame[F]":
        """The frame of a run. Raises OrderViolation if it does not exist, CorruptFile."""
        return cls(frame, read_manifest(store, run_id, frame), opener)

    @property
    def name(self) -> str:
        """Name of the frame, and of its asset if it has one."""
        return self.frame.name

    @property
    def figures(self) -> F:
        """Figures that the step counted."""
        return self.manifest.figures

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.manifest.rows

    @property
    def uri(self) -> str:
        """Address of the frame in the object store."""
        return self.opener.namespace_uri + run_folder.frame(self.manifest.span.run_id, self.name)

    def rows(self, engine: Engine[R], *columns: str, damaged_files: Callable[[CorruptFile], None] | None = None) -> R:
        """The rows with all columns or some; files are distributed to tasks by size.

        Args:
            damaged_files: called for each unreadable file, whose rows are then skipped; by default such a file ends the
                run. It may be called in a worker.
        """
        chosen = columns or tuple(self.frame.schema.names)
        read = reader(self.opener, self.frame.schema, chosen, self.frame.added, damaged_files)
        schema = pa.schema([self.frame.schema.field(name) for name in chosen])
        return rows_of_files(engine, self.manifest.files, read, schema)

    def tables(self) -> Iterator[pa.Table]:
        """The rows file by file, in this process. Raises CorruptFile, StorageError."""
        store = self.opener.open()
        for file in self.manifest.files:
            yield read_file(store, file, self.frame.schema, added=self.frame.added)

    def table(self) -> pa.Table:
        """All rows in this process: for frames that fit into memory."""
        tables = [*self.tables()]
        return pa.concat_tables(tables) if tables else nullable(self.frame.schema).empty_table()

    def sample(self, rows: int) -> pa.Table:
        """Some rows in this process, from many slices."""
        return sample(self.opener.open(), self.manifest.files, self.frame.schema, rows, self.frame.added)
