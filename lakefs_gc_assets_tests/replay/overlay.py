"""The recorded objects below a scratch layer: writes and deletions of a replay never reach the recording.

Keys are relative to the storage namespace, times UTC, sizes bytes.
"""

import hashlib
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from threading import RLock
from typing import Literal

from lakefs_gc_assets_tests.replay.recording import RecordedObject, Recording

Deletes = Literal["refuse", "overlay"]
_RUNS = "_lakefs/retention/gc/uncommitted/"


class PreconditionFailed(Exception):
    """A conditional write found another object, or one although none was expected."""


class NoSuchKey(Exception):
    """There is no object at this key."""


class DeleteRefused(Exception):
    """This key may not be deleted in this replay."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a listing: objects, common prefixes, and the start of the next page; None for the last."""

    objects: list[tuple[str, RecordedObject]]
    prefixes: list[str]
    next_start: str | None


class Overlay:
    """Objects of a replay. Safe to use from several threads.

    Args:
        deletes: `refuse` every delete, or do it in the `overlay`. Files of runs that the replay itself wrote can always
            be deleted: locks are among them.
        continues: an overlay whose writes and deletions this one begins with.

    Attributes:
        deleted: recorded keys that this replay deleted.
        refused: keys whose deletion was refused.
    """

    def __init__(
        self, recording: Recording, now: Callable[[], datetime], deletes: Deletes, continues: "Overlay | None" = None
    ) -> None:
        self._recording = recording
        self._now = now
        self._deletes = deletes
        self._written: dict[str, bytes] = dict(continues._written) if continues else {}
        self._gone: set[str] = set(continues._gone) if continues else set()
        self._objects = {key: facts for key, facts in recording.objects.items() if key not in self._gone}
        if continues:
            self._objects |= {key: continues._objects[key] for key in self._written}
        self._keys = sorted(self._objects)
        self.deleted: set[str] = set()
        self.refused: set[str] = set()
        self._lock = RLock()

    def head(self, key: str) -> RecordedObject:
        """Facts of an object. Raises NoSuchKey."""
        with self._lock:
            try:
                return self._objects[key]
            except KeyError:
                raise NoSuchKey(key) from None

    def read(self, key: str) -> tuple[RecordedObject, bytes]:
        """Facts and content of an object. Raises NoSuchKey."""
        with self._lock:
            facts = self.head(key)
            if key in self._written:
                return facts, self._written[key]
        return facts, self._recording.read(key)

    def put(self, key: str, content: bytes, if_absent: bool = False, if_match: str | None = None) -> RecordedObject:
        """Writes an object. Raises PreconditionFailed, or NoSuchKey if there is no object to match."""
        facts = RecordedObject(len(content), self._now(), hashlib.md5(content).hexdigest())
        with self._lock:
            if if_absent and key in self._objects:
                raise PreconditionFailed(key)
            if if_match is not None and self.head(key).etag != if_match:
                raise PreconditionFailed(key)
            if key not in self._objects:
                insort(self._keys, key)
            self._objects[key] = facts
            self._written[key] = content
        return facts

    def delete(self, key: str, if_match: str | None = None) -> None:
        """Deletes an object, if it exists. Raises DeleteRefused or PreconditionFailed."""
        with self._lock:
            own = key in self._written and key not in self._recording.objects and key.startswith(_RUNS)
            if self._deletes == "refuse" and not own:
                self.refused.add(key)
                raise DeleteRefused(key)
            if key not in self._objects:
                return
            if if_match is not None and self._objects[key].etag != if_match:
                raise PreconditionFailed(key)
            del self._objects[key]
            del self._keys[bisect_left(self._keys, key)]
            self._written.pop(key, None)
            if key in self._recording.objects:
                self._gone.add(key)
                self.deleted.add(key)

    def page(self, prefix: str, delimiter: str, start: str, limit: int) -> Listed:
        """At most `limit` keys and common prefixes, from `start` on."""
        objects: list[tuple[str, RecordedObject]] = []
        prefixes: list[str] = []
        with self._lock:
            index = bisect_left(self._keys, max(prefix, start))
            while index < len(self._keys) and self._keys[index].startswith(prefix):
                key = self._keys[index]
                if len(objects) + len(prefixes) == limit:
                    return Listed(objects, prefixes, key)
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut < 0:
                    objects.append((key, self._objects[key]))
                    index += 1
                else:
                    common = key[: cut + len(delimiter)]
                    prefixes.append(common)
                    index = bisect_right(self._keys, common + "\U0010ffff", index)
        return Listed(objects, prefixes, None)
