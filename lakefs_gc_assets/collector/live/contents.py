"""The content of stored objects by its MD5, where it is known of the very object.

A staged entry that the server does not list has the size and the checksum of the committed entry at its path. Such a
checksum tells contents apart only where it is known to be the MD5 of the committed object: who links or imports an
object names the checksum, with keys of KMS an ETag that looks like an MD5 and is none, and every copy keeps it. A
candidate's ETag says something only where it is known to be the MD5 of this candidate, as little as others of the same
bucket tell. So each is looked at by itself, and what stays unknown has the content of whatever has its size.
"""

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import digests
from lakefs_gc_assets.collector.eligibility import PLAIN_ETAG
from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.frame.schemas import HEAD_ENTRIES, LISTED
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener

READ_BYTES = 4 * 1024**3
"""So many bytes are read in a run to learn contents that the store does not tell, the smallest objects first."""
CONTENTS = pa.schema([LISTED.field("address"), LISTED.field("size"), LISTED.field("etag")])
"""Address and size of candidates, and the MD5 of the content where it is known."""

_SAMPLE = 16
_SAMPLED_BYTES = 1024 * 1024
_LARGE_SAMPLE = 2
_LOOKING_AT_ONCE = 16
_READING_AT_ONCE = 4
_OBJECTS = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("key", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("checksum", pa.string()),
    ]
)
"""Candidates, whose `checksum` is null, and committed objects with that of their entry, which looks like an MD5."""
_TOLD = _OBJECTS.append(pa.field("md5", pa.string()))
_VERIFIED = pa.schema([HEAD_ENTRIES.field("key"), HEAD_ENTRIES.field("etag")])
_SAMPLED = pa.schema([pa.field("key", pa.string()), pa.field("size", pa.int64()), pa.field("md5", pa.string())])
_AMOUNTS = pa.schema([pa.field("bits", pa.int64()), pa.field("bytes", pa.int64())])


@dataclass(frozen=True)
class Known(Generic[R]):
    """What is known of contents.

    Attributes:
        entries: entries (HEAD_ENTRIES); for each whose checksum is not known to be the MD5 there is one without ETag.
        candidates: those that have the size of an entry (CONTENTS); objects that are gone are left out.
    """

    entries: R
    candidates: R


@contextmanager
def known_contents(step: Step[R], candidates: R, entries: R, columns: pa.Schema) -> Iterator[Known[R]]:
    """Looks at each candidate that has the size of an entry, and at each committed object of such an entry.

    Args:
        candidates: address and size at least, and `key` where an object lies elsewhere than at its address.
        entries: entries of branch heads (HEAD_ENTRIES); used several times, so worth being cached.
        columns: of the candidates.
    """
    engine, opener = step.engine, step.repository.opener
    sizes = engine.collect(engine.distinct(engine.select(entries, "size"))).column("size").combine_chunks()
    key = "key" if "key" in columns.names else "address"
    suspects = engine.map_batches(candidates, partial(_suspects, key, sizes), _OBJECTS)
    committed = engine.distinct(engine.map_batches(entries, _committed, _OBJECTS))
    looked = engine.map_batches(engine.union(suspects, committed), partial(_look, opener), _TOLD)
    with engine.cached(looked, at_most=sys.maxsize) as told:
        trusted = _tells_the_truth(step, told)
        largest = _largest_to_read(step, told, trusted)
        digested = engine.map_batches(told, partial(_digest, opener, trusted, largest), _TOLD)
        with engine.cached(digested, at_most=sys.maxsize) as known:
            verified = engine.map_batches(known, _verified, _VERIFIED)
            # What is verified stays beside what is not: an entry without ETag means more, never less.
            unknown = engine.map_batches(
                engine.without_matching(entries, verified, _VERIFIED.names), _without_etag, HEAD_ENTRIES
            )
            contents = engine.map_batches(known, _contents, CONTENTS)
            yield Known(engine.union(engine.select(entries, *HEAD_ENTRIES.names), unknown), contents)


def _suspects(key: str, sizes: pa.Int64Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Candidates of these sizes."""
    for batch in batches:
        alike = batch.filter(pc.is_in(batch.column("size"), value_set=sizes))
        checksums = pa.nulls(alike.num_rows, pa.string())
        yield pa.record_batch(
            [alike.column("address"), alike.column(key), alike.column("size"), checksums], schema=_OBJECTS
        )


def _committed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The committed objects of entries whose checksum may be an MD5; nothing has but one content."""
    for batch in batches:
        plain = pc.match_substring_regex(batch.column("etag"), PLAIN_ETAG)
        wanted = pc.and_(pc.and_(plain, pc.is_valid(batch.column("key"))), pc.greater(batch.column("size"), 0))
        found = batch.filter(pc.fill_null(wanted, False))
        keys = found.column("key")
        yield pa.record_batch([keys, keys, found.column("size"), found.column("etag")], schema=_OBJECTS)


def _look(opener: StoreOpener, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Asks the store for the MD5 of each object; leaves out what is gone."""
    with ThreadPoolExecutor(_LOOKING_AT_ONCE) as pool:
        for batch in batches:
            look = partial(_told, opener.open())
            found = list(pool.map(look, batch.column("key").to_pylist(), batch.column("size").to_pylist()))
            told = pa.record_batch(
                [*batch.columns, pa.array([each[1] for each in found], pa.string())],
                schema=_TOLD,
            )
            yield told.filter(pa.array([each[0] for each in found], pa.bool_()))


def _told(store: ObjectStore, key: str, size: int) -> tuple[bool, str | None]:
    """Whether an object is there, and the MD5 that the store tells."""
    if size == 0:
        return True, None
    try:
        return True, store.head(key).md5
    except ObjectNotFound:
        return False, None


def _tells_the_truth(step: Step[R], told: R) -> bool:
    """Whether what the store tells is the MD5 of a sample.

    It can only take trust away: services that speak like S3 exist whose ETags are nobody's MD5. Where nothing can be
    read, nothing is trusted.
    """
    engine = step.engine
    sampled = sorted(engine.collect(engine.map_batches(told, _sample, _SAMPLED)).to_pylist(), key=_as_sampled)[:_SAMPLE]
    small = [row for row in sampled if row["size"] <= _SAMPLED_BYTES] or sampled[:_LARGE_SAMPLE]
    readable = [(row["key"], row["md5"]) for row in small if row["size"] <= digests.LARGEST_READ]
    trusted = len(readable) == len(small) and digests.are_digests(step.repository.store, readable)
    if sampled and not trusted:
        step.log("what the store tells as MD5 of objects is something else, or cannot be verified: it is not used")
    return trusted


def _as_sampled(row: dict[str, object]) -> tuple[int, str]:
    """Small ones first, and of these at random: where all are large, a few of the smallest."""
    size, key = row["size"], row["key"]
    assert isinstance(size, int) and isinstance(key, str)
    return max(size, _SAMPLED_BYTES), key[::-1]


def _sample(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of the objects of a task whose MD5 is told those that a sample would have first."""
    rows: list[dict[str, object]] = []
    for batch in batches:
        told = batch.filter(pc.is_valid(batch.column("md5"))).select(_SAMPLED.names)
        rows = sorted([*rows, *told.to_pylist()], key=_as_sampled)[:_SAMPLE]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _SAMPLED)


def _largest_to_read(step: Step[R], told: R, trusted: bool) -> int:
    """Up to which size objects are read whose MD5 is not told: all of them together are no more than READ_BYTES."""
    engine = step.engine
    amounts: dict[int, int] = {}
    for row in engine.collect(engine.map_batches(told, partial(_untold, trusted), _AMOUNTS)).to_pylist():
        amounts[row["bits"]] = amounts.get(row["bits"], 0) + row["bytes"]
    largest, left = 0, READ_BYTES
    for bits, amount in sorted(amounts.items()):
        left -= amount
        if left < 0:
            step.log(f"objects of {2 ** (bits - 1):,} bytes and more are not read: their content is taken for unknown")
            break
        largest = 2**bits - 1
    if largest:
        step.log(f"{READ_BYTES - max(left, 0):,} bytes are read at most: the store does not tell the MD5 of objects")
    return min(largest, digests.LARGEST_READ)


def _untold(trusted: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many bytes objects have that could be read, by the number of bits of their size."""
    amounts: dict[int, int] = {}
    for batch in batches:
        rows = zip(batch.column("size").to_pylist(), batch.column("md5").to_pylist(), strict=True)
        for size, md5 in rows:
            if 0 < size <= digests.LARGEST_READ and not (trusted and md5):
                amounts[size.bit_length()] = amounts.get(size.bit_length(), 0) + size
    if amounts:
        columns = [pa.array(amounts.keys(), pa.int64()), pa.array(amounts.values(), pa.int64())]
        yield pa.record_batch(columns, schema=_AMOUNTS)


def _digest(
    opener: StoreOpener, trusted: bool, largest: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The MD5 as the store tells it, or of what is read; null where it is neither."""

    def digest(key: str, size: int, md5: str | None) -> str | None:
        if trusted and md5:
            return md5
        return digests.content_digest(opener.open(), key) if 0 < size <= largest else None

    with ThreadPoolExecutor(_READING_AT_ONCE) as pool:
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("key", "size", "md5")]
            found = pa.array(list(pool.map(digest, *columns)), pa.string())
            yield pa.record_batch([*batch.select(_OBJECTS.names).columns, found], schema=_TOLD)


def _verified(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Committed objects whose checksum is their MD5."""
    for batch in batches:
        equal = pc.fill_null(pc.equal(batch.column("checksum"), batch.column("md5")), False)
        found = batch.filter(equal)
        yield pa.record_batch([found.column("key"), found.column("md5")], schema=_VERIFIED)


def _contents(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Candidates with what is known."""
    for batch in batches:
        found = batch.filter(pc.is_null(batch.column("checksum")))
        yield pa.record_batch([found.column("address"), found.column("size"), found.column("md5")], schema=CONTENTS)


def _without_etag(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same entries, without what is not known."""
    place = HEAD_ENTRIES.get_field_index("etag")
    for batch in batches:
        columns = batch.select(HEAD_ENTRIES.names).columns
        columns[place] = pa.nulls(batch.num_rows, pa.string())
        yield pa.record_batch(columns, schema=HEAD_ENTRIES)
