from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.frames import CHECKPOINT_COMMITTED_DF, PENDING_DF, Frame, NoFigures
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint, open_base_checkpoint
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.past_runs import DAY, SEALED, began, ended, opened
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

__all__ = ["opened"]
LOST = "the report of the base run is gone"


def step_of(repository: OpenRepository, base_run: str | None, attempt: str | None) -> Step[Any]:
    """A step without an engine: any use of the engine fails."""
    plan = SimpleNamespace(base_run=base_run, base_run_attempt=attempt)
    return cast(Step[Any], SimpleNamespace(repository=repository, plan=plan))


def test_a_run_that_was_made_again_is_not_built_on_half_way(opened: OpenRepository) -> None:
    before = began(opened, DAY)
    left = ended(opened, before).checkpoint
    step = step_of(opened, before.run_id, before.attempt)
    found = open_base_checkpoint(step)
    assert found is not None and found.checkpoint == left
    again = began(opened, DAY, run_id=before.run_id, attempt="another")
    ended(opened, again)
    assert reports.read(opened.store, before.run_id) is not None
    with pytest.raises(OrderViolation, match="was repeated after this run began"):
        open_base_checkpoint(step)


def test_a_clean_run_builds_on_nothing(opened: OpenRepository) -> None:
    assert open_base_checkpoint(step_of(opened, None, None)) is None


def test_what_the_base_run_concluded_is_read_where_it_left_it(opened: OpenRepository) -> None:
    before = began(opened, DAY)
    report = ended(opened, before)
    found = BaseCheckpoint(opened.store, before.run_id)
    assert (found.run_id, found.report, found.checkpoint) == (before.run_id, report, report.checkpoint)
    assert found.sealed == {SEALED} and found.read_ids == {"a" * 64}


@pytest.mark.parametrize("left", ["no report", "a report without a checkpoint"])
def test_a_base_run_that_left_nothing_is_named(opened: OpenRepository, left: str) -> None:
    before = began(opened, DAY)
    ended(opened, before, checkpoint=None)
    if left == "no report":
        opened.store.delete([run_folder.report(before.run_id)])
    with pytest.raises(CorruptFile) as refused:
        BaseCheckpoint(opened.store, before.run_id)
    assert (refused.value.file, refused.value.check, refused.value.detail) == (before.run_id, "report", LOST)


class TestFrames:
    """Frames of a base run, as a later run reads them."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> OpenRepository:
        """A repository whose frames are read from a folder."""
        (tmp_path / "repo").mkdir()
        return opened_by(StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://repo"))

    def put(self, repository: OpenRepository, plan: Plan, frame: Frame[NoFigures], row: dict[str, Any]) -> str:
        """Stores a frame with this row; returns the digest of its manifest."""
        step = made_step(LocalEngine(), repository, plan)
        rows = step.engine.table(pa.Table.from_pylist([row], schema=nullable(frame.schema)))
        return step.complete(frame, NoFigures(), step.write(frame, rows)).manifest.digest

    def left(self, repository: OpenRepository) -> tuple[Step[ArrowRows], BaseCheckpoint]:
        """A step of a later run, and its base: one pending object, and one committed address."""
        before = began(repository, DAY)
        made = ended(repository, before)
        assert made.checkpoint is not None
        left = replace(
            made.checkpoint,
            pending_digest=self.put(repository, before, PENDING_DF, listed("data/waits")),
            committed_digest=self.put(repository, before, CHECKPOINT_COMMITTED_DF, live("data/committed")),
        )
        reports.write(repository.store, replace(made, checkpoint=left))
        plan = replace(before, run_id="later", base_run=before.run_id, base_run_attempt=before.attempt)
        step = made_step(LocalEngine(), repository, plan)
        found = open_base_checkpoint(step)
        assert found is not None
        return step, found

    def test_are_those_of_the_base_run(self, stored: OpenRepository) -> None:
        step, found = self.left(stored)
        pending, committed = found.pending_objects(step), found.committed(step)
        assert committed is not None
        assert step.engine.collect(pending).to_pylist() == [listed("data/waits") | {"slice_window": "other"}]
        assert step.engine.collect(committed).to_pylist() == [live("data/committed") | {"slice_window": "other"}]

    @pytest.mark.parametrize("frame", [PENDING_DF, CHECKPOINT_COMMITTED_DF], ids=lambda frame: frame.name)
    def test_that_were_made_again_are_named(self, stored: OpenRepository, frame: Frame[NoFigures]) -> None:
        step, found = self.left(stored)
        row = listed("data/another") if frame is PENDING_DF else live("data/another")
        self.put(stored, replace(step.plan, run_id=found.run_id), frame, row)
        read = found.pending_objects if frame is PENDING_DF else found.committed
        with pytest.raises(CorruptFile) as reported:
            read(step)
        assert (reported.value.file, reported.value.check) == (step.stored_of(found.run_id, frame).uri, "digest")
        assert reported.value.detail == f"{frame.name} differs from the frame in the report of run {found.run_id}"
