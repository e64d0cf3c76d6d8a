"""Threads that share a virtual clock: one runs at a time, and time passes only while all wait."""

import heapq
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

_Result = TypeVar("_Result")


class VirtualTime:
    """The clock.

    Attributes:
        now: seconds since the beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: list[tuple[float, int, threading.Event]] = []
        self._order = count()

    def sleep(self, seconds: float) -> None:
        """Waits; called in a thread of `run`."""
        woken = self._enqueue(seconds)
        self._wake_next()
        woken.wait()

    def run(self, works: Sequence[Callable[[], _Result]]) -> list[_Result]:
        """Results of functions, each run in a thread of its own."""
        results: dict[int, _Result] = {}

        def run_one(number: int, woken: threading.Event) -> None:
            woken.wait()
            try:
                results[number] = works[number]()
            finally:
                self._wake_next()

        threads = [threading.Thread(target=run_one, args=(number, self._enqueue(0))) for number in range(len(works))]
        for thread in threads:
            thread.start()
        self._wake_next()
        for thread in threads:
            thread.join()
        return [results[number] for number in range(len(works))]

    def _enqueue(self, seconds: float) -> threading.Event:
        woken = threading.Event()
        heapq.heappush(self._waiting, (self.now + max(0.0, seconds), next(self._order), woken))
        return woken

    def _wake_next(self) -> None:
        if self._waiting:
            self.now, _, woken = heapq.heappop(self._waiting)
            woken.set()
