import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector import step as steps
from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import FRAMES, STEPS, UNCOMMITTED_DF
from lakefs_gc_assets.collector.frame.schemas import LISTED
from lakefs_gc_assets.collector.live import commits
from lakefs_gc_assets.collector.lock import Lock
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import place_by_address, renewed
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.errors import LockLost, StorageError
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets_tests.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.replayed_runs import refused
from lakefs_gc_assets_tests.spark.frame_rows import listed

__all__ = ["replaying"]

FIRST_THREE = ("store_df", "uncommitted_df", "committed_df")


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", sweep=True, max_candidate_share=1)


def change_manifest(runs: PlainRuns, run_id: str, frame: str, **span: object) -> None:
    store = runs.repository.store
    found = manifests.read(store, run_id, FRAMES[frame])
    manifests.write(store, replace(found, span=replace(found.span, **cast(Any, span))))


def test_a_run_of_the_first_steps_gives_the_lock_back_after_them(runs: PlainRuns) -> None:
    opened = runs.open()

    assert runs.make(opened, assets=["store_df", "uncommitted_df"]).success

    assert runs.lock_holder() is None
    assert plans.read(runs.repository.store, opened.run_id).windows == opened.windows


def test_candidates_of_replaced_frames_are_not_deleted(runs: PlainRuns) -> None:
    """Ranges that the new committed_df has read would not be looked at by the recheck."""
    opened = runs.open()
    assert runs.make(opened, assets=[*FIRST_THREE, "candidates"]).success
    assert runs.addresses(opened.run_id, "candidates")
    runs.clock.sleep(60)
    assert runs.make(opened, assets=["committed_df"]).success

    result = runs.make(opened, assets=["deleted_report"])

    assert "committed_df was made again after candidates was made from it" in result.failures["deleted_report"]
    assert runs.server.deleted == set()
    assert runs.report(opened.run_id).error is not None
    assert runs.lock_holder() is None


def test_frames_of_two_attempts_are_refused(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=FIRST_THREE).success
    change_manifest(runs, opened.run_id, "uncommitted_df", attempt="another")

    result = runs.make(opened, assets=["candidates", "deleted_report"])

    assert "OrderViolation" in result.failures["candidates"]
    assert "attempt another" in result.failures["candidates"]
    assert result.done == []
    assert runs.server.deleted == set()


def test_frames_in_an_unsafe_order_are_refused(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=FIRST_THREE).success
    found = manifests.read(runs.repository.store, opened.run_id, UNCOMMITTED_DF)
    change_manifest(runs, opened.run_id, "committed_df", started_at=found.span.ended_at - timedelta(microseconds=1))

    result = runs.make(opened, assets=["candidates"])

    assert "something live may have been missed" in result.failures["candidates"]


def test_an_ended_run_is_not_begun_again(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, sweep=False).success
    before = runs.report(opened.run_id)

    result = runs.make(opened)

    assert "open a new run instead" in result.failures["store_df"]
    assert result.done == []
    assert runs.report(opened.run_id) == before
    assert runs.lock_holder() is None


def test_a_failed_run_goes_on_where_it_failed(runs: PlainRuns) -> None:
    opened = runs.open()
    runs.server.fault = lambda method, target: refused(500, "no") if "prepare_uncommited" in target else None
    failed = runs.make(opened)
    assert list(failed.failures) == ["uncommitted_df"], failed.failures
    attempt = plans.read(runs.repository.store, opened.run_id).attempt
    runs.require_failed(opened.run_id, "no")
    assert runs.report(opened.run_id).counts == {}
    runs.server.fault = lambda method, target: None

    again = runs.again(failed)

    assert again.success, again.failures
    assert again.done == ["uncommitted_df", "committed_df", "candidates", "deleted_report"]
    assert plans.read(runs.repository.store, opened.run_id).attempt == attempt
    assert runs.report(opened.run_id).success
    assert runs.server.deleted == set(runs.addresses(opened.run_id, "candidates")) != set()
    assert runs.lock_holder() is None


def test_an_interrupted_run_leaves_no_lock(runs: PlainRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commits, "live_commits", interrupted)
    opened = runs.open()

    with pytest.raises(KeyboardInterrupt):
        runs.make(opened)

    assert runs.lock_holder() is None
    assert runs.report(opened.run_id).error == "interrupted"


def test_what_fails_between_steps_ends_the_run_as_well(runs: PlainRuns) -> None:
    """The listing's manifest disappears while a later step works: the next step cannot even begin."""
    opened = runs.open()
    store = runs.repository.store

    def fault(method: str, target: str) -> None:
        if method == "POST" and target.endswith("/dump"):
            store.delete([run_folder.manifest(opened.run_id, "store_df")])

    runs.server.fault = fault

    result = runs.make(opened)

    assert result.failures == {
        "candidates": f"OrderViolation: store_df of run {opened.run_id} does not exist: materialize it first"
    }
    assert "does not exist" in str(runs.report(opened.run_id).error)
    assert runs.lock_holder() is None


def test_a_step_that_cannot_even_take_the_lock_over_ends_the_run_as_well(
    runs: PlainRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step before kept the lock for it: others need not wait until it expires."""
    acquire, asked = steps.acquire, []

    def failing(repository: OpenRepository, run_id: str, owner: str) -> Lock:
        asked.append(run_id)
        if len(asked) == 2:
            raise StorageError("the store is away")
        return acquire(repository, run_id, owner)

    monkeypatch.setattr(steps, "acquire", failing)
    opened = runs.open()

    result = runs.make(opened)

    assert result.failures == {"uncommitted_df": "StorageError: the store is away"}
    assert runs.report(opened.run_id).error == "StorageError: the store is away"
    assert runs.lock_holder() is None


@pytest.mark.parametrize(
    ("begins", "ended_in"),
    [
        ("prepare_uncommited", "uncommitted_df"),
        ("/dump", "committed_df"),
    ],
)
def test_a_server_that_is_gone_in_mid_run_leaves_a_report_and_no_lock(
    runs: PlainRuns, begins: str, ended_in: str
) -> None:
    """It answers nothing any more, also to whoever ends the run."""
    opened = runs.open()
    gone: list[str] = []

    def fault(method: str, target: str) -> ApiAnswer | None:
        if begins in target:
            gone.append(target)
        return refused(503, "away for maintenance") if gone else None

    runs.server.fault = fault

    result = runs.make(opened)

    assert gone
    assert list(result.failures) == [ended_in]
    assert "away for maintenance" in result.failures[ended_in]
    runs.server.fault = lambda method, target: None
    runs.require_failed(opened.run_id, "away for maintenance")
    assert runs.server.deleted == set()


def test_each_step_tells_how_many_rows_it_stored_and_how_long_it_took(runs: PlainRuns) -> None:
    opened = runs.open()

    assert runs.make(opened, sweep=False).success

    for name in STEPS:
        rows = runs.frame(opened.run_id, name).count
        assert any(line.endswith(f"{rows:,} rows in 0.0 s") for line in runs.lines), runs.lines


def test_asking_for_a_step_too_early_leaves_a_running_one_alone(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=["store_df"]).success
    repository = runs.repository
    owner = plans.read(repository.store, opened.run_id).owner
    Lock.acquire(repository.store, run_id=opened.run_id, owner=owner, now=runs.clock.now(), expiry=timedelta(minutes=1))

    result = runs.make(opened, assets=["candidates"])

    assert "does not exist: materialize it first" in result.failures["candidates"]
    assert owner in str(runs.lock_holder())


def test_a_lock_of_another_run_ends_the_step(runs: PlainRuns) -> None:
    Lock.acquire(
        runs.repository.store, run_id="another", owner="somebody", now=runs.clock.now(), expiry=timedelta(minutes=1)
    )

    result = runs.make(runs.open())

    assert "somebody collects this repository" in result.failures["store_df"]
    assert "somebody" in str(runs.lock_holder())


class FailingLock:
    """A lock whose renewals end as a test says."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.renewals = 0
        self.done = threading.Event()

    def renew(self, now: object) -> None:
        self.renewals += 1
        if len(self.outcomes) == 1:
            self.done.set()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome


@pytest.fixture
def often() -> Iterator[OpenRepository]:
    settings = SimpleNamespace(lock_expiry_minutes=0.0001)
    clock = SimpleNamespace(now=lambda: None)
    yield cast(OpenRepository, SimpleNamespace(settings=settings, clock=clock))


def test_a_renewal_that_failed_is_tried_again(often: OpenRepository) -> None:
    said: list[str] = []
    failing = FailingLock(StorageError("the store is away"), None, StorageError("the store is away"), None)

    with renewed(cast(Lock, failing), often, said.append):
        assert failing.done.wait(10)

    assert said == ["the lock could not be renewed: the store is away"] * 2


def test_a_lost_lock_is_not_renewed(often: OpenRepository) -> None:
    said: list[str] = []
    failing = FailingLock(LockLost("it belongs to another run"), None)

    with renewed(cast(Lock, failing), often, said.append):
        assert not failing.done.wait(0.2)

    assert said == ["it belongs to another run"]
    assert failing.renewals == 1


def test_rows_return_to_the_window_of_their_address() -> None:
    born = datetime(2026, 11, 20, tzinfo=UTC)
    ids = xids.Generator(b"abcde", 7)
    slices = [ids.descending(born - timedelta(days=days)) for days in (1, 40, 80)]
    names = [f"data/{folder}/{ids.ascending(born)}" for folder in slices]
    rows = [{**listed(name), "slice_window": "other"} for name in [*names, "root"]]

    found = place_by_address(pa.RecordBatch.from_pylist(rows, schema=LISTED), "month")

    windows = {row["address"]: row["slice_window"] for row in found.to_pylist()}
    assert windows == {**dict(zip(names, ["2026-11", "2026-10", "2026-09"], strict=True)), "root": "legacy"}
    assert found.schema == LISTED
