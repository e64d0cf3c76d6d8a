"""Entries decoded per second and core: the compiled reader beside plain Python with google.protobuf.

Usage: python -m benchmarks.decode [FOLDER of recordings]. Reads each range of `large` and `wide` again and again,
checks that both readers find the same addresses, and prints the best of several rounds.
"""

import argparse
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import Entry, read_records
from lakefs_gc_assets_tests.recordings import FIXTURES

_ROUNDS = 25


def _files(folder: Path) -> dict[str, bytes]:
    archive = folder / "namespace.tar.gz"
    if not archive.exists():
        return {path.name: path.read_bytes() for path in (folder / "namespace/_lakefs").iterdir() if path.is_file()}
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and "/_lakefs/" in member.name]
        return {Path(member.name).name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def _compiled(data: bytes) -> list[str]:
    return ranges.read_range(data, "range").addresses.to_pylist()  # type: ignore[no-any-return]


def _plain(data: bytes) -> list[str]:
    entries: list[Any] = [Entry.FromString(message) for _, _, message in read_records(data)]
    return [entry.address.decode() for entry in entries]


def _best(read: Callable[[bytes], object], tables: list[bytes], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for data in tables:
            read(data)
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    """Prints one line for each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recordings", nargs="?", type=Path, default=FIXTURES)
    recordings: Path = parser.parse_args().recordings
    for name in ("large", "wide"):
        tables = [
            data
            for file, data in _files(recordings / name).items()
            if len(file) == 64
            and ranges.table_kind(data, file).type == "ranges"
            and ranges.table_kind(data, file).entity is None
        ]
        entries = 0
        for data in tables:
            addresses = _compiled(data)
            if addresses != _plain(data):
                raise SystemExit(f"{name}: the two readers disagree")
            entries += len(addresses)
        compiled = _best(lambda data: ranges.read_range(data, "range"), tables, _ROUNDS)
        plain = _best(_plain, tables, 3)
        print(
            f"{name}: {len(tables)} ranges, {entries} entries; compiled {entries / compiled:,.0f} entries/s, "
            f"protobuf {entries / plain:,.0f} entries/s, {plain / compiled:.0f} times"
        )


if __name__ == "__main__":
    main()
