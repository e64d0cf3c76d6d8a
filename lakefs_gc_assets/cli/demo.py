"""`lakefs-gc demo`: a whole collection of a sample repository, or a forecast of retention rules for another one."""

import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

import click
from rich.console import Console

from lakefs_gc_assets.cli.common import JSON, OBJECTS, RULES, STORE_URL, answer, print_answer, show_progress
from lakefs_gc_assets.cli.forecast import describe, encode
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.page import forecast as page
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.defs.forecasting import forecast_now
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.embedded.core import RuleSet
from lakefs_gc_assets.embedded.demo import months, show


@click.command()
@RULES
@OBJECTS
@STORE_URL
@click.option("--forecast", "forecasts", is_flag=True, help="Instead, forecast retention rules for a year of commits.")
@click.option(
    "--html", type=click.File("wb", lazy=True, atomic=True), help="With --forecast: file to write the page to."
)
@JSON
def demo(rules: RuleSet, objects: int, store_url: str, forecasts: bool, html: BinaryIO | None, as_json: bool) -> None:
    """Shows a whole collection of a sample repository on an embedded lakeFS server.

    Exit status 0 if every live object is still readable and all garbage is gone, 1 otherwise.

    With --forecast the sample has a year of commits. The command prints what other retention rules would free.
    """
    if html is not None and not forecasts:
        raise click.UsageError("--html is for --forecast.")
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-demo-") as folder:
        if forecasts:
            _forecast(Path(folder), html, as_json)
            return
        succeeded = show(Path(folder), rules, objects, Console(stderr=as_json), store_url)
    if as_json:
        answer({"well": succeeded})
    if not succeeded:
        sys.exit(Status.FAILED)


def _forecast(folder: Path, html: BinaryIO | None, as_json: bool) -> None:
    show_progress("making a repository with a year of commits, call by call")
    with months(folder) as loaded:
        _, forecast = forecast_now(Collector.from_loaded(loaded, SystemClock()), show_progress, depth=1)
    if html is not None:
        html.write(page.render(forecast))
    print_answer(as_json, lambda: encode(forecast), describe(forecast))
