"""The demonstration on the recording of a real server: `python -m lakefs_gc_assets_tests.replay.demo FOLDER`.

The recording is only read: the sweep deletes in a scratch layer above it. Afterwards the server must still serve every
object that the recording's own bookkeeping calls live, and no garbage.
"""

import gzip
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import boto3
import click
from botocore.config import Config
from botocore.exceptions import ClientError
from rich.console import Console

from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.playground.demo import demonstrate
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock

_AGED = timedelta(days=2)


def truth(folder: Path) -> list[dict[str, Any]]:
    """Every object of a recording with its class, from its own bookkeeping."""
    plain = folder / "truth.json"
    text = plain.read_bytes() if plain.exists() else gzip.decompress((folder / "truth.json.gz").read_bytes())
    objects: list[dict[str, Any]] = json.loads(text)["objects"]
    return [entry for entry in objects if entry["exists"] and entry["inside_namespace"]]


def is_garbage(entry: dict[str, Any]) -> bool:
    """True if a collection must delete an object: nothing references it, and lakeFS made its name."""
    recognised = layout.parse(entry["address"]).layout is not Layout.UNRECOGNISED
    return entry["class"] == "unreferenced" and recognised


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(folder: Path) -> None:
    """Serves FOLDER, aged by two days, and collects it."""
    console = Console()
    objects = truth(folder)
    recorded_at = ReplayServer(folder).recorded_at
    clock = MovingClock(recorded_at + _AGED)
    console.print(
        f"{folder.name}: recorded from a real lakeFS server on {recorded_at:%F %T}Z; all clocks say "
        f"{clock.now():%F %T}Z, waits are zero",
        soft_wrap=True,
    )
    with ReplayServer(folder, now=clock.now(), deletes="overlay") as server:
        try:
            shown = demonstrate(Loaded(server.configuration(), {}), clock, console)
        except CollectionError as error:
            sys.exit(f"demo: {error}")
        live = [entry["address"] for entry in objects if not is_garbage(entry)]
        garbage = [entry["address"] for entry in objects if is_garbage(entry)]
        answered = sum(served(server, address) for address in live)
        left = sum(served(server, address) for address in garbage)
    console.print(
        f"{answered:,} of {len(live):,} live objects are still there, {len(garbage) - left:,} of {len(garbage):,} "
        "objects of garbage are gone",
        style="bold",
        soft_wrap=True,
    )
    if answered != len(live) or left or shown.failed or len(shown.candidates) != len(garbage):
        sys.exit(1)


def served(server: ReplayServer, address: str) -> bool:
    """True if an object can be read from the store."""
    bucket, _, prefix = server.storage_namespace.removeprefix("s3://").rstrip("/").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=server.s3_url,
        region_name="us-east-1",
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        config=Config(s3={"addressing_style": "path"}),
    )
    try:
        client.get_object(Bucket=bucket, Key=f"{prefix}/{address}" if prefix else address)["Body"].read()
    except ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            return False
        raise
    return True


if __name__ == "__main__":
    main()
