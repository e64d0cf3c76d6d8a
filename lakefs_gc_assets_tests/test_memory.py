"""Settings of Arrow's memory allocator, tested in a separate process because Arrow is loaded once."""

import subprocess
import sys

import pytest

FREED = """
import lakefs_gc_assets
import pyarrow as pa
import numpy as np

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

before = resident()
buffers = [pa.allocate_buffer(1 << 20) for _ in range(200)]
for buffer in buffers:
    np.frombuffer(buffer, np.uint8)[:] = 1
held = resident() - before
del buffers, buffer
print(pa.default_memory_pool().backend_name, (resident() - before) / held)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is resident is looked up in /proc")
def test_what_arrow_has_freed_goes_back_to_the_system() -> None:
    allocator, left = subprocess.run(
        [sys.executable, "-c", FREED], capture_output=True, text=True, check=True
    ).stdout.split()

    assert allocator != "mimalloc" or float(left) < 0.3
