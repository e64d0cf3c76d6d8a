"""Replays a real server's recording and collects it in a dry run: `python -m lakefs_gc_assets_tests.replay FOLDER`.

The last line of standard output is one JSON object with the run's results; everything else goes to standard error. With
--chain, several recordings of one repository are swept one after the other, and each prints a line.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets_tests.replay.collecting import chain, replay


def _moments(_: click.Context, __: click.Parameter, text: str | None) -> list[datetime] | None:
    if text is None:
        return None
    try:
        moments = [datetime.fromisoformat(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is no ISO 8601 time, nor several with commas between them") from None
    return [moment if moment.tzinfo else moment.replace(tzinfo=UTC) for moment in moments]


@click.command()
@click.argument("folders", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True)
@click.option("--flow", type=click.Choice([flow.value for flow in Flow]), default=Flow.CLEAN.value, show_default=True)
@click.option(
    "--now",
    "moments",
    callback=_moments,
    help="What all three clocks say, ISO 8601, UTC unless it says otherwise; for a chain one for each folder, with "
    "commas between them.",
)
@click.option("--variant", type=int, help="Number of the recorded rule set; by default the repository's last one.")
@click.option("--keep-tags", is_flag=True, help="Keep what tagged commits hold, as the product does by default.")
@click.option(
    "--chain",
    "chained",
    is_flag=True,
    help="Sweep FOLDERS in turn, the first with a clean run and the others with optimized ones, the k-th as if 2k days "
    "after it was recorded; deletions hide the objects from later folders.",
)
def main(
    folders: tuple[Path, ...],
    flow: str,
    moments: list[datetime] | None,
    variant: int | None,
    keep_tags: bool,
    chained: bool,
) -> None:
    """Serves FOLDERS over HTTP, collects them, and prints what a sweep would delete, or has deleted."""
    if not chained and len(folders) > 1:
        raise click.UsageError("several folders need --chain")
    if moments is not None and len(moments) != len(folders):
        raise click.UsageError(f"--now names {len(moments)} times for {len(folders)} folders")

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if chained:
            for found in chain(folders, moments, progress):
                print(json.dumps(found, sort_keys=True), flush=True)
        else:
            now = moments[0] if moments else None
            found = replay(folders[0], Flow(flow), now, variant, progress, keep_tags=keep_tags)
            print(json.dumps(found, sort_keys=True), flush=True)
    except (CollectionError, ValueError) as error:
        sys.exit(f"replay: {error}")


if __name__ == "__main__":
    main()
