"""A bucket of more objects than files, for the replay's S3 endpoint: objects are numbers, everything else is files."""

import hashlib
from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks.repositories import NAMES_IN_SLICE, addresses_of_slice, place_in_slice
from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound
from lakefs_gc_assets.errors import PreconditionFailed as OtherVersion
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectFacts
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.replay.recording import Listed, NoSuchKey, PreconditionFailed, RecordedObject

_Answer = TypeVar("_Answer")


class Numbers(Protocol):
    """Objects that are numbers, in slices of the usual size."""

    @property
    def objects(self) -> int:
        """Number of objects."""
        ...

    @property
    def born(self) -> datetime:
        """Start of the oldest slice, UTC."""
        ...

    @property
    def written_at(self) -> datetime:
        """Modification time of all objects, UTC."""
        ...

    def size_and_md5(self, address: str, number: int) -> tuple[int, str]:
        """Size and MD5 of an object in a bucket's listing."""
        ...

    def content(self, address: str, number: int) -> bytes:
        """Content of an object. Raises LookupError if it was never made."""
        ...


class NumberedBucket:
    """Numbered objects, and files of a folder. Thread-safe.

    Attributes:
        deleted: one byte for each object: 1 if it was deleted.
    """

    def __init__(self, files: Path, numbers: Numbers) -> None:
        self._files, self._root = LocalStore(files), files
        # A page of many files must not read all of them.
        self._metadata_folder = lru_cache(maxsize=1)(lambda changed_at: self._level(METADATA_PREFIX))
        self._numbers, self._born = numbers, numbers.born
        self.deleted = bytearray(numbers.objects)
        first = (self._names_of(index, 1)[0] for index in range(-(-numbers.objects // NAMES_IN_SLICE)))
        self._slices = {address.split("/")[1]: index for index, address in enumerate(first)}
        self._names = lru_cache(maxsize=64)(self._names_of)

    def _names_of(self, index: int, most: int = NAMES_IN_SLICE) -> list[str]:
        return addresses_of_slice(index, self._born, min(self._numbers.objects - index * NAMES_IN_SLICE, most))

    def head(self, key: str) -> RecordedObject:
        """Facts of an object. Raises NoSuchKey."""
        if self._is_numbered(key):
            return self._object(key, self._number(key))
        return self._file_facts(_found(key, lambda: self._files.head(key)))

    def read(self, key: str) -> tuple[RecordedObject, bytes]:
        """A whole object or file. Raises NoSuchKey."""
        if self._is_numbered(key):
            number = self._number(key)
            return self._object(key, number), self._numbers.content(key, number)
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
        """Deletes an existing object or file. Raises PreconditionFailed."""
        try:
            if if_match is not None and self.head(key).etag != if_match:
                raise PreconditionFailed(key)
            if self._is_numbered(key):
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
        if prefix == METADATA_PREFIX:
            # Added or removed files change the time of their folder.
            found = self._metadata_folder((self._root / prefix).stat().st_mtime_ns)
        else:
            found = self._level(prefix)
        first = bisect_left(found, start, key=itemgetter(0))
        page = found[first : first + limit]
        return Listed(
            [(key, facts) for key, facts in page if facts is not None],
            [key for key, facts in page if facts is None],
            found[first + limit][0] if len(found) > first + limit else None,
        )

    def _level(self, prefix: str) -> list[tuple[str, RecordedObject | None]]:
        """Names directly below a prefix, sorted."""
        level = self._files.list_level(prefix)
        prefixes = {*level.prefixes, *([DATA_PREFIX] if not prefix else [])}
        if prefix == DATA_PREFIX:
            prefixes |= {f"{DATA_PREFIX}{name}/" for name in self._slices}
        found: list[tuple[str, RecordedObject | None]] = [(name, None) for name in prefixes]
        found += [(facts.key, self._file_facts(facts)) for facts in level.objects]
        return sorted(found, key=itemgetter(0))

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

    def _is_numbered(self, key: str) -> bool:
        """True if a key is in a slice of numbered objects."""
        return key.startswith(DATA_PREFIX) and key.split("/")[1] in self._slices

    def _number(self, key: str) -> int:
        """The number of an object. Raises NoSuchKey."""
        index = self._slices[key.split("/")[1]]
        place = place_in_slice(index, self._born, key)
        if place is None or index * NAMES_IN_SLICE + place >= self._numbers.objects:
            raise NoSuchKey(key)
        return index * NAMES_IN_SLICE + place

    def _object(self, key: str, number: int) -> RecordedObject:
        if self.deleted[number]:
            raise NoSuchKey(key)
        return self._facts(key, number)

    def _facts(self, key: str, number: int) -> RecordedObject:
        size, md5 = self._numbers.size_and_md5(key, number)
        return RecordedObject(size, self._numbers.written_at, md5)

    def _file_facts(self, facts: ObjectFacts) -> RecordedObject:
        """Facts of a file. Only data files have a bucket's ETags: other ETags are versions, for conditions."""
        etag = facts.etag or ""
        if facts.key.startswith(DATA_PREFIX):
            etag = hashlib.md5(self._files.get(facts.key), usedforsecurity=False).hexdigest()
        return RecordedObject(facts.size, facts.last_modified, etag)


def _found(key: str, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except ObjectNotFound:
        raise NoSuchKey(key) from None
