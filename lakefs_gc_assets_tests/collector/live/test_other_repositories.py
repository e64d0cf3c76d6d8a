import pytest

from lakefs_gc_assets.collector.live.other_repositories import Neighbours, neighbours
from lakefs_gc_assets.errors import AccessDenied, LakeFSError, NotFound, NotSupported, ServerUnavailable
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import Repository
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi

OWN = Namespace.parse("s3://bucket/repo")


def seen(*namespaces: str, also_live: tuple[str, ...] = ()) -> Neighbours:
    """What is known with these other repositories, called a, b, c, …"""
    others = tuple(
        Repository(name, namespace, "main", False) for name, namespace in zip("abcdefgh", namespaces, strict=False)
    )
    api = ScriptedApi(repository_lists=Script((*others, Repository("repo", "s3://bucket/repo", "main", False))))
    return neighbours(api, "repo", OWN, also_live)


def test_alone() -> None:
    assert seen() == Neighbours((), (), None)


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
    assert seen("mem") == Neighbours()


def test_those_behind_one_that_is_elsewhere_are_looked_at_too() -> None:
    for elsewhere in ("mem", "s3://other/x"):
        found = seen(elsewhere, "s3://bucket/repo/inner", elsewhere, "s3://bucket/x")
        assert (found.nested, found.unchecked) == (("b",), ("d",))


@pytest.mark.parametrize("refusal", [AccessDenied, NotFound, NotSupported])
def test_a_server_that_does_not_say_is_quoted(refusal: type[LakeFSError]) -> None:
    api = ScriptedApi(repository_lists=Script(refusal("GET /repositories: no")))
    assert neighbours(api, "repo", OWN, ()) == Neighbours(refusal="GET /repositories: no")


def test_a_failure_ends_the_run() -> None:
    with pytest.raises(ServerUnavailable):
        neighbours(ScriptedApi(repository_lists=Script(ServerUnavailable("down"))), "repo", OWN, ())
