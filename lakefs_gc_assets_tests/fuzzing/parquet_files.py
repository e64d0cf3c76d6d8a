"""Parquet written by others (uncommitted data) or stored for long (receipts, ids), damaged anywhere."""

import io
import random
from datetime import UTC, datetime
from functools import cache
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.frames import RECEIPTS
from lakefs_gc_assets.collector.live.uncommitted import read_addresses
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.storage.interface import Level, ObjectFacts, ObjectStore
from lakefs_gc_assets_tests.fuzzing.mutation import hostile_text, mutated
from lakefs_gc_assets_tests.fuzzing.running import Case, Target, outcome
from lakefs_gc_assets_tests.runs.recordings import FIXTURES


class OneObject:
    """A store with a single object, and the methods that readers need."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = data

    def get(self, key: str) -> bytes:
        return self.data

    def put(self, key: str, data: bytes) -> None:
        self.data = data

    def list_level(self, prefix: str) -> Level:
        return Level((), (ObjectFacts(f"{prefix}one", len(self.data), datetime(2026, 1, 1, tzinfo=UTC), None),))

    def as_store(self) -> ObjectStore:
        return cast(ObjectStore, self)


@cache
def _uncommitted() -> list[tuple[bytes, list[str]]]:
    """Files like a server's, and a real server's files if recordings exist."""
    rng = random.Random(1)
    files = []
    for rows in (0, 1, 3, 40, 40, 200):
        addresses = [hostile_text(rng, "data/slice/object,signature") for _ in range(rows)]
        columns = [pa.array(addresses, pa.string()), pa.array(range(rows), pa.int64())]
        table = pa.table(columns, names=["physical_address", "creation_date"])
        for dictionary in (True, False):
            buffer = io.BytesIO()
            pq.write_table(table, buffer, compression="gzip", use_dictionary=dictionary, row_group_size=64)
            files.append((buffer.getvalue(), addresses))
    for path in sorted(FIXTURES.glob("small/namespace/_lakefs/retention/gc/uncommitted/*/uncommitted/*"))[:2]:
        files.append((path.read_bytes(), read_addresses(OneObject(path.read_bytes()).as_store(), "file").to_pylist()))
    return files


def _uncommitted_case(rng: random.Random) -> Case:
    """Pages are compressed with gzip, which has a checksum: a readable page equals the written one."""
    built, addresses = rng.choice(_uncommitted())
    data = mutated(rng, built, built) if rng.random() < 0.95 else built

    def right(found: pa.ChunkedArray) -> None:
        assert found.type == pa.string() and found.to_pylist() == addresses

    return Case(len(data), lambda: outcome(lambda: read_addresses(OneObject(data).as_store(), "file"), right))


@cache
def _ids() -> tuple[bytes, str, frozenset[str]]:
    store, ids = OneObject(), frozenset(random.Random(2).randbytes(32).hex() for _ in range(60))
    sha256 = tables.write_ids(store.as_store(), "ids", ids)
    return store.data, sha256, ids


def _ids_case(rng: random.Random) -> Case:
    """Ids that a report names by their digest equal the written ones; others are text at least."""
    built, sha256, ids = _ids()
    data = mutated(rng, built, built) if rng.random() < 0.9 else built
    stated = rng.choice((sha256, None))

    def right(found: frozenset[str]) -> None:
        assert found == ids if stated else all(isinstance(each, str) and each.encode() for each in found)

    return Case(len(data), lambda: outcome(lambda: tables.read_ids(OneObject(data).as_store(), "ids", stated), right))


@cache
def _receipts() -> bytes:
    rng, store, rows = random.Random(3), OneObject(), 30
    candidates = pa.table(
        [
            pa.array([hostile_text(rng, "data/slice/object") for _ in range(rows)], pa.string()),
            pa.array(range(rows), pa.int64()),
            pa.array([None] * rows, pa.string()),
            pa.array(["legacy"] * rows, pa.string()),
        ],
        names=["address", "size", "slice", "slice_window"],
    )
    outcomes = [rng.choice(list(Outcome)) for _ in range(rows)]
    errors = [hostile_text(rng) if each is Outcome.FAILED else None for each in outcomes]
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    receipts.write(store.as_store(), "run", "batch", receipts.table(candidates, outcomes, errors, moment))
    return store.data


def _receipts_case(rng: random.Random) -> Case:
    """Receipts have no digest: rows that can be read have the columns of receipts and existing outcomes."""
    built = _receipts()
    data = mutated(rng, built, built) if rng.random() < 0.95 else built

    def right(found: pa.Table) -> None:
        assert found.schema == RECEIPTS
        for row in found.to_pylist():
            assert all(row[field.name] is not None for field in RECEIPTS if not field.nullable)
            Outcome(row["outcome"])

    return Case(len(data), lambda: outcome(lambda: receipts.read(OneObject(data).as_store(), "run"), right))


TARGETS = (
    Target("uncommitted", _uncommitted_case),
    Target("ids", _ids_case),
    Target("receipts", _receipts_case),
)
