"""Forecasts as they are stored: their keys, the table of figures, and the newest one.

A forecast lies in a folder beside those of runs that has no plan. The extension that makes forecasts may be absent, and
its files still expire as frames of old runs do.
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
_RUNS_LOOKED_AT = 50
"""Maximum folders of runs and forecasts that are searched for the newest forecast."""

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


class ScenarioKind(StrEnum):
    """Kind of change in a scenario."""

    IN_FORCE = "in force"
    AGE = "age"
    POLICY = "policy"
    BRANCH = "branch"
    TAG = "tag"

    @property
    def by_rules(self) -> bool:
        """True if it changes the rules, while all branches and tags stay."""
        return self in (ScenarioKind.IN_FORCE, ScenarioKind.AGE, ScenarioKind.POLICY)


def read_newest(store: ObjectStore) -> tuple[str, pa.Table] | None:
    """Id and rows (FORECAST) of the newest forecast that came to its end and can be read; None without one."""
    for forecast_id in islice(run_folder.folders(store), _RUNS_LOOKED_AT):
        key = forecast_key(forecast_id)
        if (data := get_if_there(store, key)) is not None:
            with suppress(CorruptFile):
                return forecast_id, tables.decode(FORECAST, data, key, NAME)
    return None


def begun_key(forecast_id: str) -> str:
    """Key of the empty object that a forecast begins with."""
    return f"{_folder(forecast_id)}begun"


def forecast_key(forecast_id: str) -> str:
    """Key of the forecast itself, which is stored last."""
    return f"{_folder(forecast_id)}forecast.parquet"


def folders_key(forecast_id: str) -> str:
    """Key of what it says of folders."""
    return f"{_folder(forecast_id)}folders.parquet"


def page_key(forecast_id: str) -> str:
    """Key of the page that shows it."""
    return f"{_folder(forecast_id)}forecast.html"


def keys_of(forecast_id: str) -> tuple[str, ...]:
    """Keys of everything that it stores there, what it begins with last."""
    return page_key(forecast_id), folders_key(forecast_id), forecast_key(forecast_id), begun_key(forecast_id)


def _folder(forecast_id: str) -> str:
    return run_folder.frame(forecast_id, NAME)
