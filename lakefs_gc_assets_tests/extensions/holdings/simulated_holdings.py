"""Holdings after runs of simulated histories, against a plain count of the simulated world.

Writers, time and runs are those of the simulation. Each run begins when no operation is under way and ends before the
next step, so the world that it saw is the world that is counted. The servers answer correctly.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, Holdings, HoldingState, Sharing
from lakefs_gc_assets.extensions.holdings.making import make_holdings
from lakefs_gc_assets.lakefs.layout import (
    DATA_PREFIX,
    METADATA_PREFIX,
    QUARANTINE_PREFIX,
    as_datetime,
    created_at,
    is_xid,
)
from lakefs_gc_assets_tests.simulation.collecting import open_repository
from lakefs_gc_assets_tests.simulation.oracle import Violation, refuse_change
from lakefs_gc_assets_tests.simulation.playing import (
    DELETE,
    DRY_RUN,
    MOVE,
    History,
    Player,
    Step,
    deterministic,
    remembering,
    uncollected,
)
from lakefs_gc_assets_tests.simulation.processes import Command, Process
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import World


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
        with uncollected(), deterministic(self.history.setup.seed), remembering():
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
        candidates = addresses(process.exactness.store, run.run_id, STEPS[3])
        expected, of_branches = count_states(world, known, candidates, run.plan.cutoff), count_branches(world)
        command = Command(world, 1, refuse_change)
        repository = open_repository(command.api, command.store, options, command.clock)
        found = make_holdings(repository, lambda rows: LocalEngine(), world.log.append, world.log.append)
        require_equal(f"holdings after run {run.run_id} of flow {run.plan.flow}", found, expected, of_branches)
        self.seen.update(state for state, amount in expected.items() if amount.objects)
        self.seen["runs"] += 1


def count_states(
    world: World, known: Collection[str], candidates: Collection[str], cutoff: datetime
) -> dict[str, Amount]:
    """Objects by state.

    Args:
        known: objects that the run knew.
        candidates: objects that it marked.
        cutoff: of the run, UTC.
    """
    oracle, stored = world.oracle, world.bucket.objects
    heads, is_certain = head_objects(world)
    changes = (entry for branch in world.repository.branches.values() for _, entry in world.repository.changes(branch))
    staged = {oracle.key_of(entry) for entry in changes if entry} | {key for key, _ in world.repository.copies}
    states: dict[str, list[int]] = {HoldingState.HEAD: [max(sizes.values()) for sizes in heads.values()]}
    for key in known:
        if key in heads or key not in stored:
            continue
        if key in oracle.in_commits:
            state = HoldingState.HISTORY
        elif key in staged:
            state = HoldingState.STAGED
        else:
            state = HoldingState.GARBAGE if key in candidates else HoldingState.YOUNG
        states.setdefault(state, []).append(len(stored[key].data))
    if not is_certain:
        states.pop(HoldingState.HISTORY, None)
    for key in world.bucket.keys_below(METADATA_PREFIX):
        state = HoldingState.QUARANTINE if key.startswith(QUARANTINE_PREFIX) else HoldingState.METADATA
        states.setdefault(state, []).append(len(stored[key].data))
    amounts = {state: Amount(len(sizes), sum(sizes)) for state, sizes in states.items()}
    if HoldingState.HISTORY in amounts:
        # A run that builds on another one does not list objects that came late into sealed slices.
        late = [max(sizes.values()) for key, sizes in heads.items() if key not in known and is_old(key, cutoff)]
        history = amounts.pop(HoldingState.HISTORY) - Amount(len(late), sum(late))
        if history.objects >= 0 and history.bytes >= 0:
            amounts[HoldingState.HISTORY] = history
    return amounts


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


def count_branches(world: World) -> dict[tuple[str, Sharing], Amount]:
    """Objects of heads by branch, alone and shared."""
    amounts: dict[tuple[str, Sharing], Amount] = {}
    for sizes in head_objects(world)[0].values():
        for branch in sizes:
            key = branch, Sharing.ALONE if len(sizes) == 1 else Sharing.SHARED
            amounts[key] = amounts.get(key, Amount()).plus(1, max(sizes.values()))
    return amounts


def require_equal(
    what: str, found: Holdings, states: Mapping[str, Amount], branches: Mapping[tuple[str, Sharing], Amount]
) -> None:
    """Raises Violation if holdings have other figures, or figures that cannot be known."""
    rows = [row for row in found.of(Dimension.STATE) if row.objects]
    by_state = {row.key: (row.objects, row.bytes) for row in rows}
    wanted = {str(state): (amount.objects, amount.bytes) for state, amount in states.items() if amount.objects}
    if by_state != wanted or len(rows) != len(by_state):
        raise Violation(f"{what}: states are {by_state}, and the world has {wanted}")
    of_branches = {(row.key, row.held): (row.objects, row.bytes) for row in found.of(Dimension.BRANCH)}
    counted = {key: (amount.objects, amount.bytes) for key, amount in branches.items()}
    if of_branches != counted:
        raise Violation(f"{what}: branches hold {of_branches}, and in the world {counted}")
