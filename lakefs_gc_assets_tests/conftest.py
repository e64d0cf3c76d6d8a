"""What all tests share: one Spark session, hypothesis profiles, no telemetry."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

from lakefs_gc_assets.configuration import SparkSettings
from lakefs_gc_assets.spark_session import properties

os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"

# `ci` tries the same examples each time; `soak` (HYPOTHESIS_PROFILE=soak) looks for new ones, long.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=5000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes one has all tests of the Spark session; the others take whole files of what is left."""
    for item in items:
        uses_spark = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if uses_spark else str(item.path)))


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
    builder = SparkSession.builder
    for name, value in properties(settings).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
