import json
import re
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.lock import KEY, Lock
from lakefs_gc_assets.collector.records import plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository import Launch
from lakefs_gc_assets.defs.assets import funnel, report_figures
from lakefs_gc_assets.defs.io_manager import FrameIOManager
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG, RANGE_START_TAG
from lakefs_gc_assets_tests.collector.records.test_report import REPORT
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, failures, made, replaying
from lakefs_gc_assets_tests.replay.api_answers import ApiAnswer
from lakefs_gc_assets_tests.replayed_runs import refused

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


def test_a_range_without_partitions_is_refused(runs: GraphRuns) -> None:
    opened = runs.open()
    turned = {RANGE_START_TAG: opened.tags[RANGE_END_TAG], RANGE_END_TAG: opened.tags[RANGE_START_TAG]}

    result = runs.make(opened, tags=turned)

    assert "the selection covers no partition" in failures(result)["store_df"]


def test_two_run_ids_at_once_are_refused(runs: GraphRuns) -> None:
    first, second = runs.open(), runs.open()

    result = runs.make(first, tags={RANGE_END_TAG: second.tags[RANGE_END_TAG]})

    assert "covers 2 run ids" in failures(result)["store_df"]


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
    )
    shown = report_figures(report)
    assert shown["ending"] == report.ending.value
    outcome = shown["outcome"]
    assert isinstance(outcome, dg.MarkdownMetadataValue)
    lines = set(str(outcome.md_str).splitlines())
    assert {f"| {done} | 3 objects, 30 B |", "| failed | 1 objects |", "| kept_live | 2 objects |"} <= lines
    assert ("| deleted | 0 objects, 0 B |" in lines) == moved
    assert not any(line.startswith("| quarantined") for line in lines) or moved


def test_the_objects_that_a_run_looked_at_are_live_kept_or_garbage() -> None:
    """Those that an optimized run did not look at are in no bar, and what commits hold it does not know."""
    counts = {"listed": 10, "committed": 0, "candidates": 3, "deleted": 2, "quarantined": 0}
    shown = funnel(replace(REPORT, base_run="r" * 20, counts=counts, kept={"too young": 1})).md_str or ""
    svg = b64decode(shown.partition("base64,")[2].rstrip(")")).decode()
    assert re.findall(r"[a-z ]+: \d+ objects", svg) == [
        "looked at: 10 objects",
        "held or staged: 6 objects",
        "kept all the same: 1 objects",
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

    if ends:
        work.execute_in_process(instance=runs.instance, run_id=killed)
    else:
        runs.instance.add_run(dg.DagsterRun("collect", killed, status=dg.DagsterRunStatus.STARTED))

    result = runs.make(runs.open(), assets=["store_df"])

    assert result.success == ends, failures(result)
    if ends:
        assert json.loads(store.get(KEY))["launch"] == result.run_id
    else:
        assert "root collects this repository (run other)" in failures(result)["store_df"]


@pytest.mark.slow
def test_a_failed_run_goes_on_where_it_failed(runs: GraphRuns) -> None:
    opened = runs.open()
    runs.server.fault = lambda method, target: refused(500, "no") if "prepare_uncommited" in target else None
    failed = runs.make(opened)
    assert list(failures(failed)) == ["uncommitted_df"], failures(failed)
    attempt = plan.read(runs.repository.store, opened.run_id).attempt
    runs.require_failed(opened.run_id, "no")
    assert runs.report(opened.run_id).counts == {}
    runs.server.fault = lambda method, target: None

    again = runs.again(failed)

    assert again.success, failures(again)
    assert made(again) == ["uncommitted_df", "committed_df", "candidates", "deleted_report"]
    assert plan.read(runs.repository.store, opened.run_id).attempt == attempt
    assert runs.report(opened.run_id).success
    assert runs.server.deleted == set(runs.addresses(opened.run_id, "candidates")) != set()
    assert runs.lock_holder() is None


@pytest.mark.parametrize(
    ("begins", "ended_in"),
    [
        ("between steps", "uncommitted_df_shape"),
        ("as a step begins", "committed_df"),
    ],
)
def test_a_server_that_is_gone_in_mid_run_leaves_a_report_and_no_lock(
    runs: GraphRuns, monkeypatch: pytest.MonkeyPatch, begins: str, ended_in: str
) -> None:
    """It answers nothing any more, also to whoever ends the run."""
    opened = runs.open()
    gone: list[str] = []

    def fault(method: str, target: str) -> ApiAnswer | None:
        return refused(503, "away for maintenance") if gone else None

    handle_output, load_input = FrameIOManager.handle_output, FrameIOManager.load_input

    def after_an_output(self: FrameIOManager, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        handle_output(self, context, obj)
        if begins == "between steps" and obj.name == "uncommitted_df":
            gone.append(obj.name)

    def after_an_input(self: FrameIOManager, context: dg.InputContext) -> StoredFrame[Any]:
        found = load_input(self, context)
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
