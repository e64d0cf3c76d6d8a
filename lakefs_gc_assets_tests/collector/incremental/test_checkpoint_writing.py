from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    CHECKPOINT_COMMITTED_DF,
    COMMITTED_DF,
    DELETED_REPORT,
    LISTED,
    LIVE,
    NOT_COMMITTED_DF,
    PENDING_DF,
    STORE_DF,
    CandidateFigures,
    DeletedFigures,
    F,
    Frame,
    NoFigures,
)
from lakefs_gc_assets.collector.frame.slices import select_sealed, select_unsealed
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.incremental.checkpoint import (
    contradiction,
    count_sealed,
    find_sealed,
    reason_for_none,
    select_pending,
    write_checkpoint,
)
from lakefs_gc_assets.collector.incremental.gap_check import count_late_arrivals
from lakefs_gc_assets.collector.records import across_runs, run_folder, tables
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.made_frames import (
    CANDIDATE_FIGURES,
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    made_step,
    opened_by,
    opener_in,
)
from lakefs_gc_assets_tests.collector.past_runs import DAY, SEALED, began, ended
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

ENGINE = LocalEngine()
NOW = datetime(2026, 11, 20, tzinfo=UTC)
IDS = layout.XidGenerator(b"abcde", 7)
SLICES = [IDS.descending(NOW - timedelta(days=days)) for days in (1, 40, 80)]
SHARDED = [f"!ab/c/{SLICES[0]}", f"!-_/9/{SLICES[0]}", f"!ab/c/{SLICES[1]}"]
NO_SLICES = ["old", SLICES[0] + "x", "!ab/c", f"!ab/{SLICES[0]}", f"!ab/cd/{SLICES[0]}", f"!abc/d/{SLICES[0]}"]
NAMES = [f"data/{folder}/{name}" for folder in (*SLICES, *SHARDED, *NO_SLICES) for name in ("a", "b", "c/d")]
ADDRESSES = st.sets(st.sampled_from([*NAMES, "root", "data/direct", f"x/data/{SLICES[0]}/a"]))
SETTLED = st.sets(st.sampled_from(SLICES))


def frame(rows: list[dict[str, Any]], schema: pa.Schema) -> ArrowRows:
    return ENGINE.table(pa.Table.from_pylist(rows, schema=schema))


def addresses_of(rows: ArrowRows) -> Counter[str]:
    return Counter(ENGINE.collect(rows).column("address").to_pylist())


def folder_of(address: str) -> str | None:
    """The slice of an address, parsed without a pattern."""
    parts = address.split("/")
    at = 3 if "/".join(parts[1:4]) in SHARDED else 1
    return parts[at] if parts[0] == "data" and len(parts) > at + 1 and parts[at] in SLICES else None


@given(ADDRESSES, SETTLED)
def test_rows_are_of_sealed_slices_or_of_others(addresses: set[str], sealed: set[str]) -> None:
    rows = frame([live(address) for address in sorted(addresses)], LIVE)

    inside, outside = (of(ENGINE, rows, sealed) for of in (select_sealed, select_unsealed))

    there = {address for address in addresses if folder_of(address) is None or folder_of(address) in sealed}
    assert addresses_of(inside) == Counter(there)
    assert addresses_of(outside) == Counter(addresses - there)
    assert inside.schema.names == outside.schema.names == LIVE.names


@given(ADDRESSES, SETTLED, ADDRESSES)
def test_pending_is_what_is_sealed_unheld_and_not_deleted(
    not_committed: set[str], sealed: set[str], deleted: set[str]
) -> None:
    found = select_pending(
        ENGINE,
        frame([listed(address) for address in sorted(not_committed)], LISTED),
        sealed,
        frame([live(address) for address in sorted(deleted)], LIVE),
    )

    there = {address for address in not_committed if folder_of(address) is None or folder_of(address) in sealed}
    assert addresses_of(found) == Counter(there - deleted)
    assert found.schema.names == LISTED.names


@given(ADDRESSES, ADDRESSES, ADDRESSES, ADDRESSES)
def test_what_is_pending_is_counted_against_what_there_was(
    there: set[str], waiting: set[str], committed: set[str], deleted: set[str]
) -> None:
    not_committed = there - committed
    rows = [frame([live(each) for each in sorted(names)], LIVE) for names in (there, not_committed, waiting, deleted)]

    held, lost = count_sealed(ENGINE, rows[0], rows[1], rows[2], rows[3], 9)

    assert lost == len(not_committed - waiting - deleted)
    assert held == len(there & committed)


@pytest.mark.parametrize(
    ("both", "lost", "said"),
    [
        (0, 0, None),
        (1, 0, "1 object would be pending although commits hold them"),
        (0, 2, "2 listed objects would be neither pending nor committed nor deleted"),
    ],
)
def test_what_would_make_the_next_run_inexact_is_said(both: int, lost: int, said: str | None) -> None:
    assert contradiction(both, lost) == said


class Noting(LocalEngine):
    """Records the stated numbers of rows when it compares."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, list[int | None]] = {"among_exactly": [], "without_exactly": [], "count_by_sets": []}

    def among_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        self.counts["among_exactly"].append(count)
        return super().among_exactly(rows, addresses, count)

    def without_exactly(self, rows: ArrowRows, addresses: ArrowRows, count: int | None = None) -> ArrowRows:
        self.counts["without_exactly"].append(count)
        return super().without_exactly(rows, addresses, count)

    def count_by_sets(self, *frames: ArrowRows, count: int) -> dict[int, int]:
        self.counts["count_by_sets"].append(count)
        return super().count_by_sets(*frames, count=count)


OLD, NEW = IDS.descending(PLAN.cutoff - timedelta(hours=3)), IDS.descending(PLAN.cutoff - timedelta(hours=1))
SWEEP = replace(PLAN, sweep=True)
WAITING = sorted([f"data/{OLD}/failed", f"data/{OLD}/{IDS.ascending(PLAN.cutoff - timedelta(hours=3))}", "data/old"])


@pytest.fixture
def repository(tmp_path: Path) -> OpenRepository:
    """A repository in a folder."""
    return opened_by(opener_in(tmp_path))


def put(step: Step[ArrowRows], frame: Frame[F], rows: pa.Table, figures: F) -> StoredFrame[F]:
    """Stores a frame."""
    table = rows.cast(nullable(frame.schema))
    return step.complete(frame, figures, step.write(frame, step.engine.table(table)))


class TestLeave:
    """A sweep has listed a slice that is now sealed, one that is not, and an object outside slices."""

    LISTED = (*WAITING, *(f"data/{OLD}/{name}" for name in ("held", "gone", "moved")), f"data/{NEW}/young")
    HELD = (f"data/{OLD}/held", f"data/{NEW}/held")
    OUTCOMES = (("gone", Outcome.ACCEPTED), ("moved", Outcome.QUARANTINED), ("failed", Outcome.FAILED))

    def swept(
        self,
        repository: OpenRepository,
        plan: Plan = SWEEP,
        gone: Sequence[tuple[str, Outcome]] = OUTCOMES,
        window: str = "2026-11",
        **figures: Any,
    ) -> tuple[Step[ArrowRows], StoredFrame[DeletedFigures]]:
        """The last step of a run, with outcomes of its candidates."""
        step = made_step(Noting(), repository, plan)
        rows = [listed(address, slice_window=window) for address in self.LISTED]
        reported = replace(LISTED_FIGURES, sealed_objects=5, other_folders=("old",), **figures)
        put(step, STORE_DF, pa.Table.from_pylist(rows, LISTED), reported)
        not_committed = [row for row in rows if row["address"] not in self.HELD]
        put(step, NOT_COMMITTED_DF, pa.Table.from_pylist(not_committed, LISTED), NoFigures())
        read = tables.write_run_ids(repository.store, plan.run_id, plan.attempt, ["a" * 64, "b" * 64])
        held = pa.Table.from_pylist([live(address) for address in self.HELD], LIVE)
        put(step, COMMITTED_DF, held, replace(COMMITTED_FIGURES, read_sha256=read))
        checkpoint.write_listed_slices(repository.store, plan.run_id, plan.attempt, [OLD, NEW])
        candidates = pa.Table.from_pylist([live(f"data/{OLD}/{name}") | {"size": 10} for name, _ in gone])
        outcomes = receipts.table(candidates, [outcome for _, outcome in gone], [None] * len(gone), NOW, plan.attempt)
        return step, put(step, DELETED_REPORT, outcomes, DeletedFigures(swept=plan.sweep))

    def test_what_a_sweep_leaves(self, repository: OpenRepository) -> None:
        step, outcomes = self.swept(repository)
        left = write_checkpoint(step, outcomes)
        pending, committed = step.stored(PENDING_DF), step.stored(CHECKPOINT_COMMITTED_DF)
        assert isinstance(left, Checkpoint)
        assert left == Checkpoint(
            attempt=SWEEP.attempt,
            sealed=1,
            sealed_objects=5 + 1,
            sealed_sha256=left.sealed_sha256,
            read=2,
            read_sha256=step.stored(COMMITTED_DF).figures.read_sha256,
            pending=3,
            pending_digest=pending.manifest.digest,
            committed=1,
            committed_digest=committed.manifest.digest,
            pending_windows=("2026-11", "legacy"),
            other_folders=("old",),
        )
        assert checkpoint.read_sealed(repository.store, SWEEP.run_id, left) == {OLD}
        assert checkpoint.read_ids(repository.store, SWEEP.run_id, left) == {"a" * 64, "b" * 64}
        assert sorted(pending.table().column("address").to_pylist()) == WAITING
        assert committed.table().column("address").to_pylist() == [f"data/{NEW}/held"]
        assert isinstance(step.engine, Noting)
        assert step.engine.counts == {
            "among_exactly": [2 + 3],
            "without_exactly": [6 + 3],
            "count_by_sets": [6 + 3 + 3],
        }

    def test_frames_that_are_left_began_when_they_were_made(self, repository: OpenRepository) -> None:
        step, outcomes = self.swept(repository)
        repository.clock.sleep(60)
        write_checkpoint(step, outcomes)
        for frame in (PENDING_DF, CHECKPOINT_COMMITTED_DF):
            span = step.stored(frame).manifest.span
            assert span.started_at == span.ended_at == step.started_at + timedelta(seconds=60)

    def test_slices_that_were_sealed_before_stay_sealed(self, repository: OpenRepository) -> None:
        before = began(repository, 3 * DAY)
        ended(repository, before)
        plan = replace(SWEEP, flow=Flow.OPTIMIZED, base_run=before.run_id, base_run_attempt=before.attempt)
        step, _ = self.swept(repository, plan)
        assert find_sealed(step) == {SEALED, OLD}
        assert find_sealed(replace(step, plan=SWEEP)) == {OLD}
        late = timedelta(hours=3)
        assert find_sealed(replace(step, plan=replace(SWEEP, cutoff=SWEEP.cutoff + late))) == {OLD, NEW}
        assert find_sealed(replace(step, plan=replace(SWEEP, clock_skew_seconds=3 * 3600.0))) == set()

    def test_a_contradiction_leaves_nothing(self, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> None:
        step, outcomes = self.swept(repository)
        monkeypatch.setattr(checkpoint, "NOT_COMMITTED_DF", STORE_DF)
        assert write_checkpoint(step, outcomes) == "1 object would be pending although commits hold them"

    @pytest.mark.parametrize(
        ("plan", "window", "reason"),
        [
            (SWEEP, "2026-11", None),
            (
                replace(SWEEP, flow=Flow.UNIFIED),
                "2026-11",
                "it recorded no live ranges: its commits came from other sources than this repository's refs dump, "
                "or an earlier version of the collector read them",
            ),
            (PLAN, "2026-11", "it was a dry run"),
            (SWEEP, "2026-09", "it was limited to the windows legacy, 2026-10, 2026-11"),
        ],
    )
    def test_why_nothing_is_left(self, repository: OpenRepository, plan: Plan, window: str, reason: str | None) -> None:
        step, outcomes = self.swept(repository, plan, window=window)
        assert reason_for_none(step, outcomes) == reason
        left = write_checkpoint(step, outcomes)
        assert left == reason if reason else isinstance(left, Checkpoint)

    def test_nothing_is_left_where_an_earlier_version_found_the_candidates(self, repository: OpenRepository) -> None:
        step, outcomes = self.swept(repository)
        not_committed = step.stored(NOT_COMMITTED_DF)
        earlier = replace(step, plan=replace(SWEEP, attempt="another"))
        earlier.complete(NOT_COMMITTED_DF, NoFigures(), not_committed.manifest.files)
        resumed = replace(step)  # A new process knows only what is stored.
        assert reason_for_none(resumed, outcomes) == "its candidates were found by an earlier version of the collector"
        repository.store.delete([run_folder.manifest(SWEEP.run_id, NOT_COMMITTED_DF.name)])
        resumed = replace(step)
        assert write_checkpoint(resumed, outcomes) == "its candidates were found by an earlier version of the collector"

    @pytest.mark.parametrize("shards", [(), ("!ab", "!cd")])
    def test_slices_in_shards_are_sealed_by_what_was_listed_of_them(
        self, repository: OpenRepository, shards: tuple[str, ...]
    ) -> None:
        step, _ = self.swept(repository)
        older, newer = (IDS.descending(PLAN.cutoff - timedelta(hours=hours)) for hours in (5, 1))
        names = [f"!ab/c/{older}/x", f"!cd/e/{older}/y", f"!ab/c/{newer}/z", f"!ab/{newer}/odd", "!ab/c/odd"]
        figures = replace(step.stored(STORE_DF).figures, other_folders=("old", *shards))
        put(step, STORE_DF, pa.Table.from_pylist([listed(f"data/{name}") for name in names], LISTED), figures)
        assert find_sealed(step) == ({OLD, older} if shards else {OLD})


OLDER, NEWER = (
    IDS.descending(layout.as_datetime(layout.created_at(SEALED)) + timedelta(hours=hours)) for hours in (-2, 2)
)


class TestLateArrivals:
    """An earlier run has left a sealed slice with one pending object."""

    CANDIDATES = (f"data/{SEALED}/waits", f"data/{SEALED}/late", "data/late", f"data/{NEWER}/young")

    def later(
        self,
        repository: OpenRepository,
        names: Sequence[str] = CANDIDATES,
        flow: Flow = Flow.CLEAN,
        slices: Sequence[str] = (),
    ) -> tuple[Step[ArrowRows], StoredFrame[CandidateFigures]]:
        """A later run with candidates."""
        before = began(repository, 3 * DAY)
        made = ended(repository, before, checkpoint=None)
        assert made.checkpoint is None
        report = ended(repository, before)
        assert report.checkpoint is not None
        first = made_step(Noting(), repository, before)
        rows = pa.Table.from_pylist([listed(f"data/{SEALED}/waits")], LISTED)
        waiting = put(first, PENDING_DF, rows, NoFigures())
        left = replace(report.checkpoint, pending=1, pending_digest=waiting.manifest.digest)
        reports.write(repository.store, replace(report, checkpoint=left))
        step = made_step(Noting(), repository, replace(began(repository, DAY), flow=flow))
        found = pa.Table.from_pylist([listed(address) for address in names], CANDIDATES_DF.schema)
        checkpoint.write_listed_slices(repository.store, step.plan.run_id, step.plan.attempt, {SEALED, NEWER, *slices})
        return step, put(step, CANDIDATES_DF, found, CANDIDATE_FIGURES)

    def test_are_in_sealed_slices_and_did_not_wait(self, repository: OpenRepository) -> None:
        assert count_late_arrivals(*self.later(repository)) == 2

    def test_are_in_shards_behind_the_newest_sealed_slice(self, repository: OpenRepository) -> None:
        names = [f"data/!ab/c/{name}/x" for name in (OLDER, SEALED, NEWER)]
        assert count_late_arrivals(*self.later(repository, names)) == 2
        assert count_late_arrivals(*self.later(repository, [*names, f"data/{OLDER}/x"], slices=[OLDER])) == 1

    def test_are_not_reported_by_an_optimized_run(self, repository: OpenRepository) -> None:
        assert count_late_arrivals(*self.later(repository, flow=Flow.OPTIMIZED)) == 0

    def test_there_are_none_without_candidates(self, repository: OpenRepository) -> None:
        assert count_late_arrivals(*self.later(repository, names=())) == 0

    def test_there_are_none_where_no_run_can_be_compared_with(self, repository: OpenRepository) -> None:
        step, candidates = self.later(repository)
        restored = step.plan.run_id
        across_runs.write_restoration(repository.store, restored, NOW)
        assert count_late_arrivals(step, candidates) == 0
