"""The live definition over recordings, through the API and the store."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.retention.test_active_commits import by_definition, recorded_graph
from lakefs_gc_assets_tests.collector.scripted import opened
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import rows
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import REAL, folder_of, needs_recordings

Variant = int | None
"""None for the rules at the end of the recording; numbers for the other recorded sets of rules."""

TAGGED: tuple[tuple[str, Variant], ...] = (("small", None), ("merge-dangling", None))
"""Recordings that tests make if the real ones are missing."""
REAL_ONLY: tuple[tuple[str, Variant], ...] = (
    *((f"random-dag/{number}", None) for number in (11, 12, 13)),
    *(("merge-dangling", variant) for variant in range(5)),
    *(("random-dag/14", variant) for variant in (None, 1, 3, 7)),
)


def truth_of(name: str) -> dict[str, Any]:
    return dict(json.loads((folder_of(name) / "truth.json").read_text()))


class Replayed:
    """A running recorded server, and the objects that count on it."""

    def __init__(self, replay: ReplayServer, folder: Path, keep_tags: bool = False) -> None:
        policy = folder / "policy.yaml"
        policy.write_text(f"keep_tags: {str(keep_tags).lower()}")
        self.settings = CollectionSettings(wait_before_dump_seconds=0, retention_policy=str(policy))
        configuration = replay.configuration()
        self.recorded_at = replay.recorded_at
        self.namespace = Namespace.parse(replay.storage_namespace)
        self.store = open_store(configuration.store, self.namespace)
        self.api = LakeFSClient(configuration.lakefs, replay.repository, SystemClock())

    def define(self, now: datetime) -> LiveDefinition:
        return retention.live_definition(
            opened(self.api, self.store, self.namespace, self.settings, SystemClock()), now, self.recorded_at
        )

    def held(self, metarange_ids: tuple[str, ...]) -> set[str]:
        """Addresses inside the namespace that metaranges hold."""
        files = LiveFiles(self.store, self.namespace, "month")
        records = {RangeRecord(**row) for each in metarange_ids for row in files.metarange(each).to_pylist()}
        return {key for each in records for key in files.range(each).column("address").to_pylist()}


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        *TAGGED,
        ("empty", None),
        *(pytest.param(*recording, marks=needs_recordings) for recording in REAL_ONLY),
    ],
)
def test_the_servers_list_lacks_one_commit_of_one_set_of_rules(name: str, variant: Variant, tmp_path: Path) -> None:
    truth = truth_of(name)
    at = truth["gc_prepared_at"] if variant is None else truth["rule_variants"][variant]["at"]
    with ReplayServer(folder_of(name), variant=variant) as replay:
        found = Replayed(replay, tmp_path).define(datetime.fromtimestamp(at, UTC))
    assert found.counts["commits_by_server_alone"] == 0
    assert found.counts["commits_by_definition_alone"] == int((name, variant) == ("random-dag/14", 3))
    assert found.counts["commits_known"] == len(truth["commits"])
    known = {row["meta_range_id"] for row in truth["commits"]} - {""}
    assert known == {*found.live.metarange_ids, *found.expired_metaranges}


@pytest.mark.parametrize(
    ("name", "variant", "keep_tags"),
    [
        *((*recording, keep_tags) for recording in TAGGED for keep_tags in (False, True)),
        *(pytest.param(*recording, False, marks=needs_recordings) for recording in REAL_ONLY),
    ],
)
def test_what_only_expired_commits_hold_two_days_later(
    name: str, variant: Variant, keep_tags: bool, tmp_path: Path
) -> None:
    """Compared with the recording's true commits and objects, and with the definition walk by walk."""
    truth = truth_of(name)
    columns, heads = recorded_graph(folder_of(name))
    commits = list(zip(rows(columns), columns.nanos.tolist(), strict=True))
    with ReplayServer(folder_of(name), variant=variant) as replay:
        replayed = Replayed(replay, tmp_path, keep_tags)
        now = replayed.recorded_at + timedelta(days=2)
        found = replayed.define(now)
        gone = replayed.held(found.expired_metaranges) - replayed.held(found.live.metarange_ids)
    kept = by_definition(commits, heads, rules_of(truth, variant), now) | listed(truth, variant)
    if keep_tags:
        kept |= {tag["commit_id"] for tag in truth["tags"]}
    staged = {each["address"] for each in truth["objects"] if each["staged_in"]}
    expected = {
        each["address"]
        for each in truth["objects"]
        if each["inside_namespace"] and each["commits"] and kept.isdisjoint(each["commits"])
    }
    assert gone - staged == expected - staged
    if (name, variant) == ("merge-dangling", None):
        assert gone - staged
    if REAL and (name, variant) == ("merge-dangling", None):
        assert len(gone - staged) == (7 if keep_tags else 14)


def rules_of(truth: dict[str, Any], variant: Variant) -> RetentionRules:
    stated = truth["gc_rules"] if variant is None else truth["rule_variants"][variant]["rules"]
    branches = {rule["branch_id"]: rule["retention_days"] for rule in stated["branches"] or ()}
    return RetentionRules(stated["default_retention_days"], branches)


def listed(truth: dict[str, Any], variant: Variant) -> set[str]:
    """The server's own list."""
    if variant is None:
        return {row["commit_id"] for row in truth["prepare_commits"]["rows"]}
    return set(truth["rule_variants"][variant]["active_commits"])
