"""The explorer itself, on worlds whose histories can be counted by hand."""

from dataclasses import dataclass, field
from functools import partial
from math import comb

import pytest

from lakefs_gc_assets_tests.rejected_designs.explorer import (
    Actor,
    Moment,
    Scenario,
    Steps,
    World,
    every_problem,
    explore,
    replay,
    step,
)


@dataclass
class Number(World):
    values: dict[str, int] = field(default_factory=lambda: {"n": 0})

    def read(self) -> int:
        return self.values["n"]

    def write(self, number: int) -> None:
        self.values["n"] = number


def _increment() -> Steps:
    number = yield step("reads", Number.read)
    yield step(f"writes {number + 1}", Number.write, number + 1)


def _idle(steps: int) -> Steps:
    for number in range(steps):
        yield step(f"step {number}", Number.read)


def _two(left: int) -> Scenario[Number]:
    actors = tuple(Actor(name, _increment) for name in ("a", "b"))
    return Scenario(
        Number(), actors, lambda world: None, lambda world: f"{world.read()}" if world.read() < left else None
    )


def test_a_lost_update_is_found_with_its_shortest_history() -> None:
    found = explore(_two(2))
    assert found.problem == "1"
    assert found.history == (
        Moment("a", "reads"),
        Moment("b", "reads"),
        Moment("a", "writes 1"),
        Moment("b", "writes 1"),
    )


def test_nothing_is_found_where_there_is_nothing() -> None:
    assert explore(_two(1)).problem is None


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (4, 4)])
def test_every_interleaving_is_looked_at(first: int, second: int) -> None:
    actors = (Actor("a", partial(_idle, first)), Actor("b", partial(_idle, second)))
    ended = Scenario(Number(), actors, lambda world: None, lambda world: "ended")
    assert len(list(every_problem(ended, first + second))) == comb(first + second, first)
    never = Scenario(Number(), actors, lambda world: None)
    assert explore(never).states == (first + 1) * (second + 1)


def test_a_mortal_actor_may_die_between_any_two_steps() -> None:
    actor = Actor("a", partial(_idle, 3), mortal=True)
    histories = set(every_problem(Scenario(Number(), (actor,), lambda world: None, lambda world: "ended"), 9))
    assert sorted(len([each for each in history if each.label != "dies"]) for history in histories) == [1, 2, 3]


def test_an_operation_is_under_way_from_its_first_step_to_its_last() -> None:
    seen: list[frozenset[str]] = []

    def broken(world: Number) -> None:
        seen.append(frozenset(world.under_way))

    explore(Scenario(Number(), (Actor("a", partial(_idle, 2)),), broken))
    assert seen == [frozenset(), frozenset({"a"}), frozenset()]


def test_a_history_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="not possible"):
        replay(_two(2), (Moment("a", "writes 1"),))
