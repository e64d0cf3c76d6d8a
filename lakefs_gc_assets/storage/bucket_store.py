"""Shared by the stores of all clouds: obstore reads objects, the service's own client does the rest.

The service's client also reads objects whose keys obstore cannot name. It lists too, because obstore 0.12 takes answers
that are not a page for the end of a listing. A cloud's class sends the requests; this module interprets the answers.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lakefs_gc_assets.errors import ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.storage import cloud, traffic
from lakefs_gc_assets.storage.cloud import CloudErrors, ObstoreError, Throttle
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteOutcome,
    Level,
    ObjectFacts,
    Page,
    checked_key,
    checked_prefix,
    require_readable,
)

Files = AzureStore | GCSStore | S3Store
BATCH_ROWS = 10_000
"""Minimum rows in each batch of an unbounded listing except the last; a page of S3 has at most 1,000."""
_BROKEN_REFUSAL = re.compile("Error performing GET .*request or response body error")
"""Message of obstore for a broken error answer; that for broken content does not name the request."""
_Errors = TypeVar("_Errors", bound=CloudErrors)
_Contents = TypeVar("_Contents")


@dataclass(frozen=True, slots=True)
class Expected:
    """Condition of a write: the key has the version with this ETag, or no object if the ETag is None."""

    etag: str | None


NOTHING = Expected(None)


class BucketStore(ABC, Generic[_Errors, _Contents]):
    """Objects below a prefix of a bucket; see ObjectStore. Full keys begin at the root of the bucket."""

    delete_limit = 1000

    def __init__(self, root: str, files: Files, errors: _Errors, *, ordered: bool = True) -> None:
        """Takes a bucket and the prefix of all keys.

        Args:
            ordered: True if the service promises to list in order of UTF-8 bytes. Any other order then fails the
                listing.
        """
        self._root = root
        self._files = files
        self._errors = errors
        self._ordered = ordered
        self._throttle = Throttle()

    def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
        """See ObjectStore.list."""
        return self._between(checked_prefix(prefix), "", None)

    def _between(self, prefix: str, after: str, until: str | None, delimiter: str = "") -> Iterator[pa.RecordBatch]:
        """Rows after one key up to and including another. Without `until`, a batch joins several pages."""
        waiting: list[pa.RecordBatch] = []
        for rows in self._rows(self._root + prefix, self._root + after if after else "", delimiter):
            if until is None:
                waiting.append(rows)
                if sum(batch.num_rows for batch in waiting) >= BATCH_ROWS:
                    yield pa.concat_batches(waiting)
                    waiting = []
            elif rows["key"][-1].as_py().encode() <= until.encode():
                yield rows
            else:
                wanted = rows.filter(pc.less_equal(rows["key"], until))
                if wanted.num_rows:
                    yield wanted
                return
        if waiting:
            yield pa.concat_batches(waiting)

    def _rows(self, prefix: str, after: str, delimiter: str) -> Iterator[pa.RecordBatch]:
        """Rows of the pages below a full prefix, after a full key, with relative keys; empty batches are skipped."""
        action, begun = f"list below {prefix!r}", not after
        # Some services refuse control characters here, so the key is cut before the first; earlier rows are dropped.
        behind = "".join(takewhile(lambda character: character >= " " and character != "\x7f", after))
        for page in self._checked_pages(action, prefix, behind, delimiter):
            rows = page.rows.filter(pc.not_equal(page.rows["key"], prefix)) if prefix else page.rows
            if not begun:
                new = [key.encode() > after.encode() for key in rows["key"].to_pylist()]
                begun = any(new)
                rows = rows.slice(new.index(True) if begun else rows.num_rows)
            if not rows.num_rows:
                continue
            keys = pc.utf8_slice_codeunits(rows["key"], len(self._root)) if self._root else rows["key"]
            yield rows.set_column(0, LISTING_SCHEMA.field("key"), keys)

    def list_level(self, prefix: str) -> Level:
        """See ObjectStore.list_level."""
        full = self._root + checked_prefix(prefix)
        action = f"list directly below {full!r}"
        prefixes: set[str] = set()
        objects: dict[str, ObjectFacts] = {}
        for page in self._checked_pages(action, full, "", "/"):
            prefixes.update(deeper[len(self._root) :] for deeper in page.prefixes)
            listed = (replace(facts, key=facts.key[len(self._root) :]) for facts in page.objects())
            objects |= {facts.key: facts for facts in listed if facts.key != prefix}
        return Level(
            tuple(sorted(prefixes, key=str.encode)),
            tuple(sorted(objects.values(), key=lambda facts: facts.key.encode())),
        )

    def _checked_pages(self, action: str, prefix: str, behind: str, delimiter: str) -> Iterator[Page]:
        """All pages of objects below a prefix, with full keys, after a key; rows up to that key may be included.

        Raises StorageError if the listing cannot be proved complete: a page lists an object outside the prefix or
        deeper than the delimiter, the promised order is broken, or a page token repeats.
        """
        last, token, tokens = "", None, set[str | None]()
        while True:
            page = self._page(action, prefix, behind, delimiter, token)
            keys = page.rows["key"]
            if not pc.all(pc.starts_with(keys, prefix), min_count=0).as_py():
                raise self._errors.nonsense(action, "it lists an object elsewhere")
            if not all(deeper.startswith(prefix) and deeper.endswith("/") for deeper in page.prefixes):
                raise self._errors.nonsense(action, "it lists a prefix elsewhere, or without a slash at its end")
            if delimiter and pc.any(pc.match_substring(pc.utf8_slice_codeunits(keys, len(prefix)), "/")).as_py():
                raise self._errors.nonsense(action, "it lists an object that lies deeper")
            if self._ordered and page.rows.num_rows:
                ascending = not pc.any(pc.greater_equal(keys[:-1], keys[1:])).as_py()
                if not ascending or keys[0].as_py().encode() <= last.encode():
                    raise self._errors.nonsense(action, "it does not list in order of keys")
                last = keys[-1].as_py()
            yield page
            token = page.token
            if token is None:
                return
            if token in tokens:
                raise self._errors.nonsense(action, "its next page would be an earlier one")
            tokens.add(token)

    @abstractmethod
    def _page(self, action: str, prefix: str, behind: str, delimiter: str, token: str | None) -> Page:
        """The service's page at a token; None gets the first page.

        With a delimiter, deeper objects are left out and their prefixes are given. Raises StorageError if the answer is
        not a page of this listing, or does not say whether more pages follow.
        """

    def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        full = self._full(key)
        action = f"read {full!r}"
        if not obstore_can_name(full):
            return self._read(action, full)

        def read() -> bytes:
            answer = self._files.get(full)
            require_readable(key, answer.meta["size"])
            return bytes(answer.bytes())

        return self._by_obstore(action, read)

    def get_part(self, key: str, start: int, end: int) -> bytes:
        """See GivesObjects.get_part. An object whose key obstore cannot name is read whole."""
        full = self._full(key)
        action = f"read a part of {full!r}"
        if not obstore_can_name(full):
            return self._read(action, full)[start:end]
        return self._by_obstore(action, lambda: bytes(self._files.get_range(full, start=start, end=end)))

    def _by_obstore(self, action: str, read: Callable[[], bytes]) -> bytes:
        """Calls obstore: a slow call is logged, and exceptions become StorageError."""
        attempt = 0
        while True:
            attempt += 1
            traffic.count(1, retries=int(attempt > 1))
            try:
                with cloud.waits.shown(action):
                    data = read()
            except (BaseError, FileNotFoundError) as error:
                # obstore repeats broken content, but no request whose error answer, such as a 404, breaks off.
                if attempt >= cloud.attempts() or not _BROKEN_REFUSAL.search(str(error)):
                    raise self._explain(action, error) from None
            else:
                traffic.count(bytes_read=len(data))
                return data
            time.sleep(cloud.pause_after(attempt))

    @abstractmethod
    def _read(self, action: str, full: str) -> bytes:
        """The content of an object whose key obstore cannot name."""

    def put(self, key: str, data: bytes) -> str | None:
        """See ObjectStore.put."""
        full = self._full(key)
        return self._write(f"write {full!r}", full, data, None) or None

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
        action = f"replace {full!r}"
        try:
            return self._write(action, full, data, Expected(etag))
        except ObjectNotFound:
            raise PreconditionFailed(f"cannot {action}: it is gone") from None

    @abstractmethod
    def _write(self, action: str, full: str, data: bytes, expected: Expected | None) -> str:
        """Writes an object if the key meets the condition; returns its ETag.

        Without a condition (None) it replaces any object, and the returned ETag may be empty.
        """

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        """See ObjectStore.delete. A key that the answer does not mention has failed."""
        if len(keys) > self.delete_limit:
            raise ValueError(f"{len(keys)} keys in one delete, at most {self.delete_limit} are taken")
        full_keys = [self._full(key) for key in keys]
        outcomes = self._delete([*dict.fromkeys(full_keys)]) if keys else {}
        return [replace(outcomes[full], key=key) for key, full in zip(keys, full_keys, strict=True)]

    @abstractmethod
    def _delete(self, full_keys: Sequence[str]) -> Mapping[str, DeleteOutcome]:
        """Deletes objects (at least one); returns their outcomes by key."""

    def copy(self, source: str, target: str) -> ObjectFacts:
        """See ObjectStore.copy."""
        return self._facts(target, self._copy(self._full(source), self._full(target), only_if_absent=False))

    def copy_if_absent(self, source: str, target: str) -> None:
        """See ObjectStore.copy_if_absent."""
        self._copy(self._full(source), self._full(target), only_if_absent=True)

    def _copy(self, source: str, target: str, only_if_absent: bool) -> _Contents:
        action = f"copy {source!r} to {target!r}"
        content, there = self._content(source), self._content(target)
        if content is None:
            raise self._errors.not_found(action)
        if there is not None and only_if_absent:
            raise self._errors.already_exists(action)
        if there is not None and self._alike(content, there):
            return there
        try:
            made = self._copy_content(action, source, target, content, there, only_if_absent)
        except PreconditionFailed:
            # The changed object may be the source.
            if only_if_absent and self._content(target) is not None:
                raise self._errors.already_exists(action) from None
            raise
        if made is None or not self._alike(content, made):
            raise StorageError(
                f"cannot {action} in {self._errors.place}: the copy has another size or digest, or failed"
            )
        return made

    def _content(self, full: str) -> _Contents | None:
        """Content of an object as the service describes it; None if there is no object."""
        try:
            return self._look(full)
        except ObjectNotFound:
            return None

    def head(self, key: str) -> ObjectFacts:
        """See ObjectStore.head."""
        return self._facts(key, self._look(self._full(key)))

    @abstractmethod
    def _look(self, full: str) -> _Contents:
        """Content of an object as the service describes it. Raises ObjectNotFound."""

    @abstractmethod
    def _facts(self, key: str, content: _Contents) -> ObjectFacts:
        """Facts of an object as `head` gives them."""

    @abstractmethod
    def _alike(self, one: _Contents, other: _Contents) -> bool:
        """True if two objects have the same content, as far as the service's metadata shows."""

    @abstractmethod
    def _copy_content(
        self, action: str, source: str, target: str, content: _Contents, there: _Contents | None, only_if_absent: bool
    ) -> _Contents | None:
        """Copies this version of the source over the target, waits for the copy, and returns the target's content."""

    def _explain(self, action: str, error: ObstoreError) -> StorageError:
        """The error for an exception of obstore; ObjectNotFound only if the object, not the bucket, is missing."""
        return self._errors.raised(action, error)

    def _full(self, key: str) -> str:
        return self._root + checked_key(key)


class OrderedBucketStore(BucketStore[_Errors, _Contents]):
    """A store whose service lists in order of keys, page by page; see ListsAtOnce."""

    listings_at_once = 8

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """See ListsInOrder.list_between."""
        return self._between(checked_prefix(prefix), after, until, "/" if only_directly else "")


def obstore_can_name(key: str) -> bool:
    """True if obstore passes this key to the service unchanged.

    Measured with obstore 0.12: it refuses keys with an empty, `.` or `..` segment or a control character, and strips a
    leading or trailing slash.
    """
    return all(segment not in ("", ".", "..") for segment in key.split("/")) and not any(
        character < " " or character == "\x7f" for character in key
    )
