import subprocess
import sys
from dataclasses import fields, replace

import pytest

from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.records.outcomes import RunStatistics, declarations
from lakefs_gc_assets.collector.records.report import describe
from lakefs_gc_assets_tests.collector.page.stored_runs import BYTES, COUNTS
from lakefs_gc_assets_tests.collector.records.test_report import REPORT


def test_every_figure_has_a_unit_and_a_definition() -> None:
    assert [*declarations(RunStatistics)] == [field.name for field in fields(RunStatistics)]
    for declared in (declarations(RunStatistics), *(declarations(FRAMES[step].figures) for step in STEPS)):
        assert all(figure.unit and figure.meaning for figure in declared.values())


def test_definitions_do_not_need_docstrings_at_run_time() -> None:
    program = (
        "from lakefs_gc_assets.collector.records.outcomes import RunStatistics, declarations\n"
        "print(*(figure.meaning for figure in declarations(RunStatistics).values()), sep='|', end='')"
    )
    stripped = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True)
    assert stripped.stdout.split("|") == [figure.meaning for figure in declarations(RunStatistics).values()]


@pytest.mark.parametrize("step", STEPS)
def test_every_number_of_a_step_is_a_figure(step: str) -> None:
    kind = FRAMES[step].figures
    numbers = {name for name, hint in kind.__annotations__.items() if hint in (int, float, int | None, float | None)}
    assert not numbers


def test_a_report_stores_what_is_known_by_the_names_of_its_entries() -> None:
    known = RunStatistics(listed=3, listed_bytes=0, candidates=0, seconds=1.5, live=3, kept=0)
    assert (known.counts, known.object_bytes) == ({"listed": 3, "candidates": 0}, {"listed": 0})
    assert RunStatistics().counts == RunStatistics().object_bytes == {}


def test_a_report_is_read_with_the_figures_that_it_has() -> None:
    report = replace(REPORT, counts={"deleted": 1, "commits_tagged": 2}, object_bytes={"deleted": 10})
    assert report.statistics == RunStatistics(deleted=1, deleted_bytes=10, kept=1)
    assert replace(REPORT, counts={}, object_bytes={}, kept={}).statistics == RunStatistics()


def test_what_a_run_looked_at_is_live_kept_or_garbage() -> None:
    statistics = replace(REPORT, counts=COUNTS, object_bytes=BYTES, kept={"too young": 1, "other": 1}).statistics
    assert (statistics.live, statistics.kept, statistics.candidates) == (5, 2, 3)


def test_a_run_that_builds_on_another_one_does_not_know_how_much_commits_hold() -> None:
    """Earlier versions stored how many addresses it looked up: 0, where nothing was committed since."""
    report = replace(REPORT, counts=COUNTS | {"committed": 0}, object_bytes=BYTES)
    assert report.statistics.committed == 0
    assert "1 range read, 0 addresses" in "\n".join(describe(report))
    report = replace(report, base_run="r" * 20)
    assert report.statistics.committed is None
    assert "committed" not in report.statistics.counts
    assert any(line.endswith("1 range read") for line in describe(report))
