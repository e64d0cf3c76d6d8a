"""The passes of a sweep: each rechecks live objects, and deletes for as long as this recheck is valid.

An interrupted sweep is resumed: candidates with a receipt of their deletion are excluded. A dry run whose candidates
were approved is swept like any other run.

Candidates are deleted in bulk, under the lock, with a receipt for every address. The lock is checked right before each
batch, and the receipts of the batch are stored right after it. If the lock is lost, each task that deletes finishes at
most the batch that it has begun.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import compress

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards, reporting, standing_approvals
from lakefs_gc_assets.collector.engine.port import ChangeBatches, R
from lakefs_gc_assets.collector.engine.work import first_of_each
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    DELETED_REPORT,
    RECEIPTS,
    STORE_DF,
    UNCOMMITTED_DF,
    CandidateFigures,
    DeletedFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.incremental.earlier_runs import are_gone, deleted_since
from lakefs_gc_assets.collector.live.commits_under_way import longest_commit
from lakefs_gc_assets.collector.live.current import sample_staged
from lakefs_gc_assets.collector.records import across_runs, report, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.across_runs import Failures, Verdict
from lakefs_gc_assets.collector.records.outcomes import Amount, Outcome
from lakefs_gc_assets.collector.records.plan import Approval
from lakefs_gc_assets.collector.repository.lock import LockToken, verify
from lakefs_gc_assets.collector.repository.repository import Clock, Pace
from lakefs_gc_assets.collector.standing_approvals import ApprovedWork, StandingApproval, require_standing
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep.recheck import RESOLUTION, Countdown, Validity, find_live_again, store_time
from lakefs_gc_assets.errors import (
    CollectionError,
    ObjectArchived,
    ObjectNotFound,
    OrderViolation,
    StorageError,
    counted,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectFacts, ObjectStore, OpensStore, deletes_until

_NEVER_DELETED = (Layout.SPECIAL, Layout.UNRECOGNISED)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Deletes candidates of a run, whose lock is held.

    Attributes:
        attempt: the attempt of the run, for its receipts.
        countdown: once it is over, no further batch begins; None for no limit. It counts in the process that began it.
        pace: keeps to a rate of objects, in the process that began it; None for no limit.
        standing: the standing approval by which the candidates are deleted; None if a person approved them.
    """

    store: ObjectStore
    run_id: str
    lock: LockToken
    clock: Clock
    attempt: str | None = None
    countdown: Countdown | None = None
    pace: Pace | None = None
    standing: StandingApproval | None = None

    def delete(self, candidates: pa.Table) -> Iterator[pa.Table]:
        """Deletes candidates (at least address, size, slice, slice_window) batch by batch; yields their receipts.

        Candidates that remain when the countdown is over, even in the middle of a batch, get no receipts.

        Raises:
            LockLost: before a batch, when the lock is no longer this run's.
            GuardTripped: before a batch, when the standing approval was withdrawn or replaced.
            StorageError: the store failed for a whole batch, or does not give the result for each object.
            CollectionError: a candidate has a name that must never be deleted.
        """
        size = self.batch_size if self.pace is None else self.pace.at_once(self.batch_size)
        for start in range(0, candidates.num_rows, size):
            batch = candidates.slice(start, size)
            if self.pace is not None:
                self.pace.wait(batch.num_rows)
            self.verify_permitted()
            # After the calls to the store, which may take their time.
            if self.is_over():
                return
            self.check_names(batch.column("address").to_pylist())
            yield self.decide(batch)

    def verify_permitted(self) -> None:
        """Raises LockLost if the lock is no longer this run's, or GuardTripped if its standing approval has changed."""
        verify(self.store, self.lock)
        if self.standing is not None:
            require_standing(self.store, self.standing)

    def check_names(self, addresses: Sequence[str]) -> None:
        """Raises CollectionError for a name that must never be deleted."""
        for address in addresses:
            if layout.parse(address).layout in _NEVER_DELETED:
                raise CollectionError(
                    f"{address!r} is among the candidates, but lakeFS never gives such a name to data"
                )

    @property
    def batch_size(self) -> int:
        """Number of candidates in a batch."""
        return self.store.delete_limit

    def is_over(self) -> bool:
        """True if the recheck is no longer valid."""
        return self.countdown is not None and self.countdown.is_over()

    def decide(self, batch: pa.Table) -> pa.Table:
        """Deletes a batch and stores its receipts; returns them."""
        rows = self.delete_batch(batch, Outcome.ACCEPTED)
        if rows.num_rows:
            receipts.write(self.store, self.run_id, uuid.uuid4().hex, rows)
        return rows

    def delete_batch(self, batch: pa.Table, accepted: Outcome) -> pa.Table:
        """Asks the store to delete a batch, as long as the countdown is not over; returns receipts yet to be stored.

        Args:
            accepted: the outcome of objects whose deletion the store accepted.
        """
        addresses = batch.column("address").to_pylist()
        with deletes_until(self.is_over):
            results = {outcome.key: outcome for outcome in self.store.delete(addresses)}
        if results.keys() != set(addresses):
            raise StorageError(
                f"the store answered for {counted(len(results), 'keys')}, but {len(addresses)} deletions were "
                "requested: the outcome of the others is unknown. List the candidates to see which are gone"
            )
        asked = [results[address].result is not DeleteResult.LEFT for address in addresses]
        outcomes = list(compress((results[address] for address in addresses), asked))
        return receipts.table(
            batch.filter(pa.array(asked, pa.bool_())),
            [accepted if outcome.result is DeleteResult.ACCEPTED else Outcome.FAILED for outcome in outcomes],
            [outcome.error for outcome in outcomes],
            self.clock.now(),
            self.attempt,
            [outcome.version_id for outcome in outcomes],
        )


BATCH = 100
"""Candidates that are copied before their deletion begins: few, since copies of large objects take long."""
_CALLERS = 16


def key(run_id: str, address: str) -> str:
    """The key of an object's copy in the quarantine of a run."""
    return f"{layout.QUARANTINE_PREFIX}{run_id}/{address}"


@dataclass(frozen=True, slots=True)
class Quarantine(Sweep):
    """Moves candidates of a run, whose lock is held, into quarantine.

    The store copies each candidate to `_lakefs/retention/gc/quarantine/<run id>/<address>`, and only then deletes it.
    The copy is outside of `data/`, so no listing finds it. When the copies of a batch are verified, and before its
    first deletion, receipts `copied` are stored. A receipt `quarantined` says that the object is no longer at its
    address. A sweep that is killed in between repeats the batch without making its copies again.

    If an object cannot be deleted, its copy is removed. An archived object cannot be copied, and is kept: that is no
    failure.
    """

    @property
    def batch_size(self) -> int:
        """Number of candidates in a batch."""
        return min(BATCH, self.store.delete_limit)

    def decide(self, batch: pa.Table) -> pa.Table:
        """Copies a batch and deletes the copied objects; returns the receipts.

        If the countdown is over once the copies are made, nothing is deleted, and only receipts of failed copies are
        returned.
        """
        addresses = batch.column("address").to_pylist()
        with ThreadPoolExecutor(_CALLERS) as pool:
            copies = list(pool.map(self._copied, addresses))
        now = self.clock.now()
        failed = [isinstance(copy, StorageError) for copy in copies]
        reasons = [copy for copy in copies if isinstance(copy, StorageError)]
        etags = [copy.etag for copy in copies if isinstance(copy, ObjectFacts)]
        refused = receipts.table(
            batch.filter(pa.array(failed)),
            [Outcome.KEPT_ARCHIVED if isinstance(error, ObjectArchived) else Outcome.FAILED for error in reasons],
            [f"there is no copy in quarantine: {error}" for error in reasons],
            now,
            self.attempt,
        )
        copied = batch.filter(pa.array([not each for each in failed])).append_column(
            "copy_etag", pa.array(etags, pa.string())
        )
        kept = receipts.of_outcome(copied, Outcome.COPIED, now, self.attempt)
        receipts.write(self.store, self.run_id, uuid.uuid4().hex, pa.concat_tables([refused, kept]))
        self.verify_permitted()
        if not copied.num_rows or self.is_over():
            return refused
        deleted = self.delete_batch(copied, Outcome.QUARANTINED)
        if not deleted.num_rows:
            return refused
        receipts.write(self.store, self.run_id, uuid.uuid4().hex, deleted)
        self._remove_copies_of_undeleted(deleted)
        return pa.concat_tables([refused, deleted])

    def _remove_copies_of_undeleted(self, decided: pa.Table) -> None:
        """Removes the copies of objects that could not be deleted, since each later run would add another copy.

        A reported failure may be wrong, so the object must be there with the size of its copy. If that cannot be
        checked, or a copy cannot be removed, the copy stays: it does no harm, and a purge removes it later. A batch is
        one request whose answer names each object. If the answer is lost, the batch ends with an error, and all copies
        stay.
        """
        refused = decided.filter(pc.equal(decided.column("outcome"), Outcome.FAILED.value)).column("address")
        with ThreadPoolExecutor(_CALLERS) as pool:
            stays = list(pool.map(self._is_there, refused.to_pylist()))
        addresses = refused.filter(pa.array(stays, pa.bool_())).to_pylist()
        if addresses:
            with suppress(StorageError):
                self.store.delete([key(self.run_id, address) for address in addresses])

    def _is_there(self, address: str) -> bool:
        try:
            return self.store.head(address).size == self.store.head(key(self.run_id, address)).size
        except StorageError:
            return False

    def _copied(self, address: str) -> ObjectFacts | StorageError:
        """Makes sure that there is a copy; returns its facts, or the error. Without a copy nothing is deleted."""
        copy = key(self.run_id, address)
        try:
            try:
                return self.store.copy(address, copy)
            except ObjectNotFound:
                # A sweep that was killed after the deletion has left the copy.
                return self.store.head(copy)
        except StorageError as error:
            return error


def require_dry_run(store: ObjectStore, run_id: str) -> Manifest[CandidateFigures]:
    """The manifest of the candidates of a dry run that can be approved.

    The run came to its end, so its checks have passed, and it was not approved and swept already. If its approved sweep
    failed, it may be approved again.

    Raises CollectionError if the run cannot be approved, or its candidates are no longer stored.
    """
    plan, stored_report = plans.read(store, run_id), report.read(store, run_id)
    if plan.sweep:
        raise CollectionError(f"run {run_id} was not a dry run: its deletions need no approval")
    if stored_report is not None and stored_report.is_complete and not stored_report.dry_run:
        raise CollectionError(f"run {run_id} was already approved: {stored_report.did}")
    if stored_report is None or not (stored_report.is_complete or plans.read_approval(store, run_id) is not None):
        raise CollectionError(f"run {run_id} did not finish: start a new one")
    try:
        return files.read_manifest(store, run_id, CANDIDATES_DF)
    except OrderViolation:
        raise CollectionError(f"run {run_id} has no candidates stored: they were removed because it is old") from None


def store_approval(
    store: ObjectStore, candidates: Manifest[CandidateFigures], now: datetime, approver: str | StandingApproval
) -> None:
    """Stores an approval of exactly these candidates. If their run's last step is repeated, it deletes them.

    Args:
        now: UTC.
    """
    approval = _approval(candidates, now, str(approver))
    if isinstance(approver, StandingApproval):
        approval = replace(approval, standing=approver.approval_id)
    plans.write_approval(store, approval)


def store_first_approval(
    store: ObjectStore, candidates: Manifest[CandidateFigures], now: datetime, approver: str
) -> str | None:
    """Returns the first approver of exactly these candidates. If there is none, stores this approval as the first.

    Args:
        now: UTC.

    Returns:
        The approver; None if this approval is the first.

    Raises:
        CollectionError: the same name approved them first, or the first approval cannot be read.
    """
    run_id = candidates.span.run_id
    first = plans.read_first_approval(store, run_id)
    if first is None or first.candidates_digest != candidates.digest:
        plans.write_first_approval(store, _approval(candidates, now, approver))
        return None
    if plans.person(first.approved_by) == plans.person(approver):
        raise CollectionError(
            f"run {run_id} was approved at {first.approved_at:%F %T}Z by {first.approved_by}, and needs a second "
            "approval under another name"
        )
    return first.approved_by


def _approval(candidates: Manifest[CandidateFigures], now: datetime, approver: str) -> Approval:
    span = candidates.span
    return Approval(span.run_id, span.attempt, candidates.digest, now, approver)


MOST_DELETING = 32
"""Maximum tasks that delete at the same time: they can send many times the requests that one prefix of S3 takes.

With more tasks, each slows down to so few keys a second that the store refuses the last keys of a batch for a minute.
"""
_RECEIPT_COLUMNS = ("address", "size", "slice", "slice_window")
"""Columns that a receipt copies from its candidate."""


def approve(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> bool:
    """True if exactly these candidates of a dry run are approved. First stores an approval by `approve_run`, if set."""
    store, plan = step.repository.store, step.plan
    if step.repository.settings.approve_run == plan.run_id:
        approver = f"{step.lock.process}, on the command line" if step.lock else "the command line"
        store_approval(store, candidates.manifest, step.repository.clock.now(), approver)
        step.log(f"the candidates of run {plan.run_id} are approved: deleting them after a recheck")
    stored_approval = plans.read_approval(store, plan.run_id)
    return stored_approval is not None and stored_approval.candidates_digest == candidates.manifest.digest


def standing_approval(step: Step[R]) -> StandingApproval | None:
    """The standing approval by which the candidates are deleted, read and checked anew; None if a person approved them.

    Raises GuardTripped if it does not cover them any more.
    """
    approval = None if step.plan.sweep else plans.read_approval(step.repository.store, step.plan.run_id)
    if approval is None or not approval.standing:
        return None
    mark = reporting.stored_mark(step)
    planned, work = standing_approvals.planned_sweep(step.plan.run_id, mark, mark.known), ApprovedWork.COLLECTION
    return standing_approvals.require_covered(step.repository, work, planned, approval_id=approval.standing)


def decide_dry(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> tuple[FrameFile, ...]:
    """Writes receipts (RECEIPTS) for the candidates of a dry run; their outcome says that nothing was deleted."""
    return step.write(DELETED_REPORT, _decide(step, candidates.rows(step.engine), Outcome.DRY_RUN))


def log_wait_of_approval(step: Step[R], uncommitted: StoredFrame[UncommittedFigures]) -> None:
    """Logs the time until which an approval of this dry run waits, and the hook that is the reason."""
    figures = uncommitted.figures
    span = longest_commit(figures.hooks_seconds or 0.0, step.repository.settings)
    if span:
        until = uncommitted.manifest.span.ended_at + span
        hook = f", which {figures.slowest_hooks} may delay" if figures.slowest_hooks else ""
        step.log(f"an approval before {until:%F %T}Z waits until then, for commits in progress{hook}")


def require_inputs(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> None:
    """Raises OrderViolation if an input of the candidates was stored again after they were made.

    A recheck skips ranges that `committed_df` names as read. A process that lost the lock may still store that frame
    anew. Ranges that only the new frame names were not subtracted from the candidates, and the recheck would miss them.
    """
    # Read the manifests anew: another process may have stored others since this step read them.
    for stored in step.stored_now(STORE_DF, UNCOMMITTED_DF, COMMITTED_DF):
        if stored.manifest.digest != candidates.manifest.inputs[stored.name]:
            raise OrderViolation(
                f"{stored.name} was materialized again after {candidates.name} was made from it. Materialize "
                f"{candidates.name} again"
            )


def require_all_decided(outcomes: StoredFrame[DeletedFigures], candidates: StoredFrame[CandidateFigures]) -> None:
    """Raises CollectionError if the report lacks candidates."""
    lost = candidates.count - outcomes.count
    if lost > 0:
        raise CollectionError(
            f"the outcome of {lost:,} of {counted(candidates.count, 'candidates')} is unknown. Materialize "
            "deleted_report again: it continues from the receipts"
        )


def wait_for_recheck(step: Step[R], uncommitted: StoredFrame[UncommittedFigures]) -> None:
    """Waits until the mark's uncommitted data is older than the longest commit, see `commits_under_way`.

    A server may also omit data from its answers without saying so for about that time: two checks in quick succession
    would miss the same data. The age of uncommitted data counts, since a listing may be hours older if a run was
    interrupted in between. An approval may come from another machine, and clocks may be set meanwhile. So the time must
    have passed by this machine's clock and by the store's.

    Raises:
        GuardTripped: the maximum duration of commits is unknown.
        StorageError: the store cannot be asked for the time.
    """
    repository, figures = step.repository, uncommitted.figures
    guards.require_limited_commits(figures.hooks_without_limit, repository.settings)
    span = longest_commit(figures.hooks_seconds or 0.0, repository.settings)
    if not span:
        return
    run_id = step.plan.run_id
    # The frame was stored after the last answer had come.
    stored_at = repository.store.head(run_folder.manifest(run_id, UNCOMMITTED_DF.name)).last_modified
    left = stored_at + span + RESOLUTION - store_time(repository.store, run_id)
    hook = f" since {figures.slowest_hooks} may delay a commit" if figures.slowest_hooks else ""
    moment = max(uncommitted.manifest.span.ended_at + span, repository.clock.now() + left)
    step.waited += repository.wait_until(moment, step.log, f"checking live data again{hook}")


def resume(step: Step[R], candidates: StoredFrame[CandidateFigures]) -> tuple[R, int, tuple[FrameFile, ...]]:
    """The candidates that no earlier attempt at this sweep has deleted, their number, and files of earlier receipts.

    Deletions of an interrupted attempt are part of the report, even if there is nothing left to delete.
    """
    engine, repository = step.engine, step.repository
    rows, keys = candidates.rows(engine), receipts.keys(repository.store, step.plan.run_id)
    if not keys:
        return rows, candidates.count, ()
    at_most = len(keys) * repository.store.delete_limit
    with engine.cached(receipts.rows(engine, repository.opener, keys), at_most) as earlier:
        deleted = engine.where_among(earlier, "outcome", receipts.GONE)
        written = step.write(DELETED_REPORT, engine.map_by_address(deleted, first_of_each, RECEIPTS, at_most))
        receipts_before = engine.count(earlier)
    done = step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), written)
    remaining = engine.without_exactly(rows, done.rows(engine, "address"), candidates.count + done.count)
    left = engine.count(remaining)
    step.log(
        f"resumed after {receipts_before:,} receipts; {left:,} of {counted(candidates.count, 'candidates are')} left"
    )
    return remaining, left, written


def exclude_deleted(
    step: Step[R], remaining: R, left: int, listed_at: datetime
) -> tuple[R, int, tuple[FrameFile, ...]]:
    """The candidates that no other run has deleted since this one listed them, their number, and files about the rest.

    An older run may have swept meanwhile, and this run would claim its deletions: the store accepts to delete a missing
    object, and adds a second delete marker if it keeps versions. Deletions before the listing do not count: an object
    that is listed after them was put back, and is garbage again.

    Args:
        left: number of candidates that remain.
        listed_at: start of this run's listing, UTC. Other machines' clocks may differ by the skew: the store is asked
            for objects that were deleted so close to it.
    """
    engine, skew = step.engine, step.plan.skew
    elsewhere = engine.among_exactly(deleted_since(step, listed_at - skew), remaining)
    elsewhere = engine.where(elsewhere, partial(_are_deleted, step.repository.opener, listed_at + skew))
    with engine.cached(engine.distinct(engine.select(elsewhere, "address")), left) as deleted:
        count = engine.count(deleted)
        if not count:
            return remaining, left, ()
        rows = engine.among_exactly(remaining, deleted, left + count)
        written = step.write(DELETED_REPORT, _decide(step, rows, Outcome.DELETED_BY_ANOTHER_RUN))
        done = step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), written)
    step.log(f"{counted(count, 'candidates were')} deleted by another run after this run listed them")
    return exclude_decided(step, remaining, left, done), left - count, written


def _are_deleted(opener: OpensStore, certain_from: datetime, rows: pa.RecordBatch) -> pa.BooleanArray:
    """True for objects (DELETIONS) that were deleted from this moment on, and for others that are gone now."""
    certain = pc.greater_equal(rows.column("decided_at"), pa.scalar(certain_from, rows.schema.field("decided_at").type))
    gone = are_gone(opener, rows.filter(pc.invert(certain)))
    return pc.replace_with_mask(certain, pc.invert(certain), gone)


def sweep_once(
    step: Step[R], candidates: StoredFrame[CandidateFigures], remaining: R, left: int
) -> StoredFrame[DeletedFigures]:
    """Rechecks live objects, deletes for as long as the recheck is valid, and stores receipts (RECEIPTS).

    Args:
        left: number of candidates that remain.

    Raises:
        CollectionError: nothing could be deleted in the time for which a recheck is valid.
        OrderViolation: an input of the candidates was stored again.
        GuardTripped: the standing approval does not cover the candidates any more.
    """
    engine, repository = step.engine, step.repository
    samples = sample_staged(step)
    # Begun before the recheck: its answers may lack objects that become live while it runs.
    span = timedelta(minutes=repository.settings.recheck_valid_minutes)
    valid = Validity.begin(repository.store, step.plan.run_id, span)
    again = engine.among_exactly(find_live_again(step, samples), remaining)
    # After the recheck has read the inputs: storing them later changes nothing any more.
    require_inputs(step, candidates)
    with (
        engine.name_work(f"recheck and delete {counted(left, 'candidates')}"),
        engine.cached(engine.distinct(engine.select(again, "address")), left) as live,
    ):
        kept = _decide(step, engine.among_exactly(remaining, live, 2 * left), Outcome.KEPT_LIVE)
        garbage = engine.select(engine.without_exactly(remaining, live, 2 * left), *_RECEIPT_COLUMNS)
        tasks, standing = _limit_tasks(step), standing_approval(step)
        deleted = engine.map_batches(engine.spread(garbage, tasks), _deleter(step, valid, tasks, standing), RECEIPTS)
        written = step.write(DELETED_REPORT, engine.union(deleted, kept))
    outcomes = step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), written)
    if not outcomes.count:
        raise CollectionError(
            "nothing could be deleted while a recheck was valid: raise collection.recheck_valid_minutes"
        )
    return outcomes


def judge_failures(step: Step[R], outcomes: StoredFrame[DeletedFigures], amounts: Mapping[Outcome, Amount]) -> Verdict:
    """Decides if failed deletions fail the run, and updates the stored list of objects that cannot be deleted."""
    engine, store = step.engine, step.repository.store
    undeletable_before = across_runs.read_undeletable(store)
    failed, rows = amounts[Outcome.FAILED].objects, outcomes.rows(engine, "address", "outcome", "error")
    failures: list[tuple[str, str | None]] = []
    if failed:
        failed_rows = engine.collect(
            engine.where_among(rows, "outcome", (Outcome.FAILED.value,)), across_runs.UNDELETABLE_LIMIT + 1
        )
        failures = [(row["address"], row["error"]) for row in failed_rows.to_pylist()]
    settled: set[str] = set()
    if undeletable_before:
        listed = engine.table(
            pa.table({"address": pa.array([each.address for each in undeletable_before], pa.string())})
        )
        decided = engine.collect(
            engine.among_exactly(rows, listed, outcomes.count + len(undeletable_before))
        ).to_pylist()
        settled = {row["address"] for row in decided if row["outcome"] != Outcome.FAILED}
    deleted_count = amounts[Outcome.ACCEPTED].objects + amounts[Outcome.QUARANTINED].objects
    verdict = across_runs.judge_undeletable(
        undeletable_before, Failures(failures, failed, deleted_count), settled, step.repository.clock.now()
    )
    if verdict.undeletable != undeletable_before:
        across_runs.write_undeletable(store, verdict.undeletable)
    return verdict


def exclude_decided(step: Step[R], remaining: R, left: int, outcomes: StoredFrame[DeletedFigures]) -> R:
    """The candidates that have no outcome yet.

    Args:
        left: number of candidates that remained before.
    """
    return step.engine.without_exactly(remaining, outcomes.rows(step.engine, "address"), left + outcomes.count)


def _decide(step: Step[R], rows: R, outcome: Outcome) -> R:
    """Receipts (RECEIPTS) for rows that are not deleted."""
    now, attempt = step.repository.clock.now(), step.plan.attempt

    def decide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from receipts.of_outcome(pa.Table.from_batches([batch]), outcome, now, attempt).to_batches()

    return step.engine.map_batches(step.engine.select(rows, *_RECEIPT_COLUMNS), decide, RECEIPTS)


def _limit_tasks(step: Step[R]) -> int | None:
    """Maximum number of tasks that delete; None for no maximum.

    If the rate is limited, each task keeps to its share, however late it runs. There are at most as many tasks as run
    at the same time, and few enough for each to delete half a batch a second, which it manages even if the store is
    slow.
    """
    settings = step.repository.settings
    if not settings.max_delete_rate:
        # In quarantine most of the time goes to copies, one by one.
        return None if settings.quarantines or step.engine.tasks_at_once <= MOST_DELETING else MOST_DELETING
    batch = BATCH if settings.quarantines else step.repository.store.delete_limit
    return max(1, min(step.engine.tasks_at_once, int(2 * settings.max_delete_rate / batch)))


def _deleter(step: Step[R], valid: Validity, tasks: int | None, standing: StandingApproval | None) -> ChangeBatches:
    """A function that deletes the rows of a task, and yields their receipts."""
    plan, settings, opener, clock = step.plan, step.repository.settings, step.repository.opener, step.repository.clock
    kind = Quarantine if settings.quarantines else Sweep
    token, rate = step.lock_token, settings.max_delete_rate / (tasks or 1)

    def delete(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = opener.open()
        sweep: Sweep | None = None
        for batch in batches:
            # The countdown begins right before the first batch, however late this task begins.
            if sweep is None:
                countdown = valid.countdown(store, plan.run_id, clock)
                sweep = kind(store, plan.run_id, token, clock, plan.attempt, countdown, Pace(rate, clock), standing)
            for rows in sweep.delete(pa.Table.from_batches([batch])):
                yield from rows.to_batches()

    return delete
