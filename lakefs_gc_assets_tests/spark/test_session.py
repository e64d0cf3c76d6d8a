import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session


@pytest.mark.parametrize(("master", "partitions"), [("local", "4"), ("local[1]", "4"), ("local[3]", "12")])
def test_shuffles_on_one_machine_follow_its_cores(master: str, partitions: str) -> None:
    assert spark_session.properties(SparkSettings(master=master))["spark.sql.shuffle.partitions"] == partitions


def test_a_cluster_keeps_its_own_workers_and_partitions() -> None:
    properties = spark_session.properties(SparkSettings(master="spark://host:7077"))

    assert not any(name.startswith("spark.python.") for name in properties)
    assert "spark.sql.shuffle.partitions" not in properties


@pytest.mark.parametrize(("length", "sockets"), [(60, True), (61, False)])
def test_workers_are_reached_over_sockets_where_their_addresses_are_short_enough(
    monkeypatch: pytest.MonkeyPatch, length: int, sockets: bool
) -> None:
    monkeypatch.setattr(spark_session, "_socket_folder", lambda: "/".ljust(length, "x"))
    properties = spark_session.properties(SparkSettings(master="local[1]"))
    assert ("spark.python.unix.domain.socket.enabled" in properties) is sockets


def test_no_socket_outlives_a_process() -> None:
    code = (
        "from lakefs_gc_assets.spark import session as s; from lakefs_gc_assets.settings import SparkSettings;"
        "print(s.properties(SparkSettings(master='local[1]'))['spark.python.unix.domain.socket.dir'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()


def test_the_session_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told = threading.Event(), []

    def built(settings: SparkSettings) -> str:
        begun.wait(60)
        told.append("built")
        return "session"

    monkeypatch.setattr(spark_session, "session", built)
    monkeypatch.setattr(spark_session, "_warm", lambda session: told.append(f"warmed {session}"))

    spark_session.start(SparkSettings())
    begun.set()
    spark_session.wait_for_start()

    assert told == ["built", "warmed session"]


def test_a_start_that_fails_is_left_to_who_needs_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(settings: SparkSettings) -> None:
        raise RuntimeError("no Java")

    monkeypatch.setattr(spark_session, "session", fails)

    spark_session.start(SparkSettings())
    spark_session.wait_for_start()


def test_without_a_master_the_session_is_taken_as_spark_submit_made_it() -> None:
    properties = spark_session.properties(SparkSettings(master="", config={"spark.x": "y"}))

    assert properties["spark.sql.session.timeZone"] == "UTC"
    assert properties["spark.x"] == "y"
    assert not {"spark.master", "spark.driver.memory", "spark.driver.extraJavaOptions"} & properties.keys()
