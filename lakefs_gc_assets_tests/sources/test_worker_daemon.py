import subprocess
import sys

# What runs beside the main thread while workers are forked, by name.
THREADS = """
import lakefs_gc_assets.sources.worker_daemon, sys
from pathlib import Path
print(*sorted({file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")}))
print("pyarrow" in sys.modules, "numba" in sys.modules, "boto3" in sys.modules)
"""


def test_workers_are_forked_from_one_thread_that_has_imported_everything() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True)

    names, imported = done.stdout.splitlines()
    # pyarrow's allocator stops its thread around each fork by itself.
    assert set(names.split()) <= {"python", "python3", "jemalloc_bg_thd", f"python3.{sys.version_info.minor}"}
    assert imported == "True True True"
