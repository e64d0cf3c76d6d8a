"""`lakefs-gc embedded`: an embedded lakeFS server with a sample repository."""

import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import JSON, answer, print_result, show_progress
from lakefs_gc_assets.cli.progress import shown_bar
from lakefs_gc_assets.extensions.playground.demo import playground
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet
from lakefs_gc_assets.extensions.playground.options import FOLDER, OBJECTS, RULES, STORE_URL


@click.command()
@FOLDER
@RULES
@OBJECTS
@STORE_URL
@click.option("--port", default=8000, show_default=True, help="Port of the lakeFS API.")
@JSON
def embedded(folder: Path, rules: RuleSet, objects: int, store_url: str, port: int, as_json: bool) -> None:
    """Serves an embedded lakeFS with a sample repository until interrupted. It is no production server."""
    say = show_progress if as_json else print_result
    with ExitStack() as stack:
        with shown_bar("making the sample repository"):
            environment = stack.enter_context(
                playground(folder, rules=rules, objects=objects, port=port, store_url=store_url, say=say)
            )
        if as_json:
            answer({"environment": environment}, indent=None)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
