"""lakeFS and versitygw, built once from their Go modules into the cache, with a clock that can be shifted.

`python -m lakefs_gc_assets_tests.real.programs` only builds them: some minutes on two cores. Without Go, or if the
modules cannot be fetched, tests that need them are skipped and say so.

The build replaces one file of Go's standard library by a copy in which `time.Now` adds an offset, and adds a file that
reads the offset from the environment variable CLOCK_OFFSET_SECONDS. Monotonic time stays as it is, so timeouts and
intervals keep their length. Without the variable, the programs are the released ones.
"""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.servers.emulators import CACHE, installed

LAKEFS = ("github.com/treeverse/lakefs", "v1.86.0", "h1:cODxuNUnDEFaueXRUI53G5tUq9FelXyR9A5Y9+WNWUk=")
"""Module, version and checksum; another version is one line."""
VERSITYGW = ("github.com/versity/versitygw", "v1.8.0", "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=")
CLOCK_OFFSET = "CLOCK_OFFSET_SECONDS"
"""The environment variable: seconds that a program's clock is ahead, negative for the past."""
_NOW = re.compile(r"^(func Now\(\) Time \{\n\tsec, nsec, mono := runtimeNow\(\)\n)", re.MULTILINE)
_READ_OFFSET = f"""package time

import "syscall"

var clockOffset = readClockOffset()

func readClockOffset() int64 {{
	text, isSet := syscall.Getenv("{CLOCK_OFFSET}")
	if !isSet {{
		return 0
	}}
	seconds, err := atoi(text)
	if err != nil {{
		panic("{CLOCK_OFFSET} is not a number: " + text)
	}}
	return int64(seconds)
}}
"""


@cache
def lakefs() -> Path:
    """The server; skips the test if it cannot be built."""
    return _built(LAKEFS, "lakefs")


@cache
def versitygw() -> Path:
    """The S3 server, which signs and checks requests by the shifted clock; skips the test if it cannot be built."""
    return _built(VERSITYGW, "versitygw")


def _built(module: tuple[str, str, str], name: str) -> Path:
    """A program of a module, built in the module's own folder: `go install` refuses modules that replace others."""
    path, version, checksum = module
    folder = CACHE / f"shifted-{path.rpartition('/')[2]}-{version.removeprefix('v')}"
    program = folder / name
    if program.exists():
        return program
    if shutil.which("go") is None:
        pytest.skip(f"{name} is not built, and there is no Go to build it with")
    sources = _downloaded(path, version, checksum)
    overlay = _write_overlay(folder)
    build = [
        "build",
        "-C",
        str(sources),
        "-mod=readonly",
        "-overlay",
        str(overlay),
        "-o",
        str(program),
        f"./cmd/{name}",
    ]
    return installed(program, "go", build, {})


def _downloaded(path: str, version: str, checksum: str) -> Path:
    """The folder of a module's sources. Raises AssertionError if their checksum differs from the tested one."""
    done = subprocess.run(["go", "mod", "download", "-json", f"{path}@{version}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{path} {version} cannot be fetched: {done.stderr.strip()[-300:] or done.stdout[-300:]}")
    found = json.loads(done.stdout)
    assert found["Sum"] == checksum, f"{path} {version} has the checksum {found['Sum']}, not {checksum}"
    return Path(found["Dir"])


def _write_overlay(folder: Path) -> Path:
    """The file that names the replaced and the added file of Go's standard library."""
    root = subprocess.run(["go", "env", "GOROOT"], capture_output=True, text=True, check=True).stdout.strip()
    source = Path(root) / "src/time/time.go"
    shifted, count = _NOW.subn(r"\1\tsec += clockOffset\n", source.read_text())
    assert count == 1, f"{source} has no `Now` that reads the clock in the known way: change the substitution"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "time.go").write_text(shifted)
    (folder / "offset.go").write_text(_READ_OFFSET)
    overlay = folder / "overlay.json"
    replaced = {str(source): str(folder / "time.go"), str(source.with_name("offset.go")): str(folder / "offset.go")}
    overlay.write_text(json.dumps({"Replace": replaced}))
    return overlay


def _build() -> None:
    for build in (lakefs, versitygw):
        try:
            print(f"{build()} is there")
        except pytest.skip.Exception as reason:
            print(reason)


if __name__ == "__main__":
    _build()
