"""What a run does with files of notes, of whatever kind: it looks up in them, and takes over those of its base run."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import spread_by_weight
from lakefs_gc_assets.collector.live import range_notes
from lakefs_gc_assets.collector.live.range_notes import NotesFile, NotesKind
from lakefs_gc_assets.collector.step import Step

VALUES_READ_HERE = 8_000_000
"""So many values are looked at by this process: that takes less time than for tasks to begin."""
_File = TypeVar("_File")


def look_up_files(
    step: Step[R],
    files: Sequence[_File],
    count: Callable[[_File], int],
    look_up: Callable[[Sequence[_File]], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    told: str,
) -> pa.Table:
    """What a function finds in files of notes: by this process where they have few values, else by tasks.

    A warning says how many files cannot be used; nothing of theirs is found.

    Args:
        count: how many values a file has.
        look_up: of some files, together.
        schema: of what is found; the column `damage` says what is wrong with a file.
        told: what the files say, in words.
    """
    if sum(map(count, files)) <= VALUES_READ_HERE:
        found = pa.Table.from_batches(look_up(files), schema)
    else:
        groups = [[group] for group in spread_by_weight(files, step.engine.tasks, count)]
        found = step.engine.collect(step.engine.read(groups, look_up, schema))
    damage = pc.drop_null(found.column("damage")).to_pylist()
    if damage:
        step.warn(f"{len(damage)} files that say {told} cannot be used, and what they tell of is read: {damage[0]}")
    return found.filter(pc.is_null(found.column("damage")))


def take_over(step: Step[R], kind: NotesKind, told: str, otherwise: str) -> list[NotesFile]:
    """Takes over what the run that this one builds on has noted; gives that run's files.

    A warning says how many of them are lost, and how many another version of the collector wrote.

    Args:
        told: what the files say, in words.
        otherwise: what becomes of that which they told, in words.
    """
    store, plan = step.repository.store, step.plan
    assert plan.base_run is not None and plan.base_run_attempt is not None
    others: list[str] = []
    files = range_notes.files_of(kind, store, plan.base_run, plan.base_run_attempt, others.append)
    if others:
        step.warn(
            f"{len(others)} files that say {told} are of another version and are not used; {otherwise}: {others[0]}"
        )
    lost = range_notes.take_over(kind, store, files, kind.folder(plan.run_id, plan.attempt))
    if lost:
        step.warn(
            f"{len(lost)} files that say {told} were not taken over from run {plan.base_run}; {otherwise}: {lost[0]}"
        )
    return files
