import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from lakefs_gc_assets.spark.start.process import without_archives

ARCHIVES = [str(file) for file in Path(pyspark.__file__).parent.glob("python/lib/*.zip")]

# Names of threads beside the main thread when workers are forked.
THREADS = """
import sys
from pathlib import Path
from lakefs_gc_assets.spark.start import worker_daemon
worker_daemon.load_compiler()
print(*sorted({file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")}))
import pyarrow as pa
pa.array(["what pyarrow would import pandas for"])
print("pyarrow" in sys.modules, "numba" in sys.modules, "boto3" in sys.modules, "pandas" not in sys.modules)
"""


def test_workers_are_forked_from_one_thread_that_has_imported_everything() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)

    names, imported = done.stdout.splitlines()
    # pyarrow's allocator stops its thread around each fork by itself.
    assert set(names.split()) <= {"python", "python3", "jemalloc_bg_thd", f"python3.{sys.version_info.minor}"}
    assert imported == "True True True True"


def test_pyspark_is_imported_as_installed_and_not_from_the_archives_that_spark_puts_first() -> None:
    code = "import lakefs_gc_assets.spark.start.worker_daemon, pyspark.worker, py4j;"
    code += "print(pyspark.__file__, py4j.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*ARCHIVES, *sys.path])}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)

    assert len(ARCHIVES) == 2
    assert ".zip" not in done.stdout


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A folder with a name short enough for a socket's path, unlike pytest's folders."""
    with tempfile.TemporaryDirectory(prefix="gc") as folder:
        yield folder


def test_a_worker_that_spark_has_left_ends_without_a_word(short_folder: str) -> None:
    """Spark closes the sockets of idle workers when it ends; a worker's output may then be on a user's screen."""
    environment = {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": short_folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "lakefs_gc_assets.spark.start.worker_daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as daemon:
        assert daemon.stdin
        assert daemon.stdout
        with socket.socket(socket.AF_UNIX) as spark:
            spark.connect(daemon.stdout.read(int.from_bytes(daemon.stdout.read(4))))
            worker = int.from_bytes(spark.recv(4, socket.MSG_WAITALL))
        while Path(f"/proc/{worker}").exists():
            time.sleep(0.01)
        _, said = daemon.communicate(timeout=900)

    assert said == b""


LEFT = """
import os
from lakefs_gc_assets.spark.start.worker_daemon import without_garbage_collection

def answer_nobody():
    reader, writer = os.pipe()
    os.close(reader)
    with_pending_bytes = os.fdopen(writer, "wb")
    with_pending_bytes.write(b"x")
    with_pending_bytes.flush()

print(without_garbage_collection(answer_nobody)())
"""


def test_a_worker_that_was_left_with_an_answer_ends_without_a_word() -> None:
    """As after minutes of waiting for the recheck. Python before 3.13 reports it only in development mode."""
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", LEFT]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout == "1\n"
    assert "BrokenPipeError" not in done.stderr


def test_archives_stay_where_pyspark_is_in_nothing_else(tmp_path: Path) -> None:
    assert without_archives([*ARCHIVES, str(tmp_path)]) == [*ARCHIVES, str(tmp_path)]
