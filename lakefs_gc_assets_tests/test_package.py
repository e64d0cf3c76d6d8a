"""The wheel: what is in it, and that it works in an environment of its own.

What it requires is borrowed from the environment of the tests: to install it takes minutes and more than a gigabyte.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

from lakefs_gc_assets_tests.dagster_dev import PROJECT

pytestmark = pytest.mark.slow
_UV = (sys.executable, "-m", "uv")
VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]


def run(*command: str | Path, folder: Path, seconds: float = 120) -> str:
    """What a command prints, in a folder and an environment that do not know this checkout."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as `make build` makes it."""
    folder = tmp_path_factory.mktemp("dist")
    offline = ("--offline", "--no-build-isolation", "--python", sys.executable, "--quiet")
    run(*_UV, "build", PROJECT, "--wheel", *offline, "--out-dir", folder, folder=folder)
    [found] = folder.glob("*.whl")
    return found


def test_it_has_the_package_and_nothing_else(wheel: Path) -> None:
    expected = {
        str(file.relative_to(PROJECT))
        for file in (PROJECT / "lakefs_gc_assets").rglob("*")
        if file.suffix in (".py", ".typed", ".properties") and "__pycache__" not in file.parts
    }

    with ZipFile(wheel) as archive:
        names = set(archive.namelist())

    told = f"lakefs_gc_assets-{VERSION}.dist-info"
    described = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert names == expected | {f"{told}/{name}" for name in described}
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
    assert {"azure", "gcs"} <= set(metadata.get_all("Provides-Extra") or [])
    assert metadata.get_all("Project-URL") is None
    assert "Typing :: Typed" in (metadata.get_all("Classifier") or [])


def test_the_licence_is_apaches() -> None:
    text = (PROJECT / "LICENSE").read_text()

    assert text.split()[:6] == ["Apache", "License", "Version", "2.0,", "January", "2004"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert "[name of copyright owner]" in text


def test_the_changelog_has_this_version() -> None:
    assert f"\n## {VERSION} - " in (PROJECT / "CHANGELOG.md").read_text()


def installed(wheel: Path, folder: Path, python: str) -> Path:
    """The programs of an environment that has the wheel, and borrows what it requires."""
    run(*_UV, "venv", "--quiet", "--offline", "--python", python, folder / "venv", folder=folder)
    programs = folder / "venv" / "bin"
    install = ("pip", "install", "--quiet", "--offline", "--no-deps", "--python", programs / "python")
    run(*_UV, *install, wheel, folder=folder)
    site = run(programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=folder)
    Path(site.strip(), "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return programs


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_an_environment_of_its_own_has_the_command(wheel: Path, tmp_path: Path, version: str) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = sys.executable if version == here else shutil.which(f"python{version}")
    # A program of this name may be there that only knows where a Python could be.
    if python is None or subprocess.run([python, "--version"], capture_output=True).returncode != 0:
        pytest.skip(f"there is no Python {version} here")
    programs = installed(wheel, tmp_path, python)

    assert run(programs / "lakefs-gc", "--version", folder=tmp_path) == f"lakefs-gc {VERSION}\n"
    assert "doctor" in run(programs / "lakefs-gc", "--help", folder=tmp_path)
    found = run(programs / "python", "-c", "import lakefs_gc_assets; print(lakefs_gc_assets.__file__)", folder=tmp_path)
    assert Path(found.strip()).is_relative_to(tmp_path / "venv")


@pytest.mark.timeout(1200)
def test_the_demo_runs_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    programs = installed(wheel, tmp_path, sys.executable)
    (tmp_path / "elsewhere").mkdir()

    told = run(programs / "lakefs-gc", "demo", "--objects", "60", folder=tmp_path / "elsewhere", seconds=1100)

    assert "live objects answered" in told
    assert not list((tmp_path / "elsewhere").iterdir())
