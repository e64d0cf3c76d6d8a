"""The core without extensions: their folders are deleted with their lines, and the core's quick tests pass there.

`make lint` keeps extensions from importing each other.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from lakefs_gc_assets import cli
from lakefs_gc_assets_tests.runs import recordings

ROOT = Path(cli.__file__).parents[2]
EXTENSIONS = sorted(path.parent.name for path in (ROOT / "lakefs_gc_assets/extensions").glob("*/__init__.py"))
QUICK_TESTS = (
    "collector/sweep/test_recheck.py",
    "collector/live/test_current.py",
    "collector/test_guards.py",
)
QUICK_TESTS_OF_RECORDINGS = ("collector/test_make_step.py",)
"""Tests of real servers' recordings. Without these, an extension's server would have to make them."""
LOAD_EVERYTHING = """\
import importlib, pkgutil, lakefs_gc_assets
for module in pkgutil.walk_packages(lakefs_gc_assets.__path__, "lakefs_gc_assets."):
    importlib.import_module(module.name)
from lakefs_gc_assets.cli import COMMANDS
from lakefs_gc_assets.definitions import defs
print(*sorted(name for name, command in COMMANDS.items() if command.load()))
print(*sorted(job.name for job in defs().resolve_all_job_defs()))
"""


def remove(extensions: Collection[str], folder: Path) -> None:
    """Copies package and tests into a folder, without these extensions and their lines in the two lists."""
    # Compiled files are copied too: they stay valid, and compiling takes longer than the tests.
    shutil.copytree(ROOT / "lakefs_gc_assets", folder / "lakefs_gc_assets")
    tests = shutil.ignore_patterns("extensions")
    shutil.copytree(ROOT / "lakefs_gc_assets_tests", folder / "lakefs_gc_assets_tests", ignore=tests)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in extensions:
        package = folder / "lakefs_gc_assets/extensions" / name
        has_commands = any(package.glob("*_command.py"))
        shutil.rmtree(package)
        commands = folder / "lakefs_gc_assets/cli/__init__.py"
        text, count = re.subn(rf'    "{name}": {{\n.*?\n    }},\n', "", commands.read_text(), flags=re.DOTALL)
        assert count == has_commands
        commands.write_text(text)
        definitions = folder / "lakefs_gc_assets/definitions.py"
        text = re.sub(rf"from lakefs_gc_assets\.extensions\.{name} import .*\n", "", definitions.read_text())
        entry = rf"(partial\()?\b{name}(_\w+)?\.(define|\w+_deletion)(, ROUTINE\))?(,\s*)?"
        definitions.write_text(re.sub(entry, "", text))


def run_there(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "LAKEFS_GC_CONFIG"}
    environment["PYTHONPATH"] = str(folder)
    ended = subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_core_without_any_extension_has_its_commands_and_jobs_and_passes_its_quick_tests(tmp_path: Path) -> None:
    project = tmp_path / "project"
    remove(EXTENSIONS, project)
    commands, jobs = run_there(project, "-W", "ignore", "-c", LOAD_EVERYTHING).splitlines()[-2:]
    assert {"run", "approve", "restore", "policy", "status"} <= set(commands.split())
    assert not {"forecast", "fsck", "erase", "branches", "demo", "ui"} & set(commands.split())
    assert {"collect", "open_run", "approve", "purge"} <= set(jobs.split())
    assert not {"forecast", "fsck", "stale_branches"} & set(jobs.split())
    tests = [f"lakefs_gc_assets_tests/{name}" for name in QUICK_TESTS]
    if recordings.REAL:
        (tmp_path / "shared").symlink_to(recordings.FIXTURES.parents[1])
        tests += [f"lakefs_gc_assets_tests/{name}" for name in QUICK_TESTS_OF_RECORDINGS]
    run_there(project, "-m", "pytest", "-q", "-n", "0", "-m", "not slow and not real", *tests)
