import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import accumulators
from pyspark.sql import SparkSession

from lakefs_gc_assets.configuration_file import loaded_from
from lakefs_gc_assets.errors import ConfigurationError, SparkNotStarted
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets_tests.harness import process_tree

_DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(("master", "partitions"), [("local", "4"), ("local[1]", "4"), ("local[3]", "12")])
def test_shuffles_on_one_machine_follow_its_cores(master: str, partitions: str) -> None:
    assert spark_session.properties(SparkSettings(master=master))["spark.sql.shuffle.partitions"] == partitions


def test_a_cluster_keeps_its_own_workers_and_partitions() -> None:
    properties = spark_session.properties(SparkSettings(master="spark://host:7077"))

    assert not any(name.startswith("spark.python.") for name in properties)
    assert "spark.sql.shuffle.partitions" not in properties


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2,3]", "local[*, 4]", "spark://a:1,b:1", "k8s://https://a", "yarn"],
)
@pytest.mark.parametrize("memory", ["2g", "512m", "800M", "1073741824"])
def test_masters_and_memory_that_spark_takes(master: str, memory: str) -> None:
    assert spark_session.properties(SparkSettings(master=master, driver_memory=memory))["spark.master"] == master


@pytest.mark.parametrize("master", ["nonsense", "local[x]", "local[]", "locals", "spark:host", "k8s://", "Yarn"])
def test_a_master_that_is_none_is_reported_before_java_starts(master: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.master must be local\[\*\]") as refusal:
        spark_session.properties(SparkSettings(master=master))
    assert repr(master) not in str(refusal.value), "it may come from the environment"


@pytest.mark.parametrize("memory", ["", "lots", "2 g", "2gb", "1.5g", "-2g", "0"])
def test_memory_that_is_none_is_reported_before_java_starts(memory: str) -> None:
    with pytest.raises(ConfigurationError, match=r"spark\.driver_memory must be a number"):
        spark_session.properties(SparkSettings(driver_memory=memory))


def test_workers_run_in_the_python_that_a_property_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first: otherwise the patch would not restore a variable that was unset.
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.delenv("PYSPARK_PYTHON")

    spark_session.properties(SparkSettings(master="yarn"))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable

    monkeypatch.setenv("PYSPARK_PYTHON", "./other/bin/python")
    spark_session.properties(SparkSettings(master="yarn"))
    assert os.environ["PYSPARK_PYTHON"] == "./other/bin/python"
    spark_session.properties(SparkSettings(master="local[2]"))
    assert os.environ["PYSPARK_PYTHON"] == sys.executable

    chosen = {"spark.pyspark.python": "./environment/bin/python"}
    spark_session.properties(SparkSettings(master="yarn", config=chosen))
    assert os.environ["PYSPARK_PYTHON"] == "./environment/bin/python"


@pytest.mark.parametrize(("length", "sockets"), [(60, True), (61, False)])
def test_workers_are_reached_over_sockets_where_their_addresses_are_short_enough(
    monkeypatch: pytest.MonkeyPatch, length: int, sockets: bool
) -> None:
    monkeypatch.setattr(spark_session, "_private_folder", lambda: "/".ljust(length, "x"))
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
    begun, reported = threading.Event(), []

    def built(settings: SparkSettings) -> str:
        begun.wait(60)
        reported.append("built")
        return "session"

    monkeypatch.setattr(spark_session, "session", built)
    monkeypatch.setattr(spark_session, "_warm", lambda session: reported.append(f"warmed {session}"))

    spark_session.start(SparkSettings())
    begun.set()
    spark_session.wait_for_start()

    assert reported == ["built", "warmed session"]


def test_a_start_that_fails_is_left_to_who_needs_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(settings: SparkSettings) -> None:
        raise RuntimeError("no Java")

    monkeypatch.setattr(spark_session, "session", fails)

    spark_session.start(SparkSettings())
    spark_session.wait_for_start()


def test_a_session_on_demand_is_made_once_by_whoever_uses_it_first() -> None:
    together, made = threading.Barrier(8), []

    class Session:
        version = "4.3.0"

    def make() -> Any:
        made.append(threading.current_thread().name)
        time.sleep(0.05)
        return Session()

    spark = spark_session.on_demand(make)
    assert not spark_session.is_used(spark)

    def use(number: int) -> str:
        together.wait(60)
        return spark.version

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(use, range(8))) == {"4.3.0"}
    assert len(made) == 1 and spark_session.is_used(spark)


def test_a_session_on_demand_that_cannot_be_made_is_tried_again_by_the_next_who_needs_it() -> None:
    answers = iter([SparkNotStarted("no memory"), SimpleNamespace(version="4.3.0")])

    def make() -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    spark = spark_session.on_demand(make)
    with pytest.raises(SparkNotStarted, match="no memory"):
        print(spark.version)
    assert not spark_session.is_used(spark)
    assert spark.version == "4.3.0"


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        (SparkSettings(), True),
        (SparkSettings(master="local[4]"), True),
        (SparkSettings(master="local-cluster[1,1,1024]"), False),
        (SparkSettings(master="spark://host:7077"), False),
        (SparkSettings(master=""), False),
        (SparkSettings(remote="sc://spark:15002"), False),
    ],
)
def test_only_a_local_session_can_wait_for_the_first_task(settings: SparkSettings, waits: bool) -> None:
    assert spark_session.starts_on_demand(settings) is waits


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (SparkSettings(master="local[many]"), "spark.master"),
        (SparkSettings(driver_memory="much"), "spark.driver_memory"),
        (SparkSettings(config_from_environment={"spark.hadoop.x": "NOWHERE_SET"}), "NOWHERE_SET"),
    ],
)
def test_settings_are_looked_at_before_a_session_is_needed(
    settings: SparkSettings, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_session, "ensure_java", lambda: 1 / 0)

    with pytest.raises(ConfigurationError, match=named):
        spark_session.starts_on_demand(settings)


def test_the_number_of_tasks_is_known_before_a_local_session_is_started() -> None:
    assert spark_session.local_parallelism(SparkSettings(master="local")) == 1
    assert spark_session.local_parallelism(SparkSettings(master="local[3, 2]")) == 3
    assert spark_session.local_parallelism(SparkSettings(config={"spark.default.parallelism": "7"})) == 7


@pytest.mark.parametrize(
    ("properties", "tasks"),
    [
        ({}, 2),
        ({"spark.dynamicAllocation.maxExecutors": "20"}, 2),
        ({**_DYNAMIC, "spark.dynamicAllocation.maxExecutors": "20", "spark.executor.cores": "4"}, 80),
        ({**_DYNAMIC, "spark.dynamicAllocation.maxExecutors": "1"}, 2),
        ({**_DYNAMIC, "spark.dynamicAllocation.maxExecutors": str(2**31 - 1), "spark.executor.cores": "4"}, 2),
        (_DYNAMIC, 2),
        ({**_DYNAMIC, "spark.dynamicAllocation.maxExecutors": "20", "spark.default.parallelism": "7"}, 7),
    ],
)
def test_tasks_are_for_all_executors_that_may_be_added(properties: dict[str, str], tasks: int) -> None:
    """Dynamic allocation begins with few executors, or none: more come for tasks that wait."""
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=properties.get), _jsc=None, sparkContext=SimpleNamespace(defaultParallelism=2)
    )
    assert spark_session.parallelism(session) == tasks


@pytest.mark.parametrize(
    ("limit", "cores"),
    [(None, 8), ("max 100000\n", 8), ("250000 100000", 3), ("10000 100000", 1), ("9999999 100000", 8)],
)
def test_a_container_has_as_many_cores_as_it_may_use(
    limit: str | None, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(spark_session, "_CPU_LIMIT", tmp_path / "cpu.max")
    if limit is not None:
        (tmp_path / "cpu.max").write_text(limit)

    assert spark_session.local_parallelism(SparkSettings(master="local[*]")) == cores


@pytest.mark.parametrize("speculation", ["true", "True", "false", None])
def test_of_copies_of_tasks_that_lost_nothing_is_kept(speculation: str | None) -> None:
    config = {} if speculation is None else {"spark.speculation": speculation}
    found = spark_session.properties(SparkSettings(master="spark://host:7077", config=config))
    reported = found.get("spark.rdd.cache.visibilityTracking.enabled")
    assert reported == ("true" if speculation in {"true", "True"} else None)


def test_without_a_master_the_session_is_taken_as_spark_submit_made_it() -> None:
    properties = spark_session.properties(SparkSettings(master="", config={"spark.x": "y"}))

    assert properties["spark.sql.session.timeZone"] == "UTC"
    assert properties["spark.x"] == "y"
    assert not {"spark.master", "spark.driver.memory", "spark.driver.extraJavaOptions"} & properties.keys()


def test_a_session_of_one_machine_is_that_machines_own() -> None:
    properties = spark_session.properties(SparkSettings())

    assert {properties["spark.driver.bindAddress"], properties["spark.driver.host"]} == {"127.0.0.1"}
    assert properties["spark.authenticate"] == "true"
    assert "spark.authenticate" not in spark_session.properties(SparkSettings(master="spark://host:7077"))


class TestPropertiesFromTheEnvironment:
    SETTINGS = SparkSettings(config_from_environment={"spark.x": "GC_X", "spark.y": "GC_Y"})

    def test_are_read_where_the_session_is_made_and_hidden_by_spark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GC_X", "one")
        monkeypatch.setenv("GC_Y", "two")

        properties = spark_session.properties(self.SETTINGS)

        assert (properties["spark.x"], properties["spark.y"]) == ("one", "two")
        assert properties["spark.redaction.regex"].endswith(r"access[.]?key|spark\.x|spark\.y")

    def test_are_missed_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GC_X", "one")
        monkeypatch.delenv("GC_Y", raising=False)

        with pytest.raises(ConfigurationError, match=r"spark\.config\.spark\.y .* GC_Y, which is not set"):
            spark_session.properties(self.SETTINGS)

    def test_are_no_longer_in_a_configuration_that_was_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GC_X", "planted")
        loaded = loaded_from({"spark": {"config": {"spark.x": {"env": "GC_X"}, "spark.z": "plain"}}}, "gc.yaml")

        assert "planted" not in repr(loaded)
        spark = loaded.configuration.spark
        assert (spark.config, spark.config_from_environment) == ({"spark.z": "plain"}, {"spark.x": "GC_X"})

    def test_that_would_be_on_a_command_line_are_refused(self) -> None:
        content = {"spark": {"config": {"spark.driver.extraJavaOptions": {"env": "GC_X"}}}}
        with pytest.raises(ConfigurationError, match=r"extraJavaOptions cannot come from the environment"):
            loaded_from(content, "gc.yaml")


_STARTS = """
import json, os, sys
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as s
from lakefs_gc_assets_tests.harness import process_tree

before = dict(os.environ)
value = sys.argv[1]
spark = s.session(SparkSettings(master="local[1]", driver_memory="700m", config={"spark.planted": value}))
s._warm(spark)
commands = [process_tree.command(pid) for pid in process_tree.descendants(os.getpid())]
listening = {str(each) for pid in process_tree.descendants(os.getpid()) for each in process_tree.listening(pid)}
told = {
    "value": spark.conf.get("spark.planted"),
    "memory": spark.conf.get("spark.driver.memory"),
    "authenticates": spark.conf.get("spark.authenticate"),
    "commands": commands,
    "listening": sorted(listening),
    "kept": sorted(name for name in os.environ if os.environ[name] != before.get(name)),
}
print(json.dumps(told))
"""


@pytest.mark.slow
def test_properties_reach_spark_and_no_command_line(tmp_path: Path) -> None:
    value = " planted: a=b\\c #!\tü"
    started = subprocess.run(
        [sys.executable, "-c", _STARTS, value],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert started.returncode == 0, started.stderr
    reported = json.loads(started.stdout)

    assert reported["value"] == value.strip()
    assert (reported["memory"], reported["authenticates"]) == ("700m", "true")
    assert reported["listening"] == ["127.0.0.1"]
    java = [command for command in reported["commands"] if "SparkSubmit" in command]
    assert java and "-Xmx700m" in java[0]
    assert "planted" not in "".join(reported["commands"])
    assert "PYSPARK_SUBMIT_ARGS" not in reported["kept"] and "SPARK_LOCAL_IP" not in reported["kept"]
    assert not list(tmp_path.rglob("session.properties"))


def test_the_file_of_properties_is_for_this_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with spark_session._properties_file({"spark.x": "y"}, b"spark.x z") as file:
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.read_text() == "spark.x z\n\nspark.x=y\n"
    assert not file.exists()
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with spark_session._properties_file({"spark.x": "y"}, b"spark.x z") as file:
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert file.read_text() == "spark.x z\n\nspark.x=y\n"
    assert not file.exists()


_SHUFFLES = """
import os, sys, time
from pathlib import Path
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as s

print("begins", flush=True)
spark = s.session(SparkSettings(master="local[1]", config={"spark.planted": sys.argv[1]}))

def mask(batches):
    yield from batches
    now = os.umask(0)
    os.umask(now)
    Path(os.environ["TMPDIR"], "mask").write_text(f"{now:o}")

rows = spark.range(0, 1000, 1, 2).mapInArrow(mask, "id long").repartition(2, "id").persist()
rows.count()
print("shuffled", flush=True)
time.sleep(600)
"""


def planted_in(folder: Path) -> list[Path]:
    """Files that hold the planted value."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file for file in files if b"planted-value" in file.read_bytes()]


@pytest.mark.slow
def test_a_killed_process_leaves_no_secret_and_shuffles_are_private(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SHUFFLES, "planted-value"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    before = os.umask(0o022)
    try:
        for word in ("begins", "shuffled"):
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            while process.stdout.readline().strip() != word:
                assert process.poll() is None
            if word == "begins":
                while not any("java" in process_tree.command(pid) for pid in process_tree.descendants(process.pid)):
                    time.sleep(0.01)
            else:
                shuffles = [file for file in tmp_path.rglob("*") if file.name.startswith("shuffle_")]
                assert shuffles and all(file.stat().st_mode & 0o077 == 0 for file in shuffles)
                folders = {file.relative_to(tmp_path).parts[0] for file in shuffles}
                assert all((tmp_path / folder).stat().st_mode & 0o077 == 0 for folder in folders)
                assert (tmp_path / "mask").read_text() == "22"
            process.kill()
            process.wait()
            process.stdout.close()
            assert planted_in(tmp_path) == []
    finally:
        os.umask(before)


def test_the_gateway_and_the_accumulators_say_nothing_of_a_java_that_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: shown.append(record.getMessage()))
    root = logging.getLogger()
    root.addHandler(handler)
    spark_session.hide_errors_of_ended_java()
    try:
        for path in ("/a/py4j/java_gateway.py", "/a/other.py"):
            root.handle(logging.LogRecord("root", logging.ERROR, path, 1, path, (), None))
    finally:
        root.removeHandler(handler)
    assert shown == ["/a/other.py"]

    # Before Spark 4.1 the class has another name.
    kinds = vars(accumulators)
    server = object.__new__(kinds.get("AccumulatorTCPServer") or kinds["AccumulatorServer"])
    for error in (EOFError(), ConnectionResetError(), ValueError("another one")):
        try:
            raise error
        except Exception:
            server.handle_error(socket.socket(), "")
    said = capsys.readouterr().err
    assert "another one" in said and "EOFError" not in said and "ConnectionResetError" not in said


@pytest.mark.parametrize(
    ("name", "value", "address"),
    [
        ("spark.ui.reverseProxyUrl", "https://spark.example/", "https://spark.example/proxy/{}/jobs/"),
        ("spark.yarn.historyServer.address", "history:18080", "http://history:18080/history/{}/jobs/"),
    ],
)
def test_the_address_of_jobs_is_that_of_the_proxy_or_the_history_server(
    spark: SparkSession, name: str, value: str, address: str
) -> None:
    if not hasattr(spark, "_jsc"):
        pytest.skip("Spark Connect tells no address")
    context = spark.sparkContext
    assert spark_session.ui_address(spark) is None, "its UI is off"
    context._conf.set(name, value)
    try:
        assert spark_session.ui_address(spark) == address.format(context.applicationId)
    finally:
        context._conf._jconf.remove(name)  # type: ignore[union-attr]


def test_a_session_that_was_not_started_has_no_address() -> None:
    def make() -> Any:
        raise AssertionError("it is started")

    assert spark_session.ui_address(spark_session.on_demand(make)) is None
