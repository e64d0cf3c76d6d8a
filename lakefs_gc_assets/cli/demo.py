"""`lakefs-gc demo`: a whole collection of a sample repository."""

import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from lakefs_gc_assets.cli.endings import Status
from lakefs_gc_assets.cli.options import JSON, OBJECTS, RULES, STORE_URL, RuleSet, answer
from lakefs_gc_assets.embedded.demo import show


@click.command()
@RULES
@OBJECTS
@STORE_URL
@JSON
def demo(rules: RuleSet, objects: int, store_url: str, as_json: bool) -> None:
    """Shows a whole collection of a sample repository on an embedded lakeFS server.

    Exit status 0 if every live object is still readable and all garbage is gone, 1 otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="lakefs-gc-demo-") as folder:
        well = show(Path(folder), rules, objects, Console(stderr=as_json), store_url)
    if as_json:
        answer({"well": well})
    if not well:
        sys.exit(Status.FAILED)
