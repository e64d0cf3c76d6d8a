"""Forecasts in simulated histories: each column equals the marks of a dry run with that policy."""

import json
import pickle
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.retention import rules
from lakefs_gc_assets.collector.retention.rules import Policy
from lakefs_gc_assets.extensions.forecast import forecast
from lakefs_gc_assets.extensions.forecast.scenarios import Scenario, of_age
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets_tests.simulation import collecting
from lakefs_gc_assets_tests.simulation.bug import replace
from lakefs_gc_assets_tests.simulation.bugs import KINDS
from lakefs_gc_assets_tests.simulation.clocks import HOUR
from lakefs_gc_assets_tests.simulation.collecting import Run
from lakefs_gc_assets_tests.simulation.exactness import Exactness
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.playing import played
from lakefs_gc_assets_tests.simulation.processes import Figures, Process
from lakefs_gc_assets_tests.simulation.run_requests import Asked, settings
from lakefs_gc_assets_tests.simulation.seeds import SEED_VARIABLE, draw_seed, fresh
from lakefs_gc_assets_tests.simulation.stored_results import stored_rows
from lakefs_gc_assets_tests.simulation.world import BRANCHES, World

AGES = (0, 1, 2, 3, 5, None)
Objects = dict[str, int]
"""Sizes by address."""


@dataclass
class Compared:
    """Results of the comparisons of a history.

    Attributes:
        scenarios: scenarios compared with a dry run, counted by kind.
        marked: objects that these runs marked.
        unasked: runs that had more paths to look up than their limit.
        kept: unreferenced objects that stayed, counted by reason.
        refused: errors of runs that a forecast does not know.
    """

    scenarios: Counter[ScenarioKind] = field(default_factory=Counter)
    marked: int = 0
    unasked: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)


def compare(seed: int, folder: Path) -> Compared:
    """Plays the history of a seed and compares the forecast with runs.

    Args:
        folder: folder for policy files.

    Raises:
        Violation: a run marks other objects than the forecast says.
    """
    chance = random.Random(f"forecast {seed}")
    history = KINDS["retention"].generate(seed)
    compared = Compared()
    with played(history) as world:
        world.pass_time(chance.choice((1, 20, 30, 60)) * HOUR)
        if world.jobs:
            return compared
        world.background.clear()
        # The server that answers is random; if clocks differed, ages would count back from different moments.
        slowest = min(server.clock.skew for server in world.servers.servers)
        for server in world.servers.servers:
            server.clock.skew = slowest
        limit = chance.choice((0, 1, 2, 10_000, 10_000))
        options = settings(False, 24.0, "month", around=world.setup.around.lenient).model_copy(
            update={"hidden_suspect_limit": limit, "retention_policy": ""}
        )
        policies = {f"{name}.yaml": _draw_policy(world, chance, folder / f"{name}.yaml") for name in ("one", "two")}
        before = pickle.dumps(world)
        # Some forecasts have more scenarios than a word has bits.
        further = range(6, chance.choice((6, 6, 6, 80)))
        said, undecided, failure = _forecast(pickle.loads(before), options, policies, (*AGES, *further))
        for scenario, marks in said:
            policy, changed = folder / f"{scenario.kind}-{scenario.days}", pickle.loads(before)
            match scenario.kind:
                case ScenarioKind.AGE if scenario.days in further[:-1]:
                    continue
                case ScenarioKind.AGE if scenario.days is not None:
                    policy.write_text(f"{{default: {scenario.days}d, replace: true}}")
                    assert rules.load_policy(policy) == of_age(Policy(), scenario.days)
                case ScenarioKind.POLICY:
                    policy = folder / scenario.name
                case ScenarioKind.BRANCH if not _staged(world, scenario.name):
                    policy.write_text("")
                    del changed.repository.branches[scenario.name]
                case ScenarioKind.TAG:
                    policy.write_text("")
                    del changed.repository.tags[scenario.name]
                case ScenarioKind.IN_FORCE:
                    policy.write_text("")
                case _:
                    continue
            chosen = options.model_copy(update={"retention_policy": str(policy)})
            _compare_run(changed, chosen, scenario, marks, compared, undecided)
        if failure and not compared.refused:
            raise Violation(f"the forecast ended: {failure}")
    return compared


def _compare_run(
    world: World, options: CollectionSettings, scenario: Scenario, said: Objects, compared: Compared, undecided: bool
) -> None:
    process = _process(world)
    with ExitStack() as patches:
        # The oracle knows only the rules of the server.
        replace(patches, type(world.oracle), "marked", lambda oracle, run_id, candidates: None)
        process.start(options, None, Asked(Flow.COMMITTED))
    assert process.run is not None
    if process.figures.failed:
        compared.refused.append(world.log[-1])
        return
    store, run_id = process.exactness.store, process.run.run_id
    found = {row["address"]: row["size"] for row in stored_rows(store, run_id, CANDIDATES_DF.name)}
    figures = files.read_manifest(store, run_id, CANDIDATES_DF).figures
    compared.scenarios[scenario.kind] += 1
    compared.marked += len(found)
    compared.kept.update(figures.kept)
    compared.unasked += bool(figures.paths_unasked)
    missing, more = found.items() - said.items(), said.items() - found.items()
    if scenario.kind is ScenarioKind.BRANCH:
        # For objects freed only by such a deletion, the forecast does not check whether they are staged with the
        # content of a committed object.
        asked = (Kept.HIDDEN_STAGED, Kept.UNCERTAIN, Kept.UNASKABLE)
        if len(more) <= sum(figures.kept.get(why.value, 0) for why in asked):
            more = set()
    if undecided and not scenario.kind.by_rules:
        missing = set()
    if missing or more:
        raise Violation(f"{scenario}: the run marks {sorted(missing)} besides, and not {sorted(more)}")


def _staged(world: World, branch: str) -> bool:
    found = world.repository.branches[branch]
    return any(found.tokens) or found.compacted is not None


def _forecast(
    world: World, options: CollectionSettings, policies: Mapping[str, Policy], ages: Sequence[int | None]
) -> tuple[list[tuple[Scenario, Objects]], bool, str]:
    """Returns the objects that each scenario marks, True if deletions are undecided, and the error that ended the
    forecast."""
    said: list[tuple[Scenario, Objects]] = []
    undecided: list[bool] = []

    def collect(run: Run, done: Sequence[str] = ()) -> None:
        repository = run.open()
        engine = run.engine(repository)
        with forecast.ask(repository, engine, run.note, ages, policies) as asked:
            undecided.append(asked.marked.undecided)
            rows = engine.collect(asked.marked.candidates).to_pylist()
            for number, scenario in enumerate(asked.questions.scenarios):
                gone = [row for row in rows if not int.from_bytes(row["held"], "little") >> number & 1]
                marks = {row["address"]: row["size"] for row in gone}
                if len(marks) != len(gone):
                    raise Violation(f"{scenario.name}: an object is counted twice")
                said.append((scenario, marks))

    process = _process(world)
    with ExitStack() as patches:
        replace(patches, collecting.Run, "collect", collect)
        process.start(options, None, Asked(Flow.COMMITTED))
    return said, any(undecided), world.log[-1] if process.figures.failed else ""


def _process(world: World) -> Process:
    return Process(world, "c0", Figures(), Exactness(world.bucket, world.oracle))


def _draw_policy(world: World, chance: random.Random, file: Path) -> Policy:
    """Draws a policy that matters in a world, and writes it to a file."""
    lines = [f"replace: {str(chance.random() < 0.7).lower()}", f"default: {chance.choice((0, 1, 2, 4))}d"]
    lines += ["branches:", *(f"  {name}: {chance.choice((0, 12, 36, 60))}h" for name in chance.sample(BRANCHES, 2))]
    pattern = {"retention": "12h", "keep_last": 2, "keep": {"daily": 2, "weekly": 2}, "follow": "all-parents"}
    kept = chance.sample([*pattern], chance.randint(0, len(pattern)))
    lines += [f"  '*': {json.dumps({'retention': '12h'} | {key: pattern[key] for key in kept})}"]
    lines += [f"keep_tags: {chance.choice(('true', 'false', '[v1, v3]'))}"]
    if chance.random() < 0.5:
        commits = sorted(world.repository.commits)
        lines += ["pinned:", *(f"- {commit_id}" for commit_id in chance.sample(commits, min(2, len(commits))))]
    file.write_text("\n".join(lines))
    return rules.load_policy(file)


FIXED, FRESH = (1, 2, 4, 5, 7), 4
"""Histories that `make test-slow` plays: the same ones each time, and a number of new ones."""


def _compare_all(seeds: Iterable[int], folder: Path) -> list[Compared]:
    found = []
    for seed in seeds:
        try:
            found.append(compare(seed, folder))
        except Violation as violation:
            pytest.fail(f"{violation}\nhistory {seed}; play it again with {SEED_VARIABLE}={draw_seed()}")
    return found


def test_a_forecast_says_what_each_run_would_mark(tmp_path: Path) -> None:
    (found,) = _compare_all(fresh(0, 1), tmp_path)
    assert found.scenarios[ScenarioKind.POLICY] >= 1


@pytest.mark.slow
def test_nor_do_more_histories_tell_them_apart_and_much_is_compared(tmp_path: Path) -> None:
    """Requires that some objects may go, without which the histories would show nothing."""
    found = _compare_all((*FIXED, *fresh(1, 1 + FRESH)), tmp_path)[: len(FIXED)]
    scenarios = sum((each.scenarios for each in found), Counter[ScenarioKind]())
    assert all(scenarios[kind] > 2 for kind in ScenarioKind)
    assert sum(each.marked for each in found) > 45
    assert sum(each.unasked for each in found) > 5
    assert sum(len(each.refused) for each in found) < 2
