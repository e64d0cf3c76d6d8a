"""A frame as stored: a run writes it once, and every later step reads what was stored."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import LOCAL_ROWS, Engine, R, nullable
from lakefs_gc_assets.collector.engine.work import spread_by_weight
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import F, Frame
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore


@dataclass(frozen=True)
class StoredFrame(Generic[F]):
    """A frame as stored. Reading it costs nothing until its rows are used."""

    frame: Frame[F]
    manifest: Manifest[F]
    opener: OpensStore

    @classmethod
    def from_run(cls, store: ObjectStore, opener: OpensStore, run_id: str, frame: Frame[F]) -> "StoredFrame[F]":
        """The frame of a run. Raises OrderViolation where it was not made, CorruptFile."""
        return cls(frame, manifests.read(store, run_id, frame), opener)

    @property
    def name(self) -> str:
        """Name of the frame, which is that of its asset where it has one."""
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
        """The rows with all columns or some; files are dealt out to tasks by their size.

        Args:
            damaged_files: is told of each file that cannot be read, whose rows are then left out; by default such a
                file ends the run. It may be called in a worker.
        """
        chosen = columns or tuple(self.frame.schema.names)
        read = files.reader(self.opener, self.frame.schema, chosen, self.frame.added, damaged_files)
        schema = nullable(pa.schema([self.frame.schema.field(name) for name in chosen]))
        if self.count <= LOCAL_ROWS:
            return engine.table(pa.Table.from_batches(read(self.manifest.files), schema))
        groups = spread_by_weight(self.manifest.files, engine.tasks, lambda file: file.bytes)
        return engine.read([[group] for group in groups], read, schema)

    def table(self) -> pa.Table:
        """All rows in this process: for frames that fit into memory."""
        return self.preview(self.count)

    def preview(self, rows: int = 20) -> pa.Table:
        """The first rows in this process."""
        return files.preview(self.opener.open(), self.manifest.files, self.frame.schema, rows, self.frame.added)
