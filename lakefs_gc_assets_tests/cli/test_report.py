"""`lakefs-gc report`: the results of a run, as lines, as JSON, or as a page."""

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest

from lakefs_gc_assets.cli.common import Target
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CandidateFigures
from lakefs_gc_assets.collector.page import garbage, page
from lakefs_gc_assets.collector.page.garbage import Garbage
from lakefs_gc_assets.collector.records import report as reports
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.cli.invoked import Invoke, assert_one_line, invoke, runs, write
from lakefs_gc_assets_tests.collector.page.stored_runs import stored_run
from lakefs_gc_assets_tests.collector.page.test_page import repository
from lakefs_gc_assets_tests.collector.past_runs import HOUR, NOW, began, ended, opened
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, replaying

__all__ = ["invoke", "opened", "replaying", "repository", "runs"]


@pytest.fixture
def past(repository: OpenRepository, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> OpenRepository:
    """A repository with past runs, named by the configuration in the working folder."""
    write({"repository": "repo", "report": {"price_per_gb_month": 1000, "currency": "EUR"}})
    monkeypatch.setattr(Target, "open", lambda target, to_read: repository)
    return repository


def test_a_report_as_lines_and_as_json(past: OpenRepository, invoke: Invoke) -> None:
    assert_one_line(invoke("report"), "no run has ended yet", "`lakefs-gc run`")
    assert_one_line(invoke("report", "c" * 20), f"this repository has no run {'c' * 20}", "`lakefs-gc status`")
    found = stored_run(past)

    lines = invoke("report")
    assert lines.exit_code == 0, lines.stderr
    assert lines.stdout.startswith(f"run {found.run_id} of repo, clean: marked, nothing deleted")
    assert invoke("report", found.run_id).stdout == lines.stdout
    assert json.loads(invoke("report", "--json").stdout) == json.loads(found.to_json())


def test_a_page_is_made_of_what_the_run_left(past: OpenRepository, invoke: Invoke) -> None:
    found = stored_run(past)
    assert invoke("report", "--html", "page.html", found.run_id).exit_code == 0
    made = Path("page.html").read_text()
    assert f"lakefs-gc approve {found.run_id}" in made and "which cost 3,000 EUR a month" in made
    assert "256 MiB to 4 GiB" in made
    assert invoke("report", "--html", "-").stdout.startswith("<!DOCTYPE html>")


def test_the_stored_page_is_taken_unless_it_is_to_be_made_again(past: OpenRepository, invoke: Invoke) -> None:
    found = stored_run(past)
    assert invoke("report", "--html", "page.html").exit_code == 0
    stored = Path("page.html").read_bytes().replace(b"31 to 90 days", b"as it was stored")
    page.write(past.store, found.run_id, stored)

    assert invoke("report", "--html", "page.html").exit_code == 0
    assert Path("page.html").read_bytes() == stored
    assert invoke("report", "--html", "page.html", "--again").exit_code == 0
    assert "31 to 90 days" in Path("page.html").read_text()

    reports.write(past.store, replace(found, warnings=("something new",)))
    assert invoke("report", "--html", "page.html").exit_code == 0
    assert "something new" in Path("page.html").read_text()


def test_the_page_is_opened(past: OpenRepository, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    monkeypatch.setattr(click, "launch", launched.append)
    found = stored_run(past)
    assert invoke("report", "--html", "page.html").exit_code == 0
    forged = Path("page.html").read_bytes().replace(b"<body>", b"<body><script>alert(1)</script>")
    page.write(past.store, found.run_id, forged)
    opening = invoke("report", "--open")

    assert opening.exit_code == 0
    (file,) = launched
    assert file in opening.stderr and opening.stdout == ""
    assert found.run_id in Path(file).read_text()
    assert b"<script>alert" in forged and "<script>alert" not in Path(file).read_text()


def test_what_is_no_run_id_becomes_no_path(past: OpenRepository, invoke: Invoke) -> None:
    stored_run(past)
    assert_one_line(invoke("report", "../../data", "--open"), "'../../data' is not a run id: `lakefs-gc status`")


def test_a_run_that_failed(past: OpenRepository, invoke: Invoke) -> None:
    plan = began(past, timedelta(hours=1))
    assert_one_line(invoke("report", plan.run_id), f"run {plan.run_id} has no report")
    reports.write(past.store, reports.failed(plan, NOW, "the server is gone"))

    shown = invoke("report")
    assert shown.stdout.splitlines() == [f"run {plan.run_id} of repo, clean: failed", "  the server is gone"]
    assert "the server is gone" in invoke("report", "--html", "-").stdout


def test_a_damaged_report_is_passed_over_unless_it_is_asked_for(past: OpenRepository, invoke: Invoke) -> None:
    readable, damaged = ended(past, began(past, 2 * HOUR)), ended(past, began(past, HOUR))
    past.store.put(run_folder.report(damaged.run_id), b"damaged")
    found = invoke("report", "--json")
    assert json.loads(found.stdout)["run_id"] == readable.run_id
    assert f"not shown: {run_folder.report(damaged.run_id)}" in found.stderr
    assert "report.json" in invoke("report", damaged.run_id).stderr


def test_one_form_at_a_time(past: OpenRepository, invoke: Invoke) -> None:
    both = invoke("report", "--json", "--html", "page.html")
    assert both.exit_code == Status.USAGE and "exclude each other" in both.stderr
    assert not Path("page.html").exists()


@pytest.mark.slow
def test_each_run_leaves_a_page_beside_its_report_and_counts_candidates_once(
    runs: GraphRuns, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Dagster keeps runs."""
    counts: list[int] = []
    count = garbage.count_candidates

    def counted(store: ObjectStore, frame: StoredFrame[CandidateFigures], *others: Any) -> Garbage:
        counts.append(frame.count)
        return count(store, frame, *others)

    monkeypatch.setattr(garbage, "count_candidates", counted)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))

    result = invoke("run")

    assert result.exit_code == 0, result.stderr
    store = runs.repository.store
    (run_id,) = run_folder.newest_runs(store)
    report = reports.read(store, run_id)
    assert report is not None and counts == [report.counts["candidates"]]
    stored = store.get(run_folder.page(run_id))
    assert b"What the garbage is" in stored and f"lakefs-gc approve {run_id}".encode() in stored
    assert invoke("report", "--html", "page.html").exit_code == 0
    assert Path("page.html").read_bytes() == stored

    runs.clock.moment += timedelta(hours=1)
    assert invoke("approve", "--yes", run_id).exit_code == 0
    swept = store.get(run_folder.page(run_id))
    assert b"Sweep of an earlier dry run of 20" in swept
    assert invoke("report", run_id, "--html", "page.html").exit_code == 0
    assert Path("page.html").read_bytes() == swept
