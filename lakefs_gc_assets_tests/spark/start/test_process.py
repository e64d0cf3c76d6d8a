import subprocess
import sys

# Exit handlers run in reverse order of registration.
ENDING = """
import atexit, gc
atexit.register(lambda: print(gc.get_freeze_count() > 1000))
from lakefs_gc_assets.spark.start import process
process.collect_cycles_rarely()
print(gc.isenabled(), gc.get_threshold()[0] > 10_000, gc.get_freeze_count())
"""

PANDAS = """
import sys
from lakefs_gc_assets.spark.start import process
process.exclude_pandas()
import pyarrow as pa
made = pa.array(["a", "b"])
print("pandas" in sys.modules, len(made))
"""


def test_cycles_are_looked_for_seldom_and_not_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["True True 0", "True"]


def test_pandas_is_left_out() -> None:
    done = subprocess.run([sys.executable, "-c", PANDAS], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["False 2"]
