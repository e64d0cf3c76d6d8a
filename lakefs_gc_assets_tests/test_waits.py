"""Waits for a service are shown. Waits for each store and for lakeFS are tested beside their calls."""

import threading
import time

import pytest

from lakefs_gc_assets import waits
from lakefs_gc_assets.waits import Waits


class EndsMeanwhile(dict[int, tuple[float, str]]):
    """Calls whose last one ends right after a check that any are pending."""

    def __bool__(self) -> bool:
        was_there = len(self) > 0
        self.clear()
        return was_there


def test_a_call_that_ends_while_it_is_looked_at_ends_no_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SHOWN_AFTER", 0.01)
    watched = Waits("a service")
    monkeypatch.setattr(watched, "_calls", EndsMeanwhile({1: (time.monotonic(), "read")}))
    watching = threading.Thread(target=watched._watch, daemon=True)
    watching.start()
    time.sleep(0.05)
    assert watching.is_alive()
    watched._calls.clear()
    watching.join(5)
    assert not watching.is_alive()
    assert watched._watcher is None
