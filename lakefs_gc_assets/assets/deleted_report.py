"""The last step: delete the candidates if the plan says so, after a recheck, and report what became of each."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from functools import reduce

import dagster as dg
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from lakefs_gc_assets.assets.candidates import mark_of
from lakefs_gc_assets.assets.carrying import leave
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.live import Committed, Uncommitted, heads_shown
from lakefs_gc_assets.assets.reporting import figures, moves, report_of
from lakefs_gc_assets.assets.step import Step, latest_clock, step
from lakefs_gc_assets.collection import approval, guards, ownership, ranges_read, receipts, report, restoration
from lakefs_gc_assets.collection.approval import Approval
from lakefs_gc_assets.collection.quarantining import Quarantine
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.sweep import Sweep
from lakefs_gc_assets.collection.tables import RECEIPTS
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources import subtraction, tasks


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("deleted_report")
    def deleted_report(context: dg.AssetExecutionContext, collector: Collector, candidates: StoredFrame) -> StoredFrame:
        with step(context, collector) as run:
            require_inputs(candidates, *(run.stored(name) for name in candidates.manifest.inputs))
            sweep = run.plan.sweep or approved(run, candidates)
            outcomes = swept(run, candidates) if sweep else only_marked(run, candidates)
            stored = run.store("deleted_report", outcomes, (candidates,), {"swept": sweep})
            require_all_decided(stored, candidates)
            ended = report_of(run, stored, leave(run, stored))
            report.write(run.repository.store, ended)
            run.log(f"{ended.ending.value}: {ended.did}, {ended.counts['failed']:,} failed")
            context.add_output_metadata(figures(ended))
            return stored

    return deleted_report


def require_inputs(frame: StoredFrame, *inputs: StoredFrame) -> None:
    """Raises OrderViolation where a frame was made from another content of its inputs than is stored now."""
    for given in inputs:
        if given.manifest.digest != frame.manifest.inputs[given.name]:
            raise OrderViolation(
                f"{given.name} was made again after {frame.name} was made from it. Materialize {frame.name} again"
            )


def require_all_decided(outcomes: StoredFrame, candidates: StoredFrame) -> None:
    """Raises CollectionError where outcomes are gone, as they are when Spark loses a worker that kept them."""
    lost = candidates.manifest.rows - outcomes.manifest.rows
    if lost > 0:
        raise CollectionError(
            f"it is not known what became of {lost:,} of {candidates.manifest.rows:,} candidates. Materialize "
            "deleted_report again: it goes on by the receipts"
        )


def only_marked(run: Step, candidates: StoredFrame) -> DataFrame:
    """The candidates of a dry run (RECEIPTS)."""
    return _decided(run, candidates.dataframe(run.spark), Outcome.DRY_RUN)


def approved(run: Step, candidates: StoredFrame) -> bool:
    """Whether these very candidates of a dry run are to be deleted after all; keeps the approval that is given now."""
    store, plan = run.repository.store, run.plan
    if run.repository.settings.approve_run == plan.run_id:
        digest, now = candidates.manifest.digest, run.repository.clock.now()
        approval.write(store, Approval(plan.run_id, plan.attempt, digest, now))
        run.log(f"the candidates of run {plan.run_id} are approved: they are deleted after a recheck")
    found = approval.read(store, plan.run_id)
    return found is not None and found.candidates_digest == candidates.manifest.digest


def swept(run: Step, candidates: StoredFrame) -> DataFrame:
    """Deletes the candidates, pass by pass, each after a recheck; returns what became of them (RECEIPTS).

    Raises OrderViolation where objects were brought back since, GuardTripped where the amount looks like a mistake, and
    whatever a recheck raises.
    """
    restoration.require_none_since(run.repository.store, run.plan.run_id)
    listed, committed = run.stored("store_df"), run.stored("committed_df")
    guards.require_fresh_mark(listed.manifest.span.started_at, latest_clock(run.repository), run.repository.settings)
    found = mark_of(listed, run.stored("uncommitted_df"), committed, candidates)
    guards.require_live_set(found)
    for guard in guards.tripped(found, run.repository.settings):
        raise guard
    rows = candidates.dataframe(run.spark)
    earlier = receipts.read(run.repository.store, run.plan.run_id)
    # What an attempt that was broken off deleted is part of the report, though nothing be left to delete.
    if not found.candidates and not earlier.num_rows:
        return _decided(run, rows, Outcome.DRY_RUN)
    if found.candidates:
        heads = committed.manifest.figures["heads"]
        ownership.require_own_addresses(run.repository.api, run.repository.store, run.repository.namespace, heads)
        wait_for_recheck(run, listed.manifest.span.ended_at)
    decided, remaining, left = [], rows, found.candidates
    if earlier.num_rows:
        done = tasks.of_table(run.spark, earlier).where(F.col("outcome").isin(*receipts.GONE))
        decided = [done.dropDuplicates(["address"]).select(*RECEIPTS.names)]
        remaining = subtraction.without_exactly(rows, done)
        left = remaining.count()
        run.log(f"resumed after {earlier.num_rows:,} receipts; {left:,} of {found.candidates:,} candidates are left")
    while left:
        outcomes = _one_pass(run, remaining)
        count = outcomes.count()
        if not count:
            raise CollectionError(
                "nothing could be deleted in the time for which a recheck is valid: raise "
                "collection.recheck_valid_minutes"
            )
        decided.append(outcomes)
        left -= count
        remaining = subtraction.without_exactly(remaining, outcomes)
        if left:
            run.log(f"{left:,} candidates are left after {run.repository.settings.recheck_valid_minutes:.0f} minutes")
    return reduce(DataFrame.unionAll, decided)


def _one_pass(run: Step, remaining: DataFrame) -> DataFrame:
    """Rechecks what is live, and deletes for as long as that is valid (RECEIPTS); kept in Spark, never made twice."""
    candidates = run.stored("candidates").manifest.rows
    live = subtraction.among_exactly(live_again(run), remaining, candidates).select("address").distinct().persist()
    kept = _decided(run, subtraction.among_exactly(remaining, live), Outcome.KEPT_LIVE)
    gone = subtraction.without_exactly(remaining, live).select("address", "size", "slice", "slice_window")
    valid = timedelta(minutes=run.repository.settings.recheck_valid_minutes)
    deleted = gone.mapInArrow(_deleter(run, run.repository.clock.now() + valid), from_arrow_schema(RECEIPTS))
    names = RECEIPTS.names
    return deleted.select(*names).unionAll(kept.select(*names)).persist()


def wait_for_recheck(run: Step, listed_at: datetime) -> None:
    """Waits until the listing is as old as a recheck asks for."""
    clock = run.repository.clock
    wait = listed_at + timedelta(seconds=run.repository.settings.wait_before_recheck_seconds) - clock.now()
    if wait > timedelta():
        run.log(f"waiting {wait.total_seconds():.0f} s before the recheck")
        clock.sleep(wait.total_seconds())


def live_again(run: Step) -> DataFrame:
    """Addresses (LIVE) that became live since the mark: uncommitted data prepared anew, and ranges not read before.

    Raises GuardTripped where too much of what the mark found is gone.
    """
    marked, committed = run.stored("uncommitted_df"), run.stored("committed_df")
    shown = heads_shown(run)
    prepared = Uncommitted.prepare(run)
    read_sha256 = committed.manifest.figures["read_sha256"]
    known = ranges_read.read(run.repository.store, run.plan.run_id, run.plan.attempt, read_sha256)
    found = Committed.ask(run, prepared.ended_at, known, shown)
    require_same_source(found.source, committed)
    for guard in found.definition.guards if found.definition else ():
        raise guard
    guards.require_commits_ended(committed.manifest.figures["sealed"], found.own.sealed)
    guards.require_branches(len(found.own.heads), len(committed.manifest.figures["heads"]), run.repository.settings)
    live = prepared.addresses.unionAll(found.addresses(run))
    if marked.manifest.rows:
        held = committed.dataframe(run.spark, "address")
        lost = subtraction.without(marked.dataframe(run.spark, "address"), live.select("address"), held).count()
        guards.require_uncommitted_kept(lost, marked.manifest.rows, run.repository.settings)
    run.log(f"recheck: {prepared.files} files of uncommitted data, {found.own.commits:,} commits")
    return live


def require_same_source(source: str, marked: StoredFrame) -> None:
    """Raises OrderViolation where a recheck learns of commits in another way than the mark did.

    The ids that the mark read say what a recheck may skip. A listing of metadata files may name a metarange and lack a
    range written before it; only another listing finds that range.
    """
    before = marked.manifest.figures["commit_source"]
    if source != before:
        raise OrderViolation(f"commits come from the {source}, at the mark from the {before}: open a new run")


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
        F.lit(run.plan.attempt).alias("attempt"),
        F.lit(None).cast("string").alias("version_id"),
    )


def _deleter(run: Step, valid_until: datetime) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    kind = Quarantine if moves(run) else Sweep
    opener, plan, lock, clock = run.repository.opener, run.plan, run.lock.token, run.repository.clock

    def delete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sweep = kind(opener.open(), plan.run_id, lock, clock, valid_until, plan.attempt)
        for batch in batches:
            for rows in sweep.delete(pa.Table.from_batches([batch])):
                yield from rows.to_batches()

    return delete
