"""The command line: collect a repository, and see what earlier runs did.

Everything goes through the same graph as in the UI. With DAGSTER_HOME set, runs are recorded there and show up in it.
"""

import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Literal

import click

from lakefs_gc_assets import interpreter, spark_session
from lakefs_gc_assets.command_options import CONFIG, REPOSITORY, loaded_configuration, one_line_errors
from lakefs_gc_assets.configuration import SparkSettings
from lakefs_gc_assets.explain_command import explain
from lakefs_gc_assets.policy_commands import policy
from lakefs_gc_assets.purge_command import purge
from lakefs_gc_assets.restore_command import restore

RuleSet = Literal["oss", "seed"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Collects the garbage of a lakeFS repository: stored objects that nothing references any more.

    A run lists what is stored, learns from lakeFS what is committed, staged or copied, and reports the rest. It deletes
    nothing unless --sweep is given or the configuration says so.
    """
    interpreter.look_for_cycles_seldom()
    # Dagster warns of each use of what may change in another version; pyproject.toml pins it.
    warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview)")


@main.command()
@CONFIG
@REPOSITORY
@click.option(
    "--sweep/--dry-run",
    default=None,
    help="Delete the candidates, or only report them. By default as the configuration says, which is a dry run.",
)
@click.option(
    "--flow",
    type=click.Choice(["clean", "optimized", "committed", "unified"]),
    default="clean",
    show_default=True,
    help="Look at everything, only at what is new since the last run that deleted, at what only expired commits hold, "
    "or at everything with expired commits.",
)
def run(file: Path | None, repository: str | None, sweep: bool | None, flow: str) -> None:
    """Makes one run: lists what is stored, subtracts everything that is live.

    An optimized run that has nothing to build on becomes a clean one and says why.

    Exit status 0 if the run came to its end and every deletion was accepted, 1 otherwise.
    """
    with one_line_errors():
        loaded = loaded_configuration(file, repository)
        spark_session.start(loaded.configuration.spark)
        from lakefs_gc_assets.collection.plan import Flow
        from lakefs_gc_assets.running import collect

        succeeded, lines = collect(loaded, sweep, _progress, flow=Flow(flow))
        for line in lines:
            click.echo(line)
        if not succeeded:
            sys.exit(1)


@main.command()
@CONFIG
@REPOSITORY
@click.option("--runs", default=10, show_default=True, help="How many runs to show, newest first.")
def status(file: Path | None, repository: str | None, runs: int) -> None:
    """Shows the last runs of a repository and who holds its lock."""
    with one_line_errors():
        loaded = loaded_configuration(file, repository)
        from lakefs_gc_assets.running import summary

        for line in summary(loaded, runs):
            click.echo(line)


_RULES = click.option(
    "--rules",
    type=click.Choice(["oss", "seed"]),
    default="oss",
    show_default=True,
    help="How the embedded server treats copies and issued addresses.",
)
_OBJECTS = click.option("--objects", default=500, show_default=True, help="Size of the sample repository.")
_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".playground"),
    show_default=True,
    help="Where the embedded server keeps its files.",
)
_STORE_URL = click.option(
    "--store-url",
    default="",
    help="Bucket and prefix for the objects, such as s3://bucket/prefix, instead of a local folder. Credentials and "
    "endpoint come from the environment, as for the AWS command line.",
)


@main.command()
@_RULES
@_OBJECTS
@_STORE_URL
def demo(rules: RuleSet, objects: int, store_url: str) -> None:
    """Shows a whole collection of a sample repository on an embedded lakeFS server.

    Exit status 0 if every live object is still readable and all garbage is gone, 1 otherwise.
    """
    spark_session.start(SparkSettings())
    from rich.console import Console

    from lakefs_gc_assets import demo as demonstration

    with one_line_errors(), tempfile.TemporaryDirectory(prefix="lakefs-gc-demo-") as folder:
        if not demonstration.show(Path(folder), rules, objects, Console(), store_url):
            sys.exit(1)


@main.command()
@_FOLDER
@_RULES
@_OBJECTS
@_STORE_URL
@click.option("--port", default=8000, show_default=True, help="Port of the lakeFS API.")
def embedded(folder: Path, rules: RuleSet, objects: int, store_url: str, port: int) -> None:
    """Serves an embedded lakeFS with a sample repository until interrupted. It is no production server."""
    from lakefs_gc_assets.playground import playground

    with (
        one_line_errors(),
        playground(folder, rules=rules, objects=objects, port=port, store_url=store_url),
        suppress(KeyboardInterrupt),
    ):
        threading.Event().wait()


@main.command()
@_FOLDER
@_RULES
@_OBJECTS
@click.option("--port", default=3000, show_default=True, help="Port of the UI.")
def ui(folder: Path, rules: RuleSet, objects: int, port: int) -> None:
    """Starts the Dagster UI on an embedded lakeFS with a sample repository, to look around.

    For a repository of your own, set LAKEFS_GC_CONFIG and start `dagster dev`.
    """
    from lakefs_gc_assets.playground import dagster_ui, playground

    with playground(folder, rules=rules, objects=objects, port=0) as environment:
        sys.exit(dagster_ui(environment, Path("workspace.yaml"), port))


def _progress(line: str) -> None:
    click.echo(line, err=True)


main.add_command(policy)
main.add_command(explain)
main.add_command(restore)
main.add_command(purge)
