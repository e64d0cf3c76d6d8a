"""The cost of importing the readers, and the location of compiled code."""

import ast
import importlib
import os
import pkgutil
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

import lakefs_gc_assets
from lakefs_gc_assets import lakefs
from lakefs_gc_assets.lakefs.formats.compilation import Compiled
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import TableBytes, framed, text

_READ = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from lakefs_gc_assets.lakefs.formats import ranges, records
assert Path(records.__file__).is_relative_to(sys.argv[2]), records.__file__
found = ranges.read_range(Path(sys.argv[1]).read_bytes(), "range")
assert found.addresses.to_pylist() == ["data/a/b"]
walk_blocks = records.walk_blocks.dispatcher
stats, cache = walk_blocks.stats, type(walk_blocks._cache).__name__
print(cache, sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def _run(code: str, *arguments: str, package: Path | None = None, **environment: str) -> str:
    root = package or Path(lakefs_gc_assets.__file__).parents[1]
    base = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    finished = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**base, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def _copy(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the package whose folders cannot hold caches, and a range to read."""
    source = Path(lakefs_gc_assets.__file__).parent
    package = tmp_path / "copy"
    target = package / "lakefs_gc_assets"
    target.mkdir(parents=True)
    for name in ("__init__.py", "deferred.py", "errors.py"):
        shutil.copy(source / name, target / name)
    shutil.copytree(source / "lakefs", target / "lakefs", ignore=shutil.ignore_patterns("__pycache__"))
    # A file in place of the cache folder stops even root.
    (target / "lakefs" / "formats" / "__pycache__").write_text("")
    built = tmp_path / "range"
    built.write_bytes(TableBytes([(b"path", framed(bytes(32), text(1, "data/a/b")))]).build())
    return package, built


def test_compiled_functions_depend_on_their_own_file_alone() -> None:
    """numba does not notice changes of other files: an outdated compiled check would keep running."""
    compiled = 0
    for info in pkgutil.walk_packages(lakefs.__path__, "lakefs_gc_assets.lakefs."):
        module = importlib.import_module(info.name)
        source = ast.parse(Path(str(module.__file__)).read_text())
        imported = {
            alias.asname or alias.name
            for node in ast.walk(source)
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("lakefs_gc_assets")
            for alias in node.names
        }
        for value in vars(module).values():
            if isinstance(value, Compiled) and value.function.__module__ == module.__name__:
                assert imported.isdisjoint(value.function.__code__.co_names), value.function
                compiled += 1
    assert compiled >= 10


def test_threads_that_call_a_function_first_share_what_is_compiled() -> None:
    def next_after(number: int) -> int:
        return number + 1

    once = Compiled(next_after, inlined=True)
    together = Barrier(8)

    def dispatcher(_: int) -> object:
        together.wait()
        return once.dispatcher

    with ThreadPoolExecutor(8) as threads:
        dispatchers = list(threads.map(dispatcher, range(8)))

    assert {id(each) for each in dispatchers} == {id(once.dispatcher)}
    assert once(1) == 2


def test_readers_are_imported_and_read_the_kind_of_a_table_without_numba(tmp_path: Path) -> None:
    built = tmp_path / "range"
    built.write_bytes(TableBytes([]).build())
    code = (
        "import sys; from pathlib import Path;"
        "from lakefs_gc_assets.lakefs.formats import ranges, records, refs, sstables;"
        "from lakefs_gc_assets.collector.retention import active_commits;"
        "from lakefs_gc_assets.collector.engine import hashing;"
        "print(ranges.table_kind(Path(sys.argv[1]).read_bytes(), 'range').type, 'numba' in sys.modules)"
    )
    assert _run(code, str(built)) == "ranges False"


@pytest.mark.slow
def test_compiled_code_is_kept_for_the_user_where_the_package_cannot_be_written(tmp_path: Path) -> None:
    package, built = _copy(tmp_path)
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/.cache")}
    assert _run(_READ, str(built), str(package), package=package, **home) == "FunctionCache 0 1"
    assert _run(_READ, str(built), str(package), package=package, **home) == "FunctionCache 1 0"


@pytest.mark.slow
def test_code_is_compiled_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    package, built = _copy(tmp_path)
    (tmp_path / "home").write_text("a file, no directory")
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/.cache")}
    assert _run(_READ, str(built), str(package), package=package, **home) == "NullCache 0 1"
