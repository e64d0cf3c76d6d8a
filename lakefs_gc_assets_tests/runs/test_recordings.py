"""Choice of recordings by name, and sharing of made ones by all processes of a test run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.runs import recordings
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, MADE_BY_NAME, MADE_PREFIX, REAL, folder_of, made_folder


@pytest.mark.parametrize("name", ["empty", "chain/2"])
def test_a_name_means_the_real_recording_where_it_is_there(name: str) -> None:
    assert folder_of(name) == (FIXTURES if REAL else made_folder()) / name
    assert folder_of(MADE_PREFIX + name) == made_folder() / name


def test_without_real_recordings_only_those_that_nobody_makes_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "REAL", False)
    assert [(each.values, bool(each.marks)) for each in recordings.recorded_and_made("small", "wide")] == [
        (("small",), False),
        (("wide",), True),
    ]
    assert folder_of("empty") == made_folder() / "empty"


def test_with_real_recordings_cheap_tests_read_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "REAL", True)
    assert [
        each if isinstance(each, str) else each.values[0] for each in recordings.recorded_and_made("small", "wide")
    ] == [
        "small",
        "wide",
        "made/small",
    ]


def test_processes_that_ask_at_once_make_it_once_and_read_the_same(tmp_path: Path) -> None:
    asking = "from lakefs_gc_assets_tests.runs.recordings import folder_of; print(folder_of('made/empty'))"
    environment = {**os.environ, recordings.FOLDER_VARIABLE: str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", asking], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert {process.communicate(timeout=900)[0] for process in processes} == {f"{tmp_path / 'empty'}\n"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "empty.lock"]


def test_every_made_recording_is_like_a_real_one() -> None:
    for name in MADE_BY_NAME:
        made = folder_of(MADE_PREFIX + name)
        assert {path.name for path in made.iterdir()} == {"api.jsonl", "listing.json", "namespace", "truth.json"}
        if REAL:
            assert {path.name for path in made.iterdir()} <= {path.name for path in (FIXTURES / name).iterdir()}
