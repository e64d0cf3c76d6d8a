"""What live ranges hold that a run does not read: of what it asks for, the addresses whose hash is noted of one.

A run by retention rules that builds on another one asks for what it looks at, and for what is uncommitted. Ranges are
read of which nothing is noted, or whose notes do not fit what their metarange counts. Some others are read all the
same, and compared with what is noted of them.
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
from lakefs_gc_assets.collector.frame.schemas import LIVE
from lakefs_gc_assets.collector.frame.slices import select_sealed
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.incremental.leaving import seal
from lakefs_gc_assets.collector.live import noted_files, range_hashes, range_notes
from lakefs_gc_assets.collector.live.current import Committed
from lakefs_gc_assets.collector.live.range_hashes import HASHES, LOOKED_UP, SUMS, HashesFolder
from lakefs_gc_assets.collector.live.range_notes import NotesFile, NotesFolder
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import OpensStore

_ASKED_AT_ONCE = 8_000_000
"""So many addresses are looked up together: each task has all of their hashes, some 80 MB with what finds them.

Where the rows are chosen that are held, it has the hashes of these, of all parts together.
"""
_ROUNDS = 4
"""So often all notes are read, one part of what is asked for after the other; to read every range takes longer."""
_TOLD = "which addresses ranges hold"
_COMPARED = 8
"""So many ranges are read in each run and compared with what is noted of them."""
_HASH = pa.schema([pa.field("hash", pa.int64())])


@dataclass(frozen=True)
class Held(Generic[R]):
    """What live ranges hold that are not read, of what is asked for.

    Attributes:
        range_ids: the ranges that are not read.
        noted: how many addresses they have, each range for itself.
        addresses: those that are asked for and held (LIVE); None where every range is read.
        count: how many these are at most.
    """

    range_ids: IdSet = field(default_factory=IdSet)
    noted: int = 0
    addresses: R | None = None
    count: int = 0


def folder_of(step: Step[R], found: Committed) -> HashesFolder | None:
    """Where hashes are noted for the run that builds on this one; None where none can that would look them up."""
    if step.plan.flow is not Flow.UNIFIED or not found.tells_ranges or not step.repository.settings.full_listing_days:
        return None
    key = HASHES.folder(step.plan.run_id, step.plan.attempt)
    return HashesFolder(NotesFolder(step.repository.opener, key), pa.array(sorted(seal(step)), pa.string()))


def find_held(step: Step[R], found: Committed, asked: Sequence[StoredFrame[Any]], sealed: frozenset[str]) -> Held[R]:
    """Looks up in the notes of the base run what this one asks for, and takes these notes over.

    Args:
        asked: frames with every address that is asked for, which have the columns of LIVE.
        sealed: slices that are sealed after the base run. Nothing else is noted, so nothing else is looked up.
    Raises:
        CorruptFile: what is noted of a range is not what it holds, or a range that is compared cannot be read.
    """
    engine = step.engine
    if not found.tells_ranges:
        step.log("every range is read: it is not told which of them are another repository's")
        return Held()
    first, *more = (frame.rows(engine, *LIVE.names) for frame in asked)
    wanted = select_sealed(engine, engine.union(first, *more), sealed)
    count, most = sum(frame.count for frame in asked), _ROUNDS * _ASKED_AT_ONCE
    if count > most:
        count = engine.count(wanted)
    if count > most:
        step.log(f"every range is read: {count:,} addresses are asked for, more than {most:,}")
        return Held()
    # Only now: where every range is read, all are noted anew.
    files = noted_files.take_over(step, HASHES, _TOLD, "the next run reads those ranges")
    hashed = engine.collect(engine.map_batches(wanted, _hash_each, _HASH))
    hashes = distinct(hashed.column("hash").to_numpy().view(np.uint64))
    records = found.records
    rounds = max(1, math.ceil(len(hashes) / _ASKED_AT_ONCE))
    look_up = partial(_look_up_part, step, files, _named_once(records))
    parts = [look_up(part) for part in np.array_split(hashes, rounds)]
    told = _select_fitting(step, _select_told_each_time([each for each, _ in parts]), records)
    _require_true(step, told, records, files)
    each = told.group_by("range_id").aggregate([("addresses", "max")])
    ids, noted = _ids(each.column("range_id")), pc.sum(each.column("addresses_max")).as_py() or 0
    step.log(f"{len(ids):,} of {len(records):,} live ranges are not read: their addresses are noted")
    held = HashSet.made(np.concatenate([each for _, each in parts]))
    rows = engine.where(wanted, partial(hashing.has_hash_among, held))
    return Held(ids, noted, rows, hashed.num_rows)


def _look_up_part(step: Step[R], files: Sequence[NotesFile], named: IdSet, part: Hashes) -> tuple[pa.Table, Hashes]:
    """What is told (SUMS) of ranges, and which of some hashes are noted of any of them.

    Ranges whose notes do not fit are read later: what is noted of them besides can only keep something.
    """
    hashes = HashSet.made(part)
    read = partial(_look_up, step.repository.opener, named, hashes)
    noted = noted_files.look_up_files(step, files, lambda file: file.values, read, LOOKED_UP, _TOLD)
    return range_hashes.tell_apart(noted, hashes)


def _select_told_each_time(told: Sequence[pa.Table]) -> pa.Table:
    """What is told (SUMS) of the ranges that every part was looked up in, the same of each part once.

    A file may be read one time and fail the next: which of the next part its ranges hold then nobody knows.
    """
    ids = pa.concat_tables(each.select(["range_id"]).group_by("range_id").aggregate([]) for each in told)
    times = ids.group_by("range_id").aggregate([([], "count_all")])
    each_time = times.filter(pc.equal(times.column("count_all"), len(told))).column("range_id")
    everything = pa.concat_tables(told)
    everything = everything.filter(pc.is_in(everything.column("range_id"), value_set=each_time.combine_chunks()))
    return everything.group_by(SUMS.names).aggregate([])


def _named_once(records: RangeRecords) -> IdSet:
    """The ranges of which all metaranges say the same; others are read, which fails."""
    counted = records.rows.group_by("id").aggregate([([], "count_all")])
    return _ids(counted.filter(pc.equal(counted.column("count_all"), 1)).column("id"))


def _ids(column: pa.ChunkedArray) -> IdSet:
    return IdSet.of_columns(batch.column("id") for batch in pa.table({"id": column}).to_batches(max_chunksize=8_192))


def _look_up(
    opener: OpensStore, wanted: IdSet, hashes: HashSet, files: Iterable[NotesFile]
) -> Iterator[pa.RecordBatch]:
    return range_hashes.look_up(opener.open(), wanted, hashes, files)


def _select_fitting(step: Step[R], told: pa.Table, records: RangeRecords) -> pa.Table:
    """What is told (SUMS) of ranges whose notes all have as many entries as their metarange counts."""
    places = pc.index_in(told.column("range_id"), value_set=records.rows.column("id").combine_chunks())
    fits = pc.fill_null(pc.equal(told.column("entries"), records.rows.column("count").take(places)), False)
    wrong = told.filter(pc.invert(fits)).column("range_id").unique()
    if len(wrong):
        step.warn(
            f"{len(wrong)} ranges are read, since their notes have not as many entries as their metarange counts: "
            f"{wrong[0]}"
        )
    return told.filter(pc.invert(pc.is_in(told.column("range_id"), value_set=wrong)))


def _require_true(step: Step[R], told: pa.Table, records: RangeRecords, files: Sequence[NotesFile]) -> None:
    """Reads some ranges, and raises CorruptFile where one does not hold what is noted of it.

    No run believes any of the files after that, whichever run it builds on.
    """
    ids = pc.unique(told.column("range_id")).sort()
    # Which ones is no secret, and an attempt that is made again compares the same.
    drawn = random.Random(step.plan.run_id + step.plan.attempt)  # noqa: S311
    chosen = ids.take(pa.array(drawn.sample(range(len(ids)), min(_COMPARED, len(ids))), pa.int64()))
    some = RangeRecords(records.rows.filter(pc.is_in(records.rows.column("id"), value_set=chosen)))
    read = {row["range_id"]: row for row in step.engine.collect(References.from_step(step).sums(some)).to_pylist()}
    for row in told.filter(pc.is_in(told.column("range_id"), value_set=chosen)).to_pylist():
        if row != read.get(row["range_id"]):
            range_notes.refute(step.repository.store, files)
            raise CorruptFile(
                row["range_id"],
                "notes",
                f"what is noted of this range in run {step.plan.base_run} is not what it holds; the next run reads "
                "every range",
            )


def _hash_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        hashes = hashing.hashes(batch.column("address")).view(np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(hashes)], schema=_HASH)
