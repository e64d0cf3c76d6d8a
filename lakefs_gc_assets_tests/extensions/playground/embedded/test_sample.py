import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.extensions.playground.embedded import branches, commits, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet, ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.formats import decode_entry
from lakefs_gc_assets.extensions.playground.embedded.sample import (
    Sample,
    link_pending,
    make_sample_repository,
    rename,
    unreadable,
)
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer

_GARBAGE = {"overwritten", "deleted", "reset", "deleted branch", "expired link", "aborted upload", "failed copy"}
_LIVE = {
    "committed",
    "only in an old commit",
    "only in a tag's commit",
    "staged",
    "copied",
    "staged again from a commit",
    "just uploaded",
    "linked",
    "imported from outside",
    "uploaded again with equal content",
}


def _referenced(server: EmbeddedServer, name: str) -> set[str]:
    """Every relative address in any commit or any staging area, from the database."""
    repository = repositories.get(server.core, name)
    found = set()
    for commit in commits.every(server.core, repository):
        found |= {decode_entry(record[2]).address for record in commits.all_records(server.core, commit.metarange_id)}
    for branch in branches.every(server.core, repository, hidden=True):
        with server.core.database.transaction() as database:
            staged = [data for _, _, data in branches.scan_staged(database, branch.staging_token)]
        found |= {decode_entry(data).address for data in staged if data is not None}
    return found


def _stored(server: EmbeddedServer, name: str) -> set[str]:
    folder = server.objects_folder / name
    return {str(file.relative_to(folder)) for file in (folder / "data").rglob("*") if file.is_file()}


@pytest.fixture(params=["oss", "seed"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EmbeddedServer, Sample]:
    rules: RuleSet = request.param
    server = EmbeddedServer(tmp_path, settings=ServerSettings(rules=rules)).__enter__()
    request.addfinalizer(server.stop)
    return server, make_sample_repository(server, objects=200)


def test_it_has_every_kind_and_says_so_truly(made: tuple[EmbeddedServer, Sample]) -> None:
    server, sample = made
    assert {garbage.kind for garbage in sample.garbage} == _GARBAGE
    assert {live.kind for live in sample.live} == _LIVE
    referenced, stored = _referenced(server, "sample"), _stored(server, "sample")
    pending = {pending.physical_address.removeprefix("local://sample/") for pending in sample.pending}
    garbage = {item.address for item in sample.garbage}
    assert stored - referenced == garbage | pending
    assert len(garbage) == len(sample.garbage)
    assert {live.address for live in sample.live if "://" not in live.address} <= stored & referenced
    assert unreadable(server, sample) == []
    assert 150 <= len(stored) <= 260


def test_garbage_is_old_and_the_clock_is_back(made: tuple[EmbeddedServer, Sample]) -> None:
    server, sample = made
    folder = server.objects_folder / "sample"
    limit = time.time() - timedelta(days=2).total_seconds()
    assert all((folder / garbage.address).stat().st_mtime < limit for garbage in sample.garbage)
    before, reported, after = datetime.now(UTC), server.clock.now(), datetime.now(UTC)
    assert before - timedelta(seconds=1) < reported < after + timedelta(seconds=1)
    young = [live for live in sample.live if live.kind == "just uploaded"]
    assert all((folder / live.address).stat().st_mtime > limit for live in young)


def test_renaming_and_linking_keep_everything_readable(made: tuple[EmbeddedServer, Sample]) -> None:
    server, sample = made
    for live in list(sample.to_rename):
        renamed = rename(server, sample, live)
        assert (renamed.address == live.address) == (server.core.settings.rules == "seed")
    link_pending(server, sample)
    assert sample.pending == []
    assert unreadable(server, sample) == []
    for garbage in sample.garbage:
        (server.objects_folder / "sample" / garbage.address).unlink()
    assert unreadable(server, sample) == []


def test_a_lost_object_is_noticed(made: tuple[EmbeddedServer, Sample]) -> None:
    server, sample = made
    lost = next(live for live in sample.live if live.kind == "only in an old commit")
    (server.objects_folder / "sample" / lost.address).unlink()
    assert unreadable(server, sample) == [lost]
