from dataclasses import replace
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.commits import live_commits
from lakefs_gc_assets.collector.frame.frames import LIVE
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.other_repositories import OtherRepositories, compare_namespaces, staged_elsewhere
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.errors import (
    AccessDenied,
    CorruptFile,
    GuardTripped,
    LakeFSError,
    NotFound,
    NotSupported,
    ServerUnavailable,
)
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import DiffEntry, ObjectStats, RepositoryFacts
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi, branches, opened
from lakefs_gc_assets_tests.collector.written import Staged, put_commit_objects
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of

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


# Addresses as the server spells them.


S3, LOCAL = Namespace.parse("s3://bucket/repo"), Namespace.parse("local://repo")
IMPORTED = Staged("s3://elsewhere/x", AddressType.FULL)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def answering(**addresses: str) -> ScriptedApi:
    """A server that returns these physical addresses for paths of the branch main."""
    return ScriptedApi(
        stats={("main", path): Script(ObjectStats(path, address, 1)) for path, address in addresses.items()}
    )


@pytest.mark.parametrize("namespace", [S3, LOCAL])
def test_the_usual_form_may_be_swept(store: LocalStore, namespace: Namespace) -> None:
    head = put_commit_objects(store, {"p": Staged("data/x")})
    other_repositories.require_own_addresses(answering(p=namespace.uri + "data/x"), store, namespace, {"main": head})


@pytest.mark.parametrize(
    ("namespace", "address"),
    [
        (LOCAL, "local:///var/lakefs/data/repo/data/x"),
        (S3, "/var/lakefs/repo/data/x"),
        (S3, "s3a://bucket/repo/data/x"),
        (S3, "s3://bucket/repo2/data/x"),
        (S3, "s3://bucket/data/x"),
        (Namespace.parse("s3://bucket//repo"), "s3://bucket/repo/data/x"),
    ],
)
def test_any_other_form_is_marked_only(store: LocalStore, namespace: Namespace, address: str) -> None:
    head = put_commit_objects(store, {"p": Staged("data/x")})
    with pytest.raises(GuardTripped, match=r"address form: .* can be marked, not swept"):
        other_repositories.require_own_addresses(answering(p=address), store, namespace, {"main": head})


@pytest.mark.parametrize("uri", ["s3://bucket/my%20repo", "s3://bucket/repo?x", "local://repo/my%20folder"])
def test_a_namespace_that_the_server_decodes_is_marked_only(store: LocalStore, uri: str) -> None:
    """Objects linked there are staged by a full address, which the server leaves out of uncommitted data."""
    namespace = Namespace.parse(uri)
    head = put_commit_objects(store, {"p": Staged("data/x")})
    for api, heads in ((answering(p=namespace.uri + "data/x"), {"main": head}), (answering(), {})):
        with pytest.raises(GuardTripped, match=r"address form: .*decodes.*can be marked, not swept"):
            other_repositories.require_own_addresses(api, store, namespace, heads)


def test_only_objects_of_its_own_tell(store: LocalStore) -> None:
    head = put_commit_objects(store, {"a": IMPORTED, "b": Staged("data/x"), "c": Staged("elsewhere/x")})
    api = answering(a="s3://elsewhere/x", b=LOCAL.uri + "data/x", c="s3://elsewhere/x")
    other_repositories.require_own_addresses(api, store, LOCAL, {"main": head})
    assert api.asked == [("main", "b")]


class TestWhatIsStagedOverAnObject:
    """The user who staged it may have chosen its address."""

    @pytest.fixture
    def head(self, store: LocalStore) -> str:
        return put_commit_objects(store, {"a": Staged("data/x"), "b": Staged("data/y")})

    def test_does_not_hide_the_usual_form(self, store: LocalStore, head: str) -> None:
        api = answering(a="s3://elsewhere/x", b=LOCAL.uri + "data/y")
        other_repositories.require_own_addresses(api, store, LOCAL, {"main": head})

    def test_does_not_pass_for_it(self, store: LocalStore, head: str) -> None:
        for b in ("local:///full/path/data/y", "local://repo2/data/y"):
            with pytest.raises(GuardTripped, match=b):
                other_repositories.require_own_addresses(
                    answering(a=LOCAL.uri + "data/staged", b=b), store, LOCAL, {"main": head}
                )

    def test_does_not_make_up_for_another_form(self, store: LocalStore, head: str) -> None:
        api = answering(a="local:///full/path/data/x", b=LOCAL.uri + "data/y")
        with pytest.raises(GuardTripped, match="full/path"):
            other_repositories.require_own_addresses(api, store, LOCAL, {"main": head})

    def test_alone_is_not_enough(self, store: LocalStore, head: str) -> None:
        with pytest.raises(GuardTripped, match="s3://elsewhere/x"):
            other_repositories.require_own_addresses(answering(a="s3://elsewhere/x"), store, S3, {"main": head})
        for own in ("data/staged", "c4ca4238a0b923820dcc509a6f75849b"):
            other_repositories.require_own_addresses(answering(a=S3.uri + own), store, S3, {"main": head})
        with pytest.raises(GuardTripped, match="Commit one object"):
            other_repositories.require_own_addresses(
                answering(a=LOCAL.uri + "data/staged"), store, LOCAL, {"main": head}
            )


def test_a_path_that_is_no_text_or_gone_does_not_tell(store: LocalStore) -> None:
    head = put_commit_objects(store, {b"\x00\xff": Staged("data/x"), "gone": Staged("data/y"), "p": Staged("data/z")})
    api = answering(p="local:///full/path/data/z")
    with pytest.raises(GuardTripped):
        other_repositories.require_own_addresses(api, store, LOCAL, {"main": head})
    assert api.asked == [("main", "gone"), ("main", "p")]


def test_another_branch_may_tell(store: LocalStore) -> None:
    head = put_commit_objects(store, {"p": Staged("data/x")})
    api = answering(p="local:///full/path/data/x")
    with pytest.raises(GuardTripped):
        other_repositories.require_own_addresses(
            api, store, LOCAL, {"a": head, "imports": put_commit_objects(store, {"i": IMPORTED}), "main": head}
        )


@pytest.mark.parametrize("heads", [{}, {"main": {"i": IMPORTED}}, {"main": {}}])
def test_without_any_object_of_its_own_a_folder_is_not_swept(
    store: LocalStore, heads: dict[str, dict[str | bytes, Staged]]
) -> None:
    written = {branch: put_commit_objects(store, entries) for branch, entries in heads.items()}
    other_repositories.require_own_addresses(ScriptedApi(), store, S3, written)
    with pytest.raises(GuardTripped, match="Commit one object"):
        other_repositories.require_own_addresses(ScriptedApi(), store, LOCAL, written)


def test_so_many_branches_and_paths_are_asked_for(store: LocalStore) -> None:
    names = [f"{number:02}" for number in range(12)]
    head = put_commit_objects(store, {name: Staged(f"data/{name}") for name in names})
    api = answering()
    with pytest.raises(GuardTripped, match="no branch of"):
        other_repositories.require_own_addresses(api, store, LOCAL, dict.fromkeys(names, head))
    assert api.asked == [(branch, path) for branch in names[:10] for path in names[:10]]


def test_what_cannot_be_reported_is_said_with_what_to_do(store: LocalStore) -> None:
    head = put_commit_objects(store, {"p": Staged("data/x")})
    marked_only = "This repository can be marked, not swept: its staged objects cannot be distinguished from garbage"
    for api, namespace, heads, said in (
        (
            answering(),
            Namespace.parse("s3://bucket/my%20repo"),
            {},
            ("the server decodes the namespace s3://bucket/my%20repo/, and spells addresses otherwise", marked_only),
        ),
        (
            answering(p="local:///full/path/data/x"),
            LOCAL,
            {"main": head},
            ("the server gives local:///full/path/data/x for an object of the namespace local://repo/", marked_only),
        ),
        (
            answering(),
            LOCAL,
            {},
            (
                "no branch of local://repo/ has an object by which to see how the server spells addresses",
                "Commit one object, or collect later",
            ),
        ),
    ):
        with pytest.raises(GuardTripped) as refused:
            other_repositories.require_own_addresses(api, store, namespace, heads)
        assert refused.value.args == ("address form", *said)


def test_what_cannot_be_read_or_asked_ends_the_run(store: LocalStore) -> None:
    with pytest.raises(CorruptFile):
        other_repositories.require_own_addresses(ScriptedApi(), store, S3, {"main": "a" * 64})
    head = put_commit_objects(store, {"p": Staged("data/x")})
    api = ScriptedApi(stats={("main", "p"): Script(ServerUnavailable("GET stat: 503"))})
    with pytest.raises(ServerUnavailable):
        other_repositories.require_own_addresses(api, store, S3, {"main": head})


def test_a_recorded_server_on_s3() -> None:
    with ReplayServer(folder_of("small")) as server:
        settings = server.configuration()
        namespace = Namespace.parse(server.storage_namespace)
        store = open_store(settings.store, namespace)
        client = LakeFSClient(settings.lakefs, server.repository, SystemClock())
        no_wait = CollectionSettings(wait_before_dump_seconds=0)
        heads = live_commits(opened(client, store, namespace, no_wait, SystemClock()), server.recorded_at).heads
        other_repositories.require_own_addresses(client, store, namespace, heads)
        assert any(request.path.endswith("/objects/stat") for request in server.requests)
        with pytest.raises(GuardTripped):
            other_repositories.require_own_addresses(client, store, Namespace.parse("s3://lakefs/other"), heads)


# Objects that branches of other repositories stage.


SLICE = "data/g4uk6erfnfus73frbnqg"
KEY = f"{SLICE}/dc0n8tpksdu988af5s0g"


def staging(**staged: str) -> ScriptedApi:
    """A repository with branches main and work; these paths are changed on work, with these physical addresses."""
    return ScriptedApi(
        branch_lists=Script(branches("main", "work")),
        changes_of={"work": Script([DiffEntry(path, "added") for path in staged])},
        stats={("work", path): Script(ObjectStats(path, address, 1)) for path, address in staged.items()},
    )


def keys(*apis: ScriptedApi) -> list[str]:
    table = staged_elsewhere(apis, S3, "month")
    assert table.schema == LIVE
    return list(table.column("address").to_pylist())


def test_only_addresses_of_this_namespace_count_in_each_spelling() -> None:
    found = keys(
        staging(a=f"s3://bucket/repo/{KEY}", b=f"s3://bucket/staging/{KEY}x"), staging(c="s3a://bucket/repo/data/a%20b")
    )
    assert found == sorted([KEY, "data/a b", "data/a%20b"])


def test_nothing_staged_is_an_empty_table() -> None:
    assert keys(staging()) == []


def test_a_path_that_is_not_utf8_ends_the_run() -> None:
    """The server answers with replacement characters, by which it finds no object, and begins the next page."""
    api = staging(a=f"s3://bucket/repo/{KEY}")
    api.changes_of["work"] = Script([DiffEntry("a", "added"), DiffEntry("donn\ufffdes/x", "added")])
    with pytest.raises(LakeFSError, match=r"'donn\ufffdes/x' on branch 'work'.*not UTF-8"):
        keys(api)


def test_a_path_that_has_a_replacement_character_itself_is_asked_for() -> None:
    assert keys(staging(**{"a \ufffd": f"s3://bucket/repo/{KEY}"})) == [KEY]


def test_removals_are_not_asked_for() -> None:
    api = staging()
    api.changes_of["work"] = Script([DiffEntry("gone", "removed")])
    assert keys(api) == []
    assert api.asked == []


def test_a_branch_that_is_deleted_meanwhile_holds_nothing() -> None:
    api = staging()
    api.branch_lists = Script(branches("main", "work"), branches("main"))
    api.changes_of["work"] = Script(NotFound("no such branch"))
    assert keys(api) == []


def test_a_branch_that_cannot_be_read_ends_the_run() -> None:
    api = staging()
    api.changes_of["work"] = Script(NotFound("who knows what"))
    with pytest.raises(NotFound):
        keys(api)
