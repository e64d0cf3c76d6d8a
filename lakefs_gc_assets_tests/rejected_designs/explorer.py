"""All interleavings of a few actors, breadth first: the first violation found has the shortest history.

An actor is a generator: it yields atomic steps and is sent their answers. Given the same answers it takes the same
steps. A state is therefore the world and all answers so far, and equal states are explored once.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Generic, Self, TypeVar

_DEAD = "dies"


@dataclass
class World:
    """State shared by actors: its fields are sets, and dictionaries of immutable values.

    Attributes:
        under_way: operations that have begun and not ended; maintained by the explorer.
    """

    under_way: set[str] = field(default_factory=set)

    def duplicate(self) -> Self:
        """A copy of the world, to be changed by a step."""
        return replace(self, **{each.name: copy(getattr(self, each.name)) for each in fields(self)})

    def frozen(self) -> Hashable:
        """All fields as a value that can be compared with that of another moment."""
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(frozenset(value.items() if isinstance(value, dict) else value) for value in values)


Kind = TypeVar("Kind", bound=World)


@dataclass(frozen=True)
class Step:
    """One atomic step: `act` changes the world, its first argument, and returns the answer."""

    label: str
    act: Callable[..., Any]
    arguments: tuple[Any, ...]


def step(label: str, act: Callable[..., Any], *arguments: Any) -> Step:
    """Makes a step to yield."""
    return Step(label, act, arguments)


Steps = Generator[Step, Any, None]


@dataclass(frozen=True)
class Actor:
    """One operation from begin to end; a mortal one may die before any of its steps but the first."""

    name: str
    program: Callable[[], Steps]
    mortal: bool = False


@dataclass(frozen=True)
class Scenario(Generic[Kind]):
    """A world and its actors; `broken` finds a problem in any state, `left` one at the end."""

    world: Kind
    actors: tuple[Actor, ...]
    broken: Callable[[Kind], str | None]
    left: Callable[[Kind], str | None] = lambda world: None


@dataclass(frozen=True)
class Moment:
    """One step of a history."""

    actor: str
    label: str

    def __str__(self) -> str:
        return f"{self.actor}: {self.label}"


@dataclass(frozen=True)
class Exploration:
    """Result: a history that ends in a problem, or a `problem` of None if no history does."""

    states: int
    problem: str | None = None
    history: tuple[Moment, ...] = ()


@dataclass(frozen=True)
class _State(Generic[Kind]):
    world: Kind
    answers: tuple[tuple[Any, ...], ...]

    def key(self) -> Hashable:
        return self.world.frozen(), self.answers


def explore(scenario: Scenario[Kind]) -> Exploration:
    """Explores every reachable state, nearest first, up to the first problem."""
    start = _State(scenario.world.duplicate(), tuple(() for _ in scenario.actors))
    came_from: dict[Hashable, tuple[Hashable, Moment] | None] = {start.key(): None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        followers = list(_followers(scenario, state))
        problem = scenario.broken(state.world) or (None if followers else scenario.left(state.world))
        if problem is not None:
            return Exploration(len(came_from), problem, tuple(_history(came_from, state.key())))
        for moment, follower in followers:
            if (key := follower.key()) not in came_from:
                came_from[key] = state.key(), moment
                waiting.append(follower)
    return Exploration(len(came_from))


def replay(scenario: Scenario[Kind], history: tuple[Moment, ...]) -> str | None:
    """The problem in which a history ends, or None. Raises ValueError if the scenario does not allow the history."""
    state = _State(scenario.world.duplicate(), tuple(() for _ in scenario.actors))
    for moment in history:
        matching = [follower for each, follower in _followers(scenario, state) if each == moment]
        if len(matching) != 1:
            raise ValueError(f"{moment} is not possible here")
        state = matching[0]
    ended = next(_followers(scenario, state), None) is None
    return scenario.broken(state.world) or (scenario.left(state.world) if ended else None)


def every_problem(scenario: Scenario[Kind], steps: int) -> Iterator[tuple[Moment, ...]]:
    """Histories up to a number of steps that end in a problem. Slow: depth first, without comparing states."""

    def below(state: _State[Kind], history: tuple[Moment, ...]) -> Iterator[tuple[Moment, ...]]:
        followers = list(_followers(scenario, state))
        if scenario.broken(state.world) or (not followers and scenario.left(state.world)):
            yield history
        elif len(history) < steps:
            for moment, follower in followers:
                yield from below(follower, (*history, moment))

    return below(_State(scenario.world.duplicate(), tuple(() for _ in scenario.actors)), ())


def alone(world: Kind, program: Callable[[], Steps]) -> Kind:
    """The world after one uninterrupted operation."""
    world = world.duplicate()
    steps, answer = program(), None
    try:
        while True:
            current = steps.send(answer)
            answer = current.act(world, *current.arguments)
    except StopIteration:
        return world


def _followers(scenario: Scenario[Kind], state: _State[Kind]) -> Iterator[tuple[Moment, _State[Kind]]]:
    for index, actor in enumerate(scenario.actors):
        reported = state.answers[index]
        current = _next_step(actor.program, reported)
        if current is None:
            continue
        world = state.world.duplicate()
        world.under_way.add(actor.name)
        answer = current.act(world, *current.arguments)
        if _next_step(actor.program, (*reported, answer)) is None:
            world.under_way.discard(actor.name)
        refused = ": refused" if answer is False else ""
        yield Moment(actor.name, current.label + refused), _State(world, _with(state.answers, index, answer))
        if actor.mortal and reported:
            world = state.world.duplicate()
            world.under_way.discard(actor.name)
            yield Moment(actor.name, _DEAD), _State(world, _with(state.answers, index, _DEAD))


def _with(answers: tuple[tuple[Any, ...], ...], index: int, answer: Any) -> tuple[tuple[Any, ...], ...]:
    return (*answers[:index], (*answers[index], answer), *answers[index + 1 :])


@lru_cache(maxsize=1 << 16)
def _next_step(program: Callable[[], Steps], reported: tuple[Any, ...]) -> Step | None:
    """The next step of an actor after these answers; None if it has ended."""
    if reported and reported[-1] == _DEAD:
        return None
    steps = program()
    try:
        current = next(steps)
        for answer in reported:
            current = steps.send(answer)
    except StopIteration:
        return None
    return current


def _history(came_from: dict[Hashable, tuple[Hashable, Moment] | None], key: Hashable) -> list[Moment]:
    moments: list[Moment] = []
    while (before := came_from[key]) is not None:
        key, moment = before
        moments.append(moment)
    return moments[::-1]


@dataclass(frozen=True)
class Case:
    """One scenario.

    Attributes:
        title: its name on the page.
        says: its description, in a sentence or two.
        holds: True if no history may end in a problem; otherwise one must.
    """

    title: str
    says: str
    scenario: Scenario[Any]
    holds: bool = False

    @cached_property
    def found(self) -> Exploration:
        """Result of the explorer."""
        return explore(self.scenario)
