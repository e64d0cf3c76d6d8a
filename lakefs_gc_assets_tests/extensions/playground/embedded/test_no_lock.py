"""Runs on a store without conditional writes: one that refuses conditions, and one that ignores them."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, STEPS, CandidateFigures
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.records import plan, report
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import LockHeld, LockLost, NotOffered
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns, Made, Opened

REASON = "one cron job on one machine"


@pytest.fixture(autouse=True)
def without_conditions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses conditional writes, or ignores their conditions."""
    how = getattr(request, "param", "refuses")

    def refused(store: LocalStore, key: str, data: bytes, etag: str = "") -> str:
        if how == "refuses":
            raise NotOffered("the service does not offer conditional writes")
        return store.put(key, data)

    monkeypatch.setattr(LocalStore, "put_if_absent", refused)
    monkeypatch.setattr(LocalStore, "put_if_match", refused)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A repository with one live object and one garbage object."""
    with EmbeddedServer(tmp_path) as made:
        with made.clock.at(datetime.now(UTC) - timedelta(days=30)):
            clients.repository(made)
            clients.upload(made, "kept", b"live")
            clients.upload(made, "dropped", b"garbage")
            clients.call(made, "DELETE", "/repositories/repo/branches/main/objects", path="dropped")
            clients.commit(made, "one object")
        yield made


def frame_of(server: EmbeddedServer, run_id: str) -> Manifest[CandidateFigures]:
    return files.read_manifest(store_of(server), run_id, CANDIDATES_DF)


def runs(server: EmbeddedServer, **collection: object) -> ArrowRuns:
    return ArrowRuns(Loaded(configuration(server, **collection), {}))


def store_of(server: EmbeddedServer) -> LocalStore:
    given = configuration(server)
    opened = open_store(given.store, Namespace.parse("local://repo"))
    assert isinstance(opened, LocalStore)
    return opened


def test_a_dry_run_needs_no_lock_and_says_that_it_has_none(server: EmbeddedServer) -> None:
    made = runs(server, sweep=False)
    for flow in (Flow.CLEAN, Flow.OPTIMIZED):
        found = made.collect(flow)
        assert (found.success, found.dry_run, found.counts["candidates"]) == (True, True, 1)
        assert [warning for warning in found.warnings if "no lock was held: a dry run deletes nothing" in warning]
        assert plan.read(made.open().store, found.run_id).no_lock is not None
    assert any("no lock is held" in line for line in made.lines)
    assert not (server.objects_folder / "repo" / earlier_runs.KEY).exists()


@pytest.mark.parametrize("without_conditions", ["refuses", "ignores"], indirect=True)
def test_a_sweep_is_refused_until_it_is_said_why_it_needs_none(server: EmbeddedServer) -> None:
    with pytest.raises(NotOffered, match=r"set collection\.no_lock_reason"):
        runs(server).collect()
    made = runs(server, no_lock_reason=REASON)
    found = made.collect()
    assert (found.success, found.counts["deleted"]) == (True, 1)
    assert any(REASON in warning for warning in found.warnings)
    assert REASON in (plan.read(made.open().store, found.run_id).no_lock or "")
    assert json.loads((server.objects_folder / "repo" / lock.KEY).read_text())["released"] is True


def test_an_approved_dry_run_needs_the_reason_as_well(server: EmbeddedServer) -> None:
    marked = runs(server, sweep=False)
    run_id = marked.collect().run_id

    def swept(**collection: object) -> Made:
        made = runs(server, sweep=False, approve_run=run_id, **collection)
        opened = Opened(run_id, plan.read(made.open().store, run_id).windows, Flow.CLEAN)
        return made.make(opened, STEPS[-1:], "another")

    refused = swept()
    assert isinstance(refused.error, NotOffered)
    # If the approval was already stored, the last action before any delete needs the lock.
    sweeping.store_approval(store_of(server), frame_of(server, run_id), datetime.now(UTC), "nobody")
    unasked = runs(server, sweep=False)
    opened = Opened(run_id, plan.read(store_of(server), run_id).windows, Flow.CLEAN)
    assert isinstance(unasked.make(opened, STEPS[-1:], "another").error, NotOffered)
    done = swept(no_lock_reason=REASON)
    assert done.success, done.failures
    found = report.read(store_of(server), run_id)
    assert found is not None and (found.counts["deleted"], found.dry_run) == (1, False)
    assert any(REASON in warning for warning in found.warnings)


def test_whoever_lost_such_a_lock_deletes_nothing_more(server: EmbeddedServer) -> None:
    at, expiry = datetime.now(UTC), timedelta(hours=1)
    store = store_of(server)

    def taken(owner: str) -> lock.Lock:
        return lock.Lock.acquire_unfenced(store, REASON, run_id=owner, owner=owner, now=at, expiry=expiry)

    first = taken("first")
    with pytest.raises(LockHeld):
        taken("second")
    first.renew(at + timedelta(minutes=1))
    first.check()
    content = json.loads(store.get(lock.KEY)) | {"nonce": "another", "owner": "second"}
    store.put(lock.KEY, json.dumps(content).encode())
    for use in (first.check, lambda: first.renew(at), first.release):
        with pytest.raises(LockLost, match="belongs to second"):
            use()
