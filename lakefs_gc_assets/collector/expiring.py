"""Which runs may lose their frames, and why others keep them.

A run's plan, report, page, approval, receipts and the frame `deleted_report` stay for ever. Frames are removed that
only the run itself, or one that builds on it, would read again. Only folders with a plan of ours are looked at. The
files that a server prepared lie beside them: those are removed that an expired run made it write and that no other run
names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector import preparations
from lakefs_gc_assets.collector import report as reports
from lakefs_gc_assets.collector.incremental import base_run
from lakefs_gc_assets.collector.incremental.checkpoint import COMMITTED, PENDING
from lakefs_gc_assets.collector.live import range_sizes
from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore

FRAMES = (
    "store_df",
    "uncommitted_df",
    "committed_df",
    "candidates",
    "unheld",
    "unrecognised",
    "sightings",
    PENDING,
    COMMITTED,
    range_sizes.NAME,
)
"""What an expired run loses: folders of these names and nothing else."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run and what its folder holds.

    Attributes:
        frames: names of FRAMES that it still has.
        entries: keys of the objects and folders directly in its folder.
        prepared: ids under which the server prepared for this run alone; filled in for runs that expire.
    """

    run_id: str
    frames: tuple[str, ...]
    entries: frozenset[str]
    prepared: tuple[str, ...] = ()

    @property
    def may_have_prepared(self) -> bool:
        """Whether the server's preparations for it may still be there."""
        return bool(self.frames) or preparations.notes(self.run_id) in self.entries


@dataclass(frozen=True, slots=True)
class Expiry:
    """What becomes of the runs, newest first.

    Attributes:
        expired: runs beyond those that are kept; some lost their frames earlier.
        kept: why each of the others keeps its frames.
    """

    expired: tuple[PastRun, ...]
    kept: dict[str, str]


Reason = Callable[[PastRun], str | None]
"""Says why an old run keeps its frames; None where it knows of no reason."""


def reasons(store: ObjectStore) -> tuple[Reason, ...]:
    """The reasons to keep the frames of runs that are not among the newest, in the order in which they are asked.

    Raises CorruptFile where it cannot be told which run the next one builds on.
    """
    next_builds_on = base_run.newest_sweep(store)
    return (
        partial(_unreadable, store),
        partial(_built_on, next_builds_on.run_id if next_builds_on else None),
        partial(_unfinished_sweep, store),
        partial(_approved, store),
    )


def _unreadable(store: ObjectStore, run: PastRun) -> str | None:
    """A run whose plan or report cannot be read: nobody can tell whether its frames are needed."""
    try:
        plans.read(store, run.run_id)
        reports.read(store, run.run_id)
    except CorruptFile as corrupt:
        return f"it cannot be read: {corrupt.file}: {corrupt.check}: {corrupt.detail}"
    return None


def _built_on(next_builds_on: str | None, run: PastRun) -> str | None:
    return "the next optimized run builds on it" if run.run_id == next_builds_on else None


def _unfinished_sweep(store: ObjectStore, run: PastRun) -> str | None:
    """A sweep that can be resumed: no report says that it came to its end."""
    report = reports.read(store, run.run_id)
    if report is None:
        began = plans.read(store, run.run_id).sweep
    else:
        began = report.ending is Ending.FAILED and run_folder.receipts(run.run_id) in run.entries
    return "its sweep has not come to its end" if began else None


def _approved(store: ObjectStore, run: PastRun) -> str | None:
    """A dry run that a person approved."""
    if run_folder.approval(run.run_id) not in run.entries:
        return None
    report = reports.read(store, run.run_id)
    return "it was approved and has not deleted yet" if report is None or report.dry_run else None


def decide(store: ObjectStore, keep: int) -> Expiry:
    """Decides about all runs.

    Args:
        keep: how many of the newest keep their frames in any case.
    Raises:
        StorageError: the store cannot be asked.
        CorruptFile: it cannot be told which run the next one builds on.
    """
    asked = reasons(store)
    expired: list[PastRun] = []
    staying: list[PastRun] = []
    kept: dict[str, str] = {}
    for place, run in enumerate(past_runs(store)):
        reason = f"it is among the newest {keep}" if place < keep else None
        # A run that lost its frames before has nothing to keep.
        if reason is None and run.frames:
            reason = next((said for ask in asked if (said := ask(run)) is not None), None)
        if reason is None:
            expired.append(run)
        else:
            kept[run.run_id] = reason
            staying.append(run)
    return Expiry(_with_prepared(store, expired, staying), kept)


def _with_prepared(store: ObjectStore, expired: list[PastRun], staying: list[PastRun]) -> tuple[PastRun, ...]:
    """The expired runs, with the ids of what the server prepared for them and for no run that stays."""
    if not any(run.may_have_prepared for run in expired):
        return tuple(expired)
    needed = frozenset[str]().union(*(preparations.of_run(store, run.run_id, run.entries) for run in staying))

    def alone(run: PastRun) -> tuple[str, ...]:
        return tuple(sorted(preparations.of_run(store, run.run_id, run.entries) - needed))

    return tuple(replace(run, prepared=alone(run)) if run.may_have_prepared else run for run in expired)


def past_runs(store: ObjectStore) -> Iterator[PastRun]:
    """All our runs, newest first."""
    for prefix in store.list_level(run_folder.ROOT).prefixes:
        run_id = prefix.removeprefix(run_folder.ROOT).rstrip("/")
        if not xids.is_xid(run_id):
            continue
        level = store.list_level(prefix)
        entries = frozenset([*level.prefixes, *(found.key for found in level.objects)])
        if run_folder.plan(run_id) in entries:
            frames = tuple(name for name in FRAMES if run_folder.frame(run_id, name) in entries)
            yield PastRun(run_id, frames, entries)


def remove_frames(store: ObjectStore, run: PastRun) -> int:
    """Deletes the frames of a run, each manifest first, so that no half of a frame is read; returns how many objects.

    What the server prepared for the run goes before the frames that name it.

    Raises StorageError where one could not be deleted.
    """
    removed = sum(preparations.remove(store, server_run_id) for server_run_id in run.prepared)
    if preparations.notes(run.run_id) in run.entries:
        removed += preparations.forget(store, run.run_id)
    for frame in run.frames:
        manifest = run_folder.manifest(run.run_id, frame)
        keys = [key for batch in store.list(run_folder.frame(run.run_id, frame)) for key in batch["key"].to_pylist()]
        keys.sort(key=lambda key: key != manifest)
        for start in range(0, len(keys), store.delete_limit):
            outcomes = store.delete(keys[start : start + store.delete_limit])
            for outcome in outcomes:
                if outcome.result is not DeleteResult.ACCEPTED:
                    raise StorageError(f"{outcome.key} could not be deleted: {outcome.error}")
            removed += len(outcomes)
    return removed
