"""Permissions and features are tested on the embedded server, on folders and on buckets, and removed one by one."""

import json
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from lakefs_gc_assets.collector.repository.repository import Clock, SystemClock
from lakefs_gc_assets.errors import NotOffered, PermissionMissing, StorageError
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.setup.diagnosis import (
    COPY,
    KEY,
    Diagnosis,
    Purpose,
    Services,
    State,
    diagnose,
    wanted_by,
)
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import CollectionSettings, LakeFSSettings, StoreSettings
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes
from lakefs_gc_assets_tests.extensions.playground.embedded.faults import FailingServer, Fault, switch_on
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.servers.s3_server import Faults, Request, S3Server
from lakefs_gc_assets_tests.servers.stores import s3_server

__all__ = ["s3_server"]

POLICIES = Path(__file__).parents[3] / "docs" / "policies"
SILENT = "an endpoint that takes connections and does not answer"
EVERYTHING = frozenset(Purpose) - {Purpose.RESTORE}


@dataclass
class Examined:
    """A repository with a committed object, a staged object, and retention rules.

    Attributes:
        store: store of its storage namespace, unless `diagnose` gets another one.
    """

    server: EmbeddedServer
    store: ObjectStore
    settings: dict[str, Any] = field(default_factory=dict)

    def diagnose(
        self,
        *denied: str,
        wanted: frozenset[Purpose] = EVERYTHING,
        store: ObjectStore | None = None,
        open_store: Callable[[Namespace], ObjectStore] | None = None,
        clock: Clock | None = None,
        repository: str = "repo",
        **lakefs: Any,
    ) -> Diagnosis:
        """Runs the diagnosis as a user who is denied some actions."""
        user = routes.add_user(self.server, "collector", *denied)
        settings = LakeFSSettings(
            **{
                "endpoint": self.server.url,
                "access_key_id": user.access_key_id,
                "secret_access_key": user.secret_access_key,
                "retries": 0,
                **lakefs,
            }
        )
        clock = clock or SystemClock()
        client = LakeFSClient(settings, repository, clock)
        return diagnose(
            Services(client, client, open_store or (lambda _: store or self.store)),
            CollectionSettings.model_validate(self.settings),
            clock,
            wanted,
        )

    def keys(self) -> set[str]:
        """All stored keys, except those left by refs dumps."""
        keys = {key for batch in self.store.list("") for key in batch["key"].to_pylist()}
        return {key for key in keys if key.count("/") != 1 or not key.startswith("_lakefs/")}


def _fill(server: EmbeddedServer) -> None:
    clients.repository(server)
    clients.upload(server, "committed", b"a")
    clients.commit(server, "first")
    clients.upload(server, "staged", b"b")
    rules = {"default_retention_days": 7, "branches": []}
    status, answer = clients.call(server, "PUT", "/repositories/repo/settings/gc_rules", rules)
    assert status == 204, answer


@pytest.fixture(scope="module")
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with FailingServer(tmp_path_factory.mktemp("lakefs"), routes=ROUTES) as server:
        _fill(server)
        yield server


@pytest.fixture
def in_folder(local_server: EmbeddedServer) -> Examined:
    return Examined(local_server, LocalStore(local_server.objects_folder / "repo"))


def missing(found: Diagnosis) -> dict[str, str]:
    return {finding.name: finding.detail for finding in found.findings if finding.state is State.MISSING}


def assert_stopped(found: Diagnosis, name: str, detail: str) -> None:
    """Asserts that this finding is the last and the only missing one, and that no objects were left behind."""
    assert found.stopped and not found.well
    assert list(missing(found)) == [name]
    assert found.findings[-1].name == name
    assert detail in found.findings[-1].detail
    assert found.left == ()


def state_of(found: Diagnosis, name: str) -> State:
    [state] = [finding.state for finding in found.findings if finding.name == name]
    return state


def test_everything_works_in_a_folder_and_nothing_is_left(in_folder: Examined) -> None:
    before = in_folder.keys()

    found = in_folder.diagnose()

    assert missing(found) == {}
    assert found.well and found.left == ()
    assert {finding.name for finding in found.findings if finding.state is not State.WORKS} == {
        "undo deletes by versions"
    }
    assert in_folder.keys() == before


@pytest.mark.parametrize(
    ("action", "lacking"),
    [
        ("fs:ReadRepository", {"read the repository"}),
        ("fs:ListBranches", {"list branches", "dump refs"}),
        ("fs:ReadCommit", {"read commits", "addresses are spelt as the namespace"}),
        ("fs:ListObjects", {"list staged objects"}),
        ("fs:ReadObject", {"look at a path", "addresses are spelt as the namespace"}),
        ("fs:ListRepositories", {"list repositories"}),
        ("fs:ListTags", {"dump refs"}),
        ("fs:ListCommits", {"dump refs"}),
        ("retention:PrepareGarbageCollectionUncommitted", {"prepare uncommitted data"}),
        ("retention:GetGarbageCollectionRules", {"read retention rules"}),
        ("retention:PrepareGarbageCollectionCommits", {"list the commits that rules keep"}),
    ],
)
def test_a_right_of_lakefs_that_is_missing_is_named(in_folder: Examined, action: str, lacking: set[str]) -> None:
    before = in_folder.keys()

    found = in_folder.diagnose(action)

    assert not found.well
    assert {name for name, detail in missing(found).items() if "not tried" not in detail} == lacking
    rights = {each.given_by for each in found.findings if each.name in lacking and action in each.given_by}
    assert rights
    for right in rights:
        actions, _, document = right.rpartition(", ")
        statements = json.loads((POLICIES.parents[1] / document).read_text())["statement"]
        allowed = {each for statement in statements for each in statement["action"]}
        assert set(actions.replace(" and ", ", ").split(", ")) <= allowed
    assert in_folder.keys() == before
    assert found.left == ()


def test_the_configuration_of_the_server_that_is_refused_is_named(in_folder: Examined) -> None:
    switch_on(in_folder.server, Fault("failing", "/config/garbage-collection", status=403))

    assert missing(in_folder.diagnose()).keys() == {"ask for the grace period"}


@pytest.mark.parametrize(
    ("purpose", "needed"),
    [
        (Purpose.DRY_RUN, set()),
        (Purpose.SWEEP, {"list repositories"}),
        (Purpose.QUARANTINE, {"list repositories"}),
        (Purpose.RETENTION, {"dump refs", "read retention rules", "list the commits that rules keep"}),
    ],
)
def test_what_nothing_that_is_wanted_needs_is_not_missing(
    in_folder: Examined, purpose: Purpose, needed: set[str]
) -> None:
    denied = ("fs:ListRepositories", "fs:ListTags", "retention:GetGarbageCollectionRules")

    found = in_folder.diagnose(*denied, wanted=frozenset({purpose}))

    assert missing(found).keys() == needed
    assert set(found.missing_for(purpose)) == needed
    assert found.well == (not needed)
    assert state_of(found, "dump refs") is (State.MISSING if "dump refs" in needed else State.NOT_NEEDED)


def test_repositories_need_not_be_listed_where_the_settings_say_so(in_folder: Examined) -> None:
    in_folder.settings["allow_unknown_repositories"] = True

    assert in_folder.diagnose("fs:ListRepositories").well


def test_what_is_wanted_is_what_the_settings_ask_for() -> None:
    assert wanted_by(CollectionSettings()) == {Purpose.DRY_RUN, Purpose.SWEEP}
    quarantine = CollectionSettings(sweep_mode="quarantine", retention_policy="policy.yaml")
    assert wanted_by(quarantine) == EVERYTHING


def test_a_server_that_cannot_be_reached_is_asked_once(in_folder: Examined) -> None:
    found = in_folder.diagnose(endpoint="http://127.0.0.1:9")

    assert_stopped(found, "read the repository", "127.0.0.1:9")


def test_keys_that_the_server_does_not_know_are_one_finding(in_folder: Examined) -> None:
    found = in_folder.diagnose(secret_access_key="another one")

    assert_stopped(found, "read the repository", "Check lakefs.access_key_id and lakefs.secret_access_key")


def test_a_repository_that_is_not_there_is_one_finding(in_folder: Examined) -> None:
    found = in_folder.diagnose(repository="other")

    assert_stopped(found, "read the repository", "Check the setting repository")


def test_a_repository_inside_of_another_one_is_not_to_be_swept(in_folder: Examined) -> None:
    inner = {"name": "inner", "storage_namespace": "local://repo/inner"}
    assert clients.call(in_folder.server, "POST", "/repositories", inner)[0] in (201, 400)
    found = in_folder.diagnose()
    clients.call(in_folder.server, "DELETE", "/repositories/inner")

    nested = missing(found).get("a storage namespace of its own", "")
    assert nested.endswith("lies inside or around the storage namespace of inner")


class Refusing(LocalStore):
    """A folder that refuses one operation."""

    refused = ""

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "refused"):
            return _refuse
        return super().__getattribute__(name)


def _refuse(*_: object) -> Any:
    raise PermissionMissing("access denied")


@pytest.fixture
def refusing(in_folder: Examined) -> Callable[[str], Refusing]:
    def refuse(method: str) -> Refusing:
        store = Refusing(in_folder.server.objects_folder / "repo")
        store.refused = method
        return store

    return refuse


@pytest.mark.parametrize(
    ("method", "lacking"),
    [
        ("put_if_absent", "write its own files"),
        ("put", "write its own files"),
        ("put_if_match", "lock: put if absent, compare-and-swap"),
        ("get", "read objects"),
        ("copy", "copy objects"),
        ("delete", "delete"),
        ("head", "tell a missing object from a refused one"),
    ],
)
def test_what_a_store_refuses_is_named(
    in_folder: Examined, refusing: Callable[[str], Refusing], method: str, lacking: str
) -> None:
    before = in_folder.keys()

    found = in_folder.diagnose(store=refusing(method))

    assert "access denied" in missing(found)[lacking]
    left = in_folder.keys() - before
    assert all(key.startswith(found.left) for key in left), left
    assert all(any(key.startswith(named) for key in left) for named in found.left), "names what it could not make"
    assert in_folder.diagnose().well
    assert not {key for key in in_folder.keys() - before if key.startswith("_lakefs/retention/gc/doctor/")}


def test_what_may_not_be_deleted_stays_once_and_is_named(
    in_folder: Examined, refusing: Callable[[str], Refusing]
) -> None:
    store, before = refusing("delete"), in_folder.keys()

    first = in_folder.diagnose(store=store, wanted=frozenset({Purpose.DRY_RUN}))
    second = in_folder.diagnose(store=store, wanted=frozenset({Purpose.DRY_RUN}))

    assert first.well and second.well
    for found in (first, second):
        assert {KEY, COPY} <= set(found.left)
        assert [key for key in found.left if key.startswith("_lakefs/retention/gc/uncommitted/")]
    kept = {key for key in in_folder.keys() - before if key.startswith("_lakefs/retention/gc/doctor/")}
    assert kept == {KEY, COPY}
    in_folder.diagnose()
    assert not {KEY, COPY} & in_folder.keys()


class Careless(LocalStore):
    """A folder that ignores conditions."""

    def put_if_absent(self, key: str, data: bytes) -> str:
        return self.put(key, data)


class Trusting(LocalStore):
    """A folder that treats any version as the current one."""

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        return self.put(key, data)


@pytest.mark.parametrize("kind", [Careless, Trusting])
def test_a_store_that_honours_no_conditions_is_found(in_folder: Examined, kind: type[LocalStore]) -> None:
    found = in_folder.diagnose(store=kind(in_folder.server.objects_folder / "repo"))

    assert "locks cannot be enforced" in missing(found)["lock: put if absent, compare-and-swap"]


class Conditionless(LocalStore):
    """A folder that refuses conditions."""

    def put_if_absent(self, key: str, data: bytes) -> str:
        raise NotOffered("the service does not offer conditional writes; no right gives it")

    def put_if_match(self, key: str, data: bytes, etag: str) -> str:
        raise NotOffered("the service does not offer conditional writes; no right gives it")


@pytest.mark.parametrize("kind", [Careless, Conditionless])
def test_a_store_without_conditions_can_be_marked(in_folder: Examined, kind: type[LocalStore]) -> None:
    store = kind(in_folder.server.objects_folder / "repo")

    marking = in_folder.diagnose(store=store, wanted=frozenset({Purpose.DRY_RUN}))
    sweeping = in_folder.diagnose(store=store)
    in_folder.settings["no_lock_reason"] = "one cron job on one machine"
    knowing = in_folder.diagnose(store=store)

    assert marking.well and knowing.well
    assert sweeping.missing_for(Purpose.SWEEP) == ("lock: put if absent, compare-and-swap",)
    assert sweeping.missing_for(Purpose.DRY_RUN) == ()
    (lacking,) = [finding for finding in sweeping.findings if finding.state is State.MISSING]
    assert lacking.given_by == ""


class Forgetful(LocalStore):
    """A folder that reports deletions, but does not delete."""

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteOutcome]:
        return [DeleteOutcome(key, DeleteResult.ACCEPTED) for key in keys]


def test_a_delete_that_does_nothing_is_found(in_folder: Examined) -> None:
    found = in_folder.diagnose(store=Forgetful(in_folder.server.objects_folder / "repo"))

    assert "it still exists" in missing(found)["delete"]


def test_clocks_that_disagree_are_found(in_folder: Examined) -> None:
    late = HandClock(SystemClock().now() - timedelta(hours=1))

    assert "guard clocks" in missing(in_folder.diagnose(clock=late))["clocks agree"]


def test_a_read_only_repository_is_not_to_be_collected(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        body = {"name": "repo", "storage_namespace": "local://repo", "read_only": True}
        assert clients.call(server, "POST", "/repositories", body)[0] == 201
        found = Examined(server, LocalStore(server.objects_folder / "repo")).diagnose()

    assert "read-only" in missing(found)["read the repository"]


def test_a_store_that_cannot_be_opened_is_reported_once(in_folder: Examined) -> None:
    def fail(_: Namespace) -> ObjectStore:
        raise StorageError("no credentials were found")

    clock = SystemClock()
    settings = LakeFSSettings(
        endpoint=in_folder.server.url,
        access_key_id=in_folder.server.access_key_id,
        secret_access_key=in_folder.server.secret_access_key,
    )
    client = LakeFSClient(settings, "repo", clock)
    found = diagnose(Services(client, client, fail), CollectionSettings(), clock, EVERYTHING)

    assert_stopped(found, "open the store", "no credentials were found")


S3_RIGHTS = {
    "s3:ListBucket": ("list objects", "FindObjects", "s3-dry-run"),
    "s3:GetObject": ("read objects", "ReadObjects", "s3-dry-run"),
    "s3:PutObject": ("write its own files", "KeepOwnFiles", "s3-dry-run"),
    "s3:DeleteObject": ("delete", "DeleteGarbage", "s3-sweep"),
}


def _action(request: Request) -> str:
    """The IAM action that a request about a bucket, or an object in it, needs."""
    query, is_object = parse_qs(request.query, keep_blank_values=True), request.path.strip("/").count("/") > 0
    if "delete" in query or request.method == "DELETE":
        return "s3:DeleteObject"
    if not is_object:
        return "s3:ListBucket"
    return "s3:PutObject" if request.method == "PUT" else "s3:GetObject"


def denying(action: str) -> Faults:
    """A service that denies an action to the collector; the lakeFS server has other credentials."""
    refusal = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"

    def answer(request: Request) -> tuple[str, bytes] | None:
        asked = "AKIACOLLECTOR" in request.headers.get("authorization", "")
        return ("403 Forbidden", refusal) if asked and _action(request) == action else None

    return Faults(answer=answer)


@contextmanager
def examined_bucket(s3_server: S3Server, folder: Path, *, versioned: bool) -> Iterator[Examined]:
    bucket = s3_server.new_versioned_bucket() if versioned else s3_server.new_bucket()
    with demo.open_server(folder, "oss", f"s3://{bucket}/lakes", s3_server.settings()) as server:
        _fill(server)
        settings: StoreSettings = s3_server.settings().model_copy(update={"access_key_id": "AKIACOLLECTOR"})
        yield Examined(server, open_store(settings, Namespace.parse(f"s3://{bucket}/lakes/repo")))


def _refuse_key(code: str) -> Faults:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return Faults(answer=lambda request: ("403 Forbidden", body))


@pytest.mark.parametrize(
    ("change", "faults", "detail"),
    [
        ({}, _refuse_key("SignatureDoesNotMatch"), "the credentials were refused"),
        ({}, _refuse_key("InvalidAccessKeyId"), "the credentials were refused"),
        ({}, Faults(answer=lambda request: ("503 Slow Down", b"")), "the service kept failing or throttling"),
        ({"endpoint_url": "http://127.0.0.1:9"}, Faults(), "no connection"),
        pytest.param({"endpoint_url": SILENT}, Faults(), "no connection", marks=pytest.mark.slow),
        ({}, None, "there is no such bucket"),
    ],
    ids=["secret", "key", "throttled", "refused connection", "silent", "bucket"],
)
def test_a_store_that_cannot_be_used_is_one_finding_in_seconds(
    in_folder: Examined, s3_server: S3Server, change: dict[str, str], faults: Faults | None, detail: str
) -> None:
    bucket = s3_server.new_bucket() if faults else "no-such-bucket"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        if change.get("endpoint_url") == SILENT:
            change = {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        settings = s3_server.settings().model_copy(update=change)
        began = time.monotonic()
        with s3_server.failing(faults or Faults()):
            found = in_folder.diagnose(
                open_store=lambda _: open_store(settings, Namespace.parse(f"s3://{bucket}/lakes/repo"))
            )

    # About six seconds, more on a busy machine; with the retries of a run it would take minutes.
    assert time.monotonic() - began < 30
    assert_stopped(found, "open the store", detail)


@pytest.mark.parametrize("versioned", [False, True])
def test_everything_works_in_a_bucket_and_nothing_is_left(s3_server: S3Server, tmp_path: Path, versioned: bool) -> None:
    with examined_bucket(s3_server, tmp_path, versioned=versioned) as in_bucket:
        before = in_bucket.keys()

        found = in_bucket.diagnose()

        assert missing(found) == {}
        assert found.left == ()
        assert in_bucket.keys() == before
        assert state_of(found, "undo deletes by versions") is (State.WORKS if versioned else State.NOT_NEEDED)
        assert in_bucket.diagnose(wanted=frozenset({Purpose.RESTORE})).well == versioned


@pytest.fixture(scope="module")
def in_bucket(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Examined]:
    with examined_bucket(s3_server, tmp_path_factory.mktemp("bucket"), versioned=False) as examined:
        yield examined


@pytest.mark.parametrize("action", S3_RIGHTS)
def test_a_right_of_s3_that_is_missing_is_named(in_bucket: Examined, s3_server: S3Server, action: str) -> None:
    name, statement, document = S3_RIGHTS[action]

    with s3_server.failing(denying(action)):
        found = in_bucket.diagnose()

    assert "access denied" in missing(found)[name].lower().replace("accessdenied", "access denied")
    refused = [each for each in found.findings if each.state is not State.WORKS and each.given_by]
    [given_by] = {each.given_by for each in refused if each.name != "undo deletes by versions"}
    assert given_by == f"{action}, statement {statement} of docs/policies/{document}.json", "no other right is missing"
    assert name in {each.name for each in refused}
    statements = json.loads((POLICIES / f"{document}.json").read_text())["Statement"]
    assert [each["Sid"] for each in statements if action in each["Action"]] == [statement]
