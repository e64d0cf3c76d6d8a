"""Numbers of this process's requests to stores, which tasks report to Spark's UI (`spark/stage_metrics.py`).

A folder has no requests and counts none. obstore, which reads objects, does not report its own retries.
"""

import threading
from collections import Counter

REQUESTS, RETRIES, BYTES_READ = "store requests", "store retries", "store bytes read"
_total: Counter[str] = Counter()
_lock = threading.Lock()


def count(requests: int = 0, *, retries: int = 0, bytes_read: int = 0) -> None:
    """Adds to the numbers of this process.

    Args:
        requests: attempts to send a request, including retries.
        retries: attempts after one that failed or was throttled.
        bytes_read: content of objects.
    """
    with _lock:
        _total.update({REQUESTS: requests, RETRIES: retries, BYTES_READ: bytes_read})


def total() -> Counter[str]:
    """The numbers of this process so far, by name."""
    with _lock:
        return _total.copy()
