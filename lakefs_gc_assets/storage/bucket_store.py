"""What stores of every cloud have in common: obstore lists and reads, the service's own client does the rest.

It also lists and reads what obstore cannot name. A cloud's class says how its client is asked; what follows from the
answers is told here, once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lakefs_gc_assets.errors import ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.storage import obstore_listing
from lakefs_gc_assets.storage.cloud_errors import CloudErrors, ObstoreError
from lakefs_gc_assets.storage.interface import (
    DeleteOutcome,
    Level,
    ObjectFacts,
    as_batch,
    below,
    checked_key,
    checked_prefix,
)
from lakefs_gc_assets.storage.obstore_listing import Listable, obstore_can_name

Files = AzureStore | GCSStore | S3Store
_Errors = TypeVar("_Errors", bound=CloudErrors)
_Contents = TypeVar("_Contents")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a write has to find at its key: the version with this ETag, or nothing where that is None."""

    etag: str | None


NOTHING = Expected(None)


class BucketStore(ABC, Generic[_Errors, _Contents]):
    """Objects below a prefix of a bucket; see ObjectStore. Full keys are those that the service knows.

    Attributes:
        listable: the bucket as both clients see it.
    """

    delete_limit = 1000

    def __init__(
        self,
        name: str,
        root: str,
        files: Files,
        errors: _Errors,
        *,
        ordered: bool = True,
        ends_unproved: bool = False,
    ) -> None:
        """Takes a bucket, described as in Listable, and the prefix that all keys begin with."""
        self._root = root
        self._files = files
        self._errors = errors
        self.listable = Listable(name, files, self._pages, self._explain_listing, ordered, ends_unproved)

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list."""
        return obstore_listing.batches(self.listable, self._root, checked_prefix(prefix))

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        action = f"list directly below {full!r}"
        prefixes: set[str] = set()
        objects: list[ObjectFacts] = []
        for level in self._levels(action, full, "", "/"):
            with self._errors.reading(action):
                prefixes.update(below(full, each, self._root) for each in level.prefixes)
                found = [replace(facts, key=below(full, facts.key, self._root)) for facts in level.objects]
                objects += (facts for facts in found if facts.key != prefix)
        return Level(
            tuple(sorted(prefixes, key=str.encode)), tuple(sorted(objects, key=lambda facts: facts.key.encode()))
        )

    def _pages(self, prefix: str, behind: str, delimiter: str = "") -> Iterator[pa.RecordBatch]:
        for level in self._levels(f"list below {prefix!r}", prefix, behind, delimiter):
            yield as_batch(self._as_listed(level.objects))

    @abstractmethod
    def _levels(self, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[Level]:
        """The service's own pages of what lies below a prefix, with full keys, behind a key (or also before it).

        Where there is a delimiter, objects with a further one are left out, and their prefixes are given. Raises
        StorageError where a page does not say whether there is more.
        """

    def _as_listed(self, objects: Sequence[ObjectFacts]) -> Sequence[ObjectFacts]:
        """Objects with the ETags that obstore lists."""
        return objects

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        full = self._full(key)
        action = f"read {full!r}"
        if not obstore_can_name(full):
            return self._read(action, full)
        try:
            return bytes(self._files.get(full).bytes())
        except (BaseError, FileNotFoundError) as error:
            raise self._explain(action, error) from None

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """See ReadsParts.get_part. An object whose key obstore cannot name is read whole."""
        full = self._full(key)
        action = f"read a part of {full!r}"
        if not obstore_can_name(full):
            return self._read(action, full)[start:end]
        try:
            return bytes(self._files.get_range(full, start=start, end=end))
        except (BaseError, FileNotFoundError) as error:
            raise self._explain(action, error) from None

    @abstractmethod
    def _read(self, action: str, full: str) -> bytes:
        """The content of an object whose key obstore cannot name."""

    def put(self, key: str, data: bytes) -> str:
        """See ObjectStore.put."""
        full = self._full(key)
        return self._write(f"write {full!r}", full, data, None)

    def put_if_absent(self, key: str, data: bytes) -> str:
        """See ObjectStore.put_if_absent."""
        full = self._full(key)
        action = f"create {full!r}"
        try:
            return self._write(action, full, data, NOTHING)
        except PreconditionFailed:
            raise self._errors.already_exists(action) from None

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        full = self._full(key)
        try:
            return self._write(f"replace {full!r}", full, data, Expected(etag))
        except ObjectNotFound:
            raise PreconditionFailed(f"cannot replace {full!r}: it is gone") from None

    @abstractmethod
    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        """Writes an object in place of what is expected there (None: of whatever is), and returns its ETag."""

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. A key that the answer does not mention has failed."""
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        full_keys = [self._full(key) for key in keys]
        outcomes = self._delete([*dict.fromkeys(full_keys)]) if keys else {}
        return [replace(outcomes[full], key=key) for key, full in zip(keys, full_keys, strict=True)]

    @abstractmethod
    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        """Deletes objects, one at least; what became of each."""

    def copy(self, source: str, target: str) -> None:
        """See CopiesObjects.copy."""
        self._copy(self._full(source), self._full(target), only_if_absent=False)

    def copy_if_absent(self, source: str, target: str) -> None:
        """See CopiesObjects.copy_if_absent."""
        self._copy(self._full(source), self._full(target), only_if_absent=True)

    def _copy(self, source: str, target: str, only_if_absent: bool) -> None:
        action = f"copy {source!r} to {target!r}"
        content, there = self._content(source), self._content(target)
        if content is None:
            raise self._errors.not_found(action)
        if there is not None and only_if_absent:
            raise self._errors.already_exists(action)
        if there is not None and self._alike(content, there):
            return
        try:
            made = self._copy_content(action, source, target, content, there, only_if_absent)
        except PreconditionFailed:
            # It may be the source that has changed.
            if only_if_absent and self._content(target) is not None:
                raise self._errors.already_exists(action) from None
            raise
        if made is None or not self._alike(content, made):
            raise StorageError(
                f"cannot {action} in {self._errors.place}: the copy has another size or digest, or failed"
            )

    @abstractmethod
    def _content(self, full: str) -> _Contents | None:
        """What the service says of the content of an object; None where there is none."""

    @abstractmethod
    def _alike(self, one: _Contents, other: _Contents) -> bool:
        """Whether two objects have the same content, as far as the service tells."""

    @abstractmethod
    def _copy_content(
        self, action: str, source: str, target: str, content: _Contents, there: _Contents | None, only_if_absent: bool
    ) -> _Contents | None:
        """Copies this version of the source in place of what is there, waits for it, and says what is there then."""

    def _explain(self, action: str, error: ObstoreError) -> StorageError:
        """The error for what obstore raised; ObjectNotFound only where it is the object that is missing."""
        return self._errors.raised(action, error)

    def _explain_listing(self, action: str, error: ObstoreError) -> StorageError:
        explained = self._explain(action, error)
        return self._errors.no_bucket(action) if isinstance(explained, ObjectNotFound) else explained

    def _full(self, key: str) -> str:
        return self._root + checked_key(key)


class OrderedBucketStore(BucketStore[_Errors, _Contents]):
    """A service that lists in order of keys; see ListsInOrder."""

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See ListsInOrder.list_between."""
        pages = partial(self._pages, delimiter="/" if only_directly else "")
        listable = replace(self.listable, pages=pages)
        return obstore_listing.between(
            listable, self._root, checked_prefix(prefix), after, until, by_pages=only_directly
        )
