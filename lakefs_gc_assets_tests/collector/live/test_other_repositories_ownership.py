from pathlib import Path

import pytest

from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.retention.commits import live_commits
from lakefs_gc_assets.errors import CorruptFile, GuardTripped, ServerUnavailable
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import ObjectStats
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.scripted import Script, ScriptedApi, opened
from lakefs_gc_assets_tests.collector.written import Staged, put_commit_objects
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of

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
