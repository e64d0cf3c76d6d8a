"""Attribution: the objects of a repository after a run, by state and by holder.

States come from the frames of the run. Holders come from the heads of branches that the run saw. An object's size is
that of its entries, or as listed if no head has it. A figure that the frames do not determine is left out.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import HashSet
from lakefs_gc_assets.collector.engine.port import Engine
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.live.live_files import LiveFiles, records_of
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.own_commits import MARK, read_own_commits
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.extensions.holdings.head_commits import NewCommits, find_new_commits
from lakefs_gc_assets.extensions.holdings.head_parts import (
    NO_COMMIT,
    SPREAD,
    SUMS,
    HeadPart,
    PartTask,
    ReadParts,
    cut_into_parts,
    find_cuts,
    read_parts,
    slices_of,
    unlisted_slices,
)
from lakefs_gc_assets.extensions.holdings.holdings_files import (
    METADATA_DIMENSION,
    Dimension,
    HoldingsRow,
    HoldingState,
    Sharing,
)
from lakefs_gc_assets.extensions.holdings.known_heads import (
    BROUGHT,
    CUTS,
    METARANGES,
    PART_RANGES,
    PARTS,
    BringingCommit,
    KnownHeads,
)
from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord

_METARANGES_AT_ONCE = 8
_GROWTH = 4
"""Paths are cut anew if heads have this many times the entries of the last cut."""
_EPOCH = 1970
LIFECYCLE = "(object lifecycle)"
"""Committer of commits that object lifecycle made, in place of the user that the collector has."""

_ENTRIES_OF_A_ROW = 10
"""Entries whose reading takes as long as a new address, which becomes a row of its own."""

ChooseEngine = Callable[[int], Engine[Any]]
"""Returns the engine for work with this number of rows."""


@dataclass(frozen=True)
class HeadHoldings:
    """Objects of the heads that a run saw.

    Attributes:
        rows: by branch, path, age, committer, metadata and commit.
        in_all: all of them, each once.
        listed: those among them in slices that the run may have listed, or in none.
        uncertain: number of addresses that may mean several objects, and so are in no figure.
        known: facts for the next attribution.
        ranges_read: number of ranges that were read, if in part to compare them.
    """

    rows: tuple[HoldingsRow, ...]
    in_all: Amount
    listed: Amount
    uncertain: int
    known: KnownHeads
    ranges_read: int


def attribute_heads(
    step: Step[Any],
    choose_engine: ChooseEngine,
    heads: Mapping[str, str],
    known: KnownHeads | None,
    depth: int,
    metadata_keys: Sequence[str] = (),
) -> HeadHoldings:
    """Attributes the objects of heads. Reads only parts whose ranges are not known.

    Args:
        step: of the run that saw the heads; it takes no lock.
        heads: metarange of the head by branch.
        known: facts about the heads that an earlier run saw; None if there are none.
        depth: number of leading path components that make up a folder, at least 1.
        metadata_keys: keys of commits' metadata that become dimensions.
    Raises:
        CorruptFile: a range or metarange cannot be read.
        LakeFSError: the server fails.
        StorageError: the store fails.
    """
    reading = _Reading.prepare(step, heads, known, depth)
    engine = choose_engine(max(map(sum, zip(*map(_weight, reading.tasks), strict=True)), default=0))
    read = read_parts(
        engine,
        References.from_step(replace(step, engine=engine)),
        reading.tasks,
        reading.unchanged,
        reading.slices,
        reading.spread,
        HashSet.from_hashes(reading.wanted),
        depth,
        step.plan.cutoff,
    )
    return reading.finish(read, metadata_keys)


def _weight(task: PartTask) -> tuple[int, int]:
    """Approximate number of new addresses of a part, and the weight of its entries, in rows."""
    unknown = sum(record.count for record in task.ranges if record.id not in task.known)
    before = sum(record.count for record in task.before)
    return max(unknown - before, 0), sum(record.count for record in task.all_ranges) // _ENTRIES_OF_A_ROW


@dataclass(frozen=True)
class _Reading:
    """Parts to read, and facts that are known already.

    Attributes:
        heads: metarange of the head by branch.
        known: facts of an earlier run that can be used.
        cuts: first paths of the intervals into which paths are cut.
        entries: number of entries of all heads when all paths were last cut.
        ranges_of: ids of the ranges by metarange.
        parts: all parts of the heads, by id.
        tasks: changed parts, which are read.
        unchanged: parts whose sums are known.
        slices: slices of the known parts, by id.
        spread: known addresses in several parts, rows of unchanged parts alone (SPREAD).
        wanted: hashes of addresses whose place may have changed.
        new: commits that may have brought objects.
    """

    step: Step[Any]
    depth: int
    heads: Mapping[str, str]
    known: KnownHeads
    cuts: tuple[bytes, ...]
    entries: int
    ranges_of: Mapping[str, Sequence[str]]
    parts: Mapping[str, HeadPart]
    tasks: Sequence[PartTask]
    unchanged: Sequence[PartTask]
    slices: Mapping[str, frozenset[str]]
    spread: pa.Table
    wanted: hashing.Hashes
    new: NewCommits

    @classmethod
    def prepare(cls, step: Step[Any], heads: Mapping[str, str], stored: KnownHeads | None, depth: int) -> "_Reading":
        """Compares the heads with known known_slices."""
        known = stored or KnownHeads("", "", depth, 0, step.plan.cutoff, {})
        records_before = {record.id: record for batch in known["ranges"].to_batches() for record in records_of(batch)}
        records, ranges_of = dict(records_before), _known_metaranges(known)
        new = find_new_commits(step.repository.api, heads, known.branches if stored else None, step.log)
        new = replace(new, commits=_with_lifecycle(step, new.commits))
        wanted_metaranges = dict.fromkeys([*heads.values(), *filter(None, (each.metarange_id for each in new.commits))])
        _read_metaranges(step, [each for each in wanted_metaranges if each not in ranges_of], records, ranges_of)
        of_heads = {range_id: records[range_id] for each in set(heads.values()) for range_id in ranges_of[each]}
        entries = sum(record.count for record in of_heads.values())
        cuts = tuple(known["cuts"].column("cut").to_pylist())
        cut_at = known.entries
        if known.depth != depth or known.cutoff > step.plan.cutoff or not cuts or entries > _GROWTH * cut_at:
            # Nothing is known of the new parts, so an old object could not be told from one that a new commit brought.
            known = replace(known, tables={"brought": known["brought"]})
            records_before, cut_at = {}, entries
            new = replace(new, commits=())
            widest = max(set(heads.values()), key=lambda each: len(ranges_of[each]), default=None)
            fixed = {records[each].min_key for each in ranges_of[widest]} if widest else set()
            cuts = (*(b"",) * bool(fixed), *find_cuts(of_heads.values(), fixed))
        else:
            # New paths at the end, such as partitions of new days, would make the last part larger each day.
            cuts = (*cuts, *find_cuts(each for each in of_heads.values() if each.min_key >= cuts[-1]))
        parts = cut_into_parts(of_heads.values(), cuts)
        known_slices = {row["part"]: frozenset(row["slices"]) for row in known["parts"].to_pylist()}
        unchanged = [PartTask(part.id, part.ranges) for id_, part in parts.items() if id_ in known_slices]
        in_unchanged = pa.array([task.id for task in unchanged], pa.string())
        spread = known["spread"]
        brought = known["brought"]
        moved = pc.invert(pc.is_in(brought.column("part"), value_set=in_unchanged))
        wanted = [
            hashing.hashes(spread.column("address").combine_chunks()),
            brought.filter(moved).column("hash").to_numpy(),
        ]
        return cls(
            step,
            depth,
            heads,
            known,
            cuts,
            cut_at,
            ranges_of,
            parts,
            _tasks(parts.values(), known_slices, records_before, cuts, records, ranges_of, new),
            unchanged,
            known_slices,
            spread.filter(pc.is_in(spread.column("part"), value_set=in_unchanged)),
            np.concatenate(wanted),
            new,
        )

    def finish(self, read: ReadParts, metadata_keys: Sequence[str]) -> HeadHoldings:
        """Adds up new and known facts."""
        in_unchanged = pa.array([task.id for task in self.unchanged], pa.string())
        kept = self.known["sums"]
        kept = kept.filter(pc.is_in(kept.column("part"), value_set=in_unchanged))
        sums = pa.concat_tables([kept, read.sums]).cast(SUMS)
        uncertain = {row["part"]: row["uncertain"] for row in self.known["parts"].to_pylist()} | read.uncertain
        uncertain = {part: uncertain[part] for part in self.parts}
        slices = {**self.slices, **read.slices}
        commits, brought = self._brought(read)
        totals = _Totals.add_up(self._holders(), self.parts, sums, read.spread, self.step.plan.cutoff)
        branches = [*self.heads]
        part_rows = [(part, uncertain[part], sorted(slices.get(part, ()))) for part in self.parts]
        tables = {
            "ranges": _range_table(self.parts),
            "parts": pa.table([[*column] for column in zip(*part_rows, strict=True)] or [[], [], []], schema=PARTS),
            "cuts": pa.table([self.cuts], schema=CUTS),
            "sums": sums,
            "spread": read.spread.cast(SPREAD),
            "brought": brought,
        }
        tables["metaranges"] = _metarange_table(
            tables["ranges"], {each: self.ranges_of[each] for each in self.heads.values()}
        )
        known = KnownHeads(
            self.step.repository.facts.id,
            self.step.plan.run_id,
            self.depth,
            self.entries,
            self.step.plan.cutoff,
            self.new.branches,
            None,
            tables,
            commits,
        )
        rows = (*totals.rows(branches), *_commit_rows(brought, commits, metadata_keys))
        return HeadHoldings(
            rows,
            totals.add(totals.by_month),
            totals.add(totals.by_month & ~totals.unlisted),
            sum(uncertain.values()),
            known,
            len({record.id for task in self.tasks for record in task.all_ranges}),
        )

    def _holders(self) -> dict[str, int]:
        """Branches whose heads have a range, as bits, by range."""
        of_metarange: dict[str, int] = {}
        for number, metarange_id in enumerate(self.heads.values()):
            of_metarange[metarange_id] = of_metarange.get(metarange_id, 0) | 1 << number
        holders: dict[str, int] = {}
        for metarange_id, bits in of_metarange.items():
            for range_id in self.ranges_of[metarange_id]:
                holders[range_id] = holders.get(range_id, 0) | bits
        return holders

    def _brought(self, read: ReadParts) -> tuple[tuple[BringingCommit, ...], pa.Table]:
        """The commits that brought objects of heads, and these objects (BROUGHT)."""
        before, offset = self.known["brought"], len(self.known.commits)
        in_unchanged = pa.array([task.id for task in self.unchanged], pa.string())
        stays = pc.is_in(before.column("part"), value_set=in_unchanged)
        moved = before.filter(pc.invert(stays))
        seen = pa.concat_tables([read.new, read.here])
        seen = seen.append_column("hash", pa.array(hashing.hashes(seen.column("address").combine_chunks())))
        at = pc.index_in(moved.column("hash"), value_set=seen.column("hash").combine_chunks())
        there = moved.filter(pc.is_valid(at))
        there = there.set_column(1, BROUGHT.field("part"), seen.column("part").take(at.drop_null()).cast(pa.string()))
        came = seen.filter(
            pc.and_(pc.equal(seen.column("kind"), "new"), pc.not_equal(seen.column("commit"), NO_COMMIT))
        )
        came = came.filter(pc.invert(pc.is_in(came.column("hash"), value_set=before.column("hash").combine_chunks())))
        is_known = pa.array([commit.id in self.new.branch_of for commit in self.new.commits], pa.bool_())
        came = came.filter(is_known.take(came.column("commit").combine_chunks()))
        places = pc.add(came.column("commit"), pa.scalar(offset, pa.int32()))
        brought = pa.concat_tables(
            [
                before.filter(stays),
                there,
                pa.table([came.column("hash"), came.column("part"), came.column("bytes"), places], schema=BROUGHT),
            ]
        )
        commits = (*self.known.commits, *(_bringing(commit, self.new.branch_of) for commit in self.new.commits))
        used = np.unique(brought.column("commit").to_numpy())
        renumbered = pa.array(np.searchsorted(used, brought.column("commit").to_numpy()).astype(np.int32))
        return tuple(commits[place] for place in used), brought.set_column(3, BROUGHT.field("commit"), renumbered)


def _with_lifecycle(step: Step[Any], commits: Sequence[Commit]) -> tuple[Commit, ...]:
    """The commits; one with object lifecycle's mark and an intact receipt has the committer LIFECYCLE."""
    marked = [commit.id for commit in commits if MARK in dict(commit.metadata)]
    own = read_own_commits(step.repository.store, step.plan.repository, step.warn, marked)
    return tuple(replace(commit, committer=LIFECYCLE) if commit.id in own else commit for commit in commits)


def _bringing(commit: Any, branch_of: Mapping[str, str]) -> BringingCommit:
    return BringingCommit(
        commit.id, branch_of.get(commit.id, ""), commit.committer, commit.creation_date, dict(commit.metadata)
    )


def _known_metaranges(known: KnownHeads) -> dict[str, Sequence[str]]:
    ids = known["ranges"].column("id").to_pylist()
    rows = known["metaranges"]
    return {
        metarange: [ids[place] for place in places]
        for metarange, places in zip(rows.column("id").to_pylist(), rows.column("places").to_pylist(), strict=True)
    }


def _read_metaranges(
    step: Step[Any], metarange_ids: Sequence[str], records: dict[str, RangeRecord], ranges_of: dict[str, Sequence[str]]
) -> None:
    files = LiveFiles(step.repository.store, step.repository.namespace, step.plan.slice_window)
    for metarange_id, ranges in zip(
        metarange_ids, work_ahead(files.metarange, metarange_ids, _METARANGES_AT_ONCE), strict=True
    ):
        each = [record for batch in ranges.to_batches() for record in records_of(batch)]
        records.update((record.id, record) for record in each)
        ranges_of[metarange_id] = [record.id for record in each]


def _tasks(
    all_parts: Collection[HeadPart],
    known_parts: Container[str],
    records_before: Mapping[str, RangeRecord],
    cuts: Sequence[bytes],
    records: Mapping[str, RangeRecord],
    ranges_of: Mapping[str, Sequence[str]],
    new: NewCommits,
) -> list[PartTask]:
    """Tasks to read changed parts.

    Args:
        known_parts: ids of the unchanged parts, among others.
        records_before: ranges of the heads that the earlier attribution saw, by id.
        records: all ranges of heads and new commits, by id.
    """
    parts = [part for part in all_parts if part.id not in known_parts]
    before = {part.interval: part.ranges for part in cut_into_parts(records_before.values(), cuts).values()}
    commits: dict[str, int] = {}
    for place, commit in enumerate(new.commits):
        for range_id in ranges_of[commit.metarange_id] if commit.metarange_id else ():
            commits.setdefault(range_id, place)
    of_parts = {record.id for part in parts for record in part.ranges}
    passing = [records[range_id] for range_id in commits if range_id not in of_parts and range_id not in records_before]
    tasks = []
    for part in parts:
        ids = {record.id for record in part.ranges}
        least, greatest = min(each.min_key for each in part.ranges), max(each.max_key for each in part.ranges)
        earlier = before.get(part.interval, ())
        near = tuple(each for each in passing if each.min_key <= greatest and each.max_key >= least)
        tasks.append(
            PartTask(
                part.id,
                part.ranges,
                tuple(record for record in earlier if record.id not in ids),
                frozenset(record.id for record in earlier if record.id in ids),
                {each: commits[each] for each in (*ids, *(record.id for record in near)) if each in commits},
                near,
            )
        )
    # Addresses that leave an interval may come to another one.
    intervals = {part.interval for part in all_parts}
    gone = ((interval, ranges) for interval, ranges in before.items() if interval not in intervals)
    return [*tasks, *(PartTask(f"{interval}-gone", (), ranges) for interval, ranges in gone)]


def _range_table(parts: Mapping[str, HeadPart]) -> pa.Table:
    rows = [
        (record.id, record.min_key, record.max_key, record.count, record.estimated_size, id_)
        for id_, part in parts.items()
        for record in part.ranges
    ]
    return pa.table([[*column] for column in zip(*rows, strict=True)] or [[]] * 6, schema=PART_RANGES)


def _metarange_table(ranges: pa.Table, ranges_of: Mapping[str, Sequence[str]]) -> pa.Table:
    at = {range_id: place for place, range_id in enumerate(ranges.column("id").to_pylist())}
    places = [[at[range_id] for range_id in of_each] for of_each in ranges_of.values()]
    return pa.table([[*ranges_of], places], schema=METARANGES)


@dataclass(frozen=True)
class _Totals:
    """Objects of heads by the set of branches that hold them.

    Attributes:
        holders: distinct sets of branches, as bits.
        holder: place of the set in `holders`, for each sum.
        folders: folder of each sum; null in sums by month.
        months: months of each sum since January 1970, in sums by month.
        unlisted: true for sums by month of slices that the run did not list.
        amounts: objects and bytes of each sum; they may be negative.
    """

    holders: Sequence[int]
    holder: npt.NDArray[np.int64]
    folders: pa.ChunkedArray
    months: pa.ChunkedArray
    unlisted: npt.NDArray[np.bool_]
    amounts: npt.NDArray[np.int64]

    @classmethod
    def add_up(
        cls,
        branches_of: Mapping[str, int],
        parts: Mapping[str, HeadPart],
        sums: pa.Table,
        spread: pa.Table,
        cutoff: datetime,
    ) -> "_Totals":
        """Replaces ranges by their branches, and counts spread addresses once.

        Args:
            branches_of: branches by range, as bits.
            sums: SUMS of all parts.
            spread: addresses in several parts (SPREAD).
            cutoff: cutoff of the run, UTC.
        """
        places: dict[int, int] = {}
        of_pattern: dict[tuple[str, bytes], int] = {}

        def holders_of(part: str, pattern: bytes) -> int:
            if (bits := of_pattern.get((part, pattern))) is None:
                numbers, bits = int.from_bytes(pattern, "little"), 0
                for number, record in enumerate(parts[part].ranges):
                    if numbers >> number & 1:
                        bits |= branches_of[record.id]
                of_pattern[part, pattern] = bits
            return bits

        def place_of(bits: int) -> int:
            return places.setdefault(bits, len(places))

        keys = zip(sums.column("part").to_pylist(), sums.column("pattern").to_pylist(), strict=True)
        holder = [place_of(holders_of(*key)) for key in keys]
        corrections = [
            (place_of(bits), folder, month, address, sign, sign * size)
            for bits, folder, month, address, sign, size in _spread_once(spread, holders_of)
        ]
        columns = [[*column] for column in zip(*corrections, strict=True)] or [[]] * 6
        amounts = np.stack([sums.column(name).to_numpy() for name in ("objects", "bytes")], axis=1)
        more = np.array(columns[4:], np.int64).T.reshape(-1, 2)
        unlisted = [
            unlisted_slices(names, cutoff).is_valid().to_numpy(zero_copy_only=False)
            for names in (
                sums.column("slice").fill_null("").combine_chunks(),
                slices_of(pa.array(columns[3], pa.string())),
            )
        ]
        return cls(
            [*places],
            np.array([*holder, *columns[0]], np.int64),
            pa.chunked_array([*sums.column("folder").chunks, pa.array(columns[1], pa.string())], pa.string()),
            pa.chunked_array([*sums.column("month").chunks, pa.array(columns[2], pa.int32())], pa.int32()),
            np.concatenate(unlisted),
            np.concatenate([amounts, more]),
        )

    @property
    def by_month(self) -> npt.NDArray[np.bool_]:
        """True for sums by month, which have each object once."""
        flags: npt.NDArray[np.bool_] = self.months.is_valid().to_numpy()
        return flags

    def add(self, among: npt.NDArray[np.bool_]) -> Amount:
        """The sum of all objects in the chosen sums."""
        return Amount(*self.amounts[among].sum(axis=0).tolist())

    def rows(self, branches: Sequence[str]) -> list[HoldingsRow]:
        """Rows by branch, path and age.

        Args:
            branches: the branches in order of their bits.
        """
        width = max(1, -(-len(branches) // 8))
        packed = b"".join(bits.to_bytes(width, "little") for bits in self.holders)
        flags = np.unpackbits(np.frombuffer(packed, np.uint8).reshape(-1, width), axis=1, bitorder="little")
        is_alone = flags.sum(axis=1) == 1
        by_month = self.by_month
        of_set = np.zeros((len(self.holders), 2), np.int64)
        np.add.at(of_set, self.holder[by_month], self.amounts[by_month])
        rows: list[HoldingsRow] = []
        for sharing, among in ((Sharing.ALONE, is_alone), (Sharing.SHARED, ~is_alone)):
            of_branch = flags[among].astype(np.int64).T @ of_set[among]
            rows += _rows_of(Dimension.BRANCH, sharing, zip(branches, of_branch.tolist(), strict=False))
        alone_rows = is_alone[self.holder]
        for sharing, among in ((Sharing.ALONE, ~by_month & alone_rows), (Sharing.SHARED, ~by_month & ~alone_rows)):
            rows += _rows_of(Dimension.PATH, sharing, self._sum_by(self.folders, among))
        ages = ((_month_name(int(month)), amounts) for month, amounts in self._sum_by(self.months, by_month))
        return [*rows, *_rows_of(Dimension.AGE, None, ages)]

    def _sum_by(self, column: pa.ChunkedArray, among: npt.NDArray[np.bool_]) -> Iterable[tuple[Any, Sequence[int]]]:
        """Objects and bytes by the values of a column, in the chosen sums."""
        objects, sizes = self.amounts[among].T
        rows = pa.table({"key": column.filter(pa.array(among)), "objects": objects, "bytes": sizes})
        added = rows.group_by("key").aggregate([("objects", "sum"), ("bytes", "sum")]).sort_by("key")
        for row in added.to_pylist():
            yield row["key"], (row["objects_sum"], row["bytes_sum"])


def _spread_once(
    spread: pa.Table, holders_of: Callable[[str, bytes], int]
) -> Iterable[tuple[int, str | None, int | None, str, int, int]]:
    """Corrections for addresses in several parts: holders, folder or month, address, sign and bytes.

    Each part has counted such an address, and each folder of it. These counts are taken back, and the address counts
    once, with the holders of all parts.
    """
    by_address: dict[str, list[dict[str, Any]]] = {}
    for row in spread.to_pylist():
        by_address.setdefault(row["address"], []).append(row)
    for address, rows in by_address.items():
        holders = 0
        for part, pattern, month, size in {(row["part"], row["pattern"], row["month"], row["bytes"]) for row in rows}:
            bits = holders_of(part, pattern)
            holders |= bits
            yield bits, None, month, address, -1, size
        for row in rows:
            yield holders_of(row["part"], row["pattern"]), row["folder"], None, address, -1, row["bytes"]
        size = max(row["bytes"] for row in rows)
        yield holders, None, max(row["month"] for row in rows), address, 1, size
        for folder in {row["folder"] for row in rows}:
            yield holders, folder, None, address, 1, size


def _rows_of(
    dimension: str, sharing: Sharing | None, amounts: Iterable[tuple[str, Sequence[int]]]
) -> Iterable[HoldingsRow]:
    """Rows with objects."""
    return (
        HoldingsRow(dimension, key, sharing, HoldingState.HEAD, objects, size)
        for key, (objects, size) in amounts
        if objects
    )


def _month_name(month: int) -> str:
    return f"{_EPOCH + month // 12:04}-{month % 12 + 1:02}"


def _commit_rows(
    brought: pa.Table, commits: Sequence[BringingCommit], metadata_keys: Sequence[str]
) -> Iterable[HoldingsRow]:
    """Rows of objects by the commit that brought them, its committer, and its metadata."""
    places = brought.column("commit").to_numpy()
    amounts = np.zeros((len(commits), 2), np.int64)
    np.add.at(amounts, places, np.stack([np.ones(len(places), np.int64), brought.column("bytes").to_numpy()], axis=1))
    of_key: dict[tuple[str, str], list[int]] = {}
    for commit, (objects, size) in zip(commits, amounts.tolist(), strict=True):
        keys = [
            (f"{METADATA_DIMENSION}{name}", commit.metadata[name]) for name in metadata_keys if name in commit.metadata
        ]
        for key in ((Dimension.COMMIT, commit.id), (Dimension.COMMITTER, commit.committer), *keys):
            total = of_key.setdefault(key, [0, 0])
            total[0] += objects
            total[1] += size
    for (dimension, name), total in of_key.items():
        yield from _rows_of(dimension, None, [(name, total)])
