"""Modules that are imported when they are needed: the one place that does so.

Some modules need libraries that take long to import, and most processes never use them. Such a module is imported for
type checkers and for the import graph, and deferred when the program runs:

    if TYPE_CHECKING:
        from lakefs_gc_assets.storage import gcs
    else:
        gcs = deferred("lakefs_gc_assets.storage.gcs")
"""

from importlib import import_module
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module; it is imported when one of its names is asked for."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self.__name__), name)


def deferred(name: str) -> ModuleType:
    """A stand-in for the module of this full name until it is needed."""
    return _Deferred(name)


def imported(target: str) -> Any:
    """An object that a module of this package defines, imported now; `target` is `module:name`."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
