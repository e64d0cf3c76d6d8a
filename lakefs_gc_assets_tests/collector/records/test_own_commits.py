from dataclasses import replace
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.records import own_commits
from lakefs_gc_assets.collector.records.own_commits import (
    OwnCommit,
    list_own_commits,
    read_own_commits,
    record_own_commit,
)
from lakefs_gc_assets.errors import LogLine
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage import signing
from lakefs_gc_assets.storage.interface import ObjectStore, keys_below
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

FIRST, SECOND = OwnCommit("repo", "a" * 64, "main", "run", NOW), OwnCommit("repo", "b" * 64, "main", "run", NOW)


def no_warning(line: str) -> None:
    raise AssertionError(line)


def read_all(store: ObjectStore, warn: LogLine) -> frozenset[str]:
    return read_own_commits(store, "repo", warn, list_own_commits(store, "repo"))


def test_receipts_name_the_commits_of_one_repository(store: ObjectStore) -> None:
    assert list_own_commits(store, "repo") == read_all(store, no_warning) == frozenset()
    for own in (FIRST, SECOND, FIRST, replace(FIRST, repository="repo-2", commit_id="c" * 64)):
        record_own_commit(store, own)
    both = {FIRST.commit_id, SECOND.commit_id}
    assert list_own_commits(store, "repo") == read_all(store, no_warning) == both
    few = read_own_commits(store, "repo", no_warning, [SECOND.commit_id, "c" * 64])
    assert few == {SECOND.commit_id}


@pytest.mark.parametrize("damage", [b"", b"{}", b"null"], ids=["cut off", "without its entries", "of another kind"])
def test_damaged_receipt_counts_for_retention_and_not_for_stale_branches(store: ObjectStore, damage: bytes) -> None:
    for own in (FIRST, SECOND):
        record_own_commit(store, own)
    store.put(keys_below(store, own_commits._folder("repo"))[0], damage)
    warnings: list[str] = []
    assert read_all(store, warnings.append) == {SECOND.commit_id}
    assert len(warnings) == 1 and FIRST.commit_id in warnings[0] and "is damaged" in warnings[0]
    assert list_own_commits(store, "repo") == {FIRST.commit_id, SECOND.commit_id}


@pytest.mark.parametrize("other", [replace(FIRST, repository="other"), SECOND], ids=["repository", "commit"])
def test_receipt_that_was_copied_from_another_place_is_not_believed(store: ObjectStore, other: OwnCommit) -> None:
    record_own_commit(store, other)
    record_own_commit(store, FIRST)
    mine, theirs = (f"{own_commits._folder(own.repository)}{own.commit_id}.json" for own in (FIRST, other))
    store.put(mine, store.get(theirs))
    assert FIRST.commit_id not in read_all(store, no_warning)


def test_receipts_are_signed_and_never_expire() -> None:
    key = f"{own_commits._folder('repo')}{FIRST.commit_id}.json"
    assert signing.is_signed(key)
    assert not layout.is_xid(Path(key.removeprefix(layout.RUNS_PREFIX)).parts[0])
