"""Facts about branch heads that the next attribution builds on: parts that were read, and objects that commits brought.

They lie in a folder for each run, and one file names the newest. If it is missing or damaged, everything is read again,
and the commits that brought earlier objects are unknown from then on.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.run_folder import HOLDINGS_HEADS
from lakefs_gc_assets.errors import CorruptFile, LogLine
from lakefs_gc_assets.extensions.holdings.head_parts import SPREAD, SUMS
from lakefs_gc_assets.storage.interface import ObjectStore, get_if_there

FORMAT_VERSION = 1
NEWEST = f"{HOLDINGS_HEADS}newest.json"
"""Key of the file that names the newest facts."""
_WHAT = "facts about branch heads"

PART_RANGES = pa.schema([*RANGES, pa.field("part", pa.string(), nullable=False)])
METARANGES = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("places", pa.list_(pa.int32()))])
"""Metaranges of heads; places are rows of the table of ranges."""
PARTS = pa.schema(
    [
        pa.field("part", pa.string(), nullable=False),
        pa.field("uncertain", pa.int64(), nullable=False),
        pa.field("slices", pa.list_(pa.string()), nullable=False),
    ]
)
CUTS = pa.schema([pa.field("cut", pa.binary(), nullable=False)])
BROUGHT = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("part", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("commit", pa.int32(), nullable=False),
    ]
)
"""Objects of heads that commits brought since the first attribution, each once: the hash of the address, a part that
has it, and the place of the commit in the list of commits."""
_TABLES = {
    "ranges": PART_RANGES,
    "metaranges": METARANGES,
    "parts": PARTS,
    "cuts": CUTS,
    "sums": SUMS,
    "spread": SPREAD,
    "brought": BROUGHT,
}


@dataclass(frozen=True, slots=True)
class BringingCommit:
    """A commit that brought objects into a head.

    Attributes:
        branch: the branch on which it was found.
        date: seconds since 1970 UTC, as the commit states them.
    """

    id: str
    branch: str
    committer: str
    date: int
    metadata: Mapping[str, str]


@dataclass(frozen=True)
class KnownHeads:
    """Facts about the branch heads that a run saw.

    Attributes:
        depth: number of path components of a folder in `sums`.
        entries: number of entries of all ranges when paths were cut into intervals.
        cutoff: cutoff of the run, UTC; `sums` name slices that were younger when they were read.
        branches: commit of each head by branch.
        sealed: objects in sealed slices that commits hold, and their bytes, after `sealed_run`; None if unknown.
        sealed_run: the newest run that left a checkpoint; empty if none is known. Dry runs leave none.
        tables: by name, with the schemas of this module.
        commits: commits in the order of their places in BROUGHT.
    """

    repository: str
    run_id: str
    depth: int
    entries: int
    cutoff: datetime
    branches: Mapping[str, str]
    sealed: Amount | None = None
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    commits: tuple[BringingCommit, ...] = ()
    sealed_run: str = ""

    def __getitem__(self, name: str) -> pa.Table:
        return self.tables[name] if name in self.tables else _TABLES[name].empty_table()


def write(store: ObjectStore, heads: KnownHeads) -> None:
    """Stores facts as the newest. Raises StorageError."""
    digests = {name: tables.put(store, _key(heads.run_id, name), heads[name].cast(_TABLES[name])) for name in _TABLES}
    content = {
        "format_version": FORMAT_VERSION,
        "repository": heads.repository,
        "run_id": heads.run_id,
        "depth": heads.depth,
        "entries": heads.entries,
        "cutoff": heads.cutoff.isoformat(),
        "branches": dict(heads.branches),
        "sealed": heads.sealed,
        "sealed_run": heads.sealed_run,
        "digests": digests,
        "commits": [asdict(commit) for commit in heads.commits],
    }
    store.put(NEWEST, json.dumps(content).encode())


def read(store: ObjectStore) -> KnownHeads | None:
    """The newest facts; None if there are none. Raises CorruptFile if they are damaged or of another version."""
    data = get_if_there(store, NEWEST)
    if data is None:
        return None
    try:
        content: dict[str, Any] = json.loads(data)
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its format is {content['format_version']!r}")
        run_id, digests = content["run_id"], content["digests"]
        stored = {}
        for name, schema in _TABLES.items():
            key = _key(run_id, name)
            stored[name] = tables.decode(schema, tables.get(store, key, digests[name]), key, _WHAT)
        sealed = content["sealed"]
        return KnownHeads(
            content["repository"],
            run_id,
            int(content["depth"]),
            int(content["entries"]),
            datetime.fromisoformat(content["cutoff"]),
            content["branches"],
            None if sealed is None else Amount(int(sealed[0]), int(sealed[1])),
            stored,
            tuple(BringingCommit(**commit) for commit in content["commits"]),
            str(content["sealed_run"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CorruptFile(NEWEST, _WHAT, f"cannot be read: {error!r}") from None


def read_usable(store: ObjectStore, repository: str, warn: LogLine) -> KnownHeads | None:
    """The newest facts of a repository; None if there are none, or if they cannot be used. Raises StorageError."""
    try:
        heads = read(store)
    except CorruptFile as damage:
        warn(f"everything is read again, and it is unknown which commits brought earlier objects: {damage}")
        return None
    return heads if heads and heads.repository == repository else None


def _key(run_id: str, name: str) -> str:
    return f"{HOLDINGS_HEADS}{run_id}/{name}.parquet"
