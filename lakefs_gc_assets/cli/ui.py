"""`lakefs-gc ui`: the Dagster UI on an embedded lakeFS server."""

import sys
from pathlib import Path

import click

from lakefs_gc_assets.cli.options import FOLDER, OBJECTS, RULES, RuleSet
from lakefs_gc_assets.embedded.playground import dagster_ui, playground


@click.command()
@FOLDER
@RULES
@OBJECTS
@click.option("--port", default=3000, show_default=True, help="Port of the UI.")
def ui(folder: Path, rules: RuleSet, objects: int, port: int) -> None:
    """Starts the Dagster UI on an embedded lakeFS with a sample repository, to look around.

    For a repository of your own, set LAKEFS_GC_CONFIG and start `dagster dev`.
    """
    with playground(folder, rules=rules, objects=objects, port=0) as environment:
        sys.exit(dagster_ui(environment, Path("workspace.yaml"), port))
