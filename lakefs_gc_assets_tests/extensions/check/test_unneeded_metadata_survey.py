"""Unneeded metadata, mostly in the simulated world: it is old, and nothing in the world needs it."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast
from unittest import mock
from zlib import crc32

import numpy as np
import pytest

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.survey import read_named
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, GuardTripped
from lakefs_gc_assets.extensions.check import unneeded_metadata
from lakefs_gc_assets.extensions.check.unneeded_metadata import FileKind, MetadataListing, find_unneeded
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets_tests.extensions.check.test_fsck_in_histories import opened
from lakefs_gc_assets_tests.extensions.explain.test_explain import never_delete
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.runs.moving_clock import MovingClock
from lakefs_gc_assets_tests.runs.recordings import REAL, folder_of, recorded_and_made
from lakefs_gc_assets_tests.simulation import lakefs_files
from lakefs_gc_assets_tests.simulation.bucket import Bucket
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR, MachineClock
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.world import Setup, World

LAST_OF_A_RANGE = next(path for path in map(str, count()) if not crc32(path.encode()) % 6)
"""A path after which the simulated servers begin another range."""


def only_clock(key: str, what: object) -> None:
    assert "/clock/" in key, f"{key} is written"


def only_delete_clock(key: str, is_gone: bool) -> None:
    if "/clock/" not in key:
        never_delete(key, is_gone)


def listed(world: World, **changes: Any) -> MetadataListing:
    repository = opened(world, only_delete_clock, only_clock, **changes)
    return find_unneeded(repository, LocalEngine(), lambda line: None).listing


def entries(*paths: str) -> dict[str, Entry]:
    return {path: Entry(f"data/slice/{path}", 1, 1, path) for path in paths}


def written(world: World, *paths: str) -> str:
    """The metarange of a commit that was never made."""
    return lakefs_files.put_commit_objects(world.bucket, entries(*paths))


def files_of(*contents: Any) -> set[str]:
    """The files of commits with these entries."""
    scratch = Bucket(MachineClock(cast(Any, mock.Mock(now=0.0)), 0.0), "md5")
    for content in contents:
        lakefs_files.put_commit_objects(scratch, content)
    return {key.removeprefix(METADATA_PREFIX) for key in scratch.keys}


def needed(world: World) -> set[str]:
    """The files of all commits and compacted bases of the world."""
    repository = world.repository
    bases = [branch.compacted for branch in repository.branches.values() if branch.compacted is not None]
    # The first commit of a repository has no metarange.
    return files_of(*(record.entries for record in repository.commits.values() if record.facts.metarange_id), *bases)


def old_files(world: World, days: float) -> set[str]:
    """Older files of the metadata folder, without tables of refs dumps."""
    before = world.bucket.clock.seconds() - days * DAY
    return {
        key.removeprefix(METADATA_PREFIX)
        for key, stored in world.bucket.objects.items()
        if re.fullmatch(f"{METADATA_PREFIX}[0-9a-f]{{64}}", key)
        if stored.last_modified < before and b"entity" not in stored.data
    }


def require_right(world: World, listing: MetadataListing) -> None:
    """Raises AssertionError unless the listing has exactly the files that are old and unneeded."""
    ids = {file.id for file in listing.files}
    assert not ids & needed(world), "something that is listed is needed"
    assert ids <= old_files(world, 7.0), "something that is listed is too young"
    # A metarange without ranges looks like a table of a refs dump.
    left_out = old_files(world, 9.0) - needed(world) - files_of({}) - ids
    assert not left_out, f"not listed: {', '.join(sorted(left_out))}; before {listing.cutoff}, kept: {listing.kept}"


def make_world() -> World:
    """A commit without a branch, one on a branch, a compacted base, and files of a failed commit: all old."""
    made = World.from_setup(Setup(old_objects=0, server_skews=(0.0,)))
    main = made.repository.branches["main"]
    made.commit(entries("dangling"), (main.commit_id,), 0.0)
    main.commit_id = made.commit(entries("a", "b"), (main.commit_id,), 0.0)
    compacted = made.repository.new_branch("dev", main.commit_id)
    made.repository.compact(compacted, entries("a", "c"), written(made, "a", "c"))
    written(made, "failed")
    made.pass_time(30 * DAY)
    return made


@pytest.fixture
def world() -> World:
    """See make_world."""
    return make_world()


def test_what_a_failed_commit_left_is_unneeded_and_nothing_else(world: World) -> None:
    listing = listed(world)
    assert {file.id for file in listing.files} == files_of(entries("failed"))
    assert sorted(file.kind for file in listing.files) == [FileKind.METARANGE, FileKind.RANGE]
    assert listing.amount.bytes == sum(
        len(world.bucket.objects[METADATA_PREFIX + file.id].data) for file in listing.files
    )
    assert listing.kept == {} and listing.count_as_live
    assert not listed(world, keep_old_unnamed_ranges=False).count_as_live
    require_right(world, listing)


def test_a_younger_file_stays_and_so_does_an_old_range_that_it_names(world: World) -> None:
    written(world, LAST_OF_A_RANGE)
    world.pass_time(30 * DAY)
    assert files_of(entries(LAST_OF_A_RANGE)) < {file.id for file in listed(world).files}
    written(world, LAST_OF_A_RANGE, "zz")
    listing = listed(world)
    left = {file.id for file in listing.files} - files_of(entries("failed"))
    assert left == files_of(entries(LAST_OF_A_RANGE)) - files_of(entries(LAST_OF_A_RANGE, "zz"))
    kept = {why.partition(":")[0]: amount.objects for why, amount in listing.kept.items()}
    assert kept["too young"] == 2 and kept["a young metarange names them"] == 1


def test_age_is_a_week_or_the_minimum_age_if_that_is_longer(world: World) -> None:
    written(world, "under way")
    under_way = files_of(entries("under way"))
    # A clock may be off by an hour.
    world.pass_time(7 * DAY + 60.0)
    assert not under_way & {file.id for file in listed(world).files}
    world.pass_time(1 * DAY)
    assert under_way <= {file.id for file in listed(world).files}
    assert not under_way & {file.id for file in listed(world, min_age_hours=10 * 24.0).files}


def test_tables_of_earlier_dumps_stay(world: World) -> None:
    listed(world)
    main = world.repository.branches["main"]
    main.commit_id = world.commit(entries("later"), (main.commit_id,), 0.0)
    world.pass_time(30 * DAY)
    listing = listed(world)
    require_right(world, listing)
    (why,) = listing.kept
    assert why.startswith("tables of refs dumps") and listing.kept[why].objects >= 2


def test_an_old_file_that_cannot_be_read_stays_and_other_names_are_not_looked_at(world: World) -> None:
    strange = f"{METADATA_PREFIX}{'f' * 64}"
    world.bucket.put(strange, b"strange")
    for name in ("F" * 64, "f" * 63, "notes.json"):
        world.bucket.put(METADATA_PREFIX + name, b"strange")
    with pytest.raises(CorruptFile, match="it is young"):
        listed(world)
    world.pass_time(30 * DAY)
    listing = listed(world)
    assert listing.kept["they cannot be read"] == (1, len(b"strange"))
    assert {file.id for file in listing.files} == files_of(entries("failed"))


@pytest.mark.parametrize("is_damaged", [True, False])
def test_where_a_metarange_of_a_commit_is_damaged_or_missing_nothing_is_unneeded(
    world: World, is_damaged: bool
) -> None:
    key = next(METADATA_PREFIX + each.facts.metarange_id for each in world.repository.commits.values() if each.entries)
    if is_damaged:
        world.bucket.put(key, world.bucket.objects[key].data[:-1])
    else:
        world.bucket.remove(key)
    with pytest.raises(CorruptFile, match="a commit or a compacted base names it"):
        listed(world)


def test_without_a_refs_dump_it_refuses(world: World) -> None:
    world.servers.misbehaviour.refuse_dumps = True
    with pytest.raises(AccessDenied):
        listed(world)


def test_where_another_repository_is_on_the_namespace_or_clocks_disagree_it_refuses(world: World) -> None:
    here = world.repository.uri
    world.servers.others = lambda: (RepositoryFacts("other", here, "main", False),)
    with pytest.raises(GuardTripped, match="other"):
        listed(world)
    world.servers.others = tuple
    world.bucket.clock.skew = 2 * HOUR
    with pytest.raises(GuardTripped, match="clock"):
        listed(world)


_distinct, _complete, _read, _named = (
    commits.distinct_metaranges,
    commits.complete_dump,
    unneeded_metadata._read_unnamed,
    read_named,
)


def _of_heads_alone(columns: CommitColumns, *arguments: Any) -> Any:
    return _distinct(columns, np.arange(len(columns)) == np.argmax(columns.seconds))


BUGS: dict[str, tuple[object, str, Callable[..., Any]]] = {
    "age ignored": (unneeded_metadata, "_cutoff", lambda repository, now: now + timedelta(days=1)),
    "expired commits ignored": (commits, "distinct_metaranges", _of_heads_alone),
    "compacted bases ignored": (commits, "complete_dump", lambda *given: replace(_complete(*given), compacted={})),
    "what young metaranges name ignored": (
        unneeded_metadata,
        "_read_unnamed",
        lambda *given: (_read(*given)[0], IdSet()),
    ),
    "ranges of commits ignored": (
        unneeded_metadata,
        "read_named",
        lambda *given: (range_records([]), _named(*given)[1]),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_each_rule_is_missed_when_it_is_taken_out(world: World, bug: str) -> None:
    written(world, LAST_OF_A_RANGE)
    world.pass_time(8 * DAY)
    written(world, LAST_OF_A_RANGE, "zz")
    main = world.repository.branches["main"]
    main.commit_id = world.commit(entries("a", "b", "d"), (main.commit_id,), 0.0)
    kept = files_of(entries(LAST_OF_A_RANGE, "zz")) | needed(world)
    assert not kept & {file.id for file in listed(world).files}
    owner, name, replacement = BUGS[bug]
    with mock.patch.object(owner, name, replacement):
        assert kept & {file.id for file in listed(world).files}


@pytest.mark.parametrize("name", recorded_and_made("small", "merge-dangling", "empty", "wide"))
def test_in_recordings_it_is_what_an_import_left(name: str) -> None:
    clock = MovingClock(datetime.now(UTC))
    with ReplayServer(folder_of(name), now=clock.now, deletes="refuse") as server:
        clock.moment = server.recorded_at + timedelta(days=30)
        content = server.configuration().model_dump()
        content["collection"] |= {"wait_before_dump_seconds": 0}
        repository = ArrowRuns(Loaded(Configuration.model_validate(content), {}), clock).open()
        listing = find_unneeded(repository, LocalEngine(), lambda line: None).listing
    of_import = [FileKind.METARANGE, FileKind.RANGE] if REAL and name == "small" else []
    assert sorted(file.kind for file in listing.files) == of_import and listing.needed >= 8
