"""The expiry job on an embedded server: its page, the folders it removes, and its lock."""

from dataclasses import replace
from datetime import timedelta

import dagster as dg
import pytest

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.expiring import PastFolder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import run_folder, stored_forecasts
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.defs.partitions import RunPartitions
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.past_runs import DAY, began, ended
from lakefs_gc_assets_tests.defs.automated import REPOSITORY, Automated, automated, failure_in, output_of, server

__all__ = ["automated", "server"]

REMOVING: dict[str, object] = {"ops": {"remove_old_frames": {"config": {"dry": False}}}}


@pytest.fixture
def run_ids(automated: Automated) -> list[str]:
    """Four runs that deleted, newest first, each with frames and partitions; two are to be kept."""
    automated.changes["automation"] = {"keep_runs": 2}
    found = []
    for days in (1, 2, 3, 4):
        plan = began(automated.repository, days * DAY)
        ended(automated.repository, plan)
        for frame in ("store_df", "candidates"):
            automated.repository.store.put(run_folder.manifest(plan.run_id, frame), b"frame")
        found.append(plan.run_id)
        RunPartitions(REPOSITORY).add(automated.instance, plan.run_id, ["legacy"])
    return found


def launch(automated: Automated, config: dict[str, object] | None = None) -> dg.ExecuteInProcessResult:
    job = automated.definitions.resolve_job_def("expire_runs")
    return job.execute_in_process(instance=automated.instance, run_config=config, raise_on_error=False)


def reported(result: dg.ExecuteInProcessResult) -> dict[str, str]:
    """The table's entry for each run."""
    table = output_of(result)["runs"]
    assert isinstance(table, dg.TableMetadataValue)
    return {str(record.data["run_id"]): str(record.data["frames"]) for record in table.records}


def with_frames(automated: Automated) -> list[str]:
    return [run.run_id for run in expiring.past_runs(expiring.folders(automated.repository.store)) if run.frames]


def test_it_shows_and_removes_nothing_unless_it_is_reported_to(automated: Automated, run_ids: list[str]) -> None:
    result = launch(automated)

    assert result.success
    assert output_of(result)["dry"] is True
    assert reported(result) == {
        **dict.fromkeys(run_ids[:2], "kept: it is among the newest 2"),
        **dict.fromkeys(run_ids[2:], "expired: store_df, committed_df, candidates, pending, checkpoint_committed"),
    }
    assert with_frames(automated) == run_ids
    assert list(automated.run_ids) == run_ids
    assert lock.holder(automated.repository.store) is None


def test_it_removes_frames_and_partitions_of_old_runs(automated: Automated, run_ids: list[str]) -> None:
    result = launch(automated, REMOVING)

    page = output_of(result)
    assert (page["dry"], page["runs_expired"], page["objects_removed"]) == (False, 2, 10)
    assert with_frames(automated) == run_ids[:2]
    assert list(automated.run_ids) == run_ids[:2]
    assert [run.run_id for run in expiring.past_runs(expiring.folders(automated.repository.store))] == run_ids
    assert lock.holder(automated.repository.store) is None

    again = launch(automated, REMOVING)
    assert (output_of(again)["runs_expired"], output_of(again)["objects_removed"]) == (0, 0)


def test_the_second_of_three_that_cannot_be_removed_is_named_and_the_others_go(
    automated: Automated, run_ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    automated.changes["automation"] = {"keep_runs": 1}
    second = run_ids[2]
    remove_frames = expiring.remove_frames

    def fail(store: ObjectStore, run: PastFolder) -> int:
        if run.run_id == second:
            raise StorageError("AccessDenied")
        return remove_frames(store, run)

    with monkeypatch.context() as patched:
        patched.setattr(expiring, "remove_frames", fail)
        result = launch(automated, REMOVING)

    assert not result.success
    assert f"frames of run {second} could not be removed: AccessDenied" in failure_in(result)
    assert with_frames(automated) == [run_ids[0], second]
    assert list(automated.run_ids) == [run_ids[0], second], "it can still be found"
    assert lock.holder(automated.repository.store) is None
    assert launch(automated, REMOVING).success
    assert with_frames(automated) == [run_ids[0]]


def test_a_forecast_that_cannot_be_removed_keeps_no_other(
    automated: Automated, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated.changes["automation"] = {"keep_runs": 1}
    store, ids = automated.repository.store, layout.XidGenerator()
    made = [ids.descending(automated.clock.now() - days * DAY) for days in (1, 2, 3, 4)]
    for forecast_id in made:
        for key in (stored_forecasts.begun_key(forecast_id), stored_forecasts.forecast_key(forecast_id)):
            store.put(key, b"forecast")
    remove_forecast = expiring.remove_forecast

    def fail(store: ObjectStore, past: PastFolder) -> int:
        if past.run_id == made[2]:
            raise StorageError("AccessDenied")
        return remove_forecast(store, past)

    monkeypatch.setattr(expiring, "remove_forecast", fail)
    assert not launch(automated, REMOVING).success
    left = [each.run_id for each in expiring.past_forecasts(store, expiring.folders(store))]
    assert left == [made[0], made[2]]


def test_the_name_of_old_runs_goes_with_the_last_of_them(automated: Automated, run_ids: list[str]) -> None:
    store, partitions = automated.repository.store, RunPartitions(REPOSITORY)
    for run_id, name in zip(run_ids, ("new", "both", "both", "old"), strict=True):
        plans.write_name(store, replace(plans.read(store, run_id), name=name, windows=(run_id[-2:],)))
        partitions.add(automated.instance, name, ["legacy"])
    partitions.add(automated.instance, "waits for its run", ["legacy"])

    launch(automated, REMOVING)

    assert list(automated.run_ids)[2:] == ["new", "both", "waits for its run"]


def test_partitions_left_behind_by_a_job_that_was_killed_go_the_next_time(
    automated: Automated, run_ids: list[str]
) -> None:
    launch(automated, REMOVING)
    RunPartitions(REPOSITORY).add(automated.instance, run_ids[3], ["legacy"])

    launch(automated, REMOVING)

    assert list(automated.run_ids) == run_ids[:2]


def test_nothing_is_removed_while_the_repository_is_collected(automated: Automated, run_ids: list[str]) -> None:
    held = Lock.acquire(
        automated.repository.store,
        run_id="other",
        owner="somebody",
        now=automated.clock.now(),
        expiry=timedelta(hours=1),
    )

    result = launch(automated, REMOVING)

    assert not result.success
    assert failure_in(result).startswith("somebody has been collecting this repository")
    assert with_frames(automated) == run_ids
    assert list(automated.run_ids) == run_ids
    held.check()
