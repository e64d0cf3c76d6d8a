"""Choice of recordings by name, and sharing of made ones by all processes of a test run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakefs_gc_assets_tests.runs import recordings
from lakefs_gc_assets_tests.runs.recordings import FIXTURES, MADE_BY_NAME, MADE_PREFIX, REAL, folder_of, made_folder
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes


@pytest.mark.parametrize("name", ["empty", "chain/2"])
def test_a_name_means_the_real_recording_where_it_is_there(name: str) -> None:
    assert folder_of(name) == (FIXTURES if REAL else made_folder()) / name
    assert folder_of(MADE_PREFIX + name) == made_folder() / name


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


CHAIN = [f"{MADE_PREFIX}chain/{number}" for number in (1, 2, 3, 4)]
DATA = ("committed", "committed_expired_only", "staged", "staged_and_committed", "unreferenced")


def addresses_of(name: str, *classes: str) -> set[str]:
    """The addresses of some classes, by the books of a recording."""
    return set().union(*(truth_classes(name).get(each, ()) for each in classes))


def test_each_moment_of_the_chain_has_new_garbage_in_old_and_in_new_slices() -> None:
    garbage = [addresses_of(name, "unreferenced") for name in CHAIN]
    slices = [{address.split("/")[1] for address in addresses_of(name, *DATA)} for name in CHAIN]
    assert [len(found) for found in slices] == [1, 2, 3, 4]
    for earlier, later, known, after in zip(garbage, garbage[1:], slices, slices[1:], strict=False):
        assert earlier < later
        (new,) = after - known
        assert {address.split("/")[1] == new for address in later - earlier} == {False, True}
    listed = len(addresses_of(CHAIN[0], *DATA))
    assert listed / 2 < len(garbage[0]) > 10
