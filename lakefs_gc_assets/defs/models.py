"""The pandera models of the assets' frames, made from the columns that the frames declare."""

from typing import Any

import pandera.pyspark as pa
from pandera.pyspark import DataFrameModel
from pyspark.sql.pandas.types import from_arrow_type

from lakefs_gc_assets.collector.frame.columns import Column
from lakefs_gc_assets.collector.frame.kinds import FRAMES, STEPS, Frame


class FrameModel(DataFrameModel):  # type: ignore[type-arg]
    """What the models of all frames have in common."""

    class Config:
        """Columns that are not described are an error."""

        strict = True


def make_model(frame: Frame[Any]) -> type[FrameModel]:
    """The model of a frame: names, types, nullability and values of its columns, and what they mean."""
    members = {
        "__doc__": frame.description,
        "__module__": __name__,
        "__annotations__": {column.name: from_arrow_type(column.type) for column in frame.columns},
        **{column.name: _field(column) for column in frame.columns},
    }
    return type(frame.name, (FrameModel,), members)


def _field(column: Column) -> Any:
    return pa.Field(
        nullable=column.nullable,
        isin=list(column.allowed) or None,
        ge=column.least,
        description=column.description,
    )


MODELS: dict[str, type[FrameModel]] = {name: make_model(FRAMES[name]) for name in STEPS}
"""The model of each asset's frame."""
