"""Removes statements of the run one at a time, or swaps two, and checks that tests notice: `make statements`.

It complements mutmut, which changes expressions and skips functions with a decorator (`mutants.py`). Here a whole
statement goes: an `if` with its body, a loop, a `with` (once with its body, once without), a `try`, an assignment. Then
each two neighbours are swapped that make calls and are independent: much safety rests on the order of two requests. Log
lines are left alone.

The code object of the function is replaced, so every importer of the function has the change. Tests are collected once,
and run once to record the functions that each calls. Each change then gets its own process, forked from that one, which
runs the tests of the function until one fails: tests that failed before come first. `mutants.py` tries its changes in
the same way.
"""

import argparse
import ast
import contextlib
import gc
import importlib
import inspect
import io
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, Generic, TypeVar

import pytest
from _pytest.runner import runtestprotocol

PACKAGE = "lakefs_gc_assets"
TESTS = Path("lakefs_gc_assets_tests")
MODULES = {
    "run": "collector.run",
    "recheck": "collector.recheck",
    "make_step": "collector.make_step",
    "step": "collector.step",
    "sweeping": "collector.sweeping",
}
"""Modules that can be chosen, with their names in the package. The file that mirrors a module has its tests."""
FOR_ALL = (
    "collector/test_run_guards.py",
    "collector/test_run.py",
    "simulation/test_seeded_bugs.py::test_without_a_bug_the_same_history_passes",
)
"""Tests of every module besides the file that mirrors it. The histories are fixed: those that show seeded bugs."""
_SERVICES = {"s3_server", "spark", "ReplayServer", "replaying", "replays"}
"""Names whose use starts a service: clients used before a fork hang forever after it."""
_LINES_OF_A_LOG = ("step.log(", "step.warn(", "self.log(", "warn(")
_LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
C = TypeVar("C")


class Outcome(StrEnum):
    """Outcome of a change."""

    KILLED = "killed"
    SURVIVED = "survived"
    NO_TEST = "no test"
    NO_END = "no end"


@dataclass(frozen=True)
class Change:
    """A statement that is removed from a function, or swapped with the next one.

    Attributes:
        module: its Python name.
        function: the qualified name of the function in its class or module.
        line: line number of the statement, from 1.
        what: description of the change.
        code: the code of the function with the change.
    """

    module: str
    function: str
    line: int
    what: str
    code: CodeType

    def __str__(self) -> str:
        return f"{self.module.rpartition('.')[2]}:{self.line} {self.function}: {self.what}"


@dataclass(frozen=True)
class _Edit:
    """Statements of a block, from a place on, and their replacement."""

    block: list[ast.stmt]
    place: int
    count: int
    instead: list[ast.stmt]
    what: str


def changes(module: str) -> Iterator[Change]:
    """Every change of the functions of a module; nested functions are part of the outer one."""
    file = inspect.getsourcefile(importlib.import_module(module))
    assert file is not None
    tree = ast.parse(Path(file).read_text())
    for owner, function in _functions(tree):
        name = ".".join([*owner, function.name])
        for edit in _edits(function):
            kept, line = [*edit.block], edit.block[edit.place].lineno
            edit.block[edit.place : edit.place + edit.count] = edit.instead
            code = compile(ast.fix_missing_locations(tree), file, "exec")
            edit.block[:] = kept
            yield Change(module, name, line, edit.what, _code_of(code, [*owner, function.name]))


def _edits(node: ast.AST) -> Iterator[_Edit]:
    """Possible changes in the blocks inside a node."""
    for name in ("body", "orelse", "finalbody"):
        block: list[ast.stmt] = getattr(node, name, [])
        for place, (statement, following) in enumerate(zip_longest(block, block[1:])):
            if isinstance(statement, ast.Pass) or _is_text(statement):
                continue
            text = ast.unparse(statement).splitlines()[0]
            if not (isinstance(statement, ast.FunctionDef) or text.startswith(_LINES_OF_A_LOG)):
                yield _Edit(block, place, 1, [ast.copy_location(ast.Pass(), statement)], f"without {text}")
                if following is not None and _may_swap(statement, following):
                    after = ast.unparse(following).splitlines()[0]
                    yield _Edit(block, place, 2, [following, statement], f"{text} | after | {after}")
            if isinstance(statement, ast.With | ast.Try):
                yield _Edit(block, place, 1, statement.body, f"only the body of {text}")
            yield from _edits(statement)
    for handler in getattr(node, "handlers", []):
        yield from _edits(handler)


def _may_swap(one: ast.stmt, other: ast.stmt) -> bool:
    """True if both make calls, neither leaves the block, and neither binds a name that the other uses.

    The order of two refusals does not matter.
    """
    (bound, named), (also_bound, also_named) = map(_names, (one, other))
    return (
        not (bound & also_named or also_bound & named)
        and all(any(isinstance(node, ast.Call) for node in ast.walk(each)) for each in (one, other))
        and not any(isinstance(node, _LEAVING) for each in (one, other) for node in ast.walk(each))
        and not ast.unparse(other).startswith(_LINES_OF_A_LOG)
        and not all("require_" in ast.unparse(each) for each in (one, other))
    )


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """The names and attributes that a statement binds, and all that it uses."""
    nodes = [node for node in ast.walk(statement) if isinstance(node, ast.Name | ast.Attribute)]
    bound = {ast.unparse(node) for node in nodes if not isinstance(node.ctx, ast.Load)}
    return bound, {ast.unparse(node) for node in nodes}


def _functions(tree: ast.AST, owner: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield owner, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, (*owner, node.name))


def _is_text(statement: ast.stmt) -> bool:
    """True if it is a docstring, or `...` in its place."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _code_of(code: CodeType, names: Sequence[str]) -> CodeType:
    for name in names:
        code = [each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name][-1]
    return code


def function_of(module: str, name: str) -> FunctionType:
    """A function by its qualified name, without its decorators."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = vars(found)[part]
    found = inspect.unwrap(getattr(found, "fget", None) or getattr(found, "__func__", found))
    assert isinstance(found, FunctionType)
    return found


@dataclass(frozen=True)
class Ways(Generic[C]):
    """How to make a kind of changes, and how to find the tests that should notice them.

    Attributes:
        function: the function that a change is in, as `calls` names it.
        calls: runs a test; returns True if it passes, and the functions that it called.
        begin: makes a change in this process, or none.
        tell: called with each change and its outcome.
        shortest_seconds: minimum limit of processor seconds for the tests of a change.
        waiting_seconds: seconds after which the process of a change is ended.
        runs: returns True if a test may run.
    """

    function: Callable[[C], Hashable]
    calls: Callable[[pytest.Item], tuple[bool, Iterable[Hashable]]]
    begin: Callable[[C | None], None]
    tell: Callable[[C, Outcome], None]
    shortest_seconds: float = 20.0
    waiting_seconds: int = 600
    runs: Callable[[pytest.Item], bool] = lambda item: True


class Trial(Generic[C]):
    """Replaces pytest's own loop: runs all tests once, then the tests for each change."""

    def __init__(self, changed: Sequence[C], ways: Ways[C]) -> None:
        self._changed, self._ways = changed, ways
        self._tests: dict[Hashable, list[tuple[float, pytest.Item]]] = defaultdict(list)
        self._failed = Counter[pytest.Item]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leaves out tests that need a service, or Spark."""
        items[:] = [item for item in items if _SERVICES.isdisjoint(_names_in(item)) and self._ways.runs(item)]

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            started = time.process_time()
            passed, called = self._ways.calls(item)
            if not passed:
                raise pytest.UsageError(f"{item.nodeid} fails without any change")
            for function in called:
                self._tests[function].append((time.process_time() - started, item))
        gc.collect()
        gc.freeze()
        for each in self._changed:
            self._ways.tell(each, self._try(each))
        return True

    def _try(self, change: C) -> Outcome:
        while tests := self._tests[self._ways.function(change)]:
            # A test that failed with other changes of the function is likely to fail again.
            tests.sort(key=lambda test: (-self._failed[test[1]], test[0]))
            code, place = self._run_apart(change, [item for _, item in tests], sum(seconds for seconds, _ in tests))
            if place is None:
                return Outcome.NO_END if code else Outcome.SURVIVED
            seconds, failed = tests[place]
            if self._failed[failed] or not self._run_apart(None, [failed], seconds)[0]:
                self._failed[failed] += 1
                return Outcome.KILLED
            print(f"\n{failed.nodeid} fails a second time without any change: it is left out", flush=True)
            for known in self._tests.values():
                known[:] = [test for test in known if test[1] is not failed]
        return Outcome.NO_TEST

    def _run_apart(self, change: C | None, items: Sequence[pytest.Item], seconds: float) -> tuple[int, int | None]:
        """Runs tests in a new process until one fails.

        Args:
            seconds: processor seconds that the tests take without any change.

        Returns:
            The process's exit code, 0 if all tests pass, and the position of the failed test. The position is None if
            no test failed, or if the process crashed or ran too long.
        """
        read, write = os.pipe()
        if not (pid := os.fork()):
            self._run_here(change, items, seconds, write)
        os.close(write)
        with os.fdopen(read, "rb") as reported:
            place = reported.read()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), int(place) if place else None

    def _run_here(self, change: C | None, items: Sequence[pytest.Item], seconds: float, tell: int) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        limit = int(time.process_time() + self._ways.shortest_seconds + 3 * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 10))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(self._ways.waiting_seconds)
        code = 1
        try:
            self._ways.begin(change)
            failed = next((place for place, item in enumerate(items) if not passes(item)), None)
            if failed is None:
                code = 0
            else:
                os.write(tell, str(failed).encode())
        finally:
            os._exit(code)


def ways_of(changed: Sequence[Change], counts: Counter[Outcome]) -> Ways[Change]:
    """Replaces the code of functions; prints and counts their outcomes."""
    codes = {function_of(each.module, each.function).__code__ for each in changed}

    def calls(item: pytest.Item) -> tuple[bool, set[CodeType]]:
        with _noting(codes) as called, contextlib.redirect_stdout(io.StringIO()):
            return passes(item), called

    def begin(change: Change | None) -> None:
        if change is not None:
            function_of(change.module, change.function).__code__ = change.code

    def tell(change: Change, outcome: Outcome) -> None:
        counts[outcome] += 1
        print(f"{outcome}\t{change}", flush=True)

    return Ways(lambda change: function_of(change.module, change.function).__code__, calls, begin, tell)


@contextlib.contextmanager
def _noting(codes: set[CodeType]) -> Iterator[set[CodeType]]:
    """Records the codes that run while the context is open, in any thread."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code in codes:
            called.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def passes(item: pytest.Item) -> bool:
    """True if a test passes now."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def _names_in(item: pytest.Item) -> set[str]:
    """Names of a test's fixtures, and names used in the code of the test and of its fixtures."""
    if not isinstance(item, pytest.Function):
        return set()
    fixtures = [each.func for defined in item._fixtureinfo.name2fixturedefs.values() for each in defined]
    codes = (getattr(function, "__code__", None) for function in (item.function, *fixtures))
    return {*item.fixturenames}.union(*(code.co_names for code in codes if code))


def main() -> int:
    """Tries the chosen modules, and prints the changes' outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="module", help=f"of {', '.join(MODULES)}; all unless given")
    parser.add_argument("--functions", nargs="+", default=[], metavar="name", help="only statements of these functions")
    parser.add_argument("--lines", nargs="+", type=int, default=[], help="only statements that begin there")
    parser.add_argument("--tests", nargs="+", default=[], help="these tests in place of all, inside of the tests")
    options = parser.parse_args()
    if unknown := set(options.modules) - MODULES.keys():
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    names = [f"{PACKAGE}.{MODULES[name]}" for name in options.modules or MODULES]
    changed = [each for name in names for each in changes(name)]
    changed = [
        each
        for each in changed
        if (not options.lines or each.line in options.lines)
        and (not options.functions or each.function.rpartition(".")[2] in options.functions)
    ]
    mirrors = [Path(*name.split(".")[1:]) for name in names]
    tests = options.tests or [*(str(path.with_name(f"test_{path.name}.py")) for path in mirrors), *FOR_ALL]
    # Without conftest.py, which starts Spark. A traceback would take longer than the tests.
    chosen = ["--noconftest", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]
    paths = sorted({str(TESTS / test) for test in tests})
    counts = Counter[Outcome]()
    status = pytest.main(["-q", "-s", *chosen, *paths], plugins=[Trial(changed, ways_of(changed, counts))])
    print(dict(counts))
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
