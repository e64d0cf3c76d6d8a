"""What a run refuses, and in which order it asks, without Spark."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.assets.carrying import inherited
from lakefs_gc_assets.assets.deleted_report import require_all_decided, swept
from lakefs_gc_assets.assets.live import Uncommitted
from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import borrowed, uncommitted
from lakefs_gc_assets.collection import report as reports
from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.collection.tables import LIVE
from lakefs_gc_assets.collection.uncommitted import Prepared
from lakefs_gc_assets.errors import CollectionError, GuardTripped, OrderViolation
from lakefs_gc_assets.frames.manifest import FrameFile, Manifest
from lakefs_gc_assets.frames.spark import StoredFrame
from lakefs_gc_assets_tests.collection.past_runs import DAY, NOW, began, ended, opened

__all__ = ["opened"]
LISTED = {"flow": "clean", "settled_objects": 0, "nested_namespaces": []}
COMMITTED = {"entries_promised": 7, "heads": {}, "branches_before": None, "commit_source": "metadata folder"}
CANDIDATES = {"kept": {}, "missing": 0, "expected": 0, "missing_examples": []}


def frame(name: str, rows: int, **figures: Any) -> StoredFrame:
    """A stored frame that is never read."""
    span = Span(name, "run", "attempt", NOW, NOW)
    files = (FrameFile(name, "legacy", rows, 1, "0" * 64),)
    return StoredFrame(Manifest(span, files, {}, figures), cast(Any, None), 1)


def step_of(repository: OpenRepository, **plan: str) -> Step:
    """A step without Spark: whatever asks for it fails."""
    frames = {
        "store_df": frame("store_df", 100, **LISTED),
        "uncommitted_df": frame("uncommitted_df", 0),
        "committed_df": frame("committed_df", 0, **COMMITTED),
    }
    run = SimpleNamespace(repository=repository, plan=SimpleNamespace(**plan), stored=frames.__getitem__)
    return cast(Step, run)


def test_an_empty_live_set_is_not_swept_even_where_there_are_candidates(opened: OpenRepository) -> None:
    with pytest.raises(GuardTripped, match="empty live set"):
        swept(step_of(opened, run_id="run"), frame("candidates", 1, **CANDIDATES))


def test_outcomes_that_were_lost_end_the_run() -> None:
    require_all_decided(frame("deleted_report", 3), frame("candidates", 3))
    with pytest.raises(CollectionError, match="1 of 3 candidates"):
        require_all_decided(frame("deleted_report", 2), frame("candidates", 3))


def test_a_run_that_was_made_again_is_not_built_on_half_way(opened: OpenRepository) -> None:
    before = began(opened, DAY)
    left = ended(opened, before).carry
    run = step_of(opened, predecessor=before.run_id, predecessor_attempt=before.attempt)
    found = inherited(run)
    assert found is not None and found.carry == left
    again = began(opened, DAY, run_id=before.run_id, attempt="another")
    ended(opened, again)
    assert reports.read(opened.store, before.run_id) is not None
    with pytest.raises(OrderViolation, match="was made again"):
        inherited(run)


def test_commits_are_read_after_the_last_question_about_staged_objects(
    opened: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other repositories are asked for what they have staged of this one's, which may take long."""
    table = SimpleNamespace(schema=None)
    monkeypatch.setattr(uncommitted, "prepare_checked", lambda *given, **_: Prepared(NOW, NOW, ("run",), (), 1))

    def asked(*given: object) -> pa.Table:
        opened.clock.sleep(600)
        return LIVE.empty_table()

    monkeypatch.setattr(borrowed, "staged_elsewhere", asked)
    monkeypatch.setattr("pyspark.sql.DataFrame.unionAll", lambda first, second: first)
    run = SimpleNamespace(
        repository=replace(opened, others=(opened,)),
        plan=SimpleNamespace(flow=Flow.CLEAN, cutoff=NOW, slice_window="month"),
        references=lambda repository: SimpleNamespace(uncommitted=lambda files: table),
        spark=SimpleNamespace(createDataFrame=lambda *given: table),
    )
    found = Uncommitted.prepare(cast(Step, run))
    assert (found.started_at, found.ended_at) == (NOW, NOW + timedelta(minutes=10))
