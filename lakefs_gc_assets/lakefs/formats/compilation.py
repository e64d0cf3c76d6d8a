"""Compilation of functions over bytes to machine code, which runs without the GIL and is cached on disk.

Importing numba takes up to a second. So it is imported at the first call of such a function, not with the modules that
define them.
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
    """A function that is compiled, or loaded from the cache, at its first call.

    Attributes:
        function: the Python function.
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
        """numba's dispatcher, shared by all threads; it compiles the function once for each signature."""
        if self._dispatcher is None:
            with _making:
                self._dispatcher = self._dispatcher or _dispatcher(self.function, inlined=self._inlined)
        return self._dispatcher


def _dispatcher(function: Callable[..., Any], *, inlined: bool) -> "Dispatcher":
    import numba
    from numba.extending import typeof_impl

    # If compiled functions call each other, numba finds these objects; this makes it use their dispatchers.
    typeof_impl.register(Compiled, lambda compiled, _: numba.typeof(compiled.dispatcher))  # type: ignore[no-untyped-call]
    if inlined:
        return numba.njit(forceinline=True, nogil=True)(function)
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # numba: no cache directory can be written
        return numba.njit(nogil=True)(function)


def compiled(function: Function) -> Function:
    """Compiles a function at its first call, or loads it from the cache.

    numba caches machine code beside the source, else in the user's cache directory (`NUMBA_CACHE_DIR` overrides both).
    If neither is writable, each process compiles for itself. The cache is invalidated only if the function's own file
    changes, so functions that call each other, and their constants, must be in one file.
    """
    return cast(Function, Compiled(function, inlined=False))


def inlined(function: Function) -> Function:
    """Inlines a short function that compiled functions call for every few bytes.

    A real call with an array counts a reference to it, which takes longer than reading a varint.
    """
    return cast(Function, Compiled(function, inlined=True))


def load_compiler() -> None:
    """Loads numba before the first call of compiled functions. It takes 0.5 s, once for all processes forked later."""
    import numba

    numba.njit(lambda: None)()  # type: ignore[call-arg]
    for each in _made:
        _ = each.dispatcher
