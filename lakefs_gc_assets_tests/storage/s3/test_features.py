"""Services with part of S3's API: a missing feature is replaced or named in one sentence."""

import socket
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.lock import holder as lock_holder
from lakefs_gc_assets.errors import NotOffered, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.fuzzing.s3_answers import Service
from lakefs_gc_assets_tests.servers.s3_server import Faults, Request, S3Server

NOT_IMPLEMENTED = (
    "501 Not Implemented",
    b"<Error><Code>NotImplemented</Code><Message>A header you provided implies functionality that is not "
    b"implemented.</Message></Error>",
)


def keys(store: ObjectStore) -> list[str]:
    return [key for batch in store.list("") for key in batch["key"].to_pylist()]


def test_a_service_that_refuses_the_newer_checksums_is_asked_without(
    s3_server: S3Server, s3_store: ObjectStore
) -> None:
    def refuse(request: Request) -> tuple[str, bytes] | None:
        newer = any(name.startswith(("x-amz-checksum", "x-amz-sdk-checksum")) for name in request.headers)
        message = b"<Error><Code>InvalidArgument</Code><Message>Unsupported header</Message></Error>"
        return ("400 Bad Request", message) if newer else None

    with s3_server.failing(Faults(answer=refuse)):
        etag = s3_store.put_if_absent("a", b"1")
        s3_store.put_if_match("a", b"2", etag)
        s3_store.put("b//odd", b"3")
        s3_store.copy("a", "c")
        assert keys(s3_store) == ["a", "b//odd", "c"]
        outcomes = s3_store.delete(["a", "b//odd", "c"])
    assert {(outcome.result, outcome.error) for outcome in outcomes} == {(DeleteResult.ACCEPTED, None)}
    assert keys(s3_store) == []


def test_objects_go_one_by_one_where_there_are_no_bulk_deletes(
    s3_server: S3Server, s3_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"data/{number}" for number in range(20)]
    for name in names:
        s3_store.put(name, b"")

    def refuse(request: Request) -> tuple[str, bytes] | None:
        if request.method == "DELETE" and request.path.endswith("data/7"):
            return "403 Forbidden", b"<Error><Code>AccessDenied</Code></Error>"
        return NOT_IMPLEMENTED if request.method == "POST" and "delete" in request.query else None

    s3_server.requests.clear()
    with s3_server.failing(Faults(answer=refuse)):
        first, second = s3_store.delete(names[:10]), s3_store.delete(names[10:])
    assert [outcome.key for outcome in (*first, *second)] == names
    assert [outcome.key for outcome in first if outcome.result is DeleteResult.FAILED] == ["data/7"]
    assert "access denied" in (first[7].error or "")
    assert keys(s3_store) == ["data/7"]
    assert [request.method for request in s3_server.requests].count("POST") == 1
    assert caplog.text.count("one by one, slowly") == 1


def test_what_a_service_lacks_is_named_and_no_right_is_asked_for(s3_server: S3Server, s3_store: ObjectStore) -> None:
    etag = s3_store.put("a", b"1") or ""

    def refuse(request: Request) -> tuple[str, bytes] | None:
        lacks = {"if-match", "if-none-match", "x-amz-copy-source"}.intersection(request.headers)
        return NOT_IMPLEMENTED if lacks or "list-type" in request.query else None

    with s3_server.failing(Faults(answer=refuse)):
        s3_store.put("b", b"2")
        for call, feature in (
            (lambda: s3_store.put_if_absent("new", b""), "conditional writes"),
            (lambda: s3_store.put_if_match("a", b"", etag), "conditional writes"),
            (lambda: s3_store.copy("a", "c"), "CopyObject"),
            (lambda: keys(s3_store), "ListObjectsV2"),
            (lambda: s3_store.list_level(""), "ListObjectsV2"),
        ):
            with pytest.raises(NotOffered, match=f"does not offer .*{feature}.*no right gives it"):
                call()
    assert keys(s3_store) == ["a", "b"]


@pytest.mark.parametrize("code", ["InvalidArgument", "InvalidRequest", "BadRequest", ""])
def test_a_condition_that_is_refused_as_a_bad_request_is_named(
    s3_server: S3Server, s3_store: ObjectStore, code: str
) -> None:
    """Gateways that do not know the header answer this way."""
    etag = s3_store.put("a", b"1") or ""
    body = f"<Error><Code>{code}</Code><Message>Unsupported header</Message></Error>" if code else ""

    def refuse(request: Request) -> tuple[str, bytes] | None:
        return (
            ("400 Bad Request", body.encode()) if {"if-match", "if-none-match"}.intersection(request.headers) else None
        )

    named = f"does not offer conditional writes .*: it answered 400.*{code}"
    with s3_server.failing(Faults(answer=refuse)):
        with pytest.raises(NotOffered, match=named):
            s3_store.put_if_absent("new", b"")
        with pytest.raises(NotOffered, match=named):
            s3_store.put_if_match("a", b"", etag)
        with pytest.raises(NotOffered, match="does not offer conditional writes"):
            Lock.acquire(s3_store, run_id="r", owner="o", now=datetime.now(UTC), expiry=timedelta(hours=1))
    refuse_all = Faults(answer=lambda request: ("400 Bad Request", body.encode()))
    with s3_server.failing(refuse_all), pytest.raises(StorageError, match="400") as caught:
        s3_store.put("a", b"2")
    assert not isinstance(caught.value, NotOffered)


def test_a_lock_whose_conditions_are_refused_late_is_left_held_by_nobody(
    s3_server: S3Server, s3_store: ObjectStore
) -> None:
    """Some services refuse a condition only once the object exists."""
    asked: list[str] = []

    def refuse(request: Request) -> tuple[str, bytes] | None:
        asked.extend({"if-match", "if-none-match"}.intersection(request.headers))
        return ("400 Bad Request", b"") if len(asked) > 1 and asked[-1] in request.headers else None

    with s3_server.failing(Faults(answer=refuse)), pytest.raises(NotOffered, match="conditional writes"):
        Lock.acquire(s3_store, run_id="r", owner="o", now=datetime.now(UTC), expiry=timedelta(hours=1))
    assert lock_holder(s3_store) is None


def test_a_write_that_is_answered_without_an_etag() -> None:
    service = Service()
    assert service.store.put("a", b"1") is None
    with pytest.raises(NotOffered, match="an ETag for each object"):
        service.store.put_if_absent("a", b"1")
    with pytest.raises(NotOffered, match="an ETag for each object"):
        service.store.put_if_match("a", b"1", "0" * 32)


@pytest.mark.parametrize("listening", [True, False])
def test_a_forgotten_path_style_is_named_where_the_endpoint_answers(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, listening: bool
) -> None:
    """The endpoint's own name resolves, but the names of buckets below it do not."""
    known = socket.getaddrinfo
    port = s3_server.url.rpartition(":")[2]

    def resolve(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "store.example" and listening:
            return known("127.0.0.1", *rest, **more)
        raise socket.gaierror(f"no address of {host}")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(cloud, "ATTEMPTS", 1)
    settings = StoreSettings(
        endpoint_url=f"http://store.example:{port}", region="us-east-1", access_key_id="k", secret_access_key="s"
    )
    store = open_store(settings, Namespace.parse(f"s3://bucket-{uuid4().hex}/x"))
    problem = "nothing answers at bucket-.*set `store.path_style: true`" if listening else "no connection"
    for call in (lambda: keys(store), lambda: store.put("a", b""), lambda: store.get("a"), lambda: store.head("a")):
        with pytest.raises(StorageError, match=problem):
            call()
