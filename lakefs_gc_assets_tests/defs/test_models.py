import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_type

from lakefs_gc_assets.collector.frame.kinds import FRAMES, STEPS
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.defs.models import MODELS
from lakefs_gc_assets.lakefs.layout import Layout


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
def test_a_model_says_what_its_frame_says(name: str) -> None:
    columns = MODELS[name].to_schema().columns
    assert {column: field.description for column, field in columns.items()} == {
        column.name: column.description for column in FRAMES[name].columns
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
