"""Holdings after whole runs on the embedded server, over HTTP, against a count with sets."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import reporting
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, STEPS, UNCOMMITTED_DF, StoredFigures
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import stored_holdings
from lakefs_gc_assets.collector.records.outcomes import Amount, Outcome
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets.extensions.holdings import attribution, growth, known_heads, make_holdings
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, Holdings, HoldingState, Sharing
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, METADATA_PREFIX
from lakefs_gc_assets.storage import local
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

DAY = timedelta(days=1)


class HeldRepository:
    """A repository with a branch, replaced objects, staged ones, garbage and a young object.

    Attributes:
        sizes: size by address.
        heads: addresses by branch.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.sizes: dict[str, int] = {}
        self.heads: dict[str, dict[str, str]] = {"main": {}}
        with server.clock.at(datetime.now(UTC) - 40 * DAY):
            clients.repository(server)
        for number in range(6):
            self.put(f"a/{number}", 10 + number, 40)
        self.commit("main", 40)
        self.fork("dev")
        self.put("a/0", 100, 30)
        self.put("b/new", 200, 30)
        self.commit("main", 30)
        self.put("b/own", 1_000, 20, "dev")
        self.commit("dev", 20)
        self.put("a/1", 2_000, 9, staged=True)
        self.leave_garbage(5_000, 9)

    def put(self, path: str, size: int, days: float, branch: str = "main", *, staged: bool = False) -> str:
        with self.server.clock.at(datetime.now(UTC) - days * DAY):
            address = clients.upload(self.server, path, bytes([len(self.sizes)]) * size, branch=branch)
        self.sizes[address] = size
        if not staged:
            self.heads[branch][path] = address
        return address

    def leave_garbage(self, size: int, days: float) -> None:
        self.put("gone", size, days, staged=True)
        assert clients.call(self.server, "DELETE", "/repositories/repo/branches/main/objects", path="gone")[0] == 204

    def add_recent_objects(self) -> None:
        """Adds garbage on both sides of the cutoff, which is 25 hours ago (slices last an hour), and a new commit."""
        self.leave_garbage(8, 25.4 / 24)
        self.leave_garbage(7, 24.7 / 24)
        self.put("c/today", 3, 0, "dev")
        self.commit("dev", 0)

    def fork(self, branch: str) -> None:
        self.heads[branch] = dict(self.heads["main"])
        assert (
            clients.call(self.server, "POST", "/repositories/repo/branches", {"name": branch, "source": "main"})[0]
            < 300
        )

    def commit(self, branch: str, days: float, **metadata: str) -> str:
        body: dict[str, Any] = {"message": "m", "metadata": metadata}
        with self.server.clock.at(datetime.now(UTC) - days * DAY):
            status, answer = clients.call(self.server, "POST", f"/repositories/repo/branches/{branch}/commits", body)
        assert status == 201, answer
        return str(answer["id"])

    def runs(self, **collection: Any) -> ArrowRuns:
        """Runs with some settings of the section `collection`."""
        given = demo.configuration(self.server, "repo").model_dump()
        given["collection"] |= collection
        return ArrowRuns(Loaded(type(demo.configuration(self.server, "repo")).model_validate(given), {}))

    def collect(self, flow: Flow, *, sweep: bool, quarantine: bool = False) -> ArrowRuns:
        """Makes a run."""
        runs = self.runs(sweep=sweep, sweep_mode="quarantine" if quarantine else "delete")
        assert runs.collect(flow).flow == flow.value
        return runs

    def approve(self, run_id: str) -> ArrowRuns:
        """Deletes the candidates of a clean dry run."""
        runs = self.runs(sweep=False, sweep_mode="delete", approve_run=run_id)
        assert runs.make(runs.open_run(Flow.CLEAN, run_id), STEPS[-1:], "approver").error is None
        return runs

    def holdings(self, runs: ArrowRuns) -> Holdings:
        """The holdings after the newest run."""
        return make_holdings.make_holdings(runs.open(), lambda rows: LocalEngine(), runs.log, runs.warn, 1, ("team",))

    def of_heads(self) -> dict[str, set[str]]:
        """Branches by address."""
        holders: dict[str, set[str]] = {}
        for branch, paths in self.heads.items():
            for address in paths.values():
                holders.setdefault(address, set()).add(branch)
        return holders

    def amount(self, addresses: set[str]) -> Amount:
        return Amount(len(addresses), sum(self.sizes[address] for address in addresses))


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldRepository]:
    with EmbeddedServer(tmp_path) as server:
        yield HeldRepository(server)


def stored_sizes(runs: ArrowRuns, prefix: str) -> dict[str, int]:
    batches = [*runs.open().store.list(prefix)]
    return {row["key"]: row["size"] for batch in batches for row in batch.to_pylist()}


def slice_time(address: str) -> datetime:
    return layout.as_datetime(layout.created_at(address.split("/")[1]))


def require_exact(held: HeldRepository, runs: ArrowRuns, found: Holdings) -> dict[HoldingState, Amount]:
    """Compares holdings with the store, with the frames of the run and with the heads; returns the states."""
    repository, states = runs.open(), found.states()
    # The run did not list slices that are younger than its cutoff.
    cutoff, holders = plans.read(repository.store, found.run_id).cutoff, held.of_heads()
    stored = {each for each in stored_sizes(runs, DATA_PREFIX) if slice_time(each) < cutoff}
    frames = (
        StoredFrame.from_run(repository.store, repository.opener, found.run_id, frame)
        for frame in (CANDIDATES_DF, UNCOMMITTED_DF)
    )
    candidates, staged = ({*frame.table().column("address").to_pylist()} & stored for frame in frames)
    assert states[HoldingState.HEAD] == held.amount(set(holders))
    assert states.get(HoldingState.GARBAGE, Amount()) == held.amount(candidates)
    assert states.get(HoldingState.STAGED, Amount()) == held.amount(staged - set(holders))
    of_data = [state for state in states if state not in (HoldingState.METADATA, HoldingState.QUARANTINE)]
    assert Amount.total(states[state] for state in of_data) == held.amount(stored | holders.keys())
    for branch in held.heads:
        for sharing in Sharing:
            rows = [row for row in found.of(Dimension.BRANCH) if (row.key, row.held) == (branch, sharing)]
            has = {
                address
                for address, branches in holders.items()
                if branch in branches and (len(branches) == 1) is (sharing is Sharing.ALONE)
            }
            assert [(row.objects, row.bytes) for row in rows] == ([held.amount(has)] if has else [])
    return states


def test_optimized_run_after_a_sweep_equals_the_store_and_the_frames(held: HeldRepository) -> None:
    held.add_recent_objects()
    swept = held.collect(Flow.CLEAN, sweep=True, quarantine=True)
    second = held.holdings(swept)
    states = require_exact(held, swept, second)
    assert states[HoldingState.GARBAGE] == Amount(0, 0) and states[HoldingState.QUARANTINE] == Amount(2, 5_008)

    held.put("b/new", 300, 5)
    commit = held.commit("main", 5, team="blue")
    held.heads["main"]["a/1"] = max(held.sizes, key=lambda each: held.sizes[each] == 2_000)
    held.leave_garbage(6_000, 5)
    runs = held.collect(Flow.OPTIMIZED, sweep=False)
    third = held.holdings(runs)
    states = require_exact(held, runs, third)
    assert states[HoldingState.HISTORY] == Amount(1, 200) and states[HoldingState.GARBAGE] == Amount(1, 6_000)
    rows = {(row.dimension, row.key): (row.objects, row.bytes) for row in third.rows}
    assert rows["metadata:team", "blue"] == rows["commit", commit] == (2, 2_300)

    known = known_heads.read(runs.open().store)
    assert known is not None and known.sealed_run == second.run_id
    changes = growth.compare(second, third, known.commits)
    assert [(each.commit_id, each.bytes) for each in changes.commits] == [(commit, 2_300)]
    assert changes.commits[0].commit is not None and changes.commits[0].commit.metadata == {"team": "blue"}
    by_branch = {change.key: (change.objects, change.bytes) for change in changes.of(Dimension.BRANCH)}
    assert by_branch == {"main": (0, 300 - 200 + 2_000 - 11)}


def test_metadata_and_quarantine_are_what_the_store_lists(held: HeldRepository) -> None:
    runs = held.collect(Flow.CLEAN, sweep=True, quarantine=True)
    before = stored_sizes(runs, METADATA_PREFIX)
    states = held.holdings(runs).states()
    both = states[HoldingState.METADATA], states[HoldingState.QUARANTINE]
    assert Amount.total(both) == Amount(len(before), sum(before.values()))


def test_dry_run_equals_the_store_and_its_holdings_are_made_again_only_after_its_approval(held: HeldRepository) -> None:
    held.add_recent_objects()
    runs = held.collect(Flow.CLEAN, sweep=False)
    found = held.holdings(runs)
    states = require_exact(held, runs, found)
    assert states[HoldingState.HISTORY] == Amount(0, 0) and states[HoldingState.YOUNG] == Amount(1, 7)
    assert (states[HoldingState.GARBAGE], states[HoldingState.STAGED]) == (Amount(2, 5_008), Amount(1, 2_000))
    assert not [*found.of(Dimension.STORAGE_CLASS)], "a local folder has no classes"

    assert held.holdings(runs) == found
    runs.open().store.put(stored_holdings.key_of(found.run_id), b"damaged")
    again = held.holdings(runs)
    assert again.states()[HoldingState.HEAD] == found.states()[HoldingState.HEAD]
    assert any("made anew" in line for line in runs.lines)

    approved = held.approve(found.run_id)
    after = held.holdings(approved)
    states = require_exact(held, approved, after)
    assert (after.run_id, states[HoldingState.GARBAGE]) == (found.run_id, Amount(0, 0))
    assert after.time > found.time and held.holdings(approved) == after


def test_deleted_branch_explains_more_garbage(held: HeldRepository) -> None:
    runs = held.collect(Flow.CLEAN, sweep=False)
    first = held.holdings(runs)
    clients.call(held.server, "DELETE", "/repositories/repo/branches/dev")
    del held.heads["dev"]
    held.leave_garbage(9_000, 4)
    runs = held.collect(Flow.CLEAN, sweep=False)
    second = held.holdings(runs)
    require_exact(held, runs, second)
    lines = [*growth.describe(growth.compare(first, second), [Dimension.BRANCH], 5)]
    assert any("garbage" in line and line.endswith("deleted branches: dev") for line in lines)
    assert any("branch dev" in line and line.endswith("(gone)") for line in lines)
    one = growth.HolderChange(Dimension.BRANCH, "main", -1, -5)
    (_, line) = growth.describe(growth.Growth(first, second, (one,), ()), [Dimension.BRANCH], 5)
    assert line == "  branch main: -5 B, -1 object"


def test_without_a_finished_run_there_are_no_holdings(held: HeldRepository) -> None:
    runs = ArrowRuns(Loaded(demo.configuration(held.server, "repo"), {}))
    with pytest.raises(CollectionError, match="no run of repo has finished"):
        held.holdings(runs)


def test_history_is_left_out_if_heads_have_uncertain_addresses(
    held: HeldRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = held.collect(Flow.CLEAN, sweep=False)
    attribute = attribution.attribute_heads
    monkeypatch.setattr(make_holdings, "attribute_heads", lambda *about: replace(attribute(*about), uncertain=1))
    assert HoldingState.HISTORY not in held.holdings(runs).states()


def test_classes_are_left_out_if_candidates_had_several_fates_or_windows_were_left_out(
    held: HeldRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_of = local._batch

    def with_class(*columns: Any) -> pa.RecordBatch:
        batch = batch_of(*columns)
        return batch.set_column(4, "storage_class", pa.array(["STANDARD"] * batch.num_rows, pa.string()))

    monkeypatch.setattr(local, "_batch", with_class)
    held.leave_garbage(8, 9)
    runs = held.collect(Flow.CLEAN, sweep=False)

    def has_classes() -> bool:
        for run_id in stored_holdings.run_ids(runs.open().store):
            runs.open().store.put(stored_holdings.key_of(run_id), b"damaged")
        return any(held.holdings(runs).of(Dimension.STORAGE_CLASS))

    assert has_classes()
    none = dict.fromkeys(Outcome, Amount())
    for outcome, (amount, is_known) in {
        Outcome.ACCEPTED: (Amount(2, 5_008), True),
        Outcome.QUARANTINED: (Amount(1, 8), False),
        Outcome.KEPT_LIVE: (Amount(2, 5_008), False),
    }.items():
        with monkeypatch.context() as patch:
            amounts = {**none, outcome: amount}
            patch.setattr(reporting, "count_amounts", lambda step, frame, amounts=amounts: amounts)
            assert has_classes() is is_known, outcome
    with monkeypatch.context() as patch:
        patch.setattr(StoredFigures, "limited_to", property(lambda figures: "window legacy"))
        assert not has_classes()


@pytest.mark.parametrize("wrong", [True, False])
def test_bytes_of_history_need_the_sealed_objects_of_the_base_run(held: HeldRepository, wrong: bool) -> None:
    runs = held.collect(Flow.CLEAN, sweep=True)
    held.holdings(runs)
    store = runs.open().store
    known = known_heads.read(store)
    assert known is not None and known.sealed is not None
    if wrong:
        known_heads.write(store, replace(known, sealed=known.sealed.plus(1, 0)))
    # A dry run leaves no checkpoint, so the second one builds on the same run as the first one.
    for _ in range(1 if wrong else 2):
        found = held.holdings(held.collect(Flow.OPTIMIZED, sweep=False))
        states = {row.state: row for row in found.of(Dimension.STATE)}
        history = states[HoldingState.HISTORY]
        assert (history.objects, history.bytes) == (0, None if wrong else 0)


def test_day_makes_at_most_a_quarter_of_the_calls_of_its_optimized_run_on_a_dozen_objects(
    held: HeldRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def count(kind: str, owner: type, name: str) -> None:
        called = getattr(owner, name)

        def counted(self: Any, *arguments: Any, **more: Any) -> Any:
            calls[kind] += 1
            return called(self, *arguments, **more)

        monkeypatch.setattr(owner, name, counted)

    for name in ("get", "get_part", "put", "put_if_absent", "list", "list_level", "delete"):
        count("store", LocalStore, name)
    count("api", LakeFSClient, "_fields")
    held.holdings(held.collect(Flow.CLEAN, sweep=True))
    held.put("b/new", 300, 5)
    held.commit("main", 5)
    held.leave_garbage(6_000, 5)
    calls.clear()
    runs = held.collect(Flow.OPTIMIZED, sweep=True)
    of_run = Counter(calls)
    calls.clear()
    held.holdings(runs)
    assert 0 < 4 * calls["store"] <= of_run["store"] and 0 < 4 * calls["api"] <= of_run["api"], (calls, of_run)
