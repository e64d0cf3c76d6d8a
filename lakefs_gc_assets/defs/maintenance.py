"""Jobs that undo runs and clean up: restore, purge and expire_runs.

Each job only shows its effects unless its configuration confirms them. The command line purges by the same functions.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.collector.expiring import Expiry
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.quarantine.purge import (
    Check,
    LiveCheck,
    Purged,
    PurgeFate,
    PurgePlan,
    plan_purge,
    purge_by,
)
from lakefs_gc_assets.collector.quarantine.restore import Restored
from lakefs_gc_assets.collector.records.outcomes import Tally, describe_result
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.lock import Lock, locked
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.defs import launching
from lakefs_gc_assets.defs.history import UNDO
from lakefs_gc_assets.defs.jobs import one_op_job
from lakefs_gc_assets.defs.pages import bullets, launchpad, link, table
from lakefs_gc_assets.defs.partitions import RUN_TAG, Names, run_id_in, runs_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import CorruptFile, LogLine, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import AutomationSettings, LaunchSettings
from lakefs_gc_assets.spark.faults import errors_of_spark
from lakefs_gc_assets.storage.interface import ObjectStore

PURGING_SCHEDULE = "empty_quarantine"
_MANY = 5000
"""Minimum objects for a restoration in tasks: for fewer, the start of Spark would take longer than the work."""
_RESTORE_OP, _PURGE_OP, _EXPIRE_OP = "bring_back", "empty_quarantine", "remove_old_frames"
_EXPIRY_LOCK = "expire_runs"
_SHOWN = 20
"""Maximum objects that the page of a run names."""
_SET = "Set `confirm: true` in the launchpad to do it."


def purge(
    collector: Collector,
    run_id: str | None,
    owner: str,
    note: LogLine,
    warn: LogLine,
    planned: Callable[[int], None] = lambda count: None,
) -> Iterator[Purged]:
    """Purges objects that have been in quarantine for long enough, under the lock, during iteration.

    Yields the outcomes of copies. Objects that are live by then are restored. Nothing is deleted if that cannot be
    checked.

    Args:
        run_id: as for `plan_purge`.
        owner: owner of the lock.
        note: writes a line to the log.
        warn: writes a warning, such as that the lock could not be renewed.
        planned: as for `purge_by`.
    Raises:
        LockHeld: another owner holds the lock.
        CollectionError: see `plan_purge`, `purge_by` and `purge.purge`.
    """
    repository = collector.open()

    def check(plan: Plan, lock: Lock) -> Check:
        return LiveCheck(Step(note, warn, repository, collector.engine(repository.settings), plan, lock))

    with errors_of_spark():
        yield from purge_by(repository, run_id, owner, check, warn, planned)


def bring_back(
    collector: Collector,
    run_id: str,
    addresses: Sequence[str],
    owner: str,
    warn: LogLine,
    planned: Callable[[int], None] = lambda count: None,
) -> Iterator[Restored]:
    """Restores the deleted objects of a run, in Spark tasks if there are many; see `restore.restore`."""
    repository = collector.open()

    def choose_engine(count: int) -> Engine[Any] | None:
        planned(count)
        return collector.engine(repository.settings) if count >= _MANY else None

    with errors_of_spark():
        yield from restore.restore(repository, run_id, addresses, owner, warn, choose_engine)


class RestoreConfig(dg.Config):
    """Objects to restore; by default they are only shown."""

    run_id: str = Field(
        description="The run whose deletions to undo: its tag lakefs/run_id on the page Runs, not Dagster's own run id."
    )
    addresses: list[str] = Field(
        default=[],
        description="Only these addresses, relative to the storage namespace (data/…) or in full; empty for all.",
    )
    confirm: bool = Field(default=False, description="Restore the objects. If false, the job only shows them.")


class PurgeConfig(dg.Config):
    """Objects to purge; by default they are only shown."""

    run_id: str = Field(default="", description="Only objects that this run moved to quarantine; empty for all runs.")
    confirm: bool = Field(
        default=False, description="Purge objects that are due. If false, the job only shows the quarantine."
    )


def restore_address(collector: Collector, run: dg.DagsterRun, report: Report) -> str | None:
    """Address of the launchpad that shows the objects of a run that can be restored; None if it deleted nothing.

    Args:
        run: a Dagster run of the same code location.
    """
    statistics = report.statistics
    if not (statistics.deleted or statistics.quarantined):
        return None
    names = collector.names
    return launchpad(
        collector,
        run,
        names.qualified("restore"),
        names.qualified(_RESTORE_OP),
        {"run_id": report.run_id, "confirm": False},
        f"Shows which deletions of run {report.run_id} of {names.repository} can be undone: {report.did}. "
        "With `confirm: true` it undoes them.",
        {RUN_TAG: report.run_id},
    )


def undo_link(collector: Collector, run: dg.DagsterRun, report: Report) -> dict[str, dg.MarkdownMetadataValue]:
    """Metadata with a link that undoes a run's deletions, for events that stay; empty if it deleted nothing."""
    address = restore_address(collector, run, report)
    return link(f"Show objects to restore of run {report.run_id}", address, UNDO)


def restore_job(names: Names) -> dg.JobDefinition:
    """The job restore: one op, which takes the repository's lock if it changes anything."""
    description = (
        f"Restores objects that a run of {names.repository} deleted: from quarantine or, in a bucket "
        "that keeps versions, by removing their delete markers. Give the run's id. It only shows the objects unless "
        "`confirm` is true. The next run is a clean one."
    )

    @one_op_job(names, "restore", _RESTORE_OP, RestoreConfig, description)
    def restore_objects(context: dg.OpExecutionContext, collector: Collector, config: RestoreConfig) -> None:
        """Restores objects that a run deleted, or shows them."""
        run_id = run_id_in(config.run_id) or config.run_id
        planned = restore.plan_restore(collector.open(), run_id, config.addresses, context.log.warning)
        shown = {"run_id": run_id, "confirmed": config.confirm, **_describe_objects(planned)}
        if not config.confirm:
            context.add_output_metadata({**shown, "next": _SET})
            context.log.info(f"{counted(planned.num_rows, 'objects')} would be restored. {_SET}")
            return
        restored = bring_back(collector, run_id, config.addresses, context.run_id, context.log.warning)
        context.add_output_metadata({**shown, **_count_restored(context, restored)})

    return restore_objects


def purge_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """The job purge: one op, which takes the repository's lock if it changes anything."""
    description = (
        f"Permanently deletes objects that runs of {names.repository} moved to quarantine at least "
        "collection.quarantine_days ago. It first checks again what is live: it restores live objects, and if that "
        "check fails it deletes nothing. It only shows the quarantine unless `confirm` is true."
    )

    @one_op_job(names, "purge", _PURGE_OP, PurgeConfig, description)
    def purge_quarantine(context: dg.OpExecutionContext, collector: Collector, config: PurgeConfig) -> None:
        """Permanently deletes due objects and restores live ones, or shows the quarantine."""
        if not config.confirm:
            plan = plan_purge(collector.open(), config.run_id or None)
            context.add_output_metadata({"confirmed": False, **_describe_purge(plan), "next": _SET})
            due = sum(moved.copies.num_rows for moved in plan.due)
            context.log.info(f"{counted(due, 'objects')} would be deleted for good, unless they are live again. {_SET}")
            return
        ticket = launching.find_ticket(context.instance, collector.name, context.run_tags)
        launching.require_purging(policy, ticket, names.qualified(PURGING_SCHEDULE))
        launching.use_ticket(context.instance, context.run_tags)
        tally = Tally(PurgeFate.PURGED)
        purged = purge(collector, config.run_id or None, context.run_id, context.log.info, context.log.warning)
        for copy in tally.counted(purged):
            if copy.fate is not tally.usual:
                context.log.warning(describe_result(copy.address, copy))
        totals = tally.describe(frees=True)
        context.log.info(totals)
        context.add_output_metadata({"confirmed": True, "bytes_freed": tally.freed, **_count_fates(tally)})
        if tally.failed:
            raise dg.Failure(description=totals, allow_retries=False)

    return purge_quarantine


def _count_restored(context: dg.OpExecutionContext, restored: Iterator[Restored]) -> dict[str, Any]:
    """Counts and logs the outcomes of objects. Raises dagster.Failure if some were not restored."""
    tally = Tally(restore.RestoreFate.RESTORED)
    for outcome in tally.counted(restored):
        log = context.log.info if outcome.fate.is_well and outcome.why is None else context.log.warning
        log(describe_result(outcome.address, outcome))
    counts = _count_fates(tally)
    if tally.failed:
        raise dg.Failure(
            description=f"{counted(tally.failed, 'objects were')} not restored: {counts}. The log has the reasons",
            allow_retries=False,
        )
    return counts


def _count_fates(tally: Tally) -> dict[str, int]:
    return {fate.value: count for fate, count in tally.counts.items() if count}


def _describe_objects(objects: pa.Table) -> dict[str, Any]:
    """Number and bytes of objects, with a few examples, for the page of a Dagster run."""
    shown = islice(objects.to_pylist(), _SHOWN)
    return {
        "objects": objects.num_rows,
        "bytes": sum(objects.column("size").to_pylist()),
        "for_example": bullets(f"{row['address']}, {counted(row['size'], 'bytes')}" for row in shown),
    }


def _describe_purge(plan: PurgePlan) -> dict[str, Any]:
    """Due objects, and a table of all runs with objects in quarantine."""
    columns = {"run_id": "string", "objects": "int", "bytes": "int", "due": "string"}
    rows = (
        (moved.run_id, moved.copies.num_rows, moved.size, f"{plan.due_at(moved):%F %T}Z")
        for moved in (*plan.due, *plan.waiting)
    )
    tables = [moved.copies.select(["address", "size"]) for moved in plan.due]
    due = pa.concat_tables(tables) if tables else pa.table({"address": pa.array([], pa.string()), "size": []})
    return {**_describe_objects(due), "runs": table(columns, rows)}


class ExpireRunsConfig(dg.Config):
    """Frames to remove; by default they are only shown."""

    dry: bool = Field(default=True, description="Show which runs would be removed or kept, and remove nothing.")


def expire_runs_job(names: Names, settings: AutomationSettings) -> dg.JobDefinition:
    """The job expire_runs: one op, which takes the repository's lock if it removes anything."""
    description = (
        f"Removes frames and partitions of old runs of {names.repository}, and old forecasts. Those of the newest "
        f"{settings.keep_runs} runs (automation.keep_runs) stay. Also removes files that the server prepared for "
        "`explain`. Plans, reports and receipts stay for ever. A run also keeps its frames while the next optimized "
        "run builds on it, while its sweep is unfinished, or while its approved candidates are not deleted yet. It "
        "only shows what it would remove unless `dry` is false."
    )

    @one_op_job(names, "expire_runs", _EXPIRE_OP, ExpireRunsConfig, description)
    def remove_frames(context: dg.OpExecutionContext, collector: Collector, config: ExpireRunsConfig) -> None:
        """Decides which runs are old, says why others stay, and removes frames and partitions."""
        repository = collector.open()
        now = repository.clock.now()
        since = now - timedelta(days=collector.configuration.holdings.lens_days), now - expiring.LISTING_AGE
        if config.dry:
            decided = expiring.decide(repository.store, settings.keep_runs, *since)
            context.add_output_metadata({"dry": True, **_describe_expiry(decided)})
            context.log.info(
                f"a dry run: it would remove the frames of {counted(_count(decided), 'runs')} and "
                f"{counted(len(decided.forecasts), 'forecasts')}"
            )
            return
        with locked(repository, _EXPIRY_LOCK, context.run_id, context.log.warning) as lock:
            decided = expiring.decide(repository.store, settings.keep_runs, *since)
            removals = list(expiring.remove(repository.store, decided, lock.check))
            # Frames go first: a run without a partition could not be found again.
            expired = {each.run_id for each in removals if each.run_id and not each.failure}
            _forget_partitions(context.instance, names, repository.store, expired)
        failures, removed = [each.failure for each in removals if each.failure], sum(each.objects for each in removals)
        if failures:
            for failure in failures:
                context.log.warning(failure)
            raise dg.Failure(
                description=f"{len(failures):,} old runs, forecasts or preparations could not be removed, the "
                f"others were ({counted(removed, 'objects')}): {failures[0]}. The log names each failure; launch again",
                allow_retries=False,
            )
        context.add_output_metadata({"dry": False, "objects_removed": removed, **_describe_expiry(decided)})
        context.log.info(
            f"removed the frames of {counted(_count(decided), 'runs')} and "
            f"{counted(len(decided.forecasts), 'forecasts')}: {counted(removed, 'objects')}"
        )

    return remove_frames


def _forget_partitions(
    instance: dg.DagsterInstance, names: Names, store: ObjectStore, expired: Collection[str]
) -> None:
    """Removes the partitions of expired runs. A name goes with the last of its runs."""
    for key in instance.get_dynamic_partitions(names.partitions.run_ids.name or ""):
        with suppress(CorruptFile):
            runs = runs_of(store, key)
            if runs and {*runs} <= {*expired}:
                names.partitions.forget(instance, key)


def _count(decided: Expiry) -> int:
    return sum(1 for run in decided.expired if run.frames)


def _describe_expiry(decided: Expiry) -> dict[str, Any]:
    """Every run that still has frames, with its fate, for the page of a Dagster run."""
    going = [(run.run_id, f"expired: {', '.join(run.frames)}") for run in decided.expired if run.frames]
    fates = sorted([*going, *((run_id, f"kept: {reason}") for run_id, reason in decided.kept.items())])
    rows = ((run_id, f"{layout.as_datetime(layout.created_at(run_id)):%F %T}Z", fate) for run_id, fate in fates)
    return {
        "runs_expired": len(going),
        "runs": table(dict.fromkeys(("run_id", "opened", "frames"), "string"), rows),
        "forecasts_expired": len(decided.forecasts),
        "forecasts_kept": len(decided.kept_forecasts),
        "explanations_expired": len(decided.explained),
        "holdings_expired": len(decided.holdings),
        "listings_expired": len(decided.listings),
    }
