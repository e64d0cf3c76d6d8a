"""Plans and reports of earlier runs, put into the store of an empty repository."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest, Span
from lakefs_gc_assets.collector.frame.frames import CHECKPOINT_COMMITTED_DF, PENDING_DF, Frame, NoFigures
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.records import report, run_folder, tables
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint, Ending, Report
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.storage.interface import ObjectFacts
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.scripted import HandClock, ScriptedApi

NOW = datetime.now(UTC).replace(microsecond=0)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
IDS = layout.XidGenerator()
SEALED = IDS.descending(NOW - 9 * DAY)


class StoreOfThisTime(LocalStore):
    """A store whose clock stands still, like the others: otherwise runs would seem to end half an hour after import."""

    def head(self, key: str) -> ObjectFacts:
        facts = super().head(key)
        return replace(facts, last_modified=facts.last_modified - (datetime.now(UTC) - NOW))


def empty_repository(folder: Path) -> OpenRepository:
    """A repository without any run, its storage namespace in a folder."""
    namespace = Namespace.parse("local://repo")
    api = ScriptedApi()
    return OpenRepository(
        api.repository(),
        namespace,
        api,
        StoreOfThisTime(folder),
        StoreOpener(StoreSettings(), namespace.uri),
        CollectionSettings(),
        HandClock(NOW),
    )


@pytest.fixture
def opened(tmp_path: Path) -> OpenRepository:
    """An empty repository."""
    return empty_repository(tmp_path)


def began(opened: OpenRepository, ago: timedelta, **changes: Any) -> Plan:
    """The stored plan of a sweeping run that began `ago`."""
    made = Plan(
        flow=Flow.CLEAN,
        repository=opened.facts.id,
        storage_namespace=opened.namespace.uri,
        run_id=IDS.descending(NOW - ago),
        attempt="attempt",
        owner="dagster-run",
        started_at=NOW - ago,
        cutoff=NOW - ago - DAY - HOUR,
        earliest_clock=NOW - ago,
        min_age_seconds=86400,
        grace_period_seconds=86400,
        clock_skew_seconds=3600,
        slice_window="month",
        windows=("legacy",),
        sweep=True,
    )
    made = replace(made, **changes)
    opened.store.put(run_folder.plan(made.run_id), made.to_json())
    return made


def ended(opened: OpenRepository, plan: Plan, **changes: Any) -> Report:
    """The stored report of a run that left a checkpoint with one sealed slice."""
    left = Checkpoint(
        attempt=plan.attempt,
        sealed=1,
        sealed_objects=0,
        sealed_sha256=checkpoint.write_sealed(opened.store, plan.run_id, plan.attempt, frozenset([SEALED])),
        read=1,
        read_sha256=tables.write_run_ids(opened.store, plan.run_id, plan.attempt, ["a" * 64]),
        pending=0,
        pending_digest=_empty_frame(opened, plan, PENDING_DF),
        committed=0,
        committed_digest=_empty_frame(opened, plan, CHECKPOINT_COMMITTED_DF),
        pending_windows=(),
        other_folders=("old",),
    )
    made = report.failed(plan, NOW, "")
    made = replace(made, success=True, ending=Ending.DELETED, error=None, checkpoint=left)
    made = replace(made, **changes)
    report.write(opened.store, made)
    return made


def _empty_frame(opened: OpenRepository, plan: Plan, frame: Frame[NoFigures]) -> str:
    """Stores a frame without rows; returns the digest of its manifest."""
    span = Span(frame.name, plan.run_id, plan.attempt, plan.started_at, plan.started_at)
    made = Manifest(span, (), NoFigures())
    files.write_manifest(opened.store, made)
    return made.digest
