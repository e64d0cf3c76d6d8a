"""Runs a recorded repository through the graph, sweep included, and tells what it cost and what is left of each class.

Usage: python -m benchmarks.recorded FOLDER [--flow FLOW] [--now ISO] [--min-age AGE] [--mtime ISO] [--store local|s3]

FOLDER holds `keys.tsv.xz` (address and class of every object; their bodies are empty), `namespace-metadata.tar.xz`
(everything below `_lakefs/`) and `api.jsonl` (what the server answered; anything else is answered as in a replay).
"""

import argparse
import json
import lzma
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks import prices, tables
from benchmarks.repositories import ROOT, make_files
from benchmarks.runs import Run, RunFailed, run, served

_AGED = timedelta(days=2)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
LOCAL_FOLDER = "objects"


def classes(folder: Path) -> dict[str, str]:
    """Class of every object, by address."""
    with lzma.open(folder / "keys.tsv.xz", "rt", encoding="utf-8") as lines:
        return dict(line.rstrip("\n").split("\t") for line in lines)


def unpacked(folder: Path, repository: str, keys: Iterator[str] | None, mtime: datetime) -> Path:
    """A folder with the repository's metadata and, if `keys` are given, an empty file for each object."""
    workspace = ROOT / f"recorded-{folder.resolve().name}"
    shutil.rmtree(workspace, ignore_errors=True)
    root = workspace / LOCAL_FOLDER / repository
    root.mkdir(parents=True)
    with tarfile.open(folder / "namespace-metadata.tar.xz") as tar:
        tar.extractall(root, filter="data")
    if keys is not None:
        make_files(root, sorted(keys), mtime.timestamp())
    return workspace


def age(text: str) -> timedelta:
    """A number with one of the units s, m, h, d; hours without a unit."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "h")
    return timedelta(**{_UNITS[unit]: float(number)})


def moment(text: str) -> datetime:
    """A time; UTC without a time zone."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def measured(
    folder: Path, flow: str, now: datetime | None, min_age: timedelta | None, mtime: datetime | None, store: str
) -> tuple[Run, dict[str, tuple[int, int]]]:
    """Makes the run; returns it, with the numbers of remaining and deleted objects by class."""
    options = ["benchmarks.recorded_server", str(folder), "--store", store]
    options += ["--now", now.isoformat()] if now else []
    options += ["--mtime", mtime.isoformat()] if mtime else []
    with served(*options) as settings:
        gone = Path(settings.pop("gone"))
        clock = settings.pop("now")
        if min_age is not None:
            settings["collection"]["min_age_hours"] = min_age.total_seconds() / 3600
        made = run(settings, "--sweep", "--flow", flow, "--now", clock, show=True)
    deleted = set(gone.read_text().split())
    total, lost = (
        Counter(classes(folder).values()),
        Counter(kind for address, kind in classes(folder).items() if address in deleted),
    )
    return made, {kind: (total[kind] - lost[kind], lost[kind]) for kind in sorted(total)}


def main() -> None:
    """Prints the table of the run, then the classes; exits with status 1 if the run does not finish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flow", default="clean", help="clean (default), optimized, committed or unified")
    parser.add_argument("--now", type=moment, help="what all clocks say; two days after the recording by default")
    parser.add_argument("--min-age", type=age, help="younger objects are kept, such as 24h or 1d; 24h by default")
    parser.add_argument("--mtime", type=moment, help="when all objects were written; the recording's end by default")
    parser.add_argument("--store", choices=["local", "s3"], default="local", help="where the objects lie")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    asked = parser.parse_args()
    try:
        made, found = measured(asked.folder, asked.flow, asked.now, asked.min_age, asked.mtime, asked.store)
    except RunFailed as failed:
        sys.exit(f"benchmarks: {failed}")
    if asked.json:
        content: dict[str, Any] = {
            "run": made.as_json(),
            "classes": {kind: {"left": left, "deleted": deleted} for kind, (left, deleted) in found.items()},
        }
        print(json.dumps(content, indent=1))
        return
    title = f"{asked.folder.resolve().name}, flow {asked.flow}, store {asked.store}"
    for line in (*tables.of_run(title, made), *prices.table(made.counts)):
        print(line)
    print(f"  {'class':16} {'left':>12} {'deleted':>12}")
    for kind, (left, deleted) in found.items():
        print(f"  {kind:16} {left:>12,} {deleted:>12,}")


if __name__ == "__main__":
    main()
