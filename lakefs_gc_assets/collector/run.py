"""A run, from the first object that is listed to its report.

Every kind of run is one subtraction, `candidates = universe - live`, in five steps; kinds differ in their plan alone.
The order of the steps is what makes them safe. The listing is stored before uncommitted data is prepared, so whatever
appears later is never a candidate. Uncommitted data is complete before commits are read, so an entry that moves from
staging into a commit is seen at least once. And right before anything is deleted, everything live is asked for again.

    list_stored -> read_uncommitted -> read_committed -> mark -> sweep

Each step stores one frame, which the next one reads: a run that is broken off goes on where it stopped.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FrameFile, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    DELETED_REPORT,
    EXPIRED_DF,
    PROVISIONAL_DF,
    STORE_DF,
    UNCOMMITTED_DF,
    UNRECOGNISED_DF,
    CandidateFigures,
    CommittedFigures,
    DeletedFigures,
    NoFigures,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, open_base_checkpoint, store_expired
from lakefs_gc_assets.collector.incremental.checkpoint_writer import count_late_arrivals, write_checkpoint
from lakefs_gc_assets.collector.incremental.earlier_runs import branch_baseline, restored_before
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
from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories
from lakefs_gc_assets.collector.live.uncommitted import write_samples
from lakefs_gc_assets.collector.records import across_runs, report, tables
from lakefs_gc_assets.collector.records.outcomes import Kept, add_why
from lakefs_gc_assets.collector.records.plan import Flow, by_flow
from lakefs_gc_assets.collector.records.report import Report, describe_loosened
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.reporting import (
    count_amounts,
    describe_gone,
    describe_unasked,
    list_obstacles,
    make_report,
    mark_of,
    stored_mark,
)
from lakefs_gc_assets.collector.repository.lock import latest_clock
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import passes
from lakefs_gc_assets.collector.sweep.recheck import require_not_overtaken
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.listing import find_expired, read_expired
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

Stored = StoredFrame[StoredFigures]
UncommittedData = StoredFrame[UncommittedFigures]
CommittedData = StoredFrame[CommittedFigures]
Candidates = StoredFrame[CandidateFigures]
Outcomes = StoredFrame[DeletedFigures]


def list_stored(step: Step[R]) -> Stored:
    """The first step: finds the objects that may be garbage, and stores them as `store_df`.

    A run of the flow `committed` lists nothing: it takes what only expired commits hold. Where it builds on another
    one, it reads the expired ranges that its base run had not looked at, and adds the pending objects of that run. A
    run of another flow that builds on one lists the slices that are not sealed, and adds the pending objects too.
    """
    plan, store = step.plan, step.repository.store
    warn_of_loosening(step)
    if plan.why_clean and plan.flow.by_retention:
        step.log(f"this run builds on no other: {plan.why_clean}")
    elif plan.why_clean:
        step.warn(f"a clean run instead of an optimized one: {plan.why_clean}")
    before = open_base_checkpoint(step)
    around = find_other_repositories(step)
    parts = listing.nothing(store)
    written: list[FrameFile] = []
    expired = unread = None
    if plan.flow is Flow.COMMITTED:
        expired = unread = find_expired(step)
        if before:
            unread = expired.without(before.tracked.ids)
            step.log(f"{len(unread):,} of them were not looked at by run {before.run_id} and those that it builds on")
        pending = (before.pending_objects(step), before.checkpoint.pending) if before else None
        written += step.write(STORE_DF, read_expired(step, unread, pending))
    else:
        # What an optimized run would leave out the next one would never look at.
        windows = None if before else frozenset(plan.windows)
        sealed = before.sealed if before else None
        parts = listing.listing(store, plan.cutoff, sealed, windows, plan.slice_window)
        shards = f" and {counted(len(parts.folders.shards), 'shards')}" if parts.folders.shards else ""
        step.log(f"cutoff {plan.cutoff:%F %T}Z; listing {counted(len(parts.slices), 'slices')}{shards}")
        if parts.limited:
            step.log(
                f"limited to {plan.scope}: {counted(len(parts.slices_elsewhere), 'slices of other windows are')} not "
                "listed"
            )
        written += listing.list_objects(step, parts)
        if before:
            written += step.write(STORE_DF, before.pending_objects(step))
    figures = StoredFigures(
        flow=plan.flow.value,
        slices_listed=len(parts.slices),
        slices_skipped=len(parts.skipped_slices),
        last_read_slice=min(parts.slices, default=""),
        other_folders=parts.folders.others,
        nested_namespaces=around.nested,
        repositories_not_checked=around.unchecked,
        repositories_unknown=around.refusal,
        sealed_objects=before.checkpoint.sealed_objects if before else 0,
        inventory=plan.inventory,
        why_clean=plan.why_clean,
        base_run=before.run_id if before else None,
        pending_before=before.checkpoint.pending if before else None,
        limited_to=plan.scope if parts.limited else "",
        slices_elsewhere=len(parts.slices_elsewhere),
        expired_ranges=len(expired or ()),
        expired_ranges_read=len(unread or ()),
        expired_sha256=None if expired is None else checkpoint.write_expired(store, plan.run_id, plan.attempt, expired),
    )
    checkpoint.write_listed_slices(store, plan.run_id, plan.attempt, parts.slices)
    return step.complete(STORE_DF, figures, written)


def warn_of_loosening(step: Step[R]) -> None:
    """Warns of the settings that a launch changed for this run, where it changed any."""
    if step.repository.loosened:
        step.warn(f"loosened by its launch: {describe_loosened(step.repository.loosened)}")


def find_other_repositories(step: Step[R]) -> OtherRepositories:
    """Finds other repositories that may hold objects of this one, and logs those whose references are not checked."""
    repository = step.repository
    around = other_repositories.find(repository)
    if around.refusal:
        step.log(f"other repositories are not known, and their references are not checked: {around.refusal}")
    if around.unchecked:
        step.log(
            f"not checked for references into this repository: {', '.join(around.unchecked)}, on the same bucket; "
            "name them in collection.also_live where they import from it"
        )
    return around


def read_uncommitted(step: Step[R], listed: Stored) -> UncommittedData:
    """The second step: makes the server write its uncommitted data, and stores the addresses as `uncommitted_df`.

    Whether the data is complete is checked by samples, see `live.uncommitted.prepare_checked`.
    """
    step.require_attempt(listed)
    # The server omits an entry that equals the head's, and an entry staged after it was asked is in no answer. If the
    # head, tag or rule that kept its object goes before the refs dump, only this keeps it live.
    reasons = read_reasons(step)
    hooks = find_slowest_hooks(step.repository)
    samples = sample_staged(step)
    data = prepare_uncommitted(step, lambda pages: step.log(f"prepare_uncommited: page {pages}"), samples)
    note_for_pages(step, "where some entries are staged", write_samples, samples[0])
    own = data.prepared[0]
    figures = UncommittedFigures(
        own.server_run_ids,
        own.files,
        reasons,
        hooks.where,
        hooks.without_limit,
        pages=own.pages,
        hooks_seconds=hooks.seconds,
    )
    written = step.write_distinct(UNCOMMITTED_DF, data.addresses, data.count)
    return step.complete(UNCOMMITTED_DF, figures, written, (listed,), data.started_at)


def read_committed(step: Step[R], uncommitted: UncommittedData) -> CommittedData:
    """The third step: finds the live commits, reads each of their ranges once, and stores `committed_df`.

    An optimized run reads only the ranges that its base run's checkpoint does not name, and takes over the committed
    addresses of that checkpoint. A run by retention rules needs all live ranges. Where one of the flow `unified` builds
    on another one, it first stores what expired since as the frame `expired`; then it reads only ranges without usable
    facts, and looks up addresses in the facts about the others.

    Raises:
        OrderViolation: the commits come from another source than those of the base run.
        LakeFSError, CorruptFile: the live commits, or what they hold, cannot be known.
    """
    step.require_attempt(uncommitted)
    before = open_base_checkpoint(step)
    ids_read_before = before.read_ids if before else IdSet()
    # A dry run deletes nothing: what it names by mistake is found out when it is approved.
    prepared_until, reasons = uncommitted.manifest.span.ended_at, uncommitted.figures.reasons_before
    committed = ask_committed(step, prepared_until, ids_read_before, reasons, at_once=not step.plan.sweep)
    step.waited += committed.waited
    require_source_of_base_run(committed, before)
    step.log(
        f"{counted(committed.own.commits, 'commits')}, {counted(committed.ranges, 'ranges')} to read, by the "
        f"{committed.source}"
    )
    if committed.unnamed and committed.unnamed.ranges:
        step.log(f"{committed.unnamed.ranges:,} of these ranges no commit names: what they hold counts as live")
    inputs: list[StoredFrame[Any]] = [uncommitted, *store_provisional(step, committed)]
    known_live: KnownLive[R] = KnownLive()
    if step.plan.flow is Flow.COMMITTED:
        inputs.append(step.stored(STORE_DF))
    if before and step.plan.follows_expiry:
        inputs += [step.stored(STORE_DF), store_expired(step, before, committed)]
        known_live = find_known_live(step, committed, inputs, before.sealed)
    unread = committed.without(known_live.range_ids)
    addresses, count = unread.addresses(step, facts_folders(step, committed)), unread.count
    if known_live.addresses is not None:
        addresses.append(known_live.addresses)
        count += known_live.count
    carried = before.committed(step) if before else None
    run_id, attempt = step.plan.run_id, step.plan.attempt
    # Ids and addresses belong together: a recheck skips what these ids name.
    if before and carried is not None:
        addresses.append(carried)
        count += before.checkpoint.committed
        ids = before.add_read_ids(run_id, attempt, ids_read_before, committed.ids)
    else:
        ids = tables.write_run_ids(step.repository.store, run_id, attempt, committed.ids)
    written = step.write_distinct(COMMITTED_DF, addresses, count)
    if step.plan.sweep:
        references.tidy_facts(step)
    if committed.definition:
        holders = committed.definition.last_holders
        note_for_pages(step, "which commits held the garbage last", active_commits.write_last_holders, holders)
    store, repository = step.repository.store, step.plan.repository
    branches_before = branch_baseline(store, step.plan.run_id, repository, step.warn, committed.own.heads)
    figures = describe_committed(committed, branches_before, ids)
    expired = step.stored(EXPIRED_DF) if before and step.plan.follows_expiry else None
    figures = replace(
        figures,
        tracked_sha256=track(step, committed),
        ranges_read=unread.ranges,
        ranges_from_facts=len(known_live.range_ids),
        addresses_from_facts=known_live.recorded,
        expired_objects=expired.count if expired else 0,
        expired_bytes=expired.manifest.object_bytes if expired else 0,
    )
    # What was asked before this step began would be too early, and is to be found out by the order of the frames.
    began = min(step.started_at, committed.own.started_at)
    return step.complete(COMMITTED_DF, figures, written, inputs, began)


def store_provisional(step: Step[R], committed: Committed) -> tuple[StoredFrame[NoFigures], ...]:
    """Stores what is live and not committed for good as the frame `provisional`; nothing where there is none."""
    ranges = sum(source.ranges for source in committed.provisional)
    if not ranges:
        return ()
    bases = len(committed.own.compacted)
    step.log(
        f"{counted(ranges, 'ranges')} of compacted staging ({counted(bases, 'bases')}), or named by no commit, count "
        "as live"
    )
    count = sum(source.count for source in committed.provisional)
    written = step.write_distinct(PROVISIONAL_DF, committed.provisional_addresses(step), count)
    return (step.complete(PROVISIONAL_DF, NoFigures(), written),)


def track(step: Step[R], committed: Committed) -> str | None:
    """Stores which ranges are tracked, for the run by retention rules that builds on this one; returns the SHA-256.

    These are the ranges that are live; in the flow `committed`, those that it looked at and that are not live. None in
    other flows, and if the commits give no ranges, or ranges of other repositories.
    """
    if not step.plan.flow.by_retention or not committed.tells_ranges:
        return None
    store, run_id, attempt = step.repository.store, step.plan.run_id, step.plan.attempt
    tracked = committed.records
    if step.plan.flow is Flow.COMMITTED:
        expired_sha256 = step.stored(STORE_DF).figures.expired_sha256
        if expired_sha256 is None:
            return None
        tracked = checkpoint.read_expired(store, run_id, attempt, expired_sha256).without(committed.ids)
    return checkpoint.write_ranges(store, run_id, attempt, tracked)


def note_for_pages(step: Step[R], what: str, write: Callable[..., None], facts: object) -> None:
    """Stores facts for the pages of this run and later ones; without them the run is as good."""
    try:
        write(step.repository.store, step.plan.run_id, step.plan.attempt, facts)
    except StorageError as error:
        step.warn(f"{what} is not noted: {error}")


def note_expired(step: Step[R]) -> None:
    """Notes what had expired, before it is deleted, so that later runs can say what is gone if rules become longer."""
    try:
        active_commits.add_expired_before(step.repository.store, step.plan.run_id, step.plan.attempt)
    except (CorruptFile, StorageError) as error:
        step.warn(f"later runs cannot say which commits had expired when this run deleted: {error}")


def require_source_of_base_run(committed: Committed, before: BaseCheckpoint | None) -> None:
    """Raises OrderViolation where the commits come from another source than those of the base run."""
    if before and before.report.commit_source != committed.source:
        raise OrderViolation(
            f"commits come from the {committed.source}; in run {before.run_id}, which this one builds on, they came "
            f"from the {before.report.commit_source}: open a run that looks at everything"
        )


def describe_committed(committed: Committed, branches_before: int | None, read_sha256: str) -> CommittedFigures:
    """The figures of the third step."""
    live, definition = committed.own, committed.definition
    figures = CommittedFigures(
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
    """The fourth step: subtracts what is live from what is stored, and stores what may be deleted as `candidates`.

    It also stores the frames `sightings`, which later runs read, and `unrecognised`, which a person may look at.

    Raises:
        OrderViolation: the frames were not made in the safe order, or are of another attempt.
        GuardTripped: there are candidates, and nothing was found to be live although live commits count entries.
    """
    files.require_safe_order(listed.manifest.span, uncommitted.manifest.span, committed.manifest.span)
    step.require_attempt(listed, uncommitted, committed)
    engine = step.engine
    earlier = earlier_runs.read_sightings(step, listed.manifest.span.started_at)
    find_gap = partial(gap_check.find_gap, step, listed, uncommitted, committed)
    etags = partial(listed.rows, engine, "address", "size", "etag")
    heads = committed.figures.heads
    with engine.in_background(find_gap) as gap_result:
        not_committed = subtract_committed(step, listed, committed)
        rows = subtract_live(step, listed, not_committed, committed, uncommitted, earlier)
        with choose_candidates(
            engine,
            rows,
            not_committed.count,
            STORE_DF.schema,
            lambda eligible: clear_hidden(
                step, only_asked(step, eligible), heads, STORE_DF.schema, etags, record_heads=True
            ),
        ) as (unreferenced, reasons, cleared):
            kept = {**reasons.kept, **cleared.kept}
            earlier_runs.keep_sightings(step, unreferenced, reasons.multipart, earlier, listed.manifest.span.ended_at)
            strange = engine.where_among(unreferenced, "kept", (Kept.UNRECOGNISED.value,))
            written = step.write(UNRECOGNISED_DF, strange) if reasons.unrecognised else ()
            step.complete(UNRECOGNISED_DF, NoFigures(), written)
            gap = gap_result()
            written = step.write(CANDIDATES_DF, cleared.candidates, say_why(step))
            # A sweep asks for the present state itself.
            foresees = not step.plan.sweep and any(file.rows for file in written)
            if step.plan.only_addresses is not None:
                going = sum(file.rows for file in written) + sum(cleared.kept.values())
                kept[Kept.NOT_ASKED.value] = reasons.eligible - going
            figures = replace(
                gap,
                kept=kept,
                paths_asked=cleared.asked,
                paths_unasked=cleared.unasked,
                unreadable=cleared.unreadable,
                sweep_guards=foresee_refusals(step, listed, committed) if foresees else (),
            )
            stored = step.complete(CANDIDATES_DF, figures, written, (listed, uncommitted, committed))
    figures_of_mark = mark_of(listed.manifest, uncommitted.manifest, committed.manifest, stored.manifest)
    guards.require_live_set(figures_of_mark)
    for obstacle in list_obstacles(figures_of_mark, stored, step.repository.settings):
        step.log(obstacle)
    for line in describe_gone(stored.manifest.figures):
        step.warn(line)
    if unasked := describe_unasked(stored, step.repository.settings):
        step.warn(unasked)
    return stored


def only_asked(step: Step[R], eligible: R) -> R:
    """The objects that the plan limits the run to, of those that may go; all of them where it names none."""
    if step.plan.only_addresses is None:
        return eligible
    addresses = pa.table({"address": pa.array(step.plan.only_addresses, pa.string())})
    return step.engine.among_exactly(eligible, step.engine.table(addresses))


def foresee_refusals(step: Step[R], listed: Stored, committed: CommittedData) -> tuple[tuple[str, str, str], ...]:
    """Guards that refuse a sweep by more than the figures of its mark, as far as they would now.

    Only time tells what else a recheck would refuse: branches or uncommitted data that are gone since the mark. What
    a sweep reads anew in the same way as the mark - clocks, uncommitted data - has ended a dry run by now.
    """
    repository, figures = step.repository, committed.figures
    own = repository.api, repository.store, repository.namespace
    listed_at, settings = listed.manifest.span.started_at, repository.settings
    checks: tuple[Callable[[], None], ...] = (
        partial(other_repositories.require_own_addresses, *own, figures.heads),
        partial(guards.require_limited_commits, step.stored(UNCOMMITTED_DF).figures.hooks_without_limit, settings),
        partial(guards.require_fresh_mark, listed_at, latest_clock(repository), settings),
    )
    refusals = []
    for check in checks:
        try:
            check()
        except GuardTripped as guard:
            refusals.append(guards.to_stored(guard))
        except LakeFSError as error:
            refusals.append(("address form", f"how the server spells addresses cannot be seen: {error}", "See its log"))
    return tuple(refusals)


def say_why(step: Step[R]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Adds the reason to candidates; does not mark restored objects if the restorations cannot be read."""
    try:
        restored = restored_before(step.repository.store, step.plan.run_id)
    except CollectionError as error:
        step.warn(f"cannot mark candidates that were restored earlier: {error}")
        restored = pa.array([], pa.string())
    return partial(add_why, why=by_flow(step.plan.flow), restored=restored)


def sweep(step: Step[R], candidates: Candidates) -> tuple[Outcomes, Report]:
    """The last step: deletes the candidates after a recheck, and stores what became of each, and the run's report.

    Candidates are deleted where the plan says so, or where these very candidates of a dry run were approved. A dry run
    only lists them.
    """
    step.require_attempt(candidates)
    passes.require_inputs(step, candidates)
    warn_of_loosening(step)
    swept = step.plan.sweep or passes.approve(step, candidates)
    if swept:
        earlier_runs.forget(step.repository.store, step.plan.run_id)
    if swept and not step.plan.sweep:
        references.tidy_facts(step)
    written = [*sweep_candidates(step, candidates)] if swept else [*passes.decide_dry(step, candidates)]
    outcomes = step.complete(DELETED_REPORT, DeletedFigures(swept), written, (candidates,))
    passes.require_all_decided(outcomes, candidates)
    with step.engine.in_background(partial(count_amounts, step, outcomes)) as counted:
        checkpoint_or_reason, amounts = write_checkpoint(step, outcomes), counted()
    failures = passes.judge_failures(step, outcomes, amounts) if swept else None
    late = count_late_arrivals(step, candidates)
    if candidates.count and not swept:
        passes.log_wait_of_approval(step, step.stored(UNCOMMITTED_DF))
    ended = make_report(step, outcomes, checkpoint_or_reason, amounts, late, failures)
    report.write(step.repository.store, ended)
    earlier_runs.note(step.repository.store, step.plan, ended, step.warn)
    step.log(f"{ended.ending.value}: {ended.did}, {ended.statistics.failed:,} failed")
    return outcomes, ended


def sweep_candidates(step: Step[R], candidates: Candidates) -> Iterator[FrameFile]:
    """Deletes the candidates in passes, each after a recheck, as somebody iterates; yields files of receipts.

    Raises:
        OrderViolation: objects were restored since this run was opened, or a newer run has swept or begun to.
        GuardTripped: a guard refuses the mark by its age or its figures, the server's spelling of addresses, or what a
            recheck found.
        CollectionError: whatever else a recheck or a deletion raises, see `recheck.find_live_again`.
    """
    repository, settings = step.repository, step.repository.settings
    listed, figures_of_mark = step.stored(STORE_DF), stored_mark(step)
    across_runs.require_not_restored_since(repository.store, step.plan.run_id)
    require_not_overtaken(repository.store, step.plan.run_id)
    guards.require_fresh_mark(listed.manifest.span.started_at, latest_clock(repository), settings)
    guards.require_live_set(figures_of_mark)
    for guard in guards.tripped(figures_of_mark, settings):
        raise guard
    if candidates.count:
        heads = step.stored(COMMITTED_DF).figures.heads
        other_repositories.require_own_addresses(repository.api, repository.store, repository.namespace, heads)
        passes.wait_for_recheck(step, step.stored(UNCOMMITTED_DF))
    remaining, undecided, done = passes.resume(step, candidates)
    yield from done
    if undecided:
        remaining, undecided, deleted_before = passes.exclude_deleted(
            step, remaining, undecided, listed.manifest.span.started_at
        )
        yield from deleted_before
    if undecided and step.plan.flow.by_retention:
        note_expired(step)
    while undecided:
        outcomes = passes.sweep_once(step, candidates, remaining, undecided)
        yield from outcomes.manifest.files
        before, undecided = undecided, undecided - outcomes.count
        if undecided:
            remaining = passes.exclude_decided(step, remaining, before, outcomes)
            minutes = settings.recheck_valid_minutes
            step.log(f"{counted(undecided, 'candidates are')} left after {counted(minutes, 'minutes')}")
