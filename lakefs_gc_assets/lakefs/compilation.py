"""How functions over bytes become machine code: without the interpreter's lock, kept on disk between processes.

Importing numba takes a second: modules that use this one are imported inside the functions that need them.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles a function at its first call, or loads what an earlier process compiled.

    numba keeps the machine code beside the source, else in the user's cache directory (`NUMBA_CACHE_DIR` overrides
    both); where none can be written each process compiles for itself. What is kept counts as old only when the
    function's own file changes: functions that call each other, and constants they use, must lie in one file.
    """
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba: no cache directory can be written
        return cast(Function, numba.njit(nogil=True)(function))


def inlined(function: Function) -> Function:
    """For a short function that compiled ones call for every few bytes: it becomes part of each of them.

    A real call that hands on an array counts a reference to it, which takes longer than reading a varint.
    """
    return cast(Function, numba.njit(forceinline=True, nogil=True)(function))


def load_compiler() -> None:
    """Loads what compiled functions need at their first call: half a second, once for all processes forked later."""
    numba.njit(_nothing)()  # type: ignore[call-arg]


def _nothing() -> None:
    pass
