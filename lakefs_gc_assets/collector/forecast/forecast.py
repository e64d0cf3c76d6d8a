"""A forecast: what every scenario would free at this moment, and what each branch and tag holds.

It reads what a dry run by retention rules reads, in the same order, and stores nothing but its answer and what such a
run leaves of its readings: sizes of ranges, and the server's own preparation. It takes no lock and deletes nothing, so
it may run beside a collection.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Generic

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakefs_gc_assets.collector import planning
from lakefs_gc_assets.collector.amount import Amount
from lakefs_gc_assets.collector.engine import Engine, R
from lakefs_gc_assets.collector.forecast import folders, marking, scenarios, stored
from lakefs_gc_assets.collector.forecast.folders import ByFolder, FolderHolding, Portion
from lakefs_gc_assets.collector.forecast.holding import SUMS, count
from lakefs_gc_assets.collector.forecast.marking import Marked
from lakefs_gc_assets.collector.forecast.scenarios import AGES, Holder, Questions, Scenario
from lakefs_gc_assets.collector.live.current import prepare_uncommitted
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.policy import Policy
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import tables
from lakefs_gc_assets.errors import AccessDenied, LakeFSError, NotFound, NotSupported
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.saying import Say

_ALONE = "lakefs-gc forecast"

FORECAST = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("days", pa.int64()),
        pa.field("commits_expired", pa.int64()),
        pa.field("freed_objects", pa.int64()),
        pa.field("freed_bytes", pa.int64()),
        pa.field("commits_held", pa.int64()),
        pa.field("held_objects", pa.int64()),
        pa.field("held_bytes", pa.int64()),
        pa.field("alone_objects", pa.int64()),
        pa.field("alone_bytes", pa.int64()),
        pa.field("head_made_at", pa.timestamp("us", "UTC")),
        pa.field("stale", pa.bool_()),
    ]
)
"""A forecast as it is stored: a row for each set of rules, branch and tag. What is not asked of one is null."""

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
"""What folders hold: for each a row of kind `all`, and one for each branch and tag that has something there.

The top level is an empty text, all folders that are not among the largest are null."""


@dataclass(frozen=True, slots=True)
class Freed:
    """What a run `committed` would mark in a scenario."""

    scenario: Scenario
    amount: Amount


@dataclass(frozen=True, slots=True)
class Holding:
    """What a holder's commits hold by the rules in force.

    Attributes:
        in_all: objects that it has.
        alone: those of them that no other holder has.
        if_deleted: what a run would mark if the branch or tag was deleted now; None where it cannot be.
    """

    holder: Holder
    in_all: Amount
    alone: Amount
    if_deleted: Freed | None = None

    @property
    def title(self) -> str:
        """What a person is told that it is about."""
        kind = self.holder.kind
        return f"({self.holder.name})" if kind is None else f"{kind.value} {self.holder.name}"

    @property
    def shared(self) -> Amount:
        """What others hold as well."""
        return self.in_all - self.alone


@dataclass(frozen=True, slots=True)
class Forecast:
    """What every scenario would free.

    Attributes:
        forecast_id: names the folder that it is stored in.
        now: the moment that ages count back from, UTC.
        cutoff: what was written later stays in every scenario, UTC.
        commits, ranges: how many were read.
        stored: all objects that commits hold.
        rules: the rules in force, then other ones in the order that they were asked for.
        holdings: branches and tags by name, last all else.
        undecided: whether deletions of branches and tags may free more than is told, because there is more to ask than
            `collection.hidden_suspect_limit`.
        by_folder: what folders hold; None where nobody asked.
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

    @property
    def in_force(self) -> Freed:
        """By the rules as they are."""
        return self.rules[0]

    def more_if_deleted(self, holding: Holding) -> Amount | None:
        """What would go beside what goes anyway; negative where the default rule keeps longer than the branch's own."""
        return None if holding.if_deleted is None else holding.if_deleted.amount - self.in_force.amount


@dataclass(frozen=True)
class Asked(Generic[R]):
    """A forecast under way: what was asked, and the rows that answer it; of use while `ask` has not ended."""

    step: Step[R]
    questions: Questions
    marked: Marked[R]
    commits: int
    depth: int = 0


def make(
    repository: OpenRepository,
    engine: Engine[R],
    note: Say,
    ages: Sequence[int | None] = AGES,
    policies: Mapping[str, Policy] | None = None,
    depth: int = 0,
) -> Forecast:
    """Makes a forecast and stores it (FORECAST, FOLDERS) in a folder of its own.

    Args:
        note: is told what happens.
        ages, policies: as for `scenarios.ask`.
        depth: how many components of paths make the folders that objects are told by; 0 leaves folders out.
    Raises:
        ConfigurationError: rules or ages cannot be meant.
        LakeFSError: the server refuses a refs dump, or fails.
        CorruptFile: a file cannot be read.
        GuardTripped: the clocks disagree.
        StorageError: the store cannot be read, or written to.
    """
    with ask(repository, engine, note, ages, policies, depth) as asked:
        found = _summed(asked)
    if found.by_folder is not None:
        repository.store.put(stored.by_folder(found.forecast_id), tables.encode(folders_table(found)))
    repository.store.put(stored.key(found.forecast_id), tables.encode(table(found)))
    return found


@contextmanager
def ask(
    repository: OpenRepository,
    engine: Engine[R],
    note: Say,
    ages: Sequence[int | None] = AGES,
    policies: Mapping[str, Policy] | None = None,
    depth: int = 0,
) -> Iterator[Asked[R]]:
    """Reads everything that a forecast is made of. Args and Raises as for `make`."""
    step = begin(repository, engine, note)
    settings = repository.settings
    uncommitted = prepare_uncommitted(step)
    try:
        readings = retention.read(
            repository.api,
            repository.store,
            repository.namespace,
            settings,
            repository.clock,
            uncommitted.ended_at,
            note,
            retention.policy_of(settings),
        )
    except (AccessDenied, NotFound, NotSupported) as refusal:
        raise LakeFSError(
            f"a forecast needs the graph of all commits, which only a refs dump gives: {refusal}"
        ) from refusal
    questions = scenarios.ask(repository, readings, step.plan.earliest_clock, ages, policies)
    with marking.mark(step, questions, uncommitted, readings.dump.tables, depth) as marked:
        yield Asked(step, questions, marked, len(readings.dump.commits), depth)


def begin(repository: OpenRepository, engine: Engine[R], note: Say) -> Step[R]:
    """A step without a lock, with the plan that a dry run by retention rules would have now.

    Raises what `planning.make_plan` raises.
    """
    forecast_id = xids.issue_run_id(repository.clock.now())
    # Written first: its time is the store's clock.
    begun = stored.begun(forecast_id)
    repository.store.put(begun, b"")
    store_clock = repository.store.head(begun).last_modified
    windows, _ = planning.windows_to_collect(repository, Flow.COMMITTED)
    plan = planning.make_plan(repository, forecast_id, windows, _ALONE, store_clock, Flow.COMMITTED)
    return Step(note, note, repository, engine, plan, None)


def _summed(asked: Asked[R]) -> Forecast:
    """Adds up what is the same by all bits: there are few such sets."""
    step, questions, marked = asked.step, asked.questions, asked.marked
    held = _Sums.of(step.engine, step.engine.select(marked.objects, "held", "size", "objects"), questions)
    gone = _Sums.of(step.engine, step.engine.select(marked.candidates, "held", "size"), questions)
    freed = [Freed(scenario, gone.without(number)) for number, scenario in enumerate(questions.scenarios)]
    deletions = {(each.scenario.kind, each.scenario.name): each for each in freed}
    first = len(questions.scenarios)
    holders = range(first, first + len(questions.holders))
    alone = held.alone(holders)
    by_folder = None
    if marked.placed is not None:
        width = questions.width
        by_folder = folders.add_up(step.engine, marked.placed, asked.depth, holders, width, marked.entries)
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
    )


@dataclass(frozen=True)
class _Sums:
    """Objects and bytes by their bits.

    Attributes:
        bits: a row for each set of bits, a column for each bit.
        objects, bytes: of each row.
    """

    bits: npt.NDArray[np.bool_]
    objects: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, engine: Engine[R], rows: R, questions: Questions) -> "_Sums":
        """Counts rows as `holding.count` does."""
        found = engine.collect(engine.map_batches(rows, count, SUMS))
        sums: dict[bytes, Amount] = {}
        for row in found.to_pylist():
            so_far = sums.get(row["held"], Amount())
            sums[row["held"]] = Amount(so_far.objects + row["objects"], so_far.bytes + row["bytes"])
        packed = np.frombuffer(b"".join(sums), np.uint8).reshape(len(sums), questions.width)
        bits = np.unpackbits(packed, axis=1, bitorder="little").astype(np.bool_)
        return cls(
            bits,
            np.array([amount.objects for amount in sums.values()], np.int64),
            np.array([amount.bytes for amount in sums.values()], np.int64),
        )

    @property
    def all(self) -> Amount:
        """Everything."""
        return self._of(np.ones(len(self.objects), np.bool_))

    def having(self, bit: int) -> Amount:
        """What has a bit."""
        return self._of(self.bits[:, bit])

    def without(self, bit: int) -> Amount:
        """What lacks a bit."""
        return self._of(~self.bits[:, bit])

    def alone(self, bits: range) -> list[Amount]:
        """Of each of these bits, what has it and none of the others."""
        among = self.bits[:, bits.start : bits.stop]
        single = among.sum(axis=1) == 1
        return [self._of(single & self.bits[:, bit]) for bit in bits]

    def _of(self, rows: npt.NDArray[np.bool_]) -> Amount:
        return Amount(int(self.objects[rows].sum()), int(self.bytes[rows].sum()))


def table(found: Forecast) -> pa.Table:
    """A forecast as rows (FORECAST)."""
    rows: list[dict[str, object]] = [
        {
            "kind": each.scenario.kind.value,
            "name": each.scenario.name,
            "days": each.scenario.days,
            "commits_expired": each.scenario.commits_expired,
            "freed_objects": each.amount.objects,
            "freed_bytes": each.amount.bytes,
        }
        for each in found.rules
    ]
    for holding in found.holdings:
        holder, deleted = holding.holder, holding.if_deleted
        rows.append(
            {
                "kind": "rest" if holder.kind is None else holder.kind.value,
                "name": holder.name,
                "commits_expired": deleted.scenario.commits_expired if deleted else None,
                "freed_objects": deleted.amount.objects if deleted else None,
                "freed_bytes": deleted.amount.bytes if deleted else None,
                "commits_held": holder.commits,
                "held_objects": holding.in_all.objects,
                "held_bytes": holding.in_all.bytes,
                "alone_objects": holding.alone.objects,
                "alone_bytes": holding.alone.bytes,
                "head_made_at": holder.head_made_at,
                "stale": holder.stale,
            }
        )
    return pa.Table.from_pylist(rows, schema=FORECAST)


def folders_table(found: Forecast) -> pa.Table:
    """What a forecast says of folders, as rows (FOLDERS)."""
    rows: list[dict[str, object]] = []
    told = found.by_folder
    for each in [*told.largest, *([told.others] if told.others else [])] if told else []:
        rows.append(_folder_row(each.folder, "all", "", each.stored, None))
        for holding, portion in portions(found, each):
            kind = "rest" if holding.holder.kind is None else holding.holder.kind.value
            rows.append(_folder_row(each.folder, kind, holding.holder.name, portion.in_all, portion.alone))
    return pa.Table.from_pylist(rows, schema=FOLDERS)


def portions(found: Forecast, folder: FolderHolding) -> list[tuple[Holding, Portion]]:
    """Who has something in a folder, and how much, those with most bytes first."""
    pairs = zip(found.holdings, folder.portions, strict=True)
    return sorted(
        (pair for pair in pairs if pair[1].in_all.objects),
        key=lambda pair: (-pair[1].in_all.bytes, pair[0].holder.name),
    )


def _folder_row(folder: str | None, kind: str, name: str, held: Amount, alone: Amount | None) -> dict[str, object]:
    return {
        "folder": folder,
        "kind": kind,
        "name": name,
        "held_objects": held.objects,
        "held_bytes": held.bytes,
        "alone_objects": None if alone is None else alone.objects,
        "alone_bytes": None if alone is None else alone.bytes,
    }
