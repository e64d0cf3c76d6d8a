"""The five steps of a run, from the listing to the report.

Every kind of run is one subtraction, `candidates = universe - live`. Kinds of run differ only in their plan.

    list_stored -> read_uncommitted -> read_committed -> mark -> sweep

The order of the steps makes them safe. The listing is stored before uncommitted data is prepared, so an object that
appears later is never a candidate. Uncommitted data is complete before commits are read, so an entry that moves from
staging into a commit is seen at least once. Right before the deletion, a recheck reads everything live again.

Each step stores one frame for the next step. An interrupted run continues after its last stored frame.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector import guards, reporting
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame import files, frames
from lakefs_gc_assets.collector.frame.files import FrameFile, StoredFrame
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check
from lakefs_gc_assets.collector.live import other_repositories, references
from lakefs_gc_assets.collector.live.commits_under_way import find_slowest_hooks
from lakefs_gc_assets.collector.live.current import (
    Committed,
    KnownLive,
    ask_committed,
    facts_folders,
    find_known_live,
    prepare_uncommitted,
    read_reasons,
    sample_staged,
)
from lakefs_gc_assets.collector.live.hidden import clear_hidden
from lakefs_gc_assets.collector.live.uncommitted import write_samples
from lakefs_gc_assets.collector.records import across_runs, report, tables
from lakefs_gc_assets.collector.records.outcomes import Kept, add_why
from lakefs_gc_assets.collector.records.plan import Flow, by_flow
from lakefs_gc_assets.collector.repository.lock import latest_clock
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import require_not_overtaken
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.subtraction import choose_candidates, subtract_committed, subtract_live
from lakefs_gc_assets.errors import (
    CollectionError,
    CorruptFile,
    GuardTripped,
    LakeFSError,
    OrderViolation,
    StorageError,
    counted,
)

Stored = StoredFrame[frames.StoredFigures]
UncommittedData = StoredFrame[frames.UncommittedFigures]
CommittedData = StoredFrame[frames.CommittedFigures]
Candidates = StoredFrame[frames.CandidateFigures]
Outcomes = StoredFrame[frames.DeletedFigures]


def list_stored(step: Step[R]) -> Stored:
    """Step 1: find the objects that may be garbage and store them as `store_df`.

    A run of the flow `committed` lists nothing: it reads the ranges that only expired commits have. If it has
    a base run, it reads only ranges that the base run did not read, and adds its pending objects.

    A run of another flow with a base run lists only slices that are not sealed, and adds the pending objects.
    """
    plan, store = step.plan, step.repository.store
    warn_of_loosening(step)
    if plan.why_clean and plan.flow.by_retention:
        step.log(f"this run builds on no earlier run: {plan.why_clean}")
    elif plan.why_clean:
        step.warn(f"a clean run instead of an optimized one: {plan.why_clean}")
    base = checkpoint.open_base_checkpoint(step)
    others = find_other_repositories(step)
    written: list[FrameFile] = []
    expired = unread = None
    if plan.flow is Flow.COMMITTED:
        parts = listing.empty_listing(store)
        expired = unread = listing.find_expired(step)
        if base:
            unread = expired.without(base.tracked.ids)
            step.log(f"run {base.run_id} and its base runs did not examine {len(unread):,} of these ranges")
        pending = (base.pending_objects(step), base.checkpoint.pending) if base else None
        written += step.write(frames.STORE_DF, listing.read_expired(step, unread, pending))
    else:
        # If an optimized run skipped slices here, no later run would list them.
        windows = None if base else frozenset(plan.windows)
        sealed = base.sealed if base else None
        parts = listing.listing(store, plan.cutoff, sealed, windows, plan.slice_window)
        shards = f" and {counted(len(parts.folders.shards), 'shards')}" if parts.folders.shards else ""
        step.log(f"cutoff {plan.cutoff:%F %T}Z; listing {counted(len(parts.slices), 'slices')}{shards}")
        if parts.limited:
            step.log(
                f"limited to {plan.scope}: {counted(len(parts.slices_elsewhere), 'slices of other windows are')} not "
                "listed"
            )
        written += listing.list_objects(step, parts)
        if base:
            written += step.write(frames.STORE_DF, base.pending_objects(step))
    figures = frames.StoredFigures(
        flow=plan.flow.value,
        slices_listed=len(parts.slices),
        slices_skipped=len(parts.skipped_slices),
        last_read_slice=min(parts.slices, default=""),
        other_folders=parts.folders.others,
        nested_namespaces=others.nested,
        repositories_not_checked=others.unchecked,
        repositories_unknown=others.refusal,
        sealed_objects=base.checkpoint.sealed_objects if base else 0,
        inventory=plan.inventory,
        why_clean=plan.why_clean,
        base_run=base.run_id if base else None,
        pending_before=base.checkpoint.pending if base else None,
        limited_to=plan.scope if parts.limited else "",
        slices_elsewhere=len(parts.slices_elsewhere),
        expired_ranges=len(expired or ()),
        expired_ranges_read=len(unread or ()),
        expired_sha256=None if expired is None else checkpoint.write_expired(store, plan.run_id, plan.attempt, expired),
    )
    checkpoint.write_listed_slices(store, plan.run_id, plan.attempt, parts.slices)
    return step.complete(frames.STORE_DF, figures, written)


def warn_of_loosening(step: Step[R]) -> None:
    """Warns of settings that the launch of this run changed, if any."""
    if step.repository.loosened:
        step.warn(f"loosened by its launch: {report.describe_loosened(step.repository.loosened)}")


def find_other_repositories(step: Step[R]) -> other_repositories.OtherRepositories:
    """Finds other repositories that may reference objects of this one. Logs those whose references are not checked."""
    repository = step.repository
    others = other_repositories.find(repository)
    if others.refusal:
        step.log(f"other repositories are unknown, so their references are not checked: {others.refusal}")
    if others.unchecked:
        step.log(
            f"not checked for references into this repository: {', '.join(others.unchecked)}, on the same bucket; "
            "list them in collection.also_live if they import from it"
        )
    return others


def read_uncommitted(step: Step[R], listed: Stored) -> UncommittedData:
    """Step 2: have the server write its uncommitted data, and store the addresses as `uncommitted_df`.

    Samples check that the data is complete, see `live.uncommitted.prepare_checked`.
    """
    step.require_attempt(listed)
    # The server omits an entry that equals the head's, and its answer lacks entries staged after the request. If the
    # head, tag or rule that kept such an entry's object goes before the refs dump, only this record keeps it live.
    reasons = read_reasons(step)
    hooks = find_slowest_hooks(step.repository)
    samples = sample_staged(step)
    data = prepare_uncommitted(step, lambda pages: step.log(f"prepare_uncommited: page {pages}"), samples)
    store_for_pages(step, "paths of some staged entries", write_samples, samples.staged[0])
    own = data.prepared[0]
    figures = frames.UncommittedFigures(
        own.server_run_ids,
        own.files,
        reasons,
        hooks.where,
        hooks.without_limit,
        samples.heads,
        pages=own.pages,
        hooks_seconds=hooks.seconds,
    )
    written = step.write_distinct(frames.UNCOMMITTED_DF, data.addresses, data.count)
    return step.complete(frames.UNCOMMITTED_DF, figures, written, (listed,), data.started_at)


def read_committed(step: Step[R], uncommitted: UncommittedData) -> CommittedData:
    """Step 3: find the live commits, read each of their ranges once, and store `committed_df`.

    An optimized run reads only ranges that its base run's checkpoint does not name. It adds the committed addresses of
    that checkpoint. A run limited to some windows reads only ranges that the previous run, limited too, did not know.
    It adds the committed addresses of that run.

    A run by retention rules needs all live ranges. If a run of the flow `unified` builds on another one, it first
    stores the objects that expired since as the frame `expired`. Then it reads only ranges without usable facts, and
    looks up addresses in the facts about the others.

    Raises:
        OrderViolation: the commits come from another source than the base run's commits.
        LakeFSError, CorruptFile: the live commits or their contents cannot be read.
    """
    step.require_attempt(uncommitted)
    base = checkpoint.open_base_checkpoint(step)
    ids_read_before = base.read_ids if base else tables.IdSet()
    prepared_until, reasons = uncommitted.manifest.span.ended_at, uncommitted.figures.reasons_before
    # A dry run need not wait: it deletes nothing, and the recheck of its approval finds wrong candidates.
    committed = ask_committed(step, prepared_until, ids_read_before, reasons, at_once=not step.plan.sweep)
    step.waited += committed.waited
    require_source_of_base_run(committed, base)
    step.log(
        f"{counted(committed.own.commits, 'commits')}, {counted(committed.ranges, 'ranges')} to read, by the "
        f"{committed.source}"
    )
    if committed.unnamed and committed.unnamed.ranges:
        step.log(f"{committed.unnamed.ranges:,} of these ranges belong to no commit: their objects count as live")
    inputs: list[StoredFrame[Any]] = [uncommitted, *store_provisional(step, committed)]
    known_live: KnownLive[R] = KnownLive()
    if step.plan.flow is Flow.COMMITTED:
        inputs.append(step.stored(frames.STORE_DF))
    if base and step.plan.follows_expiry:
        inputs += [step.stored(frames.STORE_DF), checkpoint.store_expired(step, base, committed)]
        known_live = find_known_live(step, committed, inputs, base.sealed)
    elif step.plan.limited:
        known_live = checkpoint.find_stored_live(step, committed)
    unread = committed.without(known_live.range_ids)
    addresses, count = unread.addresses(step, facts_folders(step, committed)), unread.count
    if known_live.addresses is not None:
        addresses.append(known_live.addresses)
        count += known_live.count
    carried = base.committed(step) if base else None
    run_id, attempt = step.plan.run_id, step.plan.attempt
    # Ids and addresses belong together: a recheck skips the ranges and metaranges with these ids.
    if base and carried is not None:
        addresses.append(carried)
        count += base.checkpoint.committed
        ids = base.add_read_ids(run_id, attempt, ids_read_before, committed.ids)
    else:
        ids = tables.write_run_ids(step.repository.store, run_id, attempt, committed.ids)
    written = step.write_distinct(frames.COMMITTED_DF, addresses, count)
    if step.plan.sweep:
        references.tidy_facts(step)
    if committed.definition:
        holders = committed.definition.last_holders
        store_for_pages(step, "last commits of the garbage", active_commits.write_last_holders, holders)
    store, repository = step.repository.store, step.plan.repository
    branches_before = earlier_runs.branch_baseline(store, step.plan.run_id, repository, step.warn, committed.own.heads)
    figures = describe_committed(committed, branches_before, ids)
    expired = step.stored(frames.EXPIRED_DF) if base and step.plan.follows_expiry else None
    figures = replace(
        figures,
        tracked_sha256=store_tracked_ranges(step, committed),
        heads_before=committed.own.moved_since(uncommitted.figures.heads_before),
        ranges_read=unread.ranges,
        ranges_from_facts=len(known_live.range_ids),
        addresses_from_facts=known_live.recorded,
        expired_objects=expired.count if expired else 0,
        expired_bytes=expired.manifest.object_bytes if expired else 0,
    )
    # If commits were asked for before this step began, that was too early. The order of the frames must show it.
    began = min(step.started_at, committed.own.started_at)
    return step.complete(frames.COMMITTED_DF, figures, written, inputs, began)


def store_provisional(step: Step[R], committed: Committed) -> tuple[StoredFrame[frames.NoFigures], ...]:
    """Stores addresses that are live but not permanently committed as the frame `provisional`, if there are any."""
    ranges = sum(source.ranges for source in committed.provisional)
    if not ranges:
        return ()
    bases = len(committed.own.compacted)
    step.log(
        f"{counted(ranges, 'ranges')} of compacted staging ({counted(bases, 'bases')}), or of no commit, count as live"
    )
    count = sum(source.count for source in committed.provisional)
    written = step.write_distinct(frames.PROVISIONAL_DF, committed.provisional_addresses(step), count)
    return (step.complete(frames.PROVISIONAL_DF, frames.NoFigures(), written),)


def store_tracked_ranges(step: Step[R], committed: Committed) -> str | None:
    """Stores the tracked ranges for the run by retention rules that builds on this one; returns the file's SHA-256.

    These are the live ranges; in the flow `committed`, the ranges that this run examined and that are not live. A run
    limited to some windows stores the live ranges in each flow, see `checkpoint.find_stored_live`. Returns None for
    other runs, and if the commits give no ranges, or ranges of other repositories.
    """
    if not (step.plan.flow.by_retention or step.plan.limited) or not committed.tells_ranges:
        return None
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    tracked = committed.records
    if step.plan.flow is Flow.COMMITTED:
        expired_sha256 = step.stored(frames.STORE_DF).figures.expired_sha256
        if expired_sha256 is None:
            return None
        tracked = checkpoint.read_expired(store, run_id, attempt, expired_sha256).without(committed.ids)
    return checkpoint.write_ranges(store, run_id, attempt, tracked)


def store_for_pages(step: Step[R], what: str, write: Callable[..., None], facts: object) -> None:
    """Stores facts for the pages of this run and later ones. If that fails, the run only warns."""
    try:
        write(step.repository.store, step.plan.run_id, step.plan.attempt, facts)
    except StorageError as error:
        step.warn(f"not recorded: {what}: {error}")


def record_expired_commits(step: Step[R]) -> None:
    """Records the expired commits before the deletion, so that later runs can tell expected deletions from losses."""
    try:
        active_commits.add_expired_before(step.repository.store, step.plan.run_id, step.plan.attempt)
    except (CorruptFile, StorageError) as error:
        step.warn(f"later runs cannot tell which commits had expired when this run deleted: {error}")


def require_source_of_base_run(committed: Committed, base: checkpoint.BaseCheckpoint | None) -> None:
    """Raises OrderViolation if commits come from another source than the base run's commits."""
    if base and base.report.commit_source != committed.source:
        raise OrderViolation(
            f"commits come from the {committed.source}, but in the base run {base.run_id} they came "
            f"from the {base.report.commit_source}: open a run of flow clean"
        )


def describe_committed(committed: Committed, branches_before: int | None, read_sha256: str) -> frames.CommittedFigures:
    """The figures that `committed_df` stores."""
    live, definition = committed.own, committed.definition
    figures = frames.CommittedFigures(
        commit_source=committed.source,
        commits=live.commits,
        commits_fetched=live.fetched,
        metaranges_read=len(committed.unread[0].metarange_ids),
        ranges_read=committed.ranges,
        entries_promised=committed.unread[0].promised,
        heads=dict(live.heads),
        branches_before=branches_before,
        read_sha256=read_sha256,
        unnamed_ranges=committed.unnamed.ranges if committed.unnamed else 0,
        compacted_bases=len(live.compacted),
        provisional_ranges=sum(source.ranges for source in committed.provisional),
    )
    if definition is None:
        return figures
    return replace(
        figures,
        retention=definition.counts,
        retention_rules=definition.rules_digest,
        retention_warnings=definition.warnings,
        retention_guards=tuple(map(guards.to_stored, definition.guards)),
        retention_differences="\n".join(str(difference) for difference in definition.differences),
    )


def mark(step: Step[R], listed: Stored, uncommitted: UncommittedData, committed: CommittedData) -> Candidates:
    """Step 4: subtract live objects from stored ones, and store the objects that may be deleted as `candidates`.

    It also stores the frame `sightings` for later runs, and the frame `unrecognised` for a person to examine.

    Raises:
        OrderViolation: the frames were not made in the safe order, or are of another attempt.
        GuardTripped: there are candidates, and no address is live although live commits count entries.
    """
    files.require_safe_order(listed.manifest.span, uncommitted.manifest.span, committed.manifest.span)
    step.require_attempt(listed, uncommitted, committed)
    engine = step.engine
    earlier = earlier_runs.read_sightings(step, listed.manifest.span.started_at)
    find_gap = partial(gap_check.find_gap, step, listed, uncommitted, committed)
    etags = partial(listed.rows, engine, "address", "size", "etag")
    heads, before = committed.figures.heads, committed.figures.heads_before
    columns = frames.STORE_DF.schema
    with engine.in_background(find_gap) as gap_result:
        not_committed = subtract_committed(step, listed, committed)
        rows = subtract_live(step, listed, not_committed, committed, uncommitted, earlier)
        with choose_candidates(
            engine,
            rows,
            not_committed.count,
            columns,
            lambda eligible: clear_hidden(
                step, restrict_to_plan(step, eligible), heads, columns, etags, record_heads=True, before=before
            ),
        ) as (unreferenced, reasons, cleared):
            kept = {**reasons.kept, **cleared.kept}
            earlier_runs.store_sightings(step, unreferenced, reasons.multipart, earlier, listed.manifest.span.ended_at)
            unrecognised = engine.where_among(unreferenced, "kept", (Kept.UNRECOGNISED.value,))
            count = reasons.kept.get(Kept.UNRECOGNISED.value)
            written = step.write(frames.UNRECOGNISED_DF, unrecognised) if count else ()
            step.complete(frames.UNRECOGNISED_DF, frames.NoFigures(), written)
            gap = gap_result()
            written = step.write(frames.CANDIDATES_DF, cleared.candidates, reason_adder(step))
            # A sweep checks these guards itself, right before it deletes.
            foresees = not step.plan.sweep and any(file.rows for file in written)
            if step.plan.only_addresses is not None:
                asked = sum(file.rows for file in written) + sum(cleared.kept.values())
                kept[Kept.NOT_ASKED.value] = reasons.eligible - asked
            figures = replace(
                gap,
                kept=kept,
                paths_asked=cleared.asked,
                paths_unasked=cleared.unasked,
                unreadable=cleared.unreadable,
                sweep_guards=foresee_refusals(step, listed, uncommitted, committed) if foresees else (),
            )
            stored = step.complete(frames.CANDIDATES_DF, figures, written, (listed, uncommitted, committed))
    figures_of_mark = reporting.mark_of(listed.manifest, uncommitted.manifest, committed.manifest, stored.manifest)
    guards.require_live_set(figures_of_mark)
    for obstacle in reporting.list_obstacles(figures_of_mark, stored, step.repository.settings):
        step.log(obstacle)
    for line in reporting.describe_gone(stored.manifest.figures):
        step.warn(line)
    if unasked := reporting.describe_unasked(stored, step.repository.settings):
        step.warn(unasked)
    return stored


def restrict_to_plan(step: Step[R], eligible: R) -> R:
    """Restricts eligible objects to the plan's `only_addresses`, if set."""
    if step.plan.only_addresses is None:
        return eligible
    addresses = pa.table({"address": pa.array(step.plan.only_addresses, pa.string())})
    return step.engine.among_exactly(eligible, step.engine.table(addresses))


def foresee_refusals(
    step: Step[R], listed: Stored, uncommitted: UncommittedData, committed: CommittedData
) -> tuple[tuple[str, str, str], ...]:
    """Guards that would now refuse a sweep, beside the guards on the figures of its mark.

    They cannot foresee branches or uncommitted data that disappear between mark and recheck. Other checks of a sweep,
    of clocks and uncommitted data, also run at the mark: a failure has already ended the dry run.
    """
    repository, figures = step.repository, committed.figures
    own = repository.api, repository.store, repository.namespace
    listed_at, settings = listed.manifest.span.started_at, repository.settings
    checks: tuple[Callable[[], None], ...] = (
        partial(other_repositories.require_own_addresses, *own, figures.heads),
        partial(guards.require_limited_commits, uncommitted.figures.hooks_without_limit, settings),
        partial(guards.require_fresh_mark, listed_at, latest_clock(repository), settings),
    )
    refusals = []
    for check in checks:
        try:
            check()
        except GuardTripped as guard:
            refusals.append(guards.to_stored(guard))
        except LakeFSError as error:
            refusals.append(("address form", f"the server's spelling of addresses is unknown: {error}", "See its log"))
    return tuple(refusals)


def reason_adder(step: Step[R]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function that adds the reason to candidates. If the restorations cannot be read, it marks none as restored."""
    try:
        restored = earlier_runs.restored_before(step.repository.store, step.plan.run_id)
    except CollectionError as error:
        step.warn(f"cannot mark candidates that were restored earlier: {error}")
        restored = pa.array([], pa.string())
    return partial(add_why, why=by_flow(step.plan.flow), restored=restored)


def sweep(step: Step[R], candidates: Candidates) -> tuple[Outcomes, report.Report]:
    """Step 5: delete the candidates after a recheck, and store their outcomes and the run's report.

    Candidates are deleted if the plan says so, or if these very candidates of a dry run were approved. Any other run
    only lists them.
    """
    step.require_attempt(candidates)
    step.remember(candidates)
    sweeping.require_inputs(step, candidates)
    warn_of_loosening(step)
    swept = step.plan.sweep or sweeping.approve(step, candidates)
    if swept:
        earlier_runs.forget(step.repository.store, step.plan.run_id)
    if swept and not step.plan.sweep:
        references.tidy_facts(step)
    written = [*sweep_candidates(step, candidates)] if swept else [*sweeping.decide_dry(step, candidates)]
    outcomes = step.complete(frames.DELETED_REPORT, frames.DeletedFigures(swept), written, (candidates,))
    sweeping.require_all_decided(outcomes, candidates)
    # These only read what the steps stored before.
    count_amounts = partial(reporting.count_amounts, step, outcomes)
    count_late = partial(gap_check.count_late_arrivals, step, candidates)
    with step.engine.in_background(count_amounts) as amounts_of, step.engine.in_background(count_late) as late_of:
        checkpoint_or_reason = checkpoint.write_checkpoint(step, outcomes)
        amounts, late = amounts_of(), late_of()
    # After the checkpoint: an attempt that resumes no longer reports objects as new that this list already has.
    failures = sweeping.judge_failures(step, outcomes, amounts) if swept else None
    if candidates.count and not swept:
        sweeping.log_wait_of_approval(step, step.stored(frames.UNCOMMITTED_DF))
    ended = reporting.make_report(step, outcomes, checkpoint_or_reason, amounts, late, failures)
    report.write(step.repository.store, ended)
    earlier_runs.update_index(step.repository.store, step.plan, ended, step.warn)
    step.log(f"{ended.ending.value}: {ended.did}, {ended.statistics.failed:,} failed")
    return outcomes, ended


def sweep_candidates(step: Step[R], candidates: Candidates) -> Iterator[FrameFile]:
    """Deletes the candidates lazily, in passes with a recheck before each; yields files of receipts.

    Raises:
        OrderViolation: objects were restored since this run was opened, or a newer run has swept or begun to.
        GuardTripped: a guard refuses the mark by its age or its figures, the server's spelling of addresses, or the
            result of a recheck.
        CollectionError: any other error of a recheck or a deletion, see `recheck.find_live_again`.
    """
    repository, settings = step.repository, step.repository.settings
    listed, figures_of_mark = step.stored(frames.STORE_DF), reporting.stored_mark(step)
    across_runs.require_not_restored_since(repository.store, step.plan.run_id)
    require_not_overtaken(repository.store, step.plan.run_id)
    guards.require_fresh_mark(listed.manifest.span.started_at, latest_clock(repository), settings)
    guards.require_live_set(figures_of_mark)
    for guard in guards.tripped(figures_of_mark, settings):
        raise guard
    if candidates.count:
        heads = step.stored(frames.COMMITTED_DF).figures.heads
        other_repositories.require_own_addresses(repository.api, repository.store, repository.namespace, heads)
        sweeping.wait_for_recheck(step, step.stored(frames.UNCOMMITTED_DF))
    remaining, undecided, done = sweeping.resume(step, candidates)
    yield from done
    if undecided:
        remaining, undecided, deleted_before = sweeping.exclude_deleted(
            step, remaining, undecided, listed.manifest.span.started_at
        )
        yield from deleted_before
    if undecided and step.plan.flow.by_retention:
        record_expired_commits(step)
    while undecided:
        outcomes = sweeping.sweep_once(step, candidates, remaining, undecided)
        yield from outcomes.manifest.files
        before, undecided = undecided, undecided - outcomes.count
        if undecided:
            remaining = sweeping.exclude_decided(step, remaining, before, outcomes)
            minutes = settings.recheck_valid_minutes
            step.log(f"{counted(undecided, 'candidates are')} left after {counted(minutes, 'minutes')}")
