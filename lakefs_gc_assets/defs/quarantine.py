"""The jobs that restore what a run deleted, and that purge the quarantine; each shows first what it would do."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import dagster as dg
import pyarrow as pa
from pydantic import Field

from lakefs_gc_assets.collector.quarantine import restore_run
from lakefs_gc_assets.collector.quarantine.restore import Restored
from lakefs_gc_assets.defs import launching, purging
from lakefs_gc_assets.defs.failures import readable
from lakefs_gc_assets.defs.markdown import plain
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.partitions import REPOSITORY_TAG
from lakefs_gc_assets.defs.purging import PurgePlan, Totals
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.settings import LaunchSettings

_RESTORING, _PURGING = "bring_back", "empty_quarantine"
PURGING_SCHEDULE = "empty_quarantine"
_SHOWN = 20
_SET = "Set `confirm: true` in the launchpad to do it."


class Restoring(dg.Config):
    """What to bring back, and whether to show it first."""

    run_id: str = Field(
        description="The run whose deletions are undone: its tag lakefs/run_id on the page Runs, which is not "
        "Dagster's own id."
    )
    addresses: list[str] = Field(
        default=[],
        description="Only these objects, relative to the storage namespace (data/…) or in full; empty for all.",
    )
    confirm: bool = Field(default=False, description="Bring it back. Otherwise the job shows what it would bring back.")


class Purging(dg.Config):
    """What to purge, and whether to show it first."""

    run_id: str = Field(default="", description="Only what this run moved to quarantine; empty for every run.")
    confirm: bool = Field(default=False, description="Purge what is due. Otherwise the job shows what is there.")


def purging_config(names: Names) -> dict[str, Any]:
    """Run configuration of the job purge that lets it purge."""
    return {"ops": {names.of(_PURGING): {"config": {"confirm": True}}}}


def restore_job(names: Names) -> dg.JobDefinition:
    """One op, under the repository's lock where it changes anything."""

    @dg.op(
        name=names.of(_RESTORING),
        description="Brings back objects that a run deleted, or shows which.",
        required_resource_keys={names.of("collector")},
        pool=names.pool,
    )
    def restore_objects(context: dg.OpExecutionContext, config: Restoring) -> None:
        collector: Collector = names.resource(context.resources, "collector")
        with readable():
            repository = collector.open()
            found = restore_run.plan_restore(repository, config.run_id, config.addresses, context.log.warning)
            shown = {"run_id": config.run_id, "confirmed": config.confirm, **_shown(found)}
            if not config.confirm:
                context.add_output_metadata({**shown, "next": _SET})
                context.log.info(f"{found.num_rows:,} objects would be brought back. {_SET}")
                return
            given = (repository, config.run_id, config.addresses, context.run_id, context.log.warning)
            context.add_output_metadata({**shown, **_told(context, restore_run.restore(*given))})

    @dg.job(
        name=names.of("restore"),
        description=f"Brings back what a run of {names.repository} deleted, out of quarantine or, in a bucket that "
        "keeps versions, from below its delete markers. Give the run's id; it shows what it would do unless `confirm` "
        "is true. The next run is a clean one.",
        executor_def=dg.in_process_executor,
        tags={REPOSITORY_TAG: names.repository},
    )
    def restore() -> None:
        restore_objects()

    return restore


def purge_job(names: Names, policy: LaunchSettings) -> dg.JobDefinition:
    """One op, under the repository's lock where it changes anything."""

    @dg.op(
        name=names.of(_PURGING),
        description="Deletes for good what is due, brings back what is live again, or shows what is there.",
        required_resource_keys={names.of("collector")},
        pool=names.pool,
    )
    def purge_quarantine(context: dg.OpExecutionContext, config: Purging) -> None:
        collector: Collector = names.resource(context.resources, "collector")
        with readable():
            if not config.confirm:
                found = purging.plan_purge(collector.open(), config.run_id or None)
                context.add_output_metadata({"confirmed": False, **_waiting(found), "next": _SET})
                due = sum(each.copies.num_rows for each in found.due)
                context.log.info(f"{due:,} objects would go, unless they are live again. {_SET}")
                return
            ticket = launching.find_ticket(context.instance, collector.name, context.run_tags)
            launching.require_purging(policy, ticket, names.of(PURGING_SCHEDULE))
            launching.use_ticket(context.instance, collector.name, context.run_tags)
            totals = Totals()
            purged = purging.purge(
                collector, config.run_id or None, context.run_id, context.log.info, context.log.warning
            )
            for each in totals.counted(purged):
                context.log.warning(f"{each.address}: {each.fate.value}{f': {each.why}' if each.why else ''}")
            context.log.info(str(totals))
            counts = {fate.value: count for fate, count in totals.counts.items()}
            context.add_output_metadata({"confirmed": True, "bytes_freed": totals.freed, **counts})
            if not totals.well:
                raise dg.Failure(description=str(totals), allow_retries=False)

    @dg.job(
        name=names.of("purge"),
        description=f"Deletes for good what runs of {names.repository} moved to quarantine "
        "collection.quarantine_days ago. What is live is looked at anew: what became live again is brought back, and "
        "where it cannot be known nothing goes. Shows what is there unless `confirm` is true.",
        executor_def=dg.in_process_executor,
        tags={REPOSITORY_TAG: names.repository},
    )
    def purge() -> None:
        purge_quarantine()

    return purge


def _told(context: dg.OpExecutionContext, restored: Iterator[Restored]) -> dict[str, Any]:
    """What became of each object, counted. Raises dagster.Failure where some are not there."""
    counts: dict[str, int] = {}
    missing = 0
    for each in restored:
        counts[each.fate.value] = counts.get(each.fate.value, 0) + 1
        missing += not each.fate.is_well
        log = context.log.info if each.fate.is_well and each.why is None else context.log.warning
        log(f"{each.address}: {each.fate.value}{f': {each.why}' if each.why else ''}")
    if missing:
        raise dg.Failure(
            description=f"{missing:,} objects are not there again: {counts}. The log says why", allow_retries=False
        )
    return counts


def _shown(found: pa.Table) -> dict[str, Any]:
    """Number and bytes of objects, and a few of them, for the page of a run."""
    lines = [f"- {plain(row['address'])}, {row['size']:,} bytes" for row in islice(found.to_pylist(), _SHOWN)]
    return {
        "objects": found.num_rows,
        "bytes": sum(found.column("size").to_pylist()),
        "for_example": dg.MetadataValue.md("\n".join(lines) or "none"),
    }


def _waiting(found: PurgePlan) -> dict[str, Any]:
    """What is due and what is not, run by run."""
    records = [
        dg.TableRecord(
            {
                "run_id": each.run_id,
                "objects": each.copies.num_rows,
                "bytes": each.size,
                "due": f"{found.due_at(each):%F %T}Z",
            }
        )
        for each in (*found.due, *found.waiting)
    ]
    columns = [dg.TableColumn("run_id"), dg.TableColumn("objects", "int"), dg.TableColumn("bytes", "int")]
    schema = dg.TableSchema([*columns, dg.TableColumn("due")])
    tables = [each.copies.select(["address", "size"]) for each in found.due]
    due = pa.concat_tables(tables) if tables else pa.table({"address": pa.array([], pa.string()), "size": []})
    return {**_shown(due), "runs": dg.MetadataValue.table(records, schema=schema)}
