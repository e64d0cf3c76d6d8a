"""Runs with the installed Spark: `make test-spark SPARK=3.5` installs another version than .venv has."""

import os
import subprocess
from pathlib import Path

import pyspark
import pytest

import lakefs_gc_assets
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets_tests.clusters.spark_clusters import SampleRuns
from lakefs_gc_assets_tests.conftest import REMOTE_VARIABLE
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_PROJECT = Path(__file__).parents[2]
_OLDEST = "3.5"
_FEW = ("WORKERS=0", "TESTS=-k builds_on_it")
_SPARK = (
    {"remote": os.environ[REMOTE_VARIABLE]}
    if REMOTE_VARIABLE in os.environ
    else {"master": "local[2]", "config": {"spark.sql.shuffle.partitions": "2"}}
)
_ALL_ON_SPARK = """
import sys

if "lakefs_gc_assets.spark.start.worker_daemon" not in sys.orig_argv:
    from lakefs_gc_assets.collector.frame import files
    from lakefs_gc_assets.spark import engine, tasks

    files.LOCAL_ROWS = engine.LOCAL_ROWS = -1
    tasks.WITH_FUNCTION = 0
"""
"""Loaded when Python starts: otherwise the driver itself would process so few objects."""


@pytest.fixture
def all_on_spark(tmp_path: Path) -> dict[str, str]:
    """Environment variables that make a command keep no rows in its driver."""
    (tmp_path / "sitecustomize.py").write_text(_ALL_ON_SPARK)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))}


def test_a_run_by_rules_and_one_that_builds_on_it(tmp_path: Path, all_on_spark: dict[str, str]) -> None:
    with demo.open_server(tmp_path / "lakefs", "oss", "", None) as server:
        runs = SampleRuns(tmp_path, server, make_sample_repository(server, objects=60, with_months=True))
        configuration = demo.configuration(server, runs.sample.repository)
        ArrowRuns(Loaded(configuration, {})).collect(Flow.UNIFIED)
        marked = lakefs_gc_assets.open(configuration).run("latest").candidates.to_arrow()
        garbage = set(marked["address"].to_pylist())
        # Objects that no commit ever held, and objects that only expired commits hold.
        assert len(garbage) > len(runs.sample.garbage)
        before = runs.objects()

        runs.run("unified", _SPARK, all_on_spark, {"max_candidate_share": 1})
        assert before - runs.objects() == garbage
        assert demo.still_stored(server, runs.sample) == []

        again = runs.run("unified", _SPARK, all_on_spark)
        assert "unified: nothing to delete" in again
        assert "0 slices" in again and "0 ranges read" in again
        assert before - runs.objects() == garbage


@pytest.mark.skipif(pyspark.__version__.startswith(_OLDEST), reason="this is the oldest Spark")
def test_the_oldest_spark() -> None:
    """Two runs by rules: `make test-spark` also plays the contract of engines, on any version."""
    try:
        tried = subprocess.run(
            ["make", "--silent", "-o", ".venv/.installed", "test-spark", f"SPARK={_OLDEST}", *_FEW],
            cwd=_PROJECT,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no make")
    if "cannot be installed" in tried.stderr:
        pytest.skip(tried.stderr.strip())
    assert tried.returncode == 0, tried.stdout + tried.stderr
