from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import dagster as dg
import pyarrow as pa
import pytest
from pandera.config import config_context
from pandera.pyspark import Field, check, dataframe_check
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FrameFile, StoredFrame
from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.reporting import Violation
from lakefs_gc_assets.defs import checks
from lakefs_gc_assets.defs.checks import MODELS, FrameModel, StoreFrame, broken_rules, shape_violations
from lakefs_gc_assets.defs.io_manager import FrameIOManager
from lakefs_gc_assets.defs.running import failure_of
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.spark import work_names
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets_tests.collector.sweep.test_sweeping import stage
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, failures, made, replaying
from lakefs_gc_assets_tests.spark.frame_rows import NOW, listed, live, table_file

__all__ = ["replaying"]

Change = Callable[[pa.Table], pa.Table]
GOOD: dict[str, dict[str, Any]] = {
    "store_df": listed("data/a"),
    "uncommitted_df": live("data/a"),
    "committed_df": live("data/a"),
    "candidates": listed("data/a"),
    "deleted_report": {
        **live("data/a"),
        "size": 1,
        "outcome": "accepted",
        "error": None,
        "decided_at": NOW,
    },
}


def nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([column.with_nullable(True) for column in schema])


def frame(spark: SparkSession, name: str, *rows: dict[str, Any]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=nullable(FRAMES[name].schema)))


def rules(rows: DataFrame, name: str) -> set[str]:
    return {violation.rule for violation in shape_violations(engine_of(rows), rows, MODELS[name])}


def engine_of(rows: DataFrame) -> SparkEngine:
    return SparkEngine(rows.sparkSession, 2)


def test_another_column_and_another_type_are_reported(spark: SparkSession) -> None:
    rows = frame(spark, "store_df", GOOD["store_df"])

    assert rules(rows.withColumn("new", rows.address), "store_df") == {"SCHEMA: COLUMN_NOT_IN_SCHEMA"}
    assert "SCHEMA: COLUMN_NOT_IN_DATAFRAME" in rules(rows.drop("slice_window"), "store_df")
    assert "SCHEMA: WRONG_DATATYPE" in rules(rows.withColumn("size", rows["size"].cast("string")), "store_df")


def test_nulls_are_reported_where_none_may_be(spark: SparkSession) -> None:
    """Each column is null in one row; columns that may be null are not reported."""
    name = "candidates"
    schema = FRAMES[name].schema
    rows = frame(spark, name, GOOD[name], *({**GOOD[name], column: None} for column in schema.names))
    required = [column.name for column in schema if not column.nullable]

    assert broken_rules(engine_of(rows), rows, MODELS[name].to_schema()) == {f"{each} is null": 1 for each in required}
    found = shape_violations(engine_of(rows), rows, MODELS[name])
    assert {violation.rule for violation in found} == {"SCHEMA: SERIES_CONTAINS_NULLS"}
    assert len(found) == len(required)
    assert not [each for each in required if not any(f"'{each}'" in violation.detail for violation in found)]


@pytest.mark.parametrize(
    ("name", "change"),
    [("candidates", {"size": -1}), ("store_df", {"layout": "special"})],
)
def test_values_that_cannot_be_are_reported(spark: SparkSession, name: str, change: dict[str, Any]) -> None:
    rows = frame(spark, name, GOOD[name], {**GOOD[name], **change})

    (violation,) = shape_violations(engine_of(rows), rows, MODELS[name])
    assert violation.rule == "DATA: DATAFRAME_CHECK"
    assert next(iter(change)) in violation.detail


def test_a_sound_frame_is_read_by_one_job(spark: SparkSession) -> None:
    rows = frame(spark, "store_df", GOOD["store_df"])
    with work_names.named("store_df", run="one job"):
        assert not rules(rows, "store_df")

    # One query per column would be eight jobs or more.
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("one job")) == 1


def test_rows_that_break_a_rule_are_counted(spark: SparkSession) -> None:
    good = GOOD["deleted_report"]
    rows = frame(spark, "deleted_report", good, {**good, "size": -1}, {**good, "size": -2, "outcome": "gone"})

    assert broken_rules(engine_of(rows), rows, MODELS["deleted_report"].to_schema()) == {
        "size greater_than_or_equal_to": 2,
        "outcome isin": 1,
    }


class _Pattern(StoreFrame):
    address: StringType = Field(str_startswith="data/")


class _OwnCheck(StoreFrame):
    @check("address")
    def is_below_data(cls, frame: DataFrame) -> bool:
        return frame.filter(~frame.address.startswith("data/")).isEmpty()


class _OfTheFrame(StoreFrame):
    @dataframe_check
    def lies_below_data(cls, frame: DataFrame) -> bool:  # type: ignore[misc]
        return frame.filter(~frame.address.startswith("data/")).isEmpty()


class _Unique(StoreFrame):
    class Config:
        unique: ClassVar = ["address"]


@pytest.mark.parametrize(
    ("model", "bad", "rule", "on_driver"),
    [
        (_Pattern, "elsewhere", "DATA: DATAFRAME_CHECK", True),
        (_OwnCheck, "elsewhere", "DATA: DATAFRAME_CHECK", False),
        (_OfTheFrame, "elsewhere", "DATA: DATAFRAME_CHECK", True),
        (_Unique, "data/a", "DATA: DUPLICATES", False),
    ],
)
def test_a_rule_that_somebody_adds_to_a_model_needs_nothing_else(
    spark: SparkSession, model: type[FrameModel], bad: str, rule: str, on_driver: bool
) -> None:
    good = GOOD["store_df"]
    engine = SparkEngine(spark, 2)

    def found(*rows: dict[str, Any]) -> list[Violation]:
        table = pa.Table.from_pylist(list(rows), schema=nullable(FRAMES["store_df"].schema))
        return shape_violations(engine, engine.table(table) if on_driver else spark.createDataFrame(table), model)

    group = f"{model.__name__} {on_driver}"
    spark.sparkContext.setJobGroup(group, group)
    assert found(good) == []
    # The whole model would take one job for each of its rules, in addition to the new rule's.
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("one job")) <= 5
    (violation,) = found(good, {**good, "address": bad})
    assert violation.rule == rule


def test_the_environment_cannot_turn_the_checks_off(spark: SparkSession) -> None:
    rows = frame(spark, "store_df", {**GOOD["store_df"], "address": None})

    with config_context(validation_enabled=False):
        assert rules(rows, "store_df") == {"SCHEMA: SERIES_CONTAINS_NULLS"}
    with config_context(validation_depth="SCHEMA_ONLY"):
        assert rules(frame(spark, "store_df", {**GOOD["store_df"], "size": -1}), "store_df")


@pytest.fixture
def runs(replaying: Replaying) -> GraphRuns:
    return replaying("chain/1", deletes="overlay", sweep=True, max_candidate_share=1)


def poison(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch, after: str, frame_name: str, change: Change) -> None:
    """Replaces a frame, including its manifest, between an asset and its checks."""
    handle_output = FrameIOManager.handle_output

    def poisoning(self: FrameIOManager, context: dg.OutputContext, obj: StoredFrame[Any]) -> None:
        handle_output(self, context, obj)
        if obj.name == after:
            store, run_id = runs.repository.store, obj.manifest.span.run_id
            found = runs.frame(run_id, frame_name)
            key = f"{found.manifest.files[0].key}-poisoned"
            data, file = table_file(key, "2026-11", change(found.table()))
            store.put(key, data)
            stored: tuple[FrameFile, ...] = (file,) if file.rows else ()
            files.write_manifest(store, replace(found.manifest, files=stored))
            self.collector.keep(runs.frame(run_id, frame_name))

    monkeypatch.setattr(FrameIOManager, "handle_output", poisoning)


def first_rows(*changes: dict[str, Any]) -> Change:
    """Changes a frame's first rows."""

    def change(table: pa.Table) -> pa.Table:
        rows = table.to_pylist()
        changed = [{**row, **change} for row, change in zip(rows, changes, strict=False)]
        return pa.Table.from_pylist([*changed, *rows[len(changed) :]], schema=nullable(table.schema))

    return change


def evaluations(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {
        f"{found.asset_key.path[-1]}.{found.check_name}": found.passed for found in result.get_asset_check_evaluations()
    }


def assert_ended(runs: GraphRuns, run_id: str, error: str) -> None:
    runs.require_failed(run_id, error)
    assert runs.server.deleted == set()


def test_a_poisoned_listing_goes_no_further(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(runs, monkeypatch, "store_df", "store_df", first_rows({"address": None}))
    opened = runs.open()

    result = runs.make(opened)

    assert not result.success
    assert evaluations(result) == {"store_df.shape": False}
    assert made(result) == ["store_df"]
    assert_ended(runs, opened.run_id, "check of store_df: SCHEMA: SERIES_CONTAINS_NULLS")


def test_a_frame_that_cannot_be_read_goes_no_further(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(
        runs,
        monkeypatch,
        "committed_df",
        "committed_df",
        lambda table: table.append_column("new", pa.array(["x"] * table.num_rows)),
    )
    opened = runs.open()

    result = runs.make(opened)

    assert list(failures(result)) == ["committed_df_shape"]
    assert "columns" in failures(result)["committed_df_shape"]
    assert made(result) == ["store_df", "uncommitted_df", "committed_df"]
    assert_ended(runs, opened.run_id, "columns")


@pytest.mark.slow
def test_live_and_young_candidates_go_no_further(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = runs.open()

    def change(table: pa.Table) -> pa.Table:
        committed, uncommitted = (runs.addresses(opened.run_id, name)[0] for name in ("committed_df", "uncommitted_df"))
        now = runs.clock.now()
        return first_rows({"address": committed}, {"address": uncommitted}, {"last_modified": now})(table)

    poison(runs, monkeypatch, "candidates", "candidates", change)

    result = runs.make(opened)

    said = {each.check_name: each.description for each in result.get_asset_check_evaluations() if not each.passed}
    assert said.keys() == {"disjoint", "older_than_cutoff"}
    assert all(f"disjoint from {name}" in (said["disjoint"] or "") for name in ("committed_df", "uncommitted_df"))
    assert "deleted_report" not in made(result)
    assert_ended(runs, opened.run_id, "check of candidates: ")


@pytest.mark.slow
def test_an_empty_live_set_goes_no_further(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    poison(runs, monkeypatch, "candidates", "committed_df", lambda table: table.slice(0, 0))
    opened = runs.open()

    result = runs.make(opened)

    assert evaluations(result)["candidates.live_set"] is False
    assert "deleted_report" not in made(result)
    assert_ended(runs, opened.run_id, "empty live set")


def test_all_checks_of_a_good_run_pass(runs: GraphRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[work_names.Work] = []

    def find_none(_: object) -> list[Violation]:
        shown.append(work_names._current.get())
        return []

    monkeypatch.setattr(checks, "find_losses", find_none)
    opened = runs.open()

    result = runs.make(opened, sweep=False)

    work = "check nothing_deleted_is_live of candidates"
    assert shown == [work_names.Work(f"{runs.repository.facts.id} {opened.run_id}", work)]
    assert evaluations(result) == {
        **dict.fromkeys((f"{name}.shape" for name in MODELS), True),
        "candidates.disjoint": True,
        "candidates.older_than_cutoff": True,
        "candidates.live_set": True,
        "candidates.nothing_deleted_is_live": True,
    }


@pytest.mark.slow
def test_what_was_deleted_and_is_held_all_the_same_is_reported_and_ends_no_run(runs: GraphRuns) -> None:
    first = runs.open()
    assert runs.make(first).success
    # The second in which runs were opened decides which is newer.
    runs.clock.sleep(1)
    second = runs.open()
    lost = runs.addresses(first.run_id, "candidates")[0]
    stage(runs, first.run_id, lost)

    result = runs.make(second)

    assert result.success, failures(result)
    found = evaluations(result)
    assert [name for name, passed in found.items() if not passed] == ["candidates.nothing_deleted_is_live"]
    report = runs.report(second.run_id)
    assert (report.counts["lost"], report.counts["missing"]) == (1, 0)
    # The run itself succeeded, so its report tells the result: in JSON, and by the exit status.
    assert (report.success, report.is_complete) == (False, True)
    assert failure_of(result, second.run_id) is None
    assert (
        report.warnings[0].startswith("1 object that earlier runs deleted is referenced") and lost in report.warnings[0]
    )
    assert any(report.warnings[0] in line for line in runs.lines)


def test_there_is_a_model_for_each_asset_in_their_order() -> None:
    assert tuple(MODELS) == STEPS
    others = {
        "expired",
        "unheld",
        "unrecognised",
        "sightings",
        "pending",
        "checkpoint_committed",
        "lost",
        "provisional",
    }
    assert FRAMES.keys() == {*STEPS, *others}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_columns_that_are_stored(name: str) -> None:
    columns = MODELS[name].to_schema().columns

    assert {column: (field.dtype.type, field.nullable) for column, field in columns.items()} == {
        field.name: (from_arrow_type(field.type), field.nullable) for field in FRAMES[name].schema
    }


@pytest.mark.parametrize("name", MODELS)
def test_a_model_allows_no_other_columns_and_changes_none(name: str) -> None:
    schema = MODELS[name].to_schema()

    assert schema.strict is True
    assert not schema.coerce
    assert all(not field.coerce and field.required for field in schema.columns.values())


@pytest.mark.parametrize("name", FRAMES)
def test_every_frame_and_column_is_described(name: str) -> None:
    assert FRAMES[name].description.endswith(".")
    assert all(column.description.endswith(".") for column in FRAMES[name].columns)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_values_and_the_description_of_its_frame(name: str) -> None:
    columns = MODELS[name].to_schema().columns

    def rules(column: str) -> dict[str, Any]:
        return {rule.name: next(iter(rule.statistics.values())) for rule in columns[column].checks}

    assert {column: rules(column) for column in columns} == {
        column.name: {
            **({"isin": list(column.allowed)} if column.allowed else {}),
            **({} if column.least is None else {"greater_than_or_equal_to": column.least}),
        }
        for column in FRAMES[name].columns
    }
    assert MODELS[name].__doc__ == FRAMES[name].description


def test_sizes_are_not_negative() -> None:
    for name in ("store_df", "candidates", "deleted_report"):
        (check,) = MODELS[name].to_schema().columns["size"].checks
        assert check.statistics == {"min_value": 0}


def test_times_are_stored_in_utc() -> None:
    times = {field.type for frame in FRAMES.values() for field in frame.schema if pa.types.is_timestamp(field.type)}

    assert times == {pa.timestamp("us", "UTC")}


def test_values_are_those_of_the_domain() -> None:
    def allowed(name: str, column: str) -> set[str]:
        (check,) = MODELS[name].to_schema().columns[column].checks
        return set(check.statistics["allowed_values"])

    layouts = {layout.value for layout in Layout} - {"special"}
    assert allowed("store_df", "layout") == allowed("candidates", "layout") == layouts
    assert allowed("deleted_report", "outcome") == {outcome.value for outcome in Outcome} - {
        "copied",
        "restored",
        "purged",
    }
