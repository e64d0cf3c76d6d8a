"""A real server leaves the data of deleted repositories in the bucket; `orphans` finds it, and only it."""

from collections.abc import Iterator

import pytest
from lakefs_sdk import RepositoriesApi, RepositoryCreation

from lakefs_gc_assets.collector.records.outcomes import Amount
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
