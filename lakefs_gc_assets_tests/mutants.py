"""Changes modules of the run one place at a time, and sees whether their fast tests notice: `make mutants`.

mutmut makes the changes (mutants) and runs the tests, each mutant in a process of its own. It is not in the lock:
`make mutants` installs it beside `.venv`. Operators of our own are added to its own, and those that change texts are
left out: what a message says is no rule. Functions with a decorator are not changed: mutmut cannot stand in for them.

This file is run by its path, with `python -P` and in the folder of the project: mutmut must be the first to import the
package.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import libcst as cst
import mutmut
import pytest
from hypothesis import HealthCheck, Phase, settings
from mutmut import __main__ as runner
from mutmut import file_mutation, node_mutation

PACKAGE, TESTS = Path("lakefs_gc_assets"), Path("lakefs_gc_assets_tests")
WORK = Path(".mutants")
_MODULES = {
    "collector": "cutoff expiring failing guards lock order recheck run sightings step subtraction",
    "collector/incremental": "base_checkpoint base_run checkpoint leaving ranges_read",
    "collector/live": "commits contents current hidden live_files other_repositories ownership uncommitted unnamed",
    "collector/retention": "active_commits policy retention retention_rules server_commits",
    "collector/sweep": "approval batches overtaking passes receipts undeletable validity",
    "lakefs": "addresses",
}
MODULES = {name: Path(folder, f"{name}.py") for folder, names in _MODULES.items() for name in names.split()}
"""Modules that can be asked for, inside of the package."""
FURTHER_TESTS = {
    "recheck": ("collector/test_run_guards.py",),
    "run": ("collector/test_run_guards.py",),
}
"""Tests of a module beside the file that mirrors it."""
_SERVICES = {"s3_server", "spark", "ReplayServer"}
"""Fixtures and classes that start a service: clients that were used before a fork wait for ever after it."""
_SURVIVED = {0: "survived", 5: "no test", 33: "no test", None: "not tried", -signal.SIGXCPU: "no end"}
_LONGEST_SECONDS = 90.0
_OPPOSITE = {"min": "max", "max": "min"}


def main() -> None:
    """Tries the modules that are asked for; prints figures of each, and what of each was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="module", help=f"of {', '.join(MODULES)}; all unless given")
    options = parser.parse_args()
    if unknown := set(options.modules) - MODULES.keys():
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    names = options.modules or list(MODULES)
    try_mutants(names)
    for name in names:
        report(PACKAGE / MODULES[name])


def try_mutants(names: Sequence[str]) -> None:
    """Makes the mutants of these modules in a copy of the package, and runs their tests against each."""
    copy = WORK / "mutants"
    for folder in (WORK / PACKAGE, copy):
        shutil.rmtree(folder, ignore_errors=True)
    (WORK / "mutmut-stats.json").unlink(missing_ok=True)
    for into in (WORK / PACKAGE, copy / PACKAGE):
        shutil.copytree(PACKAGE, into, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(TESTS, copy / TESTS, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", copy)
    os.chdir(WORK)
    # Tests of one process, of the disk alone, that need nothing of conftest.py, which starts Spark. A traceback would
    # have pytest parse a module with all its mutants in it, which takes longer than the tests.
    os.environ["PYTEST_ADDOPTS"] = "--noconftest --tb=no -p no:cacheprovider -p no:xdist -m 'not slow' -k 'not s3'"
    os.environ["PYTHONPATH"] = str(copy.resolve())
    settings.register_profile(
        "mutants",
        deadline=None,
        derandomize=True,
        database=None,
        max_examples=50,
        phases=(Phase.explicit, Phase.generate),
        # The same tests run several times in one process, on other objects each time.
        suppress_health_check=[*HealthCheck],
    )
    settings.load_profile("mutants")
    # mutmut 3.3.1 asks a test for its name where pytest no longer has it.
    setattr(pytest.Item, "_nodeid", property(lambda item: item.nodeid))  # noqa: B010
    _change_operators()
    _choose_tests()
    runner.timeout_checker = _ends_mutants
    mutmut.config = runner.Config(
        also_copy=[],
        do_not_mutate=[],
        max_stack_depth=-1,
        debug=False,
        paths_to_mutate=[PACKAGE / MODULES[name] for name in names],
        tests_dir=sorted({str(TESTS / test) for name in names for test in tests_of(name)}),
    )
    runner._run((), 1)


def tests_of(name: str) -> tuple[str, ...]:
    """Files of tests for a module, inside of the tests."""
    mirror = MODULES[name].with_name(f"test_{MODULES[name].name}")
    own = (str(mirror),) if (Path("mutants") / TESTS / mirror).exists() else ()
    return own + FURTHER_TESTS.get(name, ())


def report(path: Path) -> None:
    """Prints how many mutants of a module there are and were noticed, and the others whole."""
    codes: dict[str, int | None] = json.loads((Path("mutants") / f"{path}.meta").read_text())["exit_code_by_key"]
    counts = Counter(_SURVIVED.get(code, "killed") for code in codes.values())
    print(json.dumps({"module": path.stem, "mutants": len(codes), **counts}))
    for mutant, code in codes.items():
        if code in _SURVIVED and code is not None:
            print(runner.get_diff_for_mutant(mutant))
    sys.stdout.flush()


def _change_operators() -> None:
    """Leaves out changes of texts, adds what a hurried collector does, and looks into data classes as well."""
    kept = [each for each in node_mutation.mutation_operators if each[1] is not node_mutation.operator_string]
    file_mutation.mutation_operators = [
        *kept,
        (cst.Call, _opposite_extreme),
        (cst.Raise, _pass),
        (cst.Expr, _without_call),
        (cst.Return, _returns_none),
    ]
    skips = file_mutation.MutationVisitor._skip_node_and_children

    def skip(visitor: file_mutation.MutationVisitor, node: cst.CSTNode) -> bool:
        return not isinstance(node, cst.ClassDef) and bool(skips(visitor, node))

    file_mutation.MutationVisitor._skip_node_and_children = skip


def _choose_tests() -> None:
    """Makes pytest leave out tests that need a service, or Spark, whatever their names are.

    It also times tests, so that the fastest are run first: mutmut itself takes the time of their teardown alone.
    """

    class Chosen:
        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            items[:] = [item for item in items if _SERVICES.isdisjoint(_names_in(item))]

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
            durations[item.nodeid] = durations.get(item.nodeid, 0.0) + call.duration
            mutmut.duration_by_test[item.nodeid] = durations[item.nodeid]

    durations: dict[str, float] = {}

    run = runner.PytestRunner.execute_pytest

    def execute(tests: runner.PytestRunner, params: list[str], plugins: Sequence[object] = ()) -> int:
        return int(run(tests, params, plugins=[*plugins, Chosen()]))

    runner.PytestRunner.execute_pytest = execute


def _names_in(item: pytest.Item) -> set[str]:
    """Names of the fixtures of a test, and those that the code of the test and of its fixtures speaks of."""
    if not isinstance(item, pytest.Function):
        return set()
    fixtures = [each.func for defined in item._fixtureinfo.name2fixturedefs.values() for each in defined]
    codes = (getattr(function, "__code__", None) for function in (item.function, *fixtures))
    return {*item.fixturenames}.union(*(code.co_names for code in codes if code))


def _ends_mutants(mutants: Sequence[tuple[runner.SourceFileMutationData, str, int | None]]) -> Callable[[], None]:
    """Ends the tests of a mutant that take too long. mutmut's own limit is 15 s, which a busy machine may need."""

    def end() -> None:
        while True:
            time.sleep(1)
            now = datetime.now()
            for data in {id(each): each for each, _, _ in mutants}.values():
                for pid, started_at in dict(data.start_time_by_pid).items():
                    if (now - started_at).total_seconds() > _LONGEST_SECONDS:
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGXCPU)

    return end


def _opposite_extreme(node: cst.Call) -> Iterable[cst.CSTNode]:
    """`min` for `max`, and the other way round."""
    if isinstance(node.func, cst.Name) and node.func.value in _OPPOSITE:
        yield node.with_changes(func=cst.Name(_OPPOSITE[node.func.value]))


def _pass(node: cst.Raise) -> Iterable[cst.CSTNode]:
    """Goes on instead of raising."""
    yield cst.Pass()


def _without_call(node: cst.Expr) -> Iterable[cst.CSTNode]:
    """Does not call what is called for what it does."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def _returns_none(node: cst.Return) -> Iterable[cst.CSTNode]:
    """Returns None instead of a value."""
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"))


if __name__ == "__main__":
    main()
