"""`lakefs-gc demo`: a whole collection of a sample repository, or a forecast of retention rules for another one."""

import os
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from lakefs_gc_assets.cli.common import JSON, answer, show_progress
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.extensions.playground.demo import (
    CONFIGURATION_FILE,
    SECRET_VARIABLE,
    months,
    show,
    write_configuration,
)
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet
from lakefs_gc_assets.extensions.playground.options import OBJECTS, RULES, STORE_URL


@click.command()
@RULES
@OBJECTS
@STORE_URL
@click.option("--forecast", "forecasts", is_flag=True, help="Instead, forecast retention rules for a year of commits.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --forecast: file to write the page to, instead of lines.",
)
@JSON
def demo(rules: RuleSet, objects: int, store_url: str, forecasts: bool, html: Path | None, as_json: bool) -> None:
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


def _forecast(folder: Path, html: Path | None, as_json: bool) -> None:
    """Runs the command `forecast` on a sample with a year of commits. Raises click.UsageError if there is none."""
    root = click.get_current_context().find_root()
    command = root.command.get_command(root, "forecast") if isinstance(root.command, click.Group) else None
    if command is None:
        raise click.UsageError("--forecast needs the command forecast, which is not installed.")
    show_progress("making a repository with a year of commits, call by call")
    with months(folder) as loaded:
        file = folder / CONFIGURATION_FILE
        write_configuration(file, loaded.configuration)
        os.environ[SECRET_VARIABLE] = loaded.configuration.lakefs.secret_access_key
        options = ["--config", str(file), "--by-path", "1"]
        options += ["--html", str(html)] if html else []
        options += ["--json"] if as_json else []
        with command.make_context("forecast", options, parent=root) as context:
            command.invoke(context)
