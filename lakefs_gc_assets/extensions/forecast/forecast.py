"""A forecast: bytes that each scenario would free at this moment, and bytes that each branch, tag and folder holds.

It reads the same data as a dry run by retention rules, in the same order. It stores its answer in a folder beside those
of runs, without a plan. Besides that it stores only cached sizes of ranges and the server's own preparation, as such a
dry run does. It takes no lock and deletes nothing, so it may run beside a collection.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import sum_by, sum_in_task
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.live.current import prepare_uncommitted
from lakefs_gc_assets.collector.live.live_files import FOLDER
from lakefs_gc_assets.collector.records import report, run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.stored_forecasts import (
    FORECAST,
    MOST_FOLDERS,
    ScenarioKind,
    begun_key,
    folders_key,
    forecast_key,
)
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.rules import Policy
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, LakeFSError, LogLine, NotFound, NotSupported, counted
from lakefs_gc_assets.extensions.forecast import marking, scenarios
from lakefs_gc_assets.extensions.forecast.marking import SUMS, Marked, binary_of, count, words_of
from lakefs_gc_assets.extensions.forecast.scenarios import AGES, ByteHolder, Questions, Scenario
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import ReportSettings
from lakefs_gc_assets.storage.interface import ObjectStore

LARGEST = 100
"""Maximum folders that a forecast describes one by one; it adds up all others."""
_ALONE = "lakefs-gc forecast"

FOLDERS = pa.schema(
    [
        pa.field("folder", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("held_objects", pa.int64(), nullable=False),
        pa.field("held_bytes", pa.int64(), nullable=False),
        pa.field("alone_objects", pa.int64()),
        pa.field("alone_bytes", pa.int64()),
    ]
)
"""Contents of folders: one row of kind `all` for each folder, and one for each branch and tag with objects there.

The top level is an empty text. Folders that are not among the largest share a null folder."""
_SUMS = (
    pa.field("held_there", pa.binary()),
    pa.field("alone", pa.bool_()),
    pa.field("objects", pa.int64()),
    pa.field("bytes", pa.int64()),
)
# The engine groups rows by address; here the address column holds folders.
_BY_FOLDER = pa.schema([pa.field("address", pa.string()), *_SUMS])
_LARGEST = pa.schema([FOLDER, *_SUMS, pa.field("others", pa.int64())])
"""Sums of the largest folders. All other folders share a null folder; one row counts them in `others`."""
_GROUPS = ["address", "held_there", "alone"]


@dataclass(frozen=True, slots=True)
class Portion:
    """A holder's objects in a folder.

    Attributes:
        in_all: all of the holder's objects in the folder.
        alone: objects among them that no other holder has, there or elsewhere.
    """

    in_all: Amount
    alone: Amount


@dataclass(frozen=True, slots=True)
class FolderHolding:
    """Objects in one folder, or in all remaining folders together. An object in several folders counts in every one.

    Attributes:
        folder: ends with a slash; empty for the top level, None for the remaining folders.
        stored: objects that commits hold there, expired commits included.
        portions: portions in the order of holders.
    """

    folder: str | None
    stored: Amount
    portions: tuple[Portion, ...]

    @property
    def title(self) -> str:
        """The title that users see."""
        return self.folder or "(top level)"


@dataclass(frozen=True, slots=True)
class ByFolder:
    """Objects by folder.

    Attributes:
        depth: number of leading path components that make up a folder.
        largest: the folders that hold most bytes, largest first.
        others: all other folders together; None if there are none.
        other_folders: number of other folders.
    """

    depth: int
    largest: tuple[FolderHolding, ...]
    others: FolderHolding | None = None
    other_folders: int = 0


@dataclass(frozen=True, slots=True)
class Freed:
    """Objects that a run of flow `committed` would mark in a scenario."""

    scenario: Scenario
    amount: Amount


@dataclass(frozen=True, slots=True)
class Holding:
    """Objects that a holder's commits hold under the rules in force.

    Attributes:
        in_all: all of the holder's objects.
        alone: objects among them that no other holder has.
        if_deleted: objects that a run would mark if the branch or tag was deleted now; None if it cannot be deleted.
    """

    holder: ByteHolder
    in_all: Amount
    alone: Amount
    if_deleted: Freed | None = None

    @property
    def title(self) -> str:
        """The title that users see."""
        kind = self.holder.kind
        return f"({self.holder.name})" if kind is None else f"{kind.value} {self.holder.name}"

    @property
    def shared(self) -> Amount:
        """Objects that others hold as well."""
        return self.in_all - self.alone


@dataclass(frozen=True, slots=True)
class ListedClasses:
    """Objects by storage class, as listed by the newest run that listed everything: a forecast lists nothing."""

    run_id: str
    ended_at: datetime
    amounts: Mapping[str, Amount]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Objects that every scenario would free.

    Attributes:
        forecast_id: name of the folder that stores the forecast.
        now: the moment from which ages count back, UTC.
        cutoff: objects written later stay in every scenario, UTC.
        commits, ranges: numbers read.
        stored: all objects that commits hold.
        rules: the rules in force, then the other requested rules in order.
        holdings: branches and tags by name, then everything else.
        undecided: True if deletions of branches and tags may free more than reported, because there are more entries to
            check than `collection.hidden_suspect_limit`.
        by_folder: objects by folder; None unless requested.
        listed: storage classes that a run listed; None if no report names any.
        prices: prices of storage.
        quarantine_days: days for which sweeps keep objects in quarantine; None if they delete at once.
    """

    repository: str
    forecast_id: str
    now: datetime
    cutoff: datetime
    commits: int
    ranges: int
    stored: Amount
    rules: tuple[Freed, ...]
    holdings: tuple[Holding, ...]
    undecided: bool = False
    by_folder: ByFolder | None = None
    listed: ListedClasses | None = None
    prices: ReportSettings = field(default_factory=ReportSettings)
    quarantine_days: float | None = None

    @property
    def when_freed(self) -> str:
        """A sentence about when bytes are freed; empty if a sweep frees them at once."""
        if self.quarantine_days is None:
            return ""
        return (
            "sweeps move objects to quarantine, which frees nothing: a purge frees their bytes "
            f"{counted(self.quarantine_days, 'days')} later at the earliest"
        )

    @property
    def in_force(self) -> Freed:
        """The result for the rules in force."""
        return self.rules[0]

    def more_if_deleted(self, holding: Holding) -> Amount | None:
        """Additional objects freed by the deletion; negative if the default rule keeps more than the branch's own."""
        return None if holding.if_deleted is None else holding.if_deleted.amount - self.in_force.amount


@dataclass(frozen=True)
class Asked(Generic[R]):
    """A forecast in progress: the questions, and the rows that answer them. Valid only within `ask`."""

    step: Step[R]
    questions: Questions
    marked: Marked[R]
    commits: int
    depth: int = 0


def make(
    repository: OpenRepository,
    engine: Engine[R],
    note: LogLine,
    ages: Sequence[int | None] = AGES,
    policies: Mapping[str, Policy] | None = None,
    depth: int = 0,
) -> Forecast:
    """Makes a forecast and stores it (FORECAST, FOLDERS) in a folder of its own.

    Args:
        note: receives progress lines.
        ages, policies: as for `scenarios.ask`.
        depth: number of leading path components that make up a folder; 0 for no figures by folder.
    Raises:
        ConfigurationError: rules or ages are invalid.
        LakeFSError: the server refuses a refs dump, or fails.
        CorruptFile: a file cannot be read.
        GuardTripped: the clocks disagree.
        StorageError: the store cannot be read or written.
    """
    with ask(repository, engine, note, ages, policies, depth) as asked:
        forecast = replace(_summed(asked), listed=find_listed_classes(repository.store))
    if forecast.by_folder is not None:
        repository.store.put(folders_key(forecast.forecast_id), tables.encode(folders_table(forecast)))
    repository.store.put(forecast_key(forecast.forecast_id), tables.encode(table(forecast)))
    return forecast


def find_listed_classes(store: ObjectStore) -> ListedClasses | None:
    """Storage classes in the newest report of a run that listed everything; None if no recent report names any."""
    for run_id in islice(run_folder.newest_runs(store), MOST_FOLDERS):
        try:
            found = report.read(store, run_id)
        except CorruptFile:
            continue
        lists_all = found is not None and found.base_run is None and not found.limited_to
        if found and lists_all and (classes := found.storage_classes.get("listed")):
            return ListedClasses(run_id, found.ended_at, {name: Amount(**each) for name, each in classes.items()})
    return None


@contextmanager
def ask(
    repository: OpenRepository,
    engine: Engine[R],
    note: LogLine,
    ages: Sequence[int | None] = AGES,
    policies: Mapping[str, Policy] | None = None,
    depth: int = 0,
) -> Iterator[Asked[R]]:
    """Reads all input of a forecast. Args and Raises as for `make`."""
    step = begin(repository, engine, note)
    uncommitted = prepare_uncommitted(step)
    try:
        readings = retention.read(repository, uncommitted.ended_at, note)
    except (AccessDenied, NotFound, NotSupported) as refusal:
        raise LakeFSError(
            f"a forecast needs the graph of all commits, which only a refs dump gives: {refusal}"
        ) from refusal
    questions = scenarios.ask(repository, readings, step.plan.earliest_clock, ages, policies)
    with marking.mark(step, questions, uncommitted, depth) as marked:
        yield Asked(step, questions, marked, len(readings.dump.commits), depth)


def begin(repository: OpenRepository, engine: Engine[R], note: LogLine) -> Step[R]:
    """Begins a step without a lock, with the plan of a dry run by retention rules.

    Raises the errors of `planning.make_plan`.
    """
    forecast_id = layout.issue_run_id(repository.clock.now())
    # Written first: its modification time is the store's clock.
    begun = begun_key(forecast_id)
    repository.store.put(begun, b"")
    store_clock = repository.store.head(begun).last_modified
    windows, _ = planning.windows_to_collect(repository, Flow.COMMITTED)
    plan = planning.make_plan(repository, forecast_id, windows, _ALONE, store_clock, Flow.COMMITTED)
    # A forecast examines everything, even if an earlier run could serve as its base.
    alone = replace(plan, base_run=None, base_run_attempt=None, why_clean=None)
    return Step(note, note, repository, engine, alone, None)


def _summed(asked: Asked[R]) -> Forecast:
    """Adds up objects by their set of bits: there are few distinct sets."""
    step, questions, marked = asked.step, asked.questions, asked.marked
    engine, width = step.engine, questions.width
    held = _Sums.count(engine, engine.select(marked.objects, "held", "size", "objects"), width)
    candidates = _Sums.count(engine, engine.select(marked.candidates, "held", "size"), width)
    unreferenced = _Sums.count(engine, engine.select(marked.unreferenced, "held", "size"), width)
    freed = [
        Freed(_foresee(step, scenario, amount.objects, known), amount)
        for number, scenario in enumerate(questions.scenarios)
        for amount in [candidates.without(number)]
        for known in [held.having(number).objects + unreferenced.without(number).objects]
    ]
    deletions = {(each.scenario.kind, each.scenario.name): each for each in freed}
    first = len(questions.scenarios)
    holders = range(first, first + len(questions.holders))
    alone = held.alone(holders)
    by_folder = None
    if marked.placed is not None:
        by_folder = add_up(engine, marked.placed, asked.depth, holders, width, marked.entries)
    holdings = tuple(
        Holding(
            holder,
            held.having(number),
            alone[number - first],
            deletions.get((holder.kind, holder.name)) if holder.kind else None,
        )
        for number, holder in zip(holders, questions.holders, strict=True)
    )
    return Forecast(
        repository=step.repository.facts.id,
        forecast_id=step.plan.run_id,
        now=step.plan.earliest_clock,
        cutoff=step.plan.cutoff,
        commits=asked.commits,
        ranges=marked.ranges,
        stored=held.all,
        rules=tuple(each for each in freed if each.scenario.kind.by_rules),
        holdings=holdings,
        undecided=marked.undecided,
        by_folder=by_folder,
        quarantine_days=step.repository.settings.quarantine_days if step.repository.settings.quarantines else None,
    )


def _foresee(step: Step[R], scenario: Scenario, candidates: int, known: int) -> Scenario:
    """Adds to the scenario a note about each guard that this number of candidates would trip.

    Args:
        known: number of objects that a run by these rules would know, as `guards.Mark` counts it.
    """
    if scenario.kind not in (ScenarioKind.IN_FORCE, ScenarioKind.POLICY):
        return scenario
    tripped = guards.too_many_candidates(candidates, known, step.repository.settings)
    return replace(scenario, notes=(*scenario.notes, *(f"{report.WOULD_BE_REFUSED}{guard}" for guard in tripped)))


@dataclass(frozen=True)
class _Sums:
    """Objects and bytes by set of bits.

    Attributes:
        bits: a row for each set, a column for each bit.
        objects, bytes: totals of each row.
    """

    bits: npt.NDArray[np.bool_]
    objects: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def count(cls, engine: Engine[R], rows: R, width: int) -> "_Sums":
        """Counts rows as `marking.count` does.

        Args:
            width: bytes of a set of bits.
        """
        summed = engine.collect(engine.map_batches(rows, count, SUMS))
        return cls.from_rows(sum_by(summed, ("held",)).to_pylist(), "held", width)

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]], held: str, width: int) -> "_Sums":
        """Reads rows with objects and bytes, and with a set of bits in the column `held`."""
        packed = np.frombuffer(b"".join(row[held] for row in rows), np.uint8).reshape(len(rows), width)
        bits = np.unpackbits(packed, axis=1, bitorder="little").astype(np.bool_)
        objects, sizes = (np.array([row[name] for row in rows], np.int64) for name in ("objects", "bytes"))
        return cls(bits, objects, sizes)

    @property
    def all(self) -> Amount:
        """All objects."""
        return self._of(np.ones(len(self.objects), np.bool_))

    def having(self, bit: int, among: npt.NDArray[np.bool_] | bool = True) -> Amount:
        """Objects with a bit, among the selected rows."""
        return self._of(self.bits[:, bit] & among)

    def without(self, bit: int) -> Amount:
        """Objects without a bit."""
        return self._of(~self.bits[:, bit])

    def alone(self, bits: range) -> list[Amount]:
        """For each of these bits, the objects that have it and none of the others."""
        among = self.bits[:, bits.start : bits.stop]
        single = among.sum(axis=1) == 1
        return [self.having(bit, single) for bit in bits]

    def _of(self, rows: npt.NDArray[np.bool_]) -> Amount:
        return Amount(int(self.objects[rows].sum()), int(self.bytes[rows].sum()))


def table(forecast: Forecast) -> pa.Table:
    """A forecast as rows (FORECAST)."""
    rows: list[dict[str, object]] = [
        {
            "kind": each.scenario.kind.value,
            "name": each.scenario.name,
            "days": each.scenario.days,
            **_freed(each),
        }
        for each in forecast.rules
    ]
    for holding in forecast.holdings:
        holder = holding.holder
        rows.append(
            {
                **_named(holder),
                **(_freed(holding.if_deleted) if holding.if_deleted else {}),
                "commits_held": holder.commits,
                **_columns("held", holding.in_all),
                **_columns("alone", holding.alone),
                "head_made_at": holder.head_made_at,
                "stale": holder.stale,
            }
        )
    return pa.Table.from_pylist(rows, schema=FORECAST)


def _freed(freed: Freed) -> dict[str, object]:
    return {"commits_expired": freed.scenario.commits_expired, **_columns("freed", freed.amount)}


def folders_table(forecast: Forecast) -> pa.Table:
    """The folders of a forecast as rows (FOLDERS)."""
    rows: list[dict[str, object]] = []
    folders = forecast.by_folder
    for each in [*folders.largest, *([folders.others] if folders.others else [])] if folders else []:
        rows.append({"folder": each.folder, "kind": "all", "name": "", **_columns("held", each.stored)})
        for holding, portion in portions(forecast, each):
            amounts = _columns("held", portion.in_all) | _columns("alone", portion.alone)
            rows.append({"folder": each.folder, **_named(holding.holder), **amounts})
    return pa.Table.from_pylist(rows, schema=FOLDERS)


def portions(forecast: Forecast, folder: FolderHolding) -> list[tuple[Holding, Portion]]:
    """The holders with objects in a folder, and their portions, most bytes first."""
    pairs = zip(forecast.holdings, folder.portions, strict=True)
    return sorted(
        (pair for pair in pairs if pair[1].in_all.objects),
        key=lambda pair: (-pair[1].in_all.bytes, pair[0].holder.name),
    )


def _named(holder: ByteHolder) -> dict[str, object]:
    return {"kind": "rest" if holder.kind is None else holder.kind.value, "name": holder.name}


def _columns(name: str, amount: Amount) -> dict[str, object]:
    return {f"{name}_objects": amount.objects, f"{name}_bytes": amount.bytes}


def add_up(engine: Engine[R], placed: R, depth: int, holders: range, width: int, count: int) -> ByFolder:
    """Adds up the contents of each folder.

    Args:
        placed: addresses (PLACED).
        holders: the bits that stand for holders.
        width: bytes of a set of bits.
        count: approximate number of rows.
    """
    mask = sum(1 << bit for bit in holders).to_bytes(width, "little")
    sums = engine.map_batches(placed, partial(_count, mask), _BY_FOLDER)
    rows = engine.collect(engine.map_by_address(sums, _keep_largest, _LARGEST, count)).to_pylist()
    totals: dict[str, int] = {}
    for row in rows:
        if row["folder"] is not None:
            totals[row["folder"]] = totals.get(row["folder"], 0) + row["bytes"]
    largest = sorted(totals, key=lambda folder: (-totals[folder], folder))[:LARGEST]
    rows_by_folder = {folder: list[dict[str, Any]]() for folder in largest}
    others: list[dict[str, Any]] = []
    for row in rows:
        rows_by_folder.get(row["folder"], others).append(row)
    other_folders = len(totals) - len(largest) + sum(row["others"] for row in rows)
    return ByFolder(
        depth,
        tuple(_holding(folder, rows_by_folder[folder], holders, width) for folder in largest),
        _holding(None, others, holders, width) if other_folders else None,
        other_folders,
    )


def _holding(folder: str | None, rows: list[dict[str, Any]], holders: range, width: int) -> FolderHolding:
    sums, alone = _Sums.from_rows(rows, "held_there", width), np.array([row["alone"] for row in rows], np.bool_)
    portions = (Portion(sums.having(bit), sums.having(bit, alone)) for bit in holders)
    return FolderHolding(folder, sums.all, tuple(portions))


def _count(mask: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The objects of a task by folder and holders (_BY_FOLDER).

    Args:
        mask: the bits of holders.
    """
    wanted = np.frombuffer(mask, np.uint64)

    def by_folder(certain: pa.RecordBatch) -> pa.Table:
        everywhere = words_of(certain.column("held")) & wanted
        # Exactly one word is non-zero, and this word has exactly one bit.
        single = (np.count_nonzero(everywhere, axis=1) == 1) & ~(everywhere & (everywhere - np.uint64(1))).any(axis=1)
        held_there = binary_of(words_of(certain.column("held_there")) & wanted)
        ones = pa.repeat(pa.scalar(1, pa.int64()), certain.num_rows)
        columns = [certain.column("folder"), held_there, pa.array(single), ones, certain.column("size")]
        return pa.table(columns, schema=_BY_FOLDER)

    rows = (batch.filter(batch.column("certain")) for batch in batches)
    return sum_in_task((by_folder(batch) for batch in rows if batch.num_rows), _GROUPS, _BY_FOLDER)


def _keep_largest(sums: pa.Table) -> pa.Table:
    """The sums of the largest folders, with all smaller folders merged (_LARGEST)."""
    added = sum_by(sums, _GROUPS)
    totals = added.group_by("address").aggregate([("bytes", "sum")])
    largest = pc.select_k_unstable(totals, LARGEST, [("bytes_sum", "descending"), ("address", "ascending")])
    names = totals.column("address").take(largest)
    kept = pc.is_in(added.column("address"), value_set=names.combine_chunks())
    folders = pc.if_else(kept, added.column("address"), pa.scalar(None, pa.string()))
    rows = sum_by(added.set_column(0, "address", folders), _GROUPS).rename_columns([FOLDER.name, *_BY_FOLDER.names[1:]])
    others = np.zeros(rows.num_rows, np.int64)
    if others_rows := pc.indices_nonzero(pc.is_null(rows.column(FOLDER.name))).to_pylist():
        others[others_rows[0]] = totals.num_rows - len(names)
    return rows.append_column("others", pa.array(others)).cast(_LARGEST)
