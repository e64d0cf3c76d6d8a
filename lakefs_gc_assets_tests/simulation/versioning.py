"""Operations of users on commits, branches and tags, each a job of one or more steps.

Those of administrators change retention rules and old commits.
"""

import hashlib
from dataclasses import replace
from urllib.parse import quote

from lakefs_gc_assets.collector.live.commits_under_way import TRIES
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets_tests.simulation import lakefs_files
from lakefs_gc_assets_tests.simulation.bucket import md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Committing
from lakefs_gc_assets_tests.simulation.repository import Branch, Refused, applied, merged
from lakefs_gc_assets_tests.simulation.world import BRANCHES, TAGS, Job, World
from lakefs_gc_assets_tests.simulation.writers import Operation, branch_at, commit_id_at, registering

COMMIT_SECONDS = 9 * MINUTE
"""A commit without hooks ends, well or badly, within this time after sealing."""
_DATED = 10_000
LAG_SECONDS = 20
"""A commit shows up in a scan of all commits within this time."""

OPERATIONS: dict[str, Operation] = {}
operation = registering(OPERATIONS)


def longest_commit_seconds(world: World) -> float:
    """Maximum duration of a commit: hooks hold it each time that the server tries."""
    return COMMIT_SECONDS + TRIES * world.setup.hook_minutes * MINUTE


@operation
def commit(world: World, branch: int, date: int, lag: int) -> Job:
    """Seals staged entries, writes ranges, moves the branch; fails if the branch changed meanwhile."""
    repository = world.repository
    found = branch_at(world, branch)
    head = found.commit_id
    sealed, base = repository.seal(found), found.base_id
    changes = found.sealed()
    if not changes and not base:
        raise Refused("nothing to commit")
    held, before = applied(repository.rests_on(found), changes), repository.head(found)
    promised = [entry for path, entry in held.items() if entry.soft_at is None and before.get(path) is not entry]
    keys = frozenset(key for entry in promised if (key := world.oracle.key_of(entry)))
    token = id(changes)

    def unchanged() -> bool:
        same = repository.branches.get(found.name) is found
        return same and found.commit_id == head and found.sealed_tokens() == sealed and found.base_id == base

    world.oracle.committing[token] = Committing(keys, unchanged)
    try:
        yield longest_commit_seconds(world)
        if not unchanged():
            raise Refused("the branch changed")
        # Entries staged again meanwhile hid the older ones, which nothing promised: these count from now on.
        for path, entry in changes.items():
            if entry is not None and entry.soft_at is not None and path in found.tokens[0]:
                changes[path] = replace(entry, soft_at=world.time.now)
        entries = applied(repository.rests_on(found), changes)
        found.commit_id = world.commit(entries, (head,), float(lag % LAG_SECONDS), _off_by(date))
        found.tokens, found.compacted, found.base_id = found.tokens[:1], None, ""
    finally:
        del world.oracle.committing[token]


def dated(days: int) -> int:
    """The number for a commit date some days from the present, up to some years."""
    return _DATED + days


def _off_by(date: int) -> float:
    """Seconds by which a commit misstates its date."""
    if date >= _DATED // 2:
        return (date - _DATED) * DAY
    return (0.0, 0.0, -800 * DAY, 800 * DAY, -HOUR)[date % 5]


@operation
def commit_now(world: World, branch: int, date: int, lag: int) -> Job:
    """Commits at once, as `commit`."""
    for _ in commit(world, branch, date, lag):
        pass
    yield from ()


@operation
def compact(world: World, branch: int) -> Job:
    """Compacts staged entries into a metarange that no commit names; fails if the branch changed meanwhile."""
    repository, found = world.repository, branch_at(world, branch)
    if found.hidden:
        raise Refused("hidden")
    sealed, head, base = repository.seal(found), found.commit_id, found.base_id

    def require_unchanged() -> None:
        same = repository.branches.get(found.name) is found and found.sealed_tokens() == sealed
        if not same or (found.commit_id, found.base_id) != (head, base):
            raise Refused("the branch changed")

    yield COMMIT_SECONDS
    require_unchanged()
    entries = applied(repository.rests_on(found), found.sealed())
    base_id = lakefs_files.put_commit_objects(world.bucket, entries)
    repository.ever_compacted.update(entry.address for entry in entries.values())
    yield MINUTE
    require_unchanged()
    repository.compact(found, entries, base_id)


@operation
def compact_now(world: World, branch: int) -> Job:
    """Compacts at once, as `compact`."""
    for _ in compact(world, branch):
        pass
    yield from ()


def _require_clean(world: World, branch: Branch) -> None:
    if branch.hidden or branch.base_id or any(token for token in branch.tokens):
        raise Refused("dirty branch")


def _move(world: World, branch: Branch, entries: dict[str, Entry], parents: tuple[str, ...], lag: int) -> Job:
    """Moves a clean branch to a new commit. Seals its staging first; others may write to the new token meanwhile."""
    _require_clean(world, branch)
    head = branch.commit_id
    world.repository.seal(branch)
    yield longest_commit_seconds(world)
    if world.repository.branches.get(branch.name) is not branch or branch.commit_id != head:
        raise Refused("the branch changed")
    branch.commit_id = world.commit(entries, parents, float(lag % LAG_SECONDS))
    branch.tokens = branch.tokens[:1]


@operation
def merge(world: World, source: int, destination: int, lag: int) -> Job:
    theirs, ours = branch_at(world, source), branch_at(world, destination)
    if theirs is ours or theirs.commit_id == ours.commit_id:
        raise Refused("no changes")
    repository = world.repository
    ancestors = {ours.commit_id}
    open_ = [ours.commit_id]
    while open_:
        for parent in repository.commits[open_.pop()].facts.parents:
            if parent not in ancestors:
                ancestors.add(parent)
                open_.append(parent)
    base = theirs.commit_id
    while base not in ancestors:
        base = repository.commits[base].facts.parents[0]
    entries = merged(repository.commits[base].entries, repository.head(theirs), repository.head(ours))
    return _move(world, ours, entries, (ours.commit_id, theirs.commit_id), lag)


@operation
def revert(world: World, branch: int, number: int, lag: int) -> Job:
    return _on_top(world, branch, number, lag, undo=True)


@operation
def cherry_pick(world: World, branch: int, number: int, lag: int) -> Job:
    return _on_top(world, branch, number, lag, undo=False)


def _on_top(world: World, branch: int, number: int, lag: int, *, undo: bool) -> Job:
    found = branch_at(world, branch)
    record = world.repository.commits[commit_id_at(world, number)]
    if not record.facts.parents:
        raise Refused("the first commit")
    before = world.repository.commits[record.facts.parents[0]].entries
    old, new = (record.entries, before) if undo else (before, record.entries)
    entries = merged(old, new, world.repository.head(found))
    return _move(world, found, entries, (found.commit_id,), lag)


@operation
def hard_reset(world: World, branch: int, number: int, force: int) -> Job:
    """Moves a branch to any commit. By force also a dirty one, which loses its staging, except entries staged
    meanwhile."""
    found = branch_at(world, branch)
    if found.hidden:
        raise Refused("hidden")
    if force % 2 == 0:
        _require_clean(world, found)
    target = commit_id_at(world, number)
    world.repository.seal(found)
    yield MINUTE
    if world.repository.branches.get(found.name) is not found:
        raise Refused("the branch is gone")
    found.commit_id = target
    found.tokens, found.compacted, found.base_id = found.tokens[:1], None, ""


@operation
def create_branch(world: World, name: int, source: int) -> Job:
    """Makes a branch on another branch's head or on any commit."""
    wanted = BRANCHES[name % len(BRANCHES)]
    if wanted in world.repository.branches:
        raise Refused("exists")
    commit_id = commit_id_at(world, source // 2) if source % 2 else branch_at(world, source // 2).commit_id
    world.repository.new_branch(wanted, commit_id)
    yield from ()


@operation
def delete_branch(world: World, branch: int) -> Job:
    found = branch_at(world, branch)
    if found.name == "main" or found.hidden:
        raise Refused("default branch")
    del world.repository.branches[found.name]
    yield from ()


@operation
def create_tag(world: World, name: int, branch: int) -> Job:
    world.repository.tags.setdefault(TAGS[name % len(TAGS)], branch_at(world, branch).commit_id)
    yield from ()


@operation
def delete_tag(world: World, name: int) -> Job:
    world.repository.tags.pop(TAGS[name % len(TAGS)], None)
    yield from ()


def spelled(uri: str, key: str, spelling: int) -> str:
    """The full address of a key of a namespace, in one of its spellings."""
    other = uri.replace("s3://", "s3a://")
    escaped = uri + quote(key)
    return (uri + key, uri + "/" + key, other + key, uri + key + "/", escaped)[spelling % 5]


@operation
def import_objects(world: World, branch: int, number: int, spelling: int) -> Job:
    """A commit on a hidden branch of its own, then merged: objects outside, and one of the repository's in full.

    Servers refuse to import from their own namespace by now. Entries of full addresses in it are left from older
    versions, which stored those of linked and staged objects (changed in 0.88.0, by lakeFS's CHANGELOG.md).
    """
    found = branch_at(world, branch)
    if found.hidden:
        raise Refused("hidden")
    world.imports += 1
    hidden = f"_import-{world.imports}"
    head = found.commit_id
    world.repository.new_branch(hidden, head, hidden=True)
    yield 10 * MINUTE
    entries = dict(world.repository.commits[head].entries)
    digest = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    entries["in/1"] = Entry(f"s3://elsewhere/{number}", 2, number % 9, digest, mtime=int(world.time.now))
    reached = sorted(key for key in world.oracle.firm_since if key in world.bucket.objects)
    if reached:
        key = reached[number % len(reached)]
        stored = world.bucket.objects[key]
        address = spelled(world.repository.uri, key, spelling)
        entries["in/2"] = Entry(address, 2, len(stored.data), md5(stored.data), mtime=int(stored.last_modified))
    # Changes that others made to the hidden branch are dropped.
    world.repository.branches[hidden].commit_id = head
    world.oracle.look()
    world.repository.branches[hidden].commit_id = made = world.commit(entries, (head,), 0.0)
    yield 10 * MINUTE
    dirty = any(found.tokens) or found.base_id
    if world.repository.branches.get(found.name) is found and found.commit_id == head and not dirty:
        found.commit_id = made
    del world.repository.branches[hidden]


DAYS = (0, 1, 1, 2, 2, 3, 5)


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
