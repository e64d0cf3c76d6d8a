import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.files import Manifest, Span, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    DELETED_REPORT,
    LISTED,
    RECEIPTS,
    UNCOMMITTED_DF,
    CandidateFigures,
    DeletedFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.live.current import Samples
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.across_runs import Undeletable, Verdict
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Approval, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.reporting import count_amounts
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import Clock, Moment, OpenRepository, Pace
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import Countdown, Validity
from lakefs_gc_assets.collector.sweep.sweeping import Quarantine, Sweep, require_dry_run, store_approval
from lakefs_gc_assets.errors import CollectionError, CorruptFile, GuardTripped, LockLost, StorageError
from lakefs_gc_assets.settings import CollectionSettings, SweepMode
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES, made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, began, ended, opened
from lakefs_gc_assets_tests.collector.past_runs import NOW as RUN_NOW
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.runs.arrow_runs import Opened
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import ReplayedRuns, truth_classes
from lakefs_gc_assets_tests.servers.stores import s3_server
from lakefs_gc_assets_tests.spark.frame_rows import listed

__all__ = ["opened", "replaying", "s3_server"]

MARK = ("store_df", "uncommitted_df", "committed_df", "candidates")


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1)


def outcomes(runs: PlainRuns, run_id: str) -> dict[str, str]:
    table = runs.table(run_id, "deleted_report")
    return dict(zip(table.column("address").to_pylist(), table.column("outcome").to_pylist(), strict=True))


def test_a_dry_run_deletes_nothing_and_a_sweep_exactly_what_it_named(replaying: Replaying) -> None:
    runs = replaying("small", deletes="overlay")
    classes = truth_classes("small")
    garbage = classes["unreferenced"] - {"data/stray-1/s0"}
    stored = {key for key in runs.server.stored() if not key.startswith("_lakefs/")}

    dry = runs.open()
    assert runs.make(dry).success
    marked = runs.report(dry.run_id)
    assert set(runs.addresses(dry.run_id, "candidates")) == garbage
    assert (marked.dry_run, marked.success, marked.ending) == (True, True, Ending.MARKED)
    assert (marked.counts["deleted"], marked.object_bytes["deleted"]) == (0, 0)
    assert outcomes(runs, dry.run_id) == dict.fromkeys(garbage, "dry_run")
    assert (runs.server.deleted, runs.server.refused_deletes) == (set(), set())

    sweep = runs.open()
    result = runs.make(sweep, sweep=True)
    assert result.success, result.failures
    assert runs.server.deleted == garbage
    assert {key for key in runs.server.stored() if not key.startswith("_lakefs/")} == stored - garbage
    assert outcomes(runs, sweep.run_id) == dict.fromkeys(garbage, "accepted")
    report = runs.report(sweep.run_id)
    assert (report.dry_run, report.success, report.ending) == (False, True, Ending.DELETED)
    assert (report.counts["deleted"], report.counts["failed"], report.counts["kept_live"]) == (len(garbage), 0, 0)
    assert report.object_bytes["deleted"] == report.object_bytes["candidates"] == marked.object_bytes["candidates"] > 0
    written = receipts.read(runs.repository.store, sweep.run_id)
    assert sorted(written.column("address").to_pylist()) == sorted(garbage)
    reported = runs.table(sweep.run_id, "deleted_report").select(written.column_names).cast(written.schema)
    assert written.sort_by("address").equals(reported.sort_by("address"))

    # The second in which runs were opened decides which is newer.
    runs.clock.sleep(1)
    again = runs.open()
    result = runs.make(again, sweep=True)
    assert result.success, result.failures
    assert runs.report(again.run_id).ending is Ending.NOTHING_TO_DELETE
    assert runs.report(again.run_id).counts["listed"] == marked.counts["listed"] - len(garbage)
    assert runs.server.deleted == garbage
    assert runs.server.refused_deletes == set()


def put_back(runs: PlainRuns, addresses: Iterable[str]) -> None:
    """Puts deleted objects back with their old time, as no command of ours does."""
    for address in addresses:
        runs.server.place(address, written_at=runs.clock.now() - timedelta(days=400))


class TestTwoRunsOfTheSameGarbage:
    """Two approved dry runs, the older one first: the newer one claims only its own deletions."""

    @staticmethod
    def marked(runs: PlainRuns) -> tuple[Opened, Opened]:
        """The older and the newer dry run, before either is approved."""
        older = runs.open()
        assert runs.make(older).success
        runs.clock.sleep(5)
        newer = runs.open()
        assert runs.make(newer).success
        return older, newer

    @staticmethod
    def approved(runs: PlainRuns, opened: Opened) -> Report:
        """The report of a dry run once it was approved and has swept."""
        runs.settings["approve_run"] = opened.run_id
        result = runs.make(opened, assets=["deleted_report"])
        assert result.success, result.failures
        return runs.report(opened.run_id)

    def test_what_the_older_one_moved_to_quarantine(self, replaying: Replaying) -> None:
        runs = replaying("chain/1", deletes="overlay", max_candidate_share=1, sweep_mode="quarantine")
        first, second = self.marked(runs)
        runs.clock.sleep(20 * 60)
        older = self.approved(runs, first)
        runs.clock.sleep(20 * 60)
        newer = self.approved(runs, second)
        assert (newer.success, newer.counts["failed"], newer.counts["quarantined"]) == (True, 0, 0)
        assert newer.counts["deleted_by_another_run"] == older.counts["quarantined"] > 0
        assert outcomes(runs, newer.run_id) == dict.fromkeys(
            outcomes(runs, older.run_id), Outcome.DELETED_BY_ANOTHER_RUN
        )
        assert not receipts.keys(runs.repository.store, newer.run_id)
        # The next run's base records that it is gone.
        assert newer.checkpoint is not None
        assert older.checkpoint is not None
        assert newer.checkpoint.pending == older.checkpoint.pending

    def test_object_put_back_long_after_the_listing_is_kept_once_more(self, runs: PlainRuns) -> None:
        """A user wanted it, and this run has not listed it since."""
        first, second = self.marked(runs)
        runs.clock.sleep(2 * 60 * 60)
        self.approved(runs, first)
        garbage = set(runs.server.deleted)
        put_back(runs, garbage)
        newer = self.approved(runs, second)
        assert garbage <= runs.server.stored()
        assert newer.counts["deleted_by_another_run"] == len(garbage) > 0


def test_garbage_put_back_with_its_old_time_is_deleted_by_the_next_sweep(runs: PlainRuns) -> None:
    first = runs.open()
    assert runs.make(first, sweep=True).success
    back = set(sorted(runs.server.deleted)[::2])
    put_back(runs, back)
    runs.clock.sleep(60)
    second = runs.open()
    result = runs.make(second, sweep=True)
    assert result.success, result.failures
    counts = runs.report(second.run_id).counts
    assert (counts["deleted"], counts["deleted_by_another_run"]) == (len(back), 0)
    assert not runs.server.stored() & back


def stage(runs: ReplayedRuns, run_id: str, address: str) -> None:
    """Adds one staged address to the server's next preparation."""
    (server_run_id,) = runs.frame(run_id, "uncommitted_df").figures.server_run_ids
    folder = f"_lakefs/retention/gc/uncommitted/{server_run_id}/uncommitted/"
    buffer = io.BytesIO()
    pq.write_table(pa.table({"physical_address": [address], "creation_date": [0]}), buffer)
    runs.repository.store.put(folder + "late", buffer.getvalue())


def test_what_became_live_since_the_mark_stays(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=MARK, sweep=True).success
    garbage = runs.addresses(opened.run_id, "candidates")
    stage(runs, opened.run_id, garbage[0])

    result = runs.make(opened, assets=["deleted_report"])

    assert result.success, result.failures
    assert runs.server.deleted == set(garbage[1:])
    assert outcomes(runs, opened.run_id) == {garbage[0]: "kept_live", **dict.fromkeys(garbage[1:], "accepted")}
    report = runs.report(opened.run_id)
    assert (report.success, report.counts["kept_live"], report.counts["deleted"]) == (True, 1, len(garbage) - 1)


def test_a_killed_sweep_goes_on_with_what_has_no_receipt(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=MARK, sweep=True).success
    candidates = runs.table(opened.run_id, "candidates").sort_by("address")
    garbage = candidates.column("address").to_pylist()
    done = candidates.slice(0, 4)
    results = [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.FAILED, Outcome.KEPT_LIVE]
    receipts.write(
        runs.repository.store,
        opened.run_id,
        "before",
        receipts.table(done, results, [None, None, "SlowDown", None], runs.clock.now()),
    )

    result = runs.make(opened, assets=["deleted_report"])

    assert result.success, result.failures
    assert runs.server.deleted == set(garbage[2:])
    assert outcomes(runs, opened.run_id) == dict.fromkeys(garbage, "accepted")
    assert runs.report(opened.run_id).counts["deleted"] == len(garbage)


SLICE = "data/g4uk6erfnfus73frbnqg/"
KEYS = [f"{SLICE}dc0n8tpksdu988af5s{number}{end}" for number in (0, 1) for end in "0g"]


@pytest.fixture
def opener(tmp_path: Path) -> StoreOpener:
    """A folder with four objects."""
    made = opener_in(tmp_path)
    for key in KEYS:
        made.open().put(key, b"0123456789")
    return made


class Noting(LocalEngine):
    """Records the stated numbers of rows when it compares and caches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int | None] = []

    def among_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        self.counts.append(count)
        return super().among_exactly(rows, addresses, count)

    def without_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        self.counts.append(count)
        return super().without_exactly(rows, addresses, count)

    @contextmanager
    def cached(self, rows: ArrowRows, at_most: int) -> Iterator[ArrowRows]:
        self.counts.append(at_most)
        with super().cached(rows, at_most) as kept:
            yield kept


class Sweeping:
    """The last step of a run that has marked objects; `lines` are its log lines."""

    def __init__(self, opener: StoreOpener, marked: Sequence[str] = KEYS, plan: Plan = PLAN, **settings: Any) -> None:
        self.lines: list[str] = []
        self.engine = Noting()
        self.step = made_step(self.engine, opened_by(opener, **settings), plan, self.lines.append)
        self.store = self.step.repository.store
        now = self.step.repository.clock.now()
        self.step.lock = Lock.acquire(self.store, run_id=plan.run_id, owner="owner", now=now, expiry=HOUR)
        found = [listed(address) for address in marked]
        rows = self.engine.table(pa.Table.from_pylist(found, nullable(CANDIDATES_DF.schema)))
        self.candidates = self.step.complete(CANDIDATES_DF, CANDIDATE_FIGURES, self.step.write(CANDIDATES_DF, rows))

    @property
    def plan(self) -> Plan:
        return self.step.plan

    def table(self, rows: Sequence[Mapping[str, Any]]) -> ArrowRows:
        """Rows of a listing."""
        return self.engine.table(pa.Table.from_pylist(list(rows), schema=nullable(LISTED)))

    def rows(self, *addresses: str) -> ArrowRows:
        """Some candidates."""
        return self.table([listed(address) for address in addresses])

    def receipts(self, outcome: Outcome, *addresses: str, error: str | None = None) -> pa.Table:
        """Receipts with these addresses."""
        count = len(addresses)
        made = self.engine.collect(self.rows(*addresses))
        return receipts.table(made, [outcome] * count, [error] * count, NOW, self.plan.attempt)

    def outcomes(self, *parts: pa.Table) -> StoredFrame[DeletedFigures]:
        """A frame made from receipts."""
        rows = self.engine.table(pa.concat_tables(parts).cast(nullable(RECEIPTS)))
        return self.step.complete(DELETED_REPORT, DeletedFigures(True), self.step.write(DELETED_REPORT, rows))

    def sweep(self, *live: str, left: Sequence[str] = KEYS) -> dict[str, str]:
        """One pass in which a recheck finds these addresses live; returns the outcome per candidate."""
        found = self.engine.select(self.rows(*live), "address", "slice", "slice_window")

        def again(step: Step[ArrowRows], samples: Samples) -> ArrowRows:
            assert step is self.step
            return found

        with (
            mock.patch.object(sweeping, "find_live_again", again),
            mock.patch.object(sweeping, "require_inputs") as required,
        ):
            stored = sweeping.sweep_once(self.step, self.candidates, self.rows(*left), len(left))
        required.assert_called_once_with(self.step, self.candidates)
        assert stored.figures == DeletedFigures(swept=True)
        reported = stored.table().to_pylist()
        assert {(row["attempt"], row["decided_at"]) for row in reported} == {(self.plan.attempt, NOW)}
        assert {(row["size"], row["slice"]) for row in reported} == {(10, listed("")["slice"])}
        return {row["address"]: row["outcome"] for row in reported}

    def there(self) -> set[str]:
        """The remaining objects."""
        return {key for batch in self.store.list("data/") for key in batch.column("key").to_pylist()}


class TestApprove:
    def test_only_the_run_that_is_named_is_approved_and_stays_so(self, opener: StoreOpener) -> None:
        other = Sweeping(opener, approve_run="g4uk6erfnfus73frbnqh")
        assert not sweeping.approve(other.step, other.candidates)
        assert plans.read_approval(other.store, PLAN.run_id) is None and other.lines[1:] == []
        named = Sweeping(opener, approve_run=PLAN.run_id)
        assert sweeping.approve(named.step, named.candidates)
        digest = named.candidates.manifest.digest
        approval = plans.read_approval(named.store, PLAN.run_id)
        assert approval is not None and approval.approved_by.endswith(", on the command line")
        assert replace(approval, approved_by="") == Approval(PLAN.run_id, PLAN.attempt, digest, NOW)
        assert named.lines[1:] == [f"the candidates of run {PLAN.run_id} are approved: deleting them after a recheck"]
        later = Sweeping(opener)
        assert sweeping.approve(later.step, named.candidates)
        assert not sweeping.approve(later.step, Sweeping(opener, KEYS[:1]).candidates)

    def test_the_first_of_two_is_of_the_very_candidates_and_approves_nothing(self, opener: StoreOpener) -> None:
        run, others = Sweeping(opener), Sweeping(opener, KEYS[:1]).candidates
        candidates = run.candidates.manifest
        assert sweeping.store_first_approval(run.store, others.manifest, NOW, "Ada") is None
        assert sweeping.store_first_approval(run.store, candidates, NOW, "Bob") is None, "Ada approved others"
        assert sweeping.store_first_approval(run.store, candidates, NOW, "Ada") == "Bob"
        assert not sweeping.approve(run.step, run.candidates)
        for name in (
            "bob, as the proxy says",
            "B\u200bob",
            "\uff22\uff4f\uff42",
            "Bob\ufe0f",
            "B\u00adob",
            " Bob\u2060 ",
        ):
            with pytest.raises(CollectionError, match=r"was approved at .*Z by Bob, and .* under another name"):
                sweeping.store_first_approval(run.store, candidates, NOW, name)
        run.store.put(run_folder.first_approval(PLAN.run_id), b"{")
        with pytest.raises(CorruptFile):
            sweeping.store_first_approval(run.store, candidates, NOW, "Ada")


class TestDecideDry:
    def test_every_candidate_has_a_receipt(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        written = sweeping.decide_dry(run.step, run.candidates)
        reported = run.step.unfinished(DELETED_REPORT, DeletedFigures(False), written).table()
        assert reported.sort_by("address").to_pylist() == [
            {
                "address": address,
                "size": 10,
                "slice": listed("")["slice"],
                "slice_window": "2026-11",
                "outcome": "dry_run",
                "error": None,
                "decided_at": NOW,
                "attempt": PLAN.attempt,
                "version_id": None,
                "copy_etag": None,
            }
            for address in KEYS
        ]


class TestRequireAllDecided:
    def test_a_report_that_lacks_candidates_ends_the_run(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        sweeping.require_all_decided(run.outcomes(run.receipts(Outcome.ACCEPTED, *KEYS)), run.candidates)
        more = run.outcomes(run.receipts(Outcome.ACCEPTED, *KEYS), run.receipts(Outcome.FAILED, KEYS[0]))
        sweeping.require_all_decided(more, run.candidates)
        with pytest.raises(CollectionError) as refused:
            sweeping.require_all_decided(run.outcomes(run.receipts(Outcome.ACCEPTED, *KEYS[1:])), run.candidates)
        assert str(refused.value) == (
            "the outcome of 1 of 4 candidates is unknown. Materialize deleted_report again: it continues from the "
            "receipts"
        )


class TestWaitForRecheck:
    @pytest.mark.parametrize(("ago", "least"), [(0, 600), (590, 10), (700, 0), (9000, 0)])
    def test_until_uncommitted_data_is_old_enough_by_both_clocks(
        self, opener: StoreOpener, ago: int, least: int
    ) -> None:
        for by_own_clock, by_store in ((ago, ago), (9000, ago), (ago, 9000)):
            run = Sweeping(opener, wait_before_recheck_seconds=600)
            frame = self.stored(run, by_own_clock, by_store)
            sweeping.wait_for_recheck(run.step, frame)
            waited = (run.step.repository.clock.now() - NOW).total_seconds()
            # A store has whole seconds, and time passes during the test.
            assert least - 5 <= waited <= (least and least + 2)

    def stored(self, run: "Sweeping", own: int, by_store: int) -> StoredFrame[UncommittedFigures]:
        """Uncommitted data that was complete some seconds ago, by each clock."""
        plan, ended_at = run.step.plan, NOW - timedelta(seconds=own)
        span = Span(UNCOMMITTED_DF.name, plan.run_id, plan.attempt, ended_at, ended_at)
        manifest = Manifest(span, (), UncommittedFigures((), (), pages=0))
        files.write_manifest(run.step.repository.store, manifest)
        key = run_folder.manifest(plan.run_id, UNCOMMITTED_DF.name)
        path = Path(os.fsdecode(cast(LocalStore, run.step.repository.store)._root)) / key
        written = path.stat().st_mtime - by_store
        os.utime(path, (written, written))
        return StoredFrame(UNCOMMITTED_DF, manifest, run.step.repository.opener)


class TestResume:
    def test_without_receipts_all_candidates_are_left(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        remaining, left, written = sweeping.resume(run.step, run.candidates)
        assert (left, written, run.lines[1:]) == (4, (), [])
        assert sorted(run.engine.collect(remaining).column("address").to_pylist()) == KEYS

    def test_what_is_gone_is_reported_once_and_what_failed_or_was_kept_is_tried_again(
        self, opener: StoreOpener
    ) -> None:
        run = Sweeping(opener)
        parts = [
            run.receipts(Outcome.ACCEPTED, KEYS[0]),
            run.receipts(Outcome.QUARANTINED, KEYS[1]),
            run.receipts(Outcome.ACCEPTED, KEYS[0]),
            run.receipts(Outcome.FAILED, KEYS[2], error="busy"),
            run.receipts(Outcome.COPIED, KEYS[3]),
        ]
        for number, part in enumerate(parts):
            receipts.write(run.store, PLAN.run_id, f"batch{number}", part)
        remaining, left, written = sweeping.resume(run.step, run.candidates)
        assert sorted(run.engine.collect(remaining).column("address").to_pylist()) == KEYS[2:]
        assert (left, run.engine.counts) == (2, [5 * run.store.delete_limit, 4 + 2])
        reported = run.step.unfinished(DELETED_REPORT, DeletedFigures(True), written).table()
        pairs = zip(reported.column("address").to_pylist(), reported.column("outcome").to_pylist(), strict=True)
        assert sorted(pairs) == [(KEYS[0], "accepted"), (KEYS[1], "quarantined")]
        assert run.lines[1:] == ["resumed after 5 receipts; 2 of 4 candidates are left"]

    def test_of_several_receipts_of_one_object_the_first_is_reported(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        for number, outcome in enumerate((Outcome.QUARANTINED, Outcome.ACCEPTED)):
            receipts.write(run.store, PLAN.run_id, f"batch{number}", run.receipts(outcome, *KEYS[::-1]))
        _, left, written = sweeping.resume(run.step, run.candidates)
        reported = run.step.unfinished(DELETED_REPORT, DeletedFigures(True), written).table()
        assert (left, reported.column("outcome").to_pylist()) == (0, ["quarantined"] * 4)
        assert reported.column("address").to_pylist() == KEYS[::-1]


class TestSweepOnce:
    def test_candidates_go_but_those_that_became_live(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        reported = run.sweep(KEYS[1], KEYS[1], "data/another")
        assert reported == dict.fromkeys(KEYS, "accepted") | {KEYS[1]: "kept_live"}
        assert run.there() == {KEYS[1]}
        # The number of addresses that are live again is unknown.
        assert run.engine.counts == [None, 4, 4 + 4, 4 + 4]
        assert sorted(receipts.read(run.store, PLAN.run_id).column("address").to_pylist()) == sorted(
            {*KEYS} - {KEYS[1]}
        )

    def test_only_what_remains_goes(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        assert run.sweep(left=KEYS[2:]) == dict.fromkeys(KEYS[2:], "accepted")
        assert run.there() == set(KEYS[:2])

    def test_candidates_are_moved_where_the_settings_say_so(self, opener: StoreOpener) -> None:
        run = Sweeping(opener, sweep_mode="quarantine")
        assert run.sweep() == dict.fromkeys(KEYS, "quarantined")
        assert run.there() == set()
        assert {run.store.get(sweeping.key(PLAN.run_id, key)) for key in KEYS} == {b"0123456789"}

    @pytest.mark.parametrize("minutes", [0.001, 1 / 60])
    def test_where_the_recheck_is_over_before_a_batch_begins_nothing_goes(
        self, opener: StoreOpener, minutes: float
    ) -> None:
        run = Sweeping(opener, recheck_valid_minutes=minutes)
        with pytest.raises(CollectionError) as refused:
            run.sweep()
        assert str(refused.value) == (
            "nothing could be deleted while a recheck was valid: raise collection.recheck_valid_minutes"
        )
        assert run.there() == set(KEYS)

    def test_the_time_for_which_it_is_valid_begins_before_it_asks(self, opener: StoreOpener) -> None:
        run, order = Sweeping(opener), list[str]()
        begin = Validity.begin

        def began(*arguments: Any) -> Validity:
            order.append("valid from now")
            assert arguments[1:] == (PLAN.run_id, timedelta(minutes=15))
            return begin(*arguments)

        def asked(step: Step[ArrowRows], samples: Samples) -> ArrowRows:
            order.append("asked")
            return run.rows()

        with (
            mock.patch.object(Validity, "begin", began),
            mock.patch.object(sweeping, "find_live_again", asked),
            mock.patch.object(sweeping, "require_inputs", lambda step, candidates: order.append("compared")),
        ):
            sweeping.sweep_once(run.step, run.candidates, run.rows(*KEYS), 4)
        assert order == ["valid from now", "asked", "compared"]

    def test_each_task_counts_from_when_it_begins(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        batches = run.engine.collect(run.rows(*KEYS)).select(["address", "size", "slice", "slice_window"]).to_batches(1)
        valid = Validity.begin(run.store, PLAN.run_id, HOUR)
        counted, clock = Validity.countdown, run.step.repository.clock
        began: list[tuple[Any, ...]] = []

        def countdown(valid: Validity, store: ObjectStore, run_id: str, clock: Clock) -> Any:
            began.append((store, run_id, clock))
            return counted(valid, store, run_id, clock)

        with mock.patch.object(Validity, "countdown", countdown):
            task = sweeping._deleter(run.step, valid, None, None)(batches)
            assert began == []
            reported = pa.Table.from_batches(task)
        assert began == [(run.store, PLAN.run_id, clock)]
        assert reported.column("address").to_pylist() == KEYS
        assert set(reported.column("attempt").to_pylist()) == {run.step.plan.attempt}
        assert run.there() == set()


class TestJudgeFailures:
    DENIED, BUSY = "AccessDenied: Access Denied", "SlowDown: Please reduce your request rate."

    def judge(self, run: Sweeping, *parts: pa.Table) -> Verdict:
        outcomes = run.outcomes(*parts)
        return sweeping.judge_failures(run.step, outcomes, count_amounts(run.step, outcomes))

    def test_what_cannot_be_deleted_is_kept_in_the_list(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        denied = run.receipts(Outcome.FAILED, KEYS[0], error=self.DENIED)
        noted = Undeletable(KEYS[0], self.DENIED, NOW)
        verdict = self.judge(run, denied, run.receipts(Outcome.ACCEPTED, *KEYS[1:]))
        assert verdict == Verdict((noted,), (noted,), 1, False, 1)
        assert across_runs.read_undeletable(run.store) == (noted,)
        run.step.repository.clock.sleep(60)
        verdict = self.judge(run, denied, run.receipts(Outcome.KEPT_LIVE, *KEYS[1:]))
        assert verdict == Verdict((noted,), (noted,), 0, True, 1)

    @pytest.mark.parametrize("outcome", [Outcome.ACCEPTED, Outcome.KEPT_LIVE, Outcome.QUARANTINED])
    def test_what_was_decided_otherwise_leaves_the_list(self, opener: StoreOpener, outcome: Outcome) -> None:
        run = Sweeping(opener)
        known = tuple(Undeletable(address, self.DENIED, NOW) for address in KEYS[:3])
        across_runs.write_undeletable(run.store, known)
        failed = run.receipts(Outcome.FAILED, KEYS[1], error=self.BUSY)
        verdict = self.judge(run, run.receipts(outcome, KEYS[0]), failed)
        assert verdict == Verdict(known[1:], (), 0, False, 1)
        assert across_runs.read_undeletable(run.store) == known[1:]
        assert run.engine.counts == [2 + 3]

    def test_so_many_failures_are_read_that_too_many_are_noticed(self, opener: StoreOpener) -> None:
        run, limit = Sweeping(opener), 1
        failed = run.receipts(Outcome.FAILED, *KEYS[:3], error=self.DENIED)
        with (
            mock.patch.object(across_runs, "UNDELETABLE_LIMIT", limit),
            mock.patch.object(across_runs, "judge_undeletable") as judge,
            mock.patch.object(across_runs, "write_undeletable"),
        ):
            moved = run.receipts(Outcome.QUARANTINED, "data/moved")
            self.judge(run, failed, run.receipts(Outcome.ACCEPTED, KEYS[3]), moved)
        (known, failures, settled, now), _ = judge.call_args
        assert (known, settled, now) == ((), set(), NOW)
        assert (len(failures.rows), failures.count, failures.gone) == (2, 3, 2)


class TestLeaveOut:
    def test_what_is_decided_is_left_out(self, opener: StoreOpener) -> None:
        run = Sweeping(opener)
        outcomes = run.outcomes(run.receipts(Outcome.ACCEPTED, KEYS[0]), run.receipts(Outcome.FAILED, KEYS[1]))
        left = sweeping.exclude_decided(run.step, run.rows(*KEYS), len(KEYS), outcomes)
        assert run.engine.collect(left).column("address").to_pylist() == KEYS[2:]
        assert run.engine.counts == [4 + 2]


# Approvals.


class TestRequireDryRun:
    """Only candidates of a finished dry run can be approved."""

    def found(self, opened: OpenRepository, plan: Plan) -> Manifest[CandidateFigures]:
        """The stored frame of candidates of a run."""
        span = Span(CANDIDATES_DF.name, plan.run_id, plan.attempt, RUN_NOW, RUN_NOW)
        made = Manifest(span, (), CANDIDATE_FIGURES)
        files.write_manifest(opened.store, made)
        return made

    def why_not(self, opened: OpenRepository, plan: Plan) -> str:
        """The reason why a run cannot be approved."""
        with pytest.raises(CollectionError) as refused:
            require_dry_run(opened.store, plan.run_id)
        return str(refused.value)

    def test_what_it_found_is_approved_as_it_is_stored(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        ended(opened, plan, dry_run=True)
        made = self.found(opened, plan)
        candidates = require_dry_run(opened.store, plan.run_id)
        assert candidates == made
        store_approval(opened.store, candidates, RUN_NOW, "nobody")
        approval = Approval(plan.run_id, plan.attempt, made.digest, RUN_NOW, "nobody")
        assert plans.read_approval(opened.store, plan.run_id) == approval

    def test_a_run_that_was_to_delete_needs_none(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        ended(opened, plan)
        assert self.why_not(opened, plan) == (f"run {plan.run_id} was not a dry run: its deletions need no approval")

    def test_what_was_deleted_cannot_be_approved_again(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        report = ended(opened, plan, dry_run=False, counts={"deleted": 7})
        assert self.why_not(opened, plan) == f"run {plan.run_id} was already approved: {report.did}"

    @pytest.mark.parametrize("report", [False, True])
    def test_a_run_that_failed_or_has_not_ended_cannot_be_approved(self, opened: OpenRepository, report: bool) -> None:
        plan = began(opened, DAY, sweep=False)
        self.found(opened, plan)
        if report:
            ended(opened, plan, success=False, dry_run=True)
        assert self.why_not(opened, plan) == f"run {plan.run_id} did not finish: start a new one"

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_one_that_was_approved_and_failed_then_can_be_approved_again(
        self, opened: OpenRepository, dry_run: bool
    ) -> None:
        plan = began(opened, DAY, sweep=False)
        made = self.found(opened, plan)
        store_approval(opened.store, made, RUN_NOW, "nobody")
        assert self.why_not(opened, plan) == f"run {plan.run_id} did not finish: start a new one"
        ended(opened, plan, success=False, dry_run=dry_run)
        assert require_dry_run(opened.store, plan.run_id) == made

    def test_a_run_whose_candidates_were_removed_cannot_be_approved(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        ended(opened, plan, dry_run=True)
        assert self.why_not(opened, plan) == (
            f"run {plan.run_id} has no candidates stored: they were removed because it is old"
        )


# Batches of deletions.


RUN = "g4uk6erfnfus73frbnqg"
BATCH_SLICE = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5s"
BATCH_KEYS = [f"{BATCH_SLICE}{number:01x}{end}" for number in range(5) for end in "0g"]


class SmallBatches(LocalStore):
    """Takes three keys at a time; records each delete."""

    delete_limit = 3

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.deletes: list[list[str]] = []

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        self.deletes.append(list(keys))
        return super().delete(keys)


@dataclass
class Held:
    """A store whose lock is held."""

    store: SmallBatches
    lock: Lock

    def sweep(self) -> Sweep:
        return Sweep(self.store, RUN, self.lock.token, HandClock())

    def there(self) -> set[str]:
        return {key for batch in self.store.list("data/") for key in batch.column("key").to_pylist()}


def locked(store: ObjectStore, owner: str = "owner") -> Lock:
    return Lock.acquire(store, run_id=RUN, owner=owner, now=NOW, expiry=timedelta(hours=1))


@pytest.fixture
def held(tmp_path: Path) -> Held:
    store = SmallBatches(tmp_path)
    for key in BATCH_KEYS:
        store.put(key, b"garbage")
    return Held(store, locked(store))


def test_candidates_are_deleted_in_batches_each_with_receipts(held: Held) -> None:
    rows = pa.concat_tables(held.sweep().delete(candidates(*BATCH_KEYS[:7])))
    assert held.there() == set(BATCH_KEYS[7:])
    assert held.store.deletes == [BATCH_KEYS[:3], BATCH_KEYS[3:6], BATCH_KEYS[6:7]]
    assert rows.column("address").to_pylist() == BATCH_KEYS[:7]
    assert set(rows.column("outcome").to_pylist()) == {"accepted"}
    assert rows.column("decided_at").to_pylist() == [NOW] * 7
    stored = receipts.read(held.store, RUN)
    assert sorted(stored.column("address").to_pylist()) == sorted(BATCH_KEYS[:7])


def test_a_rate_is_kept_on_average_and_no_batch_is_larger_than_a_second_of_it(held: Held) -> None:
    clock = HandClock()
    sweep = replace(held.sweep(), clock=clock, pace=Pace(2, clock))
    # Spark passes on rows in several pieces.
    for piece in (BATCH_KEYS[:5], BATCH_KEYS[5:]):
        list(sweep.delete(candidates(*piece)))
    assert held.store.deletes == [
        BATCH_KEYS[:2],
        BATCH_KEYS[2:4],
        BATCH_KEYS[4:5],
        BATCH_KEYS[5:7],
        BATCH_KEYS[7:9],
        BATCH_KEYS[9:],
    ]
    assert clock.moment - NOW == timedelta(seconds=4.5)


def test_no_batch_begins_when_the_recheck_ended_while_it_waited_for_its_turn(held: Held) -> None:
    clock = HandClock()
    countdown = Countdown(clock, timedelta(seconds=2.5), Moment.now(clock))
    sweep = replace(held.sweep(), clock=clock, pace=Pace(3, clock), countdown=countdown)
    list(sweep.delete(candidates(*BATCH_KEYS)))
    assert held.there() == {BATCH_KEYS[9]}


def test_tasks_that_delete_at_a_rate_are_no_more_than_run_at_once_and_can_keep_to_it(held: Held) -> None:
    def tasks(rate: float, at_once: int, sweep_mode: SweepMode = "delete") -> int | None:
        settings = CollectionSettings(max_delete_rate=rate, sweep_mode=sweep_mode)
        repository = SimpleNamespace(settings=settings, store=SimpleNamespace(delete_limit=1000))
        step: Any = SimpleNamespace(repository=repository, engine=SimpleNamespace(tasks_at_once=at_once))
        return sweeping._limit_tasks(step)

    assert tasks(0, 16) is None
    assert [tasks(rate, 16) for rate in (0.1, 100, 3500, 10**6)] == [1, 1, 7, 16]
    assert tasks(3500, 2) == 2
    assert tasks(100, 16, "quarantine") == 2
    # With more tasks, a throttling store would get so many keys at once that it refuses some for a minute.
    assert [tasks(0, at_once) for at_once in (32, 33, 256)] == [None, 32, 32]
    assert tasks(0, 256, "quarantine") is None


def test_receipts_hold_what_the_store_says_of_each_version(tmp_path: Path) -> None:
    class Versioned(SmallBatches):
        def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
            return [DeleteOutcome(key, DeleteResult.ACCEPTED, version_id=f"marker of {key}") for key in keys]

    store = Versioned(tmp_path)
    sweep = Sweep(store, RUN, locked(store).token, HandClock(), attempt="attempt")
    (rows,) = sweep.delete(candidates(*BATCH_KEYS[:2]))
    assert rows.column("version_id").to_pylist() == [f"marker of {key}" for key in BATCH_KEYS[:2]]
    assert rows.column("attempt").to_pylist() == ["attempt"] * 2


def test_no_candidates_delete_nothing(held: Held) -> None:
    assert list(held.sweep().delete(candidates())) == []
    assert held.store.deletes == []


def test_receipts_are_there_before_the_next_batch_is_deleted(held: Held) -> None:
    batches = held.sweep().delete(candidates(*BATCH_KEYS))
    for done in range(1, 4):
        next(batches)
        assert receipts.read(held.store, RUN).num_rows == 3 * done
        assert len(held.store.deletes) == done


@pytest.mark.parametrize(
    "wrong",
    [
        "_lakefs/" + "a" * 64,
        "_lakefs/retention/gc/rules/config.json",
        "dummy",
        "data/by-hand",
        "data/repo2/data/x/y",
        "by-hand",
        "",
        "../repo2/" + BATCH_KEYS[0],
        "/" + BATCH_KEYS[0],
        BATCH_KEYS[0] + "/",
    ],
)
def test_a_name_that_must_never_be_deleted_stops_its_whole_batch(held: Held, wrong: str) -> None:
    for position in range(3):
        batch = [*BATCH_KEYS[:position], wrong, *BATCH_KEYS[position:2]]
        with pytest.raises(CollectionError, match="lakeFS never gives such a name to data"):
            list(held.sweep().delete(candidates(*batch)))
    assert held.store.deletes == []
    assert receipts.read(held.store, RUN).num_rows == 0


class TestTheLock:
    def test_is_checked_before_each_batch(self, held: Held) -> None:
        batches = held.sweep().delete(candidates(*BATCH_KEYS))
        next(batches)
        held.lock.release()
        locked(held.store, "another")
        with pytest.raises(LockLost):
            next(batches)
        assert held.store.deletes == [BATCH_KEYS[:3]]
        assert receipts.read(held.store, RUN).num_rows == 3


@pytest.mark.parametrize("kind", [Sweep, Quarantine])
def test_a_standing_approval_is_read_before_each_batch(
    opened: OpenRepository, tmp_path: Path, kind: type[Sweep]
) -> None:
    """In quarantine also after the copies of a batch, which may take minutes."""
    approval = granted(opened)
    store = SmallBatches(tmp_path)
    for key in BATCH_KEYS:
        store.put(key, b"12345")
    reads: list[str] = []

    def verify(store: ObjectStore, token: object) -> None:
        reads.append("lock")
        if len(reads) == (2 if kind is Sweep else 4):
            granted(opened, withdrawn_at=RUN_NOW)

    with mock.patch.object(sweeping, "verify", verify):
        batches = kind(store, RUN, cast("Any", None), HandClock(), standing=approval).delete(candidates(*BATCH_KEYS))
        next(batches)
        with pytest.raises(GuardTripped, match="was withdrawn or replaced"):
            next(batches)
    assert [sorted(keys) for keys in store.deletes] == [BATCH_KEYS[:3]]


class TestFailures:
    def test_of_a_whole_batch_leave_no_receipts_of_it(self, tmp_path: Path) -> None:
        class Breaking(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                if len(self.deletes) == 1:
                    raise StorageError("503 SlowDown")
                return super().delete(keys)

        held = Held(Breaking(tmp_path), locked(Breaking(tmp_path)))
        with pytest.raises(StorageError, match="SlowDown"):
            list(held.sweep().delete(candidates(*BATCH_KEYS)))
        assert receipts.read(held.store, RUN).column("address").to_pylist() == BATCH_KEYS[:3]

    def test_outcomes_are_those_of_their_keys_in_any_order(self, tmp_path: Path) -> None:
        class Shuffling(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                return [*reversed(super().delete(keys[1:])), DeleteOutcome(keys[0], DeleteResult.FAILED, "busy")]

        store = Shuffling(tmp_path)
        (rows,) = Sweep(store, RUN, locked(store).token, HandClock()).delete(candidates(*BATCH_KEYS[:3]))
        assert rows.column("address").to_pylist() == BATCH_KEYS[:3]
        assert rows.column("outcome").to_pylist() == ["failed", "accepted", "accepted"]
        assert rows.column("error").to_pylist() == ["busy", None, None]
        assert receipts.read(store, RUN) == rows

    @pytest.mark.parametrize("reported", [[], BATCH_KEYS[:1], [*BATCH_KEYS[:1], BATCH_KEYS[5]], BATCH_KEYS[:3]])
    def test_a_store_that_tells_of_other_keys_ends_the_sweep(self, tmp_path: Path, reported: list[str]) -> None:
        class Confused(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                return [DeleteOutcome(key, DeleteResult.ACCEPTED) for key in reported]

        store = Confused(tmp_path)
        with pytest.raises(StorageError, match="2 deletions were requested"):
            list(Sweep(store, RUN, locked(store).token, HandClock()).delete(candidates(*BATCH_KEYS[:2])))
        assert receipts.read(store, RUN).num_rows == 0


class TestTheTimeOfARecheck:
    @dataclass
    class Minutes(HandClock):
        """Advances by a minute at each reading."""

        tick: timedelta = timedelta(minutes=1)

    def swept(self, held: Held, minutes: int) -> set[str]:
        clock = self.Minutes()
        countdown = Validity.begin(held.store, RUN, timedelta(minutes=minutes)).countdown(held.store, RUN, clock)
        sweep = Sweep(held.store, RUN, held.lock.token, clock, countdown=countdown)
        tables = list(sweep.delete(candidates(*BATCH_KEYS)))
        return {address for table in tables for address in table.column("address").to_pylist()}

    def test_no_batch_begins_when_it_is_over(self, held: Held) -> None:
        decided = self.swept(held, 6)
        deletes = [keys for keys in held.store.deletes if keys[0] in BATCH_KEYS]
        assert 0 < len(deletes) < 4
        assert decided and decided <= {key for keys in deletes for key in keys}
        assert held.there() == set(BATCH_KEYS) - decided

    @pytest.mark.parametrize(("kind", "outcome"), [(Sweep, "accepted"), (Quarantine, "quarantined")])
    def test_a_batch_that_a_busy_store_makes_wait_ends_in_time(
        self, tmp_path: Path, kind: type[Sweep], outcome: str
    ) -> None:
        clock = HandClock()

        class Busy(SmallBatches):
            def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
                if keys == [lock.KEY] or not keys[0].startswith("data/"):
                    return super().delete(keys)
                first = super().delete(keys[:1])
                clock.sleep(15 * 60)
                return [*first, *super().delete(keys[1:])]

        store = Busy(tmp_path)
        for key in BATCH_KEYS:
            store.put(key, b"garbage")
        countdown = Validity.begin(store, RUN, timedelta(minutes=15)).countdown(store, RUN, clock)
        sweep = kind(store, RUN, locked(store).token, clock, countdown=countdown)
        (rows,) = sweep.delete(candidates(*BATCH_KEYS))
        assert rows.select(["address", "outcome"]).to_pylist() == [{"address": BATCH_KEYS[0], "outcome": outcome}]
        assert Held(store, locked(store)).there() == set(BATCH_KEYS[1:])

    def test_a_look_at_the_lock_that_takes_too_long_counts(self, held: Held, tmp_path: Path) -> None:
        clock = HandClock()

        class Slow(SmallBatches):
            def get(self, key: str) -> bytes:
                clock.sleep(16 * 60)
                return super().get(key)

        store = Slow(tmp_path)
        countdown = Validity.begin(held.store, RUN, timedelta(minutes=15)).countdown(held.store, RUN, clock)
        sweep = Sweep(store, RUN, held.lock.token, clock, countdown=countdown)
        assert list(sweep.delete(candidates(*BATCH_KEYS))) == []
        assert store.deletes == []
