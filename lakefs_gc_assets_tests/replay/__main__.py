"""Replays a real server's recording and collects it in a dry run: `python -m lakefs_gc_assets_tests.replay FOLDER`.

The last line of standard output is one JSON object with what the run found; everything else goes to standard error.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets_tests.replay.collecting import replay


def _moment(_: click.Context, __: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no ISO 8601 time") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--flow", type=click.Choice([flow.value for flow in Flow]), default=Flow.CLEAN.value, show_default=True)
@click.option("--now", callback=_moment, help="What all three clocks say, ISO 8601, UTC unless it says otherwise.")
@click.option("--variant", type=int, help="Number of the recorded rule set; by default the repository's last one.")
def main(folder: Path, flow: str, now: datetime | None, variant: int | None) -> None:
    """Serves FOLDER over HTTP, collects it, and prints what a sweep would delete."""
    try:
        found = replay(folder, Flow(flow), now, variant, lambda line: print(line, file=sys.stderr, flush=True))
    except (CollectionError, ValueError) as error:
        sys.exit(f"replay: {error}")
    print(json.dumps(found, sort_keys=True), flush=True)


if __name__ == "__main__":
    main()
