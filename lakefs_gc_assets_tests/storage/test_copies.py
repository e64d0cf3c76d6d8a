"""Copies that a store makes itself, in a folder and on S3 over HTTP."""

from collections.abc import Callable
from typing import cast

import pytest

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, StorageError
from lakefs_gc_assets.storage import s3_copies
from lakefs_gc_assets.storage.interface import CopiesObjects, ObjectStore
from lakefs_gc_assets_tests.s3_server import Faults, Request, S3Server

SOURCE, TARGET = "data/slice/ä b%2F+", "_lakefs/quarantine/run/data/slice/ä b%2F+"
MEBIBYTE = 1024 * 1024


@pytest.fixture(params=["local", "s3"])
def copying(request: pytest.FixtureRequest) -> CopiesObjects:
    """An empty storage namespace of each kind that copies."""
    store = request.getfixturevalue(f"{request.param}_store")
    assert isinstance(store, CopiesObjects)
    return store


def keys(store: ObjectStore) -> set[str]:
    return {key for batch in store.list("") for key in batch["key"].to_pylist()}


@pytest.mark.parametrize("copy", ["copy", "copy_if_absent"])
def test_a_copy_is_the_same(copying: CopiesObjects, copy: str) -> None:
    copying.put(SOURCE, b"content")
    getattr(copying, copy)(SOURCE, TARGET)
    assert copying.get(TARGET) == copying.get(SOURCE) == b"content"
    copying.delete([SOURCE])
    assert (copying.get(TARGET), keys(copying)) == (b"content", {TARGET})


@pytest.mark.parametrize("there", [b"content", b"another", b"of another size"])
def test_a_copy_replaces_what_is_there(copying: CopiesObjects, there: bytes) -> None:
    copying.put(SOURCE, b"content")
    copying.put(TARGET, there)
    copying.copy(SOURCE, TARGET)
    copying.copy(SOURCE, TARGET)
    assert (copying.get(TARGET), copying.get(SOURCE)) == (b"content", b"content")
    assert keys(copying) == {SOURCE, TARGET}


@pytest.mark.parametrize("there", [b"content", b"another"])
def test_a_copy_if_absent_leaves_what_is_there(copying: CopiesObjects, there: bytes) -> None:
    copying.put(SOURCE, b"content")
    copying.put(TARGET, there)
    with pytest.raises(AlreadyExists):
        copying.copy_if_absent(SOURCE, TARGET)
    assert copying.get(TARGET) == there


@pytest.mark.parametrize("copy", ["copy", "copy_if_absent"])
def test_without_a_source_the_target_stays(copying: CopiesObjects, copy: str) -> None:
    if copy == "copy":
        copying.put(TARGET, b"the only one")
    with pytest.raises(ObjectNotFound):
        getattr(copying, copy)(SOURCE, TARGET)
    assert keys(copying) == ({TARGET} if copy == "copy" else set())


def test_what_is_there_already_is_not_copied_twice(s3_store: ObjectStore, s3_server: S3Server) -> None:
    store = cast(CopiesObjects, s3_store)
    store.put(SOURCE, b"content")
    store.copy(SOURCE, TARGET)
    before = len(s3_server.requests)
    store.copy(SOURCE, TARGET)
    assert {request.method for request in s3_server.requests[before:]} == {"HEAD"}


class TestInParts:
    @pytest.fixture
    def large(self, s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> CopiesObjects:
        """An object that is larger than one request may copy."""
        monkeypatch.setattr(s3_copies, "WHOLE", 6 * MEBIBYTE)
        monkeypatch.setattr(s3_copies, "PART", 5 * MEBIBYTE)
        s3_store.put(SOURCE, b"".join(bytes([number]) * MEBIBYTE for number in range(11)))
        return cast(CopiesObjects, s3_store)

    def test_a_large_object_is_copied(self, large: CopiesObjects, s3_server: S3Server) -> None:
        before = len(s3_server.requests)
        large.copy(SOURCE, TARGET)
        assert large.get(TARGET) == large.get(SOURCE)
        asked = [request for request in s3_server.requests[before:] if "partNumber" in request.query]
        ranges = [request.headers["x-amz-copy-source-range"] for request in asked]
        assert ranges == ["bytes=0-5242879", "bytes=5242880-10485759", "bytes=10485760-11534335"]

    def test_it_is_not_copied_twice_though_the_etags_differ(self, large: CopiesObjects, s3_server: S3Server) -> None:
        large.copy(SOURCE, TARGET)
        assert large.head(SOURCE).etag != large.head(TARGET).etag
        before = len(s3_server.requests)
        large.copy(SOURCE, TARGET)
        assert {request.method for request in s3_server.requests[before:]} == {"HEAD"}

    def test_a_part_that_fails_leaves_no_copy_and_no_upload(self, large: CopiesObjects, s3_server: S3Server) -> None:
        def answer(request: Request) -> tuple[str, bytes] | None:
            if "partNumber=2" in request.query:
                return "403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            return None

        before = len(s3_server.requests)
        with s3_server.failing(Faults(answer)), pytest.raises(StorageError, match="access denied"):
            large.copy(SOURCE, TARGET)
        assert keys(large) == {SOURCE}
        assert any(
            request.method == "DELETE" and "uploadId" in request.query for request in s3_server.requests[before:]
        )


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"ContentLength": 1, "ETag": f'"{"a" * 32}"'}, {"ContentLength": 1, "ETag": f'"{"a" * 32}"'}, True),
        ({"ContentLength": 1, "ETag": f'"{"a" * 32}"'}, {"ContentLength": 1, "ETag": f'"{"b" * 32}"'}, False),
        ({"ContentLength": 1, "ETag": f'"{"a" * 32}"'}, {"ContentLength": 2, "ETag": f'"{"a" * 32}"'}, False),
        ({"ContentLength": 1, "ETag": f'"{"a" * 32}-2"'}, {"ContentLength": 1, "ETag": f'"{"b" * 32}"'}, True),
        (
            {"ContentLength": 1, "ETag": f'"{"a" * 32}"', "ServerSideEncryption": "aws:kms"},
            {"ContentLength": 1, "ETag": f'"{"b" * 32}"', "ServerSideEncryption": "aws:kms"},
            True,
        ),
        (
            {"ContentLength": 1, "ETag": f'"{"a" * 32}"', "ServerSideEncryption": "AES256"},
            {"ContentLength": 1, "ETag": f'"{"b" * 32}"', "ServerSideEncryption": "AES256"},
            False,
        ),
    ],
)
def test_etags_are_compared_where_they_are_digests(
    one: dict[str, object], other: dict[str, object], alike: bool
) -> None:
    alike_of: Callable[[dict[str, object], dict[str, object]], bool] = s3_copies._alike
    assert alike_of(one, other) is alike
