"""Which runs may lose their frames, which forecasts go, and why others stay.

A run's plan, report, page, approval, receipts and the frame `deleted_report` stay for ever. Frames are removed that
only the run itself, or one that builds on it, would read again. Only folders with a plan of ours are looked at. The
files that a server prepared lie beside them: those are removed that an expired run made it write and that no other run
names, and those that `explain` asked for. Forecasts, whose folders have no plan, go whole by the same count, and the
newest that was made never does.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from lakefs_gc_assets.collector.frame.frames import DELETED_REPORT, FRAMES, UNCOMMITTED_DF
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.live import facts, uncommitted
from lakefs_gc_assets.collector.records import plan, stored_forecasts
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.stored import records_json, run_folder
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, delete_all, get_if_there, keys_below

_FOLDERS_BEFORE_FACTS = ("range_sizes", "range_hashes", "head_ranges", "named_ranges")
"""Where runs of earlier versions recorded what ranges and metaranges hold."""

FOLDERS = (
    *(name for name in FRAMES if name != DELETED_REPORT.name),
    *_FOLDERS_BEFORE_FACTS,
)
"""Names of the folders that an expired run loses; it loses nothing else."""

_UNDER_WAY = timedelta(days=1)
"""A forecast takes less, and so does a question."""


@dataclass(frozen=True, slots=True)
class PastFolder:
    """The folder of a run or of a forecast, and what it holds.

    Attributes:
        run_id: names it; a forecast has an id as a run does.
        frames: names of FOLDERS that a run still has; none for a forecast.
        entries: keys of the objects and folders directly in it.
        is_complete: true if it is of a forecast that came to its end.
        prepared: ids under which the server prepared for this run or forecast alone; filled in for those that expire.
    """

    run_id: str
    frames: tuple[str, ...]
    entries: frozenset[str]
    is_complete: bool = False
    prepared: tuple[str, ...] = ()

    @property
    def may_have_prepared(self) -> bool:
        """True if the server's preparations for a run may still be there."""
        return bool(self.frames) or uncommitted.folder_of_notes(self.run_id) in self.entries


@dataclass(frozen=True, slots=True)
class Expiry:
    """The decision about all runs and forecasts, newest first.

    Attributes:
        expired: runs beyond those that are kept; some lost their frames earlier.
        kept: why each of the others keeps its frames.
        forecasts: those that go.
        kept_forecasts: why each of the others stays.
        explained: ids under which the server prepared for `explain`, at least a day before anything newer.
    """

    expired: tuple[PastFolder, ...]
    kept: dict[str, str]
    forecasts: tuple[PastFolder, ...] = ()
    kept_forecasts: dict[str, str] = field(default_factory=dict)
    explained: tuple[str, ...] = ()


def _find_bases(store: ObjectStore) -> dict[str, str]:
    """The runs on which the next ones build, and why each keeps its frames.

    Where a newest sweep cannot be read, the next run builds on none, and what cannot be read stays.
    """
    built_on: dict[str, str] = {}
    for kind, committed in (("optimized run", False), ("run of the flow committed", True)):
        with suppress(CorruptFile):
            if newest := planning.newest_sweep(store, committed=committed):
                built_on[newest.run_id] = f"the next {kind} builds on it"
    return built_on


def _why_kept(store: ObjectStore, run: PastFolder, built_on: Mapping[str, str]) -> str | None:
    """Why a run keeps its frames that is not among the newest; None where there is no reason."""
    run_id = run.run_id
    try:
        was_to_delete, report = plan.read(store, run_id).sweep, reports.read(store, run_id)
    except CorruptFile as corrupt:
        # Nobody can tell whether its frames are needed.
        return f"it cannot be read: {corrupt.file}: {corrupt.check}: {corrupt.detail}"
    if run_id in built_on:
        return built_on[run_id]
    can_be_resumed = was_to_delete
    if report is not None:
        can_be_resumed = report.ending is Ending.FAILED and run_folder.receipts(run_id) in run.entries
    if can_be_resumed:
        return "its sweep has not come to its end"
    if run_folder.approval(run_id) in run.entries and (report is None or report.dry_run):
        return "it was approved and has not deleted yet"
    return None


def decide(store: ObjectStore, keep: int) -> Expiry:
    """Decides about all runs and forecasts.

    Args:
        keep: how many of the newest runs keep their frames in any case, and how many of the newest forecasts stay.
    Raises:
        StorageError: the store failed at one of them. Nothing expires then, since it may need what another one leaves.
    """
    built_on = _find_bases(store)
    all_folders = [*folders(store)]
    expired, staying = list[PastFolder](), list[PastFolder]()
    kept: dict[str, str] = {}
    for place, run in enumerate(past_runs(all_folders)):
        reason = f"it is among the newest {keep}" if place < keep else None
        # A run that lost its frames before has nothing to keep.
        if reason is None and run.frames:
            reason = _why_kept(store, run, built_on)
        if reason is None:
            expired.append(run)
        else:
            kept[run.run_id] = reason
            staying.append(run)
    past = [*past_forecasts(store, all_folders)]
    kept_forecasts = _kept_forecasts(past, keep)
    going = [forecast for forecast in past if forecast.run_id not in kept_forecasts]
    needed: frozenset[str] = frozenset()
    # Only what goes is compared with what others need, so that nothing is read where nothing goes.
    if going or any(run.may_have_prepared for run in expired):
        staying += (forecast for forecast in past if forecast.run_id in kept_forecasts)
        needed = needed.union(*(preparations_of(store, each) for each in staying))

    def alone(past: PastFolder) -> PastFolder:
        return replace(past, prepared=tuple(sorted(preparations_of(store, past) - needed)))

    return Expiry(
        tuple(alone(run) if run.may_have_prepared else run for run in expired),
        kept,
        tuple(map(alone, going)),
        kept_forecasts,
        tuple(name for name in uncommitted.noted_preparations(store, None) if _is_over(name, all_folders)),
    )


def _is_over(server_run_id: str, newest_first: Sequence[tuple[str, frozenset[str]]]) -> bool:
    """True if a preparation is a day older than the newest folder, so that its question has been answered."""
    newest = newest_first[0][0] if newest_first else server_run_id
    return layout.created_at(newest) - layout.created_at(server_run_id) >= _UNDER_WAY.total_seconds()


def _kept_forecasts(past: Sequence[PastFolder], keep: int) -> dict[str, str]:
    """Why forecasts stay.

    Args:
        past: all of them, the newest first.
    """
    kept = {forecast.run_id: f"it is among the newest {keep}" for forecast in past[:keep]}
    newest_made = next((forecast.run_id for forecast in past if forecast.is_complete), None)
    for forecast in past[keep:]:
        if forecast.run_id == newest_made:
            kept[forecast.run_id] = "no newer one came to its end"
        elif not forecast.is_complete and _began(past[0]) - _began(forecast) < _UNDER_WAY:
            kept[forecast.run_id] = "it may be under way"
    return kept


def _began(forecast: PastFolder) -> timedelta:
    return timedelta(seconds=layout.created_at(forecast.run_id))


def folders(store: ObjectStore) -> Iterator[tuple[str, frozenset[str]]]:
    """Every folder beside those of runs, newest first: its id, and the keys of what is directly in it."""
    for run_id in run_folder.folders(store):
        level = store.list_level(run_folder.folder(run_id))
        yield run_id, frozenset([*level.prefixes, *(listed.key for listed in level.objects)])


def past_runs(all_folders: Iterable[tuple[str, frozenset[str]]]) -> Iterator[PastFolder]:
    """Our runs among folders, in their order."""
    for run_id, entries in all_folders:
        if run_folder.plan(run_id) in entries:
            frames = tuple(name for name in FOLDERS if run_folder.frame(run_id, name) in entries)
            yield PastFolder(run_id, frames, entries)


def past_forecasts(store: ObjectStore, all_folders: Iterable[tuple[str, frozenset[str]]]) -> Iterator[PastFolder]:
    """Forecasts among folders, in their order."""
    for forecast_id, entries in all_folders:
        folder = run_folder.frame(forecast_id, stored_forecasts.NAME)
        if run_folder.plan(forecast_id) not in entries and folder in entries:
            files = {listed.key for listed in store.list_level(folder).objects}.intersection(
                stored_forecasts.keys_of(forecast_id)
            )
            if files:
                yield PastFolder(forecast_id, (), entries, stored_forecasts.forecast_key(forecast_id) in files)


def remove_forecast(store: ObjectStore, forecast: PastFolder) -> int:
    """Deletes a forecast with what it noted and made the server prepare; returns how many objects.

    What it begins with goes last: by that a job that was killed finds the rest.

    Raises StorageError where one could not be deleted.
    """
    removed = _remove_prepared(store, forecast)
    removed += facts.drop_of_run(store, forecast.run_id)
    for name in _FOLDERS_BEFORE_FACTS:
        removed += delete_all(store, keys_below(store, run_folder.frame(forecast.run_id, name)))
    present = keys_below(store, run_folder.frame(forecast.run_id, stored_forecasts.NAME))
    return removed + delete_all(store, [key for key in stored_forecasts.keys_of(forecast.run_id) if key in present])


def remove_frames(store: ObjectStore, run: PastFolder) -> int:
    """Deletes the frames of a run, each manifest first, so that no half of a frame is read; returns how many objects.

    What the server prepared for the run goes before the frames that name it. Facts that a sweep recorded stay, since
    runs use them that build on it: the next sweep that looks at everything deletes them. Nobody does so after dry runs.

    Raises StorageError where one could not be deleted.
    """
    removed = _remove_prepared(store, run)
    if run.frames and _was_dry(store, run):
        removed += facts.drop_of_run(store, run.run_id)
    for frame in run.frames:
        manifest = run_folder.manifest(run.run_id, frame)
        removed += delete_all(
            store, sorted(keys_below(store, run_folder.frame(run.run_id, frame)), key=lambda key: key != manifest)
        )
    return removed


def _was_dry(store: ObjectStore, run: PastFolder) -> bool:
    """True if a run was not to delete, and nobody approved it. False where its plan is missing or damaged."""
    if run_folder.plan(run.run_id) not in run.entries or run_folder.approval(run.run_id) in run.entries:
        return False
    try:
        return not plan.read(store, run.run_id).sweep
    except CorruptFile:
        return False


def _remove_prepared(store: ObjectStore, past: PastFolder) -> int:
    removed = sum(uncommitted.remove_preparation(store, server_run_id) for server_run_id in past.prepared)
    if uncommitted.folder_of_notes(past.run_id) in past.entries:
        removed += uncommitted.forget_preparations(store, past.run_id)
    return removed


def preparations_of(store: ObjectStore, past: PastFolder) -> frozenset[str]:
    """The ids under which the server prepared for a run or forecast. What cannot be read names none."""
    run_id, ids = past.run_id, list[object]()
    if run_folder.frame(run_id, UNCOMMITTED_DF.name) in past.entries:
        ids += _by_manifest(store, run_folder.manifest(run_id, UNCOMMITTED_DF.name))
    try:
        report = reports.read(store, run_id)
    except CorruptFile:
        report = None
    if report is not None:
        ids += report.server_run_ids
    if uncommitted.folder_of_notes(run_id) in past.entries:
        ids += uncommitted.noted_preparations(store, run_id)
    return frozenset(name for name in ids if isinstance(name, str) and layout.is_xid(name))


def _by_manifest(store: ObjectStore, key: str) -> Sequence[object]:
    try:
        data = get_if_there(store, key)
        if data is None:
            return ()
        content = json.loads(data)
        records_json.require_digest(content)
        ids = content["figures"]["server_run_ids"]
    except (CorruptFile, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ()
    return ids if isinstance(ids, list) else ()
