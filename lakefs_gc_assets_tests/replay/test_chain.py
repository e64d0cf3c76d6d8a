import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from lakefs_gc_assets_tests.replay.__main__ import main
from lakefs_gc_assets_tests.runs.recordings import folder_of
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

FOLDERS = ("chain/1", "chain/2", "chain/3", "chain/4")


@pytest.mark.slow
def test_each_run_deletes_what_became_garbage_and_looks_at_new_slices_only() -> None:
    """The command as its readers use it."""
    command = [sys.executable, "-m", "lakefs_gc_assets_tests.replay", *(str(folder_of(name)) for name in FOLDERS)]
    done = subprocess.run([*command, "--chain"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [run["flow"] for run in found] == ["clean", "optimized", "optimized", "optimized"]
    assert [run["why_clean"] for run in found] == [None] * 4
    assert all(run["run_id"] in done.stderr for run in found) and "Traceback" not in done.stderr
    gone: set[str] = set()
    slices: set[str] = set()
    for name, run in zip(FOLDERS, found, strict=True):
        classes = truth_classes(name)
        assert set(run["candidates"]) == classes["unreferenced"] - gone
        assert run["counts"]["deleted"] == len(run["candidates"])
        now = {address.split("/")[1] for addresses in classes.values() for address in addresses if "/" in address}
        assert run["slices_listed"] == len(now - slices)
        gone |= set(run["candidates"])
        slices |= now


@pytest.mark.parametrize(
    ("names", "options", "complaint"),
    [
        (FOLDERS, [], "several folders need --chain"),
        (FOLDERS[:1], ["--now", "2026-11-01,2026-11-02"], "--now names 2 times for 1 folders"),
    ],
)
def test_what_makes_no_sense_is_refused(names: tuple[str, ...], options: list[str], complaint: str) -> None:
    folders = [str(folder_of(name)) for name in names]
    ended = CliRunner().invoke(main, [*folders, *options])
    assert ended.exit_code == 2 and complaint in ended.stderr
