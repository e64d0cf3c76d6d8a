"""Changes modules of the run one place at a time, and checks that their fast tests notice: `make mutants`.

mutmut makes the changes (mutants). It is not in the lock: `make mutants` installs it beside `.venv`. Our own operators
are added, and operators that change texts are removed: the wording of a message is no rule. Functions with a decorator
are not changed, since mutmut cannot replace them.

Tests are collected once, and run once to record the functions that each calls. Each mutant then gets its own process,
forked from that one, which runs the tests of the changed function until one fails: tests that failed before come first,
then the fastest.

Run this file by its path, with `python -P` and in the folder of the project: mutmut must be the first to import the
package.
"""

import argparse
import ast
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import libcst as cst
import mutmut
import pytest
from hypothesis import HealthCheck, Phase, settings
from mutmut import __main__ as runner
from mutmut import file_mutation, node_mutation

PACKAGE, TESTS = Path("lakefs_gc_assets"), Path("lakefs_gc_assets_tests")
WORK = Path(".mutants").absolute()
COPY, OUTCOMES = WORK / "mutants", WORK / "outcomes"
_MODULES = {
    "collector": "commits expiring guards make_step run step",
    "collector/frame": "files receipts",
    "collector/engine": "local",
    "collector/incremental": "checkpoint earlier_runs gap_check planning",
    "collector/live": (
        "contents current facts facts_of_ranges hidden live_files other_repositories references uncommitted"
    ),
    "collector/quarantine": "purge restore",
    "collector/records": "across_runs outcomes records_json run_folder tables",
    "collector/repository": "lock repository",
    "collector/retention": "active_commits retention rules",
    "collector/sweep": "recheck sweeping",
    "collector/universe": "listing subtraction",
    "lakefs": "addresses",
}
MODULES = {name: Path(folder, f"{name}.py") for folder, names in _MODULES.items() for name in names.split()}
"""Modules that can be chosen, inside the package."""
FURTHER_TESTS = {
    "commits": ("collector/retention/test_retention.py",),
    "expiring": ("collector/live/test_uncommitted_preparations.py",),
    "hidden": ("collector/live/test_contents.py",),
    "purge": ("collector/sweep/test_sweeping_deletion_move.py",),
    "recheck": ("collector/test_run_guards.py",),
    "records_json": (
        "collector/records/test_plan.py",
        "collector/records/test_report.py",
        "collector/frame/test_files.py",
    ),
    "restore": ("collector/sweep/test_sweeping_deletion_move.py",),
    "run": ("collector/test_run_guards.py",),
    "run_folder": ("collector/records/test_plan.py",),
    "sweeping": ("collector/test_run_guards.py",),
}
"""Tests of a module beside the file that mirrors it."""
_IN_A_CLOUD = re.compile(r"[\[_-](s3|gcs|azure)[\]_-]")
"""Names of tests that need a cloud service from their start."""
_AROUND = 80
_KILLED = "killed"
_OPPOSITE = {"min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """A change of a function.

    Attributes:
        module: name on the command line.
        name: the module's Python name and the name of the mutated function in it.
    """

    module: str
    name: str

    @property
    def function(self) -> str:
        """The changed function, by the name that mutmut records for calls."""
        return self.name.rpartition("__mutmut_")[0]

    @property
    def own_function(self) -> str:
        """The name of the changed function in its class or module."""
        own = self.function.rpartition(".")[2]
        return own.rpartition("ǁ")[2] if "ǁ" in own else own.removeprefix("x_")

    def change(self) -> str:
        """The difference from the original function, with some context."""
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
    """Length of the common beginning of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def main() -> None:
    """Tries the chosen modules; prints unnoticed mutants as it goes, and every module's figures."""
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
        tried = [each for each in tried if known.get(each.name) != _KILLED]
    else:
        for name in names:
            (OUTCOMES / name).unlink(missing_ok=True)
    try_mutants(tried, sorted({str(TESTS / test) for name in names for test in tests_of(name)}))
    for name in names:
        outcomes = outcomes_of(name)
        counts = Counter(outcomes.get(each.name, "not tried") for each in made if each.module == name)
        print(json.dumps({"module": name, "mutants": counts.total(), **counts}))


def make_mutants(names: Sequence[str]) -> list[Mutant]:
    """Copies the package and its tests, and writes all mutants into these modules of the copy."""
    shutil.rmtree(COPY, ignore_errors=True)
    for folder in (PACKAGE, TESTS):
        shutil.copytree(folder, COPY / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy("pyproject.toml", COPY)
    # If recordings are beside the checkout, tests must find them beside the copy.
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
    """Runs the tests against each mutant, and stores the outcomes; prints mutants that no test noticed."""
    os.chdir(COPY)
    sys.path.insert(0, str(COPY))
    # Imports of the package must come after this point, to find the copy.
    from lakefs_gc_assets_tests.harness.statements import Trial, Ways, passes

    def calls(item: pytest.Item) -> tuple[bool, set[str]]:
        os.environ["MUTANT_UNDER_TEST"] = "stats"
        mutmut._stats.clear()
        return passes(item), {*mutmut._stats}

    def begin(mutant: Mutant | None) -> None:
        os.environ["MUTANT_UNDER_TEST"] = mutant.name if mutant else ""

    ways = Ways(
        lambda mutant: mutant.function,
        calls,
        begin,
        _keep,
        shortest_seconds=3.0,
        waiting_seconds=180,
        runs=lambda item: not _IN_A_CLOUD.search(item.name),
    )
    # mutmut reads this when a function reports its call.
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
    # Only tests that use a single process and the disk, without conftest.py, which starts Spark. For a traceback pytest
    # would parse a module with all its mutants, which takes longer than the tests.
    chosen = ["--noconftest", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    os.environ["MUTANT_UNDER_TEST"] = ""
    if code := pytest.main(["-q", "-s", *chosen, "--rootdir=.", *tests], plugins=[Trial(mutants, ways)]):
        sys.exit(int(code))


def tests_of(name: str) -> tuple[str, ...]:
    """Test files of a module, relative to the folder of tests."""
    folder, stem = MODULES[name].parent, MODULES[name].stem
    mirrors = (COPY / TESTS / folder).glob(f"test_{stem}*.py")
    own = (each.name for each in mirrors if each.stem == f"test_{stem}" or each.stem.startswith(f"test_{stem}_"))
    return (*sorted(str(folder / each) for each in own), *FURTHER_TESTS.get(name, ()))


def outcomes_of(name: str) -> Mapping[str, str]:
    """Outcomes of the tried mutants of a module, by name; the last one counts."""
    kept = OUTCOMES / name
    return dict(line.split("\t") for line in kept.read_text().splitlines()) if kept.exists() else {}


def _keep(mutant: Mutant, outcome: str) -> None:
    """Stores the outcome of a mutant, and prints one that no test noticed."""
    OUTCOMES.mkdir(exist_ok=True)
    with (OUTCOMES / mutant.module).open("a") as kept:
        kept.write(f"{mutant.name}\t{outcome}\n")
    if outcome != _KILLED:
        print(f"\n{mutant.name}: {outcome}\n{mutant.change()}", flush=True)


def _change_operators() -> None:
    """Removes changes of texts, adds mistakes of a hurried collector, and mutates data classes as well."""
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


def _strict(change: Callable[[cst.Call], Iterable[cst.CSTNode]]) -> Callable[[cst.Call], Iterable[cst.CSTNode]]:
    """Leaves `strict=` alone: it states a fact, so no test can notice its change."""

    def changed(node: cst.Call) -> Iterable[cst.CSTNode]:
        strict = [each for each in node.args if each.keyword is not None and each.keyword.value == "strict"]
        for mutated in change(node):
            kept = mutated.args if isinstance(mutated, cst.Call) else ()
            if all(any(each is other for other in kept) for each in strict):
                yield mutated

    return changed


def _opposite_extreme(node: cst.Call) -> Iterable[cst.CSTNode]:
    """Swaps `min` and `max`."""
    if isinstance(node.func, cst.Name) and node.func.value in _OPPOSITE:
        yield node.with_changes(func=cst.Name(_OPPOSITE[node.func.value]))


def _pass(node: cst.Raise) -> Iterable[cst.CSTNode]:
    """Continues instead of raising."""
    yield cst.Pass()


def _without_call(node: cst.Expr) -> Iterable[cst.CSTNode]:
    """Drops a call made for its effect."""
    if isinstance(node.value, cst.Call):
        yield cst.Pass()


def _returns_none(node: cst.Return) -> Iterable[cst.CSTNode]:
    """Returns None instead of a value."""
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"))


if __name__ == "__main__":
    main()
