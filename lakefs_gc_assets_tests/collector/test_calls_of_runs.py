"""Calls of the driver that a run makes once, on a store over HTTP."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.storage.s3.store import S3Store
from lakefs_gc_assets_tests.runs.plain_runs import Replaying, replaying

__all__ = ["replaying"]

INPUTS = {"store_df", "uncommitted_df", "committed_df"}
"""Frames that a sweep compares with the inputs of its candidates, before and after each recheck."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the objects read, by key."""
    counts: Counter[str] = Counter()
    get: Callable[..., Any] = S3Store.get

    def counted(store: S3Store, key: str) -> bytes:
        counts[key] += 1
        data: bytes = get(store, key)
        return data

    monkeypatch.setattr(S3Store, "get", counted)
    return counts


def manifests(reads: Counter[str], run_id: str) -> dict[str, int]:
    """How often each manifest of a run was read, by frame."""
    return {
        key.split("/")[-2]: count
        for key, count in reads.items()
        if f"/{run_id}/" in key and key.endswith("/manifest.json")
    }


def test_a_run_reads_no_manifest_twice(replaying: Replaying, reads: Counter[str]) -> None:
    runs = replaying("small", deletes="overlay")
    opened = runs.open()
    assert runs.make(opened, sweep=True).success
    counts = manifests(reads, opened.run_id)
    assert {counts.pop(name) for name in INPUTS} == {2}
    assert counts.pop("sightings") <= 2  # The mark finds that there are none; the index records its own.
    assert {*counts.values()} <= {1}


def test_a_process_that_resumes_a_run_reads_them_anew(replaying: Replaying, reads: Counter[str]) -> None:
    runs = replaying("small")
    opened = runs.open()
    assert runs.make(opened, assets=["store_df", "uncommitted_df", "committed_df"]).success
    assert not manifests(reads, opened.run_id)
    assert runs.make(opened, assets=["candidates"]).success
    counts = manifests(reads, opened.run_id)
    assert {counts[name] for name in INPUTS} == {1}


def test_later_steps_of_a_process_read_no_lock(replaying: Replaying, reads: Counter[str]) -> None:
    runs = replaying("small")
    opened = runs.open()
    assert runs.make(opened, assets=["store_df"]).success
    assert runs.make(opened, assets=["uncommitted_df", "committed_df", "candidates"]).success
    # Each process reads it once to acquire it, and the second one first reads who has it.
    assert reads[lock.KEY] == 3
