"""Operations of another repository's users on our objects, and changes past lakeFS: each a job."""

from dataclasses import replace

from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.simulation.bucket import in_quarantine, md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.other_repository import OtherRepository
from lakefs_gc_assets_tests.simulation.repository import Refused, applied
from lakefs_gc_assets_tests.simulation.versioning import spelled
from lakefs_gc_assets_tests.simulation.world import CONTENTS, Job, World
from lakefs_gc_assets_tests.simulation.writers import Operation, branch_at, path_at, registering

OPERATIONS: dict[str, Operation] = {}
operation = registering(OPERATIONS)


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
