"""What docs/retention.md says of the design of a run that reads what expired alone, and of others like it."""

import pytest

from lakefs_gc_assets_tests.retention_base.histories import METARANGES, Step, draw, play, shorten
from lakefs_gc_assets_tests.retention_base.model import Design
from lakefs_gc_assets_tests.retention_base.others import OTHERS

_HISTORIES = 4_000


def test_the_design_marks_what_full_runs_mark_and_reads_less() -> None:
    results = [play(draw(seed), Design()) for seed in range(_HISTORIES)]
    assert [each.problem for each in results if each.problem] == []
    assert sum(each.built for each in results) > _HISTORIES
    assert sum(each.found for each in results) > _HISTORIES / 20
    assert sum(each.reads for each in results) < sum(each.full_reads for each in results)


@pytest.mark.parametrize(("design", "does"), OTHERS, ids=lambda value: type(value).__name__)
def test_a_history_breaks_each_other_design(design: Design, does: str) -> None:
    for seed in range(_HISTORIES):
        found = play(draw(seed), design).problem
        if found and found.startswith(does):
            history = shorten(draw(seed), design, does)
            assert play(history, Design()).problem is None, history
            return
    raise AssertionError(f"no history: {design.title}")


def test_a_run_after_which_nothing_changed_reads_nothing() -> None:
    made = (Step("upload"), Step("commit"), Step("time"))
    run = (Step("begin"), Step("end"))
    assert METARANGES[0] in {METARANGES[step.which] for step in made}
    result = play((*made, *run, *run), Design())
    assert (result.built, result.reads, result.full_reads) == (1, 0, 1)
