"""Files in the store: written by servers (uncommitted data, lists of commits) or by runs (receipts, ids, documents).

Parquet is damaged anywhere. The list of commits is CSV that is damaged, or has unexpected columns, quotes and lines.
Plans, reports, manifests and locks are changed anywhere, or have other values.
"""

import csv
import hashlib
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import ServerCommits
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest, Span
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, RECEIPTS, CommittedFigures
from lakefs_gc_assets.collector.live.uncommitted import read_addresses
from lakefs_gc_assets.collector.records import records_json, tables
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.storage.interface import Level, ObjectFacts, ObjectStore
from lakefs_gc_assets_tests.fuzzing.fuzzer import Case, Target, hostile_text, mutated, mutated_json, outcome
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


_COLUMNS = ("commit_id", "expired", "metarange_id")


def _commits_csv(rng: random.Random) -> bytes:
    columns = _COLUMNS[: rng.choice((2, 3, 3, 3))]
    lines = [",".join(columns)]
    for _ in range(rng.randrange(5)):
        row = (
            rng.randbytes(32).hex(),
            rng.choice(("false", "false", "true")),
            rng.choice(("", rng.randbytes(32).hex())),
        )
        lines.append(",".join(row[: len(columns)]))
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines) + 1), hostile_text(rng, "x,false,y"))
    return "\n".join(lines).encode()


def _commits_rows(data: bytes) -> list[tuple[str, ...]]:
    """Rows by Python's own reader, without empty lines."""
    lines = [row for row in csv.reader(io.StringIO(data.decode(), newline="")) if row]
    head = lines[0]
    at = [head.index(name) for name in _COLUMNS if name in head]
    return [tuple(row[index] for index in at) for row in lines[1:] if row[head.index("expired")] == "false"]


def _commits_case(rng: random.Random) -> Case:
    """All columns are valid text, and a plain list reads as with another reader."""
    data = _commits_csv(rng)
    if rng.random() < 0.8:
        data = mutated(rng, data, data)

    def right(found: ServerCommits) -> None:
        columns = [column for column in (found.ids, found.metarange_ids) if column is not None]
        for column in columns:
            column.validate(full=True)
            assert not column.null_count and len(column) == len(found.ids)
        assert len(found.ids) and "" not in found.ids.to_pylist()
        if data.isascii() and not set(data) & set(b'"\r\0\\'):
            ids = [row[0] for row in _commits_rows(data)]
            assert found.ids.to_pylist() == ids

    return Case(len(data), lambda: outcome(lambda: commits.read_server_commits(data, "commits.csv"), right))


_NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
_RUN, _ATTEMPT, _OWNER = "g4uk6erfnfus73frbnqg", "dc0n8tpksdu988af5sdg", "owner"
_PLAN = Plan(
    flow=Flow.CLEAN,
    repository="repo",
    storage_namespace="s3://bucket/repo/",
    run_id=_RUN,
    attempt=_ATTEMPT,
    owner=_OWNER,
    started_at=_NOW,
    cutoff=_NOW,
    earliest_clock=_NOW,
    min_age_seconds=86400.0,
    grace_period_seconds=21600.5,
    clock_skew_seconds=3600.0,
    slice_window="month",
    windows=("legacy", "2026-10"),
    sweep=True,
)
_REPORT = Report(
    run_id=_RUN,
    attempt=_ATTEMPT,
    repository="repo",
    storage_namespace="s3://bucket/repo/",
    flow="clean",
    previous_run=None,
    dry_run=False,
    success=True,
    ending=Ending.DELETED,
    started_at=_NOW,
    ended_at=_NOW,
    cutoff=_NOW,
    windows=("legacy",),
    counts={"listed": 3, "deleted": 1},
    kept={"young": 1},
    server_run_ids=("a", "b"),
)
_MANIFEST = Manifest(
    Span(COMMITTED_DF.name, _RUN, _ATTEMPT, _NOW, _NOW),
    (FrameFile("a.parquet", "2026-10", 1, 10, "00" * 32, 100), FrameFile("b.parquet", "legacy", 2, 20, "11" * 32)),
    CommittedFigures(
        commit_source="API",
        commits=3,
        commits_fetched=1,
        metaranges_read=2,
        ranges_read=2,
        entries_promised=None,
        unnamed_ranges=0,
        heads={"main": "33" * 32},
        branches_before=1,
        read_sha256="44" * 32,
        retention={"head": 1},
        retention_warnings=("a warning",),
        retention_guards=(("guard", "figures", "lifted by"),),
    ),
    {"before": "22" * 32},
)


@dataclass(frozen=True)
class Record:
    """One kind of stored document.

    Attributes:
        read: the reader under test.
    """

    original: Any
    built: bytes
    read: Callable[[bytes], Any]

    @cached_property
    def content(self) -> Any:
        return json.loads(self.built)


_RECORDS = (
    Record(_PLAN, _PLAN.to_json(), lambda data: records_json.decode(Plan, data, "plan.json")),
    Record(_REPORT, _REPORT.to_json(), lambda data: records_json.decode(Report, data, "report.json")),
    Record(_MANIFEST, _MANIFEST.to_json(), lambda data: Manifest.from_json(data, "manifest.json", COMMITTED_DF)),
)


def _changed_case(rng: random.Random) -> Case:
    """Accidental changes are noticed, unless the content stays the same."""
    record = rng.choice(_RECORDS)
    match rng.randrange(4):
        case 0:
            data = json.dumps(mutated_json(rng, record.content)).encode()
        case 1:
            data = json.dumps(record.content, indent=rng.choice((None, 0, 4))).encode()
        case _:
            data = mutated(rng, record.built, record.built)
    if rng.random() < 0.001:
        data = b"[" * 100_000

    def same(found: Any) -> None:
        assert found == record.original

    return Case(len(data), lambda: outcome(lambda: record.read(data), same))


def _stated_case(rng: random.Random) -> Case:
    """Other values with a correct digest: every value has its type, and writing gives the same document."""
    record = rng.choice(_RECORDS[:2])
    content = mutated_json(rng, {name: value for name, value in record.content.items() if name != "sha256"})
    if not isinstance(content, dict):
        content = {"x": content}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    data = json.dumps(content | {"sha256": digest}).encode()

    def right(found: Any) -> None:
        assert record.read(found.to_json()) == found
        for name in ("started_at", "cutoff"):
            assert getattr(found, name).tzinfo is UTC

    return Case(len(data), lambda: outcome(lambda: record.read(data), right))


def _lock_case(rng: random.Random) -> Case:
    """The lock has no digest, since people may have to write it: reading gives a valid lock, or an error."""
    record = lock._Record("nonce", _RUN, _OWNER, _NOW, _NOW, 30.0)
    data = mutated(rng, record.encode(), record.encode())
    if rng.random() < 0.5:
        data = json.dumps(mutated_json(rng, json.loads(record.encode()))).encode()

    def right(found: lock._Record) -> None:
        assert found.expires_at(_NOW).tzinfo is UTC
        assert type(found.released) is bool
        for text in (found.nonce, found.run_id, found.owner):
            text.encode()
        found.encode()

    return Case(len(data), lambda: outcome(lambda: lock._Record.decode(data), right))


TARGETS = (
    Target("uncommitted", _uncommitted_case),
    Target("ids", _ids_case),
    Target("receipts", _receipts_case),
    Target("commits-list", _commits_case),
    Target("changed-records", _changed_case),
    Target("stated-records", _stated_case),
    Target("lock", _lock_case),
)
