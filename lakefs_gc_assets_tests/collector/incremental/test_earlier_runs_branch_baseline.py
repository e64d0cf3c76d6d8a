import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest, Span
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, DELETED_REPORT, DeletedFigures
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.incremental.earlier_runs import branch_baseline
from lakefs_gc_assets.collector.records import records_json, run_folder
from lakefs_gc_assets.collector.records.across_runs import BranchState, DeletedBranch, write_deleted_branch
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.collector.made_frames import COMMITTED_FIGURES
from lakefs_gc_assets_tests.collector.past_runs import HOUR, IDS, NOW, began, ended, opened

__all__ = ["opened"]

RUN = IDS.descending(NOW)


def swept(opened: OpenRepository, ago: timedelta, branches: int, flow: Flow = Flow.CLEAN) -> None:
    ended(opened, began(opened, ago, flow=flow), counts={"branches": branches})


def marked(opened: OpenRepository, ago: timedelta, branches: int) -> None:
    plan = began(opened, ago, sweep=False)
    ended(opened, plan, dry_run=True, ending=Ending.MARKED, checkpoint=None, counts={"branches": branches})


def refused(opened: OpenRepository, ago: timedelta) -> None:
    """A run that a guard stopped: its report has no counts."""
    ended(opened, began(opened, ago), success=False, ending=Ending.FAILED, error="guard", checkpoint=None)


def test_without_an_earlier_run_there_is_none(opened: OpenRepository) -> None:
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) is None
    began(opened, HOUR)
    refused(opened, 2 * HOUR)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) is None


@pytest.mark.parametrize("flow", [Flow.CLEAN, Flow.OPTIMIZED, Flow.COMMITTED, Flow.UNIFIED])
def test_it_is_what_the_newest_successful_sweep_found(opened: OpenRepository, flow: Flow) -> None:
    swept(opened, 3 * HOUR, 200)
    swept(opened, 2 * HOUR, 96, flow)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96


def test_branches_that_were_deleted_as_stale_since_are_left_out(opened: OpenRepository) -> None:
    plan = began(opened, 3 * HOUR)
    ended(opened, plan, counts={"branches": 5})
    figures = replace(COMMITTED_FIGURES, heads=dict.fromkeys(("main", "b1", "b2", "b3", "b4"), "m"))
    span = Span(COMMITTED_DF.name, plan.run_id, plan.attempt, NOW, NOW)

    def baseline(*present: str) -> int | None:
        return branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, present)

    for name, at in (("b1", NOW + HOUR), ("b2", NOW + HOUR), ("b3", NOW - HOUR), ("made since", NOW + HOUR)):
        write_deleted_branch(
            opened.store, DeletedBranch(opened.facts.id, name, "c", False, "digest", BranchState.DELETED, at)
        )
    assert baseline("main") == 5, "nothing says which branches the run counted"
    files.write_manifest(opened.store, Manifest(span, (), figures))
    assert baseline("main") == 3, "of the four, one was made since, and one deleted before the run counted"
    assert baseline("main", "b2") == 4, "somebody made it again"
    assert baseline("main", "a", "b", "c", "d") == 5


def test_a_run_that_was_refused_does_not_take_it_away(opened: OpenRepository) -> None:
    swept(opened, 200 * HOUR, 96)
    for hours in range(1, 150):
        refused(opened, hours * HOUR)
    baseline = branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ())
    assert baseline == 96
    with pytest.raises(GuardTripped, match="12 branches are left of the 96"):
        guards.require_branches(12, baseline, CollectionSettings())


def test_dry_runs_raise_it_and_never_lower_it(opened: OpenRepository) -> None:
    swept(opened, 9 * HOUR, 96)
    marked(opened, 8 * HOUR, 12)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96
    marked(opened, 7 * HOUR, 110)
    marked(opened, 6 * HOUR, 5)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 110


def test_where_only_dry_runs_were_it_is_the_largest_of_them(opened: OpenRepository) -> None:
    marked(opened, 3 * HOUR, 40)
    marked(opened, 2 * HOUR, 4)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 40


def test_a_sweep_whose_deletions_failed_does_not_lower_it(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, 2 * HOUR)
    ended(opened, plan, success=False, ending=Ending.PARTLY_DELETED, counts={"branches": 12})
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96


def test_a_sweep_that_was_allowed_to_lower_it_does(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    refused(opened, 2 * HOUR)
    swept(opened, HOUR, 12)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 12


def test_it_goes_by_the_index_of_runs_where_that_names_a_run(opened: OpenRepository) -> None:
    for hours, sweep, branches in ((4, True, 500), (3, True, 96), (2, False, 110), (1, False, 5)):
        plan = began(opened, hours * HOUR, sweep=sweep)
        report = ended(opened, plan, dry_run=not sweep, counts={"branches": branches})
        earlier_runs.note(opened.store, plan, report, pytest.fail)
        opened.store.delete([run_folder.report(plan.run_id)])
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 110


def test_only_older_runs_count(opened: OpenRepository) -> None:
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, 2 * HOUR)
    ended(opened, plan, counts={"branches": 50})
    swept(opened, HOUR, 7)
    assert branch_baseline(opened.store, plan.run_id, opened.facts.id, pytest.fail, ()) == 96


def framed(opened: OpenRepository, plan: Plan, branches: int, *, swept: bool | None) -> None:
    """Stores the manifests of frames that count branches and, if the run came so far, of its sweep."""
    span = Span(COMMITTED_DF.name, plan.run_id, plan.attempt, NOW, NOW)
    figures = replace(COMMITTED_FIGURES, heads={f"branch{number}": "commit" for number in range(branches)})
    files.write_manifest(opened.store, Manifest(span, (), figures))
    if swept is not None:
        files.write_manifest(
            opened.store, Manifest(replace(span, frame=DELETED_REPORT.name), (), DeletedFigures(swept=swept))
        )


def damage_report(opened: OpenRepository, plan: Plan, damage: str) -> None:
    key = run_folder.report(plan.run_id)
    if damage == "gone":
        opened.store.delete([key])
    elif damage == "damaged":
        opened.store.put(key, b"{")
    else:
        content = json.loads(opened.store.get(key))
        opened.store.put(key, records_json.with_digest(content | {"format_version": 9}))


@pytest.mark.parametrize("damage", ["gone", "damaged", "of another version"])
class TestAReportThatCannotBeRead:
    @pytest.mark.parametrize("sweep", [True, False])
    def test_the_manifests_of_the_run_tell_what_it_reported(
        self, opened: OpenRepository, damage: str, sweep: bool
    ) -> None:
        swept(opened, 4 * HOUR, 96)
        plan = began(opened, 3 * HOUR, sweep=sweep)
        ended(opened, plan, dry_run=not sweep, counts={"branches": 120})
        framed(opened, plan, 120, swept=sweep)
        marked(opened, 2 * HOUR, 5)
        damage_report(opened, plan, damage)
        warnings: list[str] = []
        assert branch_baseline(opened.store, RUN, opened.facts.id, warnings.append, ()) == 120
        assert [plan.run_id in line for line in warnings] == [True] * (damage != "gone")
        framed(opened, plan, 7, swept=sweep)
        assert branch_baseline(opened.store, RUN, opened.facts.id, warnings.append, ()) == (7 if sweep else 96)

    @pytest.mark.parametrize("attempt", ["attempt", "another"])
    def test_without_them_older_runs_count_as_well(self, opened: OpenRepository, damage: str, attempt: str) -> None:
        swept(opened, 4 * HOUR, 96)
        plan = began(opened, 3 * HOUR)
        ended(opened, plan, counts={"branches": 7})
        damage_report(opened, plan, damage)
        if attempt == "another":
            framed(opened, plan, 7, swept=True)
            framed(opened, replace(plan, attempt=attempt), 6, swept=None)
        assert branch_baseline(opened.store, RUN, opened.facts.id, lambda line: None, ()) == 96


@pytest.mark.parametrize("named", [False, True])
def test_runs_of_another_repository_on_the_namespace_do_not_count(opened: OpenRepository, named: bool) -> None:
    """A twin with one branch would disarm the guard."""
    swept(opened, 3 * HOUR, 96)
    plan = began(opened, HOUR, repository="twin")
    report = ended(opened, plan, counts={"branches": 1})
    if named:
        earlier_runs.note(opened.store, plan, report, pytest.fail)
    assert branch_baseline(opened.store, RUN, opened.facts.id, pytest.fail, ()) == 96
    assert branch_baseline(opened.store, RUN, "twin", pytest.fail, ()) == 1
