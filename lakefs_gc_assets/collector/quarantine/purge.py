"""Purges the quarantine: permanently deletes copies that have been there long enough, unless they are live again.

`LiveCheck` determines live addresses as a sweep does, right before deletions and again when the answer is too old.
Objects that are live again are restored first and keep their copies. Such a copy is deleted once the object that it was
made from is back at its address.

Before a batch is deleted, it is listed in a file beside the copies; its receipts `purged` are stored afterwards. If a
purge is killed in between, the next one stores the receipts of the copies that are gone.
"""

import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import COPIES, RECEIPTS
from lakefs_gc_assets.collector.incremental.earlier_runs import count_branches, without_deleted
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.current import (
    Committed,
    ask_committed,
    prepare_uncommitted,
    read_reasons,
    sample_staged,
)
from lakefs_gc_assets.collector.live.hidden import clear_hidden
from lakefs_gc_assets.collector.quarantine import restore
from lakefs_gc_assets.collector.records import across_runs, run_folder, tables
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.outcomes import BaseFate, Outcome, size
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.lock import Lock, LockToken, locked, verify
from lakefs_gc_assets.collector.repository.repository import Clock, Clocks, Moment, OpenRepository, Pace
from lakefs_gc_assets.collector.step import Step, require_own_plan
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import require_own_namespace, require_retention_holds
from lakefs_gc_assets.errors import CollectionError, CorruptFile, LogLine, StorageError, counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore, delete_all, deletes_until, keys_below

_BEGUN = "purging/"
"""Folder of the files that list batches to be deleted; no lakeFS address begins with this name."""
_NEVER_PURGED = pa.array([Layout.SPECIAL.value, Layout.UNRECOGNISED.value])


@dataclass(frozen=True)
class Moved:
    """A run's copies in quarantine.

    Attributes:
        since: when the store wrote the last receipt of the run's sweep, UTC; without receipts, when the run started.
        copies: the present copies (COPIES).
        restored: number of copies whose objects were restored; they stay until they are purged.
    """

    plan: Plan
    since: datetime
    copies: pa.Table
    restored: int = 0

    @property
    def run_id(self) -> str:
        """The run that moved the objects."""
        return self.plan.run_id

    @property
    def size(self) -> int:
        """Bytes of all copies."""
        return pc.sum(self.copies.column("size")).as_py() or 0

    @property
    def amount(self) -> str:
        """Objects and bytes in words."""
        restored = f" ({self.restored:,} restored, copies stay until purged)" if self.restored else ""
        return f"{counted(self.copies.num_rows, 'objects')}, {size(self.size)}{restored}"


@dataclass(frozen=True, slots=True)
class PurgeVerdict:
    """Decision which addresses are live.

    Attributes:
        live: referenced addresses.
        unsure: undecided addresses.
        as_of: start of the last look. Addresses that became live later may be missing.
    """

    live: frozenset[str]
    unsure: frozenset[str]
    as_of: Moment

    def is_over(self, clock: Clock, valid: timedelta) -> bool:
        """True if the verdict is too old to delete by."""
        return self.as_of.passed(clock) >= valid


Check = Callable[[Sequence[Moved]], PurgeVerdict]
"""Determines the live addresses in quarantine, anew with each call. Its exceptions end the purge."""


class PurgeFate(BaseFate):
    """Result for a copy."""

    PURGED = "purged"
    RESTORED = "live again, and brought back"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Purged:
    """Result for one copy of `size` bytes; `why` is the reason it is neither purged nor restored, else None."""

    run_id: str
    address: str
    size: int
    fate: PurgeFate
    why: str | None = None


def in_quarantine(repository: OpenRepository, run_id: str | None, unreadable: dict[str, str]) -> Iterator[Moved]:
    """This repository's copies in quarantine by run, newest run first.

    Args:
        run_id: the only run to examine; None for all.
        unreadable: receives runs without usable plan (missing, damaged, of another repository) and runs at which the
            store fails, with the reason. Their copies are left out: only the plan defines which copies are live.
    """
    store, wanted = repository.store, repository.settings.only_addresses
    folders = store.list_level(layout.QUARANTINE_PREFIX).prefixes
    any_restored = across_runs.read_restoration(store) is not None
    names = (layout.parse_copy(folder)[0] for folder in folders)
    for each in sorted(name for name in names if layout.is_xid(name) and run_id in (None, name)):
        try:
            plan = plans.read(store, each)
            require_own_plan(plan, repository)
            copies = list_copies(store, plan)
            read = layout.read_names(copies.column("address").combine_chunks(), plan.slice_window)
            copies = copies.filter(pc.invert(pc.is_in(read.layouts, _NEVER_PURGED)))
            if wanted is not None:
                copies = copies.filter(_among(copies, frozenset(wanted)))
            restored = _restored(store, plan, copies) if any_restored else 0
            moved = Moved(plan, last_receipt(store, plan), copies, restored)
        except CollectionError as error:
            unreadable[each] = str(error)
            continue
        if copies.num_rows or wanted is None:
            yield moved


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """The contents of the quarantine, run by run.

    Attributes:
        due: runs whose objects have been there long enough to be purged, newest first.
        waiting: the other runs, newest first.
        unreadable: by run, the reason its copies cannot be judged and stay: its plan is missing, damaged, or of another
            repository, or the store fails.
        after: how long objects stay in quarantine.
    """

    due: tuple[Moved, ...]
    waiting: tuple[Moved, ...]
    after: timedelta
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def describe_unreadable(self) -> Iterator[str]:
        """A line for each run whose copies stay."""
        for run_id, why in self.unreadable.items():
            yield f"quarantine: objects of run {run_id} stay: {why}; `lakefs-gc restore {run_id} --yes` restores them"

    def due_at(self, moved: Moved) -> datetime:
        """The earliest time to purge a run's objects, UTC."""
        return moved.since + self.after

    def described(self) -> list[dict[str, object]]:
        """The contents of the quarantine as data: due runs first, runs that cannot be judged last."""
        judged: list[dict[str, object]] = [
            {
                "run_id": moved.run_id,
                "objects": moved.copies.num_rows,
                "bytes": moved.size,
                "restored": moved.restored,
                "due_at": self.due_at(moved),
                "due": is_due,
            }
            for is_due, group in ((True, self.due), (False, self.waiting))
            for moved in group
        ]
        return [*judged, *({"run_id": run_id, "error": why, "due": False} for run_id, why in self.unreadable.items())]


def plan_purge(repository: OpenRepository, run_id: str | None, lock: Lock | None = None) -> PurgePlan:
    """Finds the objects that a purge would check.

    Args:
        run_id: the only run to examine; None for all.
        lock: the repository's lock, just written: its time in the store is one of the clocks that must agree. None to
            use only this machine's clock, to show which runs are due.
    Raises:
        GuardTripped: the clocks disagree.
        CollectionError: the id is invalid, or the requested run has nothing in quarantine or an unreadable plan.
    """
    if run_id:
        run_folder.folder(run_id)
    now = repository.clock.now()
    if lock is not None:
        clocks = Clocks.read(now, repository.api.server_clocks, lock.store_clock)
        guards.require_clocks_agree(clocks, repository.skew)
        now = clocks.earliest
    after = timedelta(days=repository.settings.quarantine_days)
    unreadable: dict[str, str] = {}
    every = [*in_quarantine(repository, run_id, unreadable)]
    if run_id and not every:
        raise CollectionError(unreadable.get(run_id, f"run {run_id} has nothing in quarantine"))
    due = tuple(each for each in every if each.since + after <= now)
    return PurgePlan(due, tuple(each for each in every if each.since + after > now), after, unreadable)


def purge_by(
    repository: OpenRepository,
    run_id: str | None,
    owner: str,
    check: Callable[[Plan, Lock], Check],
    warn: LogLine,
    planned: Callable[[int], None] = lambda count: None,
) -> Iterator[Purged]:
    """Purges objects that have been in quarantine long enough, with any liveness check, during iteration.

    Args:
        check: makes the liveness check for runs of this plan.
        planned: receives the number of due copies, before the first is decided.
    Raises:
        CollectionError: the quarantine of the requested run may not be purged yet; or see `purge`.
    """
    with locked(repository, "purge", owner, warn) as lock:
        plan = plan_purge(repository, run_id, lock)
        if run_id and not plan.due:
            (waiting,) = plan.waiting
            raise CollectionError(
                f"objects that run {run_id} moved to quarantine may be purged from {plan.due_at(waiting):%F %T}Z: "
                "lower collection.quarantine_days to purge earlier"
            )
        planned(sum(moved.copies.num_rows for moved in plan.due))
        for excluded, why in plan.unreadable.items():
            yield left_out(excluded, why)
        for by_retention in (False, True):
            group = [moved for moved in plan.due if moved.plan.flow.by_retention is by_retention]
            if not group:
                continue
            # Its errors end the purge, also for the other group: a server or store that cannot tell live objects is no
            # basis for deleting. Retention counts ages back from the time of the group's newest run.
            live = check(group[0].plan, lock)
            valid = timedelta(minutes=repository.settings.recheck_valid_minutes)
            pace = Pace(repository.settings.max_delete_rate, repository.clock)
            for purged in purge(repository.store, group, live, lock.token, repository.clock, valid):
                yield purged
                # The next batch is deleted when its first result is requested.
                pace.wait(1)


def purge(
    store: ObjectStore, moved: Sequence[Moved], check: Check, lock: LockToken, clock: Clock, valid: timedelta
) -> Iterator[Purged]:
    """Deletes the copies of runs permanently, or restores them, during iteration; yields the result for each.

    May be repeated after a failure. After a restoration, the next run is a clean one. If the store fails at one run's
    copies, that is a result, and the other runs' copies are still purged.

    Args:
        moved: copies of runs that share one definition of live objects.
        check: determines the live addresses.
        lock: the repository's lock, held by the caller.
        valid: how long a verdict is valid.
    Raises:
        LockLost: before a batch, if the lock is no longer held.
        CollectionError: live addresses cannot be determined, or not fast enough.
        StorageError: the lock could not be read.
    """
    pending = []
    for each in moved:
        verify(store, lock)
        try:
            _settle(store, each.plan)
        except CorruptFile as corrupt:
            yield left_out(each.run_id, f"{corrupt} Delete this file when the record of that purge is no longer needed")
            continue
        except StorageError as error:
            yield _failed(each, error)
            continue
        if each.copies.num_rows:
            pending.append(each)
    while pending:
        verdict = check(pending)
        rest: list[Moved] = []
        for each in pending:
            # A store that fails for all runs ends the purge here.
            verify(store, lock)
            try:
                copies = yield from _emptied(store, each, verdict, lock, clock, valid)
            except StorageError as error:
                yield _failed(each, error)
                continue
            if copies.num_rows:
                rest.append(replace(each, copies=copies))
        if _count(rest) == _count(pending):
            raise CollectionError(
                "no object could be purged while the check of live data was valid: raise "
                "collection.recheck_valid_minutes"
            )
        pending = rest


def left_out(run_id: str, why: str) -> Purged:
    """The result for copies of a run with unreadable files: all stay."""
    return Purged(run_id, sweeping.key(run_id, ""), 0, PurgeFate.KEPT, why)


def _failed(moved: Moved, error: StorageError) -> Purged:
    """The result for copies of a run at which the store failed. The next purge finds out which copies are gone."""
    why = f"the store failed, and the other objects of this run stay: {error}. Purge again"
    return Purged(moved.run_id, sweeping.key(moved.run_id, ""), 0, PurgeFate.FAILED, why)


def _emptied(
    store: ObjectStore, moved: Moved, verdict: PurgeVerdict, lock: LockToken, clock: Clock, valid: timedelta
) -> Generator[Purged, None, pa.Table]:
    """Restores and deletes copies of one run; returns the copies that are left when the verdict is too old."""
    live = moved.copies.filter(_among(moved.copies, verdict.live))
    held = moved.copies.filter(_among(moved.copies, verdict.live | verdict.unsure))
    back = restore.find_back(store, moved.run_id, held.column("address").to_pylist())
    yield from _brought_back(store, moved.plan, live.filter(pc.invert(_among(live, back))), lock, clock)
    for row in moved.copies.filter(_among(moved.copies, verdict.unsure - verdict.live - back)).to_pylist():
        why = (
            "it may be staged with the content of a committed object: its path is not valid text, or more objects "
            "needed this check than collection.hidden_suspect_limit allows"
        )
        yield Purged(moved.run_id, row["address"], row["size"], PurgeFate.KEPT, why)
    copies = moved.copies.filter(pc.invert(_among(moved.copies, (verdict.live | verdict.unsure) - back)))

    is_over = partial(verdict.is_over, clock, valid)
    for start in range(0, copies.num_rows, store.delete_limit):
        verify(store, lock)
        # Checked after the call to the store, which may be slow.
        if is_over():
            return copies.slice(start)
        left = yield from _delete(store, moved.plan, copies.slice(start, store.delete_limit), clock, is_over)
        if left.num_rows:
            return pa.concat_tables([left, copies.slice(start + store.delete_limit)])
    return copies.slice(copies.num_rows)


def _count(moved: Sequence[Moved]) -> int:
    return sum(each.copies.num_rows for each in moved)


def list_copies(store: ObjectStore, plan: Plan) -> pa.Table:
    """The copies of a run (COPIES), with any names; lists of a purge are left out."""
    folder = sweeping.key(plan.run_id, "")
    batches = [pa.table(batch.select(["key", "size", "etag"])) for batch in store.list(folder)]
    if not batches:
        return COPIES.empty_table()
    listed = pa.concat_tables(batches).combine_chunks()
    keys = listed.column("key").combine_chunks()
    addresses = pc.utf8_slice_codeunits(keys, len(folder))
    read = layout.read_names(addresses, plan.slice_window)
    columns = [addresses, listed["size"], read.slices, read.windows, listed["etag"], keys]
    copies = pa.table(columns, schema=COPIES).filter(pc.invert(pc.starts_with(addresses, _BEGUN)))
    return copies.sort_by("address")


def last_receipt(store: ObjectStore, plan: Plan) -> datetime:
    """When the store wrote the last receipt of the run's sweep, UTC. Copies may have the time of their originals."""
    folder = run_folder.receipts(plan.run_id)
    later = tuple(folder + begins for begins in (receipts.OF_RESTORE, receipts.OF_PURGE))
    times = [each.last_modified for each in store.list_level(folder).objects if not each.key.startswith(later)]
    return max(times, default=plan.started_at)


def _restored(store: ObjectStore, plan: Plan, copies: pa.Table) -> int:
    """Number of copies whose objects were restored; unreadable receipts are ignored."""
    rows = receipts.read(store, plan.run_id, lambda damage: None, receipts.OF_RESTORE)
    return pc.sum(_among(copies, frozenset(rows.column("address").to_pylist()))).as_py() or 0


def _among(copies: pa.Table, addresses: Set[str]) -> pa.ChunkedArray:
    return pc.is_in(copies.column("address"), pa.array(sorted(addresses), pa.string()))


def _brought_back(store: ObjectStore, plan: Plan, live: pa.Table, lock: LockToken, clock: Clock) -> Iterator[Purged]:
    if not live.num_rows:
        return
    sizes = dict(zip(live.column("address").to_pylist(), live.column("size").to_pylist(), strict=True))
    # Live copies without a readable receipt are restored as well.
    rows = restore.undoable(store, plan.run_id, lambda damage: None)
    rows = rows.filter(_among(rows, frozenset(sizes)))
    # Copies without a receipt: the sweep was killed before it deleted anything of their batch.
    without = live.filter(pc.invert(pc.is_in(live.column("address"), rows.column("address").combine_chunks())))
    rows = pa.concat_tables([rows, receipts.of_outcome(without, Outcome.COPIED, clock.now())])
    for each in restore.restore_copies(store, plan.run_id, rows, lock, clock):
        fate = PurgeFate.FAILED
        if each.fate.is_well:
            fate = PurgeFate.RESTORED if each.why is None else PurgeFate.KEPT
        yield Purged(plan.run_id, each.address, sizes[each.address], fate, each.why)


def _delete(
    store: ObjectStore, plan: Plan, batch: pa.Table, clock: Clock, is_over: Callable[[], bool]
) -> Generator[Purged, None, pa.Table]:
    """Deletes the copies of a batch permanently; returns the copies that are left because the time is over."""
    batch_id = f"{receipts.OF_PURGE}{uuid.uuid4().hex}"
    begun = sweeping.key(plan.run_id, _BEGUN + batch_id)
    store.put(begun, tables.encode(receipts.of_outcome(batch, Outcome.PURGED, clock.now())))
    with deletes_until(is_over):
        outcomes = {outcome.key: outcome for outcome in store.delete(batch.column("key").to_pylist())}
    if outcomes.keys() != set(batch.column("key").to_pylist()):
        raise StorageError(
            f"the store answered for {counted(len(outcomes), 'keys')}, {batch.num_rows} were requested: purge again"
        )
    rows = batch.to_pylist()
    left = {row["address"] for row in rows if outcomes[row["key"]].result is DeleteResult.LEFT}
    if left:
        # An unanswered request may have deleted some of these copies.
        left.intersection_update(list_copies(store, plan).column("address").to_pylist())
    failed = {key for key, outcome in outcomes.items() if outcome.result is DeleteResult.FAILED}
    fates = [PurgeFate.FAILED if row["key"] in failed else PurgeFate.PURGED for row in rows]
    are_deleted = [
        fate is PurgeFate.PURGED and row["address"] not in left for row, fate in zip(rows, fates, strict=True)
    ]
    purged = receipts.of_outcome(batch.filter(pa.array(are_deleted, pa.bool_())), Outcome.PURGED, clock.now())
    receipts.write(store, plan.run_id, batch_id, purged)
    delete_all(store, [begun])
    for row, fate in zip(rows, fates, strict=True):
        if row["address"] not in left:
            yield Purged(plan.run_id, row["address"], row["size"], fate, outcomes[row["key"]].error)
    return batch.filter(_among(batch, left))


def _settle(store: ObjectStore, plan: Plan) -> None:
    """Writes the receipts of a run's interrupted batches, for the copies that are gone.

    Raises CorruptFile if the list of such a batch is unreadable.
    """
    folder = sweeping.key(plan.run_id, _BEGUN)
    for key in keys_below(store, folder):
        begun = tables.decode(RECEIPTS, store.get(key), key, "receipts", receipts.ADDED)
        # Compared with all copies of the run, even if only some are to be purged.
        still_there = pc.is_in(begun.column("address"), list_copies(store, plan).column("address").combine_chunks())
        deleted = begun.filter(pc.invert(still_there))
        if deleted.num_rows:
            # This replaces receipts of the same batch that were already stored.
            receipts.write(store, plan.run_id, key.removeprefix(folder), deleted)
        delete_all(store, [key])


class LiveCheck(Generic[R]):
    """Determines which copies are referenced, by the step's definition of live.

    The first call reads everything live, which may take long, and then reads uncommitted data and new ranges again.
    Further calls read only uncommitted data and new ranges. An address that was once live stays live for later calls.

    Raises GuardTripped, OrderViolation, LakeFSError or CorruptFile if it cannot be determined.
    """

    def __init__(self, step: Step[R]) -> None:
        """Starts a check for one step."""
        self._step = step
        self._first: Committed | None = None
        self._heads: tuple[Mapping[str, str], ...] = ()
        self._known: Set[str] = IdSet()
        self._live = frozenset[str]()
        self._unsure = frozenset[str]()
        self._as_of = Moment.now(step.repository.clock)

    def __call__(self, moved: Sequence[Moved]) -> PurgeVerdict:
        """See `purge.Check`."""
        copies = self._step.engine.table(pa.concat_tables([each.copies for each in moved]))
        if self._first is None:
            self._first, committed = self._look(copies)
            self._require_believable(self._first, bool(committed), sum(each.copies.num_rows for each in moved))
            self._look_for_hidden(copies, self._first)
        self.look_again(copies)
        return PurgeVerdict(self._live, self._unsure, self._as_of)

    def look_again(self, copies: R) -> None:
        """Reads uncommitted data, and ranges that were not read before."""
        self._look(copies)

    def _look(self, copies: R) -> tuple[Committed, int]:
        """Adds the copies that are live now; returns the commits, and 1 if the first look finds committed data."""
        step, engine = self._step, self._step.engine
        samples = sample_staged(step)
        # Taken first: addresses that become live during these reads may be missing from the answers.
        as_of = Moment.now(step.repository.clock)
        require_own_namespace(step)
        before = read_reasons(step)
        self._heads, prepared = samples.heads, prepare_uncommitted(step, samples=samples)
        current = ask_committed(step, prepared.ended_at, self._known, before)
        require_retention_holds(current)
        if self._first is not None:
            files.require_same_source(current.source, self._first.source)
        committed = engine.union(*current.addresses(step))
        live = engine.union(committed, *current.provisional_addresses(step), *prepared.addresses)
        held = engine.collect(engine.select(engine.among_exactly(copies, live), "address"))
        self._live |= frozenset(held.column("address").to_pylist())
        self._known |= current.ids
        self._as_of = as_of
        step.log(
            f"{counted(prepared.files, 'files')} of uncommitted data, {counted(current.own.commits, 'commits')}, "
            f"{counted(current.ranges, 'ranges')}: {counted(held.num_rows, 'copies are')} live"
        )
        return current, engine.collect(committed, limit=1).num_rows if self._first is None else 0

    def _require_believable(self, current: Committed, any_committed: bool, going: int) -> None:
        """Raises GuardTripped if the server does not resemble the one that the run knew, or lost its commits."""
        repository = self._step.repository
        promised = sum(each.promised or 0 for each in current.unread)
        guards.require_committed(any_committed, promised, going)
        other_repositories.require_own_addresses(
            repository.api, repository.store, repository.namespace, current.own.heads
        )
        store, plan, heads = repository.store, self._step.plan, current.own.heads
        before, _ = count_branches(store, plan.run_id, None, self._step.warn)
        if before is not None:
            before = without_deleted(store, plan.run_id, plan.repository, before, heads, self._step.warn)
            guards.require_branches(len(heads), before, repository.settings)

    def _look_for_hidden(self, copies: R, current: Committed) -> None:
        """Finds copies that may be staged although the server does not list them."""
        step, engine = self._step, self._step.engine
        live = engine.table(pa.table({"address": pa.array(sorted(self._live), pa.string())}))
        rest = engine.without_exactly(copies, live)
        if not engine.count(rest):
            return
        before = current.own.moved_since(self._heads)
        with clear_hidden(step, rest, current.own.heads, COPIES, before=before) as cleared:
            if not cleared.kept:
                return
            kept_rows = engine.without_exactly(rest, engine.select(cleared.candidates, "address"))
            kept = frozenset(engine.collect(kept_rows).column("address").to_pylist())
        self._live |= kept & cleared.live
        self._unsure = kept - cleared.live
