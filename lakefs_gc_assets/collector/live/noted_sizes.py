"""Gathers the noted sizes of ranges, those of the base run too, and selects by them the ranges that have to be read."""

from collections.abc import Collection, Iterable, Iterator
from functools import partial

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import spread
from lakefs_gc_assets.collector.live import noted_files, range_notes, range_sizes
from lakefs_gc_assets.collector.live.range_notes import NotesFolder
from lakefs_gc_assets.collector.live.range_sizes import LOOKED_UP, Notes, SizesFile
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.storage.interface import OpensStore

_PROBLEMS = pa.schema([pa.field("problem", pa.string(), nullable=False)])


def folder_of(step: Step[R]) -> NotesFolder:
    """The folder in which a run notes the sizes of ranges."""
    return NotesFolder(step.repository.opener, range_sizes.folder(step.plan.run_id))


def gather(step: Step[R], base_run: str | None = None) -> None:
    """Gathers what tasks of this run have noted, with the notes of the run that this one builds on, into few files.

    A warning names the files that cannot be gathered. Their ranges count as unknown until a clean run notes them.
    """
    store, opener, run_id = step.repository.store, step.repository.opener, step.plan.run_id
    files = range_sizes.files_in(store, range_sizes.folder(run_id))
    if base_run is None and len(files) <= 1:
        return
    files += range_sizes.files_of(store, base_run) if base_run else []
    groups = range_notes.group(files, lambda file: file.sizes, range_sizes.SIZES_OF_A_FILE)
    merge = partial(_merge, opener, range_sizes.gathered_folder(run_id))
    merged = [each for each in groups if len(each) > 1]
    if sum(file.sizes for each in merged for file in each) <= noted_files.VALUES_READ_HERE:
        problems = [problem for each in merged for batch in merge(each) for problem in batch.column(0).to_pylist()]
    else:
        found = step.engine.collect(step.engine.read(spread(merged, step.engine.tasks), merge, _PROBLEMS))
        problems = found.column(0).to_pylist()
    alone = [file.key for file, *more in groups if not more]
    problems += range_notes.copy_files(store, alone, range_sizes.gathered_folder(run_id))
    if problems:
        step.warn(
            f"{len(problems)} files that say which sizes ranges have were not taken over{_from(base_run)}; until the "
            f"next clean run those ranges are read whenever there are candidates: {problems[0]}"
        )


def _from(base_run: str | None) -> str:
    return f" from run {base_run}" if base_run else ""


def _merge(opener: OpensStore, into: str, files: Iterable[SizesFile]) -> list[pa.RecordBatch]:
    """Makes one file of several; gives what is wrong with those that cannot be read (_PROBLEMS)."""
    store = opener.open()
    notes, problems = range_notes.read_each(partial(range_sizes.read, store), files)
    if notes:
        range_sizes.put(store, into, Notes.joined(notes))
    return [pa.record_batch([pa.array(problems, pa.string())], schema=_PROBLEMS)]


def select_ranges(step: Step[R], range_ids: Collection[str], sizes: pa.Int64Array) -> list[str]:
    """The ranges that may have an entry of one of these sizes, in order.

    A range is left out only where its noted sizes are known and none of these is among them.
    """
    store, opener = step.repository.store, step.repository.opener
    files = range_sizes.files_of(store, step.plan.run_id) if range_ids else []
    look_up = partial(_look_up, opener, frozenset(range_ids), sizes)
    rows = noted_files.look_up_files(
        step, files, lambda file: file.sizes, look_up, LOOKED_UP, "which sizes ranges have"
    )
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
    opener: OpensStore, wanted: Collection[str], sizes: pa.Int64Array, files: Iterable[SizesFile]
) -> Iterator[pa.RecordBatch]:
    store = opener.open()
    for file in files:
        yield from range_sizes.look_up(store, wanted, sizes, file)
