"""Listing a bucket: obstore makes Arrow columns fast; the service's own pages take over where a key is beyond it.

Measured with obstore 0.12: its listing ends with an error at a key with an empty, `.` or `..` segment or a control
character; it strips a slash that a key begins or ends with, so that another key seems to be there. Services list in the
order of UTF-8 bytes: rows out of order or twice show stripped slashes, and pages can go on behind the last good row.
A folder's marker (`dir/`) without an object `dir` is still listed as `dir`, a key where no object is. From Google Cloud
Storage it takes any page that is no listing, such as a proxy's, for the end of one: there the service's own pages have
the last word.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile

import pyarrow as pa
import pyarrow.compute as pc
from obstore.exceptions import BaseError, InvalidPathError
from obstore.store import AzureStore, GCSStore, S3Store

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA

BATCH_ROWS = 10_000
_PAGE_ROWS = 1000
"""Rows of a batch where a listing may end early; one request gives as many."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listable:
    """A bucket or container as both clients see it.

    Attributes:
        name: such as `s3://bucket`.
        pages: objects below a prefix behind a key (or also before it), as LISTING_SCHEMA with full keys.
        explain: turns what obstore raised into the error to raise for an action.
        ordered: whether the service promises the order of UTF-8 bytes; then any other order ends a listing.
        ends_unproved: whether obstore may end a listing where the service did not say that it ends.
    """

    name: str
    files: AzureStore | GCSStore | S3Store
    pages: Callable[[str, str], Iterator[pa.RecordBatch]]
    explain: Callable[[str, BaseError | FileNotFoundError], StorageError]
    ordered: bool = True
    ends_unproved: bool = False


class _BeyondObstore(Exception):
    """obstore cannot list what comes next, or did not list it as it is."""


def obstore_can_name(key: str) -> bool:
    """Whether obstore takes a key (or a prefix without its last slash) for exactly this key."""
    return all(segment not in ("", ".", "..") for segment in key.split("/")) and not any(map(_is_control, key))


def _is_control(character: str) -> bool:
    return character < " " or character == "\x7f"


def batches(source: Listable, root: str, prefix: str) -> Iterator[pa.RecordBatch]:
    """Every object below root + prefix with keys relative to root, in batches of LISTING_SCHEMA.

    Raises StorageError where the service fails, or does not list in the order that it promises (nothing could be proved
    complete then).
    """
    yield from _batches(_Listing(source, root, root + prefix), BATCH_ROWS)


def between(
    source: Listable, root: str, prefix: str, after: str, until: str | None, *, by_pages: bool = False
) -> Iterator[pa.RecordBatch]:
    """The objects below root + prefix with keys behind `after` up to `until`, in order; see ListsInOrder.list_between.

    Args:
        by_pages: take the service's own pages from the beginning.
    """
    listing = _Listing(source, root, root + prefix, root + after if after else "")
    rows = BATCH_ROWS if until is None else _PAGE_ROWS
    for batch in listing.by_pages() if by_pages else _batches(listing, rows):
        if until is None or batch["key"][-1].as_py().encode() <= until.encode():
            yield batch
            continue
        wanted = batch.filter(pc.less_equal(batch["key"], until))
        if wanted.num_rows:
            yield wanted
        return


def _batches(listing: "_Listing", rows: int) -> Iterator[pa.RecordBatch]:
    try:
        yield from listing.by_obstore(rows)
    except _BeyondObstore as reason:
        _log.warning("%s is listed page by page from here, slowly: %s", listing.name, reason)
        yield from listing.by_pages()


class _Listing:
    """One listing under way, and how far it has come: behind a key, if it does not begin with the first."""

    def __init__(self, source: Listable, root: str, prefix: str, after: str = "") -> None:
        self.name = f"{source.name}/{prefix}"
        self._source = source
        self._root = root
        self._prefix = prefix
        self._last = after
        self._action = f"list below {prefix!r}"

    def by_obstore(self, rows: int) -> Iterator[pa.RecordBatch]:
        """Rows in order until a key comes that obstore cannot name. Raises _BeyondObstore then."""
        if self._prefix and not obstore_can_name(self._prefix[:-1]):
            raise _BeyondObstore("the prefix is beyond obstore")
        if self._last and not obstore_can_name(self._last):
            raise _BeyondObstore("the key to begin behind is beyond obstore")
        if not self._prefix and any(page.num_rows for page in self._source.pages("/", "")):
            raise _BeyondObstore("some keys begin with a slash")
        try:
            stream = self._source.files.list(
                self._prefix or None, offset=self._last or None, chunk_size=rows, return_arrow=True
            )
            for chunk in stream:
                batch = _of_obstore(pa.record_batch(chunk))
                if self._prefix and batch.num_rows and batch["key"][0].as_py() == self._prefix[:-1]:
                    batch = batch.slice(1)
                if batch.num_rows:
                    self._require_prefix(batch)
                    if not self._continues(batch["key"]):
                        raise _BeyondObstore("keys are out of order, which a slash at the end of a key can cause")
                    self._last = batch["key"][-1].as_py()
                    yield self._relative(batch)
        except InvalidPathError as error:
            raise _BeyondObstore(ascii(str(error).partition("\n")[0])) from None
        except (BaseError, FileNotFoundError) as error:
            raise self._source.explain(self._action, error) from None
        if self._source.ends_unproved:
            yield from self.by_pages()

    def by_pages(self) -> Iterator[pa.RecordBatch]:
        """The rows that come behind the last one that was yielded."""
        found_last = not self._last
        # Not every service takes control characters here; what comes before is left out below.
        behind = "".join(takewhile(lambda character: not _is_control(character), self._last))
        for page in self._source.pages(self._prefix, behind):
            batch = page.filter(pc.not_equal(page["key"], self._prefix)) if self._prefix else page
            if not found_last:
                # Everything yielded so far is at the front, in order; what was added there meanwhile is left out.
                new = [key.encode() > self._last.encode() for key in batch["key"].to_pylist()]
                found_last = any(new)
                batch = batch.slice(new.index(True)) if found_last else batch.slice(batch.num_rows)
            if not batch.num_rows:
                continue
            self._require_prefix(batch)
            if self._source.ordered:
                if not self._continues(batch["key"]):
                    raise StorageError(
                        f"asked to {self._action}, the service did not list in order of keys: cannot be trusted"
                    )
                self._last = batch["key"][-1].as_py()
            yield self._relative(batch)

    def _require_prefix(self, batch: pa.RecordBatch) -> None:
        if not pc.all(pc.starts_with(batch["key"], self._prefix)).as_py():
            raise StorageError(f"asked to {self._action}, the service listed keys that do not begin so: listed nothing")

    def _continues(self, keys: pa.Array) -> bool:
        """Whether keys are in order of UTF-8 bytes, each once, and behind the last one."""
        ascending = not pc.any(pc.greater_equal(keys[:-1], keys[1:])).as_py()
        return ascending and keys[0].as_py().encode() > self._last.encode()

    def _relative(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys = pc.utf8_slice_codeunits(batch["key"], len(self._root)) if self._root else batch["key"]
        return batch.set_column(0, LISTING_SCHEMA.field("key"), keys)


def _of_obstore(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        batch["path"],
        batch["size"].cast(pa.int64()),
        batch["last_modified"],
        pc.utf8_trim(batch["e_tag"], '"'),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=LISTING_SCHEMA)
