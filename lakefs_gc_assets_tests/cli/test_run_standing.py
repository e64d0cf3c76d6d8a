"""`lakefs-gc run --standing`: a dry run whose candidates go only if the standing approval covers them."""

import json

import pytest

from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.standing_approvals import NOT_COVERED, Limits, StandingApproval
from lakefs_gc_assets_tests.cli.invoked import Invoke, invoke, runs
from lakefs_gc_assets_tests.collector.test_standing_approvals import granted
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["invoke", "replaying", "runs"]


def grant(runs: PlainRuns, objects: int) -> StandingApproval:
    """Stores a standing approval until a month after the time of the runs."""
    now = runs.clock.now()
    return granted(
        runs.repository, limits=Limits(objects=objects), granted_at=now, until=now.replace(year=now.year + 1)
    )


def test_it_is_no_sweep(invoke: Invoke) -> None:
    result = invoke("run", "--standing", "--sweep")
    assert result.exit_code == Status.USAGE and "--standing and --sweep exclude each other" in result.stderr


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
