"""What all tests share: one Spark session, hypothesis profiles, no telemetry.

Tests that need neither Spark nor Dagster import neither, so that a folder of them is done in seconds.
"""

import gc
import os
import shutil
from collections.abc import Generator, Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from lakefs_gc_assets_tests.harness import costs
from lakefs_gc_assets_tests.harness.costs import Costs
from lakefs_gc_assets_tests.runs.recordings import FOLDER_VARIABLE, made_folder
from lakefs_gc_assets_tests.servers import store_secret
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

os.environ["DAGSTER_DISABLE_TELEMETRY"] = "1"
REMOTE_VARIABLE = "TEST_SPARK_REMOTE"
_NEW_OBJECTS = 20_000
"""So many objects more than before, and Python's collector of cycles looks at the new ones; by default it is 700."""

# `ci` tries the same examples each time; `soak` (HYPOTHESIS_PROFILE=soak) looks for new ones, long. No test fails for
# how fast the machine is.
settings.register_profile("default", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.register_profile("soak", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--costs FILE`."""
    parser.addoption("--costs", type=Path, help="write what each test costs into a file")


def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed of simulated histories and names a folder before other processes start; measures what tests cost.

    In the folder lie recordings that the tests make; see `recordings`.
    """
    draw_seed()
    if FOLDER_VARIABLE not in os.environ:
        folder = made_folder()
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.pluginmanager.register(Costs(config.getoption("--costs") if not hasattr(config, "workerinput") else None))


def pytest_report_header() -> str:
    """Says which histories are played."""
    return f"histories: {SEED_VARIABLE}={draw_seed()}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares Python's collector of cycles modules and tests, which stay: it took a twelfth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the dearest files first: what is dealt out last is cheap, so that all processes end at about one time.

    Files that nobody has measured come before all others: they may be dear.
    """
    dear = costs.of_files({item.nodeid for item in items})
    items.sort(key=lambda item: -dear.get(item.nodeid.partition("::")[0], inf))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling | None":
    """Lets few processes start Spark; see `spark_files`."""
    from lakefs_gc_assets_tests.harness.spark_files import SparkOnFew

    return SparkOnFew(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> "Iterator[None]":
    """No test looks at what is left after a power failure, and thousands of files are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The one session, started by the first test that asks for it: local and as small as tests need.

    If the environment names a Spark Connect server (`REMOTE_VARIABLE`), it is a session of that.
    """
    from lakefs_gc_assets.settings import SparkSettings
    from lakefs_gc_assets.spark import session as spark_session

    settings = SparkSettings(
        master="local[2]",
        remote=os.environ.get(REMOTE_VARIABLE, ""),
        config={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        },
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(store_secret.VARIABLE, store_secret.SECRET)
        session = spark_session.session(settings)
    yield session
    session.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Waits until commands of earlier tests have started Spark: theirs is this session, and its properties change."""
    if "spark" in getattr(item, "fixturenames", ()):
        from lakefs_gc_assets.spark import session as spark_session

        spark_session.wait_for_start()
