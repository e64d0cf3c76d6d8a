"""Operations of users and their clients on objects, each a job of one or more steps.

All operations of a history choose their targets as these do.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from lakefs_gc_assets_tests.simulation.bucket import md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, MINUTE
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.repository import Branch, Refused
from lakefs_gc_assets_tests.simulation.servers import Server
from lakefs_gc_assets_tests.simulation.world import CONTENTS, PATHS, Job, World

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


STAGING_SECONDS = 55 * MINUTE
"""An object that was uploaded through a server is staged within this time."""

OPERATIONS: dict[str, Operation] = {}
operation = registering(OPERATIONS)


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
