"""Plans, reports, manifests and locks in the store: changed anywhere, or with other values."""

import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from lakefs_gc_assets.collector.frame.files import FrameFile, Manifest, Span
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, CommittedFigures
from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets_tests.fuzzing.mutation import mutated, mutated_json
from lakefs_gc_assets_tests.fuzzing.running import Case, Target, outcome

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
    Target("changed-records", _changed_case),
    Target("stated-records", _stated_case),
    Target("lock", _lock_case),
)
