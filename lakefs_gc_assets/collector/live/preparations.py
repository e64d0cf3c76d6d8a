"""The files that the server wrote when our runs made it prepare uncommitted data; nobody reads them once a run ended.

A server never removes them. Which files are ours is stated by the run that asked for them: by its manifest of
`uncommitted_df`, by its report, and by notes in its folder, which also name the preparations of its rechecks. Notes in
a folder of their own name what `explain` asked for. Files of anybody else's preparations lie in the same folder, and
stay.
"""

import json
from collections.abc import Collection, Iterable, Sequence

from lakefs_gc_assets.collector.frame.frames import UNCOMMITTED_DF
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.stored import records_json, run_folder
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there
from lakefs_gc_assets.storage.objects import delete_all, keys_below

_NOTES = "preparations/"
_WITHOUT_RUN = f"{run_folder.ROOT}explained/"
"""Folder of notes about preparations that a question asked for, and no run."""


def notes(run_id: str) -> str:
    """Folder of a run's notes, with a trailing slash."""
    return f"{run_folder.folder(run_id)}{_NOTES}"


def note(store: ObjectStore, run_id: str, server_run_ids: Iterable[str]) -> None:
    """Writes down that a run made the server prepare under these ids; to be called right after each preparation."""
    for server_run_id in server_run_ids:
        if layout.is_xid(server_run_id):
            store.put(notes(run_id) + server_run_id, b"")


def note_without_run(store: ObjectStore, server_run_ids: Iterable[str]) -> None:
    """Writes down that a question, and no run, made the server prepare under these ids. Raises StorageError."""
    for server_run_id in server_run_ids:
        if layout.is_xid(server_run_id):
            store.put(_WITHOUT_RUN + server_run_id, b"")


def noted_without_run(store: ObjectStore) -> list[str]:
    """The ids that no run but a question asked for, newest first."""
    names = (key.removeprefix(_WITHOUT_RUN) for key in keys_below(store, _WITHOUT_RUN))
    return sorted(name for name in names if layout.is_xid(name))


def remove_without_run(store: ObjectStore, server_run_id: str) -> int:
    """Deletes the files of a preparation that a question asked for, and then its note; returns how many.

    Raises StorageError where one could not be deleted.
    """
    return remove(store, server_run_id) + delete_all(store, [_WITHOUT_RUN + server_run_id])


def noted(store: ObjectStore, run_id: str) -> list[str]:
    """The ids that a run's notes name."""
    folder = notes(run_id)
    return sorted(key.removeprefix(folder) for key in keys_below(store, folder))


def forget(store: ObjectStore, run_id: str) -> int:
    """Deletes a run's notes, once what they name is gone; returns how many. Raises StorageError."""
    return delete_all(store, [notes(run_id) + server_run_id for server_run_id in noted(store, run_id)])


def of_run(store: ObjectStore, run_id: str, entries: Collection[str]) -> frozenset[str]:
    """The ids under which the server prepared for a run. What cannot be read names none.

    Args:
        entries: keys of the objects and folders directly in the run's folder.
    """
    ids: list[object] = []
    if run_folder.frame(run_id, UNCOMMITTED_DF.name) in entries:
        ids += _by_manifest(store, run_folder.manifest(run_id, UNCOMMITTED_DF.name))
    try:
        report = reports.read(store, run_id)
    except CorruptFile:
        report = None
    if report is not None:
        ids += report.server_run_ids
    if notes(run_id) in entries:
        ids += noted(store, run_id)
    return frozenset(name for name in ids if isinstance(name, str) and layout.is_xid(name))


def _by_manifest(store: ObjectStore, key: str) -> Sequence[object]:
    data = get_if_there(store, key)
    if data is None:
        return ()
    try:
        content = json.loads(data)
        records_json.require_digest(content)
        ids = content["figures"]["server_run_ids"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()
    return ids if isinstance(ids, list) else ()


def remove(store: ObjectStore, server_run_id: str) -> int:
    """Deletes the files of a preparation, and nothing else beside them; returns how many.

    Raises StorageError where one could not be deleted.
    """
    if not layout.is_xid(server_run_id) or run_folder.has_plan(store, server_run_id):
        return 0
    folder = f"{run_folder.folder(server_run_id)}uncommitted/"
    return delete_all(store, [key for key in keys_below(store, folder) if layout.is_xid(key.removeprefix(folder))])
