"""Contents of the quarantine."""

from collections.abc import Iterator

from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.simulation.bucket import Bucket


def address_of(key: str) -> tuple[str, str] | None:
    """The run that moved a copy to quarantine, and the object's address; None if the key is no such copy."""
    run_id, _, address = key.removeprefix(layout.QUARANTINE_PREFIX).partition("/")
    lies_there = key.startswith(layout.QUARANTINE_PREFIX) and layout.is_xid(run_id)
    return (run_id, address) if lies_there and not address.startswith("purging/") else None


def in_quarantine(bucket: Bucket) -> Iterator[tuple[str, str]]:
    """The run that moved each copy, and the object's address."""
    for key in bucket.keys_below(layout.QUARANTINE_PREFIX):
        moved = address_of(key)
        if moved is not None:
            yield moved


def is_back(bucket: Bucket, key: str) -> bool:
    """True if the object of a copy in quarantine is back at its address, or if the key is no copy."""
    moved = address_of(key)
    if moved is None or key not in bucket.objects:
        return True
    there = bucket.objects.get(moved[1])
    return there is not None and there.data == bucket.objects[key].data
