from dataclasses import replace
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories, compare_namespaces
from lakefs_gc_assets.errors import AccessDenied, LakeFSError, NotFound, NotSupported, ServerUnavailable
from lakefs_gc_assets.lakefs.api.models import RepositoryFacts
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi

OWN = RepositoryFacts("repo", "s3://bucket/repo", "main", False)


def seen(*namespaces: str, also_live: tuple[str, ...] = ()) -> OtherRepositories:
    """The comparison with these other repositories, named a, b, c, …"""
    others = tuple(
        RepositoryFacts(name, namespace, "main", False) for name, namespace in zip("abcdefgh", namespaces, strict=False)
    )
    return compare_namespaces(ScriptedApi(repository_lists=Script((*others, OWN))), OWN, None, also_live)


def test_alone() -> None:
    assert seen() == OtherRepositories((), (), None)


def test_a_namespace_inside_or_around_is_nested() -> None:
    found = seen("s3://bucket/repo/inner", "s3://bucket", "s3a://bucket/repo/", "s3://bucket/repo2")
    assert (found.nested, found.unchecked) == (("a", "b", "c"), ("d",))


def test_others_on_the_bucket_are_named_unless_they_count() -> None:
    found = seen("s3://bucket/x", "s3://other/repo", "gs://bucket/repo", "s3://bucket/y", also_live=("d",))
    assert (found.nested, found.unchecked) == ((), ("a",))


def test_one_by_an_access_point_may_be_on_the_bucket() -> None:
    alias = "s3://reader-s3alias"
    found = seen(f"{alias}/repo", f"{alias}/repo/inner", f"{alias}/x", alias, "gs://reader-s3alias/repo")
    assert (found.nested, found.unchecked) == (("a", "b"), ("c", "d"))


def test_a_namespace_lies_where_lakefs_decodes_it_to() -> None:
    found = seen("s3://bucket/%72epo", "s3://bucket/re%70o/x")
    assert found.nested == ("a", "b")


def test_a_namespace_that_is_no_address_is_on_no_bucket_of_ours() -> None:
    assert seen("mem") == OtherRepositories()


def test_those_behind_one_that_is_elsewhere_are_looked_at_too() -> None:
    for elsewhere in ("mem", "s3://other/x"):
        found = seen(elsewhere, "s3://bucket/repo/inner", elsewhere, "s3://bucket/x")
        assert (found.nested, found.unchecked) == (("b",), ("d",))


@pytest.mark.parametrize("refusal", [AccessDenied, NotFound, NotSupported])
def test_a_server_that_does_not_say_is_quoted(refusal: type[LakeFSError]) -> None:
    api = ScriptedApi(repository_lists=Script(refusal("GET /repositories: no")))
    assert compare_namespaces(api, OWN, None, ()) == OtherRepositories(refusal="GET /repositories: no")


def test_a_failure_ends_the_run() -> None:
    with pytest.raises(ServerUnavailable):
        compare_namespaces(ScriptedApi(repository_lists=Script(ServerUnavailable("down"))), OWN, None, ())


def on_storages(tmp_path: Path, *others: tuple[str, str], own: str = "site-a") -> OtherRepositories:
    """The comparison with other repositories a, b, c, … by namespace and storage; `tmp_path` is this one's store."""
    made = tuple(
        RepositoryFacts(name, namespace, "main", False, storage_id=storage)
        for name, (namespace, storage) in zip("abcdefgh", others, strict=False)
    )
    this = replace(OWN, storage_id=own)
    return compare_namespaces(ScriptedApi(repository_lists=Script((*made, this))), this, LocalStore(tmp_path), ())


def test_buckets_of_one_name_on_two_storages_are_two_places(tmp_path: Path) -> None:
    found = on_storages(
        tmp_path,
        ("s3://bucket/repo", "site-b"),
        ("s3://bucket", "site-b"),
        ("s3://bucket/repo/inner", "site-b"),
        ("s3://bucket/x", "site-b"),
        ("s3://bucket/repo/inner", "site-a"),
        ("s3://bucket/x", "site-a"),
    )
    assert (found.nested, found.unchecked) == (("e",), ("f",))


def test_a_repository_without_a_storage_may_lie_on_any(tmp_path: Path) -> None:
    others = (("s3://bucket/repo/inner", ""), ("s3://bucket/x", ""))
    assert on_storages(tmp_path, *others) == OtherRepositories(("a",), ("b",))
    named = (("s3://bucket/repo/inner", "site-b"), ("s3://bucket/x", "site-b"))
    assert on_storages(tmp_path, *named, own="") == OtherRepositories(("a",), ("b",))


def test_two_storages_that_lead_to_one_bucket_are_found_by_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "dummy").write_bytes(b"")
    found = on_storages(tmp_path, ("s3://bucket/repo/inner", "site-b"), ("s3://bucket/repo/outer", "site-b"))
    assert found.nested == ("a",)
