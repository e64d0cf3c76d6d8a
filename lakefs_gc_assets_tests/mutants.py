"""Changes modules of the run one place at a time, and sees whether their fast tests notice: `make mutants`.

mutmut makes the changes (mutants). It is not in the lock: `make mutants` installs it beside `.venv`. Operators of our
own are added to its own, and those that change texts are left out: what a message says is no rule. Functions with a
decorator are not changed: mutmut cannot stand in for them.

Tests are collected once, and run once to see which functions each of them calls. Then each mutant has a process of its
own, forked from that one, which runs the tests of the changed function until one fails: those first that failed before,
then the fastest.

This file is run by its path, with `python -P` and in the folder of the project: mutmut must be the first to import the
package.
"""

import argparse
import ast
import gc
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path

import libcst as cst
import mutmut
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings
from mutmut import __main__ as runner
from mutmut import file_mutation, node_mutation

PACKAGE, TESTS = Path("lakefs_gc_assets"), Path("lakefs_gc_assets_tests")
WORK = Path(".mutants").absolute()
COPY, OUTCOMES = WORK / "mutants", WORK / "outcomes"
_MODULES = {
    "collector": "expiring gap_check guards lock make_step repository run step",
    "collector/earlier": "earlier_runs history",
    "collector/frame": "manifest receipts",
    "collector/engine": "local",
    "collector/incremental": "checkpoint checkpoint_writer planning",
    "collector/live": (
        "contents current facts facts_of_ranges hidden known_ranges live_files other_repositories "
        "references uncommitted"
    ),
    "collector/quarantine": "purge restore",
    "collector/records": "across_runs outcomes",
    "collector/retention": "active_commits commits retention rules",
    "collector/stored": "ids_read records_json run_folder tables",
    "collector/sweep": "passes recheck",
    "collector/universe": "listing subtraction",
    "lakefs": "addresses",
}
MODULES = {name: Path(folder, f"{name}.py") for folder, names in _MODULES.items() for name in names.split()}
"""Modules that can be asked for, inside of the package."""
FURTHER_TESTS = {
    "commits": ("collector/retention/test_retention.py",),
    "expiring": ("collector/live/test_uncommitted_preparations.py",),
    "hidden": ("collector/live/test_contents.py",),
    "purge": ("collector/sweep/test_passes_deletion_move.py",),
    "recheck": ("collector/test_run_guards.py",),
    "records_json": (
        "collector/records/test_plan.py",
        "collector/records/test_report.py",
        "collector/frame/test_manifest.py",
    ),
    "restore": ("collector/sweep/test_passes_deletion_move.py",),
    "run": ("collector/test_run_guards.py",),
    "run_folder": ("collector/records/test_plan.py",),
}
"""Tests of a module beside the file that mirrors it."""
_SERVICES = {"s3_server", "spark", "ReplayServer", "replaying", "replays"}
"""What starts a service: clients that were used before a fork wait for ever after it."""
_IN_A_CLOUD = re.compile(r"[\[_-](s3|gcs|azure)[\]_-]")
"""In the names of tests that ask for the service where they begin."""
_AROUND = 80
_SHORTEST_LIMIT_SECONDS = 3.0
_WAITING_SECONDS = 180
_OPPOSITE = {"min": "max", "max": "min"}


class Outcome(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    NO_TEST = "no test"
    NO_END = "no end"


@dataclass(frozen=True)
class Mutant:
    """One change of one function.

    Attributes:
        module: as it is asked for.
        name: the name of the module to Python, and of a function of its own there.
    """

    module: str
    name: str

    @property
    def function(self) -> str:
        """The function that is changed, as mutmut tells that it was called."""
        return self.name.rpartition("__mutmut_")[0]

    @property
    def own_function(self) -> str:
        """The name that the changed function has in its class or module."""
        own = self.function.rpartition(".")[2]
        return own.rpartition("ǁ")[2] if "ǁ" in own else own.removeprefix("x_")

    def change(self) -> str:
        """What differs from the function as it was, with a little of what is around it."""
        codes: dict[str, str] = {}
        for node in ast.walk(ast.parse((COPY / PACKAGE / MODULES[self.module]).read_text())):
            if isinstance(node, ast.FunctionDef):
                codes[node.name] = " ".join(" ".join(map(ast.unparse, [node.args, *node.body])).split())
        before, after = (codes[each.rpartition(".")[2]] for each in (f"{self.function}__mutmut_orig", self.name))
        start = _count_alike(before, after)
        alike = _count_alike(before[start:][::-1], after[start:][::-1])
        shown = slice(max(start - _AROUND, 0), start)
        ends = (each[start : len(each) - alike + _AROUND] for each in (before, after))
        return "\n".join(f"  {sign} {before[shown]}{end}" for sign, end in zip("-+", ends, strict=True))


def _count_alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def main() -> None:
    """Tries the modules that are asked for; prints what was not noticed as it goes, and figures of each module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="module", help=f"of {', '.join(MODULES)}; all unless given")
    parser.add_argument("--functions", nargs="+", default=[], metavar="name", help="only mutants of these functions")
    parser.add_argument("--again", action="store_true", help="only mutants that were not noticed, or not tried, before")
    options = parser.parse_args()
    if unknown := set(options.modules) - MODULES.keys():
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    names: Sequence[str] = options.modules or list(MODULES)
    made = make_mutants(names)
    tried = [each for each in made if not options.functions or each.own_function in options.functions]
    if options.again:
        known = {mutant: outcome for name in names for mutant, outcome in outcomes_of(name).items()}
        tried = [each for each in tried if known.get(each.name) != Outcome.KILLED]
    else:
        for name in names:
            (OUTCOMES / name).unlink(missing_ok=True)
    try_mutants(tried, sorted({str(TESTS / test) for name in names for test in tests_of(name)}))
    for name in names:
        outcomes = outcomes_of(name)
        counts = Counter(outcomes.get(each.name, "not tried") for each in made if each.module == name)
        print(json.dumps({"module": name, "mutants": counts.total(), **counts}))


def make_mutants(names: Sequence[str]) -> list[Mutant]:
    """Puts a copy of the package, and of its tests, where these modules hold all of their mutants."""
    shutil.rmtree(COPY, ignore_errors=True)
    for folder in (PACKAGE, TESTS):
        shutil.copytree(folder, COPY / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", COPY)
    # Recordings lie beside the copy, where tests look for them, if they lie beside the checkout.
    (WORK / "shared").unlink(missing_ok=True)
    (WORK / "shared").symlink_to(Path("../shared").absolute())
    _change_operators()
    made: list[Mutant] = []
    for name in names:
        path = PACKAGE / MODULES[name]
        changed, functions = file_mutation.mutate_file_contents(str(path), path.read_text())
        (COPY / path).write_text(changed)
        made += [Mutant(name, f"{'.'.join(path.with_suffix('').parts)}.{function}") for function in functions]
    return made


def try_mutants(mutants: Sequence[Mutant], tests: Sequence[str]) -> None:
    """Runs the tests against each mutant, and keeps what became of it; prints what no test noticed."""
    os.chdir(COPY)
    sys.path.insert(0, str(COPY))
    # What mutmut asks when a function tells it that it was called.
    mutmut.config = runner.Config(also_copy=[], do_not_mutate=[], max_stack_depth=-1, debug=False, paths_to_mutate=[])
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
    # Tests of one process, of the disk alone, that need nothing of conftest.py, which starts Spark. A traceback would
    # have pytest parse a module with all its mutants in it, which takes longer than the tests.
    chosen = ["--noconftest", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    os.environ["MUTANT_UNDER_TEST"] = ""
    if code := pytest.main(["-q", "-s", *chosen, "--rootdir=.", *tests], plugins=[_Trial(mutants)]):
        sys.exit(int(code))


class _Trial:
    """Stands in for pytest's own loop: runs all tests once, then those of each mutant.

    It leaves out tests that need a service, or Spark, whatever their names are.
    """

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._mutants = mutants
        self._tests: dict[str, list[tuple[float, pytest.Item]]] = defaultdict(list)
        self._failed = Counter[pytest.Item]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [
            item for item in items if _SERVICES.isdisjoint(_names_in(item)) and not _IN_A_CLOUD.search(item.name)
        ]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        os.environ["MUTANT_UNDER_TEST"] = "stats"
        for item in session.items:
            mutmut._stats.clear()
            started = time.process_time()
            if not _passes(item):
                raise pytest.UsageError(f"{item.nodeid} fails without any change")
            for function in mutmut._stats:
                self._tests[function].append((time.process_time() - started, item))
        gc.collect()
        gc.freeze()
        for mutant in self._mutants:
            outcome = self._try(mutant)
            _keep(mutant, outcome)
            if outcome != Outcome.KILLED:
                print(f"\n{mutant.name}: {outcome}\n{mutant.change()}", flush=True)
        return True

    def _try(self, mutant: Mutant) -> Outcome:
        while tests := self._tests[mutant.function]:
            # What failed with other mutants of the function is likely to fail again.
            tests.sort(key=lambda test: (-self._failed[test[1]], test[0]))
            code, place = _run_apart(mutant.name, [item for _, item in tests], sum(seconds for seconds, _ in tests))
            if place is None:
                return Outcome.NO_END if code else Outcome.SURVIVED
            failed = tests[place][1]
            if self._failed[failed] or not _run_apart("", [failed], tests[place][0])[0]:
                self._failed[failed] += 1
                return Outcome.KILLED
            print(f"\n{failed.nodeid} fails a second time without any change: it is left out", flush=True)
            for known in self._tests.values():
                known[:] = [test for test in known if test[1] is not failed]
        return Outcome.NO_TEST


def _run_apart(mutant: str, items: Sequence[pytest.Item], seconds: float) -> tuple[int, int | None]:
    """Runs tests in a process of its own until one fails.

    Args:
        mutant: its name; empty for no mutant.
        seconds: of processor that the tests take without any change.
    Returns:
        The process's exit code, 0 where all tests pass, and the place of the test that failed; None where none did, or
        where the process was ended, since it took too long or crashed.
    """
    read, write = os.pipe()
    if not (pid := os.fork()):
        _run_here(mutant, items, seconds, write)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        place = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), int(place) if place else None


def _run_here(mutant: str, items: Sequence[pytest.Item], seconds: float, tell: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    limit = int(time.process_time() + _SHORTEST_LIMIT_SECONDS + 3 * seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_WAITING_SECONDS)
    os.environ["MUTANT_UNDER_TEST"] = mutant
    code = 1
    try:
        failed = next((place for place, item in enumerate(items) if not _passes(item)), None)
        if failed is None:
            code = 0
        else:
            os.write(tell, str(failed).encode())
    finally:
        os._exit(code)


def _passes(item: pytest.Item) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def tests_of(name: str) -> tuple[str, ...]:
    """Files of tests for a module, inside of the tests."""
    folder, stem = MODULES[name].parent, MODULES[name].stem
    mirrors = (COPY / TESTS / folder).glob(f"test_{stem}*.py")
    own = (each.name for each in mirrors if each.stem == f"test_{stem}" or each.stem.startswith(f"test_{stem}_"))
    return (*sorted(str(folder / each) for each in own), *FURTHER_TESTS.get(name, ()))


def outcomes_of(name: str) -> Mapping[str, str]:
    """What became of the mutants of a module that were tried, by their names; the last word counts."""
    kept = OUTCOMES / name
    return dict(line.split("\t") for line in kept.read_text().splitlines()) if kept.exists() else {}


def _keep(mutant: Mutant, outcome: Outcome) -> None:
    OUTCOMES.mkdir(exist_ok=True)
    with (OUTCOMES / mutant.module).open("a") as kept:
        kept.write(f"{mutant.name}\t{outcome}\n")


def _change_operators() -> None:
    """Leaves out changes of texts, adds what a hurried collector does, and looks into data classes as well."""
    kept = [each for each in node_mutation.mutation_operators if each[1] is not node_mutation.operator_string]
    file_mutation.mutation_operators = [
        *((node, _strict(change) if node is cst.Call else change) for node, change in kept),
        (cst.Call, _opposite_extreme),
        (cst.Raise, _pass),
        (cst.Expr, _without_call),
        (cst.Return, _returns_none),
    ]
    skips = file_mutation.MutationVisitor._skip_node_and_children

    def skip(visitor: file_mutation.MutationVisitor, node: cst.CSTNode) -> bool:
        strict = isinstance(node, cst.Arg) and node.keyword is not None and node.keyword.value == "strict"
        return strict or (not isinstance(node, cst.ClassDef) and bool(skips(visitor, node)))

    file_mutation.MutationVisitor._skip_node_and_children = skip


def _names_in(item: pytest.Item) -> set[str]:
    """Names of the fixtures of a test, and those that the code of the test and of its fixtures speaks of."""
    if not isinstance(item, pytest.Function):
        return set()
    fixtures = [each.func for defined in item._fixtureinfo.name2fixturedefs.values() for each in defined]
    codes = (getattr(function, "__code__", None) for function in (item.function, *fixtures))
    return {*item.fixturenames}.union(*(code.co_names for code in codes if code))


def _strict(change: Callable[[cst.Call], Iterable[cst.CSTNode]]) -> Callable[[cst.Call], Iterable[cst.CSTNode]]:
    """Leaves `strict=` alone: it says what cannot be otherwise, so nobody can test it."""

    def changed(node: cst.Call) -> Iterable[cst.CSTNode]:
        strict = [each for each in node.args if each.keyword is not None and each.keyword.value == "strict"]
        for mutated in change(node):
            kept = mutated.args if isinstance(mutated, cst.Call) else ()
            if all(any(each is other for other in kept) for each in strict):
                yield mutated

    return changed


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
