"""Deleting in batches with an outcome for each key, at services that answer with one small response for each."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.busy_keys import insisting
from lakefs_gc_assets.storage.cloud_errors import said
from lakefs_gc_assets.storage.http_service import BUSY, Answer
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult

_AT_ONCE = 4
"""Batches of one call that are under way at the same time."""


def delete_in_batches(
    keys: Sequence[str], size: int, delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]]
) -> dict[str, DeleteOutcome]:
    """Deletes keys in batches, and says what became of each. Where a batch fails as a whole, all its keys fail.

    Args:
        size: how many keys `delete` takes.
    Raises:
        StorageError: where every batch failed as a whole.
    """
    batches = [keys[start : start + size] for start in range(0, len(keys), size)]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        results = list(pool.map(lambda batch: _outcomes(batch, delete), batches))
    outcomes: dict[str, DeleteOutcome] = {}
    for batch, result in zip(batches, results, strict=True):
        if not isinstance(result, StorageError):
            outcomes |= result
        elif all(isinstance(other, StorageError) for other in results):
            raise result
        else:
            outcomes |= {key: DeleteOutcome(key, DeleteResult.FAILED, str(result)) for key in batch}
    return outcomes


def _outcomes(
    batch: Sequence[str], delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]]
) -> dict[str, DeleteOutcome] | StorageError:
    try:
        return insisting(delete, batch, _was_busy)
    except StorageError as error:
        return error


def outcome_of(full: str, part: Answer | None, kept: bool | None) -> DeleteOutcome:
    """The outcome that the answer to one part states; `kept`: whether the service keeps what it deleted."""
    if part is None:
        return DeleteOutcome(full, DeleteResult.FAILED, "the service's answer does not mention this key")
    if part.status == 404:
        return DeleteOutcome(full, DeleteResult.ACCEPTED)
    if 200 <= part.status < 300:
        return DeleteOutcome(full, DeleteResult.ACCEPTED, soft_deleted=kept)
    code, message = said(part)
    return DeleteOutcome(full, DeleteResult.FAILED, f"{part.status} {code}: {message}")


def _was_busy(outcome: DeleteOutcome) -> bool:
    status = (outcome.error or "").partition(" ")[0]
    return status.isdecimal() and int(status) in BUSY
