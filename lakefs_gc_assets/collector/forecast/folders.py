"""What each folder of logical paths holds, and who has it: the largest folders, and all others together.

Folders may be as many as objects. So tasks add up, bring the sums of each folder together, and hand on the largest of
theirs; what else there is becomes one sum for each set of bits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.amount import Amount
from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.forecast.holding import binary_of, words_of
from lakefs_gc_assets.collector.live.live_files import FOLDER

LARGEST = 100
"""So many folders are told apart."""

_SUMS = (
    pa.field("held_there", pa.binary()),
    pa.field("alone", pa.bool_()),
    pa.field("objects", pa.int64()),
    pa.field("bytes", pa.int64()),
)
# The engine brings together what has one address: here these are folders.
_BY_FOLDER = pa.schema([pa.field("address", pa.string()), *_SUMS])
_LARGEST = pa.schema([FOLDER, *_SUMS, pa.field("others", pa.int64())])
"""Sums of the largest folders; those of all others have none, and one row says how many these are."""
_GROUPS = ["address", "held_there", "alone"]


@dataclass(frozen=True, slots=True)
class Portion:
    """What a holder has in a folder.

    Attributes:
        in_all: objects that it has there.
        alone: those of them that no other holder has, there or elsewhere.
    """

    in_all: Amount
    alone: Amount


@dataclass(frozen=True, slots=True)
class FolderHolding:
    """What a folder holds, or what all others hold together; an object in several folders counts in each of them.

    Attributes:
        folder: with a slash at its end; empty at the top, None for all others.
        stored: what commits hold there, expired ones too.
        portions: of each holder, in their order.
    """

    folder: str | None
    stored: Amount
    portions: tuple[Portion, ...]

    @property
    def title(self) -> str:
        """What a person is told that it is about."""
        return self.folder or "(top level)"


@dataclass(frozen=True, slots=True)
class ByFolder:
    """What folders hold.

    Attributes:
        depth: how many components of a path make its folder.
        largest: the folders that hold most bytes, the largest first.
        others: all other folders together; None where there are none.
        other_folders: how many these are.
    """

    depth: int
    largest: tuple[FolderHolding, ...]
    others: FolderHolding | None = None
    other_folders: int = 0


def add_up(engine: Engine[R], placed: R, depth: int, holders: range, width: int, count: int) -> ByFolder:
    """Adds up what each folder holds.

    Args:
        placed: addresses (PLACED).
        holders: the bits that stand for holders.
        width: bytes of a set of bits.
        count: how many rows there are, about.
    """
    mask = sum(1 << bit for bit in holders).to_bytes(width, "little")
    sums = engine.map_batches(placed, partial(_count, mask), _BY_FOLDER)
    rows = engine.collect(engine.map_by_address(sums, _keep_largest, _LARGEST, count)).to_pylist()
    totals: dict[str, int] = {}
    for row in rows:
        if row["folder"] is not None:
            totals[row["folder"]] = totals.get(row["folder"], 0) + row["bytes"]
    largest = sorted(totals, key=lambda folder: (-totals[folder], folder))[:LARGEST]
    told = {folder: list[dict[str, Any]]() for folder in largest}
    others: list[dict[str, Any]] = []
    for row in rows:
        told.get(row["folder"], others).append(row)
    other_folders = len(totals) - len(largest) + sum(row["others"] for row in rows)
    return ByFolder(
        depth,
        tuple(_holding(folder, told[folder], holders) for folder in largest),
        _holding(None, others, holders) if other_folders else None,
        other_folders,
    )


def _holding(folder: str | None, rows: list[dict[str, Any]], holders: range) -> FolderHolding:
    objects = np.array([row["objects"] for row in rows], np.int64)
    sizes = np.array([row["bytes"] for row in rows], np.int64)
    alone = np.array([row["alone"] for row in rows], np.bool_)
    packed = np.frombuffer(b"".join(row["held_there"] for row in rows), np.uint8).reshape(len(rows), -1)
    bits = np.unpackbits(packed, axis=1, bitorder="little").astype(np.bool_)

    def amount(chosen: npt.NDArray[np.bool_]) -> Amount:
        return Amount(int(objects[chosen].sum()), int(sizes[chosen].sum()))

    portions = (Portion(amount(bits[:, bit]), amount(bits[:, bit] & alone)) for bit in holders)
    return FolderHolding(folder, amount(np.ones(len(rows), np.bool_)), tuple(portions))


def _count(mask: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The objects of a task by folder and holders (_BY_FOLDER).

    Args:
        mask: the bits of holders.
    """
    wanted = np.frombuffer(mask, np.uint64)
    sums = []
    for batch in batches:
        certain = batch.filter(batch.column("certain"))
        if not certain.num_rows:
            continue
        everywhere = words_of(certain.column("held")) & wanted
        # One word has bits, and of these only one.
        single = (np.count_nonzero(everywhere, axis=1) == 1) & ~(everywhere & (everywhere - np.uint64(1))).any(axis=1)
        there = binary_of(words_of(certain.column("held_there")) & wanted)
        columns = [certain.column("folder"), there, pa.array(single), certain.column("size")]
        rows = pa.table(columns, [*_GROUPS, "size"])
        counted = rows.group_by(_GROUPS).aggregate([("size", "count"), ("size", "sum")])
        sums.append(counted.rename_columns([*_GROUPS, "objects", "bytes"]))
    if sums:
        yield from _added(pa.concat_tables(sums)).cast(_BY_FOLDER).to_batches()


def _added(sums: pa.Table) -> pa.Table:
    """Sums of the same groups added up (_BY_FOLDER)."""
    added = sums.group_by(_GROUPS).aggregate([("objects", "sum"), ("bytes", "sum")])
    return added.select([*_GROUPS, "objects_sum", "bytes_sum"]).rename_columns(_BY_FOLDER.names)


def _keep_largest(sums: pa.Table) -> pa.Table:
    """The sums of whole folders with those of small ones put together (_LARGEST)."""
    added = _added(sums)
    totals = added.group_by("address").aggregate([("bytes", "sum")])
    largest = pc.select_k_unstable(totals, LARGEST, [("bytes_sum", "descending"), ("address", "ascending")])
    names = totals.column("address").take(largest)
    kept = pc.is_in(added.column("address"), value_set=names.combine_chunks())
    folders = pc.if_else(kept, added.column("address"), pa.scalar(None, pa.string()))
    rows = _added(added.set_column(0, "address", folders)).rename_columns([FOLDER.name, *_BY_FOLDER.names[1:]])
    others = np.zeros(rows.num_rows, np.int64)
    if others_rows := pc.indices_nonzero(pc.is_null(rows.column(FOLDER.name))).to_pylist():
        others[others_rows[0]] = totals.num_rows - len(names)
    return rows.append_column("others", pa.array(others)).cast(_LARGEST)
