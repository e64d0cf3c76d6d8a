"""Code that can be suspended in the middle of any call: a thread that runs only when resumed."""

import threading
from collections.abc import Callable


class Coroutine:
    """Runs a function in its own thread, never at the same time as the thread that resumes it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._mine, self._theirs = threading.Lock(), threading.Lock()
        self._mine.acquire()
        self._theirs.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._started = False
        self.ended = False
        self.error: BaseException | None = None

    def _run(self) -> None:
        self._mine.acquire()
        try:
            self._function()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._theirs.release()

    def resume(self) -> None:
        """Runs the function until it suspends itself or ends."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._mine.release()
        self._theirs.acquire()
        if self.ended:
            self._thread.join()

    def suspend(self) -> None:
        """Waits until the function is resumed. Called by the function itself."""
        self._theirs.release()
        self._mine.acquire()

    @property
    def inside(self) -> bool:
        """True if the caller is the function itself."""
        return threading.current_thread() is self._thread
