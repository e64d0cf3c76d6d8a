"""`lakefs-gc unlock` on an embedded server with a lock in its store."""

import json
import os
import socket
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.errors import LockLost
from lakefs_gc_assets_tests.collector.past_runs import HOUR
from lakefs_gc_assets_tests.defs.automated import Automated, automated, server

__all__ = ["automated", "server"]

RUN = "c" * 20
Unlock = Callable[..., Result]


@pytest.fixture
def unlock(automated: Automated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Unlock:
    file = automated.write_configuration(tmp_path, "TEST_UNLOCK_SECRET")
    monkeypatch.setenv("TEST_UNLOCK_SECRET", automated.server.secret_access_key)
    return lambda *arguments, **options: CliRunner().invoke(
        main, ["unlock", "--config", str(file), *arguments], **options
    )


def held_lock(automated: Automated, at: datetime | None = None) -> Lock:
    return Lock.acquire(
        automated.repository.store, run_id=RUN, owner="somebody", now=at or SystemClock().now(), expiry=HOUR
    )


def elsewhere(automated: Automated, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """A lock held by a process on another machine."""
    with monkeypatch.context() as patch:
        patch.setattr(socket, "gethostname", lambda: "another-machine")
        return held_lock(automated)


def test_a_free_lock_stays_free(unlock: Unlock) -> None:
    result = unlock(RUN)

    assert (result.exit_code, result.stdout) == (0, "the lock is free: nothing was done\n")
    assert json.loads(unlock(RUN, "--json").stdout) == {"run_id": RUN, "released": False}


def test_the_lock_of_a_live_process_stays(automated: Automated, unlock: Unlock) -> None:
    held = held_lock(automated)

    for arguments in ((RUN,), (RUN, "--yes")):
        result = unlock(*arguments)
        assert result.exit_code == Status.LOCKED
        assert f"process {os.getpid()}) has held it for run {RUN}" in result.stderr
        assert result.stderr.endswith("and that process is alive on this machine; end it first\n")
    held.check()


def test_the_lock_of_another_run_stays(automated: Automated, unlock: Unlock) -> None:
    held = held_lock(automated)

    result = unlock("d" * 20, "--yes")

    assert result.exit_code == Status.LOCKED
    assert f"run {'d' * 20} does not hold the lock: somebody (" in result.stderr
    held.check()


def test_the_lock_of_a_process_that_is_gone_is_released(
    automated: Automated, unlock: Unlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_lock(automated)

    def no_such_process(*_: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", no_such_process)
    result = unlock(RUN)

    assert (result.exit_code, result.stdout) == (
        0,
        f"released the lock of run {RUN}: its process on this machine is gone\n",
    )
    assert lock.holder(automated.repository.store) is None
    with pytest.raises(LockLost):
        held.check()


def test_the_lock_of_a_process_in_another_container_of_this_name_stays(
    automated: Automated, unlock: Unlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_kernel", lambda: "another container")
        patch.setattr(os, "getpid", lambda: 2**22 + 1)
        held = held_lock(automated)

    result = unlock(RUN)

    assert result.exit_code == Status.LOCKED
    assert "this machine cannot see whether that process is alive" in result.stderr
    held.check()


def test_a_lock_that_expired_is_released(automated: Automated, unlock: Unlock) -> None:
    held_lock(automated, SystemClock().now() - 2 * HOUR)
    lock_file = next(automated.server.objects_folder.rglob("lock.json"))
    long_ago = (SystemClock().now() - 2 * HOUR).timestamp()
    os.utime(lock_file, (long_ago, long_ago))

    result = unlock(RUN)

    assert result.stdout == f"released the lock of run {RUN}: it has expired, and the next run would take it\n"
    assert lock.holder(automated.repository.store) is None


def test_the_lock_of_another_machine_is_released_if_somebody_says_so(
    automated: Automated, unlock: Unlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = elsewhere(automated, monkeypatch)

    refused = unlock(RUN)
    monkeypatch.setattr(sys.modules["lakefs_gc_assets.cli.unlock"], "is_on_terminal", lambda: True)
    declined = unlock(RUN, input="n\n")

    assert refused.exit_code == declined.exit_code == Status.LOCKED
    assert "on another-machine, process" in refused.stderr and refused.stderr.endswith("give --yes\n")
    assert "Have you verified that this process has ended?" in declined.stderr
    held.check()
    released = f"released the lock of run {RUN}: you confirmed that its process has ended\n"
    assert unlock(RUN, input="y\n").stdout == released
    elsewhere(automated, monkeypatch)
    assert json.loads(unlock(RUN, "--yes", "--json").stdout) == {"run_id": RUN, "released": True}


def test_a_lock_that_is_renewed_meanwhile_stays(automated: Automated, monkeypatch: pytest.MonkeyPatch) -> None:
    held = elsewhere(automated, monkeypatch)
    inspected = lock.inspect(automated.repository)
    assert inspected is not None
    held.renew(SystemClock().now() + timedelta(seconds=1))

    with pytest.raises(LockLost, match="its holder is alive"):
        lock.release_inspected(automated.repository, inspected)

    held.check()
