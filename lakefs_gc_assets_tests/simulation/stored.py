"""What runs have stored, read past all collectors: no call is counted, and nothing is remembered of it."""

from collections.abc import Sequence
from typing import Any

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import FRAMES, Frame
from lakefs_gc_assets.collector.frame.manifest import FrameFile
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.storage.interface import ObjectStore

Row = dict[str, Any]


def exists(store: ObjectStore, run_id: str, name: str) -> bool:
    """Whether a run has stored a frame."""
    try:
        manifests.read(store, run_id, FRAMES[name])
    except CollectionError:
        return False
    return True


def rows_of_files(store: ObjectStore, frame: Frame[Any], written: Sequence[FrameFile]) -> list[Row]:
    """The rows of files of a frame."""
    found: list[Row] = files.preview(store, written, frame.schema, sum(file.rows for file in written)).to_pylist()
    return found


def stored_rows(store: ObjectStore, run_id: str, name: str) -> list[Row]:
    """The rows of a frame."""
    return rows_of_files(store, FRAMES[name], manifests.read(store, run_id, FRAMES[name]).files)


def addresses(store: ObjectStore, run_id: str, name: str) -> frozenset[str]:
    """The addresses of a frame; none where the run has not stored it."""
    if not exists(store, run_id, name):
        return frozenset()
    return frozenset(row["address"] for row in stored_rows(store, run_id, name))
