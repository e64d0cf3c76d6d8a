"""Serves a recorded benchmark in a process of its own, its objects in a local folder or behind an S3 endpoint.

Usage: python -m benchmarks.recorded_server FOLDER --store local|s3 [--now ISO] [--mtime ISO]. Prints the settings of a
collection as one line of JSON and serves until standard input ends; then it writes which objects are gone.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.recorded import LOCAL_FOLDER, classes, moment, unpacked
from lakefs_gc_assets_tests.replay.recording import RecordedObject, Recording
from lakefs_gc_assets_tests.replay.server import ReplayServer

_AGED = timedelta(days=2)
_NO_CONTENT = hashlib.md5(b"").hexdigest()


class RecordedBenchmark(Recording):
    """A recording whose objects have names but no content; a storage namespace in a folder is spelled `local://`."""

    def __init__(self, folder: Path, store: str, mtime: datetime | None) -> None:
        self._read_answers(folder)
        self.addresses = list(classes(folder))
        self.mtime = mtime or self.recorded_at
        self.workspace = unpacked(
            folder, self.repository, iter(self.addresses) if store == "local" else None, self.mtime
        )
        self.root = self.workspace / LOCAL_FOLDER / self.repository
        self.objects = {}
        if store == "local":
            self.relocate(f"local://{self.repository}")
            return
        written = RecordedObject(0, self.mtime, _NO_CONTENT)
        self.objects = dict.fromkeys(self.addresses, written)
        for file in self.root.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                key = str(file.relative_to(self.root))
                self.objects[key] = RecordedObject(len(content), self.mtime, hashlib.md5(content).hexdigest())

    def read(self, key: str) -> bytes:
        """The content of an object."""
        return (self.root / key).read_bytes() if key.startswith("_lakefs/") else b""


def _clock(recorded_at: datetime, now: datetime | None) -> Callable[[], datetime]:
    moved = (now or recorded_at + _AGED) - datetime.now(UTC)
    return lambda: datetime.now(UTC) + moved


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", choices=["local", "s3"], required=True)
    parser.add_argument("--now", type=moment)
    parser.add_argument("--mtime", type=moment)
    asked = parser.parse_args()
    recording = RecordedBenchmark(asked.folder, asked.store, asked.mtime)
    now = _clock(recording.recorded_at, asked.now)
    gone = recording.workspace / "gone.txt"
    with ReplayServer(recording, now=now, deletes="overlay") as server:
        settings = server.configuration().model_dump(exclude_defaults=True)
        # Recorded rules name branches that a recording lacks.
        settings["collection"]["allow_rules_of_unknown_branches"] = True
        if asked.store == "local":
            settings["store"] = {"local_root": str((recording.workspace / LOCAL_FOLDER).resolve())}
        print(json.dumps({**settings, "gone": str(gone), "now": now().isoformat()}), flush=True)
        sys.stdin.read()
        deleted = server.deleted
    if asked.store == "local":
        deleted = {address for address in recording.addresses if not (recording.root / address).exists()}
    gone.write_text("\n".join(sorted(deleted)))


if __name__ == "__main__":
    main()
