"""The five assets of a repository. Each runs one step of `collector.run` under the repository's lock."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import dagster as dg

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.frame.files import Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, DELETED_REPORT, FRAMES, STEPS
from lakefs_gc_assets.collector.make_step import StepHost, StepRequest, step
from lakefs_gc_assets.collector.page import garbage
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.figures import SWEEP, of_step
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.reporting import mark_of
from lakefs_gc_assets.collector.run import Candidates, CommittedData, Outcomes, Stored, UncommittedData
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.defs import history, launching, pages
from lakefs_gc_assets.defs.failures import explained, readable, summary, was_interrupted
from lakefs_gc_assets.defs.history import BEGINS_OTHER, MODE_TAG, Historian, forget_unused, warnings_of
from lakefs_gc_assets.defs.io_manager import FRAME_TYPE, INPUT_TYPE, NotBegun, cell_metadata, described, table_of
from lakefs_gc_assets.defs.jobs import ApprovableGarbage, approval_address, hand_on
from lakefs_gc_assets.defs.maintenance import restore_address, undo_link
from lakefs_gc_assets.defs.pages import bars, column_lineage, column_schema, figure_definitions, link
from lakefs_gc_assets.defs.partitions import REPOSITORY_TAG, Names, assets_to_make, requested_flow, run_id_in, selected
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import OrderViolation, RunEnded, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.session import ui_address
from lakefs_gc_assets.spark.tasks import Rows

_CELLS_DESCRIBED = 200
"""With more cells, Dagster takes minutes: it searches all cells for each one, and copies earlier metadata."""


def store_df(context: dg.AssetExecutionContext, collector: Collector) -> Stored:
    """Lists the objects in the store."""
    with run_step(context, collector, begins=True) as current:
        return run.list_stored(current)


def uncommitted_df(context: dg.AssetExecutionContext, collector: Collector, store_df: Stored) -> UncommittedData:
    """Reads the addresses that are staged or tracked as copied."""
    with run_step(context, collector) as current:
        return run.read_uncommitted(current, store_df)


def committed_df(
    context: dg.AssetExecutionContext, collector: Collector, uncommitted_df: UncommittedData
) -> CommittedData:
    """Reads the addresses in live commits."""
    with run_step(context, collector) as current:
        return run.read_committed(current, uncommitted_df)


def candidates(
    context: dg.AssetExecutionContext,
    collector: Collector,
    store_df: Stored,
    uncommitted_df: UncommittedData,
    committed_df: CommittedData,
) -> Candidates:
    """Subtracts the live addresses from the stored objects."""
    with run_step(context, collector) as current:
        marked = run.mark(current, store_df, uncommitted_df, committed_df)
        # An ephemeral instance ends with its process: its charts would never be seen.
        if not context.instance.is_ephemeral:
            now = collector.clock.now()
            counts = pages.keep_counted(collector, current.repository, marked, now, context.log.warning)
            mark = mark_of(store_df.manifest, uncommitted_df.manifest, committed_df.manifest, marked.manifest)
            found = ApprovableGarbage(marked.count, marked.manifest.object_bytes, mark.known)
            link_first = _approval(context, collector, current.plan, found)
            charts = pages.garbage_charts(marked, counts, current.plan.slice_window, now)
            context.add_output_metadata({**link_first, **charts})
        return marked


def deleted_report(context: dg.AssetExecutionContext, collector: Collector, candidates: Candidates) -> Outcomes:
    """Deletes the candidates if the run sweeps, and reports their outcomes."""
    with run_step(context, collector) as current:
        outcomes, report = run.sweep(current, candidates)
    undo = undo_link(collector, context.run, report)
    Historian.from_context(context, collector).ended(current.repository.store, report, undo)
    page = pages.keep(collector, current.repository, report.run_id, context.log.warning)
    _show_report(context, collector, current.plan, report, page)
    return outcomes


def define(names: Names) -> list[dg.AssetsDefinition]:
    """The assets of a repository, in the order in which they are made."""
    return [_define(names, make) for make in (store_df, uncommitted_df, committed_df, candidates, deleted_report)]


def _define(names: Names, compute: Callable[..., StoredFrame[Any]]) -> dg.AssetsDefinition:
    """An asset named after its function.

    Args:
        compute: takes the context, the collector, and the input frames by their names.
    """
    name = compute.__name__
    figures = of_step(name)
    metadata: dict[str, object] = {"dagster/column_schema": column_schema(FRAMES[name])}
    if lineage := column_lineage(name, names.asset(name).path[:-1]):
        metadata["dagster/column_lineage"] = lineage

    @dg.asset(
        key=names.asset(name),
        ins={
            frame: dg.AssetIn(names.asset(frame), dagster_type=INPUT_TYPE)
            for frame in inspect.signature(compute).parameters
            if frame in FRAMES
        },
        description=FRAMES[name].description + (figure_definitions(figures) if figures else ""),
        partitions_def=names.partitions.definition,
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"pyspark", "parquet"},
        io_manager_key=names.qualified("frames"),
        pool=names.pool,
        metadata=metadata,
        dagster_type=FRAME_TYPE,
        # A step that launches all five assets instead makes no frame itself.
        output_required=False,
    )
    @names.bound
    def asset(
        context: dg.AssetExecutionContext, collector: dg.ResourceParam[Collector], **frames: StoredFrame[Any] | NotBegun
    ) -> Iterator[dg.Output[StoredFrame[Any]]]:
        if not_begun := [frame for frame in frames.values() if isinstance(frame, NotBegun)]:
            _launch_whole(context, collector, not_begun[0])
            return
        try:
            stored = compute(context, collector=collector, **frames)
        except RunEnded as ended:
            context.log.info(str(ended))
            stored = _made_before(context, collector)
        _note_cells(context, stored.manifest)
        yield dg.Output(stored)

    return asset


def _launch_whole(context: dg.AssetExecutionContext, collector: Collector, not_begun: NotBegun) -> None:
    """Requests a run of all five assets from the sensor, under a name without a run."""
    names = collector.names
    context.log.warning(
        f"no run named {not_begun.name} has begun over {plans.describe_windows(not_begun.windows)}, and every run "
        f"begins with store_df: the sensor {names.qualified('launch_opened_runs')} launches all five assets under "
        "this name within seconds"
    )
    # A range follows Dagster's order of windows, which differs from the order of an input's cells.
    ordered = context.instance.get_dynamic_partitions(names.partitions.windows.name or "")
    windows = [window for window in ordered if window in not_begun.windows]
    tags = names.partitions.tags(not_begun.name, windows, requested_flow(context.run).value)
    context.instance.add_run_tags(context.run_id, {REPOSITORY_TAG: names.repository, MODE_TAG: BEGINS_OTHER})
    hand_on(context, tags)


@contextmanager
def run_step(context: dg.AssetExecutionContext, collector: Collector, begins: bool = False) -> Iterator[Step[Rows]]:
    """Runs one step of the run that the context's partitions name.

    Args:
        begins: True for the first step, which opens a run if its name has none.
    Raises:
        RunEnded: the run has already ended well, and its first step is among the launched steps.
        dagster.Failure: with a one-line message; the failed run's report is stored before.
    """
    historian, run_id = Historian.from_context(context, collector), None
    try:
        at = STEPS.index(context.asset_key.path[-1])
        has_earlier_step = any(assets_to_make(context.run, STEPS[:at]))
        key, windows = selected(context.partition_keys)
        flow = requested_flow(context.run) if begins else None
        run_id = _open_named(context, collector, key, windows) if begins else collector.require_run(key, windows)
        request = StepRequest(
            run_id,
            windows,
            owner=context.run.root_run_id or context.run.run_id,
            begins=flow,
            has_earlier_step=has_earlier_step,
            has_later_step=any(assets_to_make(context.run, STEPS[at + 1 :])),
            from_start=any(assets_to_make(context.run, STEPS[:1])),
            name=None if run_id_in(key) else key,
            frame=STEPS[at],
        )
        permit = launching.find(context.instance, collector.name, run_id, context.run)
        if permit is None and request.name is not None:
            permit = launching.BY_MATERIALIZING
        host = StepHost(
            open=lambda: collector.open_for(permit, flow),
            last_opened=collector.last_opened,
            engine=lambda repository: collector.engine(repository.settings),
            now=collector.clock.now,
            log=context.log.info,
            warn=context.log.warning,
            explain=summary,
            locks=collector.locks,
        )
        with step(request, host) as current:
            if not has_earlier_step:
                historian.begins(current.repository.store, current.plan, current.repository.settings)
            yield current
            if isinstance(current.engine, SparkEngine):
                context.add_output_metadata(link("Jobs and stages", ui_address(current.engine.spark), "spark"))
    except RunEnded:
        raise
    except BaseException as error:
        if isinstance(error, OrderViolation):
            forget_unused(context.instance, collector, context.partition_keys, context.run)
        historian.failed(collector.last_opened(), run_id, collector.clock.now(), summary(error))
        if run_id is not None and not was_interrupted(error):
            pages.keep_failed(collector, run_id, context.log.warning)
        failure = explained(error)
        if failure is None:
            raise
        raise failure from error


def _open_named(context: dg.AssetExecutionContext, collector: Collector, key: str, windows: tuple[str, ...]) -> str:
    """The id of the run to begin: the run of a key, or a new one for a name without a run.

    The new id is generated. So the launcher of the run cannot approve it without having seen it.

    Raises OrderViolation for a key that cannot be a name.
    """
    run_id = run_id_in(key)
    if run_id is None:
        plans.require_name(key)
        collector.open()  # A process may have opened the repository long ago.
        run_id = collector.run_of(key, windows)
    if run_id is None:
        run_id = layout.issue_run_id(collector.clock.now())
        context.log.info(f"opens run {run_id} under the name {key}, over {plans.describe_windows(windows)}")
    return run_id


def _made_before(context: dg.AssetExecutionContext, collector: Collector) -> StoredFrame[Any]:
    """The stored frame of an asset of a run that has ended well, with the metadata of its first materialization.

    Raises dagster.Failure if it is no longer stored: the run's key is removed, so that its cells do not stay failed.
    """
    historian = Historian.from_context(context, collector)
    with readable():
        key, windows = selected(context.partition_keys)
        run_id = collector.require_run(key, windows)
        repository = collector.open()
        historian.did_nothing(run_id)
        try:
            stored = StoredFrame.from_run(
                repository.store, repository.opener, run_id, FRAMES[context.asset_key.path[-1]]
            )
        except OrderViolation:
            collector.names.partitions.forget(context.instance, key)
            raise
        if stored.frame is CANDIDATES_DF:
            plan, now = plans.read(repository.store, run_id), collector.clock.now()
            engine = partial(collector.engine, repository.settings)
            counts = garbage.find_counts(repository.store, stored.manifest)
            counts = counts or garbage.count_candidates(repository.store, stored, engine, now)
            context.add_output_metadata(pages.garbage_charts(stored, counts, plan.slice_window, now))
        elif stored.frame is DELETED_REPORT and (report := reports.read(repository.store, run_id)) is not None:
            page = pages.shown(collector, repository, run_id)
            _show_report(context, collector, plans.read(repository.store, run_id), report, page)
    return stored


def _note_cells(context: dg.AssetExecutionContext, manifest: Manifest[Any]) -> None:
    """Adds metadata of cells for the UI; nothing for runs over many windows."""
    cells = context.partition_keys
    for cell in cells if len(cells) <= _CELLS_DESCRIBED else ():
        assert isinstance(cell, dg.MultiPartitionKey)
        shown = cell_metadata(manifest, cell.keys_by_dimension["slice"])
        context.add_asset_metadata(shown, context.asset_key, cell)


def _show_report(
    context: dg.AssetExecutionContext, collector: Collector, plan: Plan, report: Report, page: Mapping[str, object]
) -> None:
    """Shows a report, its page, the pending decision about a dry run, and a link that undoes the newest deletion."""
    links = link("Show objects to restore", restore_address(collector, context.run, report))
    if not links:
        approval = _approval(context, collector, plan, ApprovableGarbage.from_report(report)) if report.dry_run else {}
        links = {**approval, **history.newest_undo(context.instance, collector.names)}
    context.add_output_metadata({**report_figures(report), **links, **page})


def _approval(
    context: dg.AssetExecutionContext, collector: Collector, plan: Plan, found: ApprovableGarbage
) -> Mapping[str, dg.MarkdownMetadataValue]:
    """The pending decision about a dry run, with a link if the UI has one; empty for a run that sweeps."""
    if plan.sweep:
        return {}
    if not found.objects:
        return {"next": dg.MetadataValue.md("Nothing to approve: the run found no garbage")}
    asks_name = not launching.is_named_by_proxy(context.instance)
    address = approval_address(collector, context.run, plan, found, asks_name=asks_name)
    by_command = dg.MetadataValue.md(f"Approve by `lakefs-gc approve {plan.run_id}`: {found}")
    return link(f"Approve: {found}", address) or {"next": by_command}


def report_figures(report: Report) -> dict[str, object]:
    """Metadata of a report for the UI; bytes in quarantine do not count as freed."""
    rows = {
        name: described(objects, figure.unit, object_bytes)
        for name, figure, objects, object_bytes in report.statistics.labelled(SWEEP)
        if name != "quarantined" or report.moved
    }
    return {
        "ending": report.ending.value,
        **warnings_of(report),
        "outcome": table_of(rows),
        "from_stored_to_deleted": funnel(report),
    }


def funnel(report: Report) -> dg.MarkdownMetadataValue:
    """A bar chart of the examined objects: live, kept for other reasons, garbage, and deleted or moved garbage."""
    statistics = report.statistics
    steps = {
        "looked at": statistics.listed,
        "live": statistics.live,
        "kept for other reasons": statistics.kept,
        "garbage": statistics.candidates,
        "deleted": statistics.deleted,
        "moved to quarantine": statistics.quarantined,
    }
    rows = [(f"{name}: {counted(count, 'objects')}", count) for name, count in steps.items() if count is not None]
    return bars("from listed to deleted", rows)
