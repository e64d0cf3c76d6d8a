"""The wheel: its contents, and that it works in a separate environment.

The environment has only the wheel's requirements, as links to files of the tests' environment: installing them takes
minutes and more than a gigabyte.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets_tests.documentation.weights import Environment
from lakefs_gc_assets_tests.harness.dagster_dev import PROJECT
from lakefs_gc_assets_tests.servers.free_ports import free_port

pytestmark = pytest.mark.slow
_UV = (sys.executable, "-m", "uv")
DESCRIBED = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
VERSION = DESCRIBED["version"]
EXTRAS = DESCRIBED["optional-dependencies"]


def stranger() -> dict[str, str]:
    """The environment variables of a user without this checkout."""
    known = ("PYTHONPATH", "VIRTUAL_ENV", "DAGSTER_HOME", "LAKEFS_GC_CONFIG")
    return {name: value for name, value in os.environ.items() if name not in known}


def ended(*command: str | Path, folder: Path, seconds: float = 120) -> "subprocess.CompletedProcess[str]":
    """Runs a command in a folder outside this checkout, and returns it when it has ended."""
    return subprocess.run(command, cwd=folder, env=stranger(), capture_output=True, text=True, timeout=seconds)


def run(*command: str | Path, folder: Path, seconds: float = 120) -> str:
    """Output of a command that must succeed."""
    found = ended(*command, folder=folder, seconds=seconds)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `make build` builds it."""
    folder = tmp_path_factory.mktemp("dist")
    offline = ("--offline", "--no-build-isolation", "--python", sys.executable, "--quiet")
    run(*_UV, "build", PROJECT, "--wheel", *offline, "--out-dir", folder, folder=folder)
    [found] = folder.glob("*.whl")
    return found


def test_it_has_the_package_and_nothing_else(wheel: Path) -> None:
    expected = {
        str(file.relative_to(PROJECT))
        for file in (PROJECT / "lakefs_gc_assets").rglob("*")
        if file.suffix in (".py", ".typed", ".properties", ".css", ".html", ".sql", ".yaml")
        and "__pycache__" not in file.parts
    }

    with ZipFile(wheel) as archive:
        names = set(archive.namelist())

    reported = f"lakefs_gc_assets-{VERSION}.dist-info"
    described = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert names == expected | {f"{reported}/{name}" for name in described}
    assert "lakefs_gc_assets/py.typed" in names
    assert wheel.stat().st_size < 2 * 1024**2


def test_it_says_what_it_is(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        folder = f"lakefs_gc_assets-{VERSION}.dist-info"
        metadata = message_from_string(archive.read(f"{folder}/METADATA").decode())
        assert archive.read(f"{folder}/licenses/LICENSE") == (PROJECT / "LICENSE").read_bytes()
        assert "lakefs-gc = lakefs_gc_assets.cli:main" in archive.read(f"{folder}/entry_points.txt").decode()

    assert (metadata["Name"], metadata["Version"]) == ("lakefs-gc-assets", VERSION)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "lakefs-gc-assets contributors"
    assert set(metadata.get_all("Provides-Extra") or []) == {"azure", "gcs", "ui"} == EXTRAS.keys()
    assert metadata.get_all("Project-URL") is None
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])


def test_the_licence_is_apaches() -> None:
    text = (PROJECT / "LICENSE").read_text()

    assert text.split()[:6] == ["Apache", "License", "Version", "2.0,", "January", "2004"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert "[name of copyright owner]" in text


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {VERSION} - " in (PROJECT / "CHANGELOG.md").read_text()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A clone of this checkout's commit, which uses its environment, with a dated section for its version."""
    if not (PROJECT / ".git").exists() or not shutil.which("git"):
        pytest.skip("a release is made from a commit: this is no git checkout")
    clone = tmp_path / "clone"
    run("git", "clone", "--quiet", PROJECT, clone, folder=tmp_path)
    (clone / ".venv").symlink_to(sys.prefix)
    (clone / ".git/info/exclude").write_text(".venv\n")
    (clone / "CHANGELOG.md").write_text(f"# Changelog\n\n## {VERSION} - 2026-01-31\n\nFirst.\n")
    commit(clone)
    return clone


def commit(clone: Path) -> None:
    person = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    run("git", *person, "commit", "--all", "--quiet", "--allow-empty", "-m", "Change", folder=clone)


def make_release(clone: Path) -> "subprocess.CompletedProcess[str]":
    # The environment is older than the clone's files: make would install it anew.
    return ended("make", "--assume-old=.venv/.installed", "release", folder=clone)


class TestRelease:
    def test_two_builds_of_a_commit_have_the_same_bytes(self, release: Path, tmp_path: Path) -> None:
        first = make_release(release)
        if "Failed to fetch" in first.stderr or "No solution found" in first.stderr:
            pytest.skip(f"no package registry has the program that writes the bill of materials: {first.stderr}")
        assert first.returncode == 0, first.stderr
        sums = (release / "dist/SHA256SUMS").read_text()
        names = {line.split()[1] for line in sums.splitlines()}
        archives = {f"lakefs_gc_assets-{VERSION}-py3-none-any.whl", f"lakefs_gc_assets-{VERSION}.tar.gz"}
        assert names == archives | {"requirements.lock", "sbom.json"}
        run("sha256sum", "--check", "--quiet", "SHA256SUMS", folder=release / "dist")

        again = tmp_path / "again"
        run("git", "clone", "--quiet", release, again, folder=tmp_path)
        (again / ".venv").symlink_to(sys.prefix)
        (again / ".git/info/exclude").write_text(".venv\n")
        assert make_release(again).returncode == 0
        assert (again / "dist/SHA256SUMS").read_text() == sums

    def test_it_is_refused_with_changed_files(self, release: Path) -> None:
        (release / "README.md").write_text("changed")
        found = make_release(release)
        assert found.returncode and "files differ from the commit" in found.stderr
        assert not (release / "dist").exists()

    @pytest.mark.parametrize("newest", [f"{VERSION} (unreleased)", "9.9.9 - 2026-01-31"])
    def test_it_is_refused_unless_the_newest_changes_are_dated(self, release: Path, newest: str) -> None:
        (release / "CHANGELOG.md").write_text(f"# Changelog\n\n## {newest}\n\n## {VERSION} - 2026-01-30\n")
        commit(release)
        found = make_release(release)
        assert found.returncode and f"CHANGELOG.md is no dated {VERSION}" in found.stderr
        assert not (release / "dist").exists()


def installed(wheel: Path, folder: Path, python: str = sys.executable, extras: Sequence[str] = ()) -> Path:
    """Folder of the programs of an environment with the wheel and its requirements for some extras."""
    run(*_UV, "venv", "--quiet", "--offline", "--python", python, folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    install = ("pip", "install", "--quiet", "--offline", "--no-deps", "--python", programs / "python")
    run(*_UV, *install, wheel, folder=folder)
    site = run(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder)
    required = [*DESCRIBED["dependencies"], *(each for extra in extras for each in EXTRAS[extra])]
    here, given = Environment.here(), Path(sysconfig.get_path("purelib"))
    for name in here.closure(required):
        for file in here.files(name):
            if file.is_relative_to(given):
                link = Path(site.strip(), file.relative_to(given))
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(file)
    return programs


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_an_environment_of_its_own_has_the_command(
    wheel: Path, tmp_path: Path, version: str, request: pytest.FixtureRequest
) -> None:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        programs = request.getfixturevalue("programs")
    else:
        python = shutil.which(f"python{version}")
        # A program of this name may be a shim without a Python behind it.
        if python is None or subprocess.run([python, "--version"], capture_output=True).returncode != 0:
            pytest.skip(f"there is no Python {version} here")
        programs = installed(wheel, tmp_path, python)

    assert run(programs / "lakefs-gc", "--version", folder=tmp_path) == f"lakefs-gc {VERSION}\n"
    assert "doctor" in run(programs / "lakefs-gc", "--help", folder=tmp_path)
    found = run(programs / "python", "-c", "import lakefs_gc_assets; print(lakefs_gc_assets.__file__)", folder=tmp_path)
    assert Path(found.strip()).is_relative_to(programs.parent)


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of an environment without extras."""
    return installed(wheel, tmp_path_factory.mktemp("base"))


class TestWithoutExtras:
    """Only the wheel's requirements are installed, so a missing requirement is noticed."""

    def test_it_has_no_library_of_an_extra(self, programs: Path, tmp_path: Path) -> None:
        code = "import importlib.util, sys; print(*(each for each in sys.argv[1:] if importlib.util.find_spec(each)))"
        of_extras = ("dagster_webserver", "google.auth", "azure")

        run(*_UV, "pip", "check", "--quiet", "--python", programs / "python", folder=tmp_path)
        assert run(programs / "python", "-c", code, *of_extras, "dagster", folder=tmp_path) == "dagster\n"

    def test_a_process_without_a_file_loads_the_graph(self, programs: Path, tmp_path: Path) -> None:
        """Dagster's code server runs in such processes; pyspark ends them if a library of Spark Connect is missing."""
        load = "from lakefs_gc_assets.defs import checks; print('loaded')"

        assert run(programs / "python", "-c", load, folder=tmp_path) == "loaded\n"

    @pytest.mark.timeout(1200)
    def test_the_demo_runs_in_another_folder(self, programs: Path, tmp_path: Path) -> None:
        reported = run(programs / "lakefs-gc", "demo", "--objects", "60", folder=tmp_path, seconds=1100)

        assert "live objects answered" in reported
        assert not list(tmp_path.iterdir())

    def test_what_needs_an_extra_says_which(self, programs: Path, tmp_path: Path) -> None:
        found = ended(programs / "lakefs-gc", "ui", folder=tmp_path)

        assert (found.returncode, found.stdout, len(found.stderr.splitlines())) == (Status.CONFIGURATION, "", 1)
        assert "install this package's wheel with its extra [ui]" in found.stderr
        assert not list(tmp_path.iterdir())


@pytest.mark.timeout(1200)
def test_with_its_extra_the_ui_is_served(wheel: Path, tmp_path: Path) -> None:
    programs = installed(wheel, tmp_path, extras=["ui"])
    run(*_UV, "pip", "check", "--quiet", "--python", programs / "python", folder=tmp_path)
    port = str(free_port())
    (tmp_path / "gc.yaml").write_text("repository: own\n")
    command: list[str | Path] = [programs / "lakefs-gc", "ui", "--json", "--config", "gc.yaml", "--port", port]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=stranger(), **pipes) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            url = json.loads(process.stdout.readline())["url"]
            with urllib.request.urlopen(f"{url}/server_info", timeout=900) as answer:
                assert "dagster_webserver_version" in json.load(answer)
        finally:
            process.send_signal(signal.SIGINT)
        reported = process.stderr.read().splitlines()
    assert process.returncode == Status.WELL
    assert reported[-1].startswith("starting the Dagster UI of own; its runs are kept in ")
