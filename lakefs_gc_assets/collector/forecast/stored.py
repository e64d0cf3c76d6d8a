"""Where a forecast is stored: in a folder beside those of runs, which has no plan."""

from lakefs_gc_assets.collector.stored import run_folder

NAME = "retention_forecast"
"""Of the asset, and of the frame's folder in the folder of a forecast."""


def begun(forecast_id: str) -> str:
    """Key of the empty object that a forecast begins with."""
    return f"{_folder(forecast_id)}begun"


def key(forecast_id: str) -> str:
    """Key of the forecast itself, which is stored last."""
    return f"{_folder(forecast_id)}forecast.parquet"


def by_folder(forecast_id: str) -> str:
    """Key of what it says of folders."""
    return f"{_folder(forecast_id)}folders.parquet"


def page(forecast_id: str) -> str:
    """Key of the page that shows it."""
    return f"{_folder(forecast_id)}forecast.html"


def files(forecast_id: str) -> tuple[str, ...]:
    """Keys of everything that it stores there, what it begins with last."""
    return page(forecast_id), by_folder(forecast_id), key(forecast_id), begun(forecast_id)


def _folder(forecast_id: str) -> str:
    return run_folder.frame(forecast_id, NAME)
