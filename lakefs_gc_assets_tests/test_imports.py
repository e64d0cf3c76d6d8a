"""The import graph of the package: no circles, nothing of ours imported inside functions, arrows one way.

`make lint` holds the same contracts (`[tool.importlinter]` in pyproject.toml).
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

import lakefs_gc_assets
from lakefs_gc_assets.cli import COMMANDS

PACKAGE = "lakefs_gc_assets"
ROOT = Path(lakefs_gc_assets.__file__).parents[1]
LOADS_LATE = "lakefs_gc_assets.deferred"
"""The one module that imports others when they are needed."""

_NAMED = re.compile(rf"({PACKAGE}(?:\.\w+)+)(?::\w+)?")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of the package by its full name."""
    return {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): ast.parse(file.read_text())
        for file in (ROOT / PACKAGE).rglob("*.py")
    }


def named_in(source: ast.Module) -> set[str]:
    """Names of modules in strings, as `module` or `module:name`: they are imported later."""
    texts = (node.value for node in ast.walk(source) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {found[1] for text in texts if (found := _NAMED.fullmatch(text))}


@cache
def graph() -> grimp.ImportGraph:
    """The imports of all modules, as grimp finds them."""
    return grimp.build_graph(PACKAGE, cache_dir=None)


@cache
def import_graph() -> dict[str, set[str]]:
    """Modules that each module imports: at its head, in functions, only for type checkers, or later by name."""
    imported = {
        module: graph().find_modules_directly_imported_by(module) | (named_in(source) & graph().modules - {module})
        for module, source in sources().items()
    }
    late = [target for each in COMMANDS.values() for target in (each.target, each.before) if target]
    imported[f"{PACKAGE}.cli"] |= {target.partition(":")[0] for target in late}
    return imported


def imported_inside_functions(source: ast.Module) -> Iterator[str]:
    """Imports of this package that happen when a function is called."""
    for function in ast.walk(source):
        for node in ast.walk(function) if isinstance(function, _FUNCTIONS) else ():
            if isinstance(node, ast.ImportFrom):
                yield from [node.module or ""] if (node.module or "").split(".")[0] == PACKAGE or node.level else []
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)


def loads_by_name(source: ast.Module) -> bool:
    """True if a module uses the helper that imports other modules by name."""
    names = {node.id for node in ast.walk(source) if isinstance(node, ast.Name)}
    imported = {
        alias.name for node in ast.walk(source) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    }
    return not {"__import__", "import_module", "importlib"}.isdisjoint(names | imported)


def test_every_module_is_in_the_graph() -> None:
    assert graph().modules == sources().keys()


def test_no_module_depends_on_itself() -> None:
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as circle:
        # The error lists each imported module before its importer.
        pytest.fail(" is imported by ".join(circle.args[1]))


@pytest.mark.parametrize(("first", "longest"), [(f"{PACKAGE}.collector.run", 14), (None, 23)])
def test_chains_of_imports_stay_short(first: str | None, longest: int) -> None:
    """Bounds the modules, packages included, in any chain of imports: from the steps of a run, and overall."""
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(
        {each: graph().find_modules_directly_imported_by(each) for each in graph().modules}
    ).static_order():
        following = (chains[imported] for imported in graph().find_modules_directly_imported_by(module))
        chains[module] = [module, *max(following, key=len, default=[])]

    chain = chains[first] if first else max(chains.values(), key=len)
    assert len(chain) <= longest, " imports ".join(chain)


def test_what_is_imported_late_is_in_the_graph() -> None:
    imported = import_graph()

    assert "lakefs_gc_assets.storage.gcs" in imported["lakefs_gc_assets.storage.opening"]
    assert "lakefs_gc_assets.cli.run" in imported["lakefs_gc_assets.cli"]
    assert "lakefs_gc_assets.spark.start.worker_daemon" in imported["lakefs_gc_assets.spark.session"]


def test_no_function_imports_a_module_of_ours() -> None:
    found = {module: list(imported_inside_functions(source)) for module, source in sources().items()}

    assert {module: inside for module, inside in found.items() if inside} == {}


def test_modules_are_loaded_by_name_in_one_place() -> None:
    assert {module for module, source in sources().items() if loads_by_name(source)} == {LOADS_LATE}


@pytest.mark.parametrize(
    "code",
    [
        "def late():\n    from lakefs_gc_assets import errors",
        "class A:\n    def late(self):\n        from . import errors",
    ],
)
def test_an_import_inside_a_function_is_found(code: str) -> None:
    assert list(imported_inside_functions(ast.parse(code)))
