from dataclasses import fields, replace
from typing import get_type_hints

import pytest

from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.records.figures import (
    BYTES,
    FIGURES,
    HISTORY_FIGURES,
    LISTING,
    OLDEST,
    STEP_FIGURES,
    Statistics,
    manifest_entries,
    of_step,
    required,
    stated,
)
from lakefs_gc_assets.collector.records.report import describe
from lakefs_gc_assets.defs.history import FREED_IN_ALL, OLDEST_GARBAGE
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES, LISTED_FIGURES
from lakefs_gc_assets_tests.collector.page import stored_runs
from lakefs_gc_assets_tests.collector.page.stored_runs import COUNTS
from lakefs_gc_assets_tests.collector.records.test_report import REPORT

SIZES = stored_runs.BYTES


def test_every_field_of_the_statistics_is_a_figure_with_a_unit_a_step_and_a_definition() -> None:
    assert FIGURES.keys() == {field.name for field in fields(Statistics)}
    for figure in FIGURES.values():
        assert figure.unit and figure.meaning and figure.step in {*STEPS, ""} and figure.since in (OLDEST, "0.3")
    assert all(figure.step in STEPS for figure in STEP_FIGURES.values())


def test_every_label_is_that_of_objects_or_addresses() -> None:
    assert all(figure.unit != BYTES for figure in FIGURES.values() if figure.label)


def test_names_in_the_history_are_those_of_one_figure() -> None:
    names = [figure.event for figure in FIGURES.values() if figure.event] + [*HISTORY_FIGURES]
    assert len(names) == len({*names}) and {FREED_IN_ALL, OLDEST_GARBAGE} <= {*names}


@pytest.mark.parametrize("step", STEPS)
def test_every_number_of_a_step_is_a_figure(step: str) -> None:
    hints = get_type_hints(FRAMES[step].figures)
    numbers = {name for name, hint in hints.items() if hint in (int, float, int | None, float | None)}
    assert numbers <= STEP_FIGURES.keys()


def test_a_manifest_states_the_figures_of_its_own_step() -> None:
    entries = manifest_entries(LISTING, {**vars(LISTED_FIGURES), "missing": 3})
    assert entries.keys() & STEP_FIGURES.keys() == of_step(LISTING).keys()
    assert entries["flow"] == LISTED_FIGURES.flow


def test_figures_of_steps_are_put_together() -> None:
    merged = stated(LISTED_FIGURES, replace(CANDIDATE_FIGURES, missing=3))
    assert (merged["slices_listed"], merged["missing"]) == (1, 3)
    assert "entries_promised" not in merged


def test_a_figure_that_a_guard_needs_is_never_taken_for_zero() -> None:
    assert required(0) == 0
    with pytest.raises(ValueError, match="a figure that a guard needs is unknown"):
        required(None)


def test_a_report_stores_what_is_known_by_the_names_of_its_entries() -> None:
    known = Statistics(listed=3, listed_bytes=0, candidates=0, seconds=1.5, live=3, kept=0)
    assert (known.counts, known.object_bytes) == ({"listed": 3, "candidates": 0}, {"listed": 0})
    assert Statistics().counts == Statistics().object_bytes == {}


def test_a_report_is_read_with_the_figures_that_it_has() -> None:
    report = replace(REPORT, counts={"deleted": 1, "commits_tagged": 2}, object_bytes={"deleted": 10})
    assert report.statistics == Statistics(deleted=1, deleted_bytes=10, kept=1)
    assert replace(REPORT, counts={}, object_bytes={}, kept={}).statistics == Statistics()


def test_what_a_run_looked_at_is_live_kept_or_garbage() -> None:
    statistics = replace(REPORT, counts=COUNTS, object_bytes=SIZES, kept={"too young": 1, "other": 1}).statistics
    assert (statistics.live, statistics.kept, statistics.candidates) == (5, 2, 3)


def test_a_run_that_builds_on_another_one_does_not_know_how_much_commits_hold() -> None:
    """Earlier versions stored how many addresses it looked up: 0, where nothing was committed since."""
    report = replace(REPORT, counts=COUNTS | {"committed": 0}, object_bytes=SIZES)
    assert report.statistics.committed == 0
    assert "1 range read, 0 addresses" in "\n".join(describe(report))
    report = replace(report, base_run="r" * 20)
    assert report.statistics.committed is None
    assert "committed" not in report.statistics.counts
    assert any(line.endswith("1 range read") for line in describe(report))


def test_a_report_of_an_earlier_version_is_read_by_the_names_of_that_version() -> None:
    for name, figure in FIGURES.items():
        if figure.formerly and figure.reported:
            assert getattr(replace(REPORT, counts={figure.formerly: 7}).statistics, name) == 7
