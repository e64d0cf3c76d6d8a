"""What all tests share: one Spark session, hypothesis profiles, no telemetry."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session

os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
_ROOT = Path(__file__).parents[1]
_SESSION = re.compile(r"\b(SparkSession|Replaying|GraphRuns)\b")

# `ci` tries the same examples each time; `soak` (HYPOTHESIS_PROFILE=soak) looks for new ones, long.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


class BySession(LoadFileScheduling):  # type: ignore[misc]
    """Of several processes one has all files with tests of the Spark session; the others take files of what is left."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if _uses_spark(file) else file


@cache
def _uses_spark(file: str) -> bool:
    return _SESSION.search((_ROOT / file).read_text()) is not None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> BySession:
    """How xdist deals out tests."""
    return BySession(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one local session: started by the first test that asks for it, as small as tests need."""
    settings = SparkSettings(
        master="local[2]",
        config={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    session = spark_session.session(settings)
    yield session
    session.stop()
