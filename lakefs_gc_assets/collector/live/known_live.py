"""Live addresses that a run by retention rules knows by facts about ranges, without reading these.

A run that builds on another one looks up the addresses of its universe, and those that are uncommitted. It reads
ranges without facts, or whose facts do not fit what their metarange counts. Some others are read all the same, and
compared with their facts.
"""

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import Hashes, HashSet, distinct
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import LIVE
from lakefs_gc_assets.collector.frame.slices import select_sealed
from lakefs_gc_assets.collector.live import facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live.current import Committed
from lakefs_gc_assets.collector.live.facts import FactFile, FactsFolder
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, HASHES_LOOKED_UP, SUMS
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile, counted
from lakefs_gc_assets.storage.interface import ObjectStore

_ASKED_AT_ONCE = 8_000_000
"""Addresses that are looked up together: each task has all of their hashes, some 80 MB with what finds them.

Where the rows are chosen that are held, it has the hashes of these, of all parts together.
"""
_ROUNDS = 4
"""Times that all facts are read at most, each for a part of the addresses; to read every range takes longer."""
_COMPARED = 8
"""Ranges that are read in each run and compared with their facts."""
_HASH = pa.schema([pa.field("hash", pa.int64())])


@dataclass(frozen=True)
class KnownLive(Generic[R]):
    """Live addresses that are known without reading their ranges.

    Attributes:
        range_ids: the ranges that are not read.
        recorded: how many addresses they have, each range for itself.
        addresses: those of the addresses asked for that they hold (LIVE); None where every range is read.
        count: how many these are at most.
    """

    range_ids: IdSet = field(default_factory=IdSet)
    recorded: int = 0
    addresses: R | None = None
    count: int = 0


def hashes_folder(step: Step[R], committed: Committed) -> FactsFolder | None:
    """Where hashes are recorded for the run that builds on this one; None where none can that would look them up."""
    if (
        step.plan.flow is not Flow.UNIFIED
        or not committed.tells_ranges
        or not step.repository.settings.full_listing_days
    ):
        return None
    return references.facts_folder(step, HASHES)


def find_known_live(
    step: Step[R], committed: Committed, asked: Sequence[StoredFrame[Any]], sealed: frozenset[str]
) -> KnownLive[R]:
    """Looks up addresses in the facts about live ranges.

    Args:
        asked: frames with every address that is asked for, which have the columns of LIVE.
        sealed: slices that are sealed after the base run. Ranges with addresses in other slices are read, so nothing in
            these is looked up.
    Raises:
        CorruptFile: a range does not hold what is recorded of it, or one that is compared cannot be read.
    """
    engine = step.engine
    if not committed.tells_ranges:
        step.log("every range is read: it is not known which of them belong to other repositories")
        return KnownLive()
    first, *more = (frame.rows(engine, *LIVE.names) for frame in asked)
    wanted = select_sealed(engine, engine.union(first, *more), sealed)
    count, most = sum(frame.count for frame in asked), _ROUNDS * _ASKED_AT_ONCE
    if count > most:
        count = engine.count(wanted)
    if count > most:
        step.log(f"every range is read: {counted(count, 'addresses are')} asked for, more than {most:,}")
        return KnownLive()
    files = references.find_fact_files(step, HASHES)
    hashed = engine.collect(engine.map_batches(wanted, _hash_each, _HASH))
    hashes = distinct(hashed.column("hash").to_numpy().view(np.uint64))
    records = committed.records
    rounds = max(1, math.ceil(len(hashes) / _ASKED_AT_ONCE))
    look_up = partial(_look_up_part, step, files, _named_once(records), pa.array(sorted(sealed), pa.string()))
    parts = [look_up(part) for part in np.array_split(hashes, rounds)]
    sums = _select_fitting(step, _select_ranges_of_every_round([each for each, _ in parts]), records)
    _require_true(step, sums, records, files)
    each = sums.group_by("range_id").aggregate([("addresses", "max")])
    ids, recorded = _ids(each.column("range_id")), pc.sum(each.column("addresses_max")).as_py() or 0
    step.log(f"{len(ids):,} of {counted(len(records), 'live ranges are')} not read: their addresses are known")
    hits = HashSet.from_hashes(np.concatenate([each for _, each in parts]))
    rows = engine.where(wanted, partial(hashing.has_hash_among, hits))
    return KnownLive(ids, recorded, rows, hashed.num_rows)


def _look_up_part(
    step: Step[R], files: Sequence[FactFile], named: IdSet, sealed: pa.StringArray, part: Hashes
) -> tuple[pa.Table, Hashes]:
    """The sums of ranges (SUMS), and which of some hashes any of them has.

    Ranges whose facts do not fit are read later: what is recorded of them besides can only keep something.
    """
    hashes, namespace = HashSet.from_hashes(part), step.repository.namespace.uri

    def look_up(store: ObjectStore, files: Iterable[FactFile]) -> Iterator[pa.RecordBatch]:
        return facts_of_ranges.look_up_hashes(store, namespace, named, sealed, hashes, files)

    looked_up = references.look_up_facts(step, HASHES, files, look_up, HASHES_LOOKED_UP)
    return facts_of_ranges.split_sums_and_hits(looked_up, hashes)


def _select_ranges_of_every_round(sums: Sequence[pa.Table]) -> pa.Table:
    """The sums (SUMS) of the ranges that every part was looked up in, the same of each part once.

    A file may be read one time and fail the next: which of the next part its ranges hold then nobody knows.
    """
    ids = pa.concat_tables(each.select(["range_id"]).group_by("range_id").aggregate([]) for each in sums)
    times = ids.group_by("range_id").aggregate([([], "count_all")])
    each_time = times.filter(pc.equal(times.column("count_all"), len(sums))).column("range_id")
    everything = pa.concat_tables(sums)
    everything = everything.filter(pc.is_in(everything.column("range_id"), value_set=each_time.combine_chunks()))
    return everything.group_by(SUMS.names).aggregate([])


def _named_once(records: RangeRecords) -> IdSet:
    """The ranges of which all metaranges say the same; others are read, which fails."""
    counted = records.rows.group_by("id").aggregate([([], "count_all")])
    return _ids(counted.filter(pc.equal(counted.column("count_all"), 1)).column("id"))


def _ids(column: pa.ChunkedArray) -> IdSet:
    return IdSet.of_columns(batch.column("id") for batch in pa.table({"id": column}).to_batches(max_chunksize=8_192))


def _select_fitting(step: Step[R], sums: pa.Table, records: RangeRecords) -> pa.Table:
    """The sums (SUMS) of ranges whose facts all have as many entries as their metarange counts."""
    places = pc.index_in(sums.column("range_id"), value_set=records.rows.column("id").combine_chunks())
    fits = pc.fill_null(pc.equal(sums.column("entries"), records.rows.column("count").take(places)), False)
    wrong = sums.filter(pc.invert(fits)).column("range_id").unique()
    if len(wrong):
        step.warn(
            f"{counted(len(wrong), 'ranges are')} read, since their facts have not as many entries as their metarange "
            f"counts: {wrong[0]}"
        )
    return sums.filter(pc.invert(pc.is_in(sums.column("range_id"), value_set=wrong)))


def _require_true(step: Step[R], sums: pa.Table, records: RangeRecords, files: Sequence[FactFile]) -> None:
    """Reads some ranges, and raises CorruptFile where one does not hold what is recorded of it.

    No run believes any of the files after that, whichever run it builds on.
    """
    ids = pc.unique(sums.column("range_id")).sort()
    # Which ones is no secret, and an attempt that is made again compares the same.
    drawn = random.Random(step.plan.run_id + step.plan.attempt)  # noqa: S311
    chosen = ids.take(pa.array(drawn.sample(range(len(ids)), min(_COMPARED, len(ids))), pa.int64()))
    some = RangeRecords(records.rows.filter(pc.is_in(records.rows.column("id"), value_set=chosen)))
    read = {row["range_id"]: row for row in step.engine.collect(References.from_step(step).sums(some)).to_pylist()}
    for row in sums.filter(pc.is_in(sums.column("range_id"), value_set=chosen)).to_pylist():
        if row != read.get(row["range_id"]):
            facts.refute(step.repository.store, files)
            raise CorruptFile(
                row["range_id"],
                "facts",
                "this range does not hold what is recorded of it; the next run reads every range",
            )


def _hash_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        hashes = hashing.hashes(batch.column("address")).view(np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(hashes)], schema=_HASH)
