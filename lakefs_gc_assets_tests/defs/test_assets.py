import json
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import STEPS, UNCOMMITTED_DF
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.lock import KEY, Lock
from lakefs_gc_assets.collector.repository.repository import Launch
from lakefs_gc_assets.defs import history, jobs
from lakefs_gc_assets.defs.assets import funnel, report_figures
from lakefs_gc_assets.defs.io_manager import FrameIOManager
from lakefs_gc_assets.defs.jobs import OPENED_TAG_PREFIX, OpenedRun
from lakefs_gc_assets.defs.launching import Permit
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG, RANGE_START_TAG, Names, RunPartitions, run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.records.test_report import REPORT
from lakefs_gc_assets_tests.defs.automated import sensed
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, failures, made, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import refused

__all__ = ["replaying"]


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1", deletes="overlay", sweep=True, max_candidate_share=1)


def test_one_run_id_belongs_to_one_dagster_run(runs: GraphRuns) -> None:
    opened = runs.open()
    first = runs.make(opened, assets=["store_df"])

    second = runs.make(opened)

    assert f"already collected by Dagster run {first.run_id}" in failures(second)["store_df"]
    assert made(second) == []


def test_later_steps_are_asked_for_the_same_windows(runs: GraphRuns) -> None:
    opened = runs.open()
    assert len(opened.windows) > 1
    assert runs.make(opened, assets=["store_df"]).success

    result = runs.make(opened, assets=["uncommitted_df"], tags={RANGE_END_TAG: opened.tags[RANGE_START_TAG]})

    assert "select the same windows" in failures(result)["uncommitted_df"]


@pytest.mark.parametrize("moved", [False, True])
def test_bytes_that_moved_to_quarantine_are_not_shown_as_deleted(moved: bool) -> None:
    done, other = ("quarantined", "deleted") if moved else ("deleted", "quarantined")
    report = replace(
        REPORT,
        ending=Ending.QUARANTINED if moved else Ending.DELETED,
        counts={done: 3, other: 0, "failed": 1, "kept_live": 2},
        object_bytes={done: 30, other: 0},
        warnings=("<b>a guard</b>",),
    )
    shown = report_figures(report)
    assert shown["ending"] == report.ending.value
    assert shown["warnings"] == dg.MetadataValue.md(r"- \<b>a guard\</b>")
    assert "warnings" not in report_figures(replace(report, warnings=()))
    outcome = shown["outcome"]
    assert isinstance(outcome, dg.MarkdownMetadataValue)
    lines = set(str(outcome.md_str).splitlines())
    assert {f"| {done} | 3 objects, 30 B |", "| failed | 1 object |", "| kept_live | 2 objects |"} <= lines
    assert ("| deleted | 0 objects, 0 B |" in lines) == moved
    assert not any(line.startswith("| quarantined") for line in lines) or moved


def test_the_objects_that_a_run_looked_at_are_live_kept_or_garbage() -> None:
    """An optimized run's bar excludes objects that it did not examine. It does not know which objects commits hold."""
    counts = {"listed": 10, "committed": 0, "candidates": 3, "deleted": 2, "quarantined": 0}
    shown = funnel(replace(REPORT, base_run="r" * 20, counts=counts, kept={"too young": 1})).md_str or ""
    svg = b64decode(shown.partition("base64,")[2].rstrip(")")).decode()
    assert re.findall(r"[a-z ]+: \d+ objects?", svg) == [
        "looked at: 10 objects",
        "live: 6 objects",
        "kept for other reasons: 1 object",
        "garbage: 3 objects",
        "deleted: 2 objects",
        "moved to quarantine: 0 objects",
    ]


@pytest.mark.slow
def test_a_run_keeps_its_lock_until_its_end_and_gives_it_back(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str | None] = []
    handle_output = FrameIOManager.handle_output

    def noting(self: FrameIOManager, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        held.append(runs.lock_holder())
        handle_output(self, context, obj)

    monkeypatch.setattr(FrameIOManager, "handle_output", noting)
    opened = runs.open()

    result = runs.make(opened, sweep=False)

    assert result.success
    assert [holder is not None and opened.run_id in holder for holder in held] == [True] * 4 + [False]
    assert runs.lock_holder() is None


@pytest.mark.slow
@pytest.mark.parametrize("ends", [True, False])
def test_the_lock_of_a_killed_run_is_free_once_dagster_knows_its_end(runs: GraphRuns, ends: bool) -> None:
    killed = str(uuid4())
    launch, now, store = Launch(killed), datetime.now(UTC), runs.repository.store
    Lock.acquire(store, run_id="other", owner="root", now=now, expiry=timedelta(hours=1), launch=launch)

    @dg.job
    def work() -> None:
        pass

    # An ephemeral instance's records end with its process, so they are not read.
    with dg.instance_for_test() as instance:
        runs.instance = instance
        if ends:
            work.execute_in_process(instance=instance, run_id=killed)
        else:
            instance.add_run(dg.DagsterRun("collect", killed, status=dg.DagsterRunStatus.STARTED))

        result = runs.make(runs.open(), assets=["store_df"])

    assert result.success == ends, failures(result)
    if ends:
        assert json.loads(store.get(KEY))["launch"] == result.run_id
    else:
        assert "root has been collecting this repository (run other)" in failures(result)["store_df"]


@pytest.mark.slow
def test_a_failed_run_goes_on_where_it_failed(runs: GraphRuns) -> None:
    opened = runs.open()
    runs.server.fault = lambda method, target: refused(500, "no") if "prepare_uncommited" in target else None
    failed = runs.make(opened)
    assert list(failures(failed)) == ["uncommitted_df"], failures(failed)
    attempt = plans.read(runs.repository.store, opened.run_id).attempt
    runs.require_failed(opened.run_id, "no")
    assert runs.report(opened.run_id).counts == {}
    runs.server.fault = lambda method, target: None

    again = runs.again(failed)

    assert again.success, failures(again)
    assert made(again) == ["uncommitted_df", "committed_df", "candidates", "deleted_report"]
    assert plans.read(runs.repository.store, opened.run_id).attempt == attempt
    assert runs.report(opened.run_id).success
    assert runs.server.deleted == set(runs.addresses(opened.run_id, "candidates")) != set()
    assert runs.lock_holder() is None


@pytest.mark.parametrize("begins", ["between steps", "as a step begins"])
def test_a_server_that_is_gone_in_mid_run_leaves_a_report_and_no_lock(
    runs: GraphRuns, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """The server no longer answers, not even to the process that ends the run."""
    ended_in = "committed_df"  # The checks before it have their frames, and ask no server.
    opened = runs.open()
    gone: list[str] = []

    def fault(method: str, target: str) -> ApiAnswer | None:
        return refused(503, "away for maintenance") if gone else None

    handle_output, load_input = FrameIOManager.handle_output, FrameIOManager.load_input

    def after_an_output(self: FrameIOManager, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        handle_output(self, context, obj)
        if begins == "between steps" and obj.name == "uncommitted_df":
            gone.append(obj.name)

    def after_an_input(self: FrameIOManager, context: dg.InputContext) -> object:
        found = load_input(self, context)
        assert isinstance(found, StoredFrame)
        if begins == "as a step begins" and context.step_context.step.key == ended_in:
            gone.append(found.name)
        return found

    monkeypatch.setattr(FrameIOManager, "handle_output", after_an_output)
    monkeypatch.setattr(FrameIOManager, "load_input", after_an_input)
    runs.server.fault = fault

    result = runs.make(opened)

    assert gone
    assert list(failures(result)) == [ended_in]
    assert "away for maintenance" in failures(result)[ended_in]
    runs.server.fault = lambda method, target: None
    runs.require_failed(opened.run_id, "away for maintenance")
    assert runs.server.deleted == set()


def named(runs: GraphRuns, key: str, windows: Sequence[str] | None = None) -> OpenedRun:
    """The run that the UI launches if a user adds a run_id and chooses windows."""
    windows = tuple(windows or runs.open().windows)
    partitions = RunPartitions(runs.server.repository)
    runs.instance.add_dynamic_partitions(partitions.run_ids.name or "", [key])
    return OpenedRun(key, windows, partitions.tags(key, windows, "clean"))


def keys(runs: GraphRuns) -> list[str]:
    """Ids without their times, and names."""
    present = runs.instance.get_dynamic_partitions(RunPartitions(runs.server.repository).run_ids.name or "")
    return [run_id_in(key) or key for key in present]


def test_a_name_opens_a_run_and_its_next_steps_find_it(runs: GraphRuns) -> None:
    monday = named(runs, "Monday")

    first = runs.make(monday, assets=["store_df"])
    second = runs.make(monday, assets=["uncommitted_df"])

    assert (first.success, second.success) == (True, True), (failures(first), failures(second))
    store = runs.repository.store
    run_id = plans.find_named(store, "Monday", monday.windows)
    assert run_id is not None
    plan = plans.read(store, run_id)
    assert (plan.name, plan.owner, plan.opened, plan.sweep) == ("Monday", first.run_id, True, True)
    assert files.read_manifest(store, run_id, UNCOMMITTED_DF).span.run_id == run_id
    tags = [run.tags["lakefs/run_id"] for run in runs.instance.get_runs()]
    assert tags == [run_id, run_id]


def test_a_name_has_a_run_for_each_choice_of_windows(runs: GraphRuns) -> None:
    whole = named(runs, "Monday")
    part = named(runs, "Monday", whole.windows[-1:])

    assert runs.make(whole, assets=["store_df"]).success
    assert runs.make(part, assets=["store_df"]).success

    store = runs.repository.store
    found = [plans.find_named(store, "Monday", each.windows) for each in (whole, part)]
    assert sorted(plans.runs_named(store, "Monday")) == sorted(filter(None, found))
    assert [plans.read(store, run_id or "").windows for run_id in found] == [whole.windows, part.windows]


def test_a_second_launch_of_a_name_does_not_take_its_run(runs: GraphRuns) -> None:
    monday = named(runs, "Monday")
    first = runs.make(monday, assets=["store_df"])

    second = runs.make(monday)

    assert f"already collected by Dagster run {first.run_id}" in failures(second)["store_df"]
    assert keys(runs)[-1] == "Monday"


@pytest.mark.parametrize(
    ("key", "assets", "reported"),
    [
        ("../../x", ("store_df",), "is not valid as the name of a run"),
        ("0" * 20, ("store_df",), "is in the future"),
        ("g4uk6erfnfus73frbnqg", ("uncommitted_df",), "materialize it first"),
    ],
)
def test_a_key_that_cannot_be_used_does_not_stay(
    runs: GraphRuns, key: str, assets: tuple[str, ...], reported: str
) -> None:
    before = runs.open()

    result = runs.make(named(runs, key, before.windows), assets=assets)

    assert reported in " ".join(failures(result).values())
    assert keys(runs) == [before.run_id]
    assert runs.lock_holder() is None


def sensed_now(runs: GraphRuns) -> list[dg.RunRequest]:
    """Requests of the sensor after the Dagster run that ended last."""
    (end,) = runs.instance.fetch_run_status_changes(dg.DagsterEventType.RUN_SUCCESS, limit=1).records
    definitions = build(runs.loaded, runs.clock)
    return [*(sensed(runs.instance, definitions, str(end.storage_id - 1)).run_requests or [])]


def test_later_assets_under_a_new_name_launch_the_run_that_was_meant(runs: GraphRuns) -> None:
    monday = named(runs, "Monday")

    asked = runs.make(monday, assets=["candidates", "deleted_report"])

    assert asked.success and made(asked) == []
    assert any("launches all five assets under this name within seconds" in line for line in runs.lines)
    assert plans.runs_named(runs.repository.store, "Monday") == []
    (request,) = sensed_now(runs)
    assert request.asset_selection is None
    assert {tag: request.tags[tag] for tag in monday.tags} == monday.tags
    assert "Monday" in keys(runs) and not failed_windows(runs, "candidates", monday)
    begun = runs.make(monday, tags=dict(request.tags), assets=["store_df"])
    assert begun.success, failures(begun)
    assert plans.find_named(runs.repository.store, "Monday", monday.windows) is not None
    assert sensed_now(runs) == [], "the run that it launches launches no other"
    forged = {f"{OPENED_TAG_PREFIX}{RANGE_START_TAG}": "Monday|legacy", f"{OPENED_TAG_PREFIX}dagster/priority": "9"}
    runs.make(named(runs, "Tuesday", monday.windows), assets=["candidates"])
    newest = runs.instance.get_runs(limit=1)[0]
    runs.instance.add_run_tags(newest.run_id, forged)
    (request,) = sensed_now(runs)
    assert "dagster/priority" not in request.tags


@pytest.mark.parametrize("status", ["REQUESTED", "COMPLETED_FAILED"])
def test_a_refused_key_stays_while_its_backfill_is_under_way(
    runs: GraphRuns, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, names = runs.open(), Names(runs.server.repository)
    refused = named(runs, "a...b", before.windows)

    assert "is not valid as the name" in failures(runs.make(refused, tags={"dagster/backfill": "ours"}))["store_df"]

    assert keys(runs) == [before.run_id, "a...b"], "Dagster looks its cells up until the backfill has ended"
    asked: list[str] = []

    def backfill(instance: dg.DagsterInstance, backfill_id: str) -> SimpleNamespace:
        asked.append(backfill_id)
        return SimpleNamespace(status=SimpleNamespace(value=status))

    monkeypatch.setattr(dg.DagsterInstance, "get_backfill", backfill)
    history.forget_refused(runs.instance, names)
    assert keys(runs) == ([before.run_id, "a...b"] if status == "REQUESTED" else [before.run_id])
    history.forget_refused(runs.instance, names)
    assert asked == ["ours"] * (2 if status == "REQUESTED" else 1)


def test_keys_of_canceled_launches_and_unused_names_go_when_newer_runs_end(runs: GraphRuns) -> None:
    def launched(status: dg.DagsterRunStatus) -> OpenedRun:
        opened = runs.open()
        runs.clock.sleep(1)
        runs.instance.add_run(dg.DagsterRun("collect", str(uuid4()), tags=opened.tags, status=status))
        return opened

    def forgotten_after(hours: float) -> list[str]:
        run_id = layout.issue_run_id(runs.clock.now())
        ended = replace(REPORT, run_id=run_id, ended_at=runs.clock.now() + timedelta(hours=hours))
        names = Names(runs.server.repository)
        return [run_id_in(key) or key for key in history.forget_overtaken(runs.instance, names, store, ended)]

    store = runs.repository.store
    canceled, running = launched(dg.DagsterRunStatus.CANCELED), launched(dg.DagsterRunStatus.STARTED)
    named(runs, "Monday", running.windows)

    assert forgotten_after(hours=0) == [canceled.run_id]
    assert forgotten_after(hours=0.9) == [], "somebody may be about to launch the name"
    assert forgotten_after(hours=1) == ["Monday"]
    assert keys(runs) == [running.run_id]


def test_a_run_that_was_opened_keeps_its_key_for_its_launch(runs: GraphRuns) -> None:
    opened = jobs.open_run(runs.instance, Collector.from_loaded(runs.loaded, runs.clock), permit=Permit("open_run"))

    early = runs.make(opened, assets=["uncommitted_df"])
    both = runs.make(named(runs, "Monday", opened.windows), tags={RANGE_START_TAG: opened.tags[RANGE_START_TAG]})

    assert not early.success
    assert "covers 2 run ids" in failures(both)["store_df"]
    assert keys(runs) == [opened.run_id]


@pytest.mark.slow
def test_a_finished_run_that_is_materialized_again_has_nothing_to_do(runs: GraphRuns) -> None:
    monday = named(runs, "Monday")
    assert runs.make(monday).success
    run_id = plans.find_named(runs.repository.store, "Monday", monday.windows) or ""
    deleted, before = set(runs.server.deleted), plans.read(runs.repository.store, run_id)
    report = runs.report(run_id)
    runs.lines.clear()

    again = runs.make(monday)
    part = runs.make(
        replace(monday, tags=RunPartitions(runs.server.repository).tags("Monday", monday.windows[:1], "clean"))
    )

    assert made(again) == made(part) == list(STEPS)
    assert any("there is nothing to do. For a new run, launch the job open_run" in line for line in runs.lines)
    assert (plans.read(runs.repository.store, run_id), runs.report(run_id)) == (before, report)
    assert runs.server.deleted == deleted != set()
    newest = runs.instance.get_runs(limit=1)[0]
    assert (newest.tags["lakefs/run_id"], newest.tags["lakefs/mode"]) == (run_id, "nothing to do")
    event = runs.instance.get_latest_materialization_event(dg.AssetKey("deleted_report"))
    assert event is not None and event.asset_materialization is not None
    assert event.asset_materialization.metadata["ending"].value == report.ending.value
    assert runs.lock_holder() is None


def failed_windows(runs: GraphRuns, asset: str, opened: OpenedRun) -> list[str]:
    """Windows of a run that the UI shows as failed."""
    partitions = RunPartitions(runs.server.repository)
    key = opened.tags[RANGE_START_TAG].partition("|")[0]
    cells = {f"{key}|{window}": window for window in opened.windows}
    found = runs.instance.get_status_by_partition(dg.AssetKey(asset), list(cells), partitions.definition) or {}
    return [cells[cell] for cell, status in found.items() if status is dg.AssetPartitionStatus.FAILED]


def test_a_failed_run_adds_no_events_of_windows_that_dagster_did_not_plan(
    runs: GraphRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS", "1")
    opened = runs.open()
    runs.server.fault = lambda method, target: refused(500, "no")
    failed = runs.make(opened)
    assert not failed.success
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    planned = [event.dagster_event for event in runs.instance.all_logs(failed.run_id, of_type=kind)]
    assert sorted(event.asset_key.path[-1] for event in planned if event and event.asset_key) == sorted(STEPS)


@pytest.mark.slow
def test_a_failed_run_is_overtaken_by_a_dry_run_unless_it_was_to_sweep(
    runs: GraphRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_EMIT_PARTITION_SUBSET_IN_PLANNED_EVENTS", "1")
    runs.server.fault = lambda method, target: refused(500, "no") if "prepare_uncommited" in target else None
    dry = runs.open()
    assert not runs.make(dry, sweep=False).success
    runs.clock.sleep(1)
    sweeping = runs.open()
    assert not runs.make(sweeping, sweep=True).success
    never_begun = named(runs, "Monday")
    held = Lock.acquire(
        runs.repository.store, run_id="x", owner="x", now=runs.clock.now(), expiry=timedelta(minutes=10)
    )
    assert "x has been collecting this repository" in failures(runs.make(never_begun))["store_df"]
    held.release()
    assert {dry.run_id, sweeping.run_id, "Monday"} <= {*keys(runs)}, "it can be launched again"
    runs.server.fault = lambda method, target: None

    runs.clock.sleep(1)
    newer = runs.open()
    assert runs.make(newer, sweep=False).success

    known = (dry.run_id, sweeping.run_id, "Monday", newer.run_id)
    assert [key for key in keys(runs) if key in known] == [sweeping.run_id, newer.run_id]
