"""The bucket of a vast repository, for the replay's S3 endpoint: objects are numbers, everything else is files."""

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from benchmarks import vast
from benchmarks.repositories import NAMES_IN_SLICE, addresses_of_slice, place_in_slice
from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound
from lakefs_gc_assets.errors import PreconditionFailed as OtherVersion
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectFacts
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.replay.overlay import Listed, NoSuchKey, PreconditionFailed
from lakefs_gc_assets_tests.replay.recording import RecordedObject

_WRITTEN = vast.AGE / 2
_Answer = TypeVar("_Answer")


class VastBucket:
    """Objects by their numbers, and files of a folder. Safe to use from several threads.

    Attributes:
        deleted: one byte for each object: whether it was deleted.
    """

    def __init__(self, folder: Path, size: vast.Vast) -> None:
        self._files = LocalStore(folder / "objects")
        self._written_at = datetime.now(UTC) - _WRITTEN
        self.deleted = bytearray(size.objects)
        self._born = born = vast.born(folder)
        first = (addresses_of_slice(index, born, 1)[0] for index in range(size.slices))
        self._slices = {address.split("/")[1]: index for index, address in enumerate(first)}
        self._newest_first = sorted(self._slices)
        self._names = lru_cache(maxsize=64)(lambda index: addresses_of_slice(index, born))

    def head(self, key: str) -> RecordedObject:
        """Facts of one object. Raises NoSuchKey."""
        if key.startswith(DATA_PREFIX):
            return self._object(key, self._number(key))
        return _file_facts(_found(key, lambda: self._files.head(key)))

    def read(self, key: str) -> tuple[RecordedObject, bytes]:
        """One object or file whole. Raises NoSuchKey."""
        if key.startswith(DATA_PREFIX):
            number = self._number(key)
            return self._object(key, number), vast.content(key, number)
        return self.head(key), _found(key, lambda: self._files.get(key))

    def put(self, key: str, content: bytes, if_absent: bool = False, if_match: str | None = None) -> RecordedObject:
        """Writes a file. Raises PreconditionFailed."""
        try:
            if if_absent:
                self._files.put_if_absent(key, content)
            elif if_match is not None:
                self._files.put_if_match(key, content, if_match)
            else:
                self._files.put(key, content)
        except (AlreadyExists, OtherVersion):
            raise PreconditionFailed(key) from None
        return self.head(key)

    def delete(self, key: str, if_match: str | None = None) -> None:
        """Deletes what is there. Raises PreconditionFailed."""
        try:
            if if_match is not None and self.head(key).etag != if_match:
                raise PreconditionFailed(key)
            if key.startswith(DATA_PREFIX):
                self.deleted[self._number(key)] = 1
            else:
                self._files.delete([key])
        except NoSuchKey:
            return

    def page(self, prefix: str, delimiter: str, start: str, limit: int) -> Listed:
        """At most `limit` keys and common prefixes, from the first key that is not before `start`."""
        name = prefix.removeprefix(DATA_PREFIX).rstrip("/")
        if prefix.startswith(DATA_PREFIX) and name in self._slices:
            return self._page_of_slice(self._slices[name], start, limit)
        if not delimiter:
            batches = self._files.list(prefix)
            keys = sorted(key for batch in batches for key in batch.column("key").to_pylist() if key >= start)
            following = keys[limit] if len(keys) > limit else None
            return Listed([(key, self.head(key)) for key in keys[:limit]], [], following)
        if prefix == DATA_PREFIX:
            there = (f"{DATA_PREFIX}{name}/" for name in self._newest_first)
            found: list[tuple[str, RecordedObject | None]] = [(name, None) for name in there]
        else:
            level = self._files.list_level(prefix)
            found = [(name, None) for name in level.prefixes]
            found += [(facts.key, _file_facts(facts)) for facts in level.objects]
            found += [(DATA_PREFIX, None)] if not prefix else []
        found = sorted((key, facts) for key, facts in found if key >= start)
        page = found[:limit]
        return Listed(
            [(key, facts) for key, facts in page if facts is not None],
            [key for key, facts in page if facts is None],
            found[limit][0] if len(found) > limit else None,
        )

    def _page_of_slice(self, index: int, start: str, limit: int) -> Listed:
        names = self._names(index)
        first = index * NAMES_IN_SLICE
        objects: list[tuple[str, RecordedObject]] = []
        for place in range(bisect_left(names, start), len(names)):
            if self.deleted[first + place]:
                continue
            if len(objects) == limit:
                return Listed(objects, [], names[place])
            objects.append((names[place], self._facts(names[place], first + place)))
        return Listed(objects, [], None)

    def _number(self, key: str) -> int:
        """The number of an object. Raises NoSuchKey."""
        index = self._slices.get(key.split("/")[1])
        if index is None:
            raise NoSuchKey(key)
        place = place_in_slice(index, self._born, key)
        if place is None:
            raise NoSuchKey(key)
        return index * NAMES_IN_SLICE + place

    def _object(self, key: str, number: int) -> RecordedObject:
        if self.deleted[number]:
            raise NoSuchKey(key)
        return self._facts(key, number)

    def _facts(self, key: str, number: int) -> RecordedObject:
        held = vast.content(key, number)
        return RecordedObject(len(held), self._written_at, hashlib.md5(held, usedforsecurity=False).hexdigest())


def _found(key: str, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except ObjectNotFound:
        raise NoSuchKey(key) from None


def _file_facts(facts: ObjectFacts) -> RecordedObject:
    return RecordedObject(facts.size, facts.last_modified, facts.etag or "")
