"""What lies in quarantine."""

from collections.abc import Iterator

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.simulation.bucket import Bucket


def address_of(key: str) -> tuple[str, str] | None:
    """The run that moved a copy in quarantine, and the address it was at; None where the key is no such copy."""
    run_id, _, address = key.removeprefix(layout.QUARANTINE_PREFIX).partition("/")
    lies_there = key.startswith(layout.QUARANTINE_PREFIX) and layout.is_xid(run_id)
    return (run_id, address) if lies_there and not address.startswith("purging/") else None


def in_quarantine(bucket: Bucket) -> Iterator[tuple[str, str]]:
    """The run that moved each copy, and the address it was at."""
    for key in bucket.keys_below(layout.QUARANTINE_PREFIX):
        moved = address_of(key)
        if moved is not None:
            yield moved


def is_back(bucket: Bucket, key: str) -> bool:
    """Whether the object that a copy in quarantine was made of is at its address; so it is of keys that are no copy."""
    moved = address_of(key)
    if moved is None or key not in bucket.objects:
        return True
    there = bucket.objects.get(moved[1])
    return there is not None and there.data == bucket.objects[key].data
