"""Copies made by a store itself, in a folder and over HTTP."""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qs

import pytest
from azure.storage.blob import BlobProperties
from google.cloud.storage import Blob

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage import azure, gcs
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3 import store as s3_module
from lakefs_gc_assets_tests.servers.emulators import ACCOUNT, AzureServer, GcsServer, Response
from lakefs_gc_assets_tests.servers.s3_server import Faults, Request, S3Server

SOURCE, TARGET = "data/slice/ä b%2F+", "_lakefs/quarantine/run/data/slice/ä b%2F+"
TARGET_NAME = "the-target"
MEBIBYTE = 1024 * 1024


@pytest.fixture(params=["local", "s3", "gcs", "azure"])
def copying(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty storage namespace of each kind."""
    store: ObjectStore = request.getfixturevalue(f"{request.param}_store")
    return store


def keys(store: ObjectStore) -> set[str]:
    return {key for batch in store.list("") for key in batch["key"].to_pylist()}


@pytest.mark.parametrize("copy", ["copy", "copy_if_absent"])
def test_a_copy_is_the_same(copying: ObjectStore, copy: str) -> None:
    copying.put(SOURCE, b"content")
    getattr(copying, copy)(SOURCE, TARGET)
    assert copying.get(TARGET) == copying.get(SOURCE) == b"content"
    copying.delete([SOURCE])
    assert (copying.get(TARGET), keys(copying)) == (b"content", {TARGET})


@pytest.mark.parametrize("there", [b"content", b"another", b"of another size"])
def test_a_copy_replaces_what_is_there(copying: ObjectStore, there: bytes) -> None:
    copying.put(SOURCE, b"content")
    copying.put(TARGET, there)
    copying.copy(SOURCE, TARGET)
    copying.copy(SOURCE, TARGET)
    assert (copying.get(TARGET), copying.get(SOURCE)) == (b"content", b"content")
    assert keys(copying) == {SOURCE, TARGET}


@pytest.mark.parametrize("there", [b"content", b"another"])
def test_a_copy_if_absent_leaves_what_is_there(copying: ObjectStore, there: bytes) -> None:
    copying.put(SOURCE, b"content")
    copying.put(TARGET, there)
    with pytest.raises(AlreadyExists):
        copying.copy_if_absent(SOURCE, TARGET)
    assert copying.get(TARGET) == there


@pytest.mark.parametrize("copy", ["copy", "copy_if_absent"])
def test_without_a_source_the_target_stays(copying: ObjectStore, copy: str) -> None:
    if copy == "copy":
        copying.put(TARGET, b"the only one")
    with pytest.raises(ObjectNotFound):
        getattr(copying, copy)(SOURCE, TARGET)
    assert keys(copying) == ({TARGET} if copy == "copy" else set())


def test_what_is_there_already_is_not_copied_twice(s3_store: ObjectStore, s3_server: S3Server) -> None:
    store = s3_store
    store.put(SOURCE, b"content")
    store.copy(SOURCE, TARGET)
    before = len(s3_server.requests)
    store.copy(SOURCE, TARGET)
    assert {request.method for request in s3_server.requests[before:]} == {"HEAD"}


class TestInParts:
    @pytest.fixture
    def large(self, s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
        """An object too large to copy in one request."""
        monkeypatch.setattr(s3_module, "WHOLE", 6 * MEBIBYTE)
        monkeypatch.setattr(s3_module, "PART", 5 * MEBIBYTE)
        s3_store.put(SOURCE, b"".join(bytes([number]) * MEBIBYTE for number in range(11)))
        return s3_store

    def test_a_large_object_is_copied(self, large: ObjectStore, s3_server: S3Server) -> None:
        before = len(s3_server.requests)
        large.copy(SOURCE, TARGET)
        assert large.get(TARGET) == large.get(SOURCE)
        asked = [request for request in s3_server.requests[before:] if "partNumber" in request.query]
        ranges = [request.headers["x-amz-copy-source-range"] for request in asked]
        assert ranges == ["bytes=0-5242879", "bytes=5242880-10485759", "bytes=10485760-11534335"]

    def test_it_is_not_copied_twice_though_the_etags_differ(self, large: ObjectStore, s3_server: S3Server) -> None:
        large.copy(SOURCE, TARGET)
        assert large.head(SOURCE).etag != large.head(TARGET).etag
        before = len(s3_server.requests)
        large.copy(SOURCE, TARGET)
        assert {request.method for request in s3_server.requests[before:]} == {"HEAD"}

    def test_a_part_that_fails_leaves_no_copy_and_no_upload(self, large: ObjectStore, s3_server: S3Server) -> None:
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
    alike_of: Callable[[dict[str, object], dict[str, object]], bool] = s3_module.same_content
    assert alike_of(one, other) is alike


class TestOnGoogle:
    """Requests, and checks of their answers; the emulator ignores conditions of a copy."""

    def copies(self, server: GcsServer) -> list[dict[str, list[str]]]:
        """The queries of the copy requests."""
        return [parse_qs(each.query) for each in server.requests if "/rewriteTo/" in each.path]

    def test_only_where_there_is_nothing(self, gcs_store: ObjectStore, gcs_server: GcsServer) -> None:
        store = gcs_store
        gcs_store.put(SOURCE, b"content")
        gcs_server.requests.clear()
        store.copy_if_absent(SOURCE, TARGET)
        (asked,) = self.copies(gcs_server)
        assert asked["ifGenerationMatch"] == ["0"]
        assert asked["ifSourceGenerationMatch"] == [gcs_store.head(SOURCE).etag]

    def test_a_race_that_is_lost(self, gcs_store: ObjectStore, gcs_server: GcsServer) -> None:
        gcs_store.put(SOURCE, b"content")

        def lose(request: Request) -> Response | None:
            if "/rewriteTo/" not in request.path:
                return None
            gcs_server.answer = lambda request: None
            gcs_store.put(TARGET, b"another")
            return Response(412, {"content-type": "application/json"}, b'{"error": {"code": 412}}')

        with gcs_server.failing(lose), pytest.raises(AlreadyExists):
            gcs_store.copy_if_absent(SOURCE, TARGET)
        assert gcs_store.get(TARGET) == b"another"

    def test_a_large_object_takes_several_requests(self, gcs_store: ObjectStore, gcs_server: GcsServer) -> None:
        gcs_store.put(SOURCE, b"content")

        def first_a_part(request: Request) -> Response | None:
            if "/rewriteTo/" in request.path and "rewriteToken" not in request.query:
                return Response(200, {"content-type": "application/json"}, b'{"done": false, "rewriteToken": "t+1"}')
            return None

        gcs_server.requests.clear()
        with gcs_server.failing(first_a_part):
            gcs_store.copy(SOURCE, TARGET)
        assert [each.get("rewriteToken") for each in self.copies(gcs_server)] == [None, ["t+1"]]
        assert gcs_store.get(TARGET) == b"content"

    def test_a_copy_that_is_another_one_is_no_copy(self, gcs_store: ObjectStore, gcs_server: GcsServer) -> None:
        gcs_store.put(SOURCE, b"content")

        def done(request: Request) -> Response | None:
            if "/rewriteTo/" not in request.path:
                return None
            gcs_server.answer = lambda request: None
            gcs_store.put(TARGET, b"CONTENT")
            return Response(200, {"content-type": "application/json"}, b'{"done": true}')

        with gcs_server.failing(done), pytest.raises(StorageError, match="another size or digest"):
            gcs_store.copy(SOURCE, TARGET)


class TestOnAzure:
    """Requests, and checks of their answers."""

    @pytest.fixture
    def source(self, azure_store: ObjectStore) -> ObjectStore:
        azure_store.put(SOURCE, b"content")
        return azure_store

    def test_only_where_there_is_nothing(self, source: ObjectStore, azure_server: AzureServer) -> None:
        azure_server.requests.clear()
        source.copy_if_absent(SOURCE, TARGET)
        (asked,) = [each.headers for each in azure_server.requests if each.method == "PUT"]
        assert asked["if-none-match"] == "*"
        assert asked["x-ms-source-if-match"].strip('"') == source.head(SOURCE).etag
        assert asked["x-ms-copy-source"].startswith(azure_server.url)

    @pytest.mark.parametrize("last", ["success", "failed", "aborted"])
    def test_a_copy_counts_when_the_service_is_done(
        self, source: ObjectStore, azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch, last: str
    ) -> None:
        monkeypatch.setattr(azure, "_FIRST_PAUSE", 0.01)
        states = iter(["pending", "pending", last])

        def under_way(request: Request, response: Response) -> Response:
            if request.method != "HEAD" or "x-ms-copy-status" not in response.headers:
                return response
            return replace(response, headers={**response.headers, "x-ms-copy-status": next(states)})

        with azure_server.failing(change=under_way):
            if last == "success":
                source.copy(SOURCE, TARGET)
            else:
                with pytest.raises(StorageError, match="or failed"):
                    source.copy(SOURCE, TARGET)
        assert next(states, None) is None

    def test_a_shared_access_signature_is_for_the_source_as_well(
        self, azure_server: AzureServer, azure_container: str
    ) -> None:
        asked: list[Request] = []

        def answer(request: Request) -> Response | None:
            asked.append(request)
            if request.method == "PUT":
                return Response(403, {}, b"<Error><Code>No</Code></Error>")
            if TARGET_NAME in request.path:
                return Response(404, {"x-ms-error-code": "BlobNotFound"}, b"")
            facts = {"etag": '"0x1"', "content-length": "7", "last-modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
            return Response(200, facts, b"")

        settings = azure_server.settings().model_copy(update={"account_key": "", "sas_token": "sv=1&sig=secret"})
        namespace = f"https://{ACCOUNT}.blob.core.windows.net/{azure_container}/sas"
        store = open_store(settings, Namespace.parse(namespace))
        with azure_server.failing(answer), pytest.raises(StorageError, match="access denied") as raised:
            store.copy_if_absent("source", TARGET_NAME)
        assert asked[-1].headers["x-ms-copy-source"].endswith("source?sv=1&sig=secret")
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ({"size": 1, "md5Hash": "a"}, {"size": 1, "md5Hash": "a"}, True),
        ({"size": 1, "md5Hash": "a"}, {"size": 1, "md5Hash": "b"}, False),
        ({"size": 1, "crc32c": "a"}, {"size": 1, "md5Hash": "b", "crc32c": "a"}, True),
        ({"size": 1, "md5Hash": "a", "crc32c": "c"}, {"size": 1, "md5Hash": "a", "crc32c": "d"}, False),
        ({"size": 1, "md5Hash": "a"}, {"size": 2, "md5Hash": "a"}, False),
        ({"size": 1}, {"size": 1}, False),
    ],
)
def test_google_always_has_a_digest_to_compare(one: dict[str, object], other: dict[str, object], alike: bool) -> None:
    def described(properties: dict[str, object]) -> Blob:
        blob = Blob("key", None)
        blob._set_properties(properties)
        return blob

    assert gcs.GCSStore.__new__(gcs.GCSStore)._alike(described(one), described(other)) is alike


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ((1, b"a"), (1, b"a"), True),
        ((1, b"a"), (1, b"b"), False),
        ((1, b"a"), (1, None), True),
        ((1, None), (2, None), False),
    ],
)
def test_azure_may_have_none(one: tuple[int, bytes | None], other: tuple[int, bytes | None], alike: bool) -> None:
    def described(size: int, md5: bytes | None) -> BlobProperties:
        return BlobProperties(**{"Content-Length": size, "Content-MD5": md5 and bytearray(md5)})

    assert azure.AzureStore.__new__(azure.AzureStore)._alike(described(*one), described(*other)) is alike
