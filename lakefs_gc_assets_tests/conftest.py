"""Fixtures shared by all tests: one Spark session, hypothesis profiles, no telemetry.

Tests that need neither Spark nor Dagster import neither, so a folder of such tests takes seconds.
"""

import gc
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterator
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from lakefs_gc_assets_tests.harness import costs
from lakefs_gc_assets_tests.harness.costs import Costs, SparkOnFew
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
"""New objects before Python's cyclic garbage collector checks them; the default is 700."""
_MAY_BE_SLOW = re.compile(r"mark\.slow|^pytestmark", re.MULTILINE)

# `ci` tries the same examples each time, so more of them would find nothing new; `soak` (HYPOTHESIS_PROFILE=soak)
# searches long for new ones. No test fails because the machine is slow.
settings.register_profile("default", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), max_examples=25, derandomize=True, print_blob=True)
settings.register_profile("soak", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--costs FILE`."""
    parser.addoption("--costs", type=Path, help="write what each test costs into a file")


def pytest_configure(config: pytest.Config) -> None:
    """Draws the seed of simulated histories and names a folder before other processes start; measures test costs.

    The folder holds recordings that tests make; see `recordings`.
    """
    draw_seed()
    if FOLDER_VARIABLE not in os.environ:
        folder = made_folder()
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.pluginmanager.register(Costs(config.getoption("--costs") if not hasattr(config, "workerinput") else None))


def pytest_report_header() -> str:
    """Reports the seed of the histories."""
    return f"histories: {SEED_VARIABLE}={draw_seed()}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempts modules and tests from Python's cyclic garbage collector.

    They stay, and scanning them took a twelfth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_NEW_OBJECTS)
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips files without slow tests if only these are to run: each process would import all files first.

    Two thirds of the files have none. A file with the mark has it in its text, or has one mark for all its tests.
    """
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    return None if _MAY_BE_SLOW.search(collection_path.read_text()) else True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the most expensive files first, so that all processes end at about the same time.

    Files without a measured cost come first: they may be expensive.
    """
    dear = costs.of_files({item.nodeid for item in items})
    items.sort(key=lambda item: -dear.get(item.nodeid.partition("::")[0], inf))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling | None":
    """Lets only a few processes start Spark; see `costs`."""
    return SparkOnFew(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> "Iterator[None]":
    """Skips fsync: no test simulates a power failure, and the tests write thousands of files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_failure_of_finalizers_without_stack() -> "Iterator[None]":
    """Ignores a finalizer that fails where a test uses up the stack: the garbage there may be an earlier test's.

    pytest's hook also fails there, and would fail the test.
    """
    report = sys.unraisablehook
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda error: None if error.exc_type is RecursionError else report(error))
        yield


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """The shared session, started by the first test that requests it: local and as small as tests need.

    If the environment names a Spark Connect server (`REMOTE_VARIABLE`), the session connects to it.
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
    """Waits until commands of earlier tests have started Spark: they share this session and change its properties."""
    if "spark" in getattr(item, "fixturenames", ()):
        from lakefs_gc_assets.spark import session as spark_session

        spark_session.wait_for_start()
