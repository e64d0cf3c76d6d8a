"""References: ranges of metaranges, addresses of ranges and of uncommitted data, and ranges that no commit names.

Facts save reading, so each metarange is read only once. A run by retention rules needs the ranges
of every commit, live or expired: when it marks and again before it deletes. In the flow `committed` it also needs them
when it begins.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.commits import list_ids
from lakefs_gc_assets.collector.engine.port import Engine, Item, R
from lakefs_gc_assets.collector.engine.work import (
    merge,
    runs_by_weight,
    spread,
    spread_by_weight,
    work_ahead,
    youngest_of_each,
)
from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES, LISTED, LIVE, RANGES
from lakefs_gc_assets.collector.live import facts, facts_of_ranges, live_files
from lakefs_gc_assets.collector.live.facts import FactFile, FactKind, FactsFolder, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import (
    HAS_SIZES,
    HASHES,
    METARANGES,
    METARANGES_LOOKED_UP,
    NAMED_RANGES,
    SIZES,
    SUMS,
    record_hashes,
    sum_up,
)
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords, each_once
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, StorageError, counted
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore, read_ahead

FILES_AHEAD = 4
"""Metaranges that a task requests at once: a small file takes most of its time in waiting for the response."""
ROWS_MERGED = 65_536
"""A task that reads metaranges drops duplicate ranges whenever it has this many new rows."""
_METARANGES_RECORDED = 16
"""Minimum metaranges that a task records, if there are as many: each task writes a file."""
FACT_KINDS = (SIZES, HASHES, METARANGES)
VALUES_READ_HERE = 8_000_000
"""Maximum values of facts that the driver looks up itself: that takes less time than starting tasks."""
HEADS_WORTH_RECORDING = 5_000
"""Minimum ranges in branch heads, each head's counted, to record them: without facts, each takes reading some 100
bytes.
"""
_HEADS_AT_ONCE = 8
_VALUES_OF_A_ROW = 16
"""Values of other facts that take as long to read as one row of facts about metaranges."""
_OF_OTHERS = "others"
"""Folder, beside the folders of a run's attempts, of other runs' facts that it merged but does not use itself."""
_PROBLEMS = pa.schema([pa.field("problem", pa.string(), nullable=False)])


@dataclass(frozen=True)
class References(Generic[R]):
    """Reads references of a repository.

    Attributes:
        opener: opens the store that has the files.
        namespace: the namespace that addresses are relative to.
        tasks: number of tasks that read files.
    """

    engine: Engine[R]
    opener: OpensStore
    namespace: Namespace
    window_size: WindowSize
    tasks: int

    @classmethod
    def from_step(cls, step: Step[R], repository: OpenRepository | None = None) -> "References[R]":
        """A reader of references, with as many tasks as `collection.range_partitions` says.

        Args:
            repository: the repository whose files are read, by default the step's. Addresses are relative to the
                storage namespace of the step's repository in either case.
        """
        opener, tasks = (repository or step.repository).opener, step.tasks(step.repository.settings.range_partitions)
        return cls(step.engine, opener, step.repository.namespace, step.plan.slice_window, tasks)

    def range_records(self, metarange_ids: Sequence[str], facts_into: str | None = None) -> RangeRecords:
        """The distinct ranges of metaranges. Two counts for one id give two records, and reading the range fails.

        Consecutive metaranges are read by one task, which returns the ranges that they share once.

        Args:
            facts_into: folder, with a trailing slash, to record the metaranges' ranges in; None to record none.
        """
        if facts_into is None:
            return self._records(metarange_ids, partial(read_each_once, LiveFiles.metarange), self.tasks)
        tasks = min(self.tasks, -(-len(metarange_ids) // _METARANGES_RECORDED))
        return self._records(metarange_ids, partial(_read_and_record, facts_into, self.opener), tasks)

    def unnamed_records(self, sizes: Mapping[str, int]) -> RangeRecords:
        """The distinct ranges among files that no commit names, and of the metaranges among them, with sizes set to 0.

        As with `range_records`, reading a range fails if one id has two counts.

        Args:
            sizes: file names, each with the file's size in bytes.
        """
        return self._records([*sizes.items()], partial(read_each_once, LiveFiles.unnamed), self.tasks)

    def _records(
        self, files: Sequence[Item], ranges_of: Callable[[LiveFiles, Sequence[Item]], pa.Table], tasks: int
    ) -> RangeRecords:
        """The distinct ranges (RANGES) that a function finds in each task's share of files."""
        if not files:
            return RangeRecords(RANGES.empty_table())
        ranges = self.engine.distinct(self.of_groups(files, ranges_of, RANGES, tasks))
        with self.engine.name_work(f"read ranges of {counted(len(files), 'metadata files')}"):
            return RangeRecords.of_rows(self.engine.collect(ranges))

    def of_groups(
        self,
        files: Sequence[Item],
        table: Callable[[LiveFiles, Sequence[Item]], pa.Table],
        schema: pa.Schema,
        tasks: int | None = None,
    ) -> R:
        """Rows that a function reads from each task's share of files; a share is consecutive files.

        Args:
            tasks: number of tasks; by default as many as read other files.
        """
        groups = [[group] for group in runs_by_weight(files, tasks or self.tasks, lambda file: 1)]
        return self.engine.read(groups, self._each(table), schema)

    def committed(self, ranges: RangeRecords, into: Sequence[FactsFolder] = ()) -> R:
        """The addresses of ranges (LIVE), distinct within each range.

        Args:
            into: folders to record the sizes of entries and the hashes of addresses in.
        """
        return self.of_ranges(ranges, LiveFiles.range, LIVE, into)

    def sums(self, ranges: RangeRecords) -> R:
        """The number of addresses in each range, and the sum of their hashes (SUMS)."""
        return self.of_ranges(ranges, lambda files, record: sum_up(record, files.range(record)), SUMS)

    def entries(self, ranges: RangeRecords, held: RangeRecords | None = None) -> R:
        """Objects of ranges (LISTED), each address once with its youngest entry.

        Args:
            held: ranges whose addresses are excluded first; None for none.
        """
        rows = self.of_ranges(ranges, LiveFiles.entries, LISTED)
        if held:
            rows = self.engine.without(rows, self.committed(held), count=ranges.entries + held.entries)
        return self.engine.map_by_address(rows, youngest_of_each, LISTED, ranges.entries)

    def of_ranges(
        self,
        ranges: RangeRecords,
        table: Callable[[LiveFiles, RangeRecord], pa.Table],
        schema: pa.Schema,
        into: Sequence[FactsFolder] = (),
    ) -> R:
        """Rows that a function reads from each range.

        Args:
            into: folders to record facts in. Hashes can be recorded only if the rows are addresses (LIVE).
        """
        namespace = self.namespace.uri

        def read_each(files: LiveFiles, packed: bytes, hashes: FactWriter | None) -> Iterator[pa.Table]:
            for record in live_files.unpack(packed):
                rows = table(files, record)
                if hashes is not None:
                    record_hashes(hashes, record, rows, namespace)
                yield rows

        return self.of_parts(ranges.rows, read_each, schema, into)

    def of_parts(
        self,
        ranges: pa.Table,
        read_part: Callable[[LiveFiles, bytes, FactWriter | None], Iterator[pa.Table]],
        schema: pa.Schema,
        into: Sequence[FactsFolder] = (),
    ) -> R:
        """Rows that a function reads from each task's ranges. A task that is interrupted records fewer facts.

        Args:
            ranges: RANGES, perhaps with further columns, in order of their keys.
            read_part: reads the ranges, packed by `live_files.pack`; also gets the writer of hashes, if recorded.
            into: folders to record facts in.
        """
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read_ranges(packed: bytes) -> Iterator[pa.RecordBatch]:
            writers = {folder.kind.name: folder.writer() for folder in into}
            with read_ahead(opener.open(), live_files.files_of(packed)) as store:
                files = LiveFiles(store, namespace, window_size, writers.get(SIZES.name))
                for rows in read_part(files, packed, writers.get(HASHES.name)):
                    yield from rows.to_batches()
            for writer in writers.values():
                writer.put()

        return self.engine.read([[packed] for packed in live_files.pack(ranges, self.tasks)], read_ranges, schema)

    def of_metadata_files(self, names: Sequence[str]) -> R:
        """The addresses of all ranges among the files of the metadata folder (LIVE), distinct within each range."""
        return self.of_each(names, LiveFiles.metadata_file, LIVE)

    def uncommitted(self, files: Sequence[str]) -> R:
        """The addresses of files of uncommitted data (LIVE), distinct within each file; the driver reads a single file.

        A server ends a file after some 20 MB, and reading it takes less time than starting tasks.
        """
        if len(files) == 1:
            return self.engine.table(pa.Table.from_batches(self._each(LiveFiles.uncommitted)(files[0]), LIVE))
        return self.of_each(files, LiveFiles.uncommitted, LIVE)

    def head_entries(self, range_ids: Sequence[str], sizes: pa.Int64Array) -> R:
        """Entries of branch heads' ranges whose size is among the given ones (HEAD_ENTRIES)."""
        return self.of_each(range_ids, lambda files, range_id: files.head_entries(range_id, sizes), HEAD_ENTRIES)

    def of_each(self, items: Sequence[Item], table: Callable[[LiveFiles, Item], pa.Table], schema: pa.Schema) -> R:
        """Rows that a function reads from each file or range."""
        return self.engine.read(spread(items, self.tasks), self._each(table), schema)

    def _each(self, table: Callable[[LiveFiles, Item], pa.Table]) -> Callable[[Item], Iterator[pa.RecordBatch]]:
        opener, namespace, window_size = self.opener, self.namespace, self.window_size

        def read_metadata(item: Item) -> Iterator[pa.RecordBatch]:
            yield from table(LiveFiles(opener.open(), namespace, window_size), item).to_batches()

        return read_metadata


def read_each_once(table: Callable[[LiveFiles, Item], pa.Table], files: LiveFiles, names: Sequence[Item]) -> pa.Table:
    """The distinct rows of some files.

    Args:
        table: reads the rows of a file.
    """
    return merge(work_ahead(partial(table, files), names, FILES_AHEAD), each_once, ROWS_MERGED)


def _read_and_record(facts_into: str, opener: OpensStore, files: LiveFiles, metarange_ids: Sequence[str]) -> pa.Table:
    """The distinct ranges of metaranges; also records the ranges in a folder of a store."""

    def named(place: int) -> pa.Table:
        metarange_id = metarange_ids[place]
        return facts_of_ranges.name_ranges(metarange_id, place, files.metarange(metarange_id))

    tables = work_ahead(named, range(len(metarange_ids)), FILES_AHEAD)
    rows = merge(tables, facts_of_ranges.join_runs, ROWS_MERGED)
    facts_of_ranges.put_metaranges(opener.open(), facts_into, rows)
    return each_once(facts_of_ranges.select_ranges(rows))


def facts_folder(step: Step[R], kind: FactKind) -> FactsFolder:
    """The folder in which this attempt records facts."""
    return FactsFolder(kind, step.repository.opener, kind.folder(step.plan.run_id, step.plan.attempt))


def find_fact_files(step: Step[R], kind: FactKind, *, of_all_runs: bool | None = None) -> list[FactFile]:
    """The files of facts that a step uses: of its own attempt, or of all runs.

    A warning gives the number of files by another version of the collector.

    Args:
        of_all_runs: by default as the plan says.
    """
    uses_all = step.plan.uses_facts_of_all_runs if of_all_runs is None else of_all_runs
    folder = kind.root if uses_all else facts_folder(step, kind).key
    others: list[str] = []
    files = facts.files_of(kind, facts.list_files(step.repository.store, folder), others.append)
    if others:
        step.warn(
            f"{counted(len(others), 'files')} of facts ({kind.what}) have another version and cannot be used; the run "
            f"reads the data again: {others[0]}"
        )
    return files


def look_up_facts(
    step: Step[R],
    kind: FactKind,
    files: Sequence[FactFile],
    look_up: Callable[..., Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    weight: int = 1,
) -> pa.Table:
    """Looks up facts in files: in the driver if they have few values, or else in tasks.

    A warning gives the number of unusable files, which yield no rows.

    Args:
        look_up: reads a group of files; gets the arguments `store` and `files`.
        schema: schema of its rows; the column `damage` describes the damage of a file.
        weight: values of other facts that take as long to read as one value here.
    """
    opener = step.repository.opener

    def read(group: Sequence[FactFile]) -> Iterator[pa.RecordBatch]:
        return look_up(store=opener.open(), files=group)

    if weight * sum(file.values for file in files) <= VALUES_READ_HERE:
        rows = pa.Table.from_batches(read(files), schema)
    else:
        groups = [[group] for group in spread_by_weight(files, step.engine.tasks, lambda file: file.values)]
        rows = step.engine.collect(step.engine.read(groups, read, schema))
    damage = pc.drop_null(rows.column("damage")).to_pylist()
    if damage:
        step.warn(
            f"{counted(len(damage), 'files')} of facts ({kind.what}) cannot be used; the run reads the data again: "
            f"{damage[0]}"
        )
    return rows.filter(pc.is_null(rows.column("damage")))


def find_ranges(
    step: Step[R], repository: OpenRepository, metarange_ids: Sequence[str], *, expired: bool = False
) -> RangeRecords:
    """The distinct ranges of a repository's metaranges, as `References.range_records` gives them.

    Ranges of other repositories than the step's own are not recorded.

    Args:
        expired: True if only expired commits have these metaranges. A run with a base run then uses the facts of all
            runs.

    Raises:
        CorruptFile: a metarange that is read is missing or damaged.
    """
    references = References.from_step(step, repository)
    uses_facts = step.plan.flow.by_retention or step.plan.limited
    if not uses_facts or repository is not step.repository or not metarange_ids:
        return references.range_records(metarange_ids)
    look_up = partial(facts_of_ranges.look_up_metaranges, wanted=IdSet(metarange_ids))
    of_all_runs = step.plan.uses_facts_of_all_runs or (expired and step.plan.base_run is not None)
    files = find_fact_files(step, METARANGES, of_all_runs=of_all_runs)
    looked_up = look_up_facts(step, METARANGES, files, look_up, METARANGES_LOOKED_UP, _VALUES_OF_A_ROW)
    known = IdSet(looked_up.filter(pc.is_null(looked_up.column("min_key"))).column("id").to_pylist())
    unread = known.lacking(metarange_ids)
    if known:
        step.log(
            f"{len(metarange_ids) - len(unread):,} of {counted(len(metarange_ids), 'metaranges are')} not read again"
        )
    read = references.range_records(unread, facts_folder(step, METARANGES).key)
    rows = pa.concat_tables([facts_of_ranges.select_ranges(looked_up), read.rows])
    return RangeRecords.of_rows(each_once(rows))


def ranges_of_heads(
    step: Step[R], repository: OpenRepository, metarange_ids: Collection[str], *, record: bool
) -> Iterator[tuple[str, pa.Table]]:
    """Yields each metarange of branch heads with its ranges (RANGES).

    Args:
        record: True to record the metaranges that are read, if the heads have many ranges.

    Raises:
        CorruptFile: a metarange that is read is missing or damaged.
    """
    store, unread, named = step.repository.store, set(metarange_ids), 0
    for file in find_fact_files(step, METARANGES) if unread else ():
        try:
            rows = facts_of_ranges.read_metaranges(store, file)
        except CorruptFile as damage:
            step.warn(f"facts about branch heads cannot be used; reading these heads again: {facts.describe(damage)}")
            continue
        for metarange_id, ranges in facts_of_ranges.split_by_metarange(rows, unread):
            unread.discard(metarange_id)
            named += ranges.num_rows
            yield metarange_id, ranges
    files = LiveFiles(repository.store, step.repository.namespace, step.plan.slice_window)
    ordered, rows, joined = sorted(unread), NAMED_RANGES.empty_table(), ROWS_MERGED
    for place, ranges in enumerate(work_ahead(files.metarange, ordered, _HEADS_AT_ONCE)):
        named += ranges.num_rows
        yield ordered[place], ranges
        rows = pa.concat_tables([rows, facts_of_ranges.name_ranges(ordered[place], place, ranges)])
        if rows.num_rows >= 2 * joined:
            rows = facts_of_ranges.join_runs(rows)
            joined = max(ROWS_MERGED, rows.num_rows)
    if record and ordered and named >= HEADS_WORTH_RECORDING:
        try:
            facts_of_ranges.put_metaranges(store, facts_folder(step, METARANGES).key, facts_of_ranges.join_runs(rows))
        except StorageError as error:
            step.warn(f"the ranges of branch heads could not be recorded; the next run reads them again: {error}")


def select_ranges_by_size(step: Step[R], range_ids: Collection[str], sizes: pa.Int64Array) -> list[str]:
    """The ranges that may have an entry with one of these sizes, in order.

    A range is excluded only if its sizes are known and none of the wanted sizes is among them.
    """
    look_up = partial(facts_of_ranges.look_up_sizes, wanted=frozenset(range_ids), sizes=sizes)
    rows = look_up_facts(step, SIZES, find_fact_files(step, SIZES) if range_ids else [], look_up, HAS_SIZES)
    known: dict[str, bool] = {}
    for range_id, holds in zip(rows.column("range_id").to_pylist(), rows.column("holds").to_pylist(), strict=True):
        known[range_id] = known.get(range_id, False) or holds
    chosen = sorted(range_id for range_id in range_ids if known.get(range_id, True))
    unknown = sum(range_id not in known for range_id in chosen)
    step.log(
        f"check for hidden staged entries: reading {len(chosen):,} of {counted(len(range_ids), 'ranges')} of branch "
        f"heads, {unknown:,} without recorded sizes"
    )
    return chosen


def tidy_facts(step: Step[R]) -> None:
    """Merges small files of facts. A run without a base run, which recorded its own facts, first deletes older ones.

    A run limited to some windows keeps them, since it reads only ranges that the run before it did not.

    A run of the flow `committed` reads every metarange, but records no hashes: facts of other kinds stay. A run that
    uses only its own facts about live ranges merges other runs' facts separately, since its recheck looks up facts
    again.

    To be called only in runs that may delete. Failures are warnings: files that cannot be deleted stay, and later runs
    with a base run go on using them. No live object can become garbage by this. An old fact is as true as on its
    first day, since the id of a range is a hash of its content. Facts are deleted to save space, not because they could
    become wrong.
    """
    store, plan = step.repository.store, step.plan
    problems: list[str] = []
    try:
        stored = facts.list_files(store, facts.ROOT)
        if plan.base_run is None and not plan.limited:
            recorded = METARANGES.root if plan.flow is Flow.COMMITTED else facts.ROOT
            renewed = {key: length for key, length in stored.items() if key.startswith(recorded)}
            others = {key: length for key, length in stored.items() if key not in renewed}
            stored = others | facts.drop_older(store, renewed, plan.run_id, plan.attempt)
        for kind in FACT_KINDS:
            own, files = facts_folder(step, kind), facts.files_of(kind, stored)
            if not plan.uses_facts_of_all_runs:
                of_others = [file for file in files if not file.key.startswith(own.key)]
                files = [file for file in files if file.key.startswith(own.key)]
                problems += _merge_small(step, of_others, replace(own, key=kind.folder(plan.run_id, _OF_OTHERS)))
            problems += _merge_small(step, files, own)
    except StorageError as error:
        step.warn(
            f"old files of facts could not be deleted: {error}; they stay valid, but take up space: allow runs that "
            f"sweep to delete below {facts.ROOT}"
        )
    if problems:
        step.warn(
            f"{counted(len(problems), 'files of facts were')} damaged; the run reads their data again: {problems[0]}"
        )


def _merge_small(step: Step[R], files: Sequence[FactFile], into: FactsFolder) -> list[str]:
    """Merges small files; returns the damage of lost files. Raises StorageError."""
    groups = [group for group in facts.group(files) if len(group) > 1]
    merge = partial(_merge_files, into)
    if sum(file.values for group in groups for file in group) <= VALUES_READ_HERE:
        return [
            problem for group in groups for batch in merge(group) for problem in batch.column("problem").to_pylist()
        ]
    problems: list[str] = (
        step.engine.collect(step.engine.read(spread(groups, step.engine.tasks), merge, _PROBLEMS)).column(0).to_pylist()
    )
    return problems


def _merge_files(into: FactsFolder, files: Sequence[FactFile]) -> Iterator[pa.RecordBatch]:
    problems = facts.merge(into.kind, into.opener.open(), into.key, files)
    yield pa.record_batch([pa.array(problems, pa.string())], schema=_PROBLEMS)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """Files of the metadata folder that no commit names and no earlier step read.

    Attributes:
        ids: the files, whichever kind they are: tables of earlier refs dumps are among them.
        records: ranges that are among the files, or that a metarange among them names.
    """

    ids: tuple[str, ...]
    records: RangeRecords


def find_unnamed(
    store: ObjectStore,
    references: References[R],
    read: Set[str],
    expired: Set[str],
    since: datetime | None = None,
) -> Unnamed:
    """Lists the metadata folder, and reads only files that no commit names.

    Ranges that none of the repository's commits names may belong to another repository on the same storage namespace.
    lakeFS allows a second one that is made `bare`, and two servers do not know each other (a migration, a restored
    backup). No list of repositories is sure to name it, but its ranges can always be seen. Failed commits, merges and
    imports leave such ranges as well, and a commit under way writes them before it exists. The origin of a range cannot
    be known, so its objects count as live.

    To be called after commits were listed: everything that was committed until then is in `read` or `expired`.

    Args:
        read: ids of everything that was read before, or is read by this step.
        expired: ids of metaranges and ranges that only expired commits name. They are no sign of another repository.
            Such a range still stays if an unnamed metarange names it, too. The same holds for a branch's compacted
            base.
        since: only files that were last modified at this moment, UTC, or later; None for all.

    Raises:
        CorruptFile: a file is of no known kind, or damaged.
    """
    sizes = list_ids(store, IdSet.from_ids(read) | expired, since)
    return Unnamed(tuple(sizes), references.unnamed_records(sizes).without(read))
