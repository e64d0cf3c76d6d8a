from pathlib import Path

from lakefs_gc_assets_tests.simulation import guard_table

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "mutants.md"


def test_each_call_that_may_refuse_has_a_seeded_bug_or_a_reason_why_not() -> None:
    assert {*guard_table.calls()} - guard_table.found_by().keys() == guard_table.NOT_SEEDED.keys()


def test_the_page_has_the_table_of_today() -> None:
    assert "\n".join(guard_table.rows()) in PAGE.read_text()
