"""Runs by retention rules on recordings, checked against the recordings and a slow walk of the definition."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.live import current
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.lakefs.api.models import Commit, RetentionRules
from lakefs_gc_assets_tests.collector.retention.test_active_commits import by_definition, recorded_graph
from lakefs_gc_assets_tests.lakefs.formats.commit_rows import rows
from lakefs_gc_assets_tests.replay import collecting
from lakefs_gc_assets_tests.replay.collecting import Engine, graph, plain_tables
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.replay.test_replay import FOREIGN
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import REAL, folder_of, needs_recordings
from lakefs_gc_assets_tests.runs.replayed_runs import AGED


@pytest.fixture
def much_expires(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """If True, few objects count as many: runs exclude those in live ranges of the same keys, and look up the rest."""
    if request.param:
        monkeypatch.setattr(checkpoint, "_MANY_ENTRIES", 0)
        monkeypatch.setattr(current, "_LOOKED_UP_AT_ONCE", 3)
        monkeypatch.setattr(current, "_ROUNDS", 1_000)
    return bool(request.param)


SETS = [
    ("small", None),
    pytest.param("merge-dangling", 3, marks=needs_recordings),
    # A real server dropped a commit in this recording that the definition keeps.
    pytest.param("random-dag/14", 3, marks=needs_recordings),
]


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)


def truth_of(folder: str) -> dict[str, Any]:
    return dict(json.loads((folder_of(folder) / "truth.json").read_text()))


def commits_kept(folder: str, variant: int | None, now: datetime) -> set[str]:
    """Commits kept by the definition at a moment, or by the server when it was recorded."""
    truth = truth_of(folder)
    if variant is None:
        stated, answer = truth["gc_rules"], {row["commit_id"] for row in truth["prepare_commits"]["rows"]}
    else:
        recorded = truth["rule_variants"][variant]
        stated, answer = recorded["rules"], set(recorded["active_commits"])
    branches = {rule["branch_id"]: rule["retention_days"] for rule in stated["branches"] or ()}
    columns, heads = recorded_graph(folder_of(folder))
    pairs: list[tuple[Commit, int]] = list(zip(rows(columns), columns.nanos.tolist(), strict=True))
    return answer | by_definition(pairs, heads, RetentionRules(stated["default_retention_days"], branches), now)


def expired_objects(folder: str, kept: set[str]) -> list[dict[str, Any]]:
    """Objects inside the namespace that are committed, but neither staged nor in a kept commit."""
    return [
        each
        for each in truth_of(folder)["objects"]
        if each["inside_namespace"] and each["commits"] and not each["staged_in"] and kept.isdisjoint(each["commits"])
    ]


def replayed(
    folder: str,
    flow: Flow,
    now: datetime,
    variant: int | None,
    *,
    keep_tags: bool = False,
) -> dict[str, Any]:
    return collecting.replay(
        folder_of(folder), flow, now, variant, lambda line: None, keep_tags=keep_tags, engine=plain_tables
    )


@pytest.mark.parametrize(("folder", "variant"), SETS)
def test_what_only_expired_commits_hold_goes(folder: str, variant: int | None) -> None:
    now = (ReplayServer(folder_of(folder)).recorded_at + AGED).replace(microsecond=0)
    expected = {each["address"] for each in expired_objects(folder, commits_kept(folder, variant, now))}

    found = replayed(folder, Flow.COMMITTED, now, variant)

    assert set(found["candidates"]) == expected
    assert len(found["candidates"]) == len(expected)
    assert (found["flow"], found["slices_listed"]) == ("committed", 0)


def test_at_the_recording_everything_is_young() -> None:
    moment = ReplayServer(folder_of("merge-dangling")).recorded_at
    assert replayed("merge-dangling", Flow.COMMITTED, moment, None)["candidates"] == []


def test_tags_keep_their_commits_unless_reported_otherwise() -> None:
    now = ReplayServer(folder_of("merge-dangling")).recorded_at + AGED
    kept = commits_kept("merge-dangling", None, now) | {tag["commit_id"] for tag in truth_of("merge-dangling")["tags"]}
    expected = {each["address"] for each in expired_objects("merge-dangling", kept)}

    found = replayed("merge-dangling", Flow.COMMITTED, now, None, keep_tags=True)

    assert set(found["candidates"]) == expected != set()
    assert len(found["candidates"]) == 7 or not REAL


@pytest.mark.parametrize("folder", ["small", "merge-dangling"])
def test_a_unified_run_takes_what_expired_and_what_nothing_references(folder: str) -> None:
    now = (ReplayServer(folder_of(folder)).recorded_at + AGED).replace(microsecond=0)
    expired = {each["address"] for each in expired_objects(folder, commits_kept(folder, None, now)) if each["exists"]}
    unreferenced = {each["address"] for each in truth_of(folder)["objects"] if each["class"] == "unreferenced"}

    found = replayed(folder, Flow.UNIFIED, now, None)

    assert set(found["candidates"]) == (expired | unreferenced) - FOREIGN
    assert found["slices_listed"] > 0


_KEPT_DAYS = (30, 3, 400, 1)
"""Days for which a policy keeps commits, run by run: rules become shorter, longer, and shorter."""
_KEPT_DAYS_OF_GRAPH = (30, 400, 3)
"""Fewer runs, because each is a job of Dagster."""


@pytest.mark.parametrize("much_expires", [False, True], indirect=True)
def test_an_incremental_run_marks_the_same_as_a_full_one(much_expires: bool, tmp_path: Path) -> None:
    went = require_the_same("merge-dangling", tmp_path, plain_tables)
    assert len(went) == len(_KEPT_DAYS)
    # The first run examined everything, so later deletions come only from ranges that earlier runs kept.
    assert sum(map(len, went[1:])) > 0


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("much_expires", [True], indirect=True)
def test_an_incremental_run_of_the_graph_marks_the_same(much_expires: bool, tmp_path: Path) -> None:
    assert sum(map(len, require_the_same("merge-dangling", tmp_path, graph, _KEPT_DAYS_OF_GRAPH)[1:])) > 0


def require_the_same(
    folder: str, scratch: Path, engine: Engine, kept_days: Sequence[int] = _KEPT_DAYS
) -> list[list[str]]:
    """Sweeps repeatedly, each time after a dry run that lists everything; returns the deleted addresses by sweep."""
    clock, policy, went = MovingClock(datetime.now(UTC)), scratch / "policy.yaml", []
    with ReplayServer(folder_of(folder), now=clock.now, deletes="overlay") as server, engine() as collect:
        base_run = None
        for number, days in enumerate(kept_days):
            clock.moment = server.recorded_at + AGED + number * timedelta(days=1)
            policy.write_text(f"default: {days}d\nreplace: true\nkeep_tags: false\n", encoding="utf-8")

            def run(sweep: bool, full_listing_days: float) -> dict[str, Any]:
                clock.moment += timedelta(minutes=1)
                changes = {
                    "retention_policy": str(policy),
                    "full_listing_days": full_listing_days,
                    "allow_rules_of_unknown_branches": True,
                }
                return collecting.collected(
                    server, collect, Flow.UNIFIED, sweep, clock.moment, lambda line: None, changes
                )

            full, found = run(False, 0), run(True, 1_000)
            assert (full["base_run"], found["base_run"]) == (None, base_run), found["why_clean"]
            assert found["candidates"] == full["candidates"]
            assert found["counts"]["deleted"] == len(found["candidates"])
            assert found["slices_listed"] == (full["slices_listed"] if base_run is None else 0)
            base_run = found["run_id"]
            went.append(found["candidates"])
    return went


def test_without_rules_nothing_expires() -> None:
    now = datetime(2026, 12, 31, tzinfo=UTC) + timedelta(days=365)
    assert replayed("chain/1", Flow.COMMITTED, now, None)["candidates"] == []
