"""One collection of a repository at a time: a lock object in its storage namespace.

The lock is created by a put that fails if an object exists. It is renewed, taken over and released by puts that fail
if another version exists. Each acquisition tests that the store honours both conditions. A nonce in the object
identifies the holder. Before each batch of deletes, the holder checks that the nonce is still its own.

The object is JSON: `nonce`, `run_id`, `owner`, `acquired_at` and `renewed_at` (ISO 8601, UTC), `expires_minutes`
(counted from the last renewal), `released`, `process` (user, machine and number, for people), `launch` and `kernel`.
"""

import json
import logging
import os
import pwd
import re
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import cache
from pathlib import Path
from typing import NewType
from weakref import WeakSet

from pydantic import TypeAdapter

from lakefs_gc_assets.collector.records.records_json import entries
from lakefs_gc_assets.collector.repository.repository import Launch, OpenRepository
from lakefs_gc_assets.errors import (
    AlreadyExists,
    LockHeld,
    LockLost,
    LogLine,
    NotOffered,
    ObjectNotFound,
    PreconditionFailed,
    StorageError,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore, get_if_there

KEY = f"{layout.RUNS_PREFIX}lock.json"
_NO_ETAG = "0" * 32
_BOOT, _NUMBERS = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
_ATTEMPTS = 3
_BY_HAND = Launch()
_log = logging.getLogger(__name__)

NO_LOCK = (
    "dry runs need no lock; if no other run can be active, set collection.no_lock_reason, and a sweep needs no lock "
    "either"
)


LockToken = NewType("LockToken", str)
"""The nonce of a lock: another process checks by it that the lock is still held."""


@dataclass(frozen=True, slots=True)
class _Record:
    """Content of the lock object."""

    nonce: str
    run_id: str
    owner: str
    acquired_at: datetime
    renewed_at: datetime
    expires_minutes: float
    released: bool = False
    process: str = ""
    launch: str = ""
    kernel: str = ""

    def encode(self) -> bytes:
        return json.dumps(entries(self), default=datetime.isoformat, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> "_Record":
        try:
            record = _reader().validate_json(data, strict=True)  # a released of "false" would count as true
            record = replace(record, acquired_at=_utc(record.acquired_at), renewed_at=_utc(record.renewed_at))
            record.expires_at(record.renewed_at)
            return record
        except (ValueError, OverflowError):
            raise StorageError(
                f"the lock {KEY} cannot be read: find out which program wrote it, and delete it once no collection runs"
            ) from None

    def expires_at(self, written_at: datetime) -> datetime:
        """Time from which others may take the lock over, counted from the later of `renewed_at` and `written_at`."""
        return max(self.renewed_at, written_at) + timedelta(minutes=self.expires_minutes)

    def outlived_its_launch(self, launch: Launch) -> bool:
        """True if the Dagster run that took this lock has ended, and nothing renewed the lock since.

        A killed process cannot release its lock. Once Dagster has recorded the end of its run, others may take the lock
        over. A process that outlives its Dagster run shows by its next renewal that it is alive. If the lock was taken
        over meanwhile, its nonce has changed, and that process deletes nothing more.
        """
        ended_at = launch.ended_at(self.launch) if self.launch else None
        return ended_at is not None and self.renewed_at < ended_at

    @property
    def holder(self) -> str:
        """The holder of the lock, in words."""
        return f"{self.owner} ({self.process})" if self.process else self.owner


@cache
def _reader() -> TypeAdapter[_Record]:
    return TypeAdapter(_Record)


_TAKEN: "WeakSet[Lock]" = WeakSet()
"""Locks that this process acquired and that are still referenced."""


class Lock:
    """An acquired lock. Thread-safe, so that one thread can renew it.

    Attributes:
        token: checks the lock in other processes, see `verify`.
        store_clock: the store's time of writing the lock, at acquisition; UTC.
        owner: the owner that acquired it.
        process: user, machine and number of the process that holds it.
        why_unfenced: why the run continues although the lock could be taken unnoticed, since the store has no
            conditional writes; None if it has them.
    """

    def __init__(self, store: ObjectStore, record: _Record, etag: str | None, store_clock: datetime) -> None:
        """For `acquire` and `acquire_unfenced` only; `etag` is None if writes are unconditional."""
        self._store = store
        self._record = record
        self._etag = etag
        self.why_unfenced: str | None = None
        self._writing = threading.Lock()
        self.token = LockToken(record.nonce)
        self.store_clock = store_clock
        self.owner = record.owner
        self.process = record.process
        _TAKEN.add(self)

    @classmethod
    def acquire(
        cls, store: ObjectStore, run_id: str, owner: str, now: datetime, expiry: timedelta, launch: Launch = _BY_HAND
    ) -> "Lock":
        """Takes the lock if it is free, released or expired, or has the same owner, or its holder is known to be gone.

        A holder is gone if its Dagster run has ended, or if no Dagster run took the lock and its process, on this
        machine, no longer exists.

        Args:
            store: bound to the repository's storage namespace.
            run_id: the collecting run.
            owner: the root Dagster run. Its re-execution takes over at once, and the previous run loses the lock.
            now: the earliest of the known clocks, aware; decides if another's lock has expired.
            expiry: time without renewal after which others may take this lock over.
            launch: the launch that started this process; by default none of Dagster.

        Raises LockHeld if another owner holds it, NotOffered if the store does not honour conditional puts.
        """
        record = _new_record(run_id, owner, now, expiry, launch)
        try:
            etag = _take(store, record, launch)
        except NotOffered:
            # A put may have succeeded although its answer cannot be used.
            with suppress(StorageError):
                if _read(store)[1].nonce == record.nonce:
                    store.put(KEY, replace(record, released=True).encode())
            raise
        try:
            facts, current = _read(store)
            if current.nonce != record.nonce:
                raise _held(current, facts)
            _prove_conditions(store, record)
        except StorageError as error:
            # No caller gets this lock, so it is released: it would only block the next run, and hide this error.
            with suppress(StorageError):
                released = replace(record, released=True).encode()
                if isinstance(error, NotOffered):
                    store.put(KEY, released)
                else:
                    store.put_if_match(KEY, released, etag)
            raise
        return cls(store, record, etag, facts.last_modified)

    @classmethod
    def acquire_unfenced(
        cls,
        store: ObjectStore,
        why: str,
        run_id: str,
        owner: str,
        now: datetime,
        expiry: timedelta,
        launch: Launch = _BY_HAND,
    ) -> "Lock":
        """Takes the lock by plain writes, for a store without conditional ones. `why` becomes `why_unfenced`.

        See `acquire`. If two runs take it at the same moment, both may believe that they hold it, until one checks or
        renews it.
        """
        record = _new_record(run_id, owner, now, expiry, launch)
        with suppress(ObjectNotFound):
            facts, current = _read(store)
            if not _may_be_taken(current, facts, record, launch):
                raise _held(current, facts)
        store.put(KEY, record.encode())
        facts, current = _read(store)
        if current.nonce != record.nonce:
            raise _held(current, facts)
        lock = cls(store, record, None, facts.last_modified)
        lock.why_unfenced = why
        return lock

    def renew(self, now: datetime) -> None:
        """Extends the lock: its expiry counts from `now`, which has a time zone. Raises LockLost, StorageError."""
        with self._writing:
            self._write(replace(self._record, renewed_at=max(_utc(now), self._record.renewed_at)))

    def check(self) -> None:
        """Raises LockLost unless this lock is still held."""
        verify(self._store, self.token)

    @property
    def held_until(self) -> str:
        """The time from which others may take the lock unless it is renewed, in words."""
        return _shown(self._record.expires_at(self._record.renewed_at))

    def release(self) -> None:
        """Releases the lock, so that the next collection can begin at once. Raises LockLost if another run has it."""
        with self._writing:
            self._write(replace(self._record, released=True))

    @property
    def is_released(self) -> bool:
        """True if this process released the lock."""
        return self._record.released

    def _write(self, record: _Record) -> None:
        data = record.encode()
        if self._etag is None:
            verify(self._store, self.token)
            self._store.put(KEY, data)
            self._record = record
            return
        try:
            self._etag = self._store.put_if_match(KEY, data, self._etag)
        except PreconditionFailed:
            self._etag = self._etag_of(data)
        self._record = record

    def _etag_of(self, data: bytes) -> str:
        """ETag of the lock, if a put met the version that its own first attempt wrote. Raises LockLost otherwise."""
        try:
            etag = _etag(self._store.head(KEY))
            if self._store.get(KEY) == data:
                return etag
        except ObjectNotFound:
            pass
        verify(self._store, self.token)
        raise LockLost(f"the lock {KEY} was changed by another process: nothing more may be deleted")


def release_taken(seconds: float) -> str:
    """Releases the locks of this process, which is about to end abnormally.

    Args:
        seconds: maximum wait for each release.
    Returns:
        A clause about the result; empty if there was no lock.
    """
    held = [lock for lock in _TAKEN if not lock.is_released]

    def release(lock: Lock) -> None:
        with suppress(StorageError, LockLost):
            lock.release()

    threads = [threading.Thread(target=release, args=(lock,), daemon=True) for lock in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    kept = [lock.held_until for lock in held if not lock.is_released]
    if kept:
        return f": the repository's lock stays until {max(kept)}, unless `lakefs-gc unlock` releases it earlier"
    return ": the repository's lock is released" if held else ""


def verify(store: ObjectStore, token: LockToken) -> None:
    """Raises LockLost unless the lock with this token is still held. One small read."""
    data = get_if_there(store, KEY)
    if data is None:
        raise LockLost(f"the lock {KEY} is gone: nothing more may be deleted; run again")
    current = _Record.decode(data)
    if current.nonce != token:
        raise LockLost(
            f"the lock {KEY} now belongs to {current.holder} for run {current.run_id}, since "
            f"{_shown(current.acquired_at)}: nothing more may be deleted by this run"
        )
    if current.released:
        raise LockLost(f"the lock {KEY} was released: nothing more may be deleted by this run")


def holder(store: ObjectStore) -> str | None:
    """Holder of the lock and since when, in words; None if it is free."""
    held = _read_held(store)
    if held is None:
        return None
    facts, current = held
    return (
        f"held by {current.holder} for run {current.run_id} since {_shown(current.acquired_at)}, "
        f"until {_shown(current.expires_at(facts.last_modified))} unless renewed"
    )


class Life(Enum):
    """Knowledge about the process that holds a lock."""

    EXPIRED = auto()
    LAUNCH_ENDED = auto()
    GONE = auto()
    ALIVE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A held lock, as a user who wants to release it must know it.

    Attributes:
        holder: owner, user, machine and process, in words.
        expires_at: the time from which the next run takes the lock by itself, UTC.
    """

    run_id: str
    holder: str
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime
    life: Life


def inspect(repository: OpenRepository) -> HeldLock | None:
    """The lock and everything known about its holder; None if it is free. Raises StorageError."""
    held = _read_held(repository.store)
    if held is None:
        return None
    facts, current = held
    expires_at = current.expires_at(facts.last_modified)
    if earliest_clock(repository) >= expires_at:
        life = Life.EXPIRED
    elif current.outlived_its_launch(repository.launch):
        life = Life.LAUNCH_ENDED
    else:
        life = _life_of(current)
    return HeldLock(current.run_id, current.holder, current.acquired_at, current.renewed_at, expires_at, life)


def _life_of(holder: _Record) -> Life:
    """Checks if the process that holds a lock is alive; unknown for a process on another machine.

    Machines and containers may share a name, so the kernel is compared, too.
    """
    words = re.search(r" on (.*), process ([1-9]\d*)$", holder.process)
    if words is None or words[1] != socket.gethostname() or holder.kernel != _kernel():
        return Life.UNKNOWN
    try:
        os.kill(int(words[2]), 0)
    except ProcessLookupError:
        return Life.GONE
    except (OSError, OverflowError):
        return Life.ALIVE
    return Life.ALIVE


def release_inspected(repository: OpenRepository, held: HeldLock) -> None:
    """Releases a lock that was inspected. Raises LockLost if it was renewed or changed hands since, StorageError."""
    store = repository.store
    try:
        facts, current = _read(store)
        seen = held.run_id, held.acquired_at, held.renewed_at
        if (current.run_id, current.acquired_at, current.renewed_at) != seen:
            raise PreconditionFailed
        _release(store, facts, current)
    except (ObjectNotFound, PreconditionFailed):
        raise LockLost(f"the lock {KEY} was renewed or changed hands meanwhile: its holder is alive") from None


def is_held_by(store: ObjectStore, owner: str) -> bool:
    """True if this owner has the lock and has not released it."""
    held = _read_held(store)
    return held is not None and held[1].owner == owner


def release_owned(store: ObjectStore, owner: str) -> None:
    """Releases the lock of an owner that ended without its steps; another owner's lock stays."""
    held = _read_held(store)
    if held is not None and held[1].owner == owner:
        with suppress(ObjectNotFound, PreconditionFailed):
            _release(store, *held)


def _release(store: ObjectStore, facts: ObjectFacts, current: _Record) -> None:
    """Releases a lock that was read; unconditionally if the store has no conditional writes.

    Raises ObjectNotFound or PreconditionFailed if it changed meanwhile, StorageError.
    """
    released = replace(current, released=True).encode()
    try:
        store.put_if_match(KEY, released, _etag(facts))
    except NotOffered:
        store.put(KEY, released)


def acquire(repository: OpenRepository, work: str, owner: str, *, deletes: bool = True) -> Lock:
    """Takes the repository's lock, which expires after `collection.lock_expiry_minutes` unless renewed.

    Args:
        work: the run's id, or a name for other work that needs the lock.
        owner: owner of the lock; a lock of the same owner is taken over at once.
        deletes: True if the work deletes or moves objects. Otherwise it does not need an enforced lock.
    Raises:
        LockHeld: another owner holds the lock.
        NotOffered: the store does not honour conditional puts, and `collection.no_lock_reason` is empty.
        StorageError: the store cannot be reached.
    """
    store, now, launch = repository.store, earliest_clock(repository), repository.launch
    expiry = timedelta(minutes=repository.settings.lock_expiry_minutes)
    try:
        return Lock.acquire(store, work, owner, now, expiry, launch)
    except NotOffered as error:
        reason = repository.settings.no_lock_reason or ("" if deletes else "a dry run deletes nothing")
        if not reason:
            raise NotOffered(f"{error}; {NO_LOCK}") from None
        why = f"{reason} (the store has no conditional writes)"
        return Lock.acquire_unfenced(store, why, work, owner, now, expiry, launch)


def acquire_again(
    kept: Lock | None, repository: OpenRepository, work: str, owner: str, *, deletes: bool = True
) -> Lock:
    """Renews the lock that an earlier step of this process kept; without one, or if it was lost, acquires it.

    The renewal is a put that fails if any other process has written the lock since, so one call suffices.

    Args:
        kept: None if this process kept none.

    Raises: as `acquire`.
    """
    # Whether work without an enforced lock may go on is decided anew: the earlier step may have deleted nothing.
    if kept is not None and kept.why_unfenced is None and not kept.is_released:
        with suppress(LockLost):
            kept.renew(repository.clock.now())
            return kept
    return acquire(repository, work, owner, deletes=deletes)


def warn_if_unfenced(lock: Lock, warn: LogLine) -> None:
    """Warns if the work continues without an enforced lock."""
    if lock.why_unfenced is not None:
        warn(f"no lock is held: {lock.why_unfenced}")


def earliest_clock(repository: OpenRepository) -> datetime:
    """The earlier of this machine's time and the server's, UTC. By it, the locks of others expire.

    The clocks are compared only once the lock is held. By the later clock, a machine whose clock is ahead would take a
    healthy run's lock before that comparison, and end that run.
    """
    own = repository.clock.now()
    return min(own, own + (repository.api.server_clocks.earliest or timedelta()))


def latest_clock(repository: OpenRepository) -> datetime:
    """The later of this machine's time and the server's, UTC: by it a mark ages soonest."""
    own = repository.clock.now()
    return max(own, own + (repository.api.server_clocks.latest or timedelta()))


@contextmanager
def locked(repository: OpenRepository, work: str, owner: str, warn: LogLine) -> Iterator[Lock]:
    """Holds the repository's lock for work that is not a run, and renews it in the background.

    Args:
        work: a name for the work; the lock stores it in place of a run's id.
        owner: owner of the lock; a lock of the same owner is taken over at once.
    Raises:
        LockHeld: another owner holds the lock.
        LockLost: at the exit, if another process has taken the lock over.
        NotOffered: the store does not honour conditional puts, and `collection.no_lock_reason` is empty.
        StorageError: the store cannot be reached.
    """
    lock = acquire(repository, work, owner)
    warn_if_unfenced(lock, warn)
    try:
        with renewed(lock, repository, warn):
            yield lock
    finally:
        lock.release()


@contextmanager
def renewed(lock: Lock, repository: OpenRepository, warn: LogLine) -> Iterator[None]:
    """Renews the lock in a thread until the exit, four times within its expiry time.

    Failures are warnings. A renewal at which the store failed is tried again at the next time; a lost lock is no longer
    renewed. The check before each batch of deletes then stops a sweep.
    """
    ended = threading.Event()
    pause = repository.settings.lock_expiry_minutes * 60 / 4

    def renew() -> None:
        while not ended.wait(pause):
            try:
                lock.renew(repository.clock.now())
            except LockLost as lost:
                warn(str(lost))
                return
            except StorageError as error:
                warn(f"the lock could not be renewed: {error}")

    thread = threading.Thread(target=renew, name="lock renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _new_record(run_id: str, owner: str, now: datetime, expiry: timedelta, launch: Launch) -> _Record:
    taken_at, minutes = _utc(now), expiry.total_seconds() / 60
    process = f"{_user()} on {socket.gethostname()}, process {os.getpid()}"
    times = taken_at, taken_at, minutes
    return _Record(uuid.uuid4().hex, run_id, owner, *times, process=process, launch=launch.run, kernel=_kernel())


def _kernel() -> str:
    """Identifies the boot of the machine and the container, within which process numbers are comparable."""
    try:
        return f"{_BOOT.read_text().strip()} {_NUMBERS.readlink()}"
    except OSError:
        return ""


def _user() -> str:
    """Name of the user; the number if the system has no name for it, as in some containers."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _take(store: ObjectStore, record: _Record, launch: Launch) -> str:
    """Writes the lock if that is allowed; returns its ETag."""
    data = record.encode()
    for _ in range(_ATTEMPTS):
        try:
            return store.put_if_absent(KEY, data)
        except AlreadyExists:
            pass
        try:
            facts, current = _read(store)
        except ObjectNotFound:
            continue
        if current.nonce == record.nonce:
            return _etag(facts)
        if not _may_be_taken(current, facts, record, launch):
            raise _held(current, facts)
        try:
            etag = store.put_if_match(KEY, data, _etag(facts))
        except PreconditionFailed:
            continue
        if not current.released and current.owner != record.owner:
            _log.warning("took the lock over from %s, last renewed %s", current.holder, _shown(current.renewed_at))
        return etag
    raise LockHeld(f"the lock {KEY} changed hands {_ATTEMPTS} times while this run tried to take it: run again")


def _may_be_taken(current: _Record, facts: ObjectFacts, record: _Record, launch: Launch) -> bool:
    free = current.released or record.acquired_at >= current.expires_at(facts.last_modified)
    if free or current.owner == record.owner or current.outlived_its_launch(launch):
        return True
    # A scheduler's run keeps its lock between steps, and each step may be a separate process.
    return not current.launch and bool(current.kernel) and _life_of(current) is Life.GONE


def _read(store: ObjectStore) -> tuple[ObjectFacts, _Record]:
    """The lock's facts, then its content. Content newer than the ETag makes a conditional put fail, which is safe."""
    facts = store.head(KEY)
    return facts, _Record.decode(store.get(KEY))


def _read_held(store: ObjectStore) -> tuple[ObjectFacts, _Record] | None:
    """The facts and content of a held lock; None if there is none, or it was released."""
    with suppress(ObjectNotFound):
        facts, current = _read(store)
        if not current.released:
            return facts, current
    return None


def _prove_conditions(store: ObjectStore, record: _Record) -> None:
    """Tries both kinds of conditional put, which must fail now."""
    data = record.encode()
    try:
        store.put_if_absent(KEY, data)
    except AlreadyExists:
        try:
            store.put_if_match(KEY, data, _NO_ETAG)
        except PreconditionFailed:
            return
    raise NotOffered(
        "the store accepts a conditional put whose condition does not hold (If-None-Match, If-Match), so locks cannot "
        "be enforced; collect with a version of the store that honours these conditions"
    )


def _held(current: _Record, facts: ObjectFacts) -> LockHeld:
    process = f" ({current.process})" if current.process else ""
    return LockHeld(
        f"{current.owner} has been collecting this repository (run {current.run_id}) since "
        f"{_shown(current.acquired_at)}; it last renewed its lock at {_shown(current.renewed_at)}: wait until it "
        f"ends{process}. If it is dead, another run can take the lock from "
        f"{_shown(current.expires_at(facts.last_modified))}; `lakefs-gc unlock {current.run_id}` checks this and "
        "releases it earlier"
    )


def _etag(facts: ObjectFacts) -> str:
    if facts.etag is None:
        raise NotOffered(f"the store gives {KEY} no ETag, so locks cannot be enforced")
    return facts.etag


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(UTC)


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
