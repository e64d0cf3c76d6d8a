"""The last step: delete the candidates if the plan says so, after a recheck, and report what became of each."""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

import dagster as dg
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from lakefs_gc_assets.assets.candidates import mark_of
from lakefs_gc_assets.assets.carrying import leave
from lakefs_gc_assets.assets.committed_df import Unread
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.reporting import report_of
from lakefs_gc_assets.assets.step import Step, step
from lakefs_gc_assets.collection import commits, guards, ownership, ranges_read, receipts, report, uncommitted
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.sweep import Sweep
from lakefs_gc_assets.collection.tables import RECEIPTS
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("deleted_report")
    def deleted_report(context: dg.AssetExecutionContext, collector: Collector, candidates: StoredFrame) -> StoredFrame:
        with step(context, collector) as run:
            require_inputs(candidates, *(run.stored(name) for name in candidates.manifest.inputs))
            outcomes = swept(run, candidates) if run.plan.sweep else only_marked(run, candidates)
            stored = run.store("deleted_report", outcomes, (candidates,))
            ended = report_of(run, stored, leave(run, stored))
            report.write(run.repository.store, ended)
            run.log(f"{ended.ending.value}: {ended.counts['deleted']:,} deleted, {ended.counts['failed']:,} failed")
            return stored

    return deleted_report


def require_inputs(frame: StoredFrame, *inputs: StoredFrame) -> None:
    """Raises OrderViolation where a frame was made from another content of its inputs than is stored now."""
    for given in inputs:
        if given.manifest.digest != frame.manifest.inputs[given.name]:
            raise OrderViolation(
                f"{given.name} was made again after {frame.name} was made from it. Materialize {frame.name} again"
            )


def only_marked(run: Step, candidates: StoredFrame) -> DataFrame:
    """The candidates of a dry run (RECEIPTS)."""
    return _decided(run, candidates.dataframe(run.spark), Outcome.DRY_RUN)


def swept(run: Step, candidates: StoredFrame) -> DataFrame:
    """The candidates as they are deleted (RECEIPTS): using the frame deletes them, so it is stored and used once.

    Raises GuardTripped where the amount looks like a mistake, and whatever the recheck raises.
    """
    committed = run.stored("committed_df")
    found = mark_of(run.stored("store_df"), run.stored("uncommitted_df"), committed, candidates)
    for guard in guards.tripped(found, run.repository.settings):
        raise guard
    rows = candidates.dataframe(run.spark)
    if not found.candidates:
        return _decided(run, rows, Outcome.DRY_RUN)
    ownership.require_own_addresses(
        run.repository.api, run.repository.store, run.repository.namespace, committed.manifest.figures["heads"]
    )
    earlier = run.spark.createDataFrame(receipts.read(run.repository.store, run.plan.run_id))
    done = earlier.where(F.col("outcome") == Outcome.ACCEPTED.value).dropDuplicates(["address"])
    live = live_again(run, candidates).select("address").distinct().persist()
    remaining = rows.join(done, "address", "left_anti")
    kept = _decided(run, remaining.join(live, "address", "left_semi"), Outcome.KEPT_LIVE)
    gone = remaining.join(live, "address", "left_anti").select("address", "size", "slice", "slice_window")
    deleted = gone.mapInArrow(_deleter(run), from_arrow_schema(RECEIPTS))
    names = RECEIPTS.names
    return deleted.select(*names).unionAll(kept.select(*names)).unionAll(done.select(*names))


def live_again(run: Step, candidates: StoredFrame) -> DataFrame:
    """Addresses (LIVE) that became live since the mark: uncommitted data prepared anew, and ranges not read before."""
    repository, settings = run.repository, run.repository.settings
    listed = run.stored("store_df").manifest.span.ended_at
    wait = listed + timedelta(seconds=settings.wait_before_recheck_seconds) - repository.clock.now()
    if wait > timedelta():
        run.log(f"waiting {wait.total_seconds():.0f} s before the recheck")
        repository.clock.sleep(wait.total_seconds())
    prepared = uncommitted.prepare_checked(
        repository.api, repository.store, repository.namespace, settings, repository.clock, run.plan.cutoff
    )
    live = commits.live_commits(
        repository.api, repository.store, settings, repository.clock, prepared.ended_at, run.log
    )
    unread = Unread.of(run, live, ranges_read.read(repository.store, run.plan.run_id, run.plan.attempt))
    run.log(f"recheck: {len(prepared.files)} files of uncommitted data, {live.commits:,} commits")
    return run.references().uncommitted(prepared.files).unionAll(unread.addresses(run))


def _decided(run: Step, rows: DataFrame, outcome: Outcome) -> DataFrame:
    now = F.timestamp_micros(F.lit(int(run.repository.clock.now().timestamp() * 1_000_000)))
    return rows.select(
        "address",
        "size",
        "slice",
        "slice_window",
        F.lit(outcome.value).alias("outcome"),
        F.lit(None).cast("string").alias("error"),
        now.alias("decided_at"),
    )


def _deleter(run: Step) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    opener, run_id, lock, clock = run.repository.opener, run.plan.run_id, run.lock.token, run.repository.clock

    def delete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sweep = Sweep(opener.open(), run_id, lock, clock)
        for batch in batches:
            for rows in sweep.delete(pa.Table.from_batches([batch])):
                yield from rows.to_batches()

    return delete
