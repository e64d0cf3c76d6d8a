"""How functions over bytes become machine code: without the interpreter's lock, kept on disk between processes.

Importing numba and what it needs takes up to a second, which only those should pay who call such a function: numba is
imported at the first call of any of them, and not with the modules that define them.
"""

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

Function = TypeVar("Function", bound=Callable[..., Any])

_making = threading.RLock()
_made: list["Compiled"] = []


class Compiled:
    """A function that is compiled at its first call, or loaded as an earlier process compiled it.

    Attributes:
        function: what is compiled.
    """

    def __init__(self, function: Callable[..., Any], *, inlined: bool) -> None:
        update_wrapper(self, function)
        self.function = function
        self._inlined = inlined
        self._dispatcher: Dispatcher | None = None
        _made.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Result of the compiled function."""
        return self.dispatcher(*arguments)

    @property
    def dispatcher(self) -> "Dispatcher":
        """numba's dispatcher: one for all threads, which compiles the function once for each kind of arguments."""
        if self._dispatcher is None:
            with _making:
                self._dispatcher = self._dispatcher or _dispatcher(self.function, inlined=self._inlined)
        return self._dispatcher


def _dispatcher(function: Callable[..., Any], *, inlined: bool) -> "Dispatcher":
    import numba
    from numba.extending import typeof_impl

    # Where compiled functions call each other, numba finds these objects: it is to take each for its dispatcher.
    typeof_impl.register(Compiled, lambda compiled, _: numba.typeof(compiled.dispatcher))  # type: ignore[no-untyped-call]
    if inlined:
        return numba.njit(forceinline=True, nogil=True)(function)
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: no cache directory can be written
        return numba.njit(nogil=True)(function)


def compiled(function: Function) -> Function:
    """Compiles a function at its first call, or loads what an earlier process compiled.

    numba keeps the machine code beside the source, else in the user's cache directory (`NUMBA_CACHE_DIR` overrides
    both); where none can be written each process compiles for itself. What is kept counts as old only when the
    function's own file changes: functions that call each other, and constants they use, must lie in one file.
    """
    return cast(Function, Compiled(function, inlined=False))


def inlined(function: Function) -> Function:
    """Marks a short function that compiled ones call for every few bytes: it becomes part of each of them.

    A real call that hands on an array counts a reference to it, which takes longer than reading a varint.
    """
    return cast(Function, Compiled(function, inlined=True))


def load_compiler() -> None:
    """Loads what compiled functions need at their first call: half a second, once for all processes forked later."""
    import numba

    numba.njit(lambda: None)()  # type: ignore[call-arg]
    for each in _made:
        _ = each.dispatcher
