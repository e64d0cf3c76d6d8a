"""Setting attributes of modules and classes for a while, in less time than `mock.patch.object` takes for it."""

from contextlib import ExitStack


def replace(until: ExitStack, owner: object, name: str, replacement: object) -> None:
    """Sets an attribute that the module or class itself has, until the stack is closed."""
    until.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, replacement)
