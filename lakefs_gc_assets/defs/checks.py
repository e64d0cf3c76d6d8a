"""Blocking checks of the stored frames: their shape by pandera, and what no run may get wrong.

A check that fails ends the run before anything later is made, stores the failed run's report and gives the lock back.
Frames are annotated as `Any` where Dagster reads the annotation: it takes no generic types.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
from pandera.config import ValidationDepth, config_context
from pandera.pyspark import DataFrameSchema
from pyspark.sql import DataFrame

from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.checking import (
    Violation,
    find_empty_live_set,
    find_live_candidates,
    find_losses,
    find_young_candidates,
)
from lakefs_gc_assets.collector.frame.kinds import STEPS
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.defs.failures import between_steps, end_run
from lakefs_gc_assets.defs.models import MODELS, FrameModel
from lakefs_gc_assets.defs.naming import Names
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.spark import tasks
from lakefs_gc_assets.spark.tasks import Rows

_Check = Callable[..., dg.AssetCheckResult]
_BROKEN = pa.schema([pa.field("rule", pa.string(), nullable=False), pa.field("rows", pa.int64(), nullable=False)])
_BREAKS: Mapping[str, Callable[..., pa.BooleanArray]] = {
    "isin": lambda column, allowed_values: pc.invert(pc.is_in(column.drop_null(), pa.array(allowed_values))),
    "greater_than_or_equal_to": lambda column, min_value: pc.less(column, min_value),
}
"""Which values break a rule of pandera's, by the rule's name; null breaks none."""


def define(names: Names) -> list[dg.AssetChecksDefinition]:
    """The checks of one repository's assets."""
    return [*(_shape(name, names) for name in STEPS), *_rules(names)]


def shape_violations(rows: Rows, model: type[FrameModel]) -> list[Violation]:
    """What is wrong with a frame's columns and values, in pandera's words; a sound frame is read once.

    pandera asks Spark once for each rule. So it is asked about names and types, which needs no reading; then the tasks
    that read the frame count the rows that break any rule of its schema, and only where there are some does pandera
    look itself.
    """
    schema, frame = model.to_schema(), tasks.dataframe_of(rows)
    # No environment variable may turn this off.
    with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
        misshapen = _errors(_names_and_types(schema), frame)
        broken = {} if misshapen else broken_rules(rows, schema)
        if not misshapen and not broken:
            return []
        frame.persist()
        try:
            return _errors(schema, frame) or [Violation("DATA", rule, rows) for rule, rows in broken.items()]
        finally:
            frame.unpersist()


def broken_rules(rows: Rows, schema: DataFrameSchema) -> dict[str, int]:
    """How many rows break each rule about values of a schema; rules that hold are left out."""
    rules: dict[str, tuple[str, Callable[[pa.Array], pa.BooleanArray]]] = {}
    for name, column in schema.columns.items():
        if not column.nullable:
            rules[f"{name} is null"] = name, pc.is_null
        for rule in column.checks:
            rules[f"{name} {rule.name}"] = name, partial(_BREAKS[rule.name], **rule.statistics)

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counts = [pc.sum(breaks(batch.column(name))).as_py() or 0 for name, breaks in rules.values()]
            yield pa.record_batch({"rule": [*rules], "rows": counts}, _BROKEN)

    summed = tasks.map_batches(rows, count, _BROKEN).groupBy("rule").agg(F.sum("rows").alias("rows")).collect()
    counts = {row["rule"]: row["rows"] for row in summed}
    return {rule: counts[rule] for rule in rules if counts.get(rule)}


def _names_and_types(schema: DataFrameSchema) -> DataFrameSchema:
    """A schema without the rules about values."""
    bare = deepcopy(schema)
    for column in bare.columns.values():
        column.nullable, column.checks = True, []
    return bare


def _errors(schema: DataFrameSchema, frame: DataFrame) -> list[Violation]:
    validated: Any = schema.validate(frame)
    found = validated.pandera.errors or {}
    return [
        Violation(f"{kind}: {reason}", str(error.get("error", error)))
        for kind, reasons in found.items()
        for reason, errors in reasons.items()
        for error in errors
    ]


def _shape(name: str, names: Names) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=names.asset(name),
        name="shape",
        description="Columns, types and values are what the frame's pandera model says.",
        blocking=True,
        partitions_def=names.partitions.definition,
        required_resource_keys={names.of("collector")},
        pool=names.pool,
    )
    def shape(context: dg.AssetCheckExecutionContext, frame: Any) -> dg.AssetCheckResult:
        collector: Collector = names.resource(context.resources, "collector")

        def violations() -> list[Violation]:
            return shape_violations(frame.rows(collector.engine()), MODELS[name])

        return _result(collector, frame, violations)

    return shape


def _rules(names: Names) -> list[dg.AssetChecksDefinition]:
    def check(description: str, *others: str) -> Callable[[_Check], dg.AssetChecksDefinition]:
        return dg.asset_check(
            asset=names.asset("candidates"),
            description=description,
            blocking=True,
            partitions_def=names.partitions.definition,
            required_resource_keys={names.of("collector")},
            pool=names.pool,
            additional_ins={other: dg.AssetIn(names.asset(other)) for other in others},
        )

    def collector_of(context: dg.AssetCheckExecutionContext) -> Collector:
        found: Collector = names.resource(context.resources, "collector")
        return found

    @check("No candidate is committed or uncommitted.", "uncommitted_df", "committed_df")
    def disjoint(
        context: dg.AssetCheckExecutionContext,
        candidates: Any,
        uncommitted_df: Any,
        committed_df: Any,
    ) -> dg.AssetCheckResult:
        collector = collector_of(context)

        def find() -> list[Violation]:
            return find_live_candidates(collector.engine(), candidates, uncommitted_df, committed_df)

        return _result(collector, candidates, find)

    @check("Every candidate was written and named before the cutoff.")
    def older_than_cutoff(context: dg.AssetCheckExecutionContext, candidates: Any) -> dg.AssetCheckResult:
        collector = collector_of(context)

        def find() -> list[Violation]:
            plan = plans.read(collector.open().store, candidates.manifest.span.run_id)
            return find_young_candidates(collector.engine(), candidates, plan.cutoff)

        return _result(collector, candidates, find)

    @check(
        "Something is committed where live commits count entries and there are candidates.",
        "store_df",
        "uncommitted_df",
        "committed_df",
    )
    def live_set(
        context: dg.AssetCheckExecutionContext,
        candidates: Any,
        store_df: Any,
        uncommitted_df: Any,
        committed_df: Any,
    ) -> dg.AssetCheckResult:
        find = partial(find_empty_live_set, store_df, uncommitted_df, committed_df, candidates)
        return _result(collector_of(context), candidates, find)

    @dg.asset_check(
        asset=names.asset("candidates"),
        description="No branch head and nothing staged holds an object that an earlier run deleted. It ends no run.",
        partitions_def=names.partitions.definition,
        pool=names.pool,
    )
    def nothing_deleted_is_live(candidates: Any) -> dg.AssetCheckResult:
        return _told(candidates, find_losses(candidates))

    return [disjoint, older_than_cutoff, live_set, nothing_deleted_is_live]


def _result(collector: Collector, frame: StoredFrame[Any], find: Callable[[], list[Violation]]) -> dg.AssetCheckResult:
    """The result of a check; one that fails, or cannot be made, also ends the collection in the store."""
    run_id = frame.manifest.span.run_id
    with between_steps(collector, run_id):
        violations = find()
    if violations:
        end_run(collector, run_id, _in_words(frame, violations))
    return _told(frame, violations)


def _in_words(frame: StoredFrame[Any], violations: Sequence[Violation]) -> str:
    return f"check of {frame.name}: " + "; ".join(f"{found.rule}: {found.detail}" for found in violations)


def _told(frame: StoredFrame[Any], violations: Sequence[Violation]) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=not violations,
        description=_in_words(frame, violations) if violations else None,
        metadata={
            "rows": frame.manifest.rows,
            "violations": dg.MetadataValue.table(
                [dg.TableRecord({"rule": v.rule, "detail": v.detail, "rows": v.rows or 0}) for v in violations],
                schema=_VIOLATIONS,
            ),
        },
    )


_VIOLATIONS = dg.TableSchema([dg.TableColumn("rule"), dg.TableColumn("detail"), dg.TableColumn("rows", "int")])
