from dataclasses import replace

import dagster as dg
import pytest

from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.defs.assets import report_figures
from lakefs_gc_assets.defs.partitions import RANGE_END_TAG, RANGE_START_TAG
from lakefs_gc_assets_tests.collector.test_report import REPORT
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, failures, made, replaying

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
    assert {f"| {done} | 3, 30 B |", "| failed | 1 |", "| kept_live | 2 |"} <= lines
    assert ("| deleted | 0, 0 B |" in lines) == moved
    assert not any(line.startswith("| quarantined") for line in lines) or moved
