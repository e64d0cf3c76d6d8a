"""The simulated collector with its frames as files in the bucket, written and read by the product's own code.

What Spark's tasks do with a frame happens in one piece; the figures of a frame stay in memory.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import cast
from unittest import mock

import pyarrow as pa

from lakefs_gc_assets.collection import carry, run_folder, tables
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.frames import files
from lakefs_gc_assets.frames import manifest as manifests
from lakefs_gc_assets.frames.files import FileWriter
from lakefs_gc_assets.frames.manifest import FrameFile, Manifest
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import plain
from lakefs_gc_assets_tests.simulation.collector import Run
from lakefs_gc_assets_tests.simulation.frames import Frame
from lakefs_gc_assets_tests.simulation.marking import SIGHTING_RUNS
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.stepping import STEPS, Killed

SCHEMAS: dict[str, pa.Schema] = {
    "store_df": tables.LISTED,
    "uncommitted_df": tables.LIVE,
    "committed_df": tables.LIVE,
    "candidates": tables.LISTED,
    "deleted_report": tables.RECEIPTS,
    "sightings": tables.SIGHTINGS,
    carry.OPEN: tables.LISTED,
    carry.COMMITTED: tables.LIVE,
}
Columns = tuple[tuple[object, ...], ...]


class _Taking:
    """A store that takes what is put."""

    def __init__(self) -> None:
        self.taken: dict[str, bytes] = {}

    def put(self, key: str, data: bytes) -> None:
        self.taken[key] = data


@lru_cache(maxsize=5_000)
def _encoded(name: str, columns: Columns) -> tuple[tuple[FrameFile, bytes], ...]:
    """The files of a frame, by the product's own writer; the same rows are encoded once in a process."""
    schema, store = files.nullable(SCHEMAS[name]), _Taking()
    writer = FileWriter(cast(ObjectStore, store), "", schema)
    # No random name of the play is used up by what is done only the first time.
    with mock.patch.object(uuid, "uuid4", return_value=uuid.UUID(int=0)):
        if columns[0]:
            arrays = [pa.array(values, column.type) for values, column in zip(columns, schema, strict=True)]
            writer.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return tuple((file, store.taken[file.key]) for file in writer.close())


_INPUTS = {
    "uncommitted_df": STEPS[:1],
    "committed_df": STEPS[1:2],
    "candidates": STEPS[:3],
    "deleted_report": STEPS[3:4],
}


@dataclass
class FiledRun(Run):
    """One run of one collector process.

    Attributes:
        completed: steps that Dagster takes for done, by run; it outlives processes as Dagster's own storage does.
        ended: is called when all is done, before Dagster knows.
    """

    completed: dict[str, list[str]] = field(kw_only=True)
    ended: Callable[[], None] = field(kw_only=True)
    _read: set[str] = field(default_factory=set)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A step with what the IO manager does before and after it."""
        completed = self.completed.setdefault(self.run_id, [])
        if name == STEPS[0]:
            completed.clear()
        self._read.clear()
        with self.between_steps(holds_lock=self.kept):
            for given in _INPUTS.get(name, ()):
                self.repository.api.repository()
                manifests.read(self.repository.store, self.run_id, given)
        with super().step(name):
            yield
        with self.between_steps(holds_lock=True):
            stored = manifests.read(self.repository.store, self.run_id, name)
            files.preview(self.repository.store, stored.files, SCHEMAS[name])
        if name == STEPS[-1]:
            self.ended()
        completed.append(name)

    def reach(self) -> None:
        self.repository.api.repository()

    @contextmanager
    def between_steps(self, *, holds_lock: bool) -> Iterator[None]:
        """As `failures.between_steps`."""
        try:
            yield
        except Killed:
            raise
        except BaseException as error:
            if holds_lock:
                self.end_between_steps(error)
            raise

    def store(
        self,
        name: str,
        rows: Sequence[Row],
        inputs: tuple[Frame, ...] = (),
        figures: Mapping[str, object] | None = None,
        started_at: datetime | None = None,
    ) -> Frame:
        written = self._write(name, rows)
        frame = self.made(name, rows, inputs, figures, started_at)
        digests = {given.span.frame: repr(given.span) for given in inputs}
        self._finish(name, frame, Manifest(frame.span, written, digests))
        return frame

    def store_everywhere(self, name: str, rows: Sequence[Row]) -> tuple[Manifest, str]:
        began = self.repository.clock.now()
        windowed = plain.in_windows(rows, self.plan.slice_window)
        written = self._write(name, windowed)
        frame = self.made(name, windowed, started_at=began)
        manifest = Manifest(frame.span, written)
        self._finish(name, frame, manifest)
        return manifest, manifest.digest

    def _write(self, name: str, rows: Sequence[Row]) -> tuple[FrameFile, ...]:
        windowed = plain.in_windows(rows, self.plan.slice_window)
        columns = tuple(tuple(row.get(column) for row in windowed) for column in SCHEMAS[name].names)
        written = []
        for file, data in _encoded(name, columns):
            folder = run_folder.frame(self.run_id, name)
            key = f"{folder}slice_window={file.slice_window}/part-{uuid.uuid4().hex}.parquet"
            self.repository.store.put(key, data)
            written.append(replace(file, key=key))
        return tuple(written)

    def _finish(self, name: str, frame: Frame, manifest: Manifest) -> None:
        """The frame exists with its manifest; what is kept in memory is found by its digest alone."""
        self.shelf[self.run_id, f"{name} {manifest.digest}"] = frame
        manifests.write(self.repository.store, manifest)
        self.shelf[self.run_id, name] = frame

    def stored(self, name: str) -> Frame:
        manifest = manifests.read(self.repository.store, self.run_id, name)
        self.shelf[self.run_id, name] = frame = self._of(manifest)
        return frame

    def carried(self, run_id: str, name: str, digest: str) -> tuple[Row, ...]:
        return self._of(manifests.read(self.repository.store, run_id, name)).rows

    def earlier_sightings(self, before: datetime) -> dict[str, datetime]:
        found = []
        for run_id in islice(run_folder.newest_runs(self.repository.store), SIGHTING_RUNS):
            try:
                manifest = manifests.read(self.repository.store, run_id, "sightings")
            except OrderViolation:
                continue
            if manifest.span.ended_at <= before and run_id != self.run_id:
                found.append(self._of(manifest).rows)
        return plain.first_sightings(found)

    def _of(self, manifest: Manifest) -> Frame:
        """A frame, its files read once in a step. Raises Violation where they hold something else than was written."""
        span = manifest.span
        frame = self.shelf[span.run_id, f"{span.frame} {manifest.digest}"]
        if manifest.digest not in self._read:
            self._read.add(manifest.digest)
            table = files.preview(self.repository.store, manifest.files, SCHEMAS[span.frame], max(manifest.rows, 1))
            found = sorted(table.column("address").to_pylist())
            if found != sorted(row["address"] for row in frame.rows):
                raise Violation(f"{span.frame} of run {span.run_id} is read as {len(found)} other rows")
        return frame
