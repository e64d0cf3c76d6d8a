"""Blocking checks of the stored frames: their shape, by pandera models, and rules that no run may break.

A failed check ends the run before a later step begins, stores the report of the failed run and releases the lock.

Checks have no partitions, although their assets have. Dagster records the partition of an evaluation only if the step
has a single one, so a passed check of a run over several windows would be shown as skipped. A check reads the frames of
its Dagster run's collection. If it is executed alone, it checks the last run that made its asset, and ends nothing.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pandera.config import ValidationDepth, config_context
from pandera.pyspark import DataFrameModel, DataFrameSchema, Field
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StringType, TimestampType

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    FRAMES,
    STEPS,
    STORE_DF,
    UNCOMMITTED_DF,
    Frame,
)
from lakefs_gc_assets.collector.frame.frames import F as Figures
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.outcomes import Outcome, Why
from lakefs_gc_assets.collector.reporting import (
    Violation,
    find_empty_live_set,
    find_live_candidates,
    find_losses,
    find_young_candidates,
)
from lakefs_gc_assets.defs.failures import between_steps, end_run, readable
from lakefs_gc_assets.defs.history import Historian
from lakefs_gc_assets.defs.pages import table
from lakefs_gc_assets.defs.partitions import Names, assets_to_make, newest_metadata, selected
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.spark.tasks import Rows, columns_of, dataframe_of, persisted
from lakefs_gc_assets.spark.work_names import named


class FrameModel(DataFrameModel):  # type: ignore[type-arg]
    """Base of the pandera models of all frames.

    The run stores frames by the columns of `frames.py`, without pandera. Tests prove that both declare the same.
    pandera ignores `Field(unique=True)` on Spark. `unique` of the class Config is checked.
    """

    class Config:
        """Undeclared columns are an error."""

        strict = True


class LiveFrame(FrameModel):
    """Addresses that are referenced."""

    address: StringType
    slice: StringType = Field(nullable=True)
    slice_window: StringType


class UncommittedFrame(LiveFrame):
    """Every address that is staged or tracked as copied."""


class CommittedFrame(LiveFrame):
    """Every address that a live commit references; in a run that builds on another one, only looked-up addresses."""


class StoreFrame(LiveFrame):
    """Every object of the store that a run examined."""

    layout: StringType = Field(isin=[layout.value for layout in Layout if layout is not Layout.SPECIAL])
    issued_at: TimestampType = Field(nullable=True)
    last_modified: TimestampType
    size: LongType = Field(ge=0)
    etag: StringType = Field(nullable=True)
    storage_class: StringType = Field(nullable=True)


class CandidatesFrame(StoreFrame):
    """Objects that nothing references and that are old enough for a sweep to delete."""

    why: StringType = Field(nullable=True, isin=[why.value for why in Why])


class DeletedReportFrame(LiveFrame):
    """Outcome for each candidate."""

    size: LongType = Field(ge=0)
    # Copies are made and undone outside of a sweep, which has receipts of its own.
    outcome: StringType = Field(
        isin=[each.value for each in Outcome if each not in (Outcome.COPIED, Outcome.RESTORED, Outcome.PURGED)]
    )
    error: StringType = Field(nullable=True)
    decided_at: TimestampType
    attempt: StringType = Field(nullable=True)
    version_id: StringType = Field(nullable=True)
    copy_etag: StringType = Field(nullable=True)


MODELS: dict[str, type[FrameModel]] = {
    "store_df": StoreFrame,
    "uncommitted_df": UncommittedFrame,
    "committed_df": CommittedFrame,
    "candidates": CandidatesFrame,
    "deleted_report": DeletedReportFrame,
}
"""Models of the assets' frames."""

_Find = Callable[["Checked"], list[Violation]]
_BROKEN = pa.schema([pa.field("rule", pa.string(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])
_BREAKS: Mapping[str, Callable[..., pa.BooleanArray]] = {
    "isin": lambda column, allowed_values: pc.invert(pc.is_in(column.drop_null(), pa.array(allowed_values))),
    "greater_than_or_equal_to": lambda column, min_value: pc.less(column, min_value),
}
"""Tests for values that break a pandera rule, by the rule's name; null breaks no rule."""


def define(names: Names) -> list[dg.AssetChecksDefinition]:
    """The checks of a repository's assets."""
    candidates = "candidates"
    return [
        *(_check(names, [name], "shape", _well_shaped) for name in STEPS),
        _check(names, [candidates, "uncommitted_df", "committed_df"], "disjoint", _disjoint),
        _check(names, [candidates], "older_than_cutoff", _older_than_cutoff),
        _check(names, [candidates, "store_df", "uncommitted_df", "committed_df"], "live_set", _live_set),
        _check(names, [candidates], "nothing_deleted_is_live", _nothing_deleted_is_live, blocking=False),
    ]


def shape_violations(engine: SparkEngine, rows: Rows, model: type[FrameModel]) -> list[Violation]:
    """Finds errors in a frame's columns and values, in pandera's words; a valid frame is read once.

    pandera would run one Spark job per rule. So it first checks only names and types, which reads nothing. Then tasks
    (for few rows, the driver) count the rows that break any rule of the schema in one pass. pandera itself validates a
    sound frame only by the rules that this pass does not count, with a few jobs per rule. So a new rule in a model
    needs no code here. pandera validates a frame with broken rows by the whole schema.
    """
    schema = model.to_schema()
    # No environment variable may disable validation, or let pandera cache a frame without rows.
    with config_context(
        validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA, cache_dataframe=False
    ):
        misshapen = _errors(_names_and_types(schema), columns_of(rows))
        broken = {} if misshapen else broken_rules(engine, rows, schema)
        if not misshapen and not broken:
            schema = _without(schema, _BREAKS)
            if not (schema.checks or schema.unique or any(column.checks for column in schema.columns.values())):
                return []
        with persisted(dataframe_of(rows)) as frame:
            return _errors(schema, frame) or [Violation("DATA", rule, count) for rule, count in broken.items()]


def broken_rules(engine: SparkEngine, rows: Rows, schema: DataFrameSchema) -> dict[str, int]:
    """Number of rows that break each rule about values of a schema; rules that hold or are not counted are left out."""
    rules: dict[str, tuple[str, Callable[[pa.Array], pa.BooleanArray]]] = {}
    for name, column in schema.columns.items():
        if not column.nullable:
            rules[f"{name} is null"] = name, pc.is_null
        for rule in column.checks:
            if rule.name in _BREAKS:
                rules[f"{name} {rule.name}"] = name, partial(_BREAKS[rule.name], **rule.statistics)

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts = [pc.sum(breaks(batch.column(name))).as_py() or 0 for name, breaks in rules.values()]
            yield pa.record_batch({"rule": [*rules], "rows": counts}, _BROKEN)

    counted = engine.collect(engine.map_batches(rows, count, _BROKEN)).group_by("rule").aggregate([("rows", "sum")])
    counts = {row["rule"]: row["rows_sum"] for row in counted.to_pylist()}
    return {rule: counts[rule] for rule in rules if counts.get(rule)}


def _names_and_types(schema: DataFrameSchema) -> DataFrameSchema:
    """A schema without the rules about values."""
    bare = _without(schema, None)
    bare.checks, bare.unique = [], None
    return bare


def _without(schema: DataFrameSchema, rules: Container[str] | None) -> DataFrameSchema:
    """A schema with nullable columns, without some rules about their values; None removes all such rules."""
    fewer = deepcopy(schema)
    for column in fewer.columns.values():
        column.nullable = True
        column.checks = [rule for rule in column.checks if rules is not None and rule.name not in rules]
    return fewer


def _errors(schema: DataFrameSchema, frame: DataFrame) -> list[Violation]:
    validated: Any = schema.validate(frame)
    errors_by_kind = validated.pandera.errors or {}
    return [
        Violation(f"{kind}: {reason}", str(error.get("error", error)))
        for kind, reasons in errors_by_kind.items()
        for reason, errors in reasons.items()
        for error in errors
    ]


@dataclass(frozen=True)
class Checked:
    """The run that a check examines.

    Attributes:
        frame_name: name of the asset's frame.
    """

    collector: Collector
    run_id: str
    frame_name: str

    def stored(self, frame: Frame[Figures]) -> StoredFrame[Figures]:
        """A frame of the run. Raises OrderViolation if it does not exist, or CorruptFile."""
        return self.collector.stored(self.run_id, frame)

    @property
    def frame(self) -> StoredFrame[Any]:
        """The asset's frame."""
        return self.stored(FRAMES[self.frame_name])


def _checked_run(context: dg.AssetCheckExecutionContext, collector: Collector, asset: str) -> str:
    """The id of the Dagster run's collection, or else of the last run that made the asset. Raises dagster.Failure."""
    if cells := collector.names.partitions.covered(context.instance, context.run):
        with readable():
            return collector.require_run(*selected(cells))
    shown = newest_metadata(context.instance, collector.names.asset(asset))
    if "run_id" not in shown:
        raise dg.Failure(description=f"{asset} has not been materialized yet: start a run first", allow_retries=False)
    return str(shown["run_id"])


def _check(
    names: Names, frames: Sequence[str], name: str, find: _Find, blocking: bool = True
) -> dg.AssetChecksDefinition:
    """A check of an asset.

    Args:
        frames: the assets whose frames it reads; the first is the checked one.
        find: returns the violations; its docstring describes the check.
        blocking: True if violations end the run.
    """
    asset, *others = frames

    @dg.asset_check(
        asset=names.asset(asset),
        name=name,
        description=find.__doc__,
        blocking=blocking,
        additional_deps=[names.asset(other) for other in others],
        pool=names.pool,
    )
    @names.bound
    def check(context: dg.AssetCheckExecutionContext, collector: dg.ResourceParam[Collector]) -> dg.AssetCheckResult:
        checked = Checked(collector, _checked_run(context, collector, asset), asset)
        # A check that is executed alone has no lock to release and nothing to report.
        ends_run = any(assets_to_make(context.run, STEPS))
        historian = Historian.from_context(context, collector)
        work = named(f"check {name} of {asset}", f"{collector.repository} {checked.run_id}")
        with between_steps(collector, checked.run_id, ends_run, historian), work:
            frame, violations = checked.frame, find(checked)
        if violations and blocking and ends_run:
            end_run(collector, checked.run_id, _in_words(frame, violations), historian)
        return dg.AssetCheckResult(
            passed=not violations,
            description=_in_words(frame, violations) if violations else None,
            metadata={
                "rows": frame.manifest.rows,
                "violations": table(
                    {"rule": "string", "detail": "string", "rows": "int"},
                    ((violation.rule, violation.detail, violation.rows or 0) for violation in violations),
                ),
            },
        )

    return check


def _well_shaped(checked: Checked) -> list[Violation]:
    """Columns, types and values match the frame's pandera model."""
    engine = checked.collector.engine()
    return shape_violations(engine, checked.frame.rows(engine), MODELS[checked.frame_name])


def _disjoint(checked: Checked) -> list[Violation]:
    """No candidate is committed or uncommitted."""
    uncommitted, committed = checked.stored(UNCOMMITTED_DF), checked.stored(COMMITTED_DF)
    return find_live_candidates(checked.collector.engine(), checked.stored(CANDIDATES_DF), uncommitted, committed)


def _older_than_cutoff(checked: Checked) -> list[Violation]:
    """Every candidate was written and named before the cutoff."""
    plan = plans.read(checked.collector.store_at_hand(), checked.run_id)
    return find_young_candidates(checked.collector.engine(), checked.stored(CANDIDATES_DF), plan.cutoff)


def _live_set(checked: Checked) -> list[Violation]:
    """If live commits have entries and there are candidates, the committed frame has rows."""
    stored = checked.stored
    return find_empty_live_set(stored(STORE_DF), stored(UNCOMMITTED_DF), stored(COMMITTED_DF), stored(CANDIDATES_DF))


def _nothing_deleted_is_live(checked: Checked) -> list[Violation]:
    """No branch head or staged entry references an object that an earlier run deleted. Never ends a run."""
    return find_losses(checked.stored(CANDIDATES_DF))


def _in_words(frame: StoredFrame[Any], violations: Sequence[Violation]) -> str:
    return f"check of {frame.name}: " + "; ".join(f"{violation.rule}: {violation.detail}" for violation in violations)
