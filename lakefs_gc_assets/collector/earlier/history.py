"""Facts from earlier runs: objects that they deleted or brought back, frames that they stored, and first sightings.

The LastModified of an object uploaded in parts may be the moment its upload began, so it is collected only when an
earlier run listed it long enough ago. Each run keeps its sightings of such objects beside its frames, dry runs too.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.earlier.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.engine.port import Engine, R, nullable
from lakefs_gc_assets.collector.engine.work import spread_by_weight
from lakefs_gc_assets.collector.frame import files as files_module
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import (
    DELETED_REPORT,
    FRAMES,
    RECEIPTS,
    SIGHTINGS,
    SIGHTINGS_DF,
    TIME,
    NoFigures,
)
from lakefs_gc_assets.collector.frame.manifest import FrameFile, Manifest
from lakefs_gc_assets.collector.records import across_runs, plan, report
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, MULTIPART_SIGHTING_SECONDS, Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import CollectionError, CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, read_ahead

_log = logging.getLogger(__name__)

DELETIONS = pa.schema([RECEIPTS.field("address"), RECEIPTS.field("attempt")])
"""Addresses, each with the attempt of the run that deleted it; null in receipts of old versions."""


def deleted_before(step: Step[R], since: datetime | None = None, newer_than: str | None = None) -> R:
    """Addresses (`address`) of `deletions`."""
    return step.engine.select(deletions(step, since, newer_than), "address")


def deletions(step: Step[R], since: datetime | None = None, newer_than: str | None = None) -> R:
    """Objects that earlier runs deleted or moved to quarantine, and nobody restored (DELETIONS).

    A finished sweep lists them in its report, in few files; an unfinished one in its receipts. Receipts also
    replace a file of the report that cannot be read. Receipts that cannot be read are left out with a warning: their
    objects may become candidates again, and everything that is live still stays.

    Args:
        since: leaves out what was deleted earlier; UTC.
        newer_than: a run; only runs that were opened after it are looked at.
    """
    runs = EarlierRuns(step.repository.store)
    newer = takewhile(lambda run_id: newer_than is None or run_id < newer_than, runs.newest_first())
    return _deleted_by(step, runs, newer, since)


def deleted_since(step: Step[R], moment: datetime) -> R:
    """Addresses (`address`) that other runs deleted or moved to quarantine since a moment, and nobody restored.

    A run that a newer one has overtaken deletes nothing. So runs are read newest first, up to the first one whose sweep
    ended before the moment: the reads do not grow with the number of earlier runs.

    Args:
        moment: UTC, by the clocks of the machines that swept.
    Raises:
        StorageError: the store cannot be asked.
    """
    runs = EarlierRuns(step.repository.store)
    swept = _runs_that_may_have_swept_since(step.repository.store, runs, moment)
    return step.engine.select(_deleted_by(step, runs, swept, moment), "address")


def _runs_that_may_have_swept_since(store: ObjectStore, runs: EarlierRuns, moment: datetime) -> Iterator[str]:
    for run_id in runs.newest_first():
        yield run_id
        settled = runs.settled(run_id)
        if settled is None or settled.swept:
            ended = _sweep_ended_at(store, run_id)
            if ended is not None and ended < moment:
                return


def _sweep_ended_at(store: ObjectStore, run_id: str) -> datetime | None:
    """When the sweep of a run came to its end, UTC; None where it did not, or where its report cannot be read."""
    try:
        ended = report.read(store, run_id)
    except CorruptFile:
        return None
    if ended is None or ended.dry_run or ended.ending is Ending.FAILED:
        return None
    return ended.ended_at


def _deleted_by(step: Step[R], runs: EarlierRuns, run_ids: Iterable[str], since: datetime | None) -> R:
    store, opener, engine = step.repository.store, step.repository.opener, step.engine
    any_restored = across_runs.read_restoration(store) is not None
    reported: list[FrameFile] = []
    keys: list[str] = []
    for run_id in run_ids:
        settled = runs.settled(run_id)
        if run_id == step.plan.run_id or (settled is not None and not settled.deleted):
            continue
        files = _report_files(store, run_id) if settled is not None and settled.swept else None
        if files is None:
            keys += receipts.keys(store, run_id)
        else:
            reported += files
            keys += receipts.keys(store, run_id, receipts.OF_RESTORE) if any_restored else []
    in_files = [[group] for group in spread_by_weight(reported, engine.tasks, lambda file: file.bytes)]
    rows = engine.union(
        engine.read(in_files, partial(_read_reported, opener), nullable(RECEIPTS)),
        receipts.rows(engine, opener, keys, _exclude),
    )
    deleted = engine.where_among(rows, "outcome", receipts.GONE)
    if any_restored:
        restored = engine.where_among(rows, "outcome", (Outcome.RESTORED.value,))
        deleted = engine.without_matching(deleted, restored, ("address", "attempt"))
    if since is not None:
        moment = pa.scalar(since, RECEIPTS.field("decided_at").type)
        deleted = engine.where(deleted, lambda batch: pc.greater_equal(batch.column("decided_at"), moment))
    return engine.select(deleted, *DELETIONS.names)


def _read_reported(opener: OpensStore, group: Sequence[FrameFile]) -> Iterator[pa.RecordBatch]:
    """The rows (RECEIPTS) of a task's share of files, and the receipts of each run of which a file cannot be read."""
    damaged: dict[str, None] = {}
    schema = nullable(RECEIPTS)
    with read_ahead(opener.open(), ((file.key, file.bytes) for file in group)) as store:
        for file in group:
            try:
                yield from files_module.read_file(store, file, RECEIPTS, added=DELETED_REPORT.added).to_batches()
            except CorruptFile as damage:
                _log.warning("receipts are read instead of the damaged %s (%s)", damage.file, damage.detail)
                damaged[run_folder.run_of(file.key)] = None
    for run_id in damaged:
        yield from receipts.read(opener.open(), run_id, _exclude).cast(schema).to_batches()


def _exclude(damage: CorruptFile) -> None:
    _log.warning("what run %s deleted is not fully known: %s", run_folder.run_of(damage.file), damage)


def _report_files(store: ObjectStore, run_id: str) -> tuple[FrameFile, ...] | None:
    """The files that say what a run's sweep deleted; None where they are not known, and its receipts are to say it."""
    try:
        manifest = manifests.read(store, run_id, DELETED_REPORT)
    except (OrderViolation, CorruptFile):
        return None
    return manifest.files if manifest.figures.swept else None


def newest_run(store: ObjectStore, *, sweeps: bool = False) -> str:
    """The id of the newest run that came to its end. Raises CollectionError where there is none.

    Args:
        sweeps: whether dry runs are passed over.
    """
    for run_id in run_folder.newest_runs(store):
        try:
            ended = report.read(store, run_id)
        except CorruptFile as corrupt:
            # An older run, chosen without a word, would be taken for the newest.
            raise CollectionError(f"{corrupt} Name another run: `lakefs-gc status` lists all runs") from corrupt
        if ended is not None and ended.counts and not (sweeps and ended.dry_run):
            return run_id
    if sweeps:
        raise CollectionError(
            "no sweep has come to its end yet: `lakefs-gc approve RUN` sweeps what a dry run found, `lakefs-gc status` "
            "lists all runs"
        )
    raise CollectionError(
        "no run has come to its end yet: `lakefs-gc run` makes a dry run, `lakefs-gc status` lists all runs"
    )


def read_manifest(store: ObjectStore, frame: str, run_id: str) -> Manifest[Any]:
    """The manifest of a frame of a run. Raises CollectionError where there is none."""
    plan.read(store, run_id)
    try:
        return manifests.read(store, run_id, FRAMES[frame])
    except OrderViolation:
        raise CollectionError(
            f"run {run_id} has no {frame} stored: it ended before, or they were removed because the run is old"
        ) from None


_RUNS = 20
"""Maximum runs to read, the newest first."""
MOST = 100_000
"""Maximum addresses to return; with more, none are."""


def restored_before(store: ObjectStore, run_id: str) -> pa.Array:
    """Addresses that the newest earlier runs deleted and somebody brought back; none where there are more than MOST.

    One call tells of a repository where nothing ever was.

    Args:
        run_id: the run that asks.
    Raises:
        CollectionError: what is left of it cannot be read.
    """
    addresses: list[str] = []
    if across_runs.read_restoration(store) is not None:
        earlier = (earlier_id for earlier_id in run_folder.newest_runs(store) if earlier_id != run_id)
        for earlier_id in islice(earlier, _RUNS):
            addresses += _restored_of(store, earlier_id)
            if len(addresses) > MOST:
                return pa.array([], pa.string())
    return pa.array(addresses, pa.string())


def _restored_of(store: ObjectStore, run_id: str) -> list[str]:
    addresses = list[str]()
    for rows in receipts.read_files(store, receipts.keys(store, run_id, receipts.OF_RESTORE)):
        addresses += rows.filter(pc.equal(rows.column("outcome"), Outcome.RESTORED.value))["address"].to_pylist()
    return addresses


_KEPT_FOR_LONGER = "objects uploaded in parts that an earlier run saw are kept for longer: {damage}"


def read_sightings(step: Step[R], before: datetime) -> R:
    """First sightings (`address`, `first_listed_at`) of the newest runs that listed before a moment.

    A run hands on the first sightings of what it lists itself, so of the runs that the index knows the newest of each
    flow is read, and those before it that were limited to some windows: flows differ in what they list, and in what
    nothing references. Sightings that are damaged are left out and named in the log: without them objects are only
    kept for longer.
    """
    engine = step.engine
    sightings = [engine.table(SIGHTINGS.empty_table())]
    runs, flows = EarlierRuns(step.repository.store), set[Flow]()
    for run_id in islice(runs.newest_first(), _RUNS):
        settled = runs.settled(run_id)
        if settled is not None and (not settled.sightings or settled.flow in flows):
            continue
        try:
            frame = step.stored_of(run_id, SIGHTINGS_DF)
            if frame.manifest.span.ended_at <= before and run_id != step.plan.run_id:
                sightings.append(frame.rows(engine, damaged_files=_warn_of_damage))
                if settled is not None and not settled.limited:
                    flows.add(settled.flow)
        except OrderViolation:
            continue
        except CorruptFile as damage:
            step.warn(_KEPT_FOR_LONGER.format(damage=damage))
    return engine.earliest_sightings(engine.union(*sightings))


def _warn_of_damage(damage: CorruptFile) -> None:
    _log.warning(_KEPT_FOR_LONGER.format(damage=damage))


def select_old_enough(engine: Engine[R], sightings: R, listing_started_at: datetime) -> R:
    """Sightings long enough before this run's listing."""
    limit = pa.scalar(listing_started_at - timedelta(seconds=MULTIPART_SIGHTING_SECONDS), TIME)
    return engine.where(sightings, lambda batch: pc.less_equal(batch.column("first_listed_at"), limit))


def keep_sightings(step: Step[R], unreferenced: R | None, earlier: R, listing_ended_at: datetime) -> None:
    """Stores the sightings of this run: unreferenced objects uploaded in parts, with the end of their first listing.

    Args:
        unreferenced: rows of the listing; None where none of them was uploaded in parts.
        listing_ended_at: by then they were there; at its start they may not have been.
    """
    if unreferenced is None:
        step.complete(SIGHTINGS_DF, NoFigures(), ())
        return
    multipart = step.engine.where(unreferenced, is_multipart)
    rows = step.engine.sightings_of(step.engine.select(multipart, "address", "slice_window"), earlier, listing_ended_at)
    step.complete(SIGHTINGS_DF, NoFigures(), step.write(SIGHTINGS_DF, rows))


def is_multipart(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Which objects were uploaded in parts."""
    return pc.match_substring_regex(rows.column("etag"), MULTIPART_ETAG)
