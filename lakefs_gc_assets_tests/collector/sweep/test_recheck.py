"""Findings and comparisons of a recheck. `test_run_guards` tests that a run calls it, and then deletes nothing."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.commits import CommitSource
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, UNCOMMITTED_DF, F, Frame
from lakefs_gc_assets.collector.live.current import Committed, Samples, Uncommitted
from lakefs_gc_assets.collector.live.uncommitted import Prepared
from lakefs_gc_assets.collector.records import records_json, run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import recheck
from lakefs_gc_assets.collector.sweep.recheck import Validity, require_not_overtaken
from lakefs_gc_assets.errors import CorruptFile, GuardTripped, OrderViolation, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectFacts, ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.made_frames import (
    COMMITTED_FIGURES,
    UNCOMMITTED_FIGURES,
    made_step,
    opened_by,
    opener_in,
)
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, began, ended, opened
from lakefs_gc_assets_tests.collector.past_runs import NOW as RUN_NOW
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store
from lakefs_gc_assets_tests.spark.frame_rows import live

__all__ = ["opened", "store"]


@pytest.fixture
def repository(tmp_path: Path) -> OpenRepository:
    """A repository in a folder, for which no uncommitted object may be lost."""
    opener = opener_in(tmp_path)
    return opened_by(opener, max_uncommitted_loss_share=0)


PREPARED = Prepared(NOW, NOW, ("run",), ("one", "two"), 1)


def rows(*names: str) -> ArrowRows:
    """Live addresses."""
    table = pa.Table.from_pylist([live(address) for address in names], schema=nullable(COMMITTED_DF.schema))
    return LocalEngine().table(table)


def put(step: Step[ArrowRows], kind: Frame[F], names: Sequence[str], figures: F) -> None:
    """Stores findings of the mark."""
    step.complete(kind, figures, step.write(kind, rows(*names)))


class TestFindLiveAgain:
    """The mark found `a` uncommitted and `b` committed; `a` is still uncommitted, and a new commit holds `c`."""

    @pytest.fixture
    def step(self, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> Step[ArrowRows]:
        """A recheck whose server has no other answers."""
        step = made_step(LocalEngine(), repository)
        read = tables.write_run_ids(repository.store, step.plan.run_id, step.plan.attempt, ["b" * 64])
        put(step, UNCOMMITTED_DF, ["a"], UNCOMMITTED_FIGURES)
        put(step, COMMITTED_DF, ["b"], replace(COMMITTED_FIGURES, read_sha256=read))
        prepared = Uncommitted((PREPARED,), (rows("a"),), NOW)
        monkeypatch.setattr(recheck, "prepare_uncommitted", lambda step, samples: prepared)
        monkeypatch.setattr(recheck, "ask_committed", self.committed_since)
        return step

    @staticmethod
    def committed_since(step: Step[ArrowRows], until: datetime, known: frozenset[str], before: None) -> Committed:
        assert until == NOW and known == {"b" * 64} and before is None
        own = SimpleNamespace(commits=1234, heads={})
        source = CommitSource.METADATA_FOLDER.value
        found = SimpleNamespace(
            own=own,
            source=source,
            definition=None,
            count=1,
            waited=7.0,
            addresses=lambda step: [rows("c")],
            provisional_addresses=lambda step: [rows("d")],
        )
        return cast(Committed, found)

    def test_what_is_uncommitted_and_what_was_committed_since_is_live(self, step: Step[ArrowRows]) -> None:
        lines: list[str] = []
        found = recheck.find_live_again(replace(step, log=lines.append), Samples((), ()))
        assert sorted(step.engine.collect(found).column("address").to_pylist()) == ["a", "c", "d"]
        assert lines == ["recheck: 2 files of uncommitted data, 1,234 commits"]

    def test_waits_are_told_apart_from_work(self, step: Step[ArrowRows]) -> None:
        recheck.find_live_again(step, Samples((), ()))
        assert step.waited == 7

    def test_ids_of_what_was_read_are_those_of_the_mark(self, step: Step[ArrowRows]) -> None:
        tables.write_run_ids(step.repository.store, step.plan.run_id, step.plan.attempt, ["b" * 64, "c" * 64])
        with pytest.raises(CorruptFile, match="checksum"):
            recheck.find_live_again(step, Samples((), ()))


class Noting(LocalEngine):
    """Records the columns and stated sizes of subtractions."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: list[list[str]] = []
        self.counts: list[int] = []

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        self.columns.extend(each.schema.names for each in (rows, *live))
        self.counts.append(count)
        return super().without(rows, *live, count=count)


class TestRequireUncommittedKept:
    """At the recheck, `staged` addresses are still uncommitted, and commits hold the `committed` ones."""

    def require(
        self, repository: OpenRepository, marked: Sequence[str], staged: Sequence[str], committed: Sequence[str]
    ) -> Noting:
        """Checks two files of uncommitted data and 40 new committed addresses; returns the engine's recorded calls."""
        engine = Noting()
        step = made_step(engine, repository)
        put(step, UNCOMMITTED_DF, marked, UNCOMMITTED_FIGURES)
        put(step, COMMITTED_DF, committed, COMMITTED_FIGURES)
        prepared = Uncommitted[ArrowRows]((PREPARED,), (), NOW)
        found = cast(Committed, SimpleNamespace(count=40))
        recheck.require_uncommitted_kept(step, engine.select(rows(*staged), "address"), prepared, found)
        return engine

    def test_where_all_are_uncommitted_still_what_was_committed_is_not_read(self, repository: OpenRepository) -> None:
        assert len(self.require(repository, ["a", "b"], staged=["b", "a", "c"], committed=["d"]).counts) == 1

    def test_each_may_be_uncommitted_still_or_committed(self, repository: OpenRepository) -> None:
        engine = self.require(repository, ["a", "b", "c"], staged=["a"], committed=["b", "c", "d", "e"])
        assert engine.columns == [["address"]] * 4
        assert engine.counts == [3 + 2 * 250_000 + 40, 2 + 4]

    @pytest.mark.parametrize(("staged", "committed"), [([], ["b"]), (["a"], []), (["a"], ["c"]), (["c"], ["b"])])
    def test_one_that_is_neither_is_lost(
        self, repository: OpenRepository, staged: list[str], committed: list[str]
    ) -> None:
        with pytest.raises(GuardTripped, match="1 of 2 uncommitted addresses are gone since the mark"):
            self.require(repository, ["a", "b"], staged, committed)

    def test_where_nothing_was_uncommitted_nothing_is_asked(self, repository: OpenRepository) -> None:
        assert self.require(repository, [], staged=[], committed=[]).counts == []


# How long a recheck is valid.


RUN = "g4uk6erfnfus73rbnqg0"
MINUTE = timedelta(minutes=1)
SPAN = 15 * MINUTE


class TimedStore(LocalStore):
    """Writes at its own time."""

    moment: datetime = NOW

    def head(self, key: str) -> ObjectFacts:
        return replace(super().head(key), last_modified=self.moment)


@dataclass
class Executor:
    """Clocks of a separate machine: its wall time, and its counted seconds."""

    moment: datetime = NOW
    seconds: float = 0.0
    asked: list[str] = field(default_factory=list)

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.passes(timedelta(seconds=seconds))

    def monotonic(self) -> float:
        return self.seconds

    def passes(self, time: timedelta) -> None:
        self.moment += time
        self.seconds += time.total_seconds()


@pytest.fixture
def timed(tmp_path: Path) -> TimedStore:
    return TimedStore(tmp_path)


@given(late=st.integers(0, 1800), works=st.integers(0, 1800), skew=st.integers(-7200, 7200))
def test_a_task_that_begins_late_has_what_is_left(
    tmp_path_factory: pytest.TempPathFactory, late: int, works: int, skew: int
) -> None:
    timed = TimedStore(tmp_path_factory.mktemp("store"))
    valid = Validity.begin(timed, RUN, SPAN)
    timed.moment = NOW + timedelta(seconds=late)
    clock = Executor(timed.moment + timedelta(seconds=skew))
    countdown = valid.countdown(timed, RUN, clock)
    clock.passes(timedelta(seconds=works))
    # Stores have times in whole seconds: the last second is not used.
    assert countdown.is_over() == (late + works >= SPAN.total_seconds() - 1)


def test_a_clock_that_is_set_back_does_not_stretch_it(timed: TimedStore) -> None:
    clock = Executor()
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    clock.moment -= 60 * MINUTE
    clock.seconds += SPAN.total_seconds()
    assert countdown.is_over()


def test_a_machine_that_stood_still_finds_it_over(timed: TimedStore) -> None:
    clock = Executor()
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    clock.moment += SPAN
    assert clock.seconds == 0
    assert countdown.is_over()


def test_seconds_are_counted_from_when_it_began(timed: TimedStore) -> None:
    clock = Executor(seconds=2 * SPAN.total_seconds())
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    assert not countdown.is_over()
    clock.seconds += SPAN.total_seconds()
    assert countdown.is_over()


def test_the_store_is_asked_in_the_folder_of_the_run(timed: TimedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written, put = list[str](), timed.put

    def noted(key: str, data: bytes) -> str | None:
        written.append(key)
        return put(key, data)

    monkeypatch.setattr(timed, "put", noted)
    Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, Executor())
    assert [key.rpartition("/")[0] for key in written] == [f"{run_folder.folder(RUN)}clock"] * 2


def test_it_is_over_for_good(timed: TimedStore) -> None:
    clock = Executor()
    countdown = Validity.begin(timed, RUN, SPAN).countdown(timed, RUN, clock)
    clock.moment += SPAN
    assert countdown.is_over()
    clock.moment -= SPAN
    assert countdown.is_over()


def test_the_time_that_it_takes_to_ask_the_store_counts(timed: TimedStore) -> None:
    clock = Executor()

    class Slow(TimedStore):
        def head(self, key: str) -> ObjectFacts:
            found = super().head(key)
            clock.passes(SPAN)
            return found

    valid = Validity.begin(timed, RUN, SPAN)
    slow = Slow(Path(str(timed._root, "utf-8")))
    assert valid.countdown(slow, RUN, clock).is_over()


def test_asking_a_store_for_the_time_leaves_nothing_behind(store: ObjectStore) -> None:
    before = recheck.store_time(store, RUN)
    after = recheck.store_time(store, RUN)
    assert before <= after
    assert [key for batch in store.list(layout.RUNS_PREFIX) for key in batch["key"].to_pylist()] == []


def test_what_could_not_be_removed_is_left(tmp_path: Path) -> None:
    class Keeping(TimedStore):
        def delete(self, keys: object) -> list[DeleteOutcome]:
            return [DeleteOutcome("key", DeleteResult.FAILED, "AccessDenied")]

    assert recheck.store_time(Keeping(tmp_path), RUN) == NOW

    class Failing(TimedStore):
        def delete(self, keys: object) -> list[DeleteOutcome]:
            raise StorageError("503")

    assert recheck.store_time(Failing(tmp_path), RUN) == NOW


# Runs that a newer one overtook.


OVERTAKEN = "a run that a newer one has overtaken must not sweep"


@pytest.fixture
def mine(opened: OpenRepository) -> Plan:
    """The run that is about to sweep."""
    return began(opened, DAY)


def decided(opened: OpenRepository, plan: Plan, outcome: Outcome = Outcome.ACCEPTED) -> None:
    rows = receipts.table(candidates("data/x/y"), [outcome], [None], RUN_NOW)
    receipts.write(opened.store, plan.run_id, "batch", rows)


def failed(opened: OpenRepository, plan: Plan) -> None:
    ended(opened, plan, success=False, ending=Ending.FAILED, error="guard", checkpoint=None)


def test_alone_it_sweeps_and_goes_on_sweeping(opened: OpenRepository, mine: Plan) -> None:
    require_not_overtaken(opened.store, mine.run_id)
    decided(opened, mine)
    failed(opened, mine)
    require_not_overtaken(opened.store, mine.run_id)


def test_older_runs_that_swept_do_not_overtake(opened: OpenRepository, mine: Plan) -> None:
    older = began(opened, 2 * DAY)
    decided(opened, older)
    ended(opened, older)
    require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize("flow", list(Flow))
def test_a_newer_one_that_deleted_does(opened: OpenRepository, mine: Plan, flow: Flow) -> None:
    newer = began(opened, HOUR, flow=flow)
    decided(opened, newer)
    ended(opened, newer)
    with pytest.raises(OrderViolation, match=f"run {newer.run_id}, .*{OVERTAKEN}"):
        require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize(
    "changes",
    [
        {"ending": Ending.NOTHING_TO_DELETE},
        {"ending": Ending.KEPT_LIVE},
        {"success": False, "ending": Ending.PARTLY_DELETED},
        {"success": False, "ending": Ending.NONE_DELETED},
    ],
)
def test_so_does_one_whose_sweep_came_to_its_end(opened: OpenRepository, mine: Plan, changes: dict[str, Any]) -> None:
    ended(opened, began(opened, HOUR), **changes)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.COPIED, Outcome.FAILED])
@pytest.mark.parametrize("sweep", [False, True])
def test_so_does_one_that_was_killed_while_it_swept(
    opened: OpenRepository, mine: Plan, outcome: Outcome, sweep: bool
) -> None:
    """An approved dry run counts as a sweep as well."""
    decided(opened, began(opened, HOUR, sweep=sweep), outcome)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


def test_so_does_one_whose_sweep_failed_half_way(opened: OpenRepository, mine: Plan) -> None:
    newer = began(opened, HOUR)
    decided(opened, newer)
    failed(opened, newer)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


def test_newer_ones_that_marked_or_failed_before_they_swept_do_not(opened: OpenRepository, mine: Plan) -> None:
    began(opened, 5 * HOUR)
    failed(opened, began(opened, 4 * HOUR))
    began(opened, 3 * HOUR, sweep=False)
    ended(opened, began(opened, 2 * HOUR, sweep=False), dry_run=True, ending=Ending.MARKED, checkpoint=None)
    require_not_overtaken(opened.store, mine.run_id)


def test_not_only_the_newest_is_looked_at(opened: OpenRepository, mine: Plan) -> None:
    ended(opened, began(opened, 3 * HOUR))
    for minutes in (1, 2, 3):
        began(opened, timedelta(minutes=minutes), sweep=False)
    with pytest.raises(OrderViolation, match=OVERTAKEN):
        require_not_overtaken(opened.store, mine.run_id)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_report_that_cannot_be_read_ends_the_sweep(opened: OpenRepository, mine: Plan, damaged: bool) -> None:
    newer = began(opened, HOUR)
    content = json.loads(ended(opened, newer).to_json()) | {"format_version": 9}
    opened.store.put(run_folder.report(newer.run_id), b"{" if damaged else records_json.with_digest(content))
    with pytest.raises(OrderViolation, match=f"unknown whether run {newer.run_id}, .* Open a new run"):
        require_not_overtaken(opened.store, mine.run_id)
