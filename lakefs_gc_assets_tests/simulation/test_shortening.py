import pytest

from lakefs_gc_assets_tests.simulation.clean_bugs import CLEAN_BUGS
from lakefs_gc_assets_tests.simulation.histories import generate
from lakefs_gc_assets_tests.simulation.playing import failure, reported, shortened

NAME = "receipts written before the delete"


def test_few_steps_are_left_and_fail_alike_which_the_report_names() -> None:
    bug = CLEAN_BUGS[NAME]
    history = generate(0)
    fewer = shortened(history, bug)
    assert len(fewer.steps) < len(history.steps) / 4
    assert "which was not deleted" in str(failure(fewer, bug))
    assert [step for step in history.steps if step in fewer.steps][: len(fewer.steps)] == list(fewer.steps)
    text = reported(fewer, bug)
    assert text.startswith("seed 0, ")
    assert "=> run " in text


def test_a_history_that_passes_cannot_be_shortened() -> None:
    with pytest.raises(ValueError, match="does not fail"):
        shortened(generate(0))
