"""Makes the holdings of a repository after its newest run, and stores them. It takes no lock and deletes nothing."""

from collections.abc import Sequence
from dataclasses import replace

from lakefs_gc_assets.collector.frame import frames
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder, stored_holdings
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step, require_own_plan
from lakefs_gc_assets.errors import CollectionError, CorruptFile, LogLine, counted
from lakefs_gc_assets.extensions.holdings import holdings_files, known_heads
from lakefs_gc_assets.extensions.holdings.attribution import ChooseEngine, attribute_heads
from lakefs_gc_assets.extensions.holdings.holdings_files import Holdings
from lakefs_gc_assets.extensions.holdings.run_states import add_up_states
from lakefs_gc_assets.storage.interface import ObjectStore, head_if_there


def make_holdings(
    repository: OpenRepository,
    choose_engine: ChooseEngine,
    log: LogLine,
    warn: LogLine,
    depth: int = 1,
    metadata_keys: Sequence[str] = (),
) -> Holdings:
    """The holdings after the newest finished run of a repository: stored ones, or made and stored now.

    Args:
        log, warn: write lines to the log.
        depth, metadata_keys: as for `attribute_heads`.
    Raises:
        CollectionError: no run has finished, its frames have expired or are damaged, or server or store fail.
    """
    store, report = repository.store, newest_report(repository)
    if (stored := read_stored(store, report, warn)) is not None:
        return stored
    plan = plans.read(store, report.run_id)
    require_own_plan(plan, repository)
    known = known_heads.read_usable(store, repository.facts.id, warn)
    rows = report.counts.get("listed", 0) + report.counts.get("uncommitted", 0)
    step = Step(log, warn, repository, choose_engine(rows), plan, None)
    committed = step.stored(frames.COMMITTED_DF)
    heads = attribute_heads(step, choose_engine, committed.figures.heads, known, depth, metadata_keys)
    sealed, sealed_run = (known.sealed, known.sealed_run) if known else (None, "")
    states = add_up_states(step, report, heads, sealed if sealed_run == plan.base_run else None)
    if report.checkpoint is not None:
        sealed, sealed_run = states.sealed, report.run_id
    holdings = Holdings(
        repository.facts.id,
        repository.namespace.uri,
        report.run_id,
        report.ended_at,
        committed.figures.retention_rules or "",
        (*states.rows, *heads.rows),
    )
    known_heads.write(store, replace(heads.known, sealed=sealed, sealed_run=sealed_run))
    holdings_files.write(store, holdings)
    log(f"branch heads hold {heads.in_all.shown}; read {counted(heads.ranges_read, 'ranges')}")
    return holdings


def read_stored(store: ObjectStore, report: Report, warn: LogLine) -> Holdings | None:
    """The stored holdings after a run; None if there are none, or they are damaged or from before its approval."""
    if head_if_there(store, stored_holdings.key_of(report.run_id)) is None:
        return None
    try:
        stored = holdings_files.read(store, report.run_id)
    except CorruptFile as damage:
        warn(f"the stored holdings are made anew: {damage}")
        return None
    # An approved dry run ends a second time, after its sweep.
    return stored if stored.time == report.ended_at else None


def newest_report(repository: OpenRepository) -> Report:
    """The report of the newest finished run of a repository. Raises CollectionError if there is none."""
    for run_id in run_folder.newest_runs(repository.store):
        report = reports.read(repository.store, run_id)
        if report is not None and report.counts and report.repository == repository.facts.id:
            return report
    raise CollectionError(f"no run of {repository.facts.id} has finished: start one with `lakefs-gc run`")
