"""Features and failures specific to Google Cloud Storage and Azure, against emulators over HTTP."""

import hashlib
import heapq
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import product
from types import ModuleType
from urllib.parse import unquote
from uuid import uuid4

import pytest

from lakefs_gc_assets import waits
from lakefs_gc_assets.errors import ObjectArchived, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import azure, gcs, traffic
from lakefs_gc_assets.storage import cloud as cloud_module
from lakefs_gc_assets.storage.cloud import Throttle
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectStore, deletes_until
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.waits import Waits
from lakefs_gc_assets_tests.servers.emulators import (
    ACCOUNT,
    ACCOUNT_KEY,
    TOKEN,
    AzureServer,
    GcsServer,
    LimitedRate,
    Response,
)
from lakefs_gc_assets_tests.servers.s3_server import Request
from lakefs_gc_assets_tests.servers.trickling import IN_BODY, IN_HEADERS, trickling

BUSY = Response(503, {}, b"<Error><Code>ServerBusy</Code><Message>Too many requests.</Message></Error>")


@dataclass(frozen=True)
class Cloud:
    """A service, the module that implements its store, and the root of its namespaces."""

    server: GcsServer | AzureServer
    module: ModuleType
    root: str

    def store(self, namespace: str = "", **settings: str) -> ObjectStore:
        """A store with a new namespace, or a named one."""
        changed = self.server.settings().model_copy(update=settings)
        return open_store(changed, Namespace.parse(namespace or f"{self.root}/{uuid4().hex}"))

    @property
    def usual_class(self) -> str:
        """The default storage class."""
        return "Hot" if self.module is azure else "STANDARD"

    def archive(self, store: ObjectStore, key: str) -> str:
        """Moves an object to the coldest class; returns its name."""
        if isinstance(store, azure.AzureStore):
            store._blob(store._full(key)).set_standard_blob_tier("Archive")
            return "Archive"
        assert isinstance(store, gcs.GCSStore)
        # The emulator changes no class afterwards.
        blob = store._bucket.blob(store._full(key))
        blob.storage_class = "ARCHIVE"
        blob.upload_from_string(b"content")
        return "ARCHIVE"


@pytest.fixture(params=["gcs", "azure"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    if request.param == "gcs":
        bucket = request.getfixturevalue("gcs_bucket")
        return Cloud(request.getfixturevalue("gcs_server"), gcs, f"gs://{bucket}")
    container = request.getfixturevalue("azure_container")
    root = f"https://{ACCOUNT}.blob.core.windows.net/{container}"
    return Cloud(request.getfixturevalue("azure_server"), azure, root)


@pytest.fixture(params=["s3", "gcs", "azure"])
def root(request: pytest.FixtureRequest) -> tuple[StoreSettings, str]:
    """Settings that reach a service of each kind, S3 too, and a new bucket or container there."""
    server = request.getfixturevalue(f"{request.param}_server")
    if request.param == "azure":
        container = server.new_container(f"whole-{uuid4().hex}")
        return server.settings(), f"https://{ACCOUNT}.blob.core.windows.net/{container}"
    if request.param == "gcs":
        return server.settings(), f"gs://{server.new_bucket(f'whole-{uuid4().hex}')}"
    return server.settings(), f"s3://{server.new_bucket()}"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts and short waits, for tests that want the failure itself."""
    monkeypatch.setattr(cloud_module, "ATTEMPTS", 2)
    monkeypatch.setattr(cloud_module, "RETRY_FOR", timedelta(seconds=0.1))


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [key for batch in store.list(prefix) for key in batch["key"].to_pylist()]


CALLS: list[Callable[[ObjectStore], object]] = [
    keys,
    lambda store: store.list_level(""),
    lambda store: store.get("key"),
    lambda store: store.get("key//odd"),
    lambda store: store.head("key"),
    lambda store: store.put("key", b""),
    lambda store: store.put_if_absent("key", b""),
    lambda store: store.put_if_match("key", b"", "123"),
    lambda store: store.delete(["key"]),
]


@pytest.mark.parametrize("call", [keys, lambda store: store.get("key")], ids=["list", "read"])
def test_a_wait_for_a_throttling_service_is_shown_while_it_lasts(
    cloud: Cloud,
    call: Callable[[ObjectStore], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(cloud_module._OBSTORE_BACKOFF, "max_backoff", timedelta(seconds=0.2))
    store = cloud.store()
    store.put("key", b"content")
    monkeypatch.setattr(waits, "SHOWN_AFTER", 0.2)
    monkeypatch.setattr(cloud_module, "waits", Waits("the store"))
    begun = time.monotonic()
    with cloud.server.failing(lambda request: BUSY if time.monotonic() < begun + 0.8 else None):
        call(store)
    lasted = time.monotonic() - begun
    shown = [message for message in caplog.messages if message.startswith("waiting for the store: no result for ")]
    assert 0 < len(shown) <= lasted / waits.SHOWN_AFTER
    assert all(re.search(r"\((list below|read) '.*'\)$", message) for message in shown)
    caplog.clear()
    begun = time.monotonic()
    call(store)
    lasted = time.monotonic() - begun
    time.sleep(0.3)
    assert len(caplog.messages) <= lasted / waits.SHOWN_AFTER


# Listing


def test_each_object_is_listed_with_its_class_and_an_archived_one_cannot_be_read(cloud: Cloud) -> None:
    store = cloud.store()
    for key in ("data/hot", "data/old"):
        store.put(key, b"content")
    archived = cloud.archive(store, "data/old")

    (batch,) = store.list("")
    classes = dict(zip(batch["key"].to_pylist(), batch["storage_class"].to_pylist(), strict=True))
    assert classes == {"data/hot": cloud.usual_class, "data/old": archived}
    assert {facts.key: facts.storage_class for facts in store.list_level("data/").objects} == classes
    if isinstance(store, azure.AzureStore):
        with pytest.raises(ObjectArchived):
            store.get("data/old")
        with pytest.raises(ObjectArchived):
            store.copy("data/old", "copy")
    (deleted,) = store.delete(["data/old"])
    assert deleted.result is DeleteResult.ACCEPTED


@pytest.mark.parametrize("odd", ["a//b", "a/./b", "a/../b", "..", "//", "a/trailing/", "a/\x7f"])
def test_keys_beyond_obstore_are_listed_and_read_as_they_are(cloud: Cloud, odd: str) -> None:
    store = cloud.store()
    others = ["a/0", "a/zz", "zz", "a/trailing"]
    for key in others:
        store.put(key, b"other")
    store.put(odd, odd.encode())
    listed = keys(store)
    assert set(listed) == {*others, odd}
    assert len(listed) == len(others) + 1
    assert (store.get(odd), store.head(odd).size) == (odd.encode(), len(odd))
    assert [outcome.result for outcome in store.delete([odd, "a/0"])] == [DeleteResult.ACCEPTED] * 2
    assert set(keys(store)) == {*others} - {"a/0"}
    assert store.get("a/trailing") == b"other"


def test_a_key_with_dots_is_no_other_key(cloud: Cloud) -> None:
    store = cloud.store()
    store.put("b", b"live")
    store.put("a/../b", b"garbage")
    store.copy_if_absent("a/../b", "c/../d")
    store.put("d", b"live")
    assert (store.get("b"), store.get("a/../b"), store.get("c/../d")) == (b"live", b"garbage", b"garbage")
    assert {outcome.result for outcome in store.delete(["a/../b", "c/../d"])} == {DeleteResult.ACCEPTED}
    assert set(keys(store)) == {"b", "d"}


def test_no_key_of_azure_names_the_container(azure_server: AzureServer) -> None:
    whole = azure_server.new_container(f"whole-{uuid4().hex}")
    store = open_store(azure_server.settings(), Namespace.parse(f"https://{ACCOUNT}.blob.core.windows.net/{whole}"))
    azure_server.requests.clear()
    for key in (".", ".."):
        with pytest.raises(StorageError, match="cannot be the key of a blob"):
            store.delete([key])
    assert azure_server.requests == []


def test_a_batch_has_the_objects_of_several_pages(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakefs_gc_assets.storage.bucket_store.BATCH_ROWS", 20)
    monkeypatch.setattr(cloud.module, "PAGE", 7)
    store = cloud.store()
    names = sorted([*(f"a/{number:03}" for number in range(40)), "a/020/"])
    for name in names:
        store.put(name, b"")
    batches = [batch["key"].to_pylist() for batch in store.list("")]
    assert [key for batch in batches for key in batch] == names
    assert [len(batch) for batch in batches] == [21, 20]
    level = store.list_level("a/")
    assert [facts.key for facts in level.objects] == [name for name in names if name != "a/020/"]
    assert level.prefixes == ("a/020/",)


def test_the_container_itself_can_be_a_namespace(root: tuple[StoreSettings, str]) -> None:
    settings, uri = root
    store = open_store(settings, Namespace.parse(uri))
    store.put("data/slice/object", b"1")
    store.put("dummy", b"2")
    assert keys(store) == ["data/slice/object", "dummy"]
    assert keys(store, "data/") == ["data/slice/object"]
    assert store.list_level("").prefixes == ("data/",)
    store.put("/a", b"3")
    assert keys(store) == ["/a", "data/slice/object", "dummy"]
    assert store.get("/a") == b"3"


def test_the_marker_of_the_prefix_itself_is_not_below_it(root: tuple[StoreSettings, str]) -> None:
    settings, uri = root
    store = open_store(settings, Namespace.parse(f"{uri}/repository"))
    for key in ("data/", "data/1", "data/s/", "data/s/2"):
        store.put(key, b"")
    assert keys(store, "data/s/") == ["data/s/2"]
    assert [facts.key for facts in store.list_level("data/").objects] == ["data/1"]


# Deleting


def asked(request: Request) -> list[str]:
    """The full keys that a batch wants deleted."""
    targets = re.findall(rb"DELETE (\S+) HTTP/1.1", request.body)
    return [unquote(target.decode().partition("?")[0].rpartition("/")[2]) for target in targets]


def is_batch(request: Request) -> bool:
    return "batch" in request.path or "comp=batch" in request.query


def in_place_of_batches(reply: Response, request: Request) -> Response | None:
    return reply if is_batch(request) else None


def answers(cloud: Cloud, parts: dict[int, tuple[int, str]]) -> Response:
    """A batch's answer: status and further header line per part."""
    lines = []
    for number, (status, header) in parts.items():
        identity = f"<response-{number}>" if isinstance(cloud.server, GcsServer) else str(number)
        lines += ["--b", "Content-Type: application/http", f"Content-ID: {identity}", "", f"HTTP/1.1 {status} Said"]
        lines += [*([header] if header else []), "", f"<Error><Code>Code{status}</Code></Error>"]
    body = "\r\n".join([*lines, "--b--", ""]).encode()
    status = 200 if isinstance(cloud.server, GcsServer) else 202
    return Response(status, {"content-type": "multipart/mixed; boundary=b"}, body)


def test_keys_go_in_batches_of_what_the_service_takes(cloud: Cloud) -> None:
    store, size = cloud.store(), cloud.module.BATCH
    names = [f"data/slice/{number}" for number in range(size + 10)]
    cloud.server.requests.clear()
    assert [outcome.key for outcome in store.delete(names)] == names
    sizes = [len(asked(request)) for request in cloud.server.requests if is_batch(request)]
    assert sorted(sizes) == [10, size]


def test_each_key_has_an_outcome_of_its_own(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_module, "DELETE_ATTEMPTS", 1)
    store = cloud.store()
    said = {0: (200, ""), 1: (403, ""), 2: (404, ""), 4: (503, ""), 5: (409, "")}
    with cloud.server.failing(lambda request: answers(cloud, said) if is_batch(request) else None):
        outcomes = store.delete(["a", "b", "c", "d", "e", "f"])
    assert [outcome.result.value for outcome in outcomes] == [
        "accepted",
        "failed",
        "accepted",
        "failed",
        "failed",
        "failed",
    ]
    assert [outcome.error for outcome in outcomes] == [
        None,
        "403 Code403: ",
        None,
        "the service's answer does not mention this key",
        "503 Code503: ",
        "409 Code409: ",
    ]


def test_keys_that_the_service_was_too_busy_for_are_asked_again(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_module, "FIRST_PAUSE", 0.01)
    store = cloud.store()
    store.put("a", b"")
    store.put("b", b"")
    first: list[Request] = []

    def once(request: Request) -> Response | None:
        if not is_batch(request) or first:
            return None
        first.append(request)
        return answers(cloud, {0: (429, ""), 1: (503, "")})

    with cloud.server.failing(once):
        assert {outcome.result for outcome in store.delete(["a", "b"])} == {DeleteResult.ACCEPTED}
    assert first and keys(store) == []


def test_deletes_slow_down_to_the_rate_that_the_service_takes(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    store, limited = cloud.store(), LimitedRate(100, 300)
    monkeypatch.setattr(store, "_throttle", Throttle(lambda: limited.now, limited.pass_time))

    def answer(request: Request) -> Response | None:
        if not is_batch(request):
            return None
        count = len(asked(request))
        taken = limited.take(count)
        return answers(cloud, {number: (200 if number < taken else 429, "") for number in range(count)})

    with cloud.server.failing(answer):
        outcomes = store.delete([f"data/slice/{number}" for number in range(600)])
    assert {outcome.result for outcome in outcomes} == {DeleteResult.ACCEPTED}
    assert limited.refused < 600


@pytest.mark.parametrize("takes_some", [False, True])
def test_a_service_that_stays_too_busy_is_given_up_only_if_it_deletes_nothing(takes_some: bool) -> None:
    limited, requests = LimitedRate(5, 0), 0

    def delete(keys: Sequence[str]) -> dict[str, DeleteOutcome]:
        nonlocal requests
        requests += 1
        # A request takes time as well.
        limited.pass_time(0.1)
        taken = 1 if takes_some else 0
        return {
            key: DeleteOutcome(key, *((DeleteResult.ACCEPTED, None) if place < taken else (DeleteResult.FAILED, "503")))
            for place, key in enumerate(keys)
        }

    names = [f"{number:04}" for number in range(1000)]
    throttle = Throttle(lambda: limited.now, limited.pass_time)
    outcomes = cloud_module.retry_throttled(delete, names, lambda outcome: outcome.error == "503", throttle)
    assert outcomes.keys() == set(names)
    failed = [key for key, outcome in outcomes.items() if outcome.result == DeleteResult.FAILED]
    assert [outcomes[key] for key in failed] == [DeleteOutcome(key, DeleteResult.FAILED, "503") for key in failed]
    if takes_some:
        assert failed == [] and requests == 1000
    else:
        assert len(failed) == 1000 and requests == cloud_module.DELETE_ATTEMPTS and limited.now < 20


@pytest.mark.parametrize("whole", [False, True])
def test_no_delete_is_repeated_once_the_time_for_it_is_over(
    cloud: Cloud, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_module, "FIRST_PAUSE", 0.01)
    store = cloud.store()
    names = ["a", "b"] if whole else ["a", "b", "c"]
    requests: list[Request] = []

    def busy(request: Request) -> Response | None:
        if not is_batch(request):
            return None
        requests.append(request)
        return BUSY if whole else answers(cloud, {0: (429, ""), 1: (200, ""), 2: (503, "")})

    with cloud.server.failing(busy), deletes_until(lambda: bool(requests)):
        outcomes = store.delete(names)
    left, gone = DeleteResult.LEFT, DeleteResult.ACCEPTED
    assert [outcome.result for outcome in outcomes] == ([left, left] if whole else [left, gone, left])
    assert len(requests) == 1


def test_executors_share_what_a_service_takes() -> None:
    """Sixteen executors want 16,000 deletes a second from a service that takes 3,500, without knowing each other."""
    limited = LimitedRate(3500, 3500)
    throttles = [Throttle(lambda: limited.now) for _ in range(16)]
    begins = [(0.0, number) for number in range(len(throttles))]
    asked = 0
    while limited.now < 60:
        at, number = heapq.heappop(begins)
        limited.pass_time(max(0.0, at - limited.now))
        throttle = throttles[number]
        keys = throttle.at_once(1000)
        accepted = limited.take(keys)
        throttle.adapt(keys, keys - accepted)
        asked += keys
        pause = 0.2 if accepted < keys else 0.0
        heapq.heappush(begins, (limited.now + max(0.3, throttle.turn(throttle.at_once(1000)) + pause), number))
    # Without the throttle, three of four keys are refused and one in five fails in the end.
    assert asked - limited.refused > 0.9 * 60 * 3500
    assert limited.refused < 0.2 * asked


def test_a_batch_that_fails_as_a_whole_fails_its_keys_only(cloud: Cloud) -> None:
    store = cloud.store()
    names = [f"{number:04}" for number in range(cloud.module.BATCH + 1)]

    def refuse_first(request: Request) -> Response | None:
        refused = is_batch(request) and len(asked(request)) > 1
        return Response(403, {}, b"<Error><Code>No</Code></Error>") if refused else None

    with cloud.server.failing(refuse_first):
        outcomes = store.delete(names)
    assert [outcome.result for outcome in outcomes[:-1]] == [DeleteResult.FAILED] * cloud.module.BATCH
    assert all("access denied" in (outcome.error or "") for outcome in outcomes[:-1])
    assert outcomes[-1].result == DeleteResult.ACCEPTED


def test_an_answer_that_cannot_be_read_accepts_nothing(cloud: Cloud) -> None:
    store = cloud.store()
    status = 200 if isinstance(cloud.server, GcsServer) else 202
    for headers, body in (
        ({}, b""),
        ({"content-type": "multipart/mixed; boundary=b"}, b"--b\r\n\r\nHTTP/1.1 2"),
        ({}, b"{}"),
    ):
        reply = Response(status, headers, body)
        with cloud.server.failing(partial(in_place_of_batches, reply)):
            [outcome] = store.delete(["key"])
        assert outcome.result == DeleteResult.FAILED


# Soft deletes


def outcome_in(server: GcsServer, bucket: str, facts: Response | None) -> DeleteOutcome:
    """Outcome of a delete in a bucket with this metadata."""
    store = open_store(server.settings(), Namespace.parse(f"gs://{bucket}/{uuid4().hex}"))
    store.put("key", b"")
    with server.failing(lambda request: facts if request.path == f"/storage/v1/b/{bucket}" else None):
        return store.delete(["key"])[0]


def test_google_tells_the_md5(gcs_server: GcsServer, gcs_bucket: str) -> None:
    store = Cloud(gcs_server, gcs, f"gs://{gcs_bucket}").store()
    store.put("object", b"content")
    assert store.head("object").md5 == hashlib.md5(b"content").hexdigest()


def test_google_says_of_a_bucket_whether_it_keeps_what_is_deleted(gcs_server: GcsServer, gcs_bucket: str) -> None:
    def saying(text: bytes, status: int = 200) -> bool | None:
        said = Response(status, {"content-type": "application/json"}, text)
        return outcome_in(gcs_server, gcs_bucket, said).soft_deleted

    assert outcome_in(gcs_server, gcs_bucket, None).soft_deleted is False
    assert saying(b'{"softDeletePolicy": {"retentionDurationSeconds": "604800"}}') is True
    assert saying(b'{"softDeletePolicy": {"retentionDurationSeconds": "0"}}') is False
    assert saying(b'{"versioning": {"enabled": true}}') is True
    assert saying(b"{}", 403) is None


def test_what_was_not_there_is_not_kept(gcs_store: ObjectStore, azure_store: ObjectStore) -> None:
    assert gcs_store.delete(["missing"])[0].soft_deleted is None
    assert azure_store.delete(["missing"])[0].soft_deleted is None


@pytest.mark.parametrize(("said", "kept"), [("false", True), ("true", False)])
def test_azure_says_of_each_blob_whether_it_is_kept(
    azure_server: AzureServer, azure_store: ObjectStore, said: str, kept: bool
) -> None:
    cloud = Cloud(azure_server, azure, "")
    parts = {0: (202, f"x-ms-delete-type-permanent: {said}"), 1: (202, "")}
    with azure_server.failing(lambda request: answers(cloud, parts) if is_batch(request) else None):
        outcomes = azure_store.delete(["a", "b"])
    assert [outcome.soft_deleted for outcome in outcomes] == [kept, None]


# Writing


def test_a_version_of_equal_content_is_another_version(cloud: Cloud) -> None:
    store = cloud.store()
    first = store.put_if_absent("lock", b"same")
    store.put("lock", b"same")
    with pytest.raises(PreconditionFailed):
        store.put_if_match("lock", b"mine", first)


def test_an_etag_of_another_kind_matches_nothing(cloud: Cloud) -> None:
    store = cloud.store()
    store.put("lock", b"theirs")
    for etag in ("0", "d41d8cd98f00b204e9800998ecf8427e"):
        with pytest.raises(PreconditionFailed):
            store.put_if_match("lock", b"mine", etag)
    assert store.get("lock") == b"theirs"


# Trouble


def storm(times: int, reply: Response = BUSY) -> Callable[[Request], Response | None]:
    left = iter([reply] * times)
    return lambda request: next(left, None)


def test_storms_pass(cloud: Cloud) -> None:
    store = cloud.store()
    store.put("key", b"content")
    store.delete([])
    for call, expected in (
        (lambda: keys(store), ["key"]),
        (lambda: store.get("key"), b"content"),
        (lambda: store.head("key").size, 7),
        (lambda: store.delete(["gone"])[0].result, DeleteResult.ACCEPTED),
    ):
        before = traffic.total()
        cloud.server.requests.clear()
        with cloud.server.failing(storm(2)):
            assert call() == expected
        used = traffic.total() - before
        # obstore does not report its retries.
        unreported = 2 if expected == b"content" else 0
        assert used[traffic.REQUESTS] == len(cloud.server.requests) - unreported
        assert used[traffic.RETRIES] == 2 - unreported


def test_too_many_requests_are_asked_again(cloud: Cloud) -> None:
    store = cloud.store()
    store.put("key", b"content")
    with cloud.server.failing(storm(1, Response(429, {}, b""))):
        assert store.head("key").size == 7
    with cloud.server.failing(storm(1, Response(429, {}, b""))):
        assert store.delete(["key"])[0].result == DeleteResult.ACCEPTED


def test_a_page_of_azure_that_declares_entities_is_not_read(
    azure_server: AzureServer, azure_store: ObjectStore
) -> None:
    page = b"<!DOCTYPE EnumerationResults><EnumerationResults><Blobs/><NextMarker/></EnumerationResults>"
    reply = Response(200, {"content-type": "application/xml"}, page)
    with azure_server.failing(lambda request: reply), pytest.raises(StorageError, match="DOCTYPE"):
        azure_store.list_level("")


def test_a_storm_that_does_not_pass_is_an_error(cloud: Cloud, impatient: None) -> None:
    store = cloud.store()
    with cloud.server.failing(lambda request: BUSY):
        for call in CALLS:
            with pytest.raises(StorageError, match="the service kept failing"):
                call(store)


def test_a_silent_server_is_given_another_try(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual number of attempts is made: on a busy machine, good answers come late as well."""
    monkeypatch.setattr(cloud_module, "READ_TIMEOUT", timedelta(seconds=0.5))
    store = cloud.store()
    store.put("key", b"content")
    for call, expected in ((lambda: keys(store), ["key"]), (lambda: store.head("key").size, 7)):
        late = storm(1)

        def slow(request: Request, late: Callable[[Request], object] = late) -> None:
            if late(request):
                time.sleep(1.5)

        with cloud.server.failing(slow):
            assert call() == expected


@pytest.mark.parametrize("start", [IN_BODY, IN_HEADERS], ids=["body", "headers"])
@pytest.mark.parametrize("call", [keys, lambda store: store.get("key//odd")], ids=["list", "read"])
def test_an_answer_that_trickles_is_given_up(
    root: tuple[StoreSettings, str],
    start: bytes,
    call: Callable[[ObjectStore], object],
    impatient: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings, bucket = root
    monkeypatch.setattr(cloud_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(cloud_module, "READ_TIMEOUT", timedelta(seconds=0.2))
    with trickling(start) as server:
        changed = settings.model_copy(update={"endpoint_url": server.url})
        store = open_store(changed, Namespace.parse(f"{bucket}/trickling"))
        with pytest.raises(StorageError, match="no connection, or it broke or timed out"):
            call(store)
        assert server.was_given_up()


def test_an_endpoint_nobody_listens_at_is_named(cloud: Cloud, impatient: None, gcs_server: GcsServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        store = cloud.store(endpoint_url=endpoint)
        for call in CALLS:
            with pytest.raises(StorageError, match=f"at {endpoint}: no connection"):
                call(store)


def test_a_container_that_does_not_exist_is_no_missing_object(cloud: Cloud) -> None:
    store = cloud.store(cloud.root.rpartition("/")[0] + "/nothing-here/x")
    # fake-gcs-server answers a listing of a missing bucket with 500.
    for call in CALLS if isinstance(cloud.server, AzureServer) else CALLS[1:]:
        with pytest.raises(StorageError, match="no such bucket or container") as caught:
            call(store)
        assert not isinstance(caught.value, ObjectNotFound)


def test_a_404_by_something_else_is_no_missing_object(cloud: Cloud) -> None:
    store = cloud.store()
    with cloud.server.failing(lambda request: Response(404, {"content-type": "text/html"}, b"<html>a proxy</html>")):
        for call in CALLS:
            with pytest.raises(StorageError) as caught:
                call(store)
            assert not isinstance(caught.value, ObjectNotFound)


@pytest.mark.parametrize(
    ("status", "message"), [(403, "access denied"), (401, "credentials were refused"), (418, "418")]
)
def test_refusals_are_explained_and_tell_no_secret(cloud: Cloud, status: int, message: str) -> None:
    store = cloud.store()
    body = b"<Error><Code>No</Code><Message>Not you.</Message><Signature>hush</Signature></Error>"
    with cloud.server.failing(lambda request: Response(status, {}, body)):
        for call in CALLS:
            with pytest.raises(StorageError, match=message) as caught:
                call(store)
            text = str(caught.value)
            assert cloud.server.url in text
            assert not any(secret in text for secret in ("hush", TOKEN, ACCOUNT_KEY))


NONSENSE = [
    b"",
    b"<html>hello</html>",
    b"[]",
    b'{"prefixes": ["elsewhere/"], "generation": "many"}',
    b'{"items": [{"name": 7, "size": "1", "updated": "yesterday", "generation": "1"}]}',
]


ELSEWHERE = {
    gcs: b'{"kind": "storage#objects", "prefixes": ["elsewhere/"]}',
    azure: b"<EnumerationResults><Blobs><BlobPrefix><Name>elsewhere/</Name></BlobPrefix></Blobs><NextMarker/>"
    b"</EnumerationResults>",
}


def test_a_prefix_elsewhere_is_not_believed(cloud: Cloud) -> None:
    answer = Response(200, {}, ELSEWHERE[cloud.module])
    with cloud.server.failing(lambda request: answer), pytest.raises(StorageError):
        cloud.store().list_level("")


def test_an_answer_that_makes_no_sense_is_an_error(cloud: Cloud) -> None:
    """Listings are in `test_listing_ends`."""
    store = cloud.store()
    calls: list[Callable[[], object]] = [
        lambda: store.head("key"),
        lambda: store.put("key", b""),
        lambda: store.put_if_absent("key", b""),
    ]
    for body, status in product(NONSENSE, (200, 201)):
        with cloud.server.failing(partial(lambda reply, request: reply, Response(status, {}, body))):
            for call in calls:
                with pytest.raises(StorageError):
                    call()
