"""The model has the order of the code, names existing bugs and tests, and its smallest scope is checked."""

import ast
import inspect
import re
import subprocess
import textwrap
from collections.abc import Callable
from typing import cast

import pytest

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.sweep import recheck, sweeping
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets_tests.documentation.test_pages import names_of_tests
from lakefs_gc_assets_tests.extensions.check import test_unneeded_metadata
from lakefs_gc_assets_tests.model.checking import check, install, read, text
from lakefs_gc_assets_tests.model.scopes import COLLECTION, METADATA, Model, some
from lakefs_gc_assets_tests.simulation.bugs import seeded

TEXT = text(COLLECTION)
SMALLEST = "commits"


def in_order(function: Callable[..., object], *names: str) -> bool:
    """True if a function calls these functions in this order, each at least once."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = sorted(
        (node.func.end_lineno or 0, node.func.end_col_offset or 0, ast.unparse(node.func).rpartition(".")[2])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    )
    called = [name for _, _, name in calls if name in names]
    return list(dict.fromkeys(called)) == list(names)


def test_the_steps_of_a_run_are_those_of_the_model() -> None:
    steps = "list_stored -> read_uncommitted -> read_committed -> mark -> sweep"
    assert steps in (run.__doc__ or "")
    assert 'ELSE <<"list", "prepare", "dump">>' in TEXT


def test_a_sweep_does_what_the_model_does_in_its_order() -> None:
    assert in_order(run.read_uncommitted, "read_reasons", "prepare_uncommitted")
    assert in_order(
        run.sweep_candidates, "require_not_restored_since", "require_not_overtaken", "wait_for_recheck", "sweep_once"
    )
    assert in_order(sweeping.sweep_once, "begin", "find_live_again", "require_inputs", "map_batches")
    assert in_order(recheck.find_live_again, "read_reasons", "prepare_uncommitted", "ask_committed")
    assert in_order(sweeping.Sweep.delete, "verify_permitted", "is_over", "decide")
    assert in_order(sweeping.Sweep.verify_permitted, "verify", "require_standing")
    assert in_order(sweeping.Sweep.decide, "delete_batch", "write")


def test_an_act_on_metadata_does_what_the_model_does_in_its_order() -> None:
    assert in_order(unneeded_metadata.move, "_wait", "find_unneeded", "move", "put_back")
    assert in_order(unneeded_metadata.purge, "find_unneeded", "_read_moves", "is_back", "purge")
    moving, purging = unneeded_metadata.MetadataQuarantine.move, unneeded_metadata.MetadataQuarantine.purge
    assert in_order(moving, "work_ahead", "_write_receipt", "verify", "_delete")
    assert in_order(purging, "verify", "is_over", "_write_receipt", "_delete")


@pytest.mark.parametrize(
    ("model", "bugs", "untaken"),
    [
        (COLLECTION, {*(each.name for each in seeded()), ""}, {"fetch heads", "lock", "overtaken"}),
        (METADATA, {*test_unneeded_metadata.BUGS, ""}, set[str]()),
    ],
    ids=["collection", "metadata"],
)
def test_mutants_name_rules_invariants_bugs_and_tests_that_there_are(
    model: Model, bugs: set[str], untaken: set[str]
) -> None:
    for rule, mutant in model.mutants.items():
        assert f'On("{rule}")' in text(model) or mutant.constants, rule
        assert mutant.invariant in (*model.always, *model.scopes[mutant.scope].invariants)
        assert mutant.bug in bugs, mutant.bug
        assert mutant.test in names_of_tests(), mutant.test
    assert {*re.findall(r'On\("([^"]+)"\)', text(model))} <= {*model.mutants, *untaken}
    assert all(limit.scope in model.scopes for limit in model.limits.values())


@pytest.mark.parametrize("model", [COLLECTION, METADATA], ids=["collection", "metadata"])
def test_clients_do_in_some_scope_whatever_the_model_lets_them_do(model: Model) -> None:
    changes = [scope.constants for scope in model.scopes.values()]
    changes += [mutant.constants for mutant in (*model.mutants.values(), *model.limits.values())]
    done = {name for constants in changes for name in cast(frozenset[str], constants.get("Clients", frozenset()))}
    allowed = {*re.findall(r'May\("([^"]+)"\)|"([^"]+)" \\(?:not)?in Clients', text(model))}
    assert {name for names in allowed for name in names if name} - done == set()


def test_what_tlc_says_otherwise_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not end as it should"):
        read("Error: Parsing or semantic analysis failed.")


def test_no_run_of_the_model_reads_the_requirement_or_what_no_answer_of_lakefs_says() -> None:
    definitions = dict(
        re.findall(r"^(\w+)(?:\([^)]*\))? == *\n?(.*?)(?=^\w+(?:\([^)]*\))? ==|^---)", TEXT, re.M | re.S)
    )
    unseen = re.compile(r"\b(log|began|firm|moving|Live|Required|Shown|Brings|Coming)\b")
    run_reads = ("Reasons", "Says", "Fetched", "Walked", "Kept", "KeptBefore", "Committed", "Hidden", "CommitsEnded")
    assert unseen.search(definitions["Required"])
    assert [
        name for name in run_reads if unseen.search(re.sub(r"\(\*.*?\*\)", "", definitions[name], flags=re.S))
    ] == []


@pytest.fixture
def tlc() -> None:
    """Installs TLC, or skips the test."""
    try:
        install()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"TLC cannot be installed here: {error}")


@pytest.mark.slow
@pytest.mark.usefixtures("tlc")
def test_smallest_scope_holds_without_tokens_and_its_mutant_does_not() -> None:
    whole = check(COLLECTION, SMALLEST, {})
    assert (whole.violated, whole.states > 500) == (None, True)
    assert check(COLLECTION, SMALLEST, {}, ("NothingIsDeleted",)).violated == "NothingIsDeleted"
    rule = "longest commit"
    assert check(COLLECTION, SMALLEST, {"Off": some(rule)}).violated == COLLECTION.mutants[rule].invariant


@pytest.mark.slow
@pytest.mark.usefixtures("tlc")
@pytest.mark.parametrize(("longest", "assumed", "violated"), [(1, 1, None), (1, 0, "NoLiveDeleted")])
def test_commits_lose_nothing_unless_they_last_longer_than_runs_assume(
    longest: int, assumed: int, violated: str | None
) -> None:
    constants = {"End": 4, "Longest": longest, "Assumed": assumed}
    assert check(COLLECTION, SMALLEST, constants).violated == violated


@pytest.mark.slow
@pytest.mark.usefixtures("tlc")
def test_entry_of_a_tag_that_goes_during_the_mark_is_lost_without_tags_from_before() -> None:
    found = check(COLLECTION, "tags", {"Off": some("tags before")}, ("NothingStagedDeleted",))
    assert found.violated == "NothingStagedDeleted"
    order = [found.trace.index(each) for each in ("DeleteTag", "DumpBranches", "BeginRecheck", "Delete")]
    assert order == sorted(order)
    assert {"Restage", "BeginCommit", "Remove"} <= {*found.trace}
