"""Lazy imports of modules: the only place that does them.

Some modules need libraries that are slow to import, and most processes never use them. Type checkers and the import
graph see a normal import of such a module; at run time it is deferred:

    if TYPE_CHECKING:
        from lakefs_gc_assets.storage import gcs
    else:
        gcs = deferred("lakefs_gc_assets.storage.gcs")
"""

from importlib import import_module
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Proxy of a module that is imported at the first access to one of its names."""

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(self.__name__), name)


def deferred(name: str) -> ModuleType:
    """Proxy of the module with this full name."""
    return _Deferred(name)


def imported(target: str) -> Any:
    """Imports an object from a module of this package; `target` is `module:name`."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
