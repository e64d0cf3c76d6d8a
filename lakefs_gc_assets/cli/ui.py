"""`lakefs-gc ui`: the Dagster UI on your own repositories or on an embedded lakeFS server."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from lakefs_gc_assets.cli.common import FOLDER, JSON, OBJECTS, RULES, answer, loaded_configurations, show_progress
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE
from lakefs_gc_assets.embedded.core import RuleSet
from lakefs_gc_assets.embedded.demo import playground
from lakefs_gc_assets.embedded.ui import ending_on_signals, prepare_home, require_free_port, serve
from lakefs_gc_assets.errors import LogLine, requiring


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file of your own repositories, which are shown in place of an embedded lakeFS.",
)
@FOLDER
@RULES
@OBJECTS
@click.option("--port", default=3000, show_default=True, help="Port of the UI.")
@JSON
def ui(file: Path | None, folder: Path, rules: RuleSet, objects: int, port: int, as_json: bool) -> None:
    """Starts the Dagster UI on the repositories of a configuration file, or on a sample repository to look around.

    The sample is on an embedded lakeFS; its first start makes a dry run, so that there is something to see. Your own
    repositories are not collected until you launch a run.

    It prints the UI's URL last, listens on this machine alone, and ends on INT and TERM. Dagster's runs are kept in
    $DAGSTER_HOME, else in .dagster beside the configuration file, or in the folder. With DAGSTER_HOME set to it, the
    command line's runs show up too.
    """
    with requiring("ui", "the Dagster UI"):
        import dagster_webserver  # noqa: F401
    require_free_port(port)
    status, say = 0, show_progress if as_json else click.echo

    def print_url(url: str) -> None:
        if as_json:
            answer({"url": url}, indent=None)
        else:
            click.echo(url)

    with suppress(KeyboardInterrupt), ending_on_signals():
        if file is not None:
            status = _serve_own(file, port, say, print_url)
        else:
            with playground(folder, rules=rules, objects=objects, port=0, say=say) as environment:
                status = serve(environment, port, _home(folder / "dagster"), say, print_url)
    sys.exit(status)


def _serve_own(file: Path, port: int, say: LogLine, print_url: LogLine) -> int:
    """Serves the UI of a file's repositories. Raises CollectionError if the file is wrong or lacks a secret."""
    names = [loaded.configuration.repository for loaded in loaded_configurations(file)]
    home = _home(file.parent / ".dagster")
    say(f"starting the Dagster UI of {', '.join(names)}; its runs are kept in {home}")
    return serve({CONFIGURATION_VARIABLE: str(file.resolve())}, port, home, say, print_url, first_run=False)


def _home(default: Path) -> Path:
    return prepare_home(Path(os.environ.get("DAGSTER_HOME") or default))
