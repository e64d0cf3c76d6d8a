"""Holdings after runs of simulated histories, against a plain count of the simulated world.

Writers, time and runs are those of the simulation. Each run begins when no operation is under way and ends before the
next step, so the world that it saw is the world that is counted. The servers answer correctly.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from unittest import mock
from zlib import crc32

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, Holdings, HoldingState, Sharing
from lakefs_gc_assets.extensions.holdings.make_holdings import make_holdings
from lakefs_gc_assets.lakefs.layout import (
    DATA_PREFIX,
    METADATA_PREFIX,
    QUARANTINE_PREFIX,
    as_datetime,
    created_at,
    is_xid,
)
from lakefs_gc_assets.settings import UNKNOWN_CLASS
from lakefs_gc_assets.storage.interface import ObjectFacts
from lakefs_gc_assets_tests.simulation.bucket import BucketView
from lakefs_gc_assets_tests.simulation.collecting import open_repository
from lakefs_gc_assets_tests.simulation.decode_cache import remembering
from lakefs_gc_assets_tests.simulation.oracle import Violation, refuse_change
from lakefs_gc_assets_tests.simulation.playing import (
    DELETE,
    DRY_RUN,
    MOVE,
    History,
    Player,
    Step,
    deterministic,
    uncollected,
)
from lakefs_gc_assets_tests.simulation.processes import Command, Process
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import World

Rows = dict[tuple[str, str, Sharing | None, HoldingState | None], Amount]
"""Objects and bytes by dimension, key, sharing and state."""


@dataclass
class HoldingsPlayer:
    """Plays the steps of writers and time, and the runs of a history.

    Attributes:
        listed: objects that each run knew, as long as they are stored, by run id.
        seen: number of runs after which each state had objects.
    """

    history: History
    listed: dict[str, frozenset[str]] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def play(self) -> Counter[str]:
        """Plays the history; returns `seen`. Raises Violation if holdings differ from the count."""
        seed = self.history.setup.seed
        with uncollected(), deterministic(seed), remembering(), mock.patch.object(BucketView, "_facts", _with_class):
            player = Player(self.history.setup)
            for step in self.history.steps:
                if step.actor not in (*player.collectors, "servers"):
                    player.do(step)
                elif step.what == "start":
                    self._collect(player, step)
        return self.seen

    def _collect(self, player: Player, start: Step) -> None:
        world, process, failed = player.world, player.collectors["c0"], player.figures.failed
        while due := [running.due for running in world.jobs if running.due is not None]:
            world.pass_time(max(due) - world.time.now)
        sweep, age, window, _, *asked = start.numbers
        fate = DRY_RUN if not sweep else DELETE if player.figures.runs % 2 else MOVE
        # A run limited to some windows does not know all objects.
        player.do(Step("c0", "start", (fate, age, window, 0, *(asked and (asked[0], 0)))))
        process.go_on(None)
        if player.figures.failed == failed:
            self._compare(world, process)

    def _compare(self, world: World, process: Process) -> None:
        run, options = process.run, process.options
        assert run is not None and options is not None
        known = process.exactness.listed_now[run.run_id]
        if run.plan.base_run is not None:
            known |= self.listed[run.plan.base_run] & world.bucket.objects.keys()
        self.listed[run.run_id] = known
        states = find_states(world, known, addresses(process.exactness.store, run.run_id, STEPS[3]))
        expected = count_states(world, states, run.plan.cutoff) | count_branches(world)
        classes = count_classes(world, states)
        command = Command(world, 1, refuse_change)
        repository = open_repository(command.api, command.store, options, command.clock)
        found = make_holdings(repository, lambda rows: LocalEngine(), world.log.append, world.log.append)
        # A sweep may leave some of its candidates: then their classes are unknown, and left out.
        is_sure = run.plan.base_run is None and not options.sweep and any(map(class_of, known))
        if is_sure or [*found.of(Dimension.STORAGE_CLASS)]:
            expected |= classes
            self.seen["classes"] += len(classes)
        require_equal(f"holdings after run {run.run_id} of flow {run.plan.flow}", found, expected)
        self.seen.update(row.state for row in found.of(Dimension.STATE) if row.state and row.objects)
        self.seen["runs"] += 1


def find_states(world: World, known: Collection[str], candidates: Collection[str]) -> dict[str, HoldingState]:
    """The state of each stored object that a run knew.

    Args:
        candidates: objects that the run marked.
    """
    repository, oracle = world.repository, world.oracle
    heads, _ = head_objects(world)
    changes = (entry for branch in repository.branches.values() for _, entry in repository.changes(branch))
    staged = {oracle.key_of(entry) for entry in changes if entry} | {key for key, _ in repository.copies}

    def state_of(key: str) -> HoldingState:
        if key in heads:
            return HoldingState.HEAD
        if key in oracle.in_commits:
            return HoldingState.HISTORY
        if key in staged:
            return HoldingState.STAGED
        return HoldingState.GARBAGE if key in candidates else HoldingState.YOUNG

    return {key: state_of(key) for key in known if key in world.bucket.objects}


def count_states(world: World, states: Mapping[str, HoldingState], cutoff: datetime) -> Rows:
    """Rows by state.

    Args:
        states: by object that the run knew.
        cutoff: of the run, UTC.
    """
    heads, is_certain = head_objects(world)
    sizes: dict[HoldingState, list[int]] = {HoldingState.HEAD: [max(each.values()) for each in heads.values()]}
    for key, state in states.items():
        if state is not HoldingState.HEAD:
            sizes.setdefault(state, []).append(world.bucket.sizes[key])
    for key in world.bucket.keys_below(METADATA_PREFIX):
        state = HoldingState.QUARANTINE if key.startswith(QUARANTINE_PREFIX) else HoldingState.METADATA
        sizes.setdefault(state, []).append(world.bucket.sizes[key])
    amounts = {state: Amount(len(each), sum(each)) for state, each in sizes.items()}
    history = amounts.pop(HoldingState.HISTORY, Amount())
    # A run that builds on another one does not list objects that came late into sealed slices.
    late = [max(each.values()) for key, each in heads.items() if key not in states and is_old(key, cutoff)]
    history -= Amount(len(late), sum(late))
    if is_certain and history.objects >= 0 and history.bytes >= 0:
        amounts[HoldingState.HISTORY] = history
    return {(Dimension.STATE, state.value, None, state): amount for state, amount in amounts.items()}


def count_classes(world: World, states: Mapping[str, HoldingState]) -> Rows:
    """Rows by storage class."""
    rows: Rows = {}
    for key, state in states.items():
        shown = None if state in (HoldingState.HEAD, HoldingState.HISTORY) else state
        holder = (Dimension.STORAGE_CLASS, class_of(key) or UNKNOWN_CLASS, None, shown)
        rows[holder] = rows.get(holder, Amount()).plus(1, world.bucket.sizes[key])
    return rows


def class_of(key: str) -> str | None:
    """Storage class of an object; the store does not state that of each."""
    return ("STANDARD", "STANDARD_IA", None)[crc32(key.encode()) % 3]


_FACTS = BucketView._facts


def _with_class(view: BucketView, key: str) -> ObjectFacts:
    return replace(_FACTS(view, key), storage_class=class_of(key))


def is_old(key: str, cutoff: datetime) -> bool:
    """True if the slice of an object is older than the cutoff of a run (UTC), or it is in none."""
    folder = key.removeprefix(DATA_PREFIX).partition("/")[0]
    return not is_xid(folder) or as_datetime(created_at(folder)) < cutoff


def head_objects(world: World) -> tuple[dict[str, dict[str, int]], bool]:
    """Size by branch of each object of a head, and False if an address may mean several objects."""
    heads: dict[str, dict[str, int]] = {}
    own, is_certain = world.repository.uri.partition("://")[2], True
    for branch in world.repository.branches.values():
        for entry in world.repository.head(branch).values():
            key = world.oracle.key_of(entry)
            if key is None:
                continue
            if entry.address_type != 1 and entry.address.partition("://")[2] != own + key:
                is_certain = False
                continue
            sizes = heads.setdefault(key, {})
            sizes[branch.name] = max(entry.size, sizes.get(branch.name, 0))
    return heads, is_certain


def count_branches(world: World) -> Rows:
    """Rows by branch."""
    rows: Rows = {}
    for sizes in head_objects(world)[0].values():
        for branch in sizes:
            sharing = Sharing.ALONE if len(sizes) == 1 else Sharing.SHARED
            holder = (Dimension.BRANCH, branch, sharing, HoldingState.HEAD)
            rows[holder] = rows.get(holder, Amount()).plus(1, max(sizes.values()))
    return rows


def require_equal(what: str, found: Holdings, expected: Rows) -> None:
    """Raises Violation if holdings have other rows, in the dimensions of the expected ones."""
    dimensions = {dimension for dimension, *_ in expected}
    rows = [row for row in found.rows if row.dimension in dimensions and row.objects]
    ours = {(row.dimension, row.key, row.held, row.state): (row.objects, row.bytes) for row in rows}
    theirs = {holder: (amount.objects, amount.bytes) for holder, amount in expected.items() if amount.objects}
    if ours != theirs or len(rows) != len(ours):
        wrong = sorted(
            f"{' '.join(map(str, key))}: {ours.get(key)}, not {theirs.get(key)}"
            for key in ours.keys() | theirs.keys()
            if ours.get(key) != theirs.get(key)
        )
        raise Violation(f"{what} differ from the world: {'; '.join(wrong) or 'a row is there twice'}")
