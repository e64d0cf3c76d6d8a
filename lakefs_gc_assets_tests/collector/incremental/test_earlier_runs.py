import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Span
from lakefs_gc_assets.collector.frame.frames import SIGHTINGS_DF, STEPS, NoFigures
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.incremental.earlier_runs import KEY, EarlierRuns, SettledRun, branch_baseline
from lakefs_gc_assets.collector.incremental.planning import newest_sweep
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Approval, Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CorruptFile, PreconditionFailed, StorageError
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage import local
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.past_runs import HOUR, IDS, NOW, began, ended, opened
from lakefs_gc_assets_tests.collector.scripted import ScriptedApi
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock

__all__ = ["opened"]
NEXT = IDS.descending(NOW + HOUR)
"""The id of a run that is opened after all others."""


def reported(store: ObjectStore) -> tuple[object, ...]:
    """Facts about earlier runs that the next run gets."""
    plan = newest_sweep(store)
    branches = branch_baseline(store, NEXT, ScriptedApi().repository().id, pytest.fail, ())
    return list(EarlierRuns(store).newest_first()), plan and plan.run_id, branches


def reported_by_files(store: ObjectStore) -> tuple[object, ...]:
    """The same facts from the files of the runs alone."""
    index = store.get(KEY) if is_stored(store) else None
    store.delete([KEY])
    found = reported(store)
    if index is not None:
        store.put(KEY, index)
    return found


def is_stored(store: ObjectStore) -> bool:
    return any(found.key == KEY for found in store.list_level(layout.RUNS_PREFIX).objects)


def no_warning(line: str) -> None:
    raise AssertionError(line)


class History:
    """Runs of all kinds in sequence; successful ones update the index."""

    def __init__(self, opened: OpenRepository, seed: int) -> None:
        self.opened, self.random = opened, random.Random(seed)
        self.store = opened.store
        self.ago = 400 * HOUR
        self.marked: list[Plan] = []
        self.unfinished: list[Plan] = []
        self.swept: str | None = None

    def play(self) -> None:
        kinds: list[Callable[[], None]] = [self.sweep, self.mark, self.mark, self.fail, self.stay_open, self.be_foreign]
        self.random.choice([*kinds, self.approve, self.approve, self.resume])()

    def _began(self, **changes: Any) -> Plan:
        self.ago -= HOUR
        # A run may be opened long before it begins.
        ago = self.ago + self.random.choice([0, 0, 0, 5]) * HOUR + timedelta(minutes=self.random.randrange(1, 50))
        return began(self.opened, ago, flow=self.random.choice([*Flow]), **changes)

    def _ended(self, plan: Plan, **changes: Any) -> Report:
        counts = {"branches": self.random.randrange(100), "deleted": 1}
        return ended(self.opened, plan, **{"counts": counts, **changes})

    def _note(self, plan: Plan, report: Report) -> None:
        if self.random.random() < 0.8:  # otherwise its process was killed right before
            earlier_runs.note(self.store, plan, report, no_warning)

    def sweep(self) -> None:
        plan = self._began()
        self._note(plan, self._ended(plan))
        self.swept = min(plan.run_id, self.swept or plan.run_id)

    def mark(self) -> None:
        plan = self._began(sweep=False)
        self._note(plan, self._ended(plan, dry_run=True, ending=Ending.MARKED, checkpoint=None))
        self.marked.append(plan)

    def fail(self) -> None:
        plan = self._began(sweep=self.random.random() < 0.5)
        counts = self.random.choice([{}, {"branches": 200}])
        self._note(plan, self._ended(plan, success=False, ending=Ending.FAILED, checkpoint=None, counts=counts))
        self.unfinished.append(plan)

    def stay_open(self) -> None:
        self.unfinished.append(self._began())

    def resume(self) -> None:
        """Ends a failed or killed run that no newer run has overtaken."""
        found = self._not_overtaken(self.unfinished)
        if found:
            plan = self.random.choice(found)
            self.unfinished.remove(plan)
            self._note(plan, self._ended(plan, dry_run=not plan.sweep))
            self.swept = plan.run_id if plan.sweep else self.swept

    def _not_overtaken(self, plans: list[Plan]) -> list[Plan]:
        return [plan for plan in plans if self.swept is None or plan.run_id < self.swept]

    def be_foreign(self) -> None:
        self.ago -= HOUR
        self.store.put(f"{run_folder.folder(IDS.descending(NOW - self.ago))}uncommitted/file", b"of the server")

    def approve(self) -> None:
        """Approves a dry run that no newer run has overtaken; its sweep may not happen yet."""
        found = self._not_overtaken(self.marked)
        if not found:
            return
        plan = self.random.choice(found)
        plans.write_approval(self.store, Approval(plan.run_id, plan.attempt, "0" * 64, NOW))
        earlier_runs.forget(self.store, plan.run_id)
        if self.random.random() < 0.7:
            report = reports.read(self.store, plan.run_id)
            assert report is not None
            after = replace(report, dry_run=False, ending=Ending.DELETED)
            reports.write(self.store, after)
            self._note(plan, after)
            self.swept = plan.run_id


@pytest.mark.parametrize("seed", range(12))
def test_it_tells_what_the_files_of_the_runs_tell(opened: OpenRepository, seed: int) -> None:
    history = History(opened, seed)
    for _ in range(25):
        history.play()
        assert reported(opened.store) == reported_by_files(opened.store)


@pytest.fixture
def noted(opened: OpenRepository) -> OpenRepository:
    """A repository with an index of two dry runs after a sweep."""
    for hours in (9, 5, 3):
        plan = began(opened, hours * HOUR, sweep=hours == 9)
        changes = {} if hours == 9 else {"dry_run": True, "ending": Ending.MARKED, "checkpoint": None}
        report = ended(opened, plan, counts={"branches": hours, "deleted": 0}, **changes)
        earlier_runs.note(opened.store, plan, report, no_warning)
    return opened


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-2],
        lambda data: data.replace(b'"branches": 9', b'"branches": 1'),
        lambda data: data.replace(b'"format_version": 1', b'"format_version": 2'),
        lambda data: b"[]",
    ],
)
def test_an_index_that_is_damaged_or_of_another_version_tells_nothing(
    noted: OpenRepository, damage: Callable[[bytes], bytes]
) -> None:
    before, data = reported(noted.store), noted.store.get(KEY)
    assert damage(data) != data
    noted.store.put(KEY, damage(data))
    runs = EarlierRuns(noted.store)
    assert [runs.settled(run_id) for run_id in runs.newest_first()] == [None] * 3
    assert reported(noted.store) == before


def test_a_folder_that_is_gone_is_reported_of_no_more(noted: OpenRepository) -> None:
    newest = next(EarlierRuns(noted.store).newest_first())
    for batch in noted.store.list(run_folder.folder(newest)):
        noted.store.delete(batch["key"].to_pylist())
    assert newest not in EarlierRuns(noted.store).newest_first()
    assert reported(noted.store) == reported_by_files(noted.store)


def test_a_sweep_whose_plan_somebody_removed_is_no_base_run(noted: OpenRepository) -> None:
    plan = newest_sweep(noted.store)
    assert plan is not None
    noted.store.delete([run_folder.plan(plan.run_id)])
    with pytest.raises(CorruptFile, match=plan.run_id):
        newest_sweep(noted.store)


def test_two_that_change_it_at_once_leave_it_empty(noted: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = next(EarlierRuns(noted.store).newest_first())

    def changed(self: LocalStore, key: str, data: bytes, etag: str) -> str:
        raise PreconditionFailed("it was changed")

    monkeypatch.setattr(LocalStore, "put_if_match", changed)
    earlier_runs.forget(noted.store, newest)
    assert EarlierRuns(noted.store).settled(newest) is None
    assert reported(noted.store) == reported_by_files(noted.store)


def test_a_run_does_not_fail_for_its_index(noted: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = began(noted, HOUR)
    report = ended(noted, plan)
    lines: list[str] = []

    def broken(self: LocalStore, key: str, data: bytes, etag: str) -> str:
        raise StorageError("it broke")

    monkeypatch.setattr(LocalStore, "put_if_match", broken)
    earlier_runs.note(noted.store, plan, report, lines.append)
    (line,) = lines
    assert line.endswith("it broke")


class TestWhatIsSettled:
    """The index's entry for a run, each value from its source."""

    MARKED: ClassVar[dict[str, Any]] = {"dry_run": True, "ending": Ending.MARKED, "checkpoint": None}
    FAILED: ClassVar[dict[str, Any]] = {"success": False, "ending": Ending.FAILED, "checkpoint": None}

    def ran(self, opened: OpenRepository, hours: int, *, noted: bool = True, sweep: bool = True, **changes: Any) -> str:
        plan = began(opened, hours * HOUR, sweep=sweep)
        report = ended(opened, plan, **{"counts": {"branches": hours, "deleted": 1, "quarantined": 0}, **changes})
        if noted:
            earlier_runs.note(opened.store, plan, report, no_warning)
        return plan.run_id

    def settled(self, opened: OpenRepository, run_id: str) -> SettledRun | None:
        return EarlierRuns(opened.store).settled(run_id)

    def receipt(self, opened: OpenRepository, run_id: str) -> None:
        opened.store.put(f"{run_folder.receipts(run_id)}1.parquet", b"of a batch")

    @pytest.mark.parametrize(
        ("counts", "deleted"),
        [
            ({"branches": 5, "deleted": 1, "quarantined": 0}, True),
            ({"branches": 5, "deleted": 0, "quarantined": 1}, True),
            ({"branches": 5, "deleted": 0, "quarantined": 0}, False),
            # A report of an earlier version, which does not state it.
            ({"branches": 5, "deleted": 0}, True),
        ],
    )
    def test_a_sweep(self, opened: OpenRepository, counts: dict[str, int], deleted: bool) -> None:
        run_id = self.ran(opened, 5, counts=counts)
        self.receipt(opened, run_id)
        assert self.settled(opened, run_id) == SettledRun(
            run_id, Flow.CLEAN, True, True, 5, False, deleted, opened.facts.id
        )

    def test_a_dry_run(self, opened: OpenRepository) -> None:
        run_id = self.ran(opened, 5, sweep=False, **self.MARKED)
        assert self.settled(opened, run_id) == SettledRun(
            run_id, Flow.CLEAN, False, False, 5, False, False, opened.facts.id
        )

    @pytest.mark.parametrize("manifest", [b"damaged", None])
    def test_sightings_that_cannot_be_read_may_be_some(self, opened: OpenRepository, manifest: bytes | None) -> None:
        plan = began(opened, 5 * HOUR)
        if manifest is not None:
            opened.store.put(run_folder.manifest(plan.run_id, SIGHTINGS_DF.name), manifest)
        earlier_runs.note(opened.store, plan, ended(opened, plan), no_warning)
        found = self.settled(opened, plan.run_id)
        assert found is not None and found.sightings == (manifest is not None)

    @pytest.mark.parametrize("rows", [0, 1])
    def test_sightings_are_reported_of_where_there_is_one(self, opened: OpenRepository, rows: int) -> None:
        plan = began(opened, 5 * HOUR)
        span = Span(SIGHTINGS_DF.name, plan.run_id, plan.attempt, NOW, NOW)
        file = files.FrameFile(f"{run_folder.frame(plan.run_id, SIGHTINGS_DF.name)}1.parquet", "legacy", rows, 1, "0")
        files.write_manifest(opened.store, files.Manifest(span, (file,), NoFigures(), {}))
        earlier_runs.note(opened.store, plan, ended(opened, plan), no_warning)
        found = self.settled(opened, plan.run_id)
        assert found is not None and found.sightings == bool(rows)

    @pytest.mark.parametrize("deleted", [False, True])
    def test_a_run_that_failed_once_a_newer_one_swept(self, opened: OpenRepository, deleted: bool) -> None:
        failed = self.ran(opened, 5, **self.FAILED)
        if deleted:
            self.receipt(opened, failed)
        assert self.settled(opened, failed) is None
        self.ran(opened, 4, sweep=False, **self.MARKED)
        assert self.settled(opened, failed) is None, "it can be resumed"
        self.ran(opened, 3)
        assert self.settled(opened, failed) == SettledRun(
            failed, Flow.CLEAN, True, False, 5, False, deleted, opened.facts.id
        )

    def test_a_run_that_failed_after_the_newest_sweep_can_be_resumed(self, opened: OpenRepository) -> None:
        oldest, swept = self.ran(opened, 9, **self.FAILED), self.ran(opened, 5)
        newest = self.ran(opened, 3, **self.FAILED)
        self.ran(opened, 2, sweep=False, **self.MARKED)
        assert [self.settled(opened, each) is None for each in (oldest, swept, newest)] == [False, False, True]

    def test_sweeps_that_were_never_noted_overtake_older_runs(self, opened: OpenRepository) -> None:
        """Their processes were killed right before; a later dry run writes the index."""
        failed = [self.ran(opened, hours, noted=False, **self.FAILED) for hours in (9, 7, 5)]
        swept = [self.ran(opened, hours, noted=False) for hours in (8, 6)]
        self.ran(opened, 4, sweep=False, **self.MARKED)
        assert [self.settled(opened, each) is None for each in failed] == [False, False, True]
        found = [self.settled(opened, each) for each in swept]
        assert [each is not None and each.swept for each in found] == [True, True]

    def test_a_sweep_that_was_never_noted_overtakes_what_is_newer_than_one_that_was(
        self, opened: OpenRepository
    ) -> None:
        older, middle, newer = (self.ran(opened, hours, noted=False, **self.FAILED) for hours in (9, 7, 5))
        self.ran(opened, 8)
        self.ran(opened, 6, noted=False)
        self.ran(opened, 4, sweep=False, **self.MARKED)
        assert [self.settled(opened, each) is None for each in (older, middle, newer)] == [False, False, True]

    def test_a_dry_run_that_was_approved_is_settled_once_it_is_overtaken(self, opened: OpenRepository) -> None:
        run_id = self.ran(opened, 5, noted=False, sweep=False, **self.MARKED)
        plans.write_approval(opened.store, Approval(run_id, "attempt", "0" * 64, NOW))
        self.ran(opened, 4, sweep=False, **self.MARKED)
        assert self.settled(opened, run_id) is None
        self.ran(opened, 3)
        found = self.settled(opened, run_id)
        assert found == SettledRun(run_id, Flow.CLEAN, True, False, 5, False, False, opened.facts.id)

    def test_of_what_is_forgotten_only_the_run_itself_is(self, opened: OpenRepository) -> None:
        marked, swept = self.ran(opened, 5, sweep=False, **self.MARKED), self.ran(opened, 6)
        earlier_runs.forget(opened.store, marked)
        assert self.settled(opened, marked) is None and self.settled(opened, swept) is not None


class CountingStore(LocalStore):
    """A store that counts its calls."""

    calls = 0


def _counted(name: str) -> Callable[..., Any]:
    def call(self: CountingStore, *arguments: Any, **options: Any) -> Any:
        CountingStore.calls += 1
        return getattr(LocalStore, name)(self, *arguments, **options)

    return call


for _name in ("list", "list_between", "list_level", "get", "head", "put", "put_if_absent", "put_if_match", "delete"):
    setattr(CountingStore, _name, _counted(_name))


@pytest.mark.parametrize(
    ("flow", "sweep"), [(Flow.CLEAN, True), (Flow.CLEAN, False), (Flow.OPTIMIZED, True), (Flow.OPTIMIZED, False)]
)
def test_a_run_asks_as_much_after_two_runs_as_after_six(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flow: Flow, sweep: bool
) -> None:
    monkeypatch.setattr(local, "LocalStore", CountingStore)
    with EmbeddedServer(tmp_path) as server:
        clients.repository(server)
        with server.clock.at(datetime.now(UTC) - timedelta(days=30)):
            for name in ("kept", "staged"):
                clients.upload(server, name, name.encode())
                clients.commit(server, name)
        store = LocalStore(server.objects_folder / "repo")
        began = datetime.now(UTC)

        def calls(minute: int, flow: Flow, sweep: bool) -> int:
            """Number of calls of a run opened at a minute; its true duration does not matter."""
            CountingStore.calls = 0
            moment = began + timedelta(minutes=minute)
            runs = ArrowRuns(Loaded(configuration(server, sweep=sweep), {}), MovingClock(moment))
            with server.clock.at(moment):
                made = runs.make(runs.open_run(flow, IDS.descending(moment - timedelta(seconds=30))), STEPS, "owner")
            report = reports.read(store, made.opened.run_id)
            assert made.error is None and report is not None
            assert (report.success, report.flow, report.dry_run) == (True, flow.value, not sweep), report.why_clean
            # Other programs prepare uncommitted data as well.
            for _ in range(3):
                store.put(f"{run_folder.folder(IDS.descending(moment + timedelta(seconds=20)))}uncommitted/file", b"")
            return CountingStore.calls

        calls(0, Flow.CLEAN, True)
        found = [calls(minute, flow, sweep) for minute in range(1, 7)]
    assert found[1] == found[3] == found[5], found
