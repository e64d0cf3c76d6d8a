"""What users and their clients do: one function for each operation, each a job of one or more steps.

Arguments are plain numbers that choose among what there is, so that a history can be replayed with steps left out.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import quote

from lakefs_gc_assets_tests.simulation.bucket import md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.repository import Branch, Refused, applied, merged
from lakefs_gc_assets_tests.simulation.servers import Server
from lakefs_gc_assets_tests.simulation.world import BRANCHES, CONTENTS, PATHS, TAGS, Job, World

STAGING_SECONDS = 55 * MINUTE
"""An object that was uploaded through a server is staged within this time."""
COMMIT_SECONDS = 9 * MINUTE
"""A commit ends, well or badly, within this time after sealing."""
LAG_SECONDS = 20
"""A commit shows up in a scan of all commits within this time."""

Operation = Callable[..., Job]
OPERATIONS: dict[str, Operation] = {}


def operation(function: Operation) -> Operation:
    """Registers an operation under the name of its function."""
    OPERATIONS[function.__name__] = function
    return function


def _branch(world: World, number: int) -> Branch:
    names = sorted(name for name in world.repository.branches)
    return world.repository.branches[names[number % len(names)]]


def _path(number: int) -> str:
    return PATHS[number % len(PATHS)]


def _server(world: World, number: int) -> Server:
    return world.servers.servers[number % len(world.servers.servers)]


def _commit_id(world: World, number: int) -> str:
    return sorted(world.repository.commits)[number % len(world.repository.commits)]


def _some_path(world: World, branch: Branch, number: int) -> tuple[str, Entry]:
    """A path that the branch shows."""
    visible = world.repository.visible(branch)
    if not visible:
        raise Refused("nothing there")
    path = sorted(visible)[number % len(visible)]
    return path, visible[path]


def _described(key: str, content: bytes, metadata: int = 0) -> Entry:
    return Entry(key, 1, len(content), md5(content), metadata)


@contextmanager
def _uploading(world: World, key: str) -> Iterator[None]:
    """Between the object and its staging."""
    world.oracle.uploading.add(key)
    try:
        yield
    finally:
        world.oracle.uploading.discard(key)


@operation
def upload(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """Through a server: a name is issued, the body arrives, the entry is staged."""
    name = _branch(world, branch).name
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = world.issue(_server(world, server))
    yield None
    world.bucket.put_data(key, data)
    with _uploading(world, key):
        yield STAGING_SECONDS
        world.repository.stage(world.repository.branch(name), _path(path), _described(key, data))


@operation
def upload_now(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """The same at once."""
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = world.issue(_server(world, server))
    world.bucket.put_data(key, data)
    world.repository.stage(_branch(world, branch), _path(path), _described(key, data))
    yield from ()


@operation
def misdated_upload(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """A node of the store whose clock is days behind stamps the object."""
    data = CONTENTS[content % len(CONTENTS)]
    name = _branch(world, branch).name
    key, _ = world.issue(_server(world, server))
    world.bucket.put_data(key, data, begun=world.bucket.clock.seconds() - 3 * DAY)
    with _uploading(world, key):
        yield STAGING_SECONDS
        world.repository.stage(world.repository.branch(name), _path(path), _described(key, data))


@operation
def gateway_multipart(world: World, branch: int, path: int, content: int, server: int) -> Job:
    """An upload in parts: the store dates the object to its beginning, the object appears at its end."""
    name = _branch(world, branch).name
    data = CONTENTS[content % len(CONTENTS)]
    key, _ = world.issue(_server(world, server))
    begun = world.bucket.clock.seconds()
    yield None
    world.bucket.put_data(key, data, parts=2, begun=begun)
    with _uploading(world, key):
        yield STAGING_SECONDS
        entry = replace(_described(key, data), etag=world.bucket.objects[key].etag or "parts")
        world.repository.stage(world.repository.branch(name), _path(path), entry)


@operation
def link(world: World, branch: int, path: int, content: int, server: int, parts: int) -> Job:
    """A client asks for an address, uploads to the store itself, and links the address, at any other server."""
    name = _branch(world, branch).name
    data = CONTENTS[content % len(CONTENTS)]
    key, issued = world.issue(_server(world, server), linkable=True)
    begun = world.bucket.clock.seconds()
    yield None
    if parts % 4 == 0:
        world.bucket.put_data(key, data, parts=2, begun=begun)
    else:
        world.bucket.put_data(key, data)
    yield None
    other = _server(world, server + parts)
    if not other.accepts(issued):
        raise Refused("address expired")
    world.repository.stage(world.repository.branch(name), _path(path), _described(key, data))


@operation
def delete(world: World, branch: int, path: int) -> Job:
    found = _branch(world, branch)
    world.repository.remove(found, _some_path(world, found, path)[0])
    yield from ()


@operation
def reset_branch(world: World, branch: int) -> Job:
    _branch(world, branch).tokens = [{}]
    yield from ()


@operation
def reset_path(world: World, branch: int, path: int) -> Job:
    """One path, or everything below `d/` or `f/`."""
    prefix = ("d/", "f/", *PATHS)[path % (2 + len(PATHS))]
    for token in _branch(world, branch).tokens:
        for name in [name for name in token if name == prefix or (prefix.endswith("/") and name.startswith(prefix))]:
            del token[name]
    yield from ()


@operation
def commit(world: World, branch: int, date: int, lag: int) -> Job:
    """Seals what is staged, writes ranges, moves the branch; fails where the branch changed meanwhile."""
    repository = world.repository
    found = _branch(world, branch)
    head = found.commit_id
    sealed = repository.seal(found)
    changes = found.sealed()
    if not changes:
        raise Refused("nothing to commit")
    keys = frozenset(key for entry in changes.values() if entry and (key := world.oracle.key_of(entry)))
    token = id(changes)
    world.oracle.committing[token] = keys
    try:
        yield COMMIT_SECONDS
        current = repository.branches.get(found.name)
        if current is not found or found.commit_id != head or tuple(map(id, found.tokens[1:])) != sealed:
            raise Refused("the branch changed")
        entries = applied(repository.head(found), changes)
        odd = (0.0, 0.0, -800 * DAY, 800 * DAY, -HOUR)[date % 5]
        found.commit_id = world.commit(entries, (head,), float(lag % LAG_SECONDS), odd)
        found.tokens = found.tokens[:1]
    finally:
        del world.oracle.committing[token]


@operation
def commit_now(world: World, branch: int, date: int, lag: int) -> Job:
    """The same at once."""
    for _ in commit(world, branch, date, lag):
        pass
    yield from ()


def _require_clean(world: World, branch: Branch) -> None:
    if branch.hidden or any(token for token in branch.tokens):
        raise Refused("dirty branch")


def _move(world: World, branch: Branch, entries: dict[str, Entry], parents: tuple[str, ...], lag: int) -> Job:
    """Moves a clean branch to a new commit: its staging is sealed first, others may write to the new one meanwhile."""
    _require_clean(world, branch)
    head = branch.commit_id
    world.repository.seal(branch)
    yield COMMIT_SECONDS
    if world.repository.branches.get(branch.name) is not branch or branch.commit_id != head:
        raise Refused("the branch changed")
    branch.commit_id = world.commit(entries, parents, float(lag % LAG_SECONDS))
    branch.tokens = branch.tokens[:1]


@operation
def merge(world: World, source: int, destination: int, lag: int) -> Job:
    theirs, ours = _branch(world, source), _branch(world, destination)
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
    found = _branch(world, branch)
    record = world.repository.commits[_commit_id(world, number)]
    if not record.facts.parents:
        raise Refused("the first commit")
    before = world.repository.commits[record.facts.parents[0]].entries
    old, new = (record.entries, before) if undo else (before, record.entries)
    entries = merged(old, new, world.repository.head(found))
    return _move(world, found, entries, (found.commit_id,), lag)


@operation
def hard_reset(world: World, branch: int, number: int, force: int) -> Job:
    """Moves a branch to any commit; by force also a dirty one, whose staging goes but for what comes meanwhile."""
    found = _branch(world, branch)
    if found.hidden:
        raise Refused("hidden")
    if force % 2 == 0:
        _require_clean(world, found)
    target = _commit_id(world, number)
    world.repository.seal(found)
    yield MINUTE
    if world.repository.branches.get(found.name) is not found:
        raise Refused("the branch is gone")
    found.commit_id = target
    found.tokens = found.tokens[:1]


@operation
def create_branch(world: World, name: int, source: int) -> Job:
    """From any branch or commit."""
    wanted = BRANCHES[name % len(BRANCHES)]
    if wanted in world.repository.branches:
        raise Refused("exists")
    commit_id = _commit_id(world, source // 2) if source % 2 else _branch(world, source // 2).commit_id
    world.repository.branches[wanted] = Branch(wanted, commit_id)
    yield from ()


@operation
def delete_branch(world: World, branch: int) -> Job:
    found = _branch(world, branch)
    if found.name == "main" or found.hidden:
        raise Refused("default branch")
    del world.repository.branches[found.name]
    yield from ()


@operation
def create_tag(world: World, name: int, branch: int) -> Job:
    world.repository.tags.setdefault(TAGS[name % len(TAGS)], _branch(world, branch).commit_id)
    yield from ()


@operation
def delete_tag(world: World, name: int) -> Job:
    world.repository.tags.pop(TAGS[name % len(TAGS)], None)
    yield from ()


@operation
def copy(world: World, branch: int, source: int, destination: int, server: int) -> Job:
    """In full; with the rule set `seed` a staged object by reference, remembered."""
    found = _branch(world, branch)
    path, entry = _some_path(world, found, source)
    if world.setup.rules == "seed" and path in found.staged():
        if entry.soft_at is None:
            _remember(world, found, path, entry)
        _restage(world, found, _path(destination), entry)
        return
    stored = world.bucket.objects.get(world.oracle.key_of(entry) or "")
    if stored is None:
        raise Refused("outside")
    key, _ = world.issue(_server(world, server))
    yield None
    world.bucket.put_data(key, stored.data)
    with _uploading(world, key):
        yield STAGING_SECONDS
        copied = replace(entry, address=key, address_type=1, soft_at=None)
        world.repository.stage(world.repository.branch(found.name), _path(destination), copied)


@operation
def move(world: World, branch: int, source: int, destination: int, server: int) -> Job:
    """A copy by reference, then the source goes: a rename."""
    found = _branch(world, branch)
    path, entry = _some_path(world, found, source)
    if world.setup.rules != "seed" or path not in found.staged() or entry.soft_at is not None:
        raise Refused("full copies only")
    _remember(world, found, path, entry)
    _restage(world, found, _path(destination), entry)
    if server % 2:
        yield MINUTE
    if found.staged().get(path) is entry and _path(destination) != path:
        world.repository.remove(found, path)


def _remember(world: World, branch: Branch, path: str, entry: Entry) -> None:
    """Notes that a staged entry is copied by reference."""
    key = world.oracle.key_of(entry)
    if key is None:
        return
    world.repository.copies.append((key, world.time.now))
    base = world.repository.head(branch).get(path)
    if base is not None and base.identity == entry.identity:
        world.oracle.moved_unseen(key)


def _restage(world: World, branch: Branch, path: str, entry: Entry) -> None:
    soft_at = None if entry.soft_at is None else world.time.now
    world.repository.stage(branch, path, replace(entry, soft_at=soft_at))


@operation
def set_metadata(world: World, branch: int, path: int, metadata: int) -> Job:
    """Stages the entry of a path, perhaps a committed one, again under other metadata."""
    found = _branch(world, branch)
    name, entry = _some_path(world, found, path)
    _restage(world, found, name, replace(entry, metadata=metadata % 3))
    yield from ()


@operation
def upload_again(world: World, branch: int, path: int, server: int) -> Job:
    """The same content to a path that has it already: under a name of its own, which the server does not list."""
    found = _branch(world, branch)
    name, entry = _some_path(world, found, path)
    stored = world.bucket.objects.get(world.oracle.key_of(entry) or "")
    if stored is None or md5(stored.data) != entry.etag:
        raise Refused("outside, or uploaded in parts")
    key, _ = world.issue(_server(world, server))
    world.bucket.put_data(key, stored.data)
    world.repository.stage(found, name, replace(entry, address=key, address_type=1, soft_at=None))
    yield from ()


def _spelled(world: World, key: str, spelling: int) -> str:
    uri = world.repository.uri
    other = uri.replace("s3://", "s3a://")
    escaped = uri + quote(key)
    return (uri + key, uri + "/" + key, other + key, uri + key + "/", escaped)[spelling % 5]


@operation
def import_objects(world: World, branch: int, number: int, spelling: int) -> Job:
    """A commit on a hidden branch of its own, then merged: objects outside, and one of the repository's in full."""
    found = _branch(world, branch)
    if found.hidden:
        raise Refused("hidden")
    world.imports += 1
    hidden = f"_import-{world.imports}"
    head = found.commit_id
    world.repository.branches[hidden] = Branch(hidden, head, hidden=True)
    yield 10 * MINUTE
    entries = dict(world.repository.commits[head].entries)
    digest = hashlib.md5(str(number).encode(), usedforsecurity=False).hexdigest()
    entries["in/1"] = Entry(f"s3://elsewhere/{number}", 2, number % 9, digest)
    reached = sorted(key for key in world.oracle.firm_since if key in world.bucket.objects)
    if reached:
        key = reached[number % len(reached)]
        stored = world.bucket.objects[key]
        entries["in/2"] = Entry(_spelled(world, key, spelling), 2, len(stored.data), md5(stored.data))
    world.repository.branches[hidden].commit_id = made = world.commit(entries, (head,), 0.0)
    yield 10 * MINUTE
    if world.repository.branches.get(found.name) is found and found.commit_id == head and not any(found.tokens):
        found.commit_id = made
    del world.repository.branches[hidden]


@operation
def stage_object(world: World, branch: int, path: int, number: int) -> Job:
    """Stages any object of the repository by its address: nothing promises that it is still there."""
    keys = [key for key in world.bucket.keys if key.startswith("data/") and key not in world.oracle.foreign]
    unreferenced = [key for key in keys if not world.oracle.reachable(key)]
    keys = unreferenced if unreferenced and number % 4 else keys
    if not keys:
        raise Refused("nothing there")
    key = keys[number % len(keys)]
    data = world.bucket.objects[key].data
    entry = replace(_described(key, data), soft_at=world.time.now)
    world.repository.stage(_branch(world, branch), _path(path), entry)
    yield from ()


@operation
def drop_foreign(world: World, number: int) -> Job:
    """Another tool puts something below `data/`."""
    slices = [key.split("/")[1] for key in world.bucket.keys if key.startswith("data/")]
    folder = slices[number % len(slices)] if slices else "x"
    key = (f"data/{folder}/notes-{number % 3}.txt", f"data/lost{number % 2}", f"other-{number % 2}")[number % 3]
    world.bucket.put_data(key, b"theirs", begun=world.time.now - 90 * DAY)
    world.oracle.foreign.add(key)
    yield from ()
