"""The model has the order of the code, names what there is, and its smallest scope is checked."""

import ast
import inspect
import re
import subprocess
import textwrap
from collections.abc import Callable

import pytest

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.sweep import passes, recheck
from lakefs_gc_assets_tests.documentation.test_pages import names_of_tests
from lakefs_gc_assets_tests.model.checking import MODULE, check, install, read
from lakefs_gc_assets_tests.model.scopes import ALWAYS, LIMITS, MUTANTS, SCOPES, some
from lakefs_gc_assets_tests.simulation.bugs import seeded

TEXT = MODULE.read_text()
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
    assert in_order(run.read_uncommitted, "heads_shown", "prepare_uncommitted")
    assert in_order(
        run.sweep_candidates, "require_not_restored_since", "require_not_overtaken", "wait_for_recheck", "sweep_once"
    )
    assert in_order(passes.sweep_once, "begin", "find_live_again", "require_inputs", "map_batches")
    assert in_order(
        recheck.find_live_again, "heads_shown", "prepare_uncommitted", "ask_committed", "require_commits_ended"
    )
    assert in_order(passes.Sweep.delete, "verify", "is_over", "_batch")
    assert in_order(passes.Sweep.decide, "delete_batch", "write")


def test_mutants_name_rules_invariants_bugs_and_tests_that_there_are() -> None:
    bugs = {each.name for each in seeded()}
    for rule, mutant in MUTANTS.items():
        assert f'On("{rule}")' in TEXT or mutant.constants, rule
        assert mutant.invariant in (*ALWAYS, *SCOPES[mutant.scope].invariants)
        assert mutant.bug in bugs, mutant.bug
        assert mutant.test in names_of_tests(), mutant.test
    assert {*re.findall(r'On\("([^"]+)"\)', TEXT)} <= {*MUTANTS, "lock", "overtaken"}
    assert all(limit.scope in SCOPES for limit in LIMITS.values())


def test_what_tlc_says_otherwise_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not end as it should"):
        read("Error: Parsing or semantic analysis failed.")


@pytest.mark.slow
def test_the_smallest_scope_holds_and_its_mutants_do_not() -> None:
    try:
        install()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"TLC cannot be installed here: {error}")
    whole = check(SMALLEST, {})
    assert (whole.violated, whole.states > 500) == (None, True)
    assert check(SMALLEST, {}, ("NothingIsDeleted",)).violated == "NothingIsDeleted"
    for rule in ("fetch heads", "commits under way"):
        assert check(SMALLEST, {"Off": some(rule)}).violated == MUTANTS[rule].invariant
