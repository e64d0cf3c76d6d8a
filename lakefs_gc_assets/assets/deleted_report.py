"""The last step: delete the candidates if the plan says so, after a recheck, and report what became of each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

import dagster as dg
import pyarrow as pa
import pyspark.sql.functions as F
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from lakefs_gc_assets.assets.candidates import mark_of
from lakefs_gc_assets.assets.carrying import leave
from lakefs_gc_assets.assets.graph import Graph
from lakefs_gc_assets.assets.live import Committed, Uncommitted, heads_shown
from lakefs_gc_assets.assets.reporting import figures, moves, report_of, totals
from lakefs_gc_assets.assets.step import Step, latest_clock, step
from lakefs_gc_assets.collection import approval, guards, order, ownership, ranges_read, receipts, report, restoration
from lakefs_gc_assets.collection.approval import Approval
from lakefs_gc_assets.collection.quarantining import Quarantine
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.sweep import Sweep
from lakefs_gc_assets.collection.tables import RECEIPTS
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets.frames.manifest import FrameFile
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets.resources import Collector
from lakefs_gc_assets.sources import subtraction, tasks
from lakefs_gc_assets.sources.tasks import Rows


def define(graph: Graph) -> dg.AssetsDefinition:
    """The asset of one repository."""

    @graph.asset("deleted_report")
    def deleted_report(context: dg.AssetExecutionContext, collector: Collector, candidates: StoredFrame) -> StoredFrame:
        with step(context, collector) as run:
            require_inputs(candidates, *(run.stored(name) for name in candidates.manifest.inputs))
            sweep = run.plan.sweep or approved(run, candidates)
            decide = partial(swept if sweep else only_marked, run, candidates)
            stored = run.store("deleted_report", None, (candidates,), {"swept": sweep}, further=decide)
            require_all_decided(stored, candidates)
            with tasks.beside(partial(totals, run, stored)) as amounts:
                ended = report_of(run, stored, leave(run, stored), amounts())
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
    """Raises CollectionError where the report lacks candidates."""
    lost = candidates.manifest.rows - outcomes.manifest.rows
    if lost > 0:
        raise CollectionError(
            f"it is not known what became of {lost:,} of {candidates.manifest.rows:,} candidates. Materialize "
            "deleted_report again: it goes on by the receipts"
        )


def only_marked(run: Step, candidates: StoredFrame) -> Sequence[FrameFile]:
    """Stores the candidates of a dry run (RECEIPTS)."""
    decided = _decided(run, candidates.dataframe(run.spark), Outcome.DRY_RUN)
    return run.store_part("deleted_report", decided).manifest.files


def approved(run: Step, candidates: StoredFrame) -> bool:
    """Whether these very candidates of a dry run are to be deleted after all; keeps the approval that is given now."""
    store, plan = run.repository.store, run.plan
    if run.repository.settings.approve_run == plan.run_id:
        digest, now = candidates.manifest.digest, run.repository.clock.now()
        approval.write(store, Approval(plan.run_id, plan.attempt, digest, now))
        run.log(f"the candidates of run {plan.run_id} are approved: they are deleted after a recheck")
    found = approval.read(store, plan.run_id)
    return found is not None and found.candidates_digest == candidates.manifest.digest


def swept(run: Step, candidates: StoredFrame) -> Sequence[FrameFile]:
    """Deletes the candidates, pass by pass, each after a recheck; stores what became of them as soon as it is known.

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
        return []
    if found.candidates:
        heads = committed.manifest.figures["heads"]
        ownership.require_own_addresses(run.repository.api, run.repository.store, run.repository.namespace, heads)
        wait_for_recheck(run, listed.manifest.span.ended_at)
    files: list[FrameFile] = []
    remaining, left = rows, found.candidates
    if earlier.num_rows:
        gone = tasks.of_table(run.spark, earlier).where(F.col("outcome").isin(*receipts.GONE))
        done = gone.dropDuplicates(["address"]).select(*RECEIPTS.names)
        files += run.store_part("deleted_report", done).manifest.files
        remaining = subtraction.without_exactly(rows, done)
        left = remaining.count()
        run.log(f"resumed after {earlier.num_rows:,} receipts; {left:,} of {found.candidates:,} candidates are left")
    while left:
        outcomes = _one_pass(run, remaining, left)
        count = outcomes.manifest.rows
        if not count:
            raise CollectionError(
                "nothing could be deleted in the time for which a recheck is valid: raise "
                "collection.recheck_valid_minutes"
            )
        files += outcomes.manifest.files
        left -= count
        if left:
            remaining = subtraction.without_exactly(remaining, outcomes.dataframe(run.spark, "address"), count)
            run.log(f"{left:,} candidates are left after {run.repository.settings.recheck_valid_minutes:.0f} minutes")
    return files


def _one_pass(run: Step, remaining: DataFrame, left: int) -> StoredFrame:
    """Rechecks what is live, deletes for as long as that is valid, and stores what became of each object (RECEIPTS).

    Args:
        left: how many candidates remain.
    """
    again = tasks.together(live_again(run))
    found = subtraction.among_exactly(again, remaining, left).select("address").distinct()
    valid_until = run.repository.clock.now() + timedelta(minutes=run.repository.settings.recheck_valid_minutes)
    with tasks.made_once(found, left) as live:
        kept = _decided(run, subtraction.among_exactly(remaining, live, left), Outcome.KEPT_LIVE)
        gone = subtraction.without_exactly(remaining, live, left).select("address", "size", "slice", "slice_window")
        deleted = gone.mapInArrow(_deleter(run, valid_until), from_arrow_schema(RECEIPTS))
        names = RECEIPTS.names
        return run.store_part("deleted_report", deleted.select(*names).unionAll(kept.select(*names)))


def wait_for_recheck(run: Step, listed_at: datetime) -> None:
    """Waits until the listing is as old as a recheck asks for."""
    clock = run.repository.clock
    wait = listed_at + timedelta(seconds=run.repository.settings.wait_before_recheck_seconds) - clock.now()
    if wait > timedelta():
        run.log(f"waiting {wait.total_seconds():.0f} s before the recheck")
        clock.sleep(wait.total_seconds())


def live_again(run: Step) -> list[Rows]:
    """Addresses (LIVE) that became live since the mark: uncommitted data prepared anew, and ranges not read before.

    Raises GuardTripped where too much of what the mark found is gone.
    """
    marked, committed = run.stored("uncommitted_df"), run.stored("committed_df")
    shown = heads_shown(run)
    prepared = Uncommitted.prepare(run)
    read_sha256 = committed.manifest.figures["read_sha256"]
    known = ranges_read.read(run.repository.store, run.plan.run_id, run.plan.attempt, read_sha256)
    found = Committed.ask(run, prepared.ended_at, known, shown)
    order.require_same_source(found.source, committed.manifest.figures["commit_source"])
    for guard in found.definition.guards if found.definition else ():
        raise guard
    guards.require_commits_ended(committed.manifest.figures["sealed"], found.own.sealed)
    guards.require_branches(len(found.own.heads), len(committed.manifest.figures["heads"]), run.repository.settings)
    live = [*prepared.addresses, *found.addresses(run)]
    if marked.manifest.rows:
        rows = 2 * marked.manifest.rows + found.rows + committed.manifest.rows
        before, held = marked.rows(run.spark, "address"), committed.rows(run.spark, "address")
        lost = subtraction.without(before, *live, held, rows=rows).count()
        guards.require_uncommitted_kept(lost, marked.manifest.rows, run.repository.settings)
    run.log(f"recheck: {prepared.files} files of uncommitted data, {found.own.commits:,} commits")
    return live


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
