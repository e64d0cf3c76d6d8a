"""`lakefs-gc ui`: the Dagster UI on an embedded lakeFS server."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import click

from lakefs_gc_assets.cli.options import FOLDER, JSON, OBJECTS, RULES, RuleSet, answer, show_progress
from lakefs_gc_assets.embedded.dagster_ui import ending_on_signals, serve
from lakefs_gc_assets.embedded.playground import playground


@click.command()
@FOLDER
@RULES
@OBJECTS
@click.option("--port", default=3000, show_default=True, help="Port of the UI.")
@JSON
def ui(folder: Path, rules: RuleSet, objects: int, port: int, as_json: bool) -> None:
    """Starts the Dagster UI on an embedded lakeFS with a sample repository, to look around.

    The first time it makes a dry run, so that there is something to see. It prints the UI's URL last, and ends on INT
    and TERM. Dagster's runs are kept in $DAGSTER_HOME, or in the folder. For a repository of your own, set
    LAKEFS_GC_CONFIG and start `dagster dev`.
    """
    status, say = 0, show_progress if as_json else click.echo

    def tell(url: str) -> None:
        if as_json:
            answer({"url": url}, indent=None)
        else:
            click.echo(url)

    with (
        suppress(KeyboardInterrupt),
        ending_on_signals(),
        playground(folder, rules=rules, objects=objects, port=0, say=say) as environment,
    ):
        home = Path(os.environ.get("DAGSTER_HOME") or folder / "dagster").resolve()
        home.mkdir(parents=True, exist_ok=True)
        status = serve({**environment, "DAGSTER_HOME": str(home)}, port, home / "ui.log", say, tell)
    sys.exit(status)
