import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import make_step
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.files import Span
from lakefs_gc_assets.collector.make_step import StepHost, StepRequest
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Approval, Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock, holder, renewed
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import (
    CollectionError,
    LockHeld,
    LockLost,
    NotOffered,
    OrderViolation,
    ServerUnavailable,
    StorageError,
)
from lakefs_gc_assets.lakefs.api.models import ServerClocks
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector import made_frames
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, began, ended, opened
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import refused

__all__ = ["opened", "replaying"]


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", sweep=True, max_candidate_share=1)


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


def test_what_fails_between_steps_ends_the_run_as_well(runs: PlainRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing's manifest disappears during a later step: the next step cannot even begin if it must read it."""
    monkeypatch.setattr(Collector, "keep", lambda collector, stored: None)
    opened = runs.open()
    store = runs.repository.store

    def fault(method: str, target: str) -> None:
        if method == "POST" and target.endswith("/dump"):
            store.delete([run_folder.manifest(opened.run_id, "store_df")])

    runs.server.fault = fault

    result = runs.make(opened)

    assert result.failures == {"candidates": f"store_df of run {opened.run_id} does not exist: materialize it first"}
    assert "does not exist" in str(runs.report(opened.run_id).error)
    assert runs.lock_holder() is None


def test_a_frame_that_disappears_after_its_process_made_it_ends_the_sweep(runs: PlainRuns) -> None:
    opened = runs.open()

    def lose(name: str) -> None:
        if name == "candidates":
            runs.repository.store.delete([run_folder.manifest(opened.run_id, "store_df")])

    result = runs.make(opened, sweep=True, between=lose)

    assert "store_df of run" in result.failures["deleted_report"]
    assert runs.lock_holder() is None and not runs.server.deleted


def test_a_step_that_cannot_even_take_the_lock_over_ends_the_run_as_well(
    runs: PlainRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The previous step kept the lock for it: other runs need not wait until the lock expires."""
    acquire, asked = lock.acquire_again, []

    def failing(kept: Lock | None, repository: OpenRepository, run_id: str, owner: str, *, deletes: bool) -> Lock:
        asked.append(run_id)
        if len(asked) == 2:
            raise StorageError("the store is away")
        return acquire(kept, repository, run_id, owner, deletes=deletes)

    monkeypatch.setattr(make_step, "acquire_again", failing)
    opened = runs.open()

    result = runs.make(opened)

    assert result.failures == {"uncommitted_df": "the store is away"}
    assert runs.report(opened.run_id).error == "the store is away"
    assert runs.lock_holder() is None


def test_a_server_that_is_gone_in_mid_run_leaves_a_report_and_no_lock(runs: PlainRuns) -> None:
    """The server no longer answers, not even to the process that ends the run."""
    opened = runs.open()
    gone: list[str] = []

    def fault(method: str, target: str) -> ApiAnswer | None:
        if target.endswith("/dump"):
            gone.append(target)
        return refused(503, "away for maintenance") if gone else None

    runs.server.fault = fault

    result = runs.make(opened)

    assert gone
    assert list(result.failures) == ["committed_df"]
    assert "away for maintenance" in result.failures["committed_df"]
    runs.server.fault = lambda method, target: None
    runs.require_failed(opened.run_id, "away for maintenance")
    assert runs.server.deleted == set()


def test_asking_for_a_step_too_early_leaves_a_running_one_alone(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=["store_df"]).success
    repository = runs.repository
    owner = plans.read(repository.store, opened.run_id).owner
    Lock.acquire(repository.store, run_id=opened.run_id, owner=owner, now=runs.clock.now(), expiry=timedelta(minutes=1))

    result = runs.make(opened, assets=["candidates"])

    assert "does not exist: materialize it first" in result.failures["candidates"]
    assert owner in str(runs.lock_holder())


class FailingLock:
    """A lock whose renewals fail as a test specifies."""

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
        assert failing.done.wait(60)

    assert said == ["the lock could not be renewed: the store is away"] * 2


def test_a_lost_lock_is_not_renewed(often: OpenRepository) -> None:
    said = queue.SimpleQueue[str]()
    failing = FailingLock(LockLost("it belongs to another run"), None)

    with renewed(cast(Lock, failing), often, said.put):
        assert said.get(timeout=900) == "it belongs to another run"
        assert not failing.done.wait(0.2)

    assert said.empty()
    assert failing.renewals == 1


@dataclass
class OneProcess:
    """A process that makes steps on plain tables, and its log."""

    repository: OpenRepository
    fails: Exception | None = None
    opened: bool = False
    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    locks: dict[str, Lock] = field(default_factory=dict)

    @property
    def host(self) -> StepHost[ArrowRows]:
        return StepHost(
            self.open, self.last_opened, self.engine, self.now, self.log, self.warn, self.explain, self.locks
        )

    def open(self) -> OpenRepository:
        if self.fails is not None:
            raise self.fails
        self.opened = True
        return self.repository

    def last_opened(self) -> ObjectStore | None:
        return self.repository.store if self.opened else None

    def engine(self, repository: OpenRepository) -> LocalEngine:
        assert repository is self.repository
        return LocalEngine()

    def now(self) -> datetime:
        return self.repository.clock.now()

    def log(self, line: str) -> None:
        self.lines.append(line)

    def warn(self, line: str) -> None:
        self.warnings.append(line)

    def explain(self, error: BaseException) -> str:
        return f"explained: {error}"


RUN = "g4uk6erfnfus73frbnqg"
WINDOWS = ("legacy", "2026-11")
FIRST = StepRequest(RUN, WINDOWS, "dagster-run", begins=Flow.CLEAN)
LATER = StepRequest(RUN, WINDOWS, "another dagster-run", has_earlier_step=True)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def process(tmp_path: Path) -> OneProcess:
    """A process that collects an empty repository; store and clock have the real time."""
    opened = opened_by(opener_in(tmp_path, "repository"))
    return OneProcess(replace(opened, clock=HandClock(datetime.now(UTC))))


def held_by(process: OneProcess) -> str | None:
    return lock.holder(process.repository.store)


def report_of(process: OneProcess) -> Report | None:
    return reports.read(process.repository.store, RUN)


class TestOneStep:
    """A single step: its plan, its lock, and its files after a failure."""

    def test_that_begins_a_run_makes_its_plan_and_gives_the_lock_back(self, process: OneProcess) -> None:
        with make_step.step(FIRST, process.host) as step:
            assert "dagster-run" in str(held_by(process))
            lock.verify(process.repository.store, step.lock_token)
            step.log("line")
            step.warn("warning")
        plan = plans.read(process.repository.store, RUN)
        assert step.plan == plan
        assert (plan.windows, plan.owner, plan.flow) == (WINDOWS, "dagster-run", Flow.CLEAN)
        assert (process.lines, process.warnings, held_by(process)) == (["line"], ["warning"], None)
        assert step.repository is process.repository and isinstance(step.engine, LocalEngine)
        assert report_of(process) is None

    def test_asks_for_the_flow_that_it_is_reported(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, begins=Flow.UNIFIED), process.host) as step:
            assert step.plan.flow is Flow.UNIFIED

    def test_keeps_the_lock_for_a_later_one_which_takes_the_owner_from_the_plan(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host) as first:
            pass
        assert "dagster-run" in str(held_by(process)) and report_of(process) is None
        with make_step.step(LATER, process.host) as later:
            assert held_by(process) is not None and "another" not in str(held_by(process))
        assert later.plan == first.plan and held_by(process) is None

    @pytest.mark.parametrize("error", [ValueError("no disk"), KeyboardInterrupt("no disk")])
    def test_that_fails_leaves_a_report_and_no_lock(self, process: OneProcess, error: BaseException) -> None:
        with pytest.raises(type(error)), make_step.step(replace(FIRST, has_later_step=True), process.host):
            raise error
        report = report_of(process)
        assert report is not None
        assert (report.success, report.ending, report.error) == (False, Ending.FAILED, "explained: no disk")
        assert report.ended_at == process.now()
        assert held_by(process) is None

    def test_that_fails_raises_its_own_error_though_neither_report_nor_lock_can_be_written(
        self, process: OneProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*arguments: object, **named: object) -> None:
            raise StorageError("the store is away")

        with pytest.raises(ValueError, match="no disk"), make_step.step(FIRST, process.host):
            monkeypatch.setattr(make_step, "store_report", away)
            monkeypatch.setattr(Lock, "release", away)
            raise ValueError("no disk")
        [warned] = process.warnings
        assert warned.startswith(f"the lock of run {RUN} was not released, and blocks other runs until 20")
        assert warned.endswith(f"UTC: the store is away. Correct that, then `lakefs-gc unlock {RUN}` releases it")

    def test_that_fails_says_nothing_of_a_lock_that_another_run_has(
        self, process: OneProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lost(self: Lock) -> None:
            raise LockLost("it belongs to another")

        with pytest.raises(ValueError, match="no disk"), make_step.step(FIRST, process.host):
            monkeypatch.setattr(Lock, "release", lost)
            raise ValueError("no disk")
        assert process.warnings == []

    def test_that_fails_has_its_lock_while_its_report_is_stored(
        self, process: OneProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The next holder of the lock finds the run ended."""
        held: list[str | None] = []
        monkeypatch.setattr(make_step, "store_report", lambda *about: held.append(held_by(process)))
        with pytest.raises(ValueError), make_step.step(replace(FIRST, has_later_step=True), process.host):
            raise ValueError
        with make_step.step(replace(FIRST, has_later_step=True), process.host):
            pass
        make_step.end_in_store(process.repository.store, RUN, process.now(), "ended")
        assert len(held) == 2 and None not in held
        assert held_by(process) is None

    def test_replaces_a_record_of_restorations_that_cannot_be_read_before_there_is_a_plan(
        self, process: OneProcess
    ) -> None:
        """The new record concerns all runs stored so far: this run may still delete."""
        store = process.repository.store
        store.put(across_runs.RESTORATION_KEY, b"nothing")
        with make_step.step(FIRST, process.host):
            across_runs.require_not_restored_since(store, RUN)
        assert any("could not be read" in line for line in process.warnings)

    def test_of_other_windows_ends_the_run_and_frees_the_lock_that_was_kept(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host):
            pass
        other = replace(LATER, windows=("legacy",))
        words = f"run {RUN} covers the windows legacy, 2026-11, but the selection is legacy"
        with pytest.raises(OrderViolation, match=words), make_step.step(other, process.host):
            raise AssertionError("the step was made")
        report = report_of(process)
        assert report is not None and "explained: run" in str(report.error)
        assert held_by(process) is None

    def test_of_the_same_windows_in_another_order_is_made(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host):
            pass
        with make_step.step(replace(LATER, windows=WINDOWS[::-1]), process.host):
            pass

    def test_that_cannot_reach_the_server_ends_the_run_that_this_process_had_begun(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host):
            pass
        process.fails = ServerUnavailable("GET /repositories: 503")
        with pytest.raises(ServerUnavailable), make_step.step(LATER, process.host):
            raise AssertionError("the step was made")
        report = report_of(process)
        assert report is not None and report.error == "explained: GET /repositories: 503"
        assert held_by(process) is None

    def test_of_another_process_that_cannot_reach_the_server_leaves_the_run_alone(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host):
            pass
        process.fails = ServerUnavailable("GET /repositories: 503")
        with pytest.raises(ServerUnavailable), make_step.step(replace(LATER, has_earlier_step=False), process.host):
            raise AssertionError("the step was made")
        assert report_of(process) is None and held_by(process) is not None

    def test_that_never_opened_a_store_ends_nothing(self, process: OneProcess) -> None:
        make_step.end_between_steps(RUN, process.last_opened(), process.now(), "why")
        assert report_of(process) is None

    def test_that_cannot_be_ended_in_the_store_raises_nothing_else(self, process: OneProcess) -> None:
        with make_step.step(FIRST, process.host):
            pass
        with mock.patch.object(make_step, "end_in_store", side_effect=StorageError("503")) as asked:
            make_step.end_between_steps(RUN, process.last_opened(), process.now(), "why")
        assert asked.call_count == 1

    def test_whose_lock_somebody_else_has_is_not_made(self, process: OneProcess) -> None:
        other = lock.acquire(process.repository, "another run", "somebody")
        with pytest.raises(LockHeld, match="somebody"), make_step.step(FIRST, process.host):
            raise AssertionError("the step was made")
        assert "somebody" in str(held_by(process)) and report_of(process) is None
        other.release()

    def test_asks_for_as_many_tasks_as_a_setting_says(self, process: OneProcess) -> None:
        with make_step.step(FIRST, process.host) as step:
            assert (step.tasks(7), step.tasks(0)) == (7, step.engine.tasks)

    def test_without_a_lock_deletes_nothing(self, process: OneProcess) -> None:
        step = made_step(LocalEngine(), process.repository)
        with pytest.raises(LockLost, match=f"{step.plan.run_id} has no lock"):
            step.lock_token  # noqa: B018

    def test_with_a_lock_that_does_not_hold_deletes_only_where_somebody_said_why(self, process: OneProcess) -> None:
        step = made_step(LocalEngine(), process.repository)
        unfenced = cast(Lock, SimpleNamespace(why_unfenced="a dry run deletes nothing", token="token"))
        with pytest.raises(NotOffered, match=f"{step.plan.run_id} has no enforced lock, so it may not delete"):
            replace(step, lock=unfenced).lock_token  # noqa: B018
        settings = CollectionSettings(no_lock_reason="one machine alone")
        said = replace(step, lock=unfenced, repository=replace(process.repository, settings=settings))
        assert str(said.lock_token) == "token"


class TestTheLock:
    def test_a_machine_whose_clock_is_ahead_takes_no_lock_of_a_healthy_run(self, process: OneProcess) -> None:
        """Its wrong clock would be noticed only later, after the healthy run has lost its lock."""
        healthy, behind = lock.acquire(process.repository, "another run", "somebody"), timedelta(hours=-2)
        ahead = replace(process.repository, clock=HandClock(datetime.now(UTC) - behind))
        cast(ScriptedApi, ahead.api).server_clocks = ServerClocks(earliest=behind, latest=behind)
        with pytest.raises(LockHeld, match="somebody"):
            lock.acquire(ahead, "work", "owner")
        healthy.check()
        ahead.clock.sleep(2 * 3600)
        lock.acquire(ahead, "work", "owner")

    def test_is_taken_for_as_long_as_the_settings_say_by_the_earliest_clock(self, process: OneProcess) -> None:
        api = cast(ScriptedApi, process.repository.api)
        settings = CollectionSettings(lock_expiry_minutes=7)
        repository = replace(process.repository, settings=settings)
        now = repository.clock.now()
        assert lock.latest_clock(repository) == now
        api.server_clocks = ServerClocks(earliest=-MINUTE, latest=-MINUTE)
        assert lock.latest_clock(repository) == now
        api.server_clocks = ServerClocks(earliest=MINUTE, latest=2 * MINUTE)
        assert lock.latest_clock(repository) == now + 2 * MINUTE
        assert lock.earliest_clock(repository) == now
        api.server_clocks = ServerClocks(earliest=-2 * MINUTE, latest=MINUTE)
        with mock.patch.object(Lock, "acquire") as acquire:
            lock.acquire(repository, "work", "owner")
        acquire.assert_called_once_with(
            repository.store, "work", "owner", now - 2 * MINUTE, 7 * MINUTE, repository.launch
        )

    @pytest.mark.parametrize("error", [None, ValueError("no disk")])
    def test_is_held_for_other_work_and_given_back_however_it_ends(
        self, process: OneProcess, error: Exception | None
    ) -> None:
        with suppress(ValueError), lock.locked(process.repository, "restore", "owner", process.warn) as held:
            lock.verify(process.repository.store, held.token)
            assert "owner" in str(held_by(process)) and "restore" in str(held_by(process))
            if error is not None:
                raise error
        assert held_by(process) is None

    def test_that_a_step_kept_is_renewed_by_the_next_one_and_then_given_back(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host) as first:
            assert first.lock is not None
        cast(HandClock, process.repository.clock).sleep(60)
        with (
            mock.patch.object(Lock, "acquire") as acquire,
            make_step.step(replace(LATER, has_later_step=True), process.host) as later,
        ):
            assert later.lock is first.lock
        assert not acquire.called
        with make_step.step(LATER, process.host) as last:
            assert last.lock is first.lock
        assert held_by(process) is None and not process.locks

    def test_that_another_run_took_meanwhile_is_acquired_or_refused_as_any(self, process: OneProcess) -> None:
        with make_step.step(replace(FIRST, has_later_step=True), process.host) as first:
            assert first.lock is not None
        store, now = process.repository.store, process.now()
        taken = Lock.acquire(store, "another", "somebody", now + 2 * 60 * MINUTE, 60 * MINUTE)
        with pytest.raises(LockHeld, match="somebody"), make_step.step(LATER, process.host):
            pass
        taken.check()

    def test_that_is_not_enforced_is_judged_anew(self, process: OneProcess) -> None:
        why = "a dry run deletes nothing"
        plain = Lock.acquire_unfenced(process.repository.store, why, RUN, "owner", process.now(), 60 * MINUTE)
        assert lock.acquire_again(plain, process.repository, RUN, "owner").why_unfenced is None

    def test_is_renewed_while_a_step_or_other_work_is_done(self, process: OneProcess) -> None:
        def threads() -> list[str]:
            return [each.name for each in threading.enumerate() if each.name == "lock renewal"]

        with make_step.step(FIRST, process.host):
            assert len(threads()) == 1
        with lock.locked(process.repository, "restore", "owner", process.warn):
            assert len(threads()) == 1
        assert threads() == []

    def test_is_renewed_four_times_in_the_span_after_which_it_expires(
        self, process: OneProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pauses: list[float | None] = []

        class Watched(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                pauses.append(timeout)
                return super().wait()

        watched = SimpleNamespace(Event=Watched, Thread=threading.Thread)
        monkeypatch.setattr(lock, "threading", watched)
        repository = replace(process.repository, settings=CollectionSettings(lock_expiry_minutes=8))
        with renewed(cast(Lock, FailingLock()), repository, process.warn):
            pass
        assert pauses == [120]

    def test_is_renewed_by_the_time_of_the_renewal(self, process: OneProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        renewals: list[datetime] = []
        done = threading.Event()

        def renew(now: datetime) -> None:
            renewals.append(now)
            done.set()

        settings = process.repository.settings.model_copy(update={"lock_expiry_minutes": 0.0001})
        repository = replace(process.repository, settings=settings)
        with renewed(cast(Lock, SimpleNamespace(renew=renew)), repository, process.warn):
            assert done.wait(60)
        assert set(renewals) == {repository.clock.now()}
        assert not [each for each in threading.enumerate() if each.name == "lock renewal"]


# Steps that fail.


def fail(opened: OpenRepository, plan: Plan) -> Report:
    """The report of a run after one of its steps failed."""
    make_step.store_report(opened.store, plan, NOW, "no disk")
    found = reports.read(opened.store, plan.run_id)
    assert found is not None
    return found


def leave_receipt(opened: OpenRepository, plan: Plan, decided_at: datetime = NOW) -> None:
    """Writes a receipt as if the run had deleted one object."""
    deleted = pa.table({"address": ["data/x"], "size": [1], "slice": ["s"], "slice_window": ["legacy"]})
    receipts.write(opened.store, plan.run_id, "batch", receipts.table(deleted, [Outcome.ACCEPTED], [None], decided_at))


@pytest.mark.parametrize("sweep", [True, False])
def test_a_run_that_failed_says_so(opened: OpenRepository, sweep: bool) -> None:
    found = fail(opened, began(opened, DAY, sweep=sweep))
    assert (found.success, found.ending, found.error, found.dry_run) == (False, Ending.FAILED, "no disk", not sweep)


def test_the_report_of_a_failed_run_says_how_long_the_steps_before_worked(opened: OpenRepository) -> None:
    plan = began(opened, DAY)
    for frame in (made_frames.listed(10), made_frames.uncommitted(2)):
        ended_at = plan.started_at + timedelta(seconds=90)
        span = Span(frame.name, plan.run_id, plan.attempt, plan.started_at, ended_at, 30)
        files.write_manifest(opened.store, replace(frame.manifest, span=span))
    report = fail(opened, plan)
    assert report.worked_seconds == {"store_df": 60, "uncommitted_df": 60}
    assert report.statistics.seconds == 180
    assert fail(opened, replace(plan, attempt="another")).worked_seconds == {}


def test_a_run_that_ended_well_stays_so(opened: OpenRepository) -> None:
    plan = began(opened, DAY)
    report = ended(opened, plan)
    leave_receipt(opened, plan)
    assert fail(opened, plan) == report


def test_a_dry_run_that_ended_well_stays_so(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    report = ended(opened, plan, dry_run=True, checkpoint=None, ending=Ending.MARKED)
    assert fail(opened, plan) == report


def test_an_approved_run_whose_sweep_failed_does_not_claim_that_nothing_was_deleted(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    ended(opened, plan, dry_run=True, checkpoint=None, ending=Ending.MARKED)
    leave_receipt(opened, plan)
    found = fail(opened, plan)
    assert (found.success, found.ending, found.dry_run) == (False, Ending.FAILED, False)


@pytest.mark.parametrize(
    "attempt, approver", [("", "Ada, as the launch says"), ("another", ""), (None, "")], ids=["own", "other", "none"]
)
def test_an_approved_run_whose_sweep_failed_names_the_approver(
    opened: OpenRepository, attempt: str | None, approver: str
) -> None:
    plan = began(opened, DAY, sweep=False)
    ended(opened, plan, dry_run=True, checkpoint=None, ending=Ending.MARKED)
    if attempt is not None:
        approval = Approval(plan.run_id, attempt or plan.attempt, "digest", NOW, "Ada, as the launch says")
        plans.write_approval(opened.store, approval)
    leave_receipt(opened, plan)
    found = fail(opened, plan)
    assert found.approved_by == approver
    assert (f"  approved by {approver}" in reports.describe(found)) == bool(approver)


def test_a_damaged_approval_does_not_keep_a_failed_run_from_its_report(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    opened.store.put(run_folder.approval(plan.run_id), b"{")
    found = fail(opened, plan)
    assert (found.error, found.approved_by) == ("no disk", "")


def test_a_run_that_nobody_ended_is_ended_and_its_lock_released(opened: OpenRepository) -> None:
    plan = began(opened, DAY, sweep=False)
    expiry = timedelta(hours=1)
    Lock.acquire(opened.store, run_id=plan.run_id, owner=plan.owner, now=NOW, expiry=expiry)
    make_step.end_if_locked(plan.run_id, opened.store, plan.owner, NOW, "interrupted")
    found = reports.read(opened.store, plan.run_id)
    assert found is not None and (found.ending, found.error) == (Ending.FAILED, "interrupted")
    assert holder(opened.store) is None

    make_step.end_if_locked(plan.run_id, opened.store, plan.owner, NOW, "something else")
    assert reports.read(opened.store, plan.run_id) == found
    Lock.acquire(opened.store, run_id="other", owner="somebody else", now=NOW, expiry=expiry)
    make_step.end_if_locked(plan.run_id, opened.store, plan.owner, NOW, "something else")
    assert reports.read(opened.store, plan.run_id) == found
    assert holder(opened.store) is not None


def test_a_lock_that_was_taken_before_there_was_a_plan_is_released(opened: OpenRepository) -> None:
    Lock.acquire(opened.store, run_id="c" * 20, owner="me", now=NOW, expiry=timedelta(hours=1))
    make_step.end_if_locked("c" * 20, opened.store, "me", NOW, "interrupted")
    assert holder(opened.store) is None


class TestBetweenSteps:
    def test_a_run_is_ended_and_its_lock_given_back(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        Lock.acquire(opened.store, run_id=plan.run_id, owner=plan.owner, now=NOW, expiry=DAY)
        make_step.end_in_store(opened.store, plan.run_id, NOW, "no disk")
        report = reports.read(opened.store, plan.run_id)
        assert report is not None
        assert (report.run_id, report.error, report.ended_at, report.success) == (plan.run_id, "no disk", NOW, False)
        assert holder(opened.store) is None

    def test_the_lock_of_another_run_stays(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        Lock.acquire(opened.store, run_id="another", owner="somebody", now=NOW, expiry=DAY)
        make_step.end_in_store(opened.store, plan.run_id, NOW, "no disk")
        assert "somebody" in str(holder(opened.store))

    def test_a_run_without_a_plan_is_none(self, opened: OpenRepository) -> None:
        with pytest.raises(CollectionError, match="this repository has no run"):
            make_step.end_in_store(opened.store, "g4uk6erfnfus73frbnqg", NOW, "no disk")


def test_a_run_that_failed_twice_says_what_failed_last(opened: OpenRepository) -> None:
    plan = began(opened, DAY)
    make_step.store_report(opened.store, plan, NOW - DAY, "no network")
    assert fail(opened, plan).error == "no disk"
