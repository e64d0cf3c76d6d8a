"""Operations by name, and the choice of their targets by plain numbers.

A history can thus be replayed with steps left out: the numbers choose among the targets that exist then.
"""

from collections.abc import Callable

from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.repository import Branch, Refused
from lakefs_gc_assets_tests.simulation.servers import Server
from lakefs_gc_assets_tests.simulation.world import PATHS, Job, World

Operation = Callable[..., Job]


def registering(operations: dict[str, Operation]) -> Callable[[Operation], Operation]:
    """Returns a decorator that registers operations under the names of their functions."""

    def register(function: Operation) -> Operation:
        operations[function.__name__] = function
        return function

    return register


def branch_at(world: World, number: int) -> Branch:
    names = sorted(name for name in world.repository.branches)
    return world.repository.branches[names[number % len(names)]]


def path_at(number: int) -> str:
    return PATHS[number % len(PATHS)]


def server_at(world: World, number: int) -> Server:
    return world.servers.servers[number % len(world.servers.servers)]


def commit_id_at(world: World, number: int) -> str:
    return sorted(world.repository.commits)[number % len(world.repository.commits)]


def some_path(world: World, branch: Branch, number: int) -> tuple[str, Entry]:
    """A path that the branch shows, with its entry."""
    visible = world.repository.visible(branch)
    if not visible:
        raise Refused("nothing there")
    path = sorted(visible)[number % len(visible)]
    return path, visible[path]
