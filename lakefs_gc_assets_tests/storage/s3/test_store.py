"""Features and failures specific to S3, against a real server over HTTP."""

import base64
import hashlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Literal, cast
from uuid import uuid4

import moto
import pytest
from moto.core.authorization import ActionAuthenticatorMixin

from lakefs_gc_assets.errors import ObjectArchived, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import bucket_store, cloud, traffic
from lakefs_gc_assets.storage.cloud import Throttle
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore, deletes_until
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3.store import S3Store
from lakefs_gc_assets_tests.servers.emulators import LimitedRate
from lakefs_gc_assets_tests.servers.s3_server import ACCESS_KEY, SECRET_KEY, Faults, Request, S3Server

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@pytest.fixture
def prefix() -> str:
    return uuid4().hex


@pytest.fixture
def store(s3_server: S3Server, bucket: str, prefix: str) -> ObjectStore:
    return open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/{prefix}"))


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for name in ("init_backoff", "max_backoff"):
        monkeypatch.setitem(cloud._OBSTORE_BACKOFF, name, timedelta(milliseconds=1))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, no_pauses: None) -> None:
    """Two attempts, for tests that want the failure itself."""
    monkeypatch.setattr(cloud, "ATTEMPTS", 2)


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
    lambda store: store.put_if_match("key", b"", "0" * 32),
    lambda store: store.delete(["key"]),
]


# Listing


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service lists ten objects a page."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")


@pytest.mark.usefixtures("small_pages")
def test_a_listing_goes_on_over_pages(
    s3_server: S3Server, bucket: str, prefix: str, store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [f"data/{number % 3}/{number:05}" for number in range(75)]
    s3_server.fill(bucket, (f"{prefix}/{key}" for key in expected))
    s3_server.requests.clear()
    assert keys(store) == sorted(expected)
    assert len(s3_server.requests) == 8
    assert caplog.text == ""
    assert len(keys(store, "data/1/")) == 25
    assert len(store.list_level("data/1/").objects) == 25


ODD = ["a//b", "a/./b", "a/../b", "..", "a/control\x01character", "a/\x7f", "//", "a/line\rfeed", "a/trailing/"]


@pytest.mark.parametrize("odd", ODD)
def test_keys_beyond_obstore_are_listed_and_read_as_they_are(store: ObjectStore, odd: str) -> None:
    others = ["a/0", "a/zz", "zz"]
    for key in others:
        store.put(key, b"other")
    store.put(odd, odd.encode())
    if odd == "a/trailing/":
        store.put("a/trailing", b"other")
    expected = {*others, odd} | ({"a/trailing"} if odd == "a/trailing/" else set())
    listed = keys(store)
    assert set(listed) == expected
    assert len(listed) == len(expected)
    assert (store.get(odd), store.head(odd).size) == (odd.encode(), len(odd))
    assert [outcome.result for outcome in store.delete([odd, "a/0"])] == [DeleteResult.ACCEPTED] * 2
    assert set(keys(store)) == expected - {odd, "a/0"}
    if odd == "a/trailing/":
        assert store.get("a/trailing") == b"other"


def test_a_prefix_beyond_obstore_is_listed(store: ObjectStore) -> None:
    for key in ("a//b/1", "a//b/2", "a//c", "a/b/3"):
        store.put(key, b"")
    assert keys(store, "a//b/") == ["a//b/1", "a//b/2"]
    assert keys(store, "a//") == ["a//b/1", "a//b/2", "a//c"]
    assert store.list_level("a/").prefixes == ("a//", "a/b/")


@pytest.mark.usefixtures("small_pages")
def test_a_batch_has_the_objects_of_several_pages(
    s3_server: S3Server, bucket: str, prefix: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "BATCH_ROWS", 20)
    plain = [f"a/{number:04}" for number in range(35)]
    s3_server.fill(bucket, (f"{prefix}/{key}" for key in [*plain, "a/0012//odd"]))
    batches = [batch["key"].to_pylist() for batch in store.list("")]
    assert [key for batch in batches for key in batch] == sorted([*plain, "a/0012//odd"])
    assert [len(batch) for batch in batches] == [20, 16]


@pytest.mark.usefixtures("small_pages")
def test_a_page_that_fails_ends_the_listing(s3_server: S3Server, bucket: str, prefix: str, store: ObjectStore) -> None:
    s3_server.fill(bucket, (f"{prefix}/{number}" for number in range(11)))

    def second_page(request: Request) -> tuple[str, bytes] | None:
        return ("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>") if "token" in request.query else None

    with s3_server.failing(Faults(answer=second_page)), pytest.raises(StorageError, match="access denied"):
        keys(store)


# Deleting


def test_a_bulk_delete_tells_the_outcome_of_each_key(s3_server: S3Server, prefix: str, store: ObjectStore) -> None:
    names = [f"data/slice/{number}" for number in range(1000)]
    for name in names[:12]:
        store.put(name, b"")
    faults = Faults(
        undeletable={f"{prefix}/{names[3]}": "AccessDenied", f"{prefix}/{names[5]}": "InvalidRequest"},
        unmentioned={f"{prefix}/{names[7]}"},
    )
    s3_server.requests.clear()
    with s3_server.failing(faults):
        outcomes = store.delete(names)
    [request] = s3_server.requests
    assert [outcome.key for outcome in outcomes] == names
    failed = {outcome.key: outcome.error for outcome in outcomes if outcome.result == DeleteResult.FAILED}
    assert failed == {
        names[3]: "AccessDenied: not today",
        names[5]: "InvalidRequest: not today",
        names[7]: "the service's answer does not mention this key",
    }
    assert set(keys(store)) == set(failed)
    assert b"<Quiet>false</Quiet>" in request.body
    assert request.headers["content-md5"] == base64.b64encode(hashlib.md5(request.body).digest()).decode()


def test_keys_that_the_service_was_too_busy_for_are_asked_again(
    s3_server: S3Server, prefix: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(store, "_throttle", Throttle(sleep=waited.append))
    names = [f"data/slice/{number}" for number in range(40)]
    for name in names:
        store.put(name, b"")
    busy = Faults(undeletable={f"{prefix}/{name}": "SlowDown" for name in names[10:]})
    asked: list[int] = []

    def fewer_each_time(request: Request) -> None:
        asked.append(request.body.count(b"<Key>"))
        if len(asked) > 1:
            busy.undeletable = dict(list(busy.undeletable.items())[10:])

    busy.answer = fewer_each_time
    before = traffic.total()
    with s3_server.failing(busy):
        outcomes = store.delete(names)
    assert (traffic.total() - before)[traffic.RETRIES] == 1
    assert asked == [40, 10, 10, 10]
    assert {(outcome.result, outcome.error) for outcome in outcomes} == {(DeleteResult.ACCEPTED, None)}
    assert keys(store) == []
    assert len(waited) == 5 and waited[1] > 0

    always = Faults(undeletable={f"{prefix}/busy": "SlowDown"})
    with s3_server.failing(always):
        [outcome] = store.delete(["busy"])
    assert outcome.error == "SlowDown: not today"


def test_deletes_slow_down_to_the_rate_that_the_service_takes(
    s3_server: S3Server, prefix: str, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = LimitedRate(100, 300)
    monkeypatch.setattr(store, "_throttle", Throttle(lambda: limited.now, limited.pass_time))

    def answer(request: Request) -> tuple[str, bytes] | None:
        keys = re.findall(b"<Key>(.*?)</Key>", request.body)
        taken = limited.take(len(keys))
        parts = [b"<Deleted><Key>%b</Key></Deleted>" % key for key in keys[:taken]]
        parts += [b"<Error><Key>%b</Key><Code>SlowDown</Code></Error>" % key for key in keys[taken:]]
        return "200 OK", b"<DeleteResult>%b</DeleteResult>" % b"".join(parts)

    with s3_server.failing(Faults(answer=answer)):
        outcomes = store.delete([f"data/slice/{number}" for number in range(1000)])
    assert {outcome.result for outcome in outcomes} == {DeleteResult.ACCEPTED}
    # The first 300 pass at once, the others need seven seconds. Retrying the whole batch would get thousands refused.
    assert limited.now < 15 and limited.refused < 1500


@pytest.mark.parametrize(
    "answer",
    [
        lambda key: ("503 Slow Down", SLOW_DOWN),
        lambda key: ("200 OK", b"<DeleteResult><Error><Key>%b</Key><Code>SlowDown</Code></Error></DeleteResult>" % key),
        lambda key: ("501 Not Implemented", b"<Error><Code>NotImplemented</Code></Error>"),
        lambda key: ("409 Conflict", b"<Error><Code>OperationAborted</Code></Error>"),
    ],
    ids=["whole", "each key", "no bulk deletes", "conflict"],
)
def test_no_delete_is_repeated_once_the_time_for_it_is_over(
    s3_server: S3Server, store: ObjectStore, answer: Callable[[bytes], tuple[str, bytes]]
) -> None:
    requests: list[Request] = []

    def busy(request: Request) -> tuple[str, bytes]:
        requests.append(request)
        return answer(b"".join(re.findall(b"<Key>(.*?)</Key>", request.body)))

    with s3_server.failing(Faults(answer=busy)), deletes_until(lambda: bool(requests)):
        [outcome] = store.delete(["data/slice/1"])
    assert (outcome.key, outcome.result) == ("data/slice/1", DeleteResult.LEFT)
    assert len(requests) == 1


def test_the_same_key_of_another_namespace_is_not_touched(s3_server: S3Server, bucket: str, store: ObjectStore) -> None:
    other = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/{uuid4().hex}"))
    for one in (store, other):
        one.put("data/slice/object", b"")
    store.delete(["data/slice/object"])
    assert (keys(store), keys(other)) == ([], ["data/slice/object"])


def test_keys_no_xml_can_hold_are_deleted_one_by_one(s3_server: S3Server, store: ObjectStore, impatient: None) -> None:
    names = ["a\x01", "b", "c\x02"]
    for name in names:
        store.put(name, b"")

    def refuse_last(request: Request) -> tuple[str, bytes] | None:
        refused = request.method == "DELETE" and request.path.endswith("%02")
        return ("403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>") if refused else None

    with s3_server.failing(Faults(answer=refuse_last)):
        outcomes = store.delete(names)
    assert [outcome.result.value for outcome in outcomes] == ["accepted", "accepted", "failed"]
    assert keys(store) == ["c\x02"]


# Trouble


def storm(times: int, status: str, body: bytes) -> Callable[[Request], tuple[str, bytes] | None]:
    """Fails the first `times` requests, then lets requests pass."""
    left = [times]
    guard = threading.Lock()

    def answer(_: Request) -> tuple[str, bytes] | None:
        with guard:
            left[0] -= 1
            return (status, body) if left[0] >= 0 else None

    return answer


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("status", "body"),
    [
        ("503 Slow Down", SLOW_DOWN),
        ("502 Bad Gateway", b"<html>some proxy</html>"),
    ],
)
def test_storms_pass(s3_server: S3Server, store: ObjectStore, status: str, body: bytes) -> None:
    store.put("key", b"content")
    for call, expected in (
        (lambda: keys(store), ["key"]),
        (lambda: store.get("key"), b"content"),
        (lambda: store.head("key").size, 7),
        (lambda: store.delete(["gone"])[0].result, DeleteResult.ACCEPTED),
    ):
        before = traffic.total()
        s3_server.requests.clear()
        with s3_server.failing(Faults(answer=storm(2, status, body))):
            assert call() == expected
        used = traffic.total() - before
        # obstore does not report its retries.
        unreported = 2 if expected == b"content" else 0
        assert used[traffic.REQUESTS] == len(s3_server.requests) - unreported
        assert used[traffic.RETRIES] == 2 - unreported


def test_a_storm_that_does_not_pass_is_an_error(s3_server: S3Server, bucket: str, impatient: None) -> None:
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/x"))
    message = f"s3://{bucket} at {s3_server.url}: the service kept failing"
    # Without SlowDown: that would slow down the store's later requests.
    error = b"<Error><Code>InternalError</Code></Error>"
    with s3_server.failing(Faults(answer=lambda _: ("500 Internal Server Error", error))):
        for call in CALLS:
            with pytest.raises(StorageError, match=message):
                call(store)


def test_a_silent_server_is_given_another_try(
    s3_server: S3Server, bucket: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual number of attempts is made: on a busy machine, good answers come late as well."""
    monkeypatch.setattr(cloud, "READ_TIMEOUT", timedelta(seconds=0.5))
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/{prefix}"))
    store.put("key", b"content")
    for call, expected in ((lambda: keys(store), ["key"]), (lambda: store.get("key"), b"content")):
        late = storm(1, "", b"")

        def slow(request: Request, late: Callable[[Request], object] = late) -> None:
            if late(request):
                time.sleep(1.5)

        with s3_server.failing(Faults(answer=slow)):
            assert call() == expected


@pytest.mark.usefixtures("no_pauses")
def test_a_write_that_collides_is_tried_again(s3_server: S3Server, store: ObjectStore) -> None:
    conflict = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
    with s3_server.failing(Faults(answer=storm(2, "409 Conflict", conflict))):
        etag = store.put_if_absent("key", b"1")
    with s3_server.failing(Faults(answer=storm(2, "409 Conflict", conflict))):
        store.put_if_match("key", b"2", etag)
    assert store.get("key") == b"2"
    with (
        s3_server.failing(Faults(answer=lambda _: ("409 Conflict", conflict))),
        pytest.raises(StorageError, match="other writers") as caught,
    ):
        store.put_if_match("key", b"3", etag)
    assert not isinstance(caught.value, PreconditionFailed)


@pytest.mark.parametrize(
    ("encryption", "reported"),
    [
        ({}, True),
        ({"ServerSideEncryption": "AES256"}, True),
        ({"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "a-key"}, False),
        ({"ServerSideEncryption": "aws:kms:dsse", "SSEKMSKeyId": "a-key"}, False),
    ],
)
def test_the_md5_is_reported_unless_keys_of_kms_encrypt_an_object(
    s3_server: S3Server, bucket: str, prefix: str, store: ObjectStore, encryption: dict[str, str], reported: bool
) -> None:
    content = b"content"
    put = cast(Callable[..., object], s3_server.client().put_object)
    put(Bucket=bucket, Key=f"{prefix}/key", Body=content, **encryption)
    assert store.head("key").md5 == (hashlib.md5(content).hexdigest() if reported else None)
    assert not any("md5" in batch.schema.names for batch in store.list(""))


@pytest.mark.parametrize(
    ("bucket", "facts", "reported"),
    [
        ("plain", {}, True),
        ("plain", {"ServerSideEncryption": "aws:fsx"}, False),
        ("plain", {"SSECustomerAlgorithm": "AES256"}, False),
        ("plain", {"ServerSideEncryption": "AES256", "SSEKMSKeyId": "a-key"}, False),
        ("directory--use1-az5--x-s3", {}, False),
    ],
)
def test_no_md5_is_reported_where_the_etag_may_be_something_else(
    monkeypatch: pytest.MonkeyPatch, bucket: str, facts: dict[str, str], reported: bool
) -> None:
    settings = StoreSettings(region="us-east-1", access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY)
    store = cast(S3Store, open_store(settings, Namespace.parse(f"s3://{bucket}/prefix")))
    etag = "0" * 32
    answer = {"ContentLength": 1, "LastModified": datetime.now(UTC), "ETag": f'"{etag}"', **facts}
    monkeypatch.setattr(store._client, "head_object", lambda **asked: answer)
    assert store.head("key").md5 == (etag if reported else None)


def test_the_etag_of_an_upload_in_parts_is_no_md5(
    s3_server: S3Server, bucket: str, prefix: str, store: ObjectStore
) -> None:
    client, key = s3_server.client(), f"{prefix}/key"
    upload = client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"]
    part = client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"content")
    client.complete_multipart_upload(
        Bucket=bucket,
        Key=key,
        UploadId=upload,
        MultipartUpload={"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]},
    )
    facts = store.head("key")
    assert facts.etag is not None and facts.etag.endswith("-1")
    assert facts.md5 is None


def test_an_endpoint_nobody_listens_at_is_named(bucket: str, impatient: None) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        settings = StoreSettings(
            endpoint_url=endpoint, region="us-east-1", path_style=True, access_key_id="key", secret_access_key="hush"
        )
        store = open_store(settings, Namespace.parse(f"s3://{bucket}/x"))
        for call in CALLS:
            with pytest.raises(StorageError, match=f"s3://{bucket} at {endpoint}: no connection") as caught:
                call(store)
            assert "hush" not in str(caught.value)


def test_a_bucket_that_does_not_exist_is_no_missing_object(s3_server: S3Server) -> None:
    store = open_store(s3_server.settings(), Namespace.parse("s3://no-such-bucket/x"))
    for call in CALLS:
        with pytest.raises(StorageError, match="no-such-bucket") as caught:
            call(store)
        assert not isinstance(caught.value, ObjectNotFound)


def test_a_404_that_names_no_key_is_no_missing_object(s3_server: S3Server, store: ObjectStore) -> None:
    with s3_server.failing(Faults(answer=lambda _: ("404 Not Found", b"<html>some proxy</html>"))):
        for call in CALLS:
            with pytest.raises(StorageError, match="that the bucket of the storage namespace exists there") as caught:
                call(store)
            assert not isinstance(caught.value, ObjectNotFound)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("403 Forbidden", "AccessDenied", "access denied"),
        ("400 Bad Request", "ExpiredToken", "the credentials were refused"),
        ("400 Bad Request", "AuthorizationHeaderMalformed", "set `store.region`"),
        ("418 I'm a teapot", "Teapot", "the service answered 418 Teapot"),
    ],
)
def test_refusals_are_explained(
    s3_server: S3Server, bucket: str, impatient: None, status: str, code: str, message: str
) -> None:
    store = open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/x"))
    body = (
        f"<Error><Code>{code}</Code><Message>No.</Message><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId>"
        "<CanonicalRequest>x-amz-security-token:hush</CanonicalRequest></Error>"
    ).encode()
    with s3_server.failing(Faults(answer=lambda _: (status, body))):
        for call in CALLS:
            with pytest.raises(StorageError) as caught:
                call(store)
            text = str(caught.value)
            assert bucket in text
            assert message in text or status[:3] in text
            assert "hush" not in text and ACCESS_KEY not in text


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server checks signatures and permissions."""
    monkeypatch.setattr(moto.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)


def test_wrong_credentials_are_refused(s3_server: S3Server, bucket: str, guarded: None, impatient: None) -> None:
    settings = s3_server.settings().model_copy(update={"secret_access_key": "hush"})
    store = open_store(settings, Namespace.parse(f"s3://{bucket}/x"))
    for call in CALLS:
        with pytest.raises(StorageError, match=r"credentials were refused|access denied") as caught:
            call(store)
        assert not isinstance(caught.value, ObjectNotFound | PreconditionFailed)
        assert "hush" not in str(caught.value)


def test_nothing_secret_is_logged(s3_server: S3Server, store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        store.put("a//b", b"")
        keys(store)
    assert SECRET_KEY not in caplog.text


@pytest.mark.parametrize("storage_class", ["GLACIER", "DEEP_ARCHIVE"])
def test_an_archived_object_can_be_deleted_and_neither_read_nor_copied(
    s3_server: S3Server, bucket: str, prefix: str, store: ObjectStore, storage_class: Literal["GLACIER", "DEEP_ARCHIVE"]
) -> None:
    s3_server.client().put_object(Bucket=bucket, Key=f"{prefix}/old", Body=b"old", StorageClass=storage_class)

    for attempt in (lambda: store.get("old"), lambda: store.copy("old", "copy")):
        with pytest.raises(ObjectArchived, match=r"it is in an archive tier \(403 .*sweep_mode: delete") as raised:
            attempt()
        assert "permission" not in str(raised.value)

    store.put("new", b"new")
    classes = {
        key: name
        for batch in store.list("")
        for key, name in zip(batch["key"].to_pylist(), batch["storage_class"].to_pylist(), strict=True)
    }
    assert classes == {"old": storage_class, "new": "STANDARD"}
    assert {facts.key: facts.storage_class for facts in store.list_level("").objects} == classes
    store.delete(["new"])
    assert (keys(store), store.head("old").size) == (["old"], 3)
    (deleted,) = store.delete(["old"])
    assert deleted.result is DeleteResult.ACCEPTED
    assert keys(store) == []


@pytest.mark.usefixtures("no_pauses")
def test_hundreds_of_failing_requests_in_a_row_are_all_repeated(s3_server: S3Server, store: ObjectStore) -> None:
    """Each request fails twice. A quota of retries, as boto3 has, would be used up after a hundred of them."""
    store.put("key", b"content")
    guard, seen = threading.Lock(), count()

    def two_of_three(_: Request) -> tuple[str, bytes] | None:
        with guard:
            # Without SlowDown: that would slow down the store's later requests.
            return ("500 Internal Server Error", b"") if next(seen) % 3 < 2 else None

    with s3_server.failing(Faults(answer=two_of_three)):
        assert {store.head("key").size for _ in range(150)} == {7}
    assert next(seen) == 450
