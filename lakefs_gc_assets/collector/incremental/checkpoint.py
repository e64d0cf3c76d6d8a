"""The checkpoint: what a run leaves to the next one, so that this one looks only at what may be new.

- *sealed* slices: nothing is written to them any more. The set is stored and only grows; it is never computed anew
  from a time, since a slice may appear late.
- *read*: ids of the ranges and metaranges whose addresses are known. Identity says what is new, never a date, because
  clients choose the dates of commits.
- *pending* objects: everything in sealed slices, or in no slice, that neither a commit holds nor this run deleted. They
  are staged, too young, could not be deleted, or were kept at the recheck. The next run decides about them again.
- *committed*: addresses of commits outside of sealed slices, where the next run lists.

The next run's universe is the listing of the slices that are not sealed, and the pending objects; what is committed is
what the checkpoint holds, and the ranges not yet read. Nothing outside of this universe can have become garbage unless
it came into a sealed slice late (a very long upload), and that waits for the next clean run.

By retention rules, what was live may have expired. So *tracked* ranges, those that were live at the mark, stand in
place of what was read and what is committed: the next run reads all that is live, and adds to its universe what tracked
ranges held that are live no more.
"""

import hashlib
from collections.abc import Iterable, Sequence, Set
from datetime import datetime, timedelta
from functools import partial

from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame import files as frame_files
from lakefs_gc_assets.collector.frame.kinds import CHECKPOINT_COMMITTED_DF, PENDING_DF
from lakefs_gc_assets.collector.frame.manifest import FrameFile, Manifest
from lakefs_gc_assets.collector.incremental import base_checkpoint, ranges_read
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.stored import ids, run_folder
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.lakefs.layout import SLICE_SPAN_SECONDS
from lakefs_gc_assets.storage.interface import ObjectStore, fetch

_FILES_AT_ONCE = 4
"""Files of frames in memory at one time, of at most some 32 MiB each."""


def sealed(before: frozenset[str], listed: Iterable[str], cutoff: datetime, skew: timedelta) -> frozenset[str]:
    """The slices that are sealed after a run: those sealed before, and those listed now that are no longer written to.

    A server writes to a slice for an hour by its own clock, which may be wrong by the skew.

    Args:
        cutoff: of the run, UTC.
    """
    limit = (cutoff - skew).timestamp() - SLICE_SPAN_SECONDS
    return before | {name for name in listed if xids.created_at(name) < limit}


def write_sealed(store: ObjectStore, run_id: str, attempt: str, slices: frozenset[str]) -> str:
    """Stores the sealed slices; returns the file's SHA-256."""
    return ids.write(store, _sealed_key(run_id, attempt), slices)


def read_sealed(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> frozenset[str]:
    """The sealed slices that a run left. Raises CorruptFile."""
    return ids.read(store, _sealed_key(run_id, checkpoint.attempt), checkpoint.sealed_sha256)


def count_ids(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> int:
    """How many ids `read_ids` gives, or ranges `read_tracked`, for less.

    Raises CorruptFile where their file is gone, or is another one.
    """
    if checkpoint.tracked_sha256 is not None:
        return base_checkpoint.count(store, run_id, checkpoint.attempt, checkpoint.tracked_sha256)
    return ranges_read.count(store, run_id, checkpoint.attempt, checkpoint.read_sha256)


def read_ids(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> Set[str]:
    """The ids of ranges and metaranges whose addresses are known for good: none by rules. Raises CorruptFile."""
    if checkpoint.tracked_sha256 is not None:
        return IdSet()
    return ranges_read.read(store, run_id, checkpoint.attempt, checkpoint.read_sha256)


def read_tracked(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> RangeRecords:
    """The tracked ranges. Raises CorruptFile, also where none are."""
    if checkpoint.tracked_sha256 is None:
        raise CorruptFile(run_folder.report(run_id), "checkpoint", "it is of a run that tracked no ranges")
    return base_checkpoint.read(store, run_id, checkpoint.attempt, checkpoint.tracked_sha256)


def require_frames(store: ObjectStore, run_id: str, checkpoint: Checkpoint) -> tuple[FrameFile, ...]:
    """Returns the files of the frames that a run left; they are not read.

    Raises CorruptFile where the manifest of a frame is gone, or is another one.
    """
    frames = [(PENDING_DF, checkpoint.pending_digest)]
    if checkpoint.tracked_sha256 is None:
        frames.append((CHECKPOINT_COMMITTED_DF, checkpoint.committed_digest))
    found: list[FrameFile] = []
    for frame, digest in frames:
        key = run_folder.manifest(run_id, frame.name)
        manifest = fetch(store, key)
        if hashlib.sha256(manifest).hexdigest() != digest:
            raise CorruptFile(key, "digest", "the frame is not the one that the report names")
        found += Manifest.from_json(manifest, key, frame).files
    return tuple(found)


def require_files(store: ObjectStore, files: Sequence[FrameFile]) -> None:
    """Reads files of frames, some at once. Raises CorruptFile where one is not what was written."""
    for _ in work_ahead(partial(frame_files.read_unchanged, store), files, _FILES_AT_ONCE):
        pass


def write_listed_slices(store: ObjectStore, run_id: str, attempt: str, slices: Iterable[str]) -> str:
    """Stores which slices an attempt listed; returns the file's SHA-256."""
    return ids.write(store, _listed_key(run_id, attempt), slices)


def read_listed_slices(store: ObjectStore, run_id: str, attempt: str) -> frozenset[str]:
    """Which slices an attempt listed. Raises CorruptFile."""
    return ids.read(store, _listed_key(run_id, attempt))


def _sealed_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.folder(run_id)}sealed-{attempt}.parquet"


def _listed_key(run_id: str, attempt: str) -> str:
    return f"{run_folder.frame(run_id, 'store_df')}slices-{attempt}.parquet"
