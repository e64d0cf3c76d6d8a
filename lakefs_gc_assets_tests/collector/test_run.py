"""Steps of runs: what each stores, reports and logs."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    DELETED_REPORT,
    NOT_COMMITTED_DF,
    SIGHTINGS_DF,
    STORE_DF,
    UNCOMMITTED_DF,
    UNRECOGNISED_DF,
    CandidateFigures,
    CommittedFigures,
    DeletedFigures,
    Frame,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint
from lakefs_gc_assets.collector.live import current, facts, facts_of_ranges
from lakefs_gc_assets.collector.live.current import Committed, Unread
from lakefs_gc_assets.collector.live.facts import FactFile, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.hidden import Cleared, clear_hidden
from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories
from lakefs_gc_assets.collector.records import across_runs, tables
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.across_runs import Undeletable, Verdict
from lakefs_gc_assets.collector.records.outcomes import Kept, Outcome, Why
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import active_commits
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets.collector.run import CommittedData, reason_adder
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.errors import AccessDenied, GuardTripped, ObjectArchived, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import Branch, Commit, RepositoryFacts
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore, keys_below
from lakefs_gc_assets_tests.collector import past_runs
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.incremental import test_checkpoint
from lakefs_gc_assets_tests.collector.made_frames import (
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
    made_step,
    opened_by,
    opener_in,
)
from lakefs_gc_assets_tests.collector.past_runs import opened
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import NOW, HandClock, Script, ScriptedApi, page
from lakefs_gc_assets_tests.collector.test_run_guards import allowing, step_of, world_of
from lakefs_gc_assets_tests.collector.written import Staged, put_commit_objects, put_dump, put_uncommitted
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.runs.plain_runs import replaying
from lakefs_gc_assets_tests.simulation import collecting
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.clocks import moment
from lakefs_gc_assets_tests.simulation.collecting import Run, open_repository
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import DRY, MOVE, SWEEP
from lakefs_gc_assets_tests.simulation.run_requests import ASKED
from lakefs_gc_assets_tests.simulation.scenes import Ended, Scene
from lakefs_gc_assets_tests.spark.frame_rows import listed as listed_row

__all__ = ["opened", "replaying"]
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
GARBAGE = "unreferenced"


def test_a_record_of_restorations_that_is_damaged_ends_no_mark(opened: OpenRepository) -> None:
    lines: list[str] = []
    step = made_step(LocalEngine(), opened, note=lines.append)
    candidates = pa.RecordBatch.from_pydict({"address": ["data/a"]})
    assert reason_adder(step)(candidates).column("why").to_pylist() == [Why.NO_COMMIT] and lines == []

    opened.store.put(across_runs.RESTORATION_KEY, b"nothing")
    assert reason_adder(step)(candidates).column("why").to_pylist() == [Why.NO_COMMIT]
    (line,) = lines
    assert "cannot mark candidates that were restored earlier" in line


def test_what_an_earlier_run_deleted_and_somebody_brought_back_is_told_apart(opened: OpenRepository) -> None:
    earlier, this = (past_runs.began(opened, age * HOUR).run_id for age in (2, 1))
    across_runs.write_restoration(opened.store, earlier, past_runs.NOW)
    for run_id, address in ((earlier, "data/a"), (this, "data/b")):
        rows = receipts.table(candidates(address), [Outcome.RESTORED], [None], past_runs.NOW)
        receipts.write(opened.store, run_id, f"{receipts.OF_RESTORE}1", rows)
    step = made_step(LocalEngine(), opened)
    step.plan = replace(step.plan, run_id=this)
    reported = reason_adder(step)(pa.RecordBatch.from_pydict({"address": ["data/a", "data/b"]}))
    assert reported.column("why").to_pylist() == [Why.RESTORED, Why.NO_COMMIT]


class Reported(list[str]):
    """Log lines of a run; `warned` are its warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.warned: list[str] = []

    @property
    def steps(self) -> list[str]:
        """The lines, except for durations and waits of steps."""
        return [line for line in self if not re.search(" rows? in ", line) and not line.startswith("waiting")]


@contextmanager
def reported_by(kind: str) -> Iterator[tuple[Scene, Reported]]:
    """The small world right before a run of this kind begins, and the run's log."""
    reported = Reported()
    with (
        world_of(kind) as scene,
        mock.patch.object(Run, "log", lambda run, line: reported.append(line)),
        mock.patch.object(Run, "warn", lambda run, line: reported.warned.append(line)),
    ):
        yield scene, reported


class TestDescribeCommitted:
    """The figures of the third step, each from its source."""

    LIVE = LiveCommits(CommitSource.REFS_DUMP, NOW, NOW, ("m",), (), {"main": "m"}, commits=7, fetched=2)
    RECORD = RangeRecord("r", b"a", b"b", 5, 0)
    UNREAD = Unread(cast(OpenRepository, None), CommitSource.REFS_DUMP, ("m", "n"), range_records([RECORD]), ())
    FIGURES = CommittedFigures(
        commit_source="refs dump",
        commits=7,
        commits_fetched=2,
        metaranges_read=2,
        ranges_read=1,
        entries_promised=5,
        heads={"main": "m"},
        branches_before=3,
        read_sha256="0" * 64,
        unnamed_ranges=0,
        compacted_bases=0,
        provisional_ranges=0,
    )

    def test_of_all_commits(self) -> None:
        found = Committed(self.LIVE, (self.UNREAD,), None)
        assert run.describe_committed(found, 3, "0" * 64) == self.FIGURES

    def test_with_ranges_that_no_commit_names(self) -> None:
        unnamed = replace(self.UNREAD, records=range_records([self.RECORD] * 4))
        found = Committed(self.LIVE, (self.UNREAD,), None, unnamed)
        figures = run.describe_committed(found, 3, "0" * 64)
        assert figures == replace(self.FIGURES, ranges_read=5, unnamed_ranges=4)

    def test_by_retention(self) -> None:
        definition = SimpleNamespace(
            counts={"commits_expired": 1},
            rules_digest="rules",
            warnings=("warning",),
            guards=(GuardTripped("guard", "figures", "lifted by"),),
            differences=("one", "two"),
        )
        found = Committed(self.LIVE, (self.UNREAD,), cast(LiveDefinition, definition))
        assert run.describe_committed(found, 3, "0" * 64) == replace(
            self.FIGURES,
            retention={"commits_expired": 1},
            retention_rules="rules",
            retention_warnings=("warning",),
            retention_guards=(("guard", "figures", "lifted by"),),
            retention_differences="one\ntwo",
        )


class TestWhatRunsTell:
    """Whole runs in a small world, on plain tables: figures and inputs per frame, and the log."""

    def test_a_dry_run(self) -> None:
        with reported_by("clean") as (scene, reported):
            assert scene.start(DRY, Faults()) is Ended.WELL
            step, report = step_of(scene), scene.reported
            listed, uncommitted = step.stored(STORE_DF), step.stored(UNCOMMITTED_DF)
            committed, candidates = step.stored(COMMITTED_DF), step.stored(CANDIDATES_DF)
            outcomes, strange = step.stored(DELETED_REPORT), step.stored(UNRECOGNISED_DF)
            sighted = step.stored(SIGHTINGS_DF).table().to_pylist()
        slices = {name for name in listed.table().column("slice").to_pylist() if name}
        assert listed.figures == StoredFigures(
            flow="clean",
            slices_listed=2,
            slices_skipped=2,
            last_read_slice=min(slices),
            other_folders=("foreign", "repo:token-0", "repo:token-3"),
            nested_namespaces=(),
            repositories_not_checked=(),
            sealed_objects=0,
            slices_elsewhere=0,
            expired_ranges=0,
            expired_ranges_read=0,
        )
        assert checkpoint.read_listed_slices(scene.store, step.plan.run_id, step.plan.attempt) == slices
        (server_run,) = uncommitted.figures.server_run_ids
        files = uncommitted.figures.files
        assert uncommitted.figures == UncommittedFigures(
            (server_run,), files, pages=3, hooks_seconds=0.0, heads_before=uncommitted.figures.heads_before
        )
        assert [*uncommitted.figures.heads_before[0]] == ["alpha", "main"]
        assert len(files) == 3 and all(f"/{server_run}/" in file for file in files)
        ids = tables.read_run_ids(scene.store, step.plan.run_id, step.plan.attempt, committed.figures.read_sha256)
        heads = committed.figures.heads
        assert heads.keys() == {"alpha", "main"} and ids > set(heads.values())
        assert committed.figures == CommittedFigures(
            commit_source="refs dump",
            commits=5,
            commits_fetched=0,
            metaranges_read=4,
            ranges_read=4,
            entries_promised=20,
            heads=heads,
            branches_before=2,
            read_sha256=committed.figures.read_sha256,
            unnamed_ranges=0,
            compacted_bases=0,
            provisional_ranges=0,
            expired_objects=0,
            expired_bytes=0,
            ranges_from_facts=0,
            addresses_from_facts=0,
            heads_before=({},),
        )
        assert candidates.figures == CandidateFigures(
            kept={"a name that lakeFS never makes": 1, "staged with the content of a committed object": 1},
            paths_asked=9,
            paths_unasked=0,
            missing=0,
            expected=14,
            missing_examples=(),
            lost=0,
            named_again=0,
            unreadable=0,
        )
        assert [row["address"] for row in strange.table().to_pylist()] == ["data/foreign/2"]
        # The previous run has listed it for the first time.
        (uploaded_in_parts,) = sighted
        assert uploaded_in_parts["first_listed_at"] < listed.manifest.span.started_at - HOUR
        assert outcomes.figures == DeletedFigures(swept=False)
        assert [each.count for each in (listed, uncommitted, committed, candidates, outcomes)] == [23, 8, 8, 7, 7]
        digests = {each.name: each.manifest.digest for each in (listed, uncommitted, committed, candidates)}
        assert listed.manifest.inputs == {}
        assert uncommitted.manifest.inputs == {"store_df": digests["store_df"]}
        assert committed.manifest.inputs == {"uncommitted_df": digests["uncommitted_df"]}
        assert outcomes.manifest.inputs == {"candidates": digests.pop("candidates")}
        assert candidates.manifest.inputs == digests
        assert (committed.manifest.span.waited_seconds, report.waited_seconds) == (0, {})
        assert report.success and report.dry_run and reported.warned == []
        assert reported.steps == [
            f"cutoff {step.plan.cutoff:%F %T}Z; listing 2 slices",
            "prepare_uncommited: page 1",
            "prepare_uncommited: page 2",
            "prepare_uncommited: page 3",
            "5 commits, 4 ranges to read, by the refs dump",
            *reported.steps[5:7],
            reported.steps[7],
            "marked, nothing deleted: 0 deleted, 0 failed",
        ]

        assert re.fullmatch(r"an approval before .*Z waits until then, for commits .*", reported.steps[7])

    def test_a_sweep_that_takes_several_passes(self) -> None:
        left, sweep_once = list[int](), sweeping.sweep_once

        def three_at_a_time(
            step: Step[ArrowRows], candidates: StoredFrame[CandidateFigures], remaining: ArrowRows, count: int
        ) -> StoredFrame[DeletedFigures]:
            left.append(count)
            return sweep_once(step, candidates, step.engine.table(step.engine.collect(remaining, 3)), count)

        with reported_by("clean") as (scene, reported), mock.patch.object(sweeping, "sweep_once", three_at_a_time):
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            outcomes = step_of(scene).stored(DELETED_REPORT).table()
        assert left == [7, 4, 1] and len(set(outcomes.column("address").to_pylist())) == 7
        assert [line for line in reported if " left after " in line] == [
            "4 candidates are left after 15 minutes",
            "1 candidate is left after 15 minutes",
        ]

    def test_candidates_are_compared_by_what_was_listed(self) -> None:
        clear, cached = clear_hidden, LocalEngine.cached
        reported, kept = list[tuple[Any, ...]](), list[int]()

        def noted(step: Step[ArrowRows], *more: Any, **named: Any) -> Any:
            reported.append((step.engine.collect(more[3]()), *more[1:3]))
            return clear(step, *more, **named)

        def keeping(engine: LocalEngine, rows: ArrowRows, at_most: int) -> Any:
            kept.append(at_most)
            return cached(engine, rows, at_most)

        with (
            world_of("clean") as scene,
            mock.patch.object(run, "clear_hidden", noted),
            mock.patch.object(LocalEngine, "cached", keeping),
        ):
            assert scene.start(DRY, Faults()) is Ended.WELL
            listed, not_committed = step_of(scene).stored(STORE_DF), step_of(scene).stored(NOT_COMMITTED_DF)
            heads = step_of(scene).stored(COMMITTED_DF).figures.heads
        ((etags, reported_heads, columns),) = reported
        assert (reported_heads, columns, kept[0]) == (heads, STORE_DF.schema, not_committed.count)
        assert etags.column_names == ["address", "size", "etag"]
        assert etags.sort_by("address").equals(listed.table().select(etags.column_names).sort_by("address"))

    def test_what_is_lost_and_what_could_not_be_asked_for(self) -> None:
        gap = CandidateFigures(
            kept={},
            missing=2,
            expected=20,
            missing_examples=("data/missing",),
            lost=3,
            lost_examples=("data/lost",),
            named_again=2,
            named_again_examples=("data/again",),
        )

        @contextmanager
        def cleared(
            step: Step[ArrowRows], candidates: ArrowRows, *more: Any, **named: Any
        ) -> Iterator[Cleared[ArrowRows]]:
            with clear_hidden(step, candidates, *more, **named) as found:
                yield replace(found, kept={Kept.UNCERTAIN.value: 4}, asked=5, unasked=6)

        with (
            reported_by("clean") as (scene, reported),
            mock.patch.object(gap_check, "find_gap", lambda *arguments: gap),
            mock.patch.object(run, "clear_hidden", cleared),
        ):
            assert scene.start(allowing(DRY, hidden_suspect_limit=7), Faults()) is Ended.WELL
            assert (scene.reported.success, scene.reported.is_complete) == (False, True)
            found = step_of(scene).stored(CANDIDATES_DF)
        assert found.figures == CandidateFigures(
            kept={"a name that lakeFS never makes": 1, Kept.UNCERTAIN.value: 4},
            paths_asked=5,
            paths_unasked=6,
            missing=2,
            expected=20,
            missing_examples=("data/missing",),
            lost=3,
            lost_examples=("data/lost",),
            named_again=2,
            named_again_examples=("data/again",),
            unreadable=0,
        )
        lost, again, unasked = reported.warned
        assert again.startswith("2 objects are referenced again by a branch head or by staging, such as data/again.")
        assert lost.startswith("3 objects that earlier runs deleted are referenced by a branch head or by staging")
        assert (
            unasked.startswith("4 objects stay although they may be garbage")
            and "limit (7) did not suffice" in unasked
            and "6 more lookups" in unasked
        )

    def test_what_a_launch_loosened_at_the_mark_and_at_the_sweep(self) -> None:
        def loosened(*arguments: Any) -> OpenRepository:
            return replace(open_repository(*arguments), loosened={"max_candidates": 9})

        with reported_by("clean") as (scene, reported), mock.patch.object(collecting, "open_repository", loosened):
            assert scene.start(SWEEP, Faults()) is Ended.WELL
            assert scene.reported.loosened == {"max_candidates": 9}
        assert reported.warned == ["loosened by its launch: max_candidates=9"] * 2

    def test_the_report_is_stored_before_the_index_of_runs_names_the_run(self) -> None:
        """A reader who finds the run in the index finds its report."""
        order: list[str] = []

        def noted(owner: Any, name: str) -> Any:
            function = getattr(owner, name)

            def called(*about: Any) -> Any:
                order.append(name)
                return function(*about)

            return mock.patch.object(owner, name, called)

        with reported_by("clean") as (scene, _), noted(reports, "write"), noted(earlier_runs, "update_index"):
            assert scene.start(SWEEP, Faults()) is Ended.WELL
        assert order == ["write", "update_index"]

    def test_what_failed_deletions_mean(self) -> None:
        denied = Undeletable("data/x", "AccessDenied", moment(0))
        verdict = Verdict((denied,), (denied,), new=1, success=False)
        with (
            reported_by("clean") as (scene, _),
            mock.patch.object(sweeping, "judge_failures", lambda *arguments: verdict),
        ):
            scene.start(SWEEP, Faults())
            assert (scene.reported.success, scene.reported.counts["undeletable"]) == (False, 1)

    def test_archived_garbage_that_quarantine_cannot_copy(self) -> None:
        """Nothing fails, in the first run or in a later one, and nothing is deleted."""

        def refuse(view: BucketView, source: str, target: str) -> None:
            raise ObjectArchived(f"cannot copy {source!r}: it is in an archive tier")

        with reported_by("clean") as (scene, _), mock.patch.object(BucketView, "copy", refuse):
            before = keys_below(scene.store, "data/")
            assert scene.start(MOVE, Faults()) is Ended.WELL
            found = scene.reported
            assert keys_below(scene.store, "data/") == before
        assert (found.ending, found.success) == (Ending.KEPT_ARCHIVED, True)
        assert found.counts["kept_archived"] == found.counts["candidates"] > 0 == found.counts["failed"]
        assert found.object_bytes["kept_archived"] == found.object_bytes["candidates"]
        (warning,) = [line for line in found.warnings if "archive tier" in line]
        assert warning.startswith(f"{found.counts['candidates']:,} objects of garbage")
        assert any(line.startswith("  archived ") for line in reports.describe(found))

    def test_a_dry_run_foresees_archived_garbage_that_quarantine_cannot_copy(self) -> None:
        facts_of = BucketView._facts

        def archived(view: BucketView, key: str) -> ObjectFacts:
            return replace(facts_of(view, key), storage_class="GLACIER")

        dry = DRY.model_copy(update={"sweep_mode": "quarantine"})
        with reported_by("clean") as (scene, reported), mock.patch.object(BucketView, "_facts", archived):
            assert scene.start(dry, Faults()) is Ended.WELL
            found = scene.reported
        (warning,) = [line for line in found.warnings if "GLACIER" in line]
        assert warning.startswith(f"a sweep would keep {found.counts['candidates']:,} objects of garbage")
        assert warning in reported

    def test_why_a_sweep_would_be_refused(self) -> None:
        with reported_by("clean") as (scene, reported):
            assert scene.start(allowing(DRY, max_candidates=3), Faults(), ASKED) is Ended.WELL
        assert [line for line in reported if line.startswith("a sweep would be refused")] == [
            "a sweep would be refused: guard number of candidates: 7 objects would be deleted, more than 3. Review "
            "the candidates; if they are right, raise collection.max_candidates"
        ]


SLICE_AGES = {"old": 9 * DAY, "older": 12 * DAY, "young": HOUR}


class Folder:
    """A repository in a folder, and single steps of its run."""

    def __init__(self, folder: Path) -> None:
        self.opened = opened_by(opener_in(folder, "repository"))
        self.store = self.opened.store
        self.api = cast(ScriptedApi, self.opened.api)
        self.clock = cast(HandClock, self.opened.clock)
        self.logged: list[str] = []
        self.warned: list[str] = []
        issue = layout.XidGenerator()
        self.slices = {name: issue.descending(NOW - age) for name, age in SLICE_AGES.items()}

    def put(self, *addresses: str) -> None:
        for address in addresses:
            self.store.put(address, b"content")

    def step(self, opened: OpenRepository | None = None, **changes: Any) -> Step[ArrowRows]:
        """A step of a run, with changes to its plan."""
        plan = replace(PLAN, repository=self.opened.facts.id, storage_namespace=self.opened.namespace.uri, **changes)
        return Step(self.logged.append, self.warned.append, opened or self.opened, LocalEngine(), plan, None)

    def built_on(self) -> tuple[Step[ArrowRows], BaseCheckpoint]:
        """A step of a run whose base left a pending object and a committed address."""
        step, found = test_checkpoint.TestFrames().left(self.opened)
        left = replace(found.checkpoint, pending=1, sealed_objects=5)
        counts = {**found.report.counts, "branches": 3}
        reports.write(self.store, replace(found.report, commit_source="refs dump", counts=counts, checkpoint=left))
        changed = replace(step.plan, run_id=past_runs.IDS.descending(past_runs.NOW), flow=Flow.OPTIMIZED)
        own = Step(self.logged.append, self.warned.append, self.opened, LocalEngine(), changed, None)
        return own, BaseCheckpoint(self.store, found.run_id)

    def frame(self, step: Step[ArrowRows], frame: Frame[Any], figures: Any, *rows: dict[str, Any]) -> StoredFrame[Any]:
        """A frame that an earlier step made."""
        table = step.engine.table(pa.Table.from_pylist([*rows], schema=nullable(frame.schema)))
        return step.complete(frame, figures, step.write(frame, table))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def files_of_sizes(store: ObjectStore) -> list[FactFile]:
    return facts.files_of(SIZES, facts.list_files(store, facts.ROOT))


def addresses_of(frame: StoredFrame[Any]) -> list[str]:
    return sorted(frame.table().column("address").to_pylist())


class TestListing:
    def test_what_is_listed_and_what_is_said_of_it(self, folder: Folder) -> None:
        old, older, young = (folder.slices[name] for name in ("old", "older", "young"))
        folder.put(f"data/{old}/a", f"data/{older}/b", f"data/{young}/c", "data/foreign/d", "dummy")
        folder.api.repository_lists = Script(
            (
                RepositoryFacts("repo", "local://repository", "main", False),
                RepositoryFacts("inner", "s3://bucket/repo/inner", "main", False),
            )
        )
        step = folder.step(why_clean="nothing to build on")
        listed = run.list_stored(step)
        assert listed.figures == StoredFigures(
            flow="clean",
            slices_listed=2,
            slices_skipped=1,
            last_read_slice=old,
            other_folders=("foreign",),
            nested_namespaces=("inner",),
            repositories_not_checked=(),
            sealed_objects=0,
            slices_elsewhere=0,
            expired_ranges=0,
            expired_ranges_read=0,
            why_clean="nothing to build on",
        )
        assert addresses_of(listed) == sorted(["data/foreign/d", f"data/{old}/a", f"data/{older}/b"])
        assert step.stored(STORE_DF).manifest == listed.manifest
        slices = checkpoint.read_listed_slices(folder.store, step.plan.run_id, step.plan.attempt)
        assert slices == {old, older}
        assert folder.warned == ["a clean run instead of an optimized one: nothing to build on"]
        assert folder.logged[0] == f"cutoff {step.plan.cutoff:%F %T}Z; listing 2 slices"

    def test_of_an_empty_repository(self, folder: Folder) -> None:
        listed = run.list_stored(folder.step())
        assert (listed.count, listed.figures.slices_listed, listed.figures.last_read_slice) == (0, 0, "")
        assert (listed.figures.base_run, listed.figures.pending_before, listed.figures.why_clean) == (None, None, None)
        assert folder.warned == []

    def test_by_an_inventory(self, folder: Folder) -> None:
        with mock.patch.object(listing, "list_objects", return_value=()):
            listed = run.list_stored(folder.step(inventory="inventory/manifest.json"))
        assert listed.figures.inventory == "inventory/manifest.json"

    def test_on_top_of_another_run(self, folder: Folder) -> None:
        step, before = folder.built_on()
        (sealed,) = before.sealed
        old = folder.slices["old"]
        folder.put(f"data/{old}/a", f"data/{sealed}/b", "data/foreign/d")
        listed = run.list_stored(step)
        assert addresses_of(listed) == sorted([f"data/{old}/a", "data/waits"])
        found = listed.figures
        assert (found.base_run, found.pending_before, found.sealed_objects) == (before.run_id, 1, 5)
        assert (found.flow, found.slices_listed, found.other_folders) == ("optimized", 1, ("foreign",))

    def test_in_shards(self, folder: Folder) -> None:
        step, before = folder.built_on()
        (sealed,) = before.sealed
        old = folder.slices["old"]
        folder.put(
            f"data/{old}/a", f"data/!ab/c/{old}/b", f"data/!ab/c/{sealed}/c", f"data/!de/f/{old}/d", "data/!ab/c/e"
        )
        behind = layout.XidGenerator().descending(layout.as_datetime(0))
        folder.put(f"data/!ab/c/{behind}/late")
        listed = run.list_stored(step)
        assert addresses_of(listed) == sorted(
            [f"data/{old}/a", f"data/!ab/c/{old}/b", f"data/!de/f/{old}/d", "data/waits"]
        )
        assert listed.figures.other_folders == ("!ab", "!de")
        why = "reading all pages of the shards: this store does not promise to list keys in order"
        assert folder.logged[0] == f"cutoff {step.plan.cutoff:%F %T}Z; listing 1 slice and 2 shards"
        assert why not in folder.logged
        with mock.patch.object(listing, "ListsInOrder", type(None)):
            assert addresses_of(run.list_stored(step)) == addresses_of(listed)
        assert why in folder.logged

    def test_of_what_expired(self, folder: Folder) -> None:
        folder.put(f"data/{folder.slices['old']}/a", "data/foreign/d")
        step = folder.step(flow=Flow.COMMITTED)
        expired = step.engine.table(pa.Table.from_pylist([listed_row("data/x")], schema=nullable(STORE_DF.schema)))
        record = RangeRecord("0" * 64, b"a", b"z", 1, 100)
        ranges = range_records([record])
        with (
            mock.patch.object(listing, "find_expired", lambda asked: ranges if asked is step else None),
            mock.patch.object(
                listing, "read_expired", lambda *asked: expired if asked == (step, ranges, None) else None
            ),
        ):
            listed = run.list_stored(step)
        assert addresses_of(listed) == ["data/x"]
        assert (listed.figures.flow, listed.figures.slices_listed, listed.figures.slices_skipped) == ("committed", 0, 0)
        assert listed.figures.other_folders == ("foreign",)


class TestLookingAround:
    def test_is_reported_where_references_are_not_checked(self, folder: Folder) -> None:
        others = [RepositoryFacts(name, f"local://repository-{name}", "main", False) for name in ("b", "a", "named")]
        inside = RepositoryFacts("inner", "s3://bucket/repo/inner", "main", False)
        beside = [replace(each, storage_namespace=f"s3://bucket/{each.id}") for each in others]
        folder.api.repository_lists = Script(
            (*beside, inside, RepositoryFacts("repo", "s3://bucket/repo", "main", False))
        )
        opened = replace(
            folder.opened,
            namespace=Namespace.parse("s3://bucket/repo"),
            settings=CollectionSettings(also_live=["named"]),
        )
        found = run.find_other_repositories(folder.step(opened))
        assert found == OtherRepositories(nested=("inner",), unchecked=("a", "b"))
        listed = run.list_stored(folder.step(opened))
        assert listed.figures.repositories_not_checked == ("a", "b")
        assert folder.logged[0] == (
            "not checked for references into this repository: a, b, on the same bucket; "
            "list them in collection.also_live if they import from it"
        )

    def test_is_reported_where_the_server_refuses(self, folder: Folder) -> None:
        folder.api.repository_lists = Script(AccessDenied("GET /repositories: 403"))
        assert run.find_other_repositories(folder.step()) == OtherRepositories(refusal="GET /repositories: 403")
        assert folder.logged == [
            "other repositories are unknown, so their references are not checked: GET /repositories: 403"
        ]
        listed = run.list_stored(folder.step())
        assert listed.figures.repositories_unknown == "GET /repositories: 403"

    def test_says_nothing_where_there_is_nobody(self, folder: Folder) -> None:
        assert run.find_other_repositories(folder.step()) == OtherRepositories()
        assert folder.logged == []


PREPARED = "_lakefs/retention/gc/uncommitted/run1/uncommitted/"


class TestReadingUncommittedData:
    def test_what_is_stored_and_said_of_it(self, folder: Folder) -> None:
        step = folder.step()
        listed = folder.frame(step, STORE_DF, LISTED_FIGURES)
        put_uncommitted(folder.store, f"{PREPARED}a", ["data/x", "data/y", "data/x"])
        put_uncommitted(folder.store, f"{PREPARED}b", ["data/y"])
        place = f"local:///var/lakefs/repository/{PREPARED}"
        folder.api.pages = Script(page(place, "token"), page(place))
        folder.clock.sleep(60)
        found = run.read_uncommitted(step, listed)
        files = (f"{PREPARED}a", f"{PREPARED}b")
        assert found.figures == UncommittedFigures(
            ("run1",), files, pages=2, hooks_seconds=0.0, heads_before=({"main": "c" * 64},)
        )
        assert addresses_of(found) == ["data/x", "data/y"]
        assert found.manifest.inputs == {"store_df": listed.manifest.digest}
        assert found.manifest.span.started_at == NOW + timedelta(minutes=1)
        assert step.stored(UNCOMMITTED_DF).manifest == found.manifest
        assert "prepare_uncommited: page 1" in folder.logged and "prepare_uncommited: page 2" in folder.logged


class TestReadingCommits:
    def commit(self, folder: Folder, *addresses: str) -> str:
        """A branch whose head holds these addresses; returns the id of its metarange."""
        held = put_commit_objects(folder.store, {address: Staged(address) for address in addresses})
        head = Commit("c" * 64, held, (), 7)
        folder.api.dumps = Script(put_dump(folder.store, [head], [Branch("main", head.id)]))
        return held

    def test_what_is_stored_and_said_of_it(self, folder: Folder) -> None:
        step = folder.step(sweep=True)
        uncommitted = folder.frame(step, UNCOMMITTED_DF, UNCOMMITTED_FIGURES)
        held = self.commit(folder, "data/x", "data/y")
        put_commit_objects(folder.store, {"z": Staged("data/nobodys")})
        found = run.read_committed(step, uncommitted)
        ids = tables.read_run_ids(folder.store, step.plan.run_id, step.plan.attempt, found.figures.read_sha256)
        # Five tables of the dump, and a metarange with its range, twice.
        assert held in ids and len(ids) == 9
        assert addresses_of(found) == ["data/nobodys", "data/x", "data/y"]
        assert found.figures == CommittedFigures(
            commit_source="refs dump",
            commits=1,
            commits_fetched=0,
            metaranges_read=1,
            ranges_read=2,
            entries_promised=2,
            heads={"main": held},
            branches_before=None,
            read_sha256=found.figures.read_sha256,
            unnamed_ranges=1,
            compacted_bases=0,
            provisional_ranges=0,
            expired_objects=0,
            expired_bytes=0,
            ranges_from_facts=0,
            addresses_from_facts=0,
        )
        assert found.manifest.inputs == {"uncommitted_df": uncommitted.manifest.digest}
        span, wait = found.manifest.span, folder.opened.settings.wait_before_dump_seconds
        assert (span.started_at, span.waited_seconds) == (step.started_at, wait)
        assert span.ended_at == uncommitted.manifest.span.ended_at + timedelta(seconds=wait)
        assert step.stored(COMMITTED_DF).manifest == found.manifest
        assert [line for line in folder.logged if "ranges" in line] == [
            "1 commit, 2 ranges to read, by the refs dump",
            "1 of these ranges belong to no commit: their objects count as live",
        ]
        (file,) = files_of_sizes(folder.store)
        assert (file.values, file.key.startswith(SIZES.folder(step.plan.run_id, step.plan.attempt))) == (2, True)

    def read(self, folder: Folder, **learnt: Any) -> CommittedData:
        """Runs the third step with findings other than the server's answers."""
        asked = current.ask_committed

        def ask(*args: Any, **more: Any) -> Committed:
            found = asked(*args, **more)
            own = replace(found.own, started_at=learnt.get("started_at", found.own.started_at))
            return replace(found, own=own, definition=learnt.get("definition"))

        step = folder.step()
        uncommitted = folder.frame(step, UNCOMMITTED_DF, UNCOMMITTED_FIGURES)
        self.commit(folder, "data/x")
        with mock.patch.object(run, "ask_committed", ask):
            return run.read_committed(step, uncommitted)

    @pytest.mark.parametrize("hours", [-1, 0, 1])
    def test_what_was_asked_for_too_early_can_be_reported_by_the_frame(self, folder: Folder, hours: int) -> None:
        found = self.read(folder, started_at=NOW + hours * HOUR)
        assert found.manifest.span.started_at == min(NOW, NOW + hours * HOUR)

    def test_who_held_last_what_expired_is_noted_where_the_store_allows_it(self, folder: Folder) -> None:
        rows = [{"metarange_id": "m", "commit_id": "c", "branch": None, "rule": "7d"}]
        holders = pa.Table.from_pylist(rows, schema=active_commits.LAST_HOLDERS)
        definition = SimpleNamespace(
            counts={}, rules_digest="rules", warnings=(), guards=(), differences=(), last_holders=holders
        )
        span = self.read(folder, definition=definition).manifest.span
        assert active_commits.read_last_holders(folder.store, span.run_id, span.attempt) == holders

        with mock.patch.object(
            active_commits, "write_last_holders", mock.Mock(side_effect=StorageError("AccessDenied"))
        ):
            self.read(folder, definition=definition)
        assert folder.warned == ["not recorded: last commits of the garbage: AccessDenied"]

    def test_on_top_of_another_run(self, folder: Folder) -> None:
        step, before = folder.built_on()
        writer = FactWriter(SIZES, folder.store, SIZES.folder(before.run_id, before.checkpoint.attempt))
        facts_of_ranges.record_sizes(writer, "b" * 64, pa.array([7], pa.int64()))
        writer.put()
        uncommitted = folder.frame(step, UNCOMMITTED_DF, UNCOMMITTED_FIGURES)
        held = self.commit(folder, "data/x")
        found = run.read_committed(step, uncommitted)
        assert addresses_of(found) == ["data/committed", "data/x"]
        ids = tables.read_run_ids(folder.store, step.plan.run_id, step.plan.attempt)
        assert ids > before.read_ids and held in ids
        assert found.figures.branches_before == 3
        (file,) = files_of_sizes(folder.store)
        recorded = facts_of_ranges.range_ids_of(facts.read(SIZES, folder.store, file).schema.metadata)
        assert "b" * 64 in recorded and len(recorded) == 2
        assert not any("no commit names" in line for line in folder.logged)
