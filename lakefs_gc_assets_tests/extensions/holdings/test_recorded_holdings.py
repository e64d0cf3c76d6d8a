"""Holdings of recordings of servers equal what each recording states about its objects."""

import json
from datetime import UTC, datetime

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, HoldingState
from lakefs_gc_assets.extensions.holdings.make_holdings import make_holdings
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made
from lakefs_gc_assets_tests.runs.replayed_runs import AGED


@pytest.mark.parametrize("name", recorded_and_made("small", "merge-dangling"))
def test_branches_and_states_equal_the_recorded_truth(name: str) -> None:
    clock = MovingClock(datetime.now(UTC))
    with ReplayServer(folder_of(name), now=clock.now, deletes="refuse") as server:
        clock.moment = server.recorded_at + AGED
        content = server.configuration().model_dump()
        content["collection"] |= {"wait_before_dump_seconds": 0}
        runs = ArrowRuns(Loaded(Configuration.model_validate(content), {}), clock)
        runs.collect(Flow.CLEAN)
        found = make_holdings(runs.open(), lambda rows: LocalEngine(), runs.log, runs.warn)
    truth = json.loads((folder_of(name) / "truth.json").read_text())
    heads = {branch["id"]: branch["commit_id"] for branch in truth["branches"]}
    branches: dict[tuple[str, str], Amount] = {}
    states: dict[str, Amount] = {}
    for each in truth["objects"]:
        if not each["inside_namespace"]:
            continue
        holders = [branch for branch, commit in heads.items() if commit in each["commits"]]
        for branch in holders:
            key = branch, "alone" if len(holders) == 1 else "shared"
            branches[key] = branches.get(key, Amount()).plus(1, each["size"])
        # Runs list no folder at the root but `data/`.
        is_listed = each["exists"] and (each["address"].startswith(DATA_PREFIX) or "/" not in each["address"])
        if holders or is_listed:
            state = "head" if holders else "history" if each["commits"] else "staged" if each["staged_in"] else "other"
            states[state] = states.get(state, Amount()).plus(1, each["size"])
    rows = {(row.key, row.held and row.held.value): (row.objects, row.bytes) for row in found.of(Dimension.BRANCH)}
    assert rows == branches
    in_states = found.states()
    of_none = (HoldingState.GARBAGE, HoldingState.YOUNG)
    assert Amount.total(in_states.get(state, Amount()) for state in of_none) == states.get("other", Amount())
    assert in_states[HoldingState.HEAD] == states["head"]
    assert in_states.get(HoldingState.STAGED, Amount()) == states.get("staged", Amount())
    assert in_states[HoldingState.HISTORY] == states.get("history", Amount())
