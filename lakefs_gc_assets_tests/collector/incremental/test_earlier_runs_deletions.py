"""Deletions by earlier runs, from their reports and receipts."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import DELETED_REPORT, DeletedFigures
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before, deleted_since
from lakefs_gc_assets.collector.records import across_runs, run_folder
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.incremental.test_earlier_runs import no_warning
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.past_runs import HOUR, NOW, began, ended


@pytest.fixture
def opened(tmp_path: Path) -> OpenRepository:
    (tmp_path / "repo").mkdir()
    return opened_by(StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://repo"))


def deleted(opened: OpenRepository, since: timedelta | None = None) -> list[str]:
    """Deletions known to a run that begins now."""
    step = made_step(LocalEngine(2), opened, began(opened, timedelta()))
    found = deleted_before(step, None if since is None else NOW - since)
    return sorted(step.engine.collect(found).column("address").to_pylist())


def rows(outcome: Outcome, *addresses: str, ago: timedelta = HOUR) -> pa.Table:
    count = len(addresses)
    return receipts.table(candidates(*addresses), [outcome] * count, [None] * count, NOW - ago, "attempt")


def swept(opened: OpenRepository, ago: timedelta, *batches: pa.Table, note: bool = True, figure: bool = True) -> Plan:
    """A run that deleted batches, with its receipts and its report.

    Args:
        note: True if the index of runs names it.
        figure: True if its frame reports deletions.
    """
    plan = began(opened, ago)
    for number, batch in enumerate(batches):
        receipts.write(opened.store, plan.run_id, f"batch{number}", batch)
    step: Step[ArrowRows] = made_step(LocalEngine(2), opened, plan)
    written = step.write(DELETED_REPORT, step.engine.table(pa.concat_tables(batches)))
    step.complete(DELETED_REPORT, DeletedFigures(figure), written)
    report = ended(opened, plan, counts={"deleted": 1})
    if note:
        earlier_runs.note(opened.store, plan, report, no_warning)
    return plan


def damage_report(opened: OpenRepository, plan: Plan) -> None:
    """Damages the file of the frame with the run's deletions."""
    folder = run_folder.frame(plan.run_id, DELETED_REPORT.name)
    (file,) = (each.key for each in opened.store.list_level(f"{folder}slice_window=legacy/").objects)
    opened.store.put(file, b"something else")


def forget_receipts(opened: OpenRepository, plan: Plan) -> None:
    opened.store.delete(receipts.keys(opened.store, plan.run_id))


BATCHES = (rows(Outcome.ACCEPTED, "data/a"), rows(Outcome.QUARANTINED, "data/b"), rows(Outcome.FAILED, "data/c"))


class TestOfARunThatCameToItsEnd:
    def test_its_report_tells_and_its_receipts_are_not_read(self, opened: OpenRepository) -> None:
        plan = swept(opened, 2 * HOUR, *BATCHES)
        assert deleted(opened) == ["data/a", "data/b"]
        forget_receipts(opened, plan)
        assert deleted(opened) == ["data/a", "data/b"]

    def test_what_was_restored_since_is_left_out(self, opened: OpenRepository) -> None:
        plan = swept(opened, 2 * HOUR, *BATCHES)
        receipts.write(opened.store, plan.run_id, f"{receipts.OF_RESTORE}1", rows(Outcome.RESTORED, "data/b"))
        receipts.write(opened.store, plan.run_id, f"{receipts.OF_PURGE}1", rows(Outcome.PURGED, "data/a"))
        assert deleted(opened) == ["data/a", "data/b"]
        across_runs.write_restoration(opened.store, plan.run_id, NOW)
        assert deleted(opened) == ["data/a"]

    def test_what_was_deleted_earlier_is_left_out_where_a_moment_is_given(self, opened: OpenRepository) -> None:
        swept(opened, 3 * HOUR, rows(Outcome.ACCEPTED, "data/a", ago=3 * HOUR), rows(Outcome.ACCEPTED, "data/b"))
        assert deleted(opened, since=2 * HOUR) == ["data/b"]

    @pytest.mark.parametrize("damage", ["removed", "damaged", "of a dry run"])
    def test_its_receipts_tell_where_its_report_does_not(self, opened: OpenRepository, damage: str) -> None:
        plan = swept(opened, 2 * HOUR, *BATCHES, figure=damage != "of a dry run")
        manifest = run_folder.manifest(plan.run_id, DELETED_REPORT.name)
        if damage == "removed":
            opened.store.delete([manifest])
        elif damage == "damaged":
            opened.store.put(manifest, b"{}")
        assert deleted(opened) == ["data/a", "data/b"]

    def test_its_receipts_replace_a_damaged_file_of_its_report(self, opened: OpenRepository) -> None:
        plan = swept(opened, 2 * HOUR, *BATCHES)
        damage_report(opened, plan)
        assert deleted(opened) == ["data/a", "data/b"]

    def test_what_neither_tells_is_left_out_with_a_warning(
        self, opened: OpenRepository, caplog: pytest.LogCaptureFixture
    ) -> None:
        plan = swept(opened, 2 * HOUR, *BATCHES)
        swept(opened, 3 * HOUR, rows(Outcome.ACCEPTED, "data/z"))
        damage_report(opened, plan)
        opened.store.put(f"{run_folder.receipts(plan.run_id)}batch1.parquet", b"something else")
        assert deleted(opened) == ["data/a", "data/z"]
        assert f"some deletions of run {plan.run_id} are unknown" in caplog.text


def test_the_receipts_tell_of_a_run_that_may_still_delete(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, *BATCHES)
    plan = swept(opened, 2 * HOUR, rows(Outcome.ACCEPTED, "data/d"), note=False)
    receipts.write(opened.store, plan.run_id, "later", rows(Outcome.ACCEPTED, "data/e"))
    assert deleted(opened) == ["data/a", "data/b", "data/d", "data/e"]


@pytest.mark.parametrize("most", [0, 100])
def test_reports_and_receipts_are_read_by_spark_alike(
    opened: OpenRepository, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(receipts, "_READ_HERE", most)
    swept(opened, 3 * HOUR, *BATCHES)
    plan = swept(opened, 2 * HOUR, rows(Outcome.QUARANTINED, "data/d", "data/e"), note=False)
    receipts.write(opened.store, plan.run_id, f"{receipts.OF_RESTORE}1", rows(Outcome.RESTORED, "data/e"))
    across_runs.write_restoration(opened.store, plan.run_id, NOW)
    step = made_step(SparkEngine(spark, 2), opened, began(opened, timedelta()))
    found = step.engine.collect(deleted_before(step, NOW - 2 * HOUR))
    assert sorted(found.column("address").to_pylist()) == ["data/a", "data/b", "data/d"]


@pytest.mark.parametrize("most", [0, 100])
def test_receipts_that_are_damaged_are_left_out_by_spark_as_well(
    opened: OpenRepository, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(receipts, "_READ_HERE", most)
    damage_report(opened, swept(opened, 3 * HOUR, *BATCHES))
    plan = swept(opened, 2 * HOUR, rows(Outcome.ACCEPTED, "data/d"), rows(Outcome.ACCEPTED, "data/e"), note=False)
    opened.store.put(f"{run_folder.receipts(plan.run_id)}batch0.parquet", b"something else")
    step = made_step(SparkEngine(spark, 2), opened, began(opened, timedelta()))
    found = step.engine.collect(deleted_before(step))
    assert sorted(found.column("address").to_pylist()) == ["data/a", "data/b", "data/e"]


def test_nothing_is_read_of_runs_that_deleted_nothing(opened: OpenRepository) -> None:
    plan = began(opened, 2 * HOUR, sweep=False)
    report = ended(opened, plan, dry_run=True, ending=Ending.MARKED, checkpoint=None)
    earlier_runs.note(opened.store, plan, report, no_warning)
    receipts.write(opened.store, plan.run_id, "of nobody", rows(Outcome.ACCEPTED, "data/a"))
    assert deleted(opened) == []


def test_the_receipts_of_the_run_itself_do_not_count(opened: OpenRepository) -> None:
    plan = replace(began(opened, HOUR), sweep=True)
    receipts.write(opened.store, plan.run_id, "batch", rows(Outcome.ACCEPTED, "data/a"))
    found = deleted_before(made_step(LocalEngine(2), opened, plan))
    assert LocalEngine(2).collect(found).num_rows == 0


class TestDeletedSince:
    """A sweep's knowledge of runs that swept after its listing."""

    @staticmethod
    def reported(opened: OpenRepository, ago: timedelta) -> list[str]:
        step = made_step(LocalEngine(2), opened, began(opened, timedelta()))
        found = deleted_since(step, NOW - ago)
        return sorted(step.engine.collect(found).column("address").to_pylist())

    @pytest.mark.parametrize("note", [False, True])
    def test_it_is_of_any_run_that_swept_since(self, opened: OpenRepository, note: bool) -> None:
        swept(opened, 5 * HOUR, rows(Outcome.ACCEPTED, "data/a", ago=3 * HOUR), rows(Outcome.FAILED, "data/b"))
        swept(opened, 4 * HOUR, rows(Outcome.QUARANTINED, "data/c"), note=note)
        assert self.reported(opened, 2 * HOUR) == ["data/c"]

    def test_a_sweep_that_failed_counts(self, opened: OpenRepository) -> None:
        plan = began(opened, 5 * HOUR)
        receipts.write(opened.store, plan.run_id, "batch", rows(Outcome.ACCEPTED, "data/a"))
        ended(opened, plan, success=False, ending=Ending.FAILED, error="500", checkpoint=None)
        assert self.reported(opened, 2 * HOUR) == ["data/a"]

    @pytest.mark.parametrize("damaged", [False, True])
    def test_runs_that_a_sweep_before_the_moment_overtook_are_not_read(
        self, opened: OpenRepository, damaged: bool
    ) -> None:
        """A sweep with a damaged report may have ended at any time."""
        swept(opened, 5 * HOUR, rows(Outcome.ACCEPTED, "data/a"))
        plan = swept(opened, 4 * HOUR, rows(Outcome.ACCEPTED, "data/b", ago=3 * HOUR))
        ended(opened, plan, ended_at=NOW - 3 * HOUR, counts={"deleted": 1})
        if damaged:
            opened.store.put(run_folder.report(plan.run_id), b"{")
        assert self.reported(opened, 2 * HOUR) == (["data/a"] if damaged else [])
