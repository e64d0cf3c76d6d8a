"""Takes over the noted sizes of ranges from the base run, and selects by them the ranges that have to be read."""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.live import range_sizes
from lakefs_gc_assets.collector.live.range_sizes import LOOKED_UP, SizesFile, SizesFolder
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import copying
from lakefs_gc_assets.collector.work import spread_by_weight
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

_SIZES_READ_HERE = 8_000_000
"""So many sizes are looked at by this process: that takes less time than for tasks to begin."""
_FILES_AT_ONCE = 8


def folder_of(step: Step[R]) -> SizesFolder:
    """The folder in which a run notes the sizes of ranges."""
    return SizesFolder(step.repository.opener, range_sizes.folder(step.plan.run_id))


def take_over(step: Step[R], base_run: str) -> None:
    """Copies the notes of the run that this one builds on, small files merged into one.

    A warning names the files that cannot be taken over. Their ranges count as unknown until a clean run notes them.
    """
    store, into = step.repository.store, range_sizes.folder(step.plan.run_id)
    files = range_sizes.files_of(store, base_run)
    merged = range_sizes.choose_merged(files)
    rows: list[pa.Table] = []
    lost: list[str] = []
    for file in merged:
        try:
            rows.append(range_sizes.read(store, file))
        except CorruptFile as damage:
            lost.append(range_sizes.describe(damage))
    if rows:
        range_sizes.put(store, into, range_sizes.each_once(pa.concat_tables(rows)))
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        copied = pool.map(partial(_copy, store, into), [file for file in files if file not in merged])
        lost += [problem for problem in copied if problem is not None]
    if lost:
        step.warn(
            f"{len(lost)} files that say which sizes ranges have were not taken over from run {base_run}; until the "
            f"next clean run those ranges are read whenever there are candidates: {lost[0]}"
        )


def _copy(store: ObjectStore, into: str, file: SizesFile) -> str | None:
    """Copies a file; returns what went wrong."""
    target = into + file.key.rpartition("/")[2]
    try:
        copying.copy(store, file.key, target)
    except StorageError as error:
        return str(error)
    return None


def select_ranges(step: Step[R], range_ids: Collection[str], sizes: pa.Int64Array) -> list[str]:
    """The ranges that may have an entry of one of these sizes, in order.

    A range is left out only where its noted sizes are known and none of these is among them.
    """
    store, opener = step.repository.store, step.repository.opener
    files = range_sizes.files_of(store, step.plan.run_id) if range_ids else []
    look_up = partial(_look_up, opener, frozenset(range_ids), sizes)
    if sum(file.sizes for file in files) <= _SIZES_READ_HERE:
        batches = [batch for file in files for batch in look_up(file)]
        found = pa.Table.from_batches(batches, LOOKED_UP)
    else:
        groups = spread_by_weight(files, step.engine.tasks, lambda file: file.sizes)
        found = step.engine.collect(step.engine.read(groups, look_up, LOOKED_UP))
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
    opener: StoreOpener, wanted: Collection[str], sizes: pa.Int64Array, file: SizesFile
) -> list[pa.RecordBatch]:
    return list(range_sizes.look_up(opener.open(), wanted, sizes, file))
