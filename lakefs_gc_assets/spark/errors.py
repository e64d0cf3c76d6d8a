"""Finds the project's own error in what Spark raises for a failed job."""

import re

from lakefs_gc_assets import errors
from lakefs_gc_assets.errors import CollectionError

_RAISED = re.compile(r"^\s*(?:lakefs_gc_assets\.errors\.)(\w+): (.+)$", re.MULTILINE)


def from_worker(error: BaseException) -> CollectionError | None:
    """Our own error inside the text of a failed Spark job; None where the job failed for another reason.

    What a worker raised arrives as a traceback in the driver's exception; the class is kept where its message is all.
    """
    found = _RAISED.findall(str(error))
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, CollectionError)
    if kind in (errors.CorruptFile, errors.GuardTripped) or not issubclass(kind, CollectionError):
        return CollectionError(message)
    return kind(message)
