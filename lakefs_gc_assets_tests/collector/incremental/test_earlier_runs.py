import logging
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.files import Manifest, Span
from lakefs_gc_assets.collector.frame.frames import (
    COMMITTED_DF,
    DELETED_REPORT,
    LISTED,
    SIGHTINGS,
    SIGHTINGS_DF,
    STEPS,
    DeletedFigures,
    NoFigures,
)
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.incremental.earlier_runs import (
    KEY,
    EarlierRuns,
    SettledRun,
    branch_baseline,
    deleted_before,
    deleted_since,
    restored_before,
)
from lakefs_gc_assets.collector.incremental.planning import newest_sweep
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.across_runs import BranchState, DeletedBranch, write_deleted_branch
from lakefs_gc_assets.collector.records.outcomes import Kept, Outcome
from lakefs_gc_assets.collector.records.plan import Approval, Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CorruptFile, GuardTripped, PreconditionFailed, StorageError
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage import local
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.made_frames import COMMITTED_FIGURES, made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import HOUR, IDS, NOW, began, ended, opened
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi
from lakefs_gc_assets_tests.collector.universe.test_subtraction import place_old
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.plain_runs import Replaying, replaying
from lakefs_gc_assets_tests.spark.frame_rows import listed

__all__ = ["opened", "replaying"]

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
            earlier_runs.update_index(self.store, plan, report, no_warning)

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


@pytest.mark.parametrize("seed", range(5))
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
        earlier_runs.update_index(opened.store, plan, report, no_warning)
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
    earlier_runs.update_index(noted.store, plan, report, lines.append)
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
            earlier_runs.update_index(opened.store, plan, report, no_warning)
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
        earlier_runs.update_index(opened.store, plan, ended(opened, plan), no_warning)
        found = self.settled(opened, plan.run_id)
        assert found is not None and found.sightings == (manifest is not None)

    @pytest.mark.parametrize("rows", [0, 1])
    def test_sightings_are_reported_of_where_there_is_one(self, opened: OpenRepository, rows: int) -> None:
        plan = began(opened, 5 * HOUR)
        span = Span(SIGHTINGS_DF.name, plan.run_id, plan.attempt, NOW, NOW)
        file = files.FrameFile(f"{run_folder.frame(plan.run_id, SIGHTINGS_DF.name)}1.parquet", "legacy", rows, 1, "0")
        files.write_manifest(opened.store, files.Manifest(span, (file,), NoFigures(), {}))
        earlier_runs.update_index(opened.store, plan, ended(opened, plan), no_warning)
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


@pytest.mark.parametrize(("flow", "sweep"), [(Flow.CLEAN, False), (Flow.OPTIMIZED, True)])
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


# Branches at the base run.


RUN = IDS.descending(NOW)


def swept(opened: OpenRepository, ago: timedelta, branches: int, flow: Flow = Flow.CLEAN) -> None:
    ended(opened, began(opened, ago, flow=flow), counts={"branches": branches})


def marked(opened: OpenRepository, ago: timedelta, branches: int) -> None:
    plan = began(opened, ago, sweep=False)
    ended(opened, plan, dry_run=True, ending=Ending.MARKED, checkpoint=None, counts={"branches": branches})


def refused(opened: OpenRepository, ago: timedelta) -> None:
    """A run that a guard stopped: its report has no counts."""
    ended(opened, began(opened, ago), success=False, ending=Ending.FAILED, error="guard", checkpoint=None)


def test_without_an_earlier_run_there_is_none(opened: OpenRepository) -> None:
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) is None
    began(opened, HOUR)
    refused(opened, 2 * HOUR)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) is None


@pytest.mark.parametrize("flow", [Flow.CLEAN, Flow.COMMITTED])
def test_it_is_what_the_newest_successful_sweep_found(opened: OpenRepository, flow: Flow) -> None:
    swept(opened, 3 * HOUR, 200)
    swept(opened, 2 * HOUR, 96, flow)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96


def test_branches_that_were_deleted_as_stale_since_are_left_out(opened: OpenRepository) -> None:
    plan = began(opened, 3 * HOUR)
    ended(opened, plan, counts={"branches": 5})
    figures = replace(COMMITTED_FIGURES, heads=dict.fromkeys(("main", "b1", "b2", "b3", "b4"), "m"))
    span = Span(COMMITTED_DF.name, plan.run_id, plan.attempt, NOW, NOW)

    def baseline(*present: str) -> int | None:
        return branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, present)

    for name, at in (("b1", NOW + HOUR), ("b2", NOW + HOUR), ("b3", NOW - HOUR), ("made since", NOW + HOUR)):
        write_deleted_branch(
            opened.store, DeletedBranch(opened.facts.id, name, "c", False, "digest", BranchState.DELETED, at)
        )
    assert baseline("main") == 5, "nothing says which branches the run counted"
    files.write_manifest(opened.store, Manifest(span, (), figures))
    assert baseline("main") == 3, "of the four, one was made since, and one deleted before the run counted"
    assert baseline("main", "b2") == 4, "somebody made it again"
    assert baseline("main", "a", "b", "c", "d") == 5


def test_a_run_that_was_refused_does_not_take_it_away(opened: OpenRepository) -> None:
    swept(opened, 200 * HOUR, 96)
    for hours in range(1, 30):
        refused(opened, hours * HOUR)
    baseline = branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ())
    assert baseline == 96
    with pytest.raises(GuardTripped, match="12 branches are left of the 96"):
        guards.require_branches(12, baseline, CollectionSettings())


def test_dry_runs_raise_it_and_never_lower_it(opened: OpenRepository) -> None:
    swept(opened, 9 * HOUR, 96)
    marked(opened, 8 * HOUR, 12)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96
    marked(opened, 7 * HOUR, 110)
    marked(opened, 6 * HOUR, 5)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 110


def test_where_only_dry_runs_were_it_is_the_largest_of_them(opened: OpenRepository) -> None:
    marked(opened, 3 * HOUR, 40)
    marked(opened, 2 * HOUR, 4)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 40


def test_a_sweep_whose_deletions_failed_does_not_lower_it(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, 2 * HOUR)
    ended(opened, plan, success=False, ending=Ending.PARTLY_DELETED, counts={"branches": 12})
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96


def test_a_sweep_that_was_allowed_to_lower_it_does(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    refused(opened, 2 * HOUR)
    swept(opened, HOUR, 12)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 12


def test_it_goes_by_the_index_of_runs_where_that_names_a_run(opened: OpenRepository) -> None:
    for hours, sweep, branches in ((4, True, 500), (3, True, 96), (2, False, 110), (1, False, 5)):
        plan = began(opened, hours * HOUR, sweep=sweep)
        report = ended(opened, plan, dry_run=not sweep, counts={"branches": branches})
        earlier_runs.update_index(opened.store, plan, report, pytest.fail)
        opened.store.delete([run_folder.report(plan.run_id)])
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 110


def test_only_older_runs_count(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, 2 * HOUR)
    ended(opened, plan, counts={"branches": 50})
    swept(opened, HOUR, 7)
    assert branch_baseline(opened.store, plan.run_id, opened.facts.id, pytest.fail, ()) == 96


def framed(opened: OpenRepository, plan: Plan, branches: int, *, swept: bool | None) -> None:
    """Stores the manifests of frames that count branches and, if the run came so far, of its sweep."""
    span = Span(COMMITTED_DF.name, plan.run_id, plan.attempt, NOW, NOW)
    figures = replace(COMMITTED_FIGURES, heads={f"branch{number}": "commit" for number in range(branches)})
    files.write_manifest(opened.store, Manifest(span, (), figures))
    if swept is not None:
        files.write_manifest(
            opened.store, Manifest(replace(span, frame=DELETED_REPORT.name), (), DeletedFigures(swept=swept))
        )


def damage_report(opened: OpenRepository, plan: Plan, damage: str) -> None:
    key = run_folder.report(plan.run_id)
    if damage == "gone":
        opened.store.delete([key])
    else:
        opened.store.put(key, b"{")


@pytest.mark.parametrize("damage", ["gone", "damaged"])
class TestAReportThatCannotBeRead:
    @pytest.mark.parametrize("sweep", [True, False])
    def test_the_manifests_of_the_run_tell_what_it_reported(
        self, opened: OpenRepository, damage: str, sweep: bool
    ) -> None:
        swept(opened, 4 * HOUR, 96)
        plan = began(opened, 3 * HOUR, sweep=sweep)
        ended(opened, plan, dry_run=not sweep, counts={"branches": 120})
        framed(opened, plan, 120, swept=sweep)
        marked(opened, 2 * HOUR, 5)
        damage_report(opened, plan, damage)
        warnings: list[str] = []
        assert branch_baseline(opened.store, RUN, opened.facts.id, warnings.append, ()) == 120
        assert [plan.run_id in line for line in warnings] == [True] * (damage != "gone")
        framed(opened, plan, 7, swept=sweep)
        assert branch_baseline(opened.store, RUN, opened.facts.id, warnings.append, ()) == (7 if sweep else 96)

    @pytest.mark.parametrize("attempt", ["attempt", "another"])
    def test_without_them_older_runs_count_as_well(self, opened: OpenRepository, damage: str, attempt: str) -> None:
        swept(opened, 4 * HOUR, 96)
        plan = began(opened, 3 * HOUR)
        ended(opened, plan, counts={"branches": 7})
        damage_report(opened, plan, damage)
        if attempt == "another":
            framed(opened, plan, 7, swept=True)
            framed(opened, replace(plan, attempt=attempt), 6, swept=None)
        assert branch_baseline(opened.store, RUN, opened.facts.id, lambda line: None, ()) == 96


@pytest.mark.parametrize("named", [False, True])
def test_runs_of_another_repository_on_the_namespace_do_not_count(opened: OpenRepository, named: bool) -> None:
    """A twin with one branch would disarm the guard."""
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, HOUR, repository="twin")
    report = ended(opened, plan, counts={"branches": 1})
    if named:
        earlier_runs.update_index(opened.store, plan, report, pytest.fail)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96
    assert branch_baseline(opened.store, RUN, "twin", pytest.fail, ()) == 1


# Deletions by earlier runs, from their reports and receipts.


@pytest.fixture
def stored_repository(tmp_path: Path) -> OpenRepository:
    return opened_by(opener_in(tmp_path))


def deleted(stored_repository: OpenRepository, since: timedelta | None = None) -> list[str]:
    """Deletions known to a run that begins now."""
    step = made_step(LocalEngine(2), stored_repository, began(stored_repository, timedelta()))
    found = deleted_before(step, None if since is None else NOW - since)
    return sorted(step.engine.collect(found).column("address").to_pylist())


def rows(outcome: Outcome, *addresses: str, ago: timedelta = HOUR) -> pa.Table:
    count = len(addresses)
    return receipts.table(candidates(*addresses), [outcome] * count, [None] * count, NOW - ago, "attempt")


def swept_batches(
    stored_repository: OpenRepository, ago: timedelta, *batches: pa.Table, note: bool = True, figure: bool = True
) -> Plan:
    """A run that deleted batches, with its receipts and its report.

    Args:
        note: True if the index of runs names it.
        figure: True if its frame reports deletions.
    """
    plan = began(stored_repository, ago)
    for number, batch in enumerate(batches):
        receipts.write(stored_repository.store, plan.run_id, f"batch{number}", batch)
    step: Step[ArrowRows] = made_step(LocalEngine(2), stored_repository, plan)
    written = step.write(DELETED_REPORT, step.engine.table(pa.concat_tables(batches)))
    step.complete(DELETED_REPORT, DeletedFigures(figure), written)
    report = ended(stored_repository, plan, counts={"deleted": 1})
    if note:
        earlier_runs.update_index(stored_repository.store, plan, report, no_warning)
    return plan


def damage_deletions(stored_repository: OpenRepository, plan: Plan) -> None:
    """Damages the file of the frame with the run's deletions."""
    folder = run_folder.frame(plan.run_id, DELETED_REPORT.name)
    (file,) = (each.key for each in stored_repository.store.list_level(f"{folder}slice_window=legacy/").objects)
    stored_repository.store.put(file, b"something else")


def forget_receipts(stored_repository: OpenRepository, plan: Plan) -> None:
    stored_repository.store.delete(receipts.keys(stored_repository.store, plan.run_id))


BATCHES = (rows(Outcome.ACCEPTED, "data/a"), rows(Outcome.QUARANTINED, "data/b"), rows(Outcome.FAILED, "data/c"))


class TestOfARunThatCameToItsEnd:
    def test_its_report_tells_and_its_receipts_are_not_read(self, stored_repository: OpenRepository) -> None:
        plan = swept_batches(stored_repository, 2 * HOUR, *BATCHES)
        assert deleted(stored_repository) == ["data/a", "data/b"]
        forget_receipts(stored_repository, plan)
        assert deleted(stored_repository) == ["data/a", "data/b"]

    def test_what_was_restored_since_is_left_out(self, stored_repository: OpenRepository) -> None:
        plan = swept_batches(stored_repository, 2 * HOUR, *BATCHES)
        receipts.write(
            stored_repository.store, plan.run_id, f"{receipts.OF_RESTORE}1", rows(Outcome.RESTORED, "data/b")
        )
        receipts.write(stored_repository.store, plan.run_id, f"{receipts.OF_PURGE}1", rows(Outcome.PURGED, "data/a"))
        assert deleted(stored_repository) == ["data/a", "data/b"]
        across_runs.write_restoration(stored_repository.store, plan.run_id, NOW)
        assert deleted(stored_repository) == ["data/a"]

    def test_what_was_deleted_earlier_is_left_out_where_a_moment_is_given(
        self, stored_repository: OpenRepository
    ) -> None:
        swept_batches(
            stored_repository,
            3 * HOUR,
            rows(Outcome.ACCEPTED, "data/a", ago=3 * HOUR),
            rows(Outcome.ACCEPTED, "data/b"),
        )
        assert deleted(stored_repository, since=2 * HOUR) == ["data/b"]

    @pytest.mark.parametrize("damage", ["removed", "damaged", "of a dry run"])
    def test_its_receipts_tell_where_its_report_does_not(self, stored_repository: OpenRepository, damage: str) -> None:
        plan = swept_batches(stored_repository, 2 * HOUR, *BATCHES, figure=damage != "of a dry run")
        manifest = run_folder.manifest(plan.run_id, DELETED_REPORT.name)
        if damage == "removed":
            stored_repository.store.delete([manifest])
        elif damage == "damaged":
            stored_repository.store.put(manifest, b"{}")
        assert deleted(stored_repository) == ["data/a", "data/b"]

    def test_its_receipts_replace_a_damaged_file_of_its_report(self, stored_repository: OpenRepository) -> None:
        plan = swept_batches(stored_repository, 2 * HOUR, *BATCHES)
        damage_deletions(stored_repository, plan)
        assert deleted(stored_repository) == ["data/a", "data/b"]

    def test_what_neither_tells_is_left_out_with_a_warning(
        self, stored_repository: OpenRepository, caplog: pytest.LogCaptureFixture
    ) -> None:
        plan = swept_batches(stored_repository, 2 * HOUR, *BATCHES)
        swept_batches(stored_repository, 3 * HOUR, rows(Outcome.ACCEPTED, "data/z"))
        damage_deletions(stored_repository, plan)
        stored_repository.store.put(f"{run_folder.receipts(plan.run_id)}batch1.parquet", b"something else")
        assert deleted(stored_repository) == ["data/a", "data/z"]
        assert f"some deletions of run {plan.run_id} are unknown" in caplog.text


def test_the_receipts_tell_of_a_run_that_may_still_delete(stored_repository: OpenRepository) -> None:
    swept_batches(stored_repository, 3 * HOUR, *BATCHES)
    plan = swept_batches(stored_repository, 2 * HOUR, rows(Outcome.ACCEPTED, "data/d"), note=False)
    receipts.write(stored_repository.store, plan.run_id, "later", rows(Outcome.ACCEPTED, "data/e"))
    assert deleted(stored_repository) == ["data/a", "data/b", "data/d", "data/e"]


def test_reports_and_receipts_are_read_by_spark_alike(
    stored_repository: OpenRepository, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "_READ_HERE", 0)
    swept_batches(stored_repository, 3 * HOUR, *BATCHES)
    plan = swept_batches(stored_repository, 2 * HOUR, rows(Outcome.QUARANTINED, "data/d", "data/e"), note=False)
    receipts.write(stored_repository.store, plan.run_id, f"{receipts.OF_RESTORE}1", rows(Outcome.RESTORED, "data/e"))
    across_runs.write_restoration(stored_repository.store, plan.run_id, NOW)
    step = made_step(SparkEngine(spark, 2), stored_repository, began(stored_repository, timedelta()))
    found = step.engine.collect(deleted_before(step, NOW - 2 * HOUR))
    assert sorted(found.column("address").to_pylist()) == ["data/a", "data/b", "data/d"]


def test_receipts_that_are_damaged_are_left_out_by_spark_as_well(
    stored_repository: OpenRepository, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "_READ_HERE", 0)
    damage_deletions(stored_repository, swept_batches(stored_repository, 3 * HOUR, *BATCHES))
    plan = swept_batches(
        stored_repository, 2 * HOUR, rows(Outcome.ACCEPTED, "data/d"), rows(Outcome.ACCEPTED, "data/e"), note=False
    )
    stored_repository.store.put(f"{run_folder.receipts(plan.run_id)}batch0.parquet", b"something else")
    step = made_step(SparkEngine(spark, 2), stored_repository, began(stored_repository, timedelta()))
    found = step.engine.collect(deleted_before(step))
    assert sorted(found.column("address").to_pylist()) == ["data/a", "data/b", "data/e"]


def test_nothing_is_read_of_runs_that_deleted_nothing(stored_repository: OpenRepository) -> None:
    plan = began(stored_repository, 2 * HOUR, sweep=False)
    report = ended(stored_repository, plan, dry_run=True, ending=Ending.MARKED, checkpoint=None)
    earlier_runs.update_index(stored_repository.store, plan, report, no_warning)
    receipts.write(stored_repository.store, plan.run_id, "of nobody", rows(Outcome.ACCEPTED, "data/a"))
    assert deleted(stored_repository) == []


def test_the_receipts_of_the_run_itself_do_not_count(stored_repository: OpenRepository) -> None:
    plan = replace(began(stored_repository, HOUR), sweep=True)
    receipts.write(stored_repository.store, plan.run_id, "batch", rows(Outcome.ACCEPTED, "data/a"))
    found = deleted_before(made_step(LocalEngine(2), stored_repository, plan))
    assert LocalEngine(2).collect(found).num_rows == 0


class TestDeletedSince:
    """A sweep's knowledge of runs that swept after its listing."""

    @staticmethod
    def reported(stored_repository: OpenRepository, ago: timedelta) -> list[str]:
        step = made_step(LocalEngine(2), stored_repository, began(stored_repository, timedelta()))
        found = deleted_since(step, NOW - ago)
        return sorted(step.engine.collect(found).column("address").to_pylist())

    @pytest.mark.parametrize("note", [False, True])
    def test_it_is_of_any_run_that_swept_since(self, stored_repository: OpenRepository, note: bool) -> None:
        swept_batches(
            stored_repository, 5 * HOUR, rows(Outcome.ACCEPTED, "data/a", ago=3 * HOUR), rows(Outcome.FAILED, "data/b")
        )
        swept_batches(stored_repository, 4 * HOUR, rows(Outcome.QUARANTINED, "data/c"), note=note)
        assert self.reported(stored_repository, 2 * HOUR) == ["data/c"]

    def test_a_sweep_that_failed_counts(self, stored_repository: OpenRepository) -> None:
        plan = began(stored_repository, 5 * HOUR)
        receipts.write(stored_repository.store, plan.run_id, "batch", rows(Outcome.ACCEPTED, "data/a"))
        ended(stored_repository, plan, success=False, ending=Ending.FAILED, error="500", checkpoint=None)
        assert self.reported(stored_repository, 2 * HOUR) == ["data/a"]

    @pytest.mark.parametrize("damaged", [False, True])
    def test_runs_that_a_sweep_before_the_moment_overtook_are_not_read(
        self, stored_repository: OpenRepository, damaged: bool
    ) -> None:
        """A sweep with a damaged report may have ended at any time."""
        swept_batches(stored_repository, 5 * HOUR, rows(Outcome.ACCEPTED, "data/a"))
        plan = swept_batches(stored_repository, 4 * HOUR, rows(Outcome.ACCEPTED, "data/b", ago=3 * HOUR))
        ended(stored_repository, plan, ended_at=NOW - 3 * HOUR, counts={"deleted": 1})
        if damaged:
            stored_repository.store.put(run_folder.report(plan.run_id), b"{")
        assert self.reported(stored_repository, 2 * HOUR) == (["data/a"] if damaged else [])


# Restored objects, by their receipts.


def note(opened: OpenRepository, run_id: str, name: str, outcome: Outcome, *addresses: str) -> None:
    """Writes the receipts of a batch."""
    count = len(addresses)
    rows = receipts.table(candidates(*addresses), [outcome] * count, [None] * count, NOW, "attempt")
    receipts.write(opened.store, run_id, name, rows)


def reported_nothing(found: pa.Array) -> bool:
    """True for an empty array of addresses, which can still be compared with others."""
    return bool(found.type == pa.string()) and len(found) == 0


@pytest.fixture
def partly_restored(opened: OpenRepository) -> str:
    """A run that moved three objects to quarantine, two of which were restored."""
    run_id = began(opened, 2 * HOUR).run_id
    note(opened, run_id, "batch", Outcome.QUARANTINED, "data/a", "data/b", "data/c")
    across_runs.write_restoration(opened.store, run_id, NOW)
    note(opened, run_id, f"{receipts.OF_RESTORE}1", Outcome.RESTORED, "data/a")
    note(opened, run_id, f"{receipts.OF_RESTORE}2", Outcome.RESTORED, "data/c")
    note(opened, run_id, f"{receipts.OF_PURGE}1", Outcome.PURGED, "data/b")
    return run_id


def test_only_what_came_back_is_reported(opened: OpenRepository, partly_restored: str) -> None:
    assert sorted(restored_before(opened.store, "another").to_pylist()) == ["data/a", "data/c"]
    assert reported_nothing(restored_before(opened.store, partly_restored))


def test_where_nothing_ever_came_back_one_call_tells_so(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "newest_runs", pytest.fail)
    assert reported_nothing(restored_before(opened.store, "run"))


def test_too_many_are_not_reported(
    opened: OpenRepository, partly_restored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier_runs, "MOST_RESTORED", 1)
    assert reported_nothing(restored_before(opened.store, "another"))
    monkeypatch.setattr(earlier_runs, "MOST_RESTORED", 2)
    assert sorted(restored_before(opened.store, "another").to_pylist()) == ["data/a", "data/c"]


def test_the_twenty_newest_runs_besides_the_one_that_asks_are_looked_at(opened: OpenRepository) -> None:
    runs = [began(opened, hours * HOUR).run_id for hours in range(22)]
    for number, run_id in enumerate(runs):
        note(opened, run_id, f"{receipts.OF_RESTORE}1", Outcome.RESTORED, f"data/{number}")
    across_runs.write_restoration(opened.store, runs[-1], NOW)
    found = restored_before(opened.store, runs[3])
    assert found.type == pa.string()
    assert found.to_pylist() == [f"data/{number}" for number in range(21) if number != 3]


def test_receipts_that_are_damaged_are_said_to_be(opened: OpenRepository, partly_restored: str) -> None:
    opened.store.put(f"{run_folder.receipts(partly_restored)}{receipts.OF_RESTORE}3.parquet", b"nothing")
    with pytest.raises(CorruptFile):
        restored_before(opened.store, "another")


# Sightings of objects that are listed for the first time.


PARTS = "0123456789abcdef0123456789abcdef-3"
SECOND = timedelta(seconds=1)


def test_an_object_uploaded_in_parts_goes_an_hour_after_an_earlier_run_listed_it(replaying: Replaying) -> None:
    runs = replaying("empty", max_candidate_share=1)
    (parts,) = place_old(runs, days=3, etag=PARTS)
    (whole,) = place_old(runs, days=3)

    def marked_run() -> tuple[list[str], dict[str, int]]:
        opened = runs.open()
        result = runs.make(opened)
        assert result.success, result.failures
        sightings = runs.table(opened.run_id, "sightings").to_pylist()
        assert [(row["address"], row["first_listed_at"]) for row in sightings] == [(parts, first_listed_at)]
        return runs.addresses(opened.run_id, "candidates"), runs.report(opened.run_id).kept

    first_listed_at = runs.clock.now()
    assert marked_run() == ([whole], {Kept.MULTIPART.value: 1})
    runs.clock.sleep(3599)
    assert marked_run() == ([whole], {Kept.MULTIPART.value: 1})
    runs.clock.sleep(1)
    assert marked_run() == (sorted([parts, whole]), {})


class Repository:
    """A repository with runs that left sightings, and a step of a run that reads them."""

    def __init__(self, folder: Path) -> None:
        self.engine = LocalEngine()
        self.opened: OpenRepository = opened_by(opener_in(folder, "repository"))
        self.reported: list[str] = []

    def step(self, ago: timedelta, flow: Flow = Flow.CLEAN) -> Step[ArrowRows]:
        """A step of a run that began `ago`, with the clock at that time."""
        plan: Plan = began(self.opened, ago, flow=flow)
        assert isinstance(self.opened.clock, HandClock)
        self.opened.clock.moment = NOW - ago
        return made_step(self.engine, self.opened, plan, self.reported.append)

    def settled(self, ago: timedelta, flow: Flow, **first_listed: datetime) -> None:
        """A successful run in the index of runs that left these sightings."""
        run_id = self.sighted(ago, flow, **first_listed)
        plan = plans.read(self.opened.store, run_id)
        earlier_runs.update_index(self.opened.store, plan, ended(self.opened, plan), self.reported.append)

    def sighted(self, ago: timedelta, flow: Flow = Flow.CLEAN, /, **first_listed: datetime) -> str:
        """A run that left these sightings, and whose listing ended `ago`; returns its id."""
        step = self.step(ago, flow)
        rows = [
            {"address": f"data/{name}", "slice_window": "legacy", "first_listed_at": moment}
            for name, moment in first_listed.items()
        ]
        table = self.engine.table(pa.Table.from_pylist(rows, schema=SIGHTINGS))
        step.complete(SIGHTINGS_DF, NoFigures(), step.write(SIGHTINGS_DF, table))
        return step.plan.run_id

    def read(self, before: datetime, step: Step[ArrowRows] | None = None) -> dict[str, datetime]:
        """The earliest sighting per address."""
        rows = self.engine.collect(earlier_runs.read_sightings(step or self.step(timedelta()), before))
        latest_first = rows.sort_by([("first_listed_at", "descending")]).to_pylist()
        return {row["address"]: row["first_listed_at"] for row in latest_first}

    def rows(self, **etags: str | None) -> ArrowRows:
        """Unreferenced objects with these ETags."""
        rows: list[dict[str, Any]] = [listed(f"data/{name}", etag=etag) for name, etag in etags.items()]
        return self.engine.table(pa.Table.from_pylist(rows, schema=nullable(LISTED)))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


class TestEarlierSightings:
    def test_are_the_first_of_all_runs_that_had_listed_before(self, repository: Repository) -> None:
        repository.sighted(5 * HOUR, a=NOW - 7 * HOUR, b=NOW - 5 * HOUR)
        repository.sighted(4 * HOUR, a=NOW - 4 * HOUR, b=NOW - 6 * HOUR)
        repository.sighted(3 * HOUR, c=NOW - 3 * HOUR)
        assert repository.read(NOW - 3 * HOUR) == {
            "data/a": NOW - 7 * HOUR,
            "data/b": NOW - 6 * HOUR,
            "data/c": NOW - 3 * HOUR,
        }
        assert repository.read(NOW - 3 * HOUR - SECOND).keys() == {"data/a", "data/b"}

    def test_are_none_where_no_run_was(self, repository: Repository) -> None:
        assert repository.read(NOW) == {}

    def test_are_not_those_of_the_run_itself(self, repository: Repository) -> None:
        repository.sighted(3 * HOUR, a=NOW - 3 * HOUR)
        step = repository.step(2 * HOUR)
        rows = pa.Table.from_pylist(
            [{"address": "data/own", "slice_window": "legacy", "first_listed_at": NOW}], schema=SIGHTINGS
        )
        written = step.write(SIGHTINGS_DF, repository.engine.table(rows))
        step.complete(SIGHTINGS_DF, NoFigures(), written)
        assert repository.read(NOW, step).keys() == {"data/a"}

    def test_are_those_of_the_newest_runs_whether_they_left_any_or_not(self, repository: Repository) -> None:
        for hours in range(21, 1, -1):
            repository.sighted(hours * HOUR, **{f"at{hours}": NOW - hours * HOUR})
        # Neither the reading run nor one that ended before its mark has any.
        repository.step(HOUR)
        found = repository.read(NOW)
        assert found.keys() == {f"data/at{hours}" for hours in range(2, 20)}

    def test_are_those_of_the_newest_run_of_each_flow_that_the_index_knows_to_have_some(
        self, repository: Repository
    ) -> None:
        repository.settled(7 * HOUR, Flow.OPTIMIZED, g=NOW - 7 * HOUR)
        repository.settled(5 * HOUR, Flow.CLEAN, e=NOW - 5 * HOUR)
        repository.settled(4 * HOUR, Flow.CLEAN, d=NOW - 4 * HOUR)
        repository.settled(3 * HOUR, Flow.OPTIMIZED, c=NOW - 3 * HOUR)
        repository.settled(2 * HOUR, Flow.CLEAN)
        repository.sighted(HOUR, f=NOW - HOUR)
        # Unfinished runs, which no index names, are read as well; a run that listed too late counts for no flow.
        assert repository.read(NOW).keys() == {"data/c", "data/d", "data/f"}
        assert repository.read(NOW - 4 * HOUR - SECOND).keys() == {"data/e", "data/g"}
        assert repository.reported == []

    def test_of_a_run_whose_manifest_is_damaged_are_left_out_and_reported(self, repository: Repository) -> None:
        repository.sighted(5 * HOUR, a=NOW - 5 * HOUR)
        damaged = run_folder.manifest(repository.sighted(4 * HOUR, b=NOW - 4 * HOUR), "sightings")
        repository.opened.store.put(damaged, b"nothing")
        repository.sighted(3 * HOUR, c=NOW - 3 * HOUR)
        assert repository.read(NOW).keys() == {"data/a", "data/c"}
        (line,) = [line for line in repository.reported if "an earlier run saw are kept for longer" in line]
        assert damaged in line

    def test_of_a_file_that_is_damaged_are_left_out_and_reported(
        self, repository: Repository, caplog: pytest.LogCaptureFixture
    ) -> None:
        repository.sighted(5 * HOUR, a=NOW - 5 * HOUR)
        run_id = repository.sighted(4 * HOUR, b=NOW - 4 * HOUR)
        (file,) = repository.step(2 * HOUR).stored_of(run_id, SIGHTINGS_DF).manifest.files
        repository.opened.store.put(file.key, b"nothing")
        with caplog.at_level(logging.WARNING):
            assert repository.read(NOW).keys() == {"data/a"}
        assert "an earlier run saw are kept for longer" in caplog.text and file.key in caplog.text


def test_an_hour_to_the_microsecond_before_the_listing_is_old_enough(repository: Repository) -> None:
    began = NOW - HOUR
    rows = [
        {"address": name, "first_listed_at": began - HOUR + timedelta(microseconds=late)}
        for name, late in {"before": -1, "at": 0, "after": 1}.items()
    ]
    schema = pa.schema([SIGHTINGS.field("address"), SIGHTINGS.field("first_listed_at")])
    table = repository.engine.table(pa.Table.from_pylist(rows, schema=schema))
    found = earlier_runs.select_old_enough(repository.engine, table, began)
    assert repository.engine.collect(found).column("address").to_pylist() == ["before", "at"]


class TestOwnSightings:
    def test_are_of_objects_uploaded_in_parts_by_their_first_sighting_or_this_one(self, repository: Repository) -> None:
        repository.sighted(5 * HOUR, a=NOW - 5 * HOUR)
        step = repository.step(HOUR)
        rows = repository.rows(a=PARTS, b=PARTS, whole=PARTS[:32], none=None)
        earlier = earlier_runs.read_sightings(step, NOW - HOUR)
        earlier_runs.store_sightings(step, rows, 2, earlier, NOW - HOUR)
        assert step.stored(SIGHTINGS_DF).table().sort_by("address").to_pylist() == [
            {"address": "data/a", "slice_window": "other", "first_listed_at": NOW - 5 * HOUR},
            {"address": "data/b", "slice_window": "other", "first_listed_at": NOW - HOUR},
        ]

    def test_are_an_empty_frame_where_nothing_was_uploaded_in_parts(self, repository: Repository) -> None:
        step = repository.step(HOUR)
        earlier_runs.store_sightings(step, repository.rows(whole=None), 0, earlier_runs.read_sightings(step, NOW), NOW)
        frame = step.stored(SIGHTINGS_DF)
        assert (frame.count, frame.manifest.files, frame.figures) == (0, (), NoFigures())
