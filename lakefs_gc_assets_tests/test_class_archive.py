import shlex
import sys
from pathlib import Path

import pytest

from lakefs_gc_assets import class_archive
from lakefs_gc_assets.java import ensure_java


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
    assert class_archive.options(java(tmp_path / "java", "17")) == []


def test_an_archive_is_used_by_the_java_that_made_it(environment: Path, tmp_path: Path) -> None:
    home = java(tmp_path / "java", "17")
    archive = class_archive.file(home)
    archive.touch()

    assert archive.parent == environment
    assert f"-XX:SharedArchiveFile={archive}" in shlex.split(" ".join(class_archive.options(home)))
    assert class_archive.options(java(tmp_path / "java", "21")) == []
    assert class_archive.options(java(tmp_path / "other", "17")) == []


def test_what_is_there_is_not_made_again(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_archive.file(ensure_java()).write_bytes(b"made")
    monkeypatch.setattr(class_archive, "_collect_sample", lambda folder: pytest.fail("made again"))

    assert class_archive.make().endswith("is there")


def test_a_java_that_makes_none_leaves_nothing_behind(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr(
        class_archive, "_collect_sample", lambda folder: told.append(class_archive.options(ensure_java()))
    )

    assert "no archive" in class_archive.make()

    ((making, *_),) = told
    assert "-XX:ArchiveClassesAtExit=" in making
    assert list(environment.iterdir()) == []


def test_a_new_archive_replaces_those_of_other_javas(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment / "spark-classes-old.jsa").touch()
    home = ensure_java()

    def collect(folder: Path) -> None:
        (folder / class_archive.file(home).name).write_bytes(b"classes")

    monkeypatch.setattr(class_archive, "_collect_sample", collect)

    class_archive.make()

    assert [file.name for file in environment.iterdir()] == [class_archive.file(home).name]
