"""Operations of users, their clients and administrators, each a job of one or more steps: on objects, on commits,
branches and tags, on retention rules, and past the server or in other repositories.

All operations of a history choose their targets as these do.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast
from urllib.parse import quote

from lakefs_gc_assets.collector.live.commits_under_way import TRIES
from lakefs_gc_assets.collector.records.own_commits import MARK, OwnCommit, record_own_commit
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation import lakefs_files
from lakefs_gc_assets_tests.simulation.bucket import in_quarantine, md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.oracle import Committing
from lakefs_gc_assets_tests.simulation.other_repository import OtherRepository
from lakefs_gc_assets_tests.simulation.repository import Branch, Refused, applied, merged
from lakefs_gc_assets_tests.simulation.servers import Server
from lakefs_gc_assets_tests.simulation.world import BRANCHES, CONTENTS, PATHS, TAGS, Job, World

Operation = Callable[..., Job]


OPERATIONS: dict[str, Operation] = {}


def operation(function: Operation) -> Operation:
    """Registers an operation under the name of its function."""
    OPERATIONS[function.__name__] = function
    return function


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


STAGING_SECONDS = 55 * MINUTE
"""An object that was uploaded through a server is staged within this time."""


def _described(key: str, content: bytes, metadata: int = 0) -> Entry:
    return Entry(key, 1, len(content), md5(content), metadata)


@contextmanager
def _uploading(world: World, key: str) -> Iterator[None]:
    """Tells the oracle of an object between its upload and its staging."""
    world.oracle.uploading.add(key)
    try:
        yield
    finally:
        world.oracle.uploading.discard(key)


@operation
def upload(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """Uploads through a server: a name is issued, the body arrives, the entry is staged."""
    name = branch_at(world, branch).name
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = world.issue(server_at(world, server))
    yield None
    world.bucket.put_data(key, data)
    with _uploading(world, key):
        yield STAGING_SECONDS
        world.repository.stage(world.repository.branch(name), path_at(path), _described(key, data))


@operation
def upload_now(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """Uploads at once, as `upload`."""
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = world.issue(server_at(world, server))
    world.bucket.put_data(key, data)
    world.repository.stage(branch_at(world, branch), path_at(path), _described(key, data))
    yield from ()


@operation
def misdated_upload(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """Uploads to a node of the store whose clock is days behind."""
    data = CONTENTS[content % len(CONTENTS)]
    name = branch_at(world, branch).name
    key, _ = world.issue(server_at(world, server))
    world.bucket.put_data(key, data, begun=world.bucket.clock.seconds() - 3 * DAY)
    with _uploading(world, key):
        yield STAGING_SECONDS
        world.repository.stage(world.repository.branch(name), path_at(path), _described(key, data))


@operation
def gateway_multipart(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """Multipart upload: the object appears at its end, and the store dates it to its beginning."""
    name = branch_at(world, branch).name
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = world.issue(server_at(world, server))
    begun = world.bucket.clock.seconds()
    yield None
    world.bucket.put_data(key, data, parts=2, begun=begun)
    with _uploading(world, key):
        yield STAGING_SECONDS
        entry = replace(_described(key, data), etag=world.bucket.objects[key].etag or "parts")
        world.repository.stage(world.repository.branch(name), path_at(path), entry)


@operation
def link(world: World, branch: int, path: int, content: int, server: int, parts: int, beyond: int = 0) -> Job:
    """A client gets an address, uploads to the store itself, and links the address at any server.

    Args:
        beyond: bytes by which it overstates the size.
    """
    name = branch_at(world, branch).name
    data = CONTENTS[content % len(CONTENTS)]
    key, issued = world.issue(server_at(world, server), linkable=True)
    begun = world.bucket.clock.seconds()
    yield None
    if parts % 4 == 0:
        world.bucket.put_data(key, data, parts=2, begun=begun)
    else:
        world.bucket.put_data(key, data)
    yield None
    other = server_at(world, server + parts)
    if not other.accepts(issued):
        raise Refused("address expired")
    entry = _described(key, data)
    if world.setup.etags == "foreign":
        # Clients pass on the store's ETag, which is no MD5 if the object is encrypted.
        entry = replace(entry, etag=world.bucket.objects[key].etag or entry.etag)
    entry = replace(entry, size=entry.size + beyond)
    world.repository.stage(world.repository.branch(name), path_at(path), entry)


@operation
def delete(world: World, branch: int, path: int) -> Job:
    found = branch_at(world, branch)
    world.repository.remove(found, some_path(world, found, path)[0])
    yield from ()


@operation
def reset_branch(world: World, branch: int) -> Job:
    found = branch_at(world, branch)
    found.tokens, found.compacted, found.base_id = [world.repository.new_token()], None, ""
    yield from ()


@operation
def reset_path(world: World, branch: int, path: int) -> Job:
    """Resets one path, or everything below `d/` or `f/`."""
    prefix = ("d/", "f/", *PATHS)[path % (2 + len(PATHS))]

    def meant(name: str) -> bool:
        return name == prefix or (prefix.endswith("/") and name.startswith(prefix))

    reset_paths(world, branch_at(world, branch), meant)
    yield from ()


def reset_paths(world: World, branch: Branch, meant: Callable[[str], bool]) -> None:
    """Takes back what is staged, or compacted, at the paths that are meant."""
    for token in branch.tokens:
        for name in [name for name in token if meant(name)]:
            del token[name]
    if branch.compacted is not None:
        head = world.repository.head(branch)
        for name in [name for name in head.keys() | branch.compacted.keys() if meant(name)]:
            if head.get(name) is not branch.compacted.get(name):
                branch.tokens[0][name] = head.get(name)


@operation
def copy(world: World, branch: int, source: int, destination: int, server: int) -> Job:
    """Copies in full; with the rules `seed` a staged object by reference, remembered."""
    found = branch_at(world, branch)
    path, entry = some_path(world, found, source)
    if world.setup.rules == "seed" and path in world.repository.staged(found):
        if entry.soft_at is None:
            _remember(world, entry)
        _restage(world, found, path_at(destination), entry)
        return
    stored = world.bucket.objects.get(world.oracle.key_of(entry) or "")
    if stored is None:
        raise Refused("outside")
    key, _ = world.issue(server_at(world, server))
    yield None
    world.bucket.put_data(key, stored.data)
    with _uploading(world, key):
        yield STAGING_SECONDS
        copied = replace(entry, address=key, address_type=1, soft_at=None)
        world.repository.stage(world.repository.branch(found.name), path_at(destination), copied)


@operation
def move(world: World, branch: int, source: int, destination: int, server: int) -> Job:
    """Renames: a copy by reference, then a deletion of the source."""
    found = branch_at(world, branch)
    path, entry = some_path(world, found, source)
    if world.setup.rules != "seed" or path not in world.repository.staged(found) or entry.soft_at is not None:
        raise Refused("full copies only")
    _remember(world, entry)
    _restage(world, found, path_at(destination), entry)
    if server % 2:
        yield MINUTE
    if world.repository.staged(found).get(path) is entry and path_at(destination) != path:
        world.repository.remove(found, path)


def _remember(world: World, entry: Entry) -> None:
    """Records that a staged entry is copied by reference."""
    key = world.oracle.key_of(entry)
    if key is not None:
        world.repository.copies.append((key, world.time.now))


def _restage(world: World, branch: Branch, path: str, entry: Entry) -> None:
    soft_at = None if entry.soft_at is None else world.time.now
    world.repository.stage(branch, path, replace(entry, soft_at=soft_at))


@operation
def set_metadata(world: World, branch: int, path: int, metadata: int) -> Job:
    """Stages the entry of a path, perhaps a committed one, again under other metadata."""
    found = branch_at(world, branch)
    name, entry = some_path(world, found, path)
    _restage(world, found, name, replace(entry, metadata=metadata % 3))
    yield from ()


@operation
def upload_again(world: World, branch: int, path: int, server: int) -> Job:
    """Uploads the same content to its path again, under a new name that the server does not list."""
    found = branch_at(world, branch)
    name, entry = some_path(world, found, path)
    stored = world.bucket.objects.get(world.oracle.key_of(entry) or "")
    if stored is None or md5(stored.data) != entry.etag:
        raise Refused("outside, or uploaded in parts")
    key, _ = world.issue(server_at(world, server))
    world.bucket.put_data(key, stored.data)
    again = replace(entry, address=key, address_type=1, size=len(stored.data), soft_at=None)
    world.repository.stage(found, name, again)
    yield from ()


@operation
def stage_object(world: World, branch: int, path: int, number: int) -> Job:
    """Stages any object of the repository by its address: nothing promises that it still exists."""
    keys = [key for key in world.bucket.keys if key.startswith("data/") and key not in world.oracle.foreign]
    unreferenced = [key for key in keys if not world.oracle.reachable(key)]
    keys = unreferenced if unreferenced and number % 4 else keys
    if not keys:
        raise Refused("nothing there")
    key = keys[number % len(keys)]
    data = world.bucket.objects[key].data
    entry = replace(_described(key, data), soft_at=world.time.now)
    world.repository.stage(branch_at(world, branch), path_at(path), entry)
    yield from ()


@operation
def drop_foreign(world: World, number: int) -> Job:
    """Another tool writes a file below `data/`."""
    slices = [key.split("/")[1] for key in world.bucket.keys if key.startswith("data/")]
    folder = slices[number % len(slices)] if slices else "x"
    key = (f"data/{folder}/notes-{number % 3}.txt", f"data/lost{number % 2}", f"other-{number % 2}")[number % 3]
    world.bucket.put_data(key, b"theirs", begun=world.time.now - 90 * DAY)
    world.oracle.foreign.add(key)
    yield from ()


COMMIT_SECONDS = 9 * MINUTE
"""A commit without hooks ends, well or badly, within this time after sealing."""
_DATED = 10_000
LAG_SECONDS = 20
"""A commit shows up in a scan of all commits within this time."""


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
def expire(world: World, branch: int, path: int, receipt: int) -> Job:
    """Object lifecycle removes a committed path in a commit of its own.

    Args:
        receipt: 0 for a client that forges such a commit: it has the mark, and no receipt.
    """
    found = branch_at(world, branch)
    _require_clean(world, found)
    head = world.repository.head(found)
    if not head:
        raise Refused("nothing committed")
    gone, run_id = sorted(head)[path % len(head)], f"lifecycle-{len(world.repository.commits)}"
    entries = {name: entry for name, entry in head.items() if name != gone}
    found.commit_id = made = world.commit(entries, (found.commit_id,), 0.0, metadata=((MARK, run_id),))
    if receipt:
        at = datetime.fromtimestamp(world.time.now, UTC)
        record_own_commit(cast("ObjectStore", world.bucket), OwnCommit("repo", made, found.name, run_id, at))
        world.repository.by_lifecycle.add(made)
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


def _other(world: World, *, importer: bool) -> OtherRepository:
    other = world.other
    if other is None or not other.is_there or (other.around.other == "importer") is not importer:
        raise Refused("no such repository")
    return other


@operation
def other_import(world: World, path: int, number: int, spelling: int) -> Job:
    """Stages one of our objects, which a commit or branch holds, by its full address.

    If all such commits have expired, nothing promises that it still exists.
    """
    other = _other(world, importer=True)
    reached = sorted(key for key in world.oracle.firm_since if key in world.bucket.objects)
    if not reached:
        raise Refused("nothing to import")
    key = reached[number % len(reached)]
    data = world.bucket.objects[key].data
    soft_at = None if world.oracle.is_promised(key) else world.time.now
    entry = Entry(spelled(other.own_uri, key, spelling), 2, len(data), md5(data), soft_at=soft_at)
    other.repository.stage(other.branch, path_at(path), entry)
    yield from ()


@operation
def other_import_old(world: World, path: int, number: int) -> Job:
    """Stages one of our unreferenced objects: nothing promises that it still exists."""
    other = _other(world, importer=True)
    key = _garbage_at(world, number)
    data = world.bucket.objects[key].data
    entry = Entry(other.own_uri + key, 2, len(data), f"{number:032x}", soft_at=world.time.now)
    other.repository.stage(other.branch, path_at(path), entry)
    yield from ()


def _garbage_at(world: World, number: int) -> str:
    keys = [key for key in world.garbage() if key.startswith("data/") and key not in world.oracle.foreign]
    if not keys:
        raise Refused("nothing there")
    return keys[number % len(keys)]


@operation
def other_commit(world: World, lag: int) -> Job:
    """Commits the staged entries of the other repository."""
    other = _other(world, importer=True)
    entries = applied(other.repository.head(other.branch), other.branch.staged())
    other.commit(entries, world.oracle.key_of, float(lag % 20))
    other.branch.tokens = [other.repository.new_token()]
    yield from ()


@operation
def other_delete(world: World, path: int) -> Job:
    """Removes a path of the other repository; its commits stay."""
    other = _other(world, importer=True)
    other.repository.remove(other.branch, path_at(path))
    yield from ()


@operation
def other_reset(world: World) -> Job:
    """Drops the staged entries of the other repository."""
    other = _other(world, importer=True)
    other.branch.tokens = [other.repository.new_token()]
    yield from ()


def _uploaded(world: World, other: OtherRepository, content: int) -> Entry:
    """Uploads an object under a name of the twin's own server."""
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = other.server.issue_name()
    world.oracle.issued[key] = world.time.now
    world.bucket.put_data(key, data)
    other.made += 1
    return Entry(key, 1, len(data), md5(data))


@operation
def twin_commit(world: World, content: int, branch: int) -> Job:
    """The twin uploads and commits at once, on top of its head or of one restored from a branch of ours."""
    other = _other(world, importer=False)
    entry = _uploaded(world, other, content)
    base = other.repository.head(other.branch)
    if branch % 3 == 0:
        ours = world.repository.head(branch_at(world, branch))
        base = {path: held for path, held in ours.items() if held.soft_at is None}
    other.commit({**base, f"twin/{other.made}": entry}, world.oracle.key_of)
    yield from ()


@operation
def twin_commit_old(world: World, number: int) -> Job:
    """The twin commits an unreferenced object by its address: nothing promises that it still exists."""
    other = _other(world, importer=False)
    key = _garbage_at(world, number)
    data = world.bucket.objects[key].data
    other.made += 1
    entry = Entry(key, 1, len(data), md5(data), soft_at=world.time.now)
    other.commit({f"twin/{other.made}": entry}, world.oracle.key_of)
    yield from ()


@operation
def twin_stage(world: World, content: int) -> Job:
    """The twin uploads an object and stages it."""
    other = _other(world, importer=False)
    if not other.stages_unseen:
        raise Refused("it commits at once")
    entry = _uploaded(world, other, content)
    other.repository.stage(other.branch, f"twin/{other.made}", entry)
    yield from ()


@operation
def twin_leaves(world: World) -> Job:
    """The twin is abandoned."""
    if not _other(world, importer=False).stages_unseen:
        raise Refused("nobody knows of it")
    world.dismiss_twin()
    yield from ()


def _has_neighbours(world: World, key: str) -> bool:
    """True if its slice holds other objects: an empty slice is not listed."""
    return key.startswith("data/") and len(world.bucket.keys_below(key.rpartition("/")[0] + "/")) > 1


@operation
def lose_object(world: World, number: int) -> Job:
    """Deletes an object past lakeFS that a branch holds."""
    repository = world.repository
    held = {
        entry.address
        for branch in repository.branches.values()
        for entry in repository.visible(branch).values()
        if entry.address_type == 1 and entry.address in world.oracle.firm_since
    }
    there = sorted(key for key in held & world.bucket.objects.keys() if _has_neighbours(world, key))
    if not there:
        raise Refused("nothing there")
    key = there[number % len(there)]
    world.bucket.remove(key)
    world.oracle.lost_objects.add(key)
    yield from ()


@operation
def stage_spelled(world: World, branch: int, number: int) -> Job:
    """Stages a committed object by another spelling of its address, which uncommitted data leaves out."""
    held = sorted(
        key for key, since in world.oracle.in_commits.items() if since is None and key in world.bucket.objects
    )
    if not held:
        raise Refused("nothing committed")
    key = held[number % len(held)]
    uri = world.repository.uri.replace("s3://", "s3a://")
    entry = Entry(uri + key, 2, len(world.bucket.objects[key].data), f"{number:032x}")
    # One of the first changes of its branch, which a run examines.
    world.repository.stage(branch_at(world, branch), path_at(number % 2), entry)
    yield from ()


@operation
def renew_files(world: World, number: int) -> Job:
    """Copies lakeFS's files away and back: their times become the present, or later by a clock that is ahead."""
    bucket = world.bucket
    moment = bucket.clock.seconds() + (0.0, 0.0, HOUR, DAY)[number % 4]
    for key in bucket.keys_below(METADATA_PREFIX):
        bucket.objects[key] = replace(bucket.objects[key], last_modified=moment)
    yield from ()


@operation
def set_files_back(world: World, days: int, any_claim: int = 0) -> Job:
    """Restores metaranges with times of long ago.

    Args:
        any_claim: 0 skips metaranges named by a commit that claims to be older than it is: if both time and claim are
            false, no date is left to rely on. See `test_limits`.
    """
    if world.setup.around.only_young_count:
        raise Refused("what nothing names is told by its time alone")
    commits = world.repository.commits.values()
    backdated = {each.facts.metarange_id for each in commits if each.facts.creation_date < int(each.made_at)}
    named = {each.facts.metarange_id for each in commits if each.facts.metarange_id}
    for metarange_id in named if any_claim else named - backdated:
        key = METADATA_PREFIX + metarange_id
        stored = world.bucket.objects[key]
        world.bucket.objects[key] = replace(stored, last_modified=stored.last_modified - days * DAY)
    yield from ()


@operation
def delete_branches(world: World) -> Job:
    """Deletes all branches but the default one."""
    for branch in [branch for branch in world.repository.branches.values() if branch.name != "main"]:
        if not branch.hidden:
            del world.repository.branches[branch.name]
    yield from ()


@operation
def stage_moved(world: World, branch: int, path: int, number: int) -> Job:
    """Stages an object by its address when only quarantine holds it: nothing promises that it comes back."""
    moved = sorted(address for _, address in in_quarantine(world.bucket) if address not in world.bucket.objects)
    if not moved:
        raise Refused("nothing in quarantine")
    address = moved[number % len(moved)]
    entry = Entry(address, 1, world.bucket.sizes[address], f"{number:032x}", soft_at=world.time.now)
    world.repository.stage(branch_at(world, branch), path_at(path), entry)
    yield from ()
