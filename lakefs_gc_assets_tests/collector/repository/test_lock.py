import json
import os
import pickle
import pwd
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakefs_gc_assets.collector.repository import lock as lock_module
from lakefs_gc_assets.collector.repository.lock import KEY, Lock, holder, release_owned, verify
from lakefs_gc_assets.collector.repository.repository import Clock, Launch, SystemClock
from lakefs_gc_assets.errors import AlreadyExists, LockHeld, LockLost, PreconditionFailed, StorageError
from lakefs_gc_assets.storage.interface import DeleteOutcome, Level, ObjectFacts, ObjectStore
from lakefs_gc_assets_tests.collector.breaking import BreakingStore
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

HOUR = timedelta(hours=1)


def now() -> datetime:
    return datetime.now(UTC)


def acquire(store: ObjectStore, owner: str = "dagster-1", at: datetime | None = None, expiry: timedelta = HOUR) -> Lock:
    return Lock.acquire(store, run_id=f"run-of-{owner}", owner=owner, now=at or now(), expiry=expiry)


def test_the_lock_keeps_others_out_until_it_is_released(store: ObjectStore) -> None:
    lock = acquire(store)
    lock.check()
    with pytest.raises(LockHeld):
        acquire(store, "dagster-2")
    lock.check()
    lock.release()
    other = acquire(store, "dagster-2")
    other.check()
    with pytest.raises(LockLost):
        lock.check()


def test_who_is_kept_out_learns_by_whom_and_until_when(local_store: ObjectStore) -> None:
    at = now().replace(microsecond=0) + timedelta(hours=1)
    acquire(local_store, at=at, expiry=timedelta(minutes=90))
    with pytest.raises(LockHeld) as caught:
        acquire(local_store, "dagster-2", at + timedelta(minutes=1))
    text = str(caught.value)
    assert "dagster-1 has been collecting this repository (run run-of-dagster-1)" in text
    assert f", process {os.getpid()}). If it is dead" in text
    for moment in (at, at + timedelta(minutes=90)):
        assert moment.strftime("%Y-%m-%d %H:%M:%S UTC") in text
    assert "`lakefs-gc unlock " in text


def test_who_lost_the_lock_learns_that_nothing_more_may_be_deleted(local_store: ObjectStore) -> None:
    lock = acquire(local_store)
    content = json.loads(local_store.get(KEY)) | {"owner": "another"}
    local_store.put(KEY, json.dumps(content).encode())
    with pytest.raises(LockLost, match="was changed by another process: nothing more may be deleted"):
        lock.renew(now())
    local_store.delete([KEY])
    with pytest.raises(LockLost, match="is gone: nothing more may be deleted"):
        lock.check()


def test_a_store_without_etags_cannot_keep_collections_apart(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire(local_store)
    head = local_store.head
    monkeypatch.setattr(local_store, "head", lambda key: replace(head(key), etag=None))
    with pytest.raises(StorageError, match=r"gives .* no ETag, so locks cannot be enforced"):
        acquire(local_store)


def test_the_store_tells_its_time(store: ObjectStore) -> None:
    before = now()
    lock = acquire(store)
    assert before - timedelta(seconds=1) <= lock.store_clock <= now()
    assert lock.store_clock.utcoffset() == timedelta(0)


def test_the_object_says_who_holds_it(local_store: ObjectStore) -> None:
    at = now()
    lock = acquire(local_store, at=at)
    content = json.loads(local_store.get(KEY))
    assert content == {
        "nonce": lock.token,
        "run_id": "run-of-dagster-1",
        "owner": "dagster-1",
        "acquired_at": at.isoformat(),
        "renewed_at": at.isoformat(),
        "expires_minutes": 60.0,
        "released": False,
        "process": f"{pwd.getpwuid(os.getuid()).pw_name} on {socket.gethostname()}, process {os.getpid()}",
        "launch": "",
        "kernel": lock_module._kernel(),
    }
    assert KEY == "_lakefs/retention/gc/uncommitted/lock.json"


def test_a_lock_not_renewed_expires(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    at = now()
    lock = acquire(store, at=at)
    with pytest.raises(LockHeld):
        acquire(store, "dagster-2", now() + timedelta(minutes=59))
    other = acquire(store, "dagster-2", now() + timedelta(minutes=61))
    assert "took the lock over from dagster-1 (" in caplog.text
    assert f", last renewed {at:%F %T} UTC" in caplog.text
    other.check()
    for use in (lock.check, lambda: lock.renew(now()), lock.release):
        with pytest.raises(LockLost, match=r"belongs to dagster-2 \(.*\) for run run-of-dagster-2"):
            use()
    other.check()


@pytest.mark.parametrize(
    ("launch", "ended", "renewed", "is_free"),
    [
        ("run-1", timedelta(minutes=1), None, True),
        ("run-1", timedelta(minutes=1), timedelta(minutes=2), False),
        ("run-1", None, None, False),
        ("", timedelta(minutes=1), None, False),
    ],
)
def test_the_lock_of_a_dagster_run_that_ended_is_free_unless_its_process_lives_on(
    local_store: ObjectStore, launch: str, ended: timedelta | None, renewed: timedelta | None, is_free: bool
) -> None:
    at = now()
    ends = {"run-1": None if ended is None else at + ended}
    first = Launch(launch, ends.get)
    lock = Lock.acquire(local_store, run_id="run", owner="root-1", launch=first, now=at, expiry=HOUR)
    if renewed is not None:
        lock.renew(at + renewed)

    def take() -> Lock:
        launch = Launch("run-2", ends.get)
        return Lock.acquire(local_store, run_id="run-2", owner="root-2", launch=launch, now=now(), expiry=HOUR)

    if not is_free:
        with pytest.raises(LockHeld):
            take()
        lock.check()
        return
    other = take()
    other.check()
    for use in (lock.check, lambda: lock.renew(now()), lock.release):
        with pytest.raises(LockLost):
            use()
    other.check()


@pytest.mark.parametrize(
    ("kernel", "launch", "is_free"),
    [(None, "", True), (None, "run-1", False), ("", "", False), ("another container", "", False)],
    ids=["this machine", "run of a scheduler", "unknown kernel", "another container"],
)
def test_the_lock_of_a_killed_command_is_free_on_its_own_machine(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch, kernel: str | None, launch: str, is_free: bool
) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: killed.pid)
        if kernel is not None:
            patch.setattr(lock_module, "_kernel", lambda: kernel)
        first = Lock.acquire(
            local_store, run_id="run", owner="killed", now=now(), expiry=HOUR, launch=Launch(launch, lambda _: None)
        )
    if not is_free:
        with pytest.raises(LockHeld):
            acquire(local_store)
        first.check()
        return
    acquire(local_store).check()
    with pytest.raises(LockLost):
        first.check()


def test_a_lock_of_an_earlier_version_names_no_process(local_store: ObjectStore) -> None:
    acquire(local_store)
    content = json.loads(local_store.get(KEY))
    del content["process"], content["launch"]
    local_store.put(KEY, json.dumps(content).encode())

    with pytest.raises(LockHeld, match=r"^dagster-1 has been collecting this repository \(run run-of-dagster-1\)"):
        acquire(local_store, "dagster-2")


def test_a_renewed_lock_does_not_expire(store: ObjectStore) -> None:
    lock = acquire(store)
    later = now() + timedelta(minutes=45)
    lock.renew(later)
    lock.renew(now())
    with pytest.raises(LockHeld):
        acquire(store, "dagster-2", later + timedelta(minutes=59))
    lock.check()
    acquire(store, "dagster-2", later + timedelta(minutes=61))


def test_a_holder_whose_clock_is_behind_does_not_expire_early(local_store: ObjectStore) -> None:
    lock = acquire(local_store, at=now() - timedelta(hours=5))
    with pytest.raises(LockHeld):
        acquire(local_store, "dagster-2", now() + timedelta(minutes=30))
    lock.check()


def test_the_holders_own_expiry_counts(local_store: ObjectStore) -> None:
    acquire(local_store, expiry=timedelta(hours=3))
    with pytest.raises(LockHeld):
        acquire(local_store, "dagster-2", now() + timedelta(hours=2), expiry=timedelta(minutes=1))


def test_the_same_owner_takes_over_at_once_and_the_run_before_loses(
    local_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    before = acquire(local_store)
    again = acquire(local_store)
    assert caplog.text == ""
    again.check()
    for use in (before.check, lambda: before.renew(now()), before.release):
        with pytest.raises(LockLost):
            use()
    again.renew(now())
    again.release()


def test_a_token_checks_the_lock_in_another_process(local_store: ObjectStore) -> None:
    lock = acquire(local_store)
    token = pickle.loads(pickle.dumps(lock.token))
    verify(local_store, token)
    lock.renew(now())
    verify(local_store, token)
    lock.release()
    with pytest.raises(LockLost, match="was released"):
        verify(local_store, token)


def test_a_lock_that_was_deleted_is_lost(store: ObjectStore) -> None:
    lock = acquire(store)
    store.delete([KEY])
    for use in (lock.check, lambda: lock.renew(now()), lock.release):
        with pytest.raises(LockLost):
            use()
    acquire(store, "dagster-2").check()


@pytest.mark.parametrize(
    "change",
    [
        {"released": "false"},
        {"released": None},
        {"nonce": ["x"]},
        {"owner": None},
        {"expires_minutes": "30"},
        {"expires_minutes": 1e300},
        {"renewed_at": "2026-11-21T12:00:00"},
        {"renewed_at": "9999-12-31T23:59:59Z"},
    ],
)
def test_a_lock_whose_entries_lie_is_nobodys_to_take(local_store: ObjectStore, change: dict[str, object]) -> None:
    acquire(local_store)
    local_store.put(KEY, json.dumps(json.loads(local_store.get(KEY)) | change).encode())
    with pytest.raises(StorageError, match="cannot be read"):
        acquire(local_store)


@pytest.mark.parametrize("content", [b"", b"not json", b"{}", b"[]", b'{"nonce": "x"}', b"\xff"])
def test_a_lock_that_cannot_be_read_is_nobodys_to_take(local_store: ObjectStore, content: bytes) -> None:
    lock = acquire(local_store)
    local_store.put(KEY, content)
    with pytest.raises(StorageError, match="cannot be read"):
        acquire(local_store)
    with pytest.raises(StorageError, match="cannot be read"):
        lock.check()
    assert local_store.get(KEY) == content


def test_a_time_without_zone_is_refused(local_store: ObjectStore) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        acquire(local_store, at=datetime(2026, 1, 1))


@pytest.mark.parametrize("state", ["absent", "released", "expired"])
def test_of_many_runs_one_gets_the_lock(store: ObjectStore, state: str) -> None:
    if state != "absent":
        first = acquire(store, at=now())
        if state == "released":
            first.release()
    at = now() + (timedelta(hours=2) if state == "expired" else timedelta(0))

    def attempt(number: int) -> Lock | None:
        try:
            return acquire(store, f"racer-{number}", at)
        except LockHeld:
            return None

    with ThreadPoolExecutor(6) as pool:
        [lock] = [lock for lock in pool.map(attempt, range(6)) if lock is not None]
    lock.check()
    lock.release()


def test_who_holds_the_lock_can_be_asked(local_store: ObjectStore) -> None:
    assert holder(local_store) is None
    at = now()
    lock = acquire(local_store, at=at)
    text = holder(local_store)
    assert text is not None
    assert "held by dagster-1 (" in text and ") for run run-of-dagster-1" in text
    assert at.strftime("%Y-%m-%d %H:%M:%S UTC") in text
    lock.release()
    assert holder(local_store) is None


def test_the_lock_of_an_owner_that_ended_is_released_and_no_other(store: ObjectStore) -> None:
    release_owned(store, "dagster-1")
    lock = acquire(store)
    release_owned(store, "dagster-2")
    lock.check()
    release_owned(store, "dagster-1")
    with pytest.raises(LockLost, match="was released"):
        lock.check()
    release_owned(store, "dagster-1")
    acquire(store, "dagster-2").check()


class Wrapped:
    """A store for subclasses to break; every method delegates."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.delete_limit = store.delete_limit

    def list(self, prefix: str) -> Iterator[object]:
        return self._store.list(prefix)

    def list_level(self, prefix: str) -> Level:
        return self._store.list_level(prefix)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def get_part(self, key: str, start: int, end: int) -> bytes:
        return self._store.get_part(key, start, end)

    def head(self, key: str) -> ObjectFacts:
        return self._store.head(key)

    def put(self, key: str, data: bytes) -> str | None:
        return self._store.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._store.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._store.put_if_match(key, data, etag)

    def copy(self, source: str, target: str) -> ObjectFacts:
        return self._store.copy(source, target)

    def copy_if_absent(self, source: str, target: str) -> None:
        self._store.copy_if_absent(source, target)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        return self._store.delete(keys)


class IgnoresIfNoneMatch(Wrapped):
    def put_if_absent(self, key: str, data: bytes) -> str:
        return self._store.put(key, data) or ""


class IgnoresIfMatch(Wrapped):
    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self._store.put(key, data) or ""


@pytest.mark.parametrize("kind", [IgnoresIfNoneMatch, IgnoresIfMatch])
def test_a_store_that_ignores_conditions_is_found_out(local_store: ObjectStore, kind: type[Wrapped]) -> None:
    for _ in range(2):
        with pytest.raises(StorageError, match="condition does not hold"):
            acquire(kind(local_store))
        with pytest.raises(StorageError, match="condition does not hold"):
            acquire(kind(local_store), "dagster-2")


@pytest.mark.parametrize("kind", [IgnoresIfNoneMatch, IgnoresIfMatch])
def test_what_such_a_store_is_left_with_is_a_lock_that_nobody_holds(
    local_store: ObjectStore, kind: type[Wrapped]
) -> None:
    with pytest.raises(StorageError, match=r"condition does not hold \(If-None-Match, If-Match\), so locks"):
        acquire(kind(local_store))
    assert json.loads(local_store.get(KEY))["released"] is True
    assert holder(local_store) is None


def test_times_are_written_in_utc_wherever_the_machine_is(
    local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        at = now()
        acquire(local_store, at=at.astimezone())
        assert json.loads(local_store.get(KEY))["acquired_at"] == at.isoformat()
    finally:
        monkeypatch.undo()
        time.tzset()


class NotesVersions(Wrapped):
    """Records the versions that conditional puts name."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.etags: list[str] = []

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        self.etags.append(etag)
        return super().put_if_match(key, data, etag)


def test_conditions_are_tried_with_a_version_that_never_was(local_store: ObjectStore) -> None:
    noted = NotesVersions(local_store)
    acquire(noted).check()
    assert noted.etags == ["0" * 32]


def test_a_lock_expires_at_the_very_end_of_its_time(local_store: ObjectStore) -> None:
    at = now() + HOUR
    acquire(local_store, at=at)
    with pytest.raises(LockHeld):
        acquire(local_store, "dagster-2", at + HOUR - timedelta(microseconds=1))
    acquire(local_store, "dagster-2", at + HOUR).check()


class DeletesMeanwhile(Wrapped):
    """Deletes the lock each time a client reads the object that blocked a put."""

    def __init__(self, store: ObjectStore, times: int) -> None:
        super().__init__(store)
        self.times = times

    def head(self, key: str) -> ObjectFacts:
        if self.times:
            self.times -= 1
            self._store.delete([key])
        return super().head(key)

    def put_if_absent(self, key: str, data: bytes) -> str:
        if self.times:
            acquire(self._store, "dagster-2")
        return super().put_if_absent(key, data)


def test_a_lock_that_is_gone_between_two_questions_is_asked_for_again(local_store: ObjectStore) -> None:
    acquire(DeletesMeanwhile(local_store, 2)).check()
    local_store.delete([KEY])
    with pytest.raises(LockHeld, match=f"the lock {KEY} changed hands 3 times while this run tried to take it"):
        acquire(DeletesMeanwhile(local_store, 3))


class LosesAnswers(Wrapped):
    """Executes each conditional put twice, as a retry after a lost answer does."""

    def put_if_absent(self, key: str, data: bytes) -> str:
        self._store.put_if_absent(key, data)
        return self._store.put_if_absent(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        self._store.put_if_match(key, data, etag)
        return self._store.put_if_match(key, data, etag)


def test_lost_answers_lose_no_lock(store: ObjectStore) -> None:
    forgetful = LosesAnswers(store)
    lock = acquire(forgetful)
    lock.renew(now() + timedelta(seconds=1))
    lock.renew(now() + timedelta(seconds=2))
    lock.check()
    lock.release()
    again = acquire(forgetful, "dagster-2")
    again.check()


class Interferes(Wrapped):
    """Another run interferes between reading the lock and writing it."""

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        if b"dagster-1" in data and b"dagster-1" not in self._store.get(key):
            acquire(self._store, "dagster-3", now() + timedelta(hours=9))
        return self._store.put_if_match(key, data, etag)


def test_a_lock_taken_meanwhile_is_not_taken_over(store: ObjectStore) -> None:
    acquire(store, "dagster-2")
    with pytest.raises(LockHeld, match="dagster-3 has been collecting"):
        acquire(Interferes(store), "dagster-1", now() + timedelta(hours=2))


def test_a_lock_taken_meanwhile_is_not_released(store: ObjectStore) -> None:
    acquire(store, "dagster-2")
    other = acquire(store, "dagster-3", now() + timedelta(hours=2))
    release_owned(store, "dagster-2")
    other.check()


class OverwrittenAfterwards(Wrapped):
    """A store without conditions where another run writes the lock right after ours."""

    def put_if_absent(self, key: str, data: bytes) -> str:
        etag = self._store.put_if_absent(key, data)
        self._store.put(key, data.replace(b"dagster-1", b"dagster-2").replace(b'"nonce": "', b'"nonce": "f'))
        return etag


def test_the_nonce_is_read_back(store: ObjectStore) -> None:
    with pytest.raises(LockHeld, match="dagster-2 has been collecting"):
        acquire(OverwrittenAfterwards(store))


@pytest.mark.parametrize("at", range(2, 6))
def test_a_lock_that_was_taken_and_not_given_to_anybody_is_free(local_store: ObjectStore, at: int) -> None:
    broken = BreakingStore(local_store, at)
    with pytest.raises(StorageError, match="SlowDown"):
        acquire(broken)

    assert holder(local_store) is None
    acquire(local_store, "dagster-2").check()


def test_wrapped_stores_pass_on_what_stores_raise(local_store: ObjectStore) -> None:
    wrapped = Wrapped(local_store)
    etag = wrapped.put_if_absent("key", b"1")
    with pytest.raises(AlreadyExists):
        wrapped.put_if_absent("key", b"2")
    wrapped.put_if_match("key", b"3", etag)
    with pytest.raises(PreconditionFailed):
        wrapped.put_if_match("key", b"4", etag)


def test_the_system_clock_is_utc_and_waits() -> None:
    clock: Clock = SystemClock()
    before = clock.now()
    clock.sleep(0.05)
    assert before.utcoffset() == timedelta(0)
    assert abs(before - now()) < timedelta(seconds=5)
    assert clock.now() - before >= timedelta(seconds=0.04)
