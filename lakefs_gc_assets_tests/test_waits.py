"""Waits for a service are shown. Waits for each store and for lakeFS are tested beside their calls."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from io import BufferedReader, RawIOBase
from types import SimpleNamespace
from typing import Any

import pytest

from lakefs_gc_assets import waits
from lakefs_gc_assets.waits import Waits, _LimitedAnswer, _LimitedReader


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


class TestLimitedReader:
    """Answers whose parts come with pauses, in simulated seconds."""

    @pytest.fixture
    def read(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
        def read(*parts: tuple[float, int], seconds: float = 60) -> bytes:
            now = 0.0
            monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now))

            class Parts(RawIOBase):
                def readinto(self, buffer: Any) -> int:
                    nonlocal now
                    pause, size = next(rest, (0, 0))
                    now += pause
                    buffer[:size] = b" " * size
                    return size

            rest = iter(parts)
            return BufferedReader(_LimitedReader(Parts(), seconds)).read()

        return read

    def test_silence_before_the_answer_does_not_count(self, read: Callable[..., bytes]) -> None:
        assert len(read((280, 1), (59, 1))) == 2

    def test_a_byte_a_minute_is_given_up_after_the_second_one(self, read: Callable[..., bytes]) -> None:
        with pytest.raises(TimeoutError):
            read((1, 1), (61, 1), (1, 1))

    def test_a_slow_answer_may_take_hours(self, read: Callable[..., bytes]) -> None:
        assert len(read((1, 1), *[(50, 50 * 1024)] * 200)) == 1 + 200 * 50 * 1024

    def test_fast_parts_do_not_pay_for_a_slow_end(self, read: Callable[..., bytes]) -> None:
        with pytest.raises(TimeoutError):
            read(*[(0.001, 8_000)] * 1_000, *[(30, 1)] * 4)


@pytest.mark.parametrize(("method", "seconds"), [("GET", 60), ("HEAD", 60), ("POST", 600), ("PUT", 600)])
def test_services_may_send_spaces_while_they_write(method: str, seconds: float) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    with ours, theirs, closing(_LimitedAnswer(ours, method=method)) as answer:
        reader: Any = answer.fp.raw
        assert reader._seconds == seconds
