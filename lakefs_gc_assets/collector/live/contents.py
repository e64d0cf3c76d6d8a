"""The MD5 of the content of stored objects, if it is known for the object itself.

A staged entry that the server does not list has the size and the checksum of the committed entry at its path. This
checksum tells contents apart only if it is known to be the MD5 of the committed object. A client that links or imports
an object chooses the checksum, an ETag under keys of KMS looks like an MD5 without being one, and every copy keeps such
a checksum. A candidate's ETag counts only if it is known to be the MD5 of this very candidate: other objects of its
bucket prove nothing. An object whose MD5 stays unknown, such as an archived one that cannot be read, counts as equal to
every object of its size.

Requests are bounded: see `choose_sizes`. A committed object is checked only if its checksum alone tells it from a
candidate, and the listing does not confirm the checksum already.
"""

import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import ROWS_ADDED, merge, sum_all
from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES, LISTED
from lakefs_gc_assets.collector.records.outcomes import PLAIN_ETAG
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import ObjectArchived, counted
from lakefs_gc_assets.storage import interface
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, head_if_there

CANDIDATES_CHECKED = 1_000_000
"""Approximate maximum of candidates to check for a repository, with one request each. Above it, each run samples."""
COMMITTED_CHECKED = 100_000
"""Approximate maximum of committed objects to check for a repository, sampled in the same way."""
READ_BYTES = 4 * 1024**3
"""Maximum bytes to read for a repository to compute MD5s that the store does not give, smallest objects first.

Candidates take at most half: their MD5s are of no use while the committed objects' checksums are in doubt.
"""
_UNREADABLE = pa.field("unreadable", pa.bool_())
CONTENTS = pa.schema([LISTED.field("address"), LISTED.field("size"), LISTED.field("etag"), _UNREADABLE])
"""Address and size of candidates, the MD5 of the content if known, and true in `unreadable` for an archived object."""

_SAMPLE = 16
_SAMPLED_BYTES = 1024 * 1024
_LARGE_SAMPLE = 2
_LOOKUPS_AT_ONCE = 16
_READS_AT_ONCE = 4
_PLAIN = re.compile(PLAIN_ETAG)
_SIGNATURE = ","
"""In the name of each object that a client uploaded and linked, and in no name whose checksum the server computed."""
_OBJECTS = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("key", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("checksum", pa.string()),
    ]
)
"""Candidates, with null as `checksum`, and committed objects with their entry's checksum, which looks like an MD5."""
_WITH_MD5 = _OBJECTS.append(pa.field("md5", pa.string())).append(pa.field("checked", pa.bool_()))
_DIGESTED = _WITH_MD5.append(_UNREADABLE)
_TRUE_CHECKSUMS = pa.schema([HEAD_ENTRIES.field("key"), HEAD_ENTRIES.field("etag")])
_SAMPLED = pa.schema([pa.field("key", pa.string()), pa.field("size", pa.int64()), pa.field("md5", pa.string())])
_AMOUNTS = pa.schema([pa.field("bits", pa.int64()), pa.field("bytes", pa.int64())])
_EXTREMES = pa.schema(
    [
        pa.field("size", pa.int64()),
        pa.field("lowest", pa.string()),
        pa.field("highest", pa.string()),
        pa.field("unreadable", pa.int64()),
    ]
)

Extremes = Mapping[int, tuple[str, str]]
"""The lowest and the highest known MD5 of candidates, by size."""


@dataclass(frozen=True)
class KnownContents(Generic[R]):
    """Contents of candidates and of committed objects, as far as they are known.

    Attributes:
        entries: entries (HEAD_ENTRIES). The ETag is null if the checksum would tell an entry from a candidate and is
            not known to be the MD5.
        candidates: candidates of the size of an entry (CONTENTS), except any known to be gone.
        unreadable: number of candidates in an archive tier that could not be read.
    """

    entries: R
    candidates: R
    unreadable: int


@dataclass(frozen=True)
class _Learned(Generic[R]):
    """Objects with the MD5s that the store gave or that were computed from their content.

    Attributes:
        objects: _DIGESTED, without objects that are gone.
        trusted: True if the store gave MD5s, and a sample proved them right.
        bytes_left: number of bytes that may still be read.
    """

    objects: R
    trusted: bool
    bytes_left: int


@dataclass(frozen=True)
class ContentSample:
    """A choice of objects to check.

    Attributes:
        sizes: only objects with one of these sizes; None for any size.
        share: share of such objects to check, from 0 to 1.
        seed: chooses the objects; another seed chooses others.
    """

    sizes: pa.Int64Array | None
    share: float
    seed: str

    def chooses(self, batch: pa.RecordBatch) -> list[bool]:
        """True for each object of a batch that belongs to the sample."""
        keys, sizes = batch.column("key").to_pylist(), batch.column("size")
        among = [True] * len(keys) if self.sizes is None else pc.is_in(sizes, value_set=self.sizes).to_pylist()
        bound = self.share * 2**32
        return [
            wanted and zlib.crc32((self.seed + key).encode()) < bound for key, wanted in zip(keys, among, strict=True)
        ]


def choose_sizes(candidates: Mapping[int, int], questions: Mapping[int, int], limit: int, seed: str) -> ContentSample:
    """Chooses the sizes whose candidates are checked: sizes with more paths to look up than candidates.

    For other sizes, the paths are looked up without knowing the candidates' contents, as far as the limit allows it.

    Args:
        candidates: number of candidates by size.
        questions: number of paths on branches by size.
        limit: maximum number of paths that may be looked up.
        seed: see ContentSample.
    """
    asked, looked = 0, []
    for size, number in sorted(questions.items(), key=lambda item: (item[1], item[0])):
        if number <= candidates[size] and asked + number <= limit:
            asked += number
        elif size:
            # All objects of size 0 are equal: checking them would tell nothing.
            looked.append(size)
    return ContentSample(
        pa.array(looked, pa.int64()), _share(CANDIDATES_CHECKED, sum(candidates[size] for size in looked)), seed
    )


@contextmanager
def known_contents(
    step: Step[R], candidates: R, entries: R, columns: pa.Schema, sample: ContentSample, listed: Callable[[], R] | None
) -> Iterator[KnownContents[R]]:
    """Learns the contents of candidates that have the size of an entry, and finds checksums of entries that are true.

    Args:
        candidates: address and size at least, and `key` if objects do not lie at their addresses.
        entries: entries of branch heads (HEAD_ENTRIES); used several times, so the caller should cache them.
        columns: schema of the candidates.
        sample: candidates to check.
        listed: gives address, size and ETag of all objects of the store; None if the store was not listed.
    """
    engine = step.engine
    sizes = engine.collect(engine.distinct(engine.select(entries, "size"))).column("size").combine_chunks()
    key = "key" if "key" in columns.names else "address"
    suspects = engine.map_batches(candidates, partial(_suspects, key, sizes), _OBJECTS)
    with _learn(step, suspects, sample, READ_BYTES // 2) as learned:
        contents = engine.map_batches(learned.objects, _contents, CONTENTS)
        rows = _extremes(engine.collect(engine.map_batches(learned.objects, _extremes_of_task, _EXTREMES))).to_pylist()
        unreadable = sum(row["unreadable"] for row in rows)
        if extremes := {row["size"]: (row["lowest"], row["highest"]) for row in rows if row["lowest"] is not None}:
            # If the store's ETags are no MD5s, its listing confirms no checksum.
            telling, bytes_left = listed if learned.trusted else None, READ_BYTES // 2 + learned.bytes_left
            with _without_doubtful_checksums(step, entries, extremes, telling, bytes_left) as judged:
                yield KnownContents(judged, contents, unreadable)
        else:
            yield KnownContents(entries, contents, unreadable)


@contextmanager
def _without_doubtful_checksums(
    step: Step[R], entries: R, extremes: Extremes, listed: Callable[[], R] | None, bytes_left: int
) -> Iterator[R]:
    """The entries, with null as ETag if it would tell an entry from a candidate and is not known to be the MD5."""
    engine = step.engine
    doubtful = engine.map_batches(entries, partial(_doubtful, extremes), HEAD_ENTRIES)
    if listed is not None:
        sizes = pa.array(extremes, pa.int64())
        computed = engine.map_batches(listed(), partial(_computed_by_server, sizes), _TRUE_CHECKSUMS)
        doubtful = engine.without_matching(doubtful, computed, _TRUE_CHECKSUMS.names)
    with engine.cached(doubtful, at_most=sys.maxsize) as rest:
        objects = engine.distinct(engine.map_batches(rest, _committed, _OBJECTS))
        sample = ContentSample(None, _share(COMMITTED_CHECKED, engine.count(objects)), step.plan.run_id)
        with _learn(step, objects, sample, bytes_left) as learned:
            true = engine.map_batches(learned.objects, _true_checksums, _TRUE_CHECKSUMS)
            unchecked = engine.without_matching(rest, true, _TRUE_CHECKSUMS.names)
            with engine.cached(unchecked, at_most=sys.maxsize) as unknown:
                computed = engine.without_matching(
                    engine.select(entries, *HEAD_ENTRIES.names), unknown, ("range_id", "path")
                )
                yield engine.union(computed, engine.map_batches(unknown, _without_etag, HEAD_ENTRIES))


@contextmanager
def _learn(step: Step[R], objects: R, sample: ContentSample, bytes_left: int) -> Iterator[_Learned[R]]:
    """Learns the MD5s of objects: asks the store, and reads small objects if the store does not give the MD5.

    Args:
        objects: _OBJECTS.
        bytes_left: number of bytes that may be read.
    """
    engine, opener = step.engine, step.repository.opener
    looked = engine.map_batches(engine.spread(objects), partial(_look, opener, sample), _WITH_MD5)
    with engine.cached(looked, at_most=sys.maxsize) as with_md5:
        trusted = _gives_right_md5s(step, with_md5)
        largest, taken = _largest_to_read(step, with_md5, trusted, bytes_left)
        digested = engine.map_batches(engine.spread(with_md5), partial(_digest, opener, trusted, largest), _DIGESTED)
        with engine.cached(digested, at_most=sys.maxsize) as known:
            yield _Learned(known, trusted, bytes_left - taken)


def _share(most: int, there: int) -> float:
    return min(1.0, most / max(1, there))


def _suspects(key: str, sizes: pa.Int64Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Candidates that have one of the sizes (_OBJECTS)."""
    for batch in batches:
        alike = batch.filter(pc.is_in(batch.column("size"), value_set=sizes))
        checksums = pa.nulls(alike.num_rows, pa.string())
        yield pa.record_batch(
            [alike.column("address"), alike.column(key), alike.column("size"), checksums], schema=_OBJECTS
        )


def _doubtful(extremes: Extremes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Entries whose checksum looks like an MD5 and differs from an MD5 of a candidate of their size."""
    for batch in batches:
        rows = zip(batch.column("size").to_pylist(), batch.column("etag").to_pylist(), strict=True)
        doubtful = [
            size in extremes and _PLAIN.search(etag or "") is not None and extremes[size] != (etag, etag)
            for size, etag in rows
        ]
        yield batch.select(HEAD_ENTRIES.names).filter(pa.array(doubtful, pa.bool_()))


def _computed_by_server(sizes: pa.Int64Array, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Objects that lakeFS wrote itself, and their ETags that look like an MD5.

    An entry's checksum that equals such an ETag is the MD5, on a store whose ETags are MD5s or differ from write to
    write. lakeFS computes the checksum of uploaded content; a copy whose source had another checksum gets an ETag of
    its own, with keys of KMS too. Other stores may give equal ETags, which are no MD5s, to equal contents. A copy may
    then have the ETag that a client named when it linked the source, and the listing proves nothing.
    """
    for batch in batches:
        plain = pc.fill_null(pc.match_substring_regex(batch.column("etag"), PLAIN_ETAG), False)
        linked = pc.match_substring(batch.column("address"), _SIGNATURE)
        wanted = pc.and_(pc.and_not(plain, linked), pc.is_in(batch.column("size"), value_set=sizes))
        chosen = batch.filter(wanted)
        yield pa.record_batch([chosen.column("address"), chosen.column("etag")], schema=_TRUE_CHECKSUMS)


def _committed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The committed objects that entries name, if the object is certain (_OBJECTS)."""
    for batch in batches:
        committed = batch.filter(pc.is_valid(batch.column("key")))
        keys = committed.column("key")
        yield pa.record_batch([keys, keys, committed.column("size"), committed.column("etag")], schema=_OBJECTS)


def _look(opener: OpensStore, sample: ContentSample, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Asks the store for the MD5 of the objects in the sample; drops objects that are gone."""
    with ThreadPoolExecutor(_LOOKUPS_AT_ONCE) as pool:
        for batch in batches:
            keys, sizes = batch.column("key").to_pylist(), batch.column("size").to_pylist()
            answers = pool.map(partial(_ask_md5, opener.open()), keys, sizes, sample.chooses(batch))
            is_there, md5s, checked = zip(*answers, strict=True) if keys else ((), (), ())
            columns = [*batch.columns, pa.array(md5s, pa.string()), pa.array(checked, pa.bool_())]
            yield pa.record_batch(columns, schema=_WITH_MD5).filter(pa.array(is_there, pa.bool_()))


def _ask_md5(store: ObjectStore, key: str, size: int, wanted: bool) -> tuple[bool, str | None, bool]:
    """Three results: true unless the object is known to be gone; the store's MD5; true if the object was checked.

    A committed object has the size that its client named. If the real size differs, the object is not checked: it may
    be too large to read, and its checksum tells nothing about candidates of the named size.
    """
    if not wanted:
        return True, None, False
    facts = head_if_there(store, key)
    if facts is None:
        return False, None, True
    return (True, facts.md5, True) if facts.size == size else (True, None, False)


def _gives_right_md5s(step: Step[R], rows: R) -> bool:
    """True if the store's MD5s are right for a sample of the objects, whose contents are read.

    Some services that speak S3 have ETags that look like MD5s and are none. If an object of the sample is too large to
    read, or if the sample is empty, the store is not trusted.
    """
    engine = step.engine
    sampled = sorted(engine.collect(engine.map_batches(rows, _sample, _SAMPLED)).to_pylist(), key=_as_sampled)[:_SAMPLE]
    small = [row for row in sampled if row["size"] <= _SAMPLED_BYTES] or sampled[:_LARGE_SAMPLE]
    readable = [(row["key"], row["md5"]) for row in small if row["size"] <= interface.LARGEST_READ]
    trusted = len(readable) == len(small) and interface.are_digests(step.repository.store, readable)
    if sampled and not trusted:
        step.log("the store's MD5 values are wrong or cannot be verified: not using them")
    return trusted


def _as_sampled(row: dict[str, object]) -> tuple[int, str]:
    """Sort key: objects of up to _SAMPLED_BYTES first, by their reversed keys; larger ones follow by size."""
    size, key = row["size"], row["key"]
    assert isinstance(size, int) and isinstance(key, str)
    return max(size, _SAMPLED_BYTES), key[::-1]


def _sample(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The first objects of a task in the order of the sample, among those whose MD5 the store gives (_SAMPLED)."""
    rows: list[dict[str, object]] = []
    for batch in batches:
        with_md5 = batch.filter(pc.is_valid(batch.column("md5"))).select(_SAMPLED.names)
        rows = sorted([*rows, *with_md5.to_pylist()], key=_as_sampled)[:_SAMPLE]
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _SAMPLED)


def _largest_to_read(step: Step[R], with_md5: R, trusted: bool, bytes_left: int) -> tuple[int, int]:
    """The largest size in bytes of objects to read for their MD5, and the maximum bytes of all together."""
    largest, taken = 0, 0
    sums = sum_all(step.engine, with_md5, partial(_unknown_amounts, trusted), "bits", _AMOUNTS).sort_by("bits")
    for bits, amount in zip(sums.column("bits").to_pylist(), sums.column("bytes").to_pylist(), strict=True):
        if taken + amount > bytes_left:
            step.log(f"not reading objects of {2 ** (bits - 1):,} bytes and more: their content counts as unknown")
            break
        largest, taken = 2**bits - 1, taken + amount
    if taken:
        step.log(f"{counted(taken, 'bytes were')} read to compute MD5s, which the store does not report")
    return min(largest, interface.LARGEST_READ), taken


def _unknown_amounts(trusted: bool, batch: pa.RecordBatch) -> list[list[int]]:
    """The sizes of objects that could be read for their MD5, and the number of bits of these sizes (_AMOUNTS)."""
    rows = zip(*(batch.column(name).to_pylist() for name in ("size", "md5", "checked")), strict=True)
    sizes = [
        size for size, md5, checked in rows if checked and 0 < size <= interface.LARGEST_READ and not (trusted and md5)
    ]
    return [[size.bit_length() for size in sizes], sizes]


def _digest(
    opener: OpensStore, trusted: bool, largest: int, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Adds the store's MD5, or one computed from the content; null if neither is known (_DIGESTED)."""

    def digest(key: str, size: int, md5: str | None, checked: bool) -> tuple[str | None, bool]:
        if trusted and md5:
            return md5, False
        try:
            return (interface.content_digest(opener.open(), key) if checked and 0 < size <= largest else None), False
        except ObjectArchived:
            return None, True

    with ThreadPoolExecutor(_READS_AT_ONCE) as pool:
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("key", "size", "md5", "checked")]
            known = list(pool.map(digest, *columns))
            md5s = pa.array([md5 for md5, _ in known], pa.string())
            with_md5 = batch.set_column(_WITH_MD5.get_field_index("md5"), _WITH_MD5.field("md5"), md5s)
            unreadable = pa.array([each for _, each in known], pa.bool_())
            yield with_md5.select(_WITH_MD5.names).append_column(_UNREADABLE, unreadable)


def _extremes_of_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The lowest and the highest MD5 by size, and the number of unreadable objects (_EXTREMES)."""

    def each(batch: pa.RecordBatch) -> pa.Table:
        rows = batch.filter(pc.or_(pc.is_valid(batch.column("md5")), batch.column("unreadable")))
        columns = [rows.column(name) for name in ("size", "md5", "md5", "unreadable")]
        return pa.table([*columns[:3], columns[3].cast(pa.int64())], schema=_EXTREMES)

    yield from merge(chain([_EXTREMES.empty_table()], map(each, batches)), _extremes, ROWS_ADDED).to_batches()


def _extremes(rows: pa.Table) -> pa.Table:
    """One row (_EXTREMES) for each size."""
    each = rows.group_by("size").aggregate([("lowest", "min"), ("highest", "max"), ("unreadable", "sum")])
    return each.rename_columns(_EXTREMES.names)


def _true_checksums(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Committed objects whose checksum is their MD5."""
    for batch in batches:
        equal = pc.fill_null(pc.equal(batch.column("checksum"), batch.column("md5")), False)
        chosen = batch.filter(equal)
        yield pa.record_batch([chosen.column("key"), chosen.column("md5")], schema=_TRUE_CHECKSUMS)


def _contents(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Candidates with their MD5 if it is known (CONTENTS)."""
    for batch in batches:
        columns = [batch.column(name) for name in ("address", "size", "md5", "unreadable")]
        yield pa.record_batch(columns, schema=CONTENTS)


def _without_etag(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Entries with null in place of the ETag (HEAD_ENTRIES)."""
    place = HEAD_ENTRIES.get_field_index("etag")
    for batch in batches:
        columns = batch.select(HEAD_ENTRIES.names).columns
        columns[place] = pa.nulls(batch.num_rows, pa.string())
        yield pa.record_batch(columns, schema=HEAD_ENTRIES)
