"""Files that runs have stored, read past all collectors: no call is counted or cached."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, FRAMES, Frame
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.storage.interface import ObjectStore

Row = dict[str, Any]


def exists(store: ObjectStore, run_id: str, name: str) -> bool:
    """True if a run has stored a frame."""
    return _manifest(store, run_id, name) is not None


def table_of_files(store: ObjectStore, frame: Frame[Any], written: Sequence[FrameFile]) -> pa.Table:
    """The rows of files of a frame."""
    tables = (files.read_file(store, file, frame.schema, added=frame.added) for file in written)
    return pa.concat_tables([nullable(frame.schema).empty_table(), *tables])


def stored_rows(store: ObjectStore, run_id: str, name: str) -> list[Row]:
    """The rows of a stored frame."""
    stored = table_of_files(store, FRAMES[name], files.read_manifest(store, run_id, FRAMES[name]).files)
    found: list[Row] = stored.to_pylist()
    return found


def addresses(store: ObjectStore, run_id: str, name: str) -> frozenset[str]:
    """The addresses of a frame; none if the run has not stored it."""
    manifest = _manifest(store, run_id, name)
    if manifest is None:
        return frozenset()
    return addresses_of_files(store, FRAMES[name], manifest.files)


def addresses_of_files(store: ObjectStore, frame: Frame[Any], written: Sequence[FrameFile]) -> frozenset[str]:
    """The addresses in files of a frame."""
    return frozenset(table_of_files(store, frame, written).column("address").to_pylist())


def heads_marked(store: ObjectStore, run_id: str) -> int:
    """Number of branches in a run's figures whose commit is not empty."""
    return len(files.read_manifest(store, run_id, COMMITTED_DF).figures.heads)


def _manifest(store: ObjectStore, run_id: str, name: str) -> Manifest[Any] | None:
    try:
        return files.read_manifest(store, run_id, FRAMES[name])
    except CollectionError:
        return None
