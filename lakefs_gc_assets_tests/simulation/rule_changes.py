"""Changes that administrators make to retention rules and to old commits, each a job of one step."""

from dataclasses import replace

from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets_tests.simulation.repository import Refused
from lakefs_gc_assets_tests.simulation.world import BRANCHES, TAGS, Job, World
from lakefs_gc_assets_tests.simulation.writers import Operation, registering

DAYS = (0, 1, 1, 2, 2, 3, 5)

OPERATIONS: dict[str, Operation] = {}
operation = registering(OPERATIONS)


@operation
def set_rules(world: World, default: int, branch: int, days: int) -> Job:
    """Sets a default rule and the rule of a branch, which need not exist."""
    rules = {BRANCHES[branch % len(BRANCHES)]: DAYS[days % len(DAYS)]}
    world.repository.set_rules(RetentionRules(DAYS[default % len(DAYS)], rules))
    yield from ()


@operation
def lengthen_rules(world: World, days: int) -> Job:
    """Makes all rules longer."""
    rules, more = world.repository.rules, 1 + days % 20
    if rules is None:
        raise Refused("no rules")
    branches = {branch: kept + more for branch, kept in rules.branches.items()}
    world.repository.set_rules(RetentionRules(rules.default_days + more, branches))
    yield from ()


@operation
def lengthen_rule(world: World, branch: int, days: int) -> Job:
    """Makes a branch's rule longer."""
    rules, name = world.repository.rules, BRANCHES[branch % len(BRANCHES)]
    if rules is None:
        raise Refused("no rules")
    longer = rules.branches.get(name, rules.default_days) + 1 + days % 20
    world.repository.set_rules(replace(rules, branches={**rules.branches, name: longer}))
    yield from ()


@operation
def delete_rules(world: World) -> Job:
    world.repository.rules = None
    yield from ()


def _old_commit(world: World, number: int) -> str:
    """A commit that is the head of no branch."""
    heads = {branch.commit_id for branch in world.repository.branches.values()}
    old = sorted(world.repository.commits.keys() - heads)
    if not old:
        raise Refused("every commit is a head")
    return old[number % len(old)]


@operation
def branch_commit(world: World, name: int, number: int) -> Job:
    """Makes a branch on an old commit."""
    free = [branch for branch in BRANCHES if branch not in world.repository.branches]
    if not free:
        raise Refused("every branch exists")
    world.repository.new_branch(free[name % len(free)], _old_commit(world, number))
    yield from ()


@operation
def tag_commit(world: World, name: int, number: int) -> Job:
    """Makes a tag on an old commit."""
    world.repository.tags.setdefault(TAGS[name % len(TAGS)], _old_commit(world, number))
    yield from ()
