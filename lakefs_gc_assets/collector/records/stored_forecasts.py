"""Stored forecasts: their keys, the table of figures, and the newest one.

A forecast has a folder beside those of runs, without a plan. If the extension that makes forecasts is absent, its files
still expire like frames of old runs.
"""

from contextlib import suppress
from enum import StrEnum
from itertools import islice

import pyarrow as pa

from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

NAME = "retention_forecast"
"""Name of the asset, and of the frame's folder in the folder of a forecast."""
MOST_FOLDERS = 50
"""Maximum newest folders that are searched for a forecast, or for a run that listed storage classes."""

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
"""A stored forecast: a row for each set of rules, branch and tag. Columns that do not apply to a row are null."""


class ScenarioKind(StrEnum):
    """Kind of change in a scenario."""

    IN_FORCE = "in force"
    AGE = "age"
    POLICY = "policy"
    BRANCH = "branch"
    TAG = "tag"

    @property
    def by_rules(self) -> bool:
        """True if the scenario changes the rules, while all branches and tags stay."""
        return self in (ScenarioKind.IN_FORCE, ScenarioKind.AGE, ScenarioKind.POLICY)


def read_newest(store: ObjectStore) -> tuple[str, pa.Table] | None:
    """Id and rows (FORECAST) of the newest finished, readable forecast; None if there is none."""
    for forecast_id in islice(run_folder.folders(store), MOST_FOLDERS):
        key = forecast_key(forecast_id)
        if (data := get_if_there(store, key)) is not None:
            with suppress(CorruptFile):
                return forecast_id, tables.decode(FORECAST, data, key, NAME)
    return None


def begun_key(forecast_id: str) -> str:
    """Key of the empty object that marks the start of a forecast."""
    return f"{_folder(forecast_id)}begun"


def forecast_key(forecast_id: str) -> str:
    """Key of the forecast itself, which is stored last."""
    return f"{_folder(forecast_id)}forecast.parquet"


def folders_key(forecast_id: str) -> str:
    """Key of the forecast's figures by folder."""
    return f"{_folder(forecast_id)}folders.parquet"


def page_key(forecast_id: str) -> str:
    """Key of the forecast's page."""
    return f"{_folder(forecast_id)}forecast.html"


def keys_of(forecast_id: str) -> tuple[str, ...]:
    """Keys of everything that a forecast stores there; the start marker is last."""
    return page_key(forecast_id), folders_key(forecast_id), forecast_key(forecast_id), begun_key(forecast_id)


def _folder(forecast_id: str) -> str:
    return run_folder.frame(forecast_id, NAME)
