"""A real server leaves the data of deleted repositories in the bucket; `orphans` finds, deletes and restores it."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from unittest import mock

import pytest
from lakefs_sdk import RepositoriesApi, RepositoryCreation
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.collector.quarantine.restore import RestoreFate
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.extensions.orphans import deletion
from lakefs_gc_assets.extensions.orphans.deletion import OrphanFate
from lakefs_gc_assets.extensions.orphans.looks import OrphanPlace, require_no_repository
from lakefs_gc_assets.extensions.orphans.orphans import Search, find_orphans
from lakefs_gc_assets_tests.real.server import RealLakeFS, RealRepository, installation


@pytest.fixture
def lakefs() -> Iterator[RealLakeFS]:
    with installation() as made:
        made.start()
        yield made


def beside(other: RealRepository, name: str, folder: str) -> RealRepository:
    """Another repository in the bucket of `other`, with a committed and a staged object."""
    namespace = f"{other.namespace.removesuffix('/lake')}/{folder}"
    creation = RepositoryCreation.parse_obj({"name": name, "storage_namespace": namespace})
    RepositoriesApi(other.lakefs.sdk()).create_repository(creation)
    made = RealRepository(other.lakefs, name, namespace)
    made.upload("raw/a", b"committed")
    made.commit()
    made.upload("raw/b", b"staged")
    return made


def search(repository: RealRepository) -> Search:
    return find_orphans(repository.runs().open(), lambda line: None)


def test_the_data_of_a_deleted_repository_is_found(lakefs: RealLakeFS) -> None:
    repository = RealRepository.make(lakefs, "repo")
    kept, gone = beside(repository, "kept", "lakes/kept"), beside(repository, "gone", "lakes/gone")
    gone.runs(sweep=False).collect()
    assert search(repository).orphans == ()

    gone.delete_repository()
    found = search(repository)
    [orphan] = found.orphans
    bucket = lakefs.folder / "buckets" / repository.namespace.removeprefix("s3://").removesuffix("/lake")
    files = [path for path in (bucket / "lakes/gone").rglob("*") if path.is_file()]
    assert orphan.uri == f"{gone.namespace}/"
    assert orphan.amount == Amount(len(files), sum(path.stat().st_size for path in files))
    assert (orphan.entries, orphan.folders, orphan.branches) == (1, ("raw/",), ("main",))
    assert kept.read("raw/a") == b"committed"

    made_anew = beside(repository, "anew", "lakes/other")
    made_anew.delete_repository()
    assert [each.uri for each in search(repository).orphans] == [f"{gone.namespace}/", f"{made_anew.namespace}/"]


def test_it_is_deleted_while_the_server_makes_no_repository_there_and_comes_back() -> None:
    with installation() as lakefs:
        lakefs.start(days_ago=45)
        repository = RealRepository.make(lakefs, "repo")
        gone = beside(repository, "gone", "lakes/gone")
        lakefs.start()
        gone.delete_repository()
        opened, uri = repository.runs().open(), f"{gone.namespace}/"
        bucket = lakefs.folder / "buckets" / repository.namespace.removeprefix("s3://").removesuffix("/lake")

        def contents() -> dict[str, bytes]:
            return {str(path): path.read_bytes() for path in (bucket / "lakes/gone").rglob("*") if path.is_file()}

        def look() -> None:
            act = deletion.examine(opened, uri, "test", print, pytest.fail).act
            place = OrphanPlace.open(opened, uri)
            deletion._write(place, replace(act, looked_at=act.looked_at - deletion.WAIT - timedelta(minutes=1)))

        before = contents()
        look()
        with mock.patch.object(sweeping, "BATCH", 1):
            moving = deletion.move(opened, uri, "Ada", "test", print, pytest.fail)
            outcomes = [next(moving)]
            with pytest.raises(ApiException, match="storage namespace already in use"):
                beside(repository, "anew", "lakes/gone")
            outcomes += moving
        assert {each.fate for each in outcomes} == {OrphanFate.MOVED} and len(outcomes) == len(before)
        assert contents() == {}
        anew = beside(repository, "anew", "lakes/gone")
        restored = [*deletion.restore(opened, uri, "test", pytest.fail)]
        assert {each.fate for each in restored} <= {RestoreFate.RESTORED, RestoreFate.THERE}
        assert contents().items() >= before.items() and anew.read("raw/b") == b"staged"
        with pytest.raises(GuardTripped, match="repository anew"):
            require_no_repository(OrphanPlace.open(opened, uri))
