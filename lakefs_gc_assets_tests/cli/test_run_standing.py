"""`lakefs-gc run --standing`: a dry run whose candidates go only if the standing approval covers them."""

import json
from unittest import mock

import dagster as dg
import pytest

from lakefs_gc_assets.cli import run
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest, Span
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.standing_approvals import NOT_COVERED, Limits, StandingApproval
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets_tests.cli.invoked import Invoke, invoke, runs
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES
from lakefs_gc_assets_tests.collector.past_runs import HOUR, NOW, began, ended
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.defs.automated import Automated, automated, server
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["automated", "invoke", "replaying", "runs", "server"]


def grant(runs: PlainRuns, objects: int) -> StandingApproval:
    """Stores a standing approval until a month after the time of the runs."""
    now = runs.clock.now()
    return granted(
        runs.repository, limits=Limits(objects=objects), granted_at=now, until=now.replace(year=now.year + 1)
    )


def test_it_is_no_sweep(invoke: Invoke) -> None:
    result = invoke("run", "--standing", "--sweep")
    assert result.exit_code == Status.USAGE and "--standing and --sweep exclude each other" in result.stderr


def test_the_step_that_deletes_is_made_only_by_an_approval_that_covers_the_dry_run(
    automated: Automated, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, lines = automated.repository, list[str]()
    plan = began(repository, HOUR, sweep=False)
    counts = {"listed": 200, "candidates": 10}
    dry = ended(repository, plan, dry_run=True, counts=counts, object_bytes={"candidates": 1_000})
    span = Span(CANDIDATES_DF.name, plan.run_id, plan.attempt, NOW, NOW)
    files.write_manifest(repository.store, Manifest(span, (), CANDIDATE_FIGURES))
    collected = mock.Mock()
    monkeypatch.setattr(running, "_collect", collected)
    monkeypatch.setattr(running, "failure_of", lambda result, run_id: None)

    def sweep() -> None:
        run.sweep_if_covered(automated.loaded, dry, lines.append, automated.clock)

    granted(repository, limits=Limits(objects=9))
    with pytest.raises(GuardTripped, match=f"covers run {plan.run_id}: .* 10 objects would be deleted, more than"):
        sweep()
    approval = granted(repository)
    automated.changes["launch"] = {"approvers": 2}
    with pytest.raises(GuardTripped, match="a second person has to grant the same limits"):
        sweep()
    assert plans.read_approval(repository.store, plan.run_id) is None
    collected.assert_not_called()

    automated.changes.clear()
    sweep()
    stored = plans.read_approval(repository.store, plan.run_id)
    assert stored is not None and (stored.standing, stored.approved_by) == (approval.approval_id, str(approval))
    assert collected.call_args.kwargs["assets"] == [dg.AssetKey("deleted_report")]
    assert lines == [f"run {plan.run_id}: {approval} covers its candidates: deleting them after a recheck"]


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_run_beyond_the_limits_waits_for_a_person_and_one_within_them_sweeps(runs: PlainRuns, invoke: Invoke) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]
    grant(runs, len(garbage) - 1)

    beyond = invoke("run", "--standing", "--json")

    (dry,) = run_folder.newest_runs(runs.repository.store)
    assert (beyond.exit_code, runs.server.deleted) == (Status.REFUSED, set())
    limit = f"{len(garbage)} objects would be deleted, more than the limit of {len(garbage) - 1} objects"
    assert f"covers run {dry}: " in beyond.stderr and limit in beyond.stderr
    assert json.loads(beyond.stdout)["status"] == Status.REFUSED
    (warning,) = [each for each in runs.report(dry).warnings if each.startswith(NOT_COVERED)]
    assert limit in warning and runs.report(dry).dry_run
    assert plans.read_approval(runs.repository.store, dry) is None

    approval = grant(runs, len(garbage))
    runs.clock.sleep(1)
    assert invoke("run", "--dry-run").exit_code == Status.WELL and runs.server.deleted == set()
    runs.clock.sleep(1)
    swept = invoke("run", "--standing")

    assert swept.exit_code == Status.WELL, swept.stderr
    assert runs.server.deleted == garbage
    newest = reports.read(runs.repository.store, next(run_folder.newest_runs(runs.repository.store)))
    assert newest is not None and newest.approved_by == str(approval)
    assert f"approved by {approval}" in swept.stdout and f"{approval} covers its candidates" in swept.stderr
    runs.clock.sleep(1)
    assert invoke("run", "--standing").exit_code == Status.WELL
