"""The explorer confirms the document's claims about its designs, and this project's claims about its own."""

from dataclasses import replace
from types import ModuleType

import pytest

from lakefs_gc_assets_tests.rejected_designs import (
    no_copies,
    offline,
    reference_counter,
    staged_path,
    staging_references,
    token_states,
)
from lakefs_gc_assets_tests.rejected_designs.explorer import Case, every_problem, explore, replay
from lakefs_gc_assets_tests.rejected_designs.page import MODULES, PAGE, render

_ALL = [
    pytest.param(case, id=f"{module.__name__.rpartition('.')[2]}-{case.title}")
    for module in MODULES
    for case in module.CASES
]


@pytest.mark.parametrize("case", _ALL)
def test_a_case_ends_as_it_is_said_to(case: Case) -> None:
    found = case.found
    assert (found.problem is None) == case.holds
    assert replay(case.scenario, found.history) == found.problem


@pytest.mark.parametrize("case", [each for each in _ALL if not each.values[0].holds])  # type: ignore[union-attr]
def test_no_history_is_shorter(case: Case) -> None:
    """Checks with another search over histories, not states, as far as it gets in a second or so."""
    found = case.found
    assert not list(every_problem(case.scenario, min(len(found.history) - 1, 8)))
    if len(found.history) <= 8:
        assert found.history in set(every_problem(case.scenario, len(found.history)))


LENGTHS: dict[ModuleType, dict[str, int]] = {
    staged_path: {"a write that ends after the commit": 4},
    reference_counter: {"a store that cannot update metadata conditionally": 9},
    staging_references: {"an override": 8, "a commit": 16, "a delete": 11},
    token_states: {"an override on one token": 8},
    no_copies: {"commit and move": 11, "delete and move": 6, "concurrent moves": 12, "a stale lock": 4},
}
"""The blockers and races that the document names, and the lengths of their histories in these models."""


@pytest.mark.parametrize("module", LENGTHS, ids=lambda module: module.TITLE)
def test_what_the_document_names_is_found(module: ModuleType) -> None:
    cases = {case.title: case for case in module.CASES}
    found = {title: cases[title].found for title in LENGTHS[module]}
    assert {title: len(each.history) for title, each in found.items()} == LENGTHS[module]
    assert all(each.problem for each in found.values())


@pytest.mark.parametrize(
    ("module", "title"),
    [
        (reference_counter, "the same on a store that can"),
        (no_copies, "delete and move, both with locks"),
        (no_copies, "concurrent moves that respect locks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_where_the_documents_own_repair_holds(module: ModuleType, title: str) -> None:
    (case,) = [each for each in module.CASES if each.title == title]
    assert case.holds and case.found.problem is None


def test_each_look_of_an_offline_collection_is_needed() -> None:
    """Without any single look, some history of the same writers loses a live object."""
    for without in offline.LOOK:
        phases = tuple(phase for phase in offline.TWO_LOOKS if phase != without)
        scenario = offline.scenario(phases, offline.UPLOAD, offline.COMMIT, places=(offline.X,))
        assert explore(scenario).problem, without


def test_a_collection_deletes_garbage_at_all() -> None:
    def left(world: offline.Tracked) -> str | None:
        return "p0" if "p0" in world.objects else None

    collected = offline.scenario(offline.TWO_LOOKS, offline.UPLOAD)
    assert explore(replace(collected, left=left)).problem is None
    never = offline.scenario((), offline.UPLOAD)
    assert explore(replace(never, left=left)).problem == "p0"


def test_the_page_is_what_the_explorer_finds() -> None:
    assert PAGE.read_text() == render(), f"write it again: python -m {__package__} > docs/evidence/{PAGE.name}"
