"""Decides which runs lose their frames and which forecasts are deleted, and why others stay.

A run's plan, report, page, approval, receipts and the frame `deleted_report` are kept forever. Other frames, read only
by the run itself or by a run that builds on it, are removed. Only folders with one of our plans are examined.

Files that a server prepared are beside these folders. They are removed if an expired run requested them and no other
run names them, or if `explain` requested them. Forecasts, whose folders have no plan, are deleted whole, by the same
count. The newest finished forecast always stays. Holdings are deleted by the age of their runs, listings of object
lifecycle by their own.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

from lakefs_gc_assets.collector.frame.frames import DELETED_REPORT, FRAMES, UNCOMMITTED_DF
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.live import facts, uncommitted
from lakefs_gc_assets.collector.records import plan, records_json, run_folder, stored_forecasts
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore, delete_all, get_if_there, keys_below

_FOLDERS_BEFORE_FACTS = ("range_sizes", "range_hashes", "head_ranges", "named_ranges")
"""Folders in which runs of earlier versions recorded the contents of ranges and metaranges."""

FOLDERS = (
    *(name for name in FRAMES if name != DELETED_REPORT.name),
    *_FOLDERS_BEFORE_FACTS,
)
"""Names of the folders that an expired run loses; it loses nothing else."""

_HEADS_KEPT = 3
"""Facts about branch heads that stay: the newest may be incomplete if their process was killed."""
LISTING_AGE = timedelta(days=30)
"""Age at which listings of object lifecycle expire."""
_UNDER_WAY = timedelta(days=1)
"""Upper bound of the duration of a forecast or of `explain`."""


@dataclass(frozen=True, slots=True)
class PastFolder:
    """The folder of a run or forecast, and its contents.

    Attributes:
        run_id: name of the folder; a forecast has the same kind of id as a run.
        frames: names of FOLDERS that a run still has; none for a forecast.
        entries: keys of the objects and folders directly in it.
        is_complete: True for a finished forecast.
        prepared: ids under which the server prepared data only for this run or forecast; set only if it expires.
    """

    run_id: str
    frames: tuple[str, ...]
    entries: frozenset[str]
    is_complete: bool = False
    prepared: tuple[str, ...] = ()

    @property
    def may_have_prepared(self) -> bool:
        """True if the server's preparations for a run may still exist."""
        return bool(self.frames) or uncommitted.folder_of_records(self.run_id) in self.entries


@dataclass(frozen=True, slots=True)
class Expiry:
    """The decision about all runs and forecasts, newest first.

    Attributes:
        expired: runs that expire; some lost their frames earlier.
        kept: for each other run, the reason it keeps its frames.
        forecasts: forecasts to delete.
        kept_forecasts: for each other forecast, the reason it stays.
        explained: ids under which the server prepared data for `explain`, at least a day before the newest folder.
        holdings: keys of holdings to delete.
        listings: keys of listings of object lifecycle to delete.
    """

    expired: tuple[PastFolder, ...]
    kept: dict[str, str]
    forecasts: tuple[PastFolder, ...] = ()
    kept_forecasts: dict[str, str] = field(default_factory=dict)
    explained: tuple[str, ...] = ()
    holdings: tuple[str, ...] = ()
    listings: tuple[str, ...] = ()


def _find_bases(store: ObjectStore) -> dict[str, str]:
    """The runs that the next runs build on, with the reason to keep their frames.

    If a newest sweep cannot be read, the next run builds on none, and the unreadable run stays.
    """
    built_on: dict[str, str] = {}
    for kind, committed in (("optimized run", False), ("run of the flow committed", True)):
        with suppress(CorruptFile):
            if newest := planning.newest_sweep(store, committed=committed):
                built_on[newest.run_id] = f"the next {kind} builds on it"
    return built_on


def _why_kept(store: ObjectStore, run: PastFolder, built_on: Mapping[str, str]) -> str | None:
    """Reason that a run beyond the newest ones keeps its frames; None if there is none."""
    run_id = run.run_id
    try:
        was_to_delete, report = plan.read(store, run_id).sweep, reports.read(store, run_id)
    except CorruptFile as corrupt:
        # It is unknown if its frames are needed.
        return f"it cannot be read: {corrupt.file}: {corrupt.check}: {corrupt.detail}"
    if run_id in built_on:
        return built_on[run_id]
    can_be_resumed = was_to_delete
    if report is not None:
        can_be_resumed = report.ending is Ending.FAILED and run_folder.receipts(run_id) in run.entries
    if can_be_resumed:
        return "its sweep is unfinished"
    if run_folder.approval(run_id) in run.entries and (report is None or report.dry_run):
        return "it was approved, but has not deleted yet"
    return None


def decide(
    store: ObjectStore, keep: int, holdings_since: datetime | None = None, listings_since: datetime | None = None
) -> Expiry:
    """Decides about all runs and forecasts.

    Args:
        keep: number of newest runs that keep their frames in any case, and of newest forecasts that stay.
        holdings_since: holdings after runs that were opened before this moment, UTC, expire; None for none.
        listings_since: listings of object lifecycle that were stored before this moment, UTC, expire; None for none.
    Raises:
        StorageError: the store failed at a run or forecast. Nothing expires then, since it may need others' data.
    """
    built_on = _find_bases(store)
    all_folders = [*folders(store)]
    expired, staying = list[PastFolder](), list[PastFolder]()
    kept: dict[str, str] = {}
    for place, run in enumerate(past_runs(all_folders)):
        reason = f"it is among the newest {keep}" if place < keep else None
        # A run that has already lost its frames has nothing to keep.
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
    # Only expiring preparations are compared with the needs of others: if nothing expires, nothing is read.
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
        tuple(name for name in uncommitted.recorded_preparations(store, None) if _is_over(name, all_folders)),
        () if holdings_since is None else tuple(_old_holdings(store, holdings_since)),
        () if listings_since is None else tuple(_old_listings(store, listings_since)),
    )


def _old_listings(store: ObjectStore, since: datetime) -> Iterator[str]:
    """Keys of listings of object lifecycle in whose folder nothing is newer. An act keeps its own copy of entries."""
    for folder in sorted(store.list_level(run_folder.LIFECYCLE).prefixes):
        objects = store.list_level(folder).objects
        if all(listed.last_modified < since for listed in objects):
            yield from (listed.key for listed in objects)


def _old_holdings(store: ObjectStore, since: datetime) -> Iterator[str]:
    """Keys of holdings after older runs, and of facts about branch heads that newer ones have replaced."""
    for listed in store.list_level(run_folder.HOLDINGS).objects:
        run_id = listed.key.removeprefix(run_folder.HOLDINGS).partition(".")[0]
        if layout.is_xid(run_id) and layout.created_at(run_id) < since.timestamp():
            yield listed.key
    folders_of_heads = (
        folder
        for folder in sorted(store.list_level(run_folder.HOLDINGS_HEADS).prefixes)
        if layout.is_xid(folder.removeprefix(run_folder.HOLDINGS_HEADS).rstrip("/"))
    )
    for folder in islice(folders_of_heads, _HEADS_KEPT, None):
        yield from sorted(keys_below(store, folder))


def _is_over(server_run_id: str, newest_first: Sequence[tuple[str, frozenset[str]]]) -> bool:
    """True if a preparation is a day older than the newest folder, so that its `explain` has ended."""
    newest = newest_first[0][0] if newest_first else server_run_id
    return layout.created_at(newest) - layout.created_at(server_run_id) >= _UNDER_WAY.total_seconds()


def _kept_forecasts(past: Sequence[PastFolder], keep: int) -> dict[str, str]:
    """The reason for each forecast that stays.

    Args:
        past: all forecasts, newest first.
    """
    kept = {forecast.run_id: f"it is among the newest {keep}" for forecast in past[:keep]}
    newest_made = next((forecast.run_id for forecast in past if forecast.is_complete), None)
    for forecast in past[keep:]:
        if forecast.run_id == newest_made:
            kept[forecast.run_id] = "no newer one came to its end"
        elif not forecast.is_complete and _began(past[0]) - _began(forecast) < _UNDER_WAY:
            kept[forecast.run_id] = "it may be in progress"
    return kept


def _began(forecast: PastFolder) -> timedelta:
    return timedelta(seconds=layout.created_at(forecast.run_id))


def folders(store: ObjectStore) -> Iterator[tuple[str, frozenset[str]]]:
    """Every folder at the level of our runs, newest first: its id, and the keys directly in it."""
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


@dataclass(frozen=True, slots=True)
class Removal:
    """Removed frames of a run, forecast, holdings, or files that a server prepared for `explain`.

    Attributes:
        run_id: the run that had the frames; None for the others.
        objects: number of deleted objects.
        failure: what could not be removed, and why; None if it was removed.
    """

    run_id: str | None
    objects: int = 0
    failure: str | None = None


def remove(store: ObjectStore, decided: Expiry, check_lock: Callable[[], None]) -> Iterator[Removal]:
    """Removes everything that has expired, during iteration. If the store fails at a removal, the others are made.

    Args:
        check_lock: called before each removal. It raises LockLost if nothing more may be deleted.
    """
    works: list[tuple[str | None, str, Callable[[], int]]] = []
    for run in decided.expired:
        works.append((run.run_id, f"frames of run {run.run_id}", partial(remove_frames, store, run)))
    for forecast in decided.forecasts:
        works.append((None, f"forecast {forecast.run_id}", partial(remove_forecast, store, forecast)))
    for server_run_id in decided.explained:
        forget = partial(uncommitted.remove_preparation_without_run, store, server_run_id)
        works.append((None, f"files that the server prepared as {server_run_id}", forget))
    for what, keys in (("old holdings", decided.holdings), ("old listings of object lifecycle", decided.listings)):
        if keys:
            works.append((None, what, partial(delete_all, store, keys)))
    for run_id, what, work in works:
        check_lock()
        try:
            removal = Removal(run_id, work())
        except StorageError as error:
            removal = Removal(run_id, failure=f"{what} could not be removed: {error}")
        yield removal


def remove_forecast(store: ObjectStore, forecast: PastFolder) -> int:
    """Deletes a forecast with its facts and the server's preparations for it; returns the number of objects.

    The file that a forecast writes first is deleted last, so that after a kill the next job finds the rest.

    Raises StorageError if an object could not be deleted.
    """
    removed = _remove_prepared(store, forecast)
    removed += facts.drop_of_run(store, forecast.run_id)
    for name in _FOLDERS_BEFORE_FACTS:
        removed += delete_all(store, keys_below(store, run_folder.frame(forecast.run_id, name)))
    present = keys_below(store, run_folder.frame(forecast.run_id, stored_forecasts.NAME))
    return removed + delete_all(store, [key for key in stored_forecasts.keys_of(forecast.run_id) if key in present])


def remove_frames(store: ObjectStore, run: PastFolder) -> int:
    """Deletes the frames of a run; returns the number of objects. Manifests go first: no partial frame is ever read.

    The server's preparations for the run are deleted before the frames that name them. Facts recorded by a sweep stay,
    since runs that build on it use them: the next full sweep deletes them. Facts of a dry run are deleted here, since
    no later run would do it.

    Raises StorageError if an object could not be deleted.
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
    """True for an unapproved dry run. False if its plan is missing or damaged."""
    if run_folder.plan(run.run_id) not in run.entries or run_folder.approval(run.run_id) in run.entries:
        return False
    try:
        return not plan.read(store, run.run_id).sweep
    except CorruptFile:
        return False


def _remove_prepared(store: ObjectStore, past: PastFolder) -> int:
    removed = sum(uncommitted.remove_preparation(store, server_run_id) for server_run_id in past.prepared)
    if uncommitted.folder_of_records(past.run_id) in past.entries:
        removed += uncommitted.delete_records_of_preparations(store, past.run_id)
    return removed


def preparations_of(store: ObjectStore, past: PastFolder) -> frozenset[str]:
    """The ids under which the server prepared data for a run or forecast. Unreadable files name none."""
    run_id, ids = past.run_id, list[object]()
    if run_folder.frame(run_id, UNCOMMITTED_DF.name) in past.entries:
        ids += _by_manifest(store, run_folder.manifest(run_id, UNCOMMITTED_DF.name))
    try:
        report = reports.read(store, run_id)
    except CorruptFile:
        report = None
    if report is not None:
        ids += report.server_run_ids
    if uncommitted.folder_of_records(run_id) in past.entries:
        ids += uncommitted.recorded_preparations(store, run_id)
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
