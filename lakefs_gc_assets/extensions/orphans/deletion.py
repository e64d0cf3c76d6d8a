"""Deletes the data of a deleted repository, and restores it.

`examine` looks at one place and records what is there. At least a day later, `move` looks again, and moves the objects
into the quarantine of the configured repository if nothing has changed. Before each batch it looks again. Any change
keeps everything that is left. `restore` brings the objects back; `purge` deletes their copies for good after
`collection.quarantine_days`.

The order is that of every act here: the record first, then a look, the deletion, the receipts. Records, receipts and
copies are in the collector's folder of the configured repository, whose lock is held.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.quarantine import purge as purging
from lakefs_gc_assets.collector.quarantine import restore as restoring
from lakefs_gc_assets.collector.quarantine.purge import Moved, Purged, PurgeVerdict
from lakefs_gc_assets.collector.quarantine.restore import Restored
from lakefs_gc_assets.collector.records import records_json, run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import BaseFate, Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.lock import Lock, locked
from lakefs_gc_assets.collector.repository.repository import Clocks, Moment, OpenRepository, Pace
from lakefs_gc_assets.collector.sweep.recheck import Validity
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine, key
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LogLine, NotOffered, OrderViolation
from lakefs_gc_assets.extensions.orphans.looks import (
    ACT,
    OBJECTS,
    OrphanPlace,
    PlaceContents,
    describe_changes,
    in_order_of_deletion,
    look,
    names_of_folders,
    require_quiet,
    require_signs,
    require_unchanged,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import delete_all, keys_below

WAIT = timedelta(days=1)
"""Time between the first look and the deletion."""
_RECORDS = f"{layout.RUNS_PREFIX}orphans/"


class OrphanState(StrEnum):
    """State of an act. Records hold these texts."""

    SEEN = "seen"
    MOVING = "moving"
    MOVED = "moved"
    RESTORED = "restored"
    PURGED = "purged"


@dataclass(frozen=True, slots=True)
class OrphanAct:
    """The record of a place that is to be deleted, or was. Times are in UTC.

    Attributes:
        act_id: names the folders of its receipts and of its copies in quarantine.
        repository: the configured repository, which keeps these folders.
        place: address, with a slash at its end.
        looked_at: end of the first look, by the latest clock.
        objects, bytes, last_write: of the first look.
        repositories: the server's repositories at the first look, each with its storage namespace.
        objects_sha256, read_sha256: digests of the stored listing, and of the ids of files that do not refer to the
            place.
        at: time of the last change of state.
        approved_by: name of the person who approved the deletion; empty before.
    """

    act_id: str
    repository: str
    place: str
    looked_at: datetime
    objects: int
    bytes: int
    last_write: datetime
    repositories: tuple[str, ...]
    objects_sha256: str
    read_sha256: str
    state: OrphanState
    at: datetime
    approved_by: str = ""
    format_version: int = 1

    @property
    def due_at(self) -> datetime:
        """The earliest time of the deletion, UTC."""
        return self.looked_at + WAIT


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of a look.

    Attributes:
        is_due: True if the deletion may begin.
        changes: what changed since an earlier look, so that this one counts as the first; empty for nothing.
    """

    act: OrphanAct
    is_due: bool
    changes: str = ""


class OrphanFate(BaseFate):
    """Result for an object of a place."""

    MOVED = "moved to quarantine"
    KEPT = "kept"
    FAILED = "failed"


_FATES = {Outcome.QUARANTINED: OrphanFate.MOVED, Outcome.KEPT_ARCHIVED: OrphanFate.KEPT}


@dataclass(frozen=True, slots=True)
class OrphanOutcome:
    """Result for one object of `size` bytes; `why` is the reason for an unrequested result, else None."""

    address: str
    size: int
    fate: OrphanFate
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceQuarantine(Quarantine):
    """Moves objects of a place into quarantine.

    Attributes:
        place: the place; no other object is deleted.
        names: names in the place at the last look at all of it.
    """

    place: OrphanPlace
    names: Mapping[str, frozenset[str]]

    def check_names(self, addresses: Sequence[str]) -> None:
        """See Sweep.check_names: every object of the place may be deleted, whatever its name."""
        for address in addresses:
            if not address.startswith(self.place.key):
                raise CollectionError(f"{address!r} is not in {self.place.uri}")

    def delete_batch(self, batch: pa.Table, accepted: Outcome) -> pa.Table:
        """See Sweep.delete_batch. Looks again first; raises GuardTripped if anything changed."""
        require_unchanged(self.place, self.names, batch)
        return Quarantine.delete_batch(self, batch, accepted)


def examine(repository: OpenRepository, uri: str, owner: str, note: LogLine, warn: LogLine) -> Examined:
    """Looks at a place and records the look. If nothing has changed since an earlier look, that one still counts.

    Args:
        uri: address of the place.
        owner: owner of the repository's lock.
        note, warn: receive log lines.
    Raises:
        ConfigurationError: the address names no single folder, or the server does not list all repositories.
        GuardTripped: the place may belong to someone, was written lately, or has too many objects; or clocks disagree.
        OrderViolation: its deletion has begun.
        NotOffered: the store has no conditional writes, so no lock is enforced.
        CollectionError: the server or the store fails.
    """
    place = OrphanPlace.open(repository, uri)
    with _locked(repository, "orphans look", owner, warn) as (_, clocks):
        act = read_act(place)
        if act is not None and act.state in (OrphanState.MOVING, OrphanState.MOVED):
            raise OrderViolation(
                f"objects of {place.uri} are in quarantine since {act.at:%F %T}Z: restore or purge them first"
            )
        if act is not None and act.state is OrphanState.RESTORED and keys_below(place.store, key(act.act_id, "")):
            raise OrderViolation(f"copies of the restored objects of {place.uri} are in quarantine: purge them first")
        require_signs(place)
        seen = act if act is not None and act.state is OrphanState.SEEN else None
        contents = look(place, _read_ids(place, seen) if seen else frozenset(), note)
        require_quiet(place, contents, clocks.earliest)
        guards.require_few_orphaned(contents.objects.num_rows, repository.settings)
        changes = _changes(place, seen, contents) if seen else ""
        if seen is None or changes:
            earlier, seen = seen, _record(place, contents, clocks)
            # The record names the new files by now: a kill in between leaves only old ones behind.
            if earlier is not None:
                _forget(place, earlier)
        return Examined(seen, clocks.earliest >= seen.due_at, changes)


def _record(place: OrphanPlace, contents: PlaceContents, clocks: Clocks) -> OrphanAct:
    repository = place.repository
    now = repository.clock.now()
    # The end of the look by the clock that is ahead of the others.
    looked_at = now + (clocks.latest - clocks.own)
    act_id, amount, last_write = ACT + layout.issue_run_id(now), contents.amount, contents.last_write
    assert last_write is not None
    act = OrphanAct(
        act_id,
        repository.facts.id,
        place.uri,
        looked_at,
        amount.objects,
        amount.bytes,
        last_write,
        contents.repositories,
        tables.put(repository.store, _objects_key(act_id), contents.objects),
        tables.write_ids(repository.store, _read_key(act_id), contents.read),
        OrphanState.SEEN,
        looked_at,
    )
    _write(place, act)
    return act


def move(
    repository: OpenRepository, uri: str, approver: str, owner: str, note: LogLine, warn: LogLine
) -> Iterator[OrphanOutcome]:
    """Moves all objects of a place into quarantine, during iteration; yields the result for each.

    May be repeated after a failure: it goes on with the objects that are left.

    Args:
        approver: name of the person who approves the deletion and states that no other server uses the place.
        uri, owner, note, warn: as for `examine`.
    Raises:
        OrderViolation: no look at the place is at least a day old, or everything is moved.
        GuardTripped: the place has changed since that look, or as for `examine`. Nothing more is deleted.
        LockLost: another owner took the lock.
        CollectionError: as for `examine`, or nothing could be deleted while a look was valid.
    """
    if not approver.strip():
        raise ConfigurationError("the name of the person who approves the deletion is empty")
    place = OrphanPlace.open(repository, uri)
    with _locked(repository, "orphans delete", owner, warn) as (lock, clocks):
        act = read_act(place)
        if act is None or act.state not in (OrphanState.SEEN, OrphanState.MOVING):
            why = "no look is recorded" if act is None else f"its objects are {act.state} since {act.at:%F %T}Z"
            raise OrderViolation(f"{place.uri} cannot be deleted now: {why}")
        if clocks.earliest < act.due_at:
            raise OrderViolation(
                f"{place.uri} was looked at first at {act.looked_at:%F %T}Z: it may be deleted from {act.due_at:%F %T}Z"
            )
        yield from _move(place, act, approver.strip(), lock, note)


def _move(place: OrphanPlace, act: OrphanAct, approver: str, lock: Lock, note: LogLine) -> Iterator[OrphanOutcome]:
    repository, store = place.repository, place.store
    span = timedelta(minutes=repository.settings.recheck_valid_minutes)
    pace = Pace(repository.settings.max_delete_rate, repository.clock)
    read: Set[str] = _read_ids(place, act)
    left = list[str]()
    while True:
        # Begun before any question, whose answers may lack what happens meanwhile.
        valid = Validity.begin(store, act.act_id, span)
        contents = look(place, read, note)
        if changes := _changes(place, act, contents):
            guards.refuse_orphan(place.uri, f"since the first look at {act.looked_at:%F %T}Z: {changes}")
        guards.require_few_orphaned(act.objects, repository.settings)
        if act.state is OrphanState.SEEN:
            act = replace(act, state=OrphanState.MOVING, at=repository.clock.now(), approved_by=approver)
            _write(place, act)
        read = contents.read
        remaining = contents.objects.filter(
            pc.invert(pc.is_in(contents.objects.column("address"), pa.array(left, pa.string())))
        )
        if not remaining.num_rows:
            break
        countdown = valid.countdown(store, act.act_id, repository.clock)
        quarantine = PlaceQuarantine(
            store,
            act.act_id,
            lock.token,
            repository.clock,
            countdown=countdown,
            pace=pace,
            place=place,
            names=names_of_folders(place, contents.objects),
        )
        decided = 0
        for group in in_order_of_deletion(place, remaining):
            for rows in quarantine.delete(group):
                decided += rows.num_rows
                for outcome in _outcomes(rows):
                    if outcome.fate is not OrphanFate.MOVED:
                        left.append(outcome.address)
                    yield outcome
        if not decided:
            raise CollectionError(
                "nothing could be moved while a look was valid: raise collection.recheck_valid_minutes"
            )
    if not left:
        _write(place, replace(act, state=OrphanState.MOVED, at=repository.clock.now()))


def _outcomes(receipts: pa.Table) -> Iterator[OrphanOutcome]:
    for row in receipts.select(["address", "size", "outcome", "error"]).to_pylist():
        fate = _FATES.get(Outcome(row["outcome"]), OrphanFate.FAILED)
        yield OrphanOutcome(row["address"], row["size"], fate, row["error"])


def restore(repository: OpenRepository, uri: str, owner: str, warn: LogLine) -> Iterator[Restored]:
    """Copies the objects that `move` moved back to their addresses, during iteration; yields the result for each.

    An address that has an object by now is left alone. May be repeated.

    Args:
        uri, owner, warn: as for `examine`.
    Raises:
        OrderViolation: nothing of the place is in quarantine.
        LockHeld, LockLost: another owner has the lock.
        CollectionError: as for `examine`.
    """
    place = OrphanPlace.open(repository, uri)
    with _locked(repository, "orphans restore", owner, warn) as (lock, _):
        act = _require_moved(place, OrphanState.MOVING, OrphanState.MOVED, OrphanState.RESTORED)
        deleted = restoring.undoable(place.store, act.act_id)
        is_well = True
        for restored in restoring.undo_deletions(place.store, act.act_id, deleted, lock.token, repository.clock):
            is_well &= restored.fate.is_well
            yield restored
        if is_well:
            _end(place, act, OrphanState.RESTORED)


def purge(repository: OpenRepository, uri: str, owner: str, note: LogLine, warn: LogLine) -> Iterator[Purged]:
    """Deletes the copies of a place for good, during iteration, `collection.quarantine_days` after the last move.

    Looks first: if anyone uses the place by then, nothing is deleted. If the objects were restored, a copy is deleted
    once its object is back at its address.

    Args:
        uri, owner, note, warn: as for `examine`.
    Raises:
        OrderViolation: not all of the place is in quarantine, or not long enough.
        GuardTripped: something was written to the place, a repository is there, or one imported from there.
        CollectionError: as for `examine`.
    """
    place, settings = OrphanPlace.open(repository, uri), repository.settings
    with _locked(repository, "orphans purge", owner, warn) as (lock, clocks):
        act = _require_moved(place, OrphanState.MOVED, OrphanState.RESTORED)
        plan = planning.make_plan(repository, act.act_id, (), owner, lock.store_clock, Flow.CLEAN)
        since = purging.last_receipt(place.store, plan)
        due_at = since + timedelta(days=settings.quarantine_days)
        if clocks.earliest < due_at:
            raise OrderViolation(f"objects of {place.uri} may be purged from {due_at:%F %T}Z")
        moved = Moved(plan, since, purging.list_copies(place.store, plan))
        valid = timedelta(minutes=settings.recheck_valid_minutes)
        is_restored = act.state is OrphanState.RESTORED
        check = partial(_need_all, repository) if is_restored else _unused(place, act, note)
        yield from purging.purge(place.store, [moved], check, lock.token, repository.clock, valid)
        # The copy of an object that was restored now stays until the next purge.
        if not purging.list_copies(place.store, plan).num_rows:
            _end(place, act, OrphanState.PURGED)


def _unused(place: OrphanPlace, act: OrphanAct, note: LogLine) -> Callable[[Sequence[Moved]], PurgeVerdict]:
    """A check that no copy is needed. It raises GuardTripped if any may be."""
    read: Set[str] = _read_ids(place, act)

    def check(_: Sequence[Moved]) -> PurgeVerdict:
        nonlocal read
        as_of = Moment.now(place.repository.clock)
        contents = look(place, read, note)
        if contents.objects.num_rows:
            first = contents.objects.column("address")[0].as_py()
            guards.refuse_orphan(place.uri, f"something was written there again, such as {first}")
        read = contents.read
        return PurgeVerdict(frozenset(), frozenset(), as_of)

    return check


def _need_all(repository: OpenRepository, moved: Sequence[Moved]) -> PurgeVerdict:
    """The verdict that every copy is needed, so that only copies of objects at their address go."""
    addresses = frozenset(address for each in moved for address in each.copies.column("address").to_pylist())
    return PurgeVerdict(addresses, frozenset(), Moment.now(repository.clock))


@contextmanager
def _locked(repository: OpenRepository, work: str, owner: str, warn: LogLine) -> Iterator[tuple[Lock, Clocks]]:
    """The repository's lock, if the store enforces it, and clocks that agree.

    Raises GuardTripped, NotOffered, LockHeld.
    """
    with locked(repository, work, owner, warn) as lock:
        if lock.why_unfenced is not None:
            raise NotOffered(
                "the store has no conditional writes, so another process could delete or restore at the same time: "
                "data of deleted repositories is only listed there"
            )
        clocks = Clocks.read(repository.clock.now(), repository.api.server_clocks, lock.store_clock)
        guards.require_clocks_agree(clocks, repository.skew)
        yield lock, clocks


def _require_moved(place: OrphanPlace, *states: OrphanState) -> OrphanAct:
    act = read_act(place)
    if act is None or act.state not in states:
        why = "it was never deleted" if act is None else f"its objects are {act.state} since {act.at:%F %T}Z"
        raise OrderViolation(f"{place.uri}: {why}")
    return act


def _changes(place: OrphanPlace, act: OrphanAct, contents: PlaceContents) -> str:
    """Changes since the first look in words, except objects that the act itself may have moved; empty for none."""
    if vanished := sorted({*act.repositories} - {*contents.repositories}):
        # The server may have been restored from a backup, and then any other repository may be missing, too.
        return f"the server no longer lists repository {vanished[0]}"
    data = tables.get(place.store, _objects_key(act.act_id), act.objects_sha256)
    before = tables.decode(OBJECTS, data, _objects_key(act.act_id), "objects")
    moved = restoring.undoable(place.store, act.act_id).column("address").combine_chunks()
    return describe_changes(before, contents.objects, moved)


def _read_ids(place: OrphanPlace, act: OrphanAct) -> IdSet:
    return IdSet.of_columns(tables.read_id_parts(place.store, _read_key(act.act_id), act.read_sha256))


def read_act(place: OrphanPlace) -> OrphanAct | None:
    """The newest act on a place; None if there is none.

    Raises CorruptFile if its record cannot be read, or is of another repository or place.
    """
    act = records_json.read(place.store, OrphanAct, _record_key(place))
    if act is not None and (act.repository, act.place) != (place.repository.facts.id, place.uri):
        raise OrderViolation(f"the record of {place.uri} is of {act.place} and repository {act.repository}")
    return act


def _write(place: OrphanPlace, act: OrphanAct) -> None:
    place.store.put(_record_key(place), records_json.encode(act))


def _end(place: OrphanPlace, act: OrphanAct, state: OrphanState) -> None:
    _write(place, replace(act, state=state, at=place.repository.clock.now()))
    _forget(place, act)


def _forget(place: OrphanPlace, act: OrphanAct) -> None:
    """Removes the files that only a deletion needs. Receipts stay."""
    delete_all(place.store, [_objects_key(act.act_id), _read_key(act.act_id)])


def _record_key(place: OrphanPlace) -> str:
    return f"{_RECORDS}{hashlib.sha256(place.key.encode()).hexdigest()[:32]}.json"


def _objects_key(act_id: str) -> str:
    return f"{run_folder.folder(act_id)}objects.parquet"


def _read_key(act_id: str) -> str:
    return f"{run_folder.folder(act_id)}read.parquet"
