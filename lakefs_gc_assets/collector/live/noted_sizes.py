"""Takes over the noted sizes of ranges from the base run, and selects by them the ranges that have to be read."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.live import range_notes, range_sizes
from lakefs_gc_assets.collector.live.range_notes import NotesFile, NotesFolder
from lakefs_gc_assets.collector.live.range_sizes import LOOKED_UP, SIZES
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.work import spread_by_weight
from lakefs_gc_assets.storage.opening import StoreOpener

_VALUES_READ_HERE = 8_000_000
"""So many values are looked at by this process: that takes less time than for tasks to begin."""


def folder_of(step: Step[R]) -> NotesFolder:
    """The folder in which a run notes the sizes of ranges."""
    return NotesFolder(step.repository.opener, range_sizes.folder(step.plan.run_id))


def take_over(step: Step[R], base_run: str) -> None:
    """Copies the notes of the run that this one builds on, small files merged into one.

    A warning names the files that cannot be taken over. Their ranges count as unknown until a clean run notes them.
    """
    store = step.repository.store
    files = range_sizes.files_of(store, base_run)
    lost = range_notes.take_over(SIZES, store, files, range_sizes.folder(step.plan.run_id))
    if lost:
        step.warn(
            f"{len(lost)} files that say which sizes ranges have were not taken over from run {base_run}; until the "
            f"next clean run those ranges are read whenever there are candidates: {lost[0]}"
        )


def look_up_files(
    step: Step[R],
    files: Sequence[NotesFile],
    look_up: Callable[[NotesFile], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
) -> pa.Table:
    """What a function finds in files of notes: by this process where they have few values, else by tasks."""
    if sum(file.values for file in files) <= _VALUES_READ_HERE:
        return pa.Table.from_batches([batch for file in files for batch in look_up(file)], schema)
    groups = spread_by_weight(files, step.engine.tasks, lambda file: file.values)
    return step.engine.collect(step.engine.read(groups, look_up, schema))


def select_ranges(step: Step[R], range_ids: Collection[str], sizes: pa.Int64Array) -> list[str]:
    """The ranges that may have an entry of one of these sizes, in order.

    A range is left out only where its noted sizes are known and none of these is among them.
    """
    opener = step.repository.opener
    files = range_sizes.files_of(step.repository.store, step.plan.run_id) if range_ids else []
    look_up = partial(_look_up, opener, frozenset(range_ids), sizes)
    found = look_up_files(step, files, look_up, LOOKED_UP)
    damage = pc.drop_null(found.column("damage")).to_pylist()
    if damage:
        step.warn(
            f"{len(damage)} files that say which sizes ranges have cannot be used, and those ranges are read: "
            f"{damage[0]}"
        )
    rows = found.filter(pc.is_null(found.column("damage")))
    told: dict[str, bool] = {}
    for range_id, holds in zip(rows.column("range_id").to_pylist(), rows.column("holds").to_pylist(), strict=True):
        told[range_id] = told.get(range_id, False) or holds
    chosen = sorted(range_id for range_id in range_ids if told.get(range_id, True))
    unknown = sum(range_id not in told for range_id in chosen)
    step.log(
        f"{len(chosen):,} of {len(range_ids):,} ranges of branch heads may have an entry of a candidate's size; of "
        f"{unknown:,} of them no sizes are noted"
    )
    return chosen


def _look_up(
    opener: StoreOpener, wanted: Collection[str], sizes: pa.Int64Array, file: NotesFile
) -> list[pa.RecordBatch]:
    return list(range_sizes.look_up(opener.open(), wanted, sizes, file))
