"""`lakefs-gc approve` on runs of a recorded repository."""

import json
import re
from datetime import timedelta

import pytest
from click.testing import CliRunner

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.collector.reporting import Violation
from lakefs_gc_assets.defs import checks
from lakefs_gc_assets_tests.cli.invoked import Invoke, assert_one_line, content_of, invoke, made, runs, write
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["invoke", "replaying", "runs"]

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def dry(runs: PlainRuns) -> str:
    """A dry run, three hours ago."""
    run_id = made(runs)
    runs.clock.moment += timedelta(hours=3)
    return run_id


@pytest.mark.slow
def test_what_a_dry_run_found_is_deleted_after_a_recheck(runs: PlainRuns, invoke: Invoke, dry: str) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]

    result = invoke("approve", "--yes", dry)

    assert result.exit_code == 0, result.stderr
    assert runs.server.deleted == garbage
    assert f"found {len(garbage)} objects" in result.stderr.splitlines()[0]
    assert len(result.output.splitlines()) <= 11
    assert result.stdout.splitlines()[0].endswith("clean: deleted")
    assert runs.report(dry).ending is Ending.DELETED
    assert runs.lock_holder() is None
    assert_one_line(invoke("approve", "--yes", dry), "was already approved")


@pytest.mark.slow
def test_nothing_is_deleted_without_consent(runs: PlainRuns, dry: str) -> None:
    for answer in ("n\n", ""):
        result = CliRunner().invoke(main, ["approve", dry], input=answer)
        assert (result.exit_code, runs.server.deleted) == (Status.FAILED, set())
        assert "Delete them, except any that are live by now?" in result.stderr
        assert "nothing was deleted. Give --yes to skip the question" in result.stderr
    assert runs.report(dry).dry_run
    assert CliRunner().invoke(main, ["approve", dry], input="y\n").exit_code == 0
    assert runs.server.deleted == truth_classes("chain/1")["unreferenced"]


@pytest.mark.slow
def test_consent_is_asked_for_what_will_be_done(runs: PlainRuns, dry: str) -> None:
    write(content_of(runs.server, {"max_candidate_share": 1, "sweep_mode": "quarantine"}))

    result = CliRunner().invoke(main, ["approve", dry], input="n\n")

    assert "Move them to quarantine, except any that are live by now?" in result.stderr
    assert runs.report(dry).dry_run


@pytest.mark.slow
def test_a_sweep_that_failed_goes_on(runs: PlainRuns, invoke: Invoke, dry: str) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]
    runs.server.undeletable = {min(garbage)}
    incomplete = invoke("approve", "--yes", dry)
    assert incomplete.exit_code == Status.INCOMPLETE
    assert "some deletions failed" in incomplete.stdout and "failed                 1 object" in incomplete.stdout
    runs.server.undeletable = set()

    result = invoke("approve", "--yes", "--quiet", "--json", dry)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json.loads(runs.report(dry).to_json())
    assert runs.server.deleted == garbage


@pytest.mark.slow
def test_only_a_dry_run_that_came_to_its_end_can_be_approved(
    runs: PlainRuns, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_one_line(invoke("approve", "--yes", "c" * 20), "this repository has no run")

    with monkeypatch.context() as wrong:
        wrong.setattr(checks, "find_young_candidates", lambda *_: [Violation("older than the cutoff", "one is not", 1)])
        ended = invoke("run")
    assert (ended.exit_code, ended.stdout) == (Status.FAILED, "")
    last = ended.stderr.splitlines()[-1]
    assert re.match(r"lakefs-gc: run \w{20} failed: check of candidates: older than the cutoff: one is not$", last)
    assert "Traceback" not in ended.output
    (failed,) = run_folder.newest_runs(runs.repository.store)
    assert_one_line(invoke("approve", "--yes", failed), "did not finish")

    runs.clock.moment += timedelta(hours=1)
    write(content_of(runs.server, {"max_candidates": 0, "max_candidate_share": 1}))
    refused = invoke("run", "--sweep")
    assert refused.exit_code == Status.REFUSED
    _, refusal = refused.output.splitlines()
    assert "failed in deleted_report: guard number of candidates" in refusal and refusal.count("guard") == 1
    swept = next(run_folder.newest_runs(runs.repository.store))
    assert swept != failed
    assert_one_line(invoke("approve", "--yes", swept), "was not a dry run")
    assert runs.server.deleted == set()
