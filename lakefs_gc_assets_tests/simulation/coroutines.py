"""Code that can be stopped in the middle of any call and gone on with later: a thread that runs only when told to."""

import threading
from collections.abc import Callable


class Coroutine:
    """Runs a function in a thread of its own, never at the same time as whoever resumes it."""

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
        """Lets it run until it suspends itself or ends."""
        if not self._started:
            self._started = True
            self._thread.start()
        self._mine.release()
        self._theirs.acquire()
        if self.ended:
            self._thread.join()

    def suspend(self) -> None:
        """Called by the function itself: waits until it is resumed."""
        self._theirs.release()
        self._mine.acquire()

    @property
    def inside(self) -> bool:
        """Whether the caller is the function itself."""
        return threading.current_thread() is self._thread
