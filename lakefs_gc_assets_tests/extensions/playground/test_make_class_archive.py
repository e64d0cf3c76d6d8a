"""The archive of Spark's Java classes is made once, and replaces archives of other Javas."""

import os
import sys
from pathlib import Path

import pytest

from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground import make_class_archive
from lakefs_gc_assets.extensions.playground.make_class_archive import make_archive
from lakefs_gc_assets.spark.start import java
from lakefs_gc_assets_tests.spark.start.test_java_class_archive import environment

__all__ = ["environment"]

SAMPLE = "a_module_that_collects"


def test_what_is_there_is_not_made_again(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java.archive_file(java.ensure_java()).write_bytes(b"made")
    monkeypatch.setattr(make_class_archive, "_load_classes", lambda module, building: pytest.fail("made again"))

    assert make_archive(SAMPLE).endswith("is there")


def test_a_java_that_makes_none_leaves_nothing_behind(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_class_archive, "_load_classes", lambda module, building: None)

    assert "no archive" in make_archive(SAMPLE)
    assert list(environment.iterdir()) == []


def test_a_sample_that_cannot_be_collected_says_why(environment: Path) -> None:
    with pytest.raises(CollectionError, match=f"{SAMPLE}.* ended with 1: .*No module named {SAMPLE}"):
        make_archive(SAMPLE)
    assert list(environment.iterdir()) == []


def test_a_new_archive_replaces_those_of_other_javas(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment / "spark-classes-old.jsa").touch()
    home = java.ensure_java()

    def load(module: str, building: Path) -> None:
        building.touch(0o600)  # as a Java process with a strict umask does

    monkeypatch.setattr(make_class_archive, "_load_classes", load)

    make_archive(SAMPLE)

    (file,) = environment.iterdir()
    assert file.name == java.archive_file(home).name
    assert file.stat().st_mode & 0o777 == 0o644, "other users start Spark too"


def test_the_module_is_reported_where_the_archive_is_to_be(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{SAMPLE}.py").write_text(
        "from lakefs_gc_assets.spark.start import java; java.archive_being_made().write_bytes(b'classes')"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    make_archive(SAMPLE)

    assert java.archive_being_made() is None
    assert java.archive_file(java.ensure_java()).read_bytes() == b"classes"
