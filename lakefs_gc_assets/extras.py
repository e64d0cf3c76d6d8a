"""Libraries that not every installation has, since they come with an extra of this package."""

from collections.abc import Iterator
from contextlib import contextmanager

from lakefs_gc_assets.errors import ConfigurationError


@contextmanager
def requiring(extra: str, what: str) -> Iterator[None]:
    """Around an import of libraries that an extra brings. Raises ConfigurationError where they are not installed.

    Args:
        what: cannot be done without them, in a person's words.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{what} needs {error.name}, which is not installed: pip install 'lakefs-gc-assets[{extra}]'"
        ) from None
