"""Ranges and metaranges that a step need not read, by the facts that it believes.

A run by retention rules asks for the ranges of every commit, live or expired: when it marks, again before it deletes,
and in the flow `committed` when it begins, too. Each metarange is read once. Of the ranges of branch heads only those
are read for candidates that may have an entry of a candidate's size.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import spread, spread_by_weight, work_ahead
from lakefs_gc_assets.collector.live import facts, facts_of_ranges
from lakefs_gc_assets.collector.live.facts import FactFile, FactKind, FactsFolder
from lakefs_gc_assets.collector.live.facts_of_ranges import (
    HAS_SIZES,
    HASHES,
    METARANGES,
    METARANGES_LOOKED_UP,
    NAMED_RANGES,
    SIZES,
)
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords, each_once
from lakefs_gc_assets.collector.live.references import ROWS_MERGED, References
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage.interface import OpensStore

KINDS = (SIZES, HASHES, METARANGES)
VALUES_READ_HERE = 8_000_000
"""Values of facts that this process looks at: that takes less time than for tasks to begin."""
HEADS_WORTH_RECORDING = 5_000
"""Ranges that branch heads name, each head's counted, from which on they are recorded: some 100 bytes are read for each
otherwise."""
_HEADS_AT_ONCE = 8
_VALUES_OF_A_ROW = 16
"""A row of facts about metaranges takes as long to be read as so many values of others."""
_OF_OTHERS = "others"
"""Folder, among those of a run's attempts, of the facts of other runs that it merged and does not believe itself."""
_PROBLEMS = pa.schema([pa.field("problem", pa.string(), nullable=False)])


def own_folder(step: Step[R], kind: FactKind) -> FactsFolder:
    """The folder in which this attempt records facts."""
    return FactsFolder(step.repository.opener, kind.folder(step.plan.run_id, step.plan.attempt))


def find_files(step: Step[R], kind: FactKind) -> list[FactFile]:
    """The files of facts that a step believes: those of its own attempt, or of all runs if it builds on another one.

    A warning says how many files another version of the collector wrote.
    """
    folder = own_folder(step, kind).key if step.plan.base_run is None else kind.root
    others: list[str] = []
    files = facts.files_of(kind, facts.list_files(step.repository.store, folder), others.append)
    if others:
        step.warn(
            f"{len(others)} files of facts ({kind.what}) are of another version and are not used; what they are about "
            f"is read: {others[0]}"
        )
    return files


def look_up_files(
    step: Step[R],
    kind: FactKind,
    files: Sequence[FactFile],
    look_up: Callable[[Iterable[FactFile]], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    weight: int = 1,
) -> pa.Table:
    """Looks up facts in files: in this process where they have few values, else in tasks.

    A warning says how many files cannot be used; they give no rows.

    Args:
        look_up: reads some files together.
        schema: of its rows; the column `damage` says what is wrong with a file.
        weight: values of other facts that take as long to be read as one of these.
    """
    if weight * sum(file.values for file in files) <= VALUES_READ_HERE:
        rows = pa.Table.from_batches(look_up(files), schema)
    else:
        groups = [[group] for group in spread_by_weight(files, step.engine.tasks, lambda file: file.values)]
        rows = step.engine.collect(step.engine.read(groups, look_up, schema))
    damage = pc.drop_null(rows.column("damage")).to_pylist()
    if damage:
        step.warn(
            f"{len(damage)} files of facts ({kind.what}) cannot be used, and what they are about is read: {damage[0]}"
        )
    return rows.filter(pc.is_null(rows.column("damage")))


def find_ranges(step: Step[R], repository: OpenRepository, metarange_ids: Sequence[str]) -> RangeRecords:
    """The distinct ranges of a repository's metaranges, as `References.range_records` gives them.

    Those of other repositories than the step's own are not recorded.

    Raises CorruptFile where a metarange that is read is missing or damaged.
    """
    references = References.from_step(step, repository)
    if not step.plan.flow.by_retention or repository is not step.repository or not metarange_ids:
        return references.range_records(metarange_ids)
    look_up = partial(_look_up_metaranges, step.repository.opener, IdSet(metarange_ids))
    looked_up = look_up_files(
        step, METARANGES, find_files(step, METARANGES), look_up, METARANGES_LOOKED_UP, _VALUES_OF_A_ROW
    )
    known = IdSet(looked_up.filter(pc.is_null(looked_up.column("min_key"))).column("id").to_pylist())
    unread = known.lacking(metarange_ids)
    if known:
        step.log(f"{len(metarange_ids) - len(unread):,} of {len(metarange_ids):,} metaranges are not read again")
    read = references.range_records(unread, own_folder(step, METARANGES).key)
    rows = pa.concat_tables([facts_of_ranges.select_ranges(looked_up), read.rows])
    return RangeRecords.of_rows(each_once(rows))


def _look_up_metaranges(opener: OpensStore, wanted: IdSet, files: Iterable[FactFile]) -> Iterator[pa.RecordBatch]:
    return facts_of_ranges.look_up_metaranges(opener.open(), wanted, files)


def ranges_of_heads(
    step: Step[R], repository: OpenRepository, metarange_ids: Collection[str], *, record: bool
) -> Iterator[tuple[str, pa.Table]]:
    """Each metarange of branch heads with its ranges (RANGES).

    Args:
        record: whether those that are read are recorded, where the heads have many ranges.
    Raises:
        CorruptFile: a metarange that is read is missing or damaged.
    """
    store, unread, named = step.repository.store, set(metarange_ids), 0
    for file in find_files(step, METARANGES) if unread else ():
        try:
            rows = facts_of_ranges.read_metaranges(store, file)
        except CorruptFile as damage:
            step.warn(f"facts about branch heads cannot be used, and these heads are read: {facts.describe(damage)}")
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
            facts_of_ranges.put_metaranges(store, own_folder(step, METARANGES).key, facts_of_ranges.join_runs(rows))
        except StorageError as error:
            step.warn(f"the ranges of branch heads are not recorded, and the next run reads them: {error}")


def select_ranges(step: Step[R], range_ids: Collection[str], sizes: pa.Int64Array) -> list[str]:
    """The ranges that may have an entry of one of these sizes, in order.

    A range is left out only if its sizes are known and none of these is among them.
    """
    files = find_files(step, SIZES) if range_ids else []
    look_up = partial(_look_up_sizes, step.repository.opener, frozenset(range_ids), sizes)
    rows = look_up_files(step, SIZES, files, look_up, HAS_SIZES)
    known: dict[str, bool] = {}
    for range_id, holds in zip(rows.column("range_id").to_pylist(), rows.column("holds").to_pylist(), strict=True):
        known[range_id] = known.get(range_id, False) or holds
    chosen = sorted(range_id for range_id in range_ids if known.get(range_id, True))
    unknown = sum(range_id not in known for range_id in chosen)
    step.log(
        f"{len(chosen):,} of {len(range_ids):,} ranges of branch heads may have an entry of a candidate's size; the "
        f"sizes of {unknown:,} of them are not known"
    )
    return chosen


def _look_up_sizes(
    opener: OpensStore, wanted: frozenset[str], sizes: pa.Int64Array, files: Iterable[FactFile]
) -> Iterator[pa.RecordBatch]:
    return facts_of_ranges.look_up_sizes(opener.open(), wanted, sizes, files)


def tidy(step: Step[R]) -> None:
    """Deletes the facts that a run which looked at everything did not meet, and merges small files into few.

    A run that believes its own facts alone keeps those of others apart: it asks again before it deletes.

    Only for runs that may delete. What fails is warned of: files that cannot be deleted stay, and later runs that build
    on another one believe them, as they believed them before. No live object can become garbage by this. An old fact is
    as true as on its first day, since the id of a range is a hash of what it holds: it says of the range what reading
    it would say. Facts are deleted to save space, and not because they could become wrong.
    """
    store, plan = step.repository.store, step.plan
    problems: list[str] = []
    try:
        stored = facts.list_files(store, facts.ROOT)
        if plan.base_run is None and plan.flow is not Flow.COMMITTED:
            stored = facts.drop_older(store, stored, plan.run_id, plan.attempt)
        for kind in KINDS:
            own, files = own_folder(step, kind), facts.files_of(kind, stored)
            if plan.base_run is None:
                others = [file for file in files if not file.key.startswith(own.key)]
                files = [file for file in files if file.key.startswith(own.key)]
                problems += _merge_small(step, kind, others, replace(own, key=kind.folder(plan.run_id, _OF_OTHERS)))
            problems += _merge_small(step, kind, files, own)
    except StorageError as error:
        step.warn(
            f"facts of earlier runs could not be tidied up: {error}. They stay, are still true, and take up space: let "
            f"runs that sweep delete below {facts.ROOT}"
        )
    if problems:
        step.warn(f"{len(problems)} files of facts were damaged; what they are about is read again: {problems[0]}")


def _merge_small(step: Step[R], kind: FactKind, files: Sequence[FactFile], into: FactsFolder) -> list[str]:
    """Merges small files; returns what is wrong with those that are lost. Raises StorageError."""
    groups = [group for group in facts.group(files) if len(group) > 1]
    merge = partial(_merge, into, kind)
    if sum(file.values for group in groups for file in group) <= VALUES_READ_HERE:
        return [
            problem for group in groups for batch in merge(group) for problem in batch.column("problem").to_pylist()
        ]
    problems: list[str] = (
        step.engine.collect(step.engine.read(spread(groups, step.engine.tasks), merge, _PROBLEMS)).column(0).to_pylist()
    )
    return problems


def _merge(into: FactsFolder, kind: FactKind, files: Sequence[FactFile]) -> Iterator[pa.RecordBatch]:
    problems = facts.merge(kind, into.opener.open(), into.key, files)
    yield pa.record_batch([pa.array(problems, pa.string())], schema=_PROBLEMS)
