"""`lakefs-gc embedded`: an embedded lakeFS server with a sample repository."""

import threading
from contextlib import suppress
from pathlib import Path

import click

from lakefs_gc_assets.cli.options import FOLDER, OBJECTS, RULES, STORE_URL, RuleSet
from lakefs_gc_assets.embedded.playground import playground


@click.command()
@FOLDER
@RULES
@OBJECTS
@STORE_URL
@click.option("--port", default=8000, show_default=True, help="Port of the lakeFS API.")
def embedded(folder: Path, rules: RuleSet, objects: int, store_url: str, port: int) -> None:
    """Serves an embedded lakeFS with a sample repository until interrupted. It is no production server."""
    with (
        playground(folder, rules=rules, objects=objects, port=port, store_url=store_url),
        suppress(KeyboardInterrupt),
    ):
        threading.Event().wait()
