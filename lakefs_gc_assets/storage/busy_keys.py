"""Repeats a bulk delete for the keys that the service was too busy for, a few times, with growing pauses."""

from collections.abc import Callable, Sequence

from tenacity import Retrying, retry_if_result, stop_after_attempt

from lakefs_gc_assets.storage import http_service
from lakefs_gc_assets.storage.interface import DeleteOutcome

ATTEMPTS = 5
"""How often a key is asked for at most."""


def insisting(
    delete: Callable[[Sequence[str]], dict[str, DeleteOutcome]],
    keys: Sequence[str],
    was_busy: Callable[[DeleteOutcome], bool],
) -> dict[str, DeleteOutcome]:
    """Deletes keys, those that the service was too busy for again; returns the last outcome of each.

    Raises what `delete` raises.
    """
    said: dict[str, DeleteOutcome] = {}
    left = list(keys)

    def delete_left() -> list[str]:
        if left:
            said.update(delete(left))
        left[:] = [key for key in left if was_busy(said[key])]
        return left

    attempts = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_attempt(ATTEMPTS),
        wait=lambda state: http_service.pause_after(state.attempt_number),
        retry_error_callback=lambda state: None,
    )
    attempts(delete_left)
    return said
