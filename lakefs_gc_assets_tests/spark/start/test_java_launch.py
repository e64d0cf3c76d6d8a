"""Sessions started from foreign shells, and failing starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from lakefs_gc_assets.errors import SparkNotStarted
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session as spark_session
from lakefs_gc_assets.spark.start import java, process

_HOSTILE = {
    "SPARK_HOME": "/opt/spark-2.4",
    "SPARK_CONF_DIR": "/etc/spark",
    "SPARK_LOCAL_HOSTNAME": "gone.invalid",
    "SPARK_LOCAL_IP": "192.0.2.7",
    "SPARK_REMOTE": "sc://gone.invalid",
    "SPARK_SUBMIT_OPTS": "-Dno",
    "PYSPARK_SUBMIT_ARGS": "--master yarn",
    "PYSPARK_PYTHON": "/usr/bin/false",
    "HADOOP_CONF_DIR": "/etc/hadoop",
    "YARN_CONF_DIR": "/etc/hadoop",
    "MASTER": "yarn",
    "DEPLOY_MODE": "cluster",
    "CONTAINER_ID": "container_1",
    "LOCAL_DIRS": "/gone",
    "BASH_ENV": "/etc/gone",
    "SPARK_CONNECT_MODE_ENABLED": "1",
    "SPARK_LOCAL_REMOTE": "1",
    "PYSPARK_PIN_THREAD": "false",
    "PYSPARK_UDS_MODE": "true",
    "SPARK_TESTING": "1",
}
"""A shell set up for a cluster and another Spark."""
_AWS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token"}

# Workers read one variable that Java was started with, and one that it was not.
_STARTS = """
import os, sys
import pyarrow as pa
from lakefs_gc_assets.settings import SparkSettings
from lakefs_gc_assets.spark import session

def variables(batches):
    for batch in batches:
        found = [os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("PLANTED"), sys.executable]
        yield pa.RecordBatch.from_pydict({"seen": [" ".join(found)]})

spark = session.session(SparkSettings(master="local[1]", driver_memory="512m"))
java = spark._jvm.System.getenv()
print(spark.range(0, 1, 1, 1).mapInArrow(variables, "seen string").collect()[0].seen)
print(java.get("AWS_ACCESS_KEY_ID"), java.get("HADOOP_CONF_DIR"), spark.sparkContext.sparkUser())
"""

_ELSEWHERE = ["unshare", "--user", "--map-user=54321", "--map-group=0", "--uts", "--keep-caps"]
"""A user without a name, on a machine whose host name may be changed.

Both changes are invisible outside the command.
"""
_NAMELESS_HOST = [*_ELSEWHERE, "sh", "-c", 'hostname node-7.invalid && exec "$@"', "sh"]


def may_change_the_host_name() -> bool:
    """True if this kernel lets the user create namespaces."""
    return subprocess.run([*_NAMELESS_HOST, "true"], capture_output=True).returncode == 0


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not started Spark's Java, even if other tests did."""
    monkeypatch.setattr(SparkContext, "_gateway", None)


@pytest.fixture
def another_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SPARK_HOME of a Spark that prints its environment and arguments, and fails."""
    script = tmp_path / "bin" / "spark-submit"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "started with $HADOOP_CONF_DIR, $AWS_ACCESS_KEY_ID, $*"\nexit 7\n')
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.slow
@pytest.mark.skipif(not may_change_the_host_name(), reason="this kernel lets no user have namespaces of his own")
def test_a_local_session_starts_for_a_nameless_user_on_a_nameless_host_in_a_shell_for_another_spark() -> None:
    """One start for all conditions, since each takes seconds: each condition alone used to break it."""
    shell = {name: value for name, value in os.environ.items() if name not in {"USER", "LOGNAME", "HOME"}}

    started = subprocess.run(
        [*_NAMELESS_HOST, sys.executable, "-c", _STARTS],
        capture_output=True,
        text=True,
        env={**shell, **_HOSTILE, **_AWS, "PLANTED": "planted"},
    )

    assert started.returncode == 0, started.stderr
    assert started.stdout.splitlines() == [f"key planted {sys.executable}", "None None uid-54321"]
    assert started.stderr == ""


@pytest.mark.slow
@pytest.mark.usefixtures("no_java")
def test_a_java_that_cannot_begin_is_reported_with_its_own_words(capfd: pytest.CaptureFixture[str]) -> None:
    message = r"^Spark's session could not be started: .*object heap.*\. Lower spark\.driver_memory"
    with (
        pytest.raises(SparkNotStarted, match=message),
        spark_session.launching(SparkSettings(driver_memory="99999999g")),
    ):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_session_that_java_refuses_is_reported_once_and_without_its_stack() -> None:
    """Java itself prints nothing, so an unneeded session that fails while its process ends stays silent."""
    code = (
        "from lakefs_gc_assets.settings import SparkSettings; from lakefs_gc_assets.spark import session as s\n"
        "try: s.session(SparkSettings(config={'spark.driver.bindAddress': 'gone.invalid'}))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SparkNotStarted Spark's session could not be started: java")
    assert "That host name does not resolve" in done.stdout
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


@pytest.mark.usefixtures("no_java", "another_spark")
def test_a_cluster_is_configured_by_the_shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        **_AWS,
        "HADOOP_CONF_DIR": "/etc/hadoop",
        "PYSPARK_SUBMIT_ARGS": "--queue q pyspark-shell",
    }.items():
        monkeypatch.setenv(name, value)

    expected = f"started with /etc/hadoop, key, --properties-file {tmp_path} --queue q pyspark-shell"
    with pytest.raises(SparkNotStarted, match=f": {expected}. Check the section spark"):
        java.launch(tmp_path, is_local=False, has_own_workers=False)


def test_defaults_of_the_shells_spark_count_on_a_cluster(another_spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = another_spark / "conf"
    configuration.mkdir()
    (configuration / "spark-defaults.conf").write_text("spark.yarn.queue other")
    assert java.default_properties(is_local=False) == b"spark.yarn.queue other"
    assert java.default_properties(is_local=True) == b""
    monkeypatch.setenv("SPARK_CONF_DIR", str(another_spark))
    assert java.default_properties(is_local=False) == b""


@pytest.mark.usefixtures("no_java", "another_spark")
def test_a_spark_that_says_nothing_is_reported_with_its_status(another_spark: Path) -> None:
    script = another_spark / "bin" / "spark-submit"
    script.write_text("#!/bin/sh\nexit 7\n")
    with pytest.raises(SparkNotStarted, match="its Java ended with status 7 and printed nothing"):
        java.launch(another_spark, is_local=False, has_own_workers=False)
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    with pytest.raises(SparkNotStarted, match=r"was killed.* lack of memory.*Lower spark\.driver_memory"):
        java.launch(another_spark, is_local=False, has_own_workers=False)
    script.unlink()
    with pytest.raises(SparkNotStarted, match="No such file or directory"):
        java.launch(another_spark, is_local=False, has_own_workers=False)


def test_a_local_java_has_variables_that_spark_and_hadoop_do_not_read() -> None:
    shell = {**_HOSTILE, "SPARK_LOCAL_DIRS": "/scratch", "PATH": "/bin", "MY_SECRET": "x"}
    process.keep_own_settings(shell)
    assert shell == {
        "SPARK_LOCAL_DIRS": "/scratch",
        "PYSPARK_PYTHON": "/usr/bin/false",
        "PATH": "/bin",
        "MY_SECRET": "x",
    }


def test_workers_get_the_aws_keys_that_java_does_not() -> None:
    shell = {**_AWS, "AWS_REGION": "eu-west-1"}
    process.hide_aws_keys(shell)
    assert not shell.keys() & _AWS.keys()
    process.show_aws_keys(shell)
    assert shell == {**_AWS, "AWS_REGION": "eu-west-1"}


def test_workers_get_the_umask_that_java_does_not() -> None:
    shell: dict[str, str] = {}
    before = os.umask(0o027)
    try:
        process.keep_umask(shell)
        os.umask(0o077)
        process.restore_umask(shell)
        assert (os.umask(before), shell) == (0o027, {})
    finally:
        os.umask(before)


@pytest.mark.parametrize(
    ("printed", "advice"),
    [
        ("java.net.UnknownHostException: node-7", "add this machine's name to /etc/hosts"),
        ("java.net.BindException: Cannot assign requested address", "check spark.driver.bindAddress"),
        ("Something else", "Check the section spark"),
    ],
)
def test_a_reason_comes_with_advice(printed: str, advice: str) -> None:
    assert advice in str(java.not_started(printed))
