"""The lists of `make mutants` name modules and tests that exist; mutmut itself has an environment of its own."""

import ast
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT

SOURCE = ast.parse(Path(__file__).with_name("mutants.py").read_text())
LISTS = {
    ast.unparse(node.targets[0]): node.value for node in SOURCE.body if isinstance(node, ast.Assign) and node.targets
}


def test_every_module_exists() -> None:
    modules = ast.literal_eval(LISTS["_MODULES"])
    paths = [
        Path("lakefs_gc_assets", folder, f"{name}.py") for folder, names in modules.items() for name in names.split()
    ]
    assert paths and [path for path in paths if not (PROJECT / path).exists()] == []


@pytest.mark.parametrize("module", ast.literal_eval(LISTS["FURTHER_TESTS"]))
def test_further_tests_exist(module: str) -> None:
    for test in ast.literal_eval(LISTS["FURTHER_TESTS"])[module]:
        assert (PROJECT / "lakefs_gc_assets_tests" / test).exists()
