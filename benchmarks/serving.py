"""Serves a generated repository in a process of its own: `python -m benchmarks.serving FOLDER` prints its settings."""

import argparse
import sys
from pathlib import Path

from benchmarks.repositories import REPOSITORY
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CollectionSettings, Configuration, LakeFSSettings, StoreSettings


def main() -> None:
    """Prints a configuration as one line of JSON and serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    with EmbeddedServer(parser.parse_args().folder / "lakefs") as server:
        configuration = Configuration(
            repository=REPOSITORY,
            lakefs=LakeFSSettings(
                endpoint=server.url, access_key_id=server.access_key_id, secret_access_key=server.secret_access_key
            ),
            store=StoreSettings(local_root=str((server.folder / "objects").resolve())),
            collection=CollectionSettings(wait_before_dump_seconds=0, wait_before_recheck_seconds=0),
        )
        print(configuration.model_dump_json(exclude_defaults=True), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
