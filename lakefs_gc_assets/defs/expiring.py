"""The job that removes the frames of old runs, their partitions, and old forecasts."""

from typing import Any

import dagster as dg
from pydantic import Field

from lakefs_gc_assets.collector import expiring, preparations
from lakefs_gc_assets.collector.expiring import Expiry
from lakefs_gc_assets.collector.lock import Lock
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import locked
from lakefs_gc_assets.defs.failures import readable
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.partitions import REPOSITORY_TAG
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.settings import AutomationSettings

_OP = "remove_old_frames"
_LOCK_NAME = "expire_runs"


class Expiring(dg.Config):
    """Whether to remove, or to show first."""

    dry: bool = Field(default=True, description="Show what would be removed and what stays, and remove nothing.")


def removing_config(names: Names) -> dict[str, Any]:
    """Run configuration of the job that lets it remove."""
    return {"ops": {names.of(_OP): {"config": {"dry": False}}}}


def expire_runs_job(names: Names, settings: AutomationSettings) -> dg.JobDefinition:
    """One op, under the repository's lock where it removes."""

    @dg.op(
        name=names.of(_OP),
        description="Decides which runs are old, says why others stay, and removes frames and partitions.",
        required_resource_keys={names.of("collector")},
        pool=names.pool,
    )
    def removing(context: dg.OpExecutionContext, config: Expiring) -> None:
        collector: Collector = names.resource(context.resources, "collector")
        with readable():
            repository = collector.open()
            if config.dry:
                decided = expiring.decide(repository.store, settings.keep_runs)
                context.add_output_metadata({"dry": True, **_described(decided)})
                context.log.info(
                    f"a dry run: {_count(decided)} runs would lose their frames, {len(decided.forecasts)} forecasts "
                    "would go"
                )
                return
            with locked(repository, _LOCK_NAME, context.run_id, context.log.warning) as lock:
                decided = expiring.decide(repository.store, settings.keep_runs)
                removed = _remove(context.instance, names, repository, decided, lock)
            context.add_output_metadata({"dry": False, "objects_removed": removed, **_described(decided)})
            context.log.info(
                f"{_count(decided)} runs lost their frames, {len(decided.forecasts)} forecasts went, {removed} objects "
                "were removed"
            )

    @dg.job(
        name=names.of("expire_runs"),
        description=f"Removes the frames and partitions of old runs of {names.repository}, and old forecasts: all but "
        f"those of the newest {settings.keep_runs} (automation.keep_runs), and what `explain` made the server prepare. "
        "Plans, reports and receipts stay for ever. "
        "A run stays whole while the next optimized run builds on it, its sweep has not come to its end, or its "
        "approved mark is to be deleted yet. Shows what it would do unless `dry` is false.",
        executor_def=dg.in_process_executor,
        tags={REPOSITORY_TAG: names.repository},
    )
    def expire_runs() -> None:
        removing()

    return expire_runs


def _remove(instance: dg.DagsterInstance, names: Names, repository: OpenRepository, decided: Expiry, lock: Lock) -> int:
    """Removes frames first: a run whose partition is gone could not be found by it again."""
    known = set(instance.get_dynamic_partitions(names.partitions.run_ids.name or ""))
    removed = 0
    for run in decided.expired:
        lock.check()
        removed += expiring.remove_frames(repository.store, run)
        if run.run_id in known:
            instance.delete_dynamic_partition(names.partitions.run_ids.name or "", run.run_id)
    for forecast in decided.forecasts:
        lock.check()
        removed += expiring.remove_forecast(repository.store, forecast)
    for server_run_id in decided.explained:
        lock.check()
        removed += preparations.remove_without_run(repository.store, server_run_id)
    return removed


def _count(decided: Expiry) -> int:
    return sum(1 for run in decided.expired if run.frames)


def _described(decided: Expiry) -> dict[str, Any]:
    """Every run that still has frames and what becomes of it, for the run's page."""
    going = [(run.run_id, f"expired: {', '.join(run.frames)}") for run in decided.expired if run.frames]
    rows = sorted([*going, *((run_id, f"kept: {reason}") for run_id, reason in decided.kept.items())])
    records = [
        dg.TableRecord(
            {"run_id": run_id, "opened": f"{xids.as_datetime(xids.created_at(run_id)):%F %T}Z", "frames": told}
        )
        for run_id, told in rows
    ]
    schema = dg.TableSchema([dg.TableColumn("run_id"), dg.TableColumn("opened"), dg.TableColumn("frames")])
    return {
        "runs_expired": len(going),
        "runs": dg.MetadataValue.table(records, schema=schema),
        "forecasts_expired": len(decided.forecasts),
        "forecasts_kept": len(decided.kept_forecasts),
        "explanations_expired": len(decided.explained),
    }
