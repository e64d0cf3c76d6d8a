"""Buckets that refuse objects without the demanded encryption: every write asks for it."""

from uuid import uuid4

import pytest

from lakefs_gc_assets.errors import ConfigurationError, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3 import store as s3_module
from lakefs_gc_assets.storage.s3.store import S3Store
from lakefs_gc_assets_tests.servers.s3_server import Faults, Request, S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]
KEY = "arn:aws:kms:us-east-1:123456789012:key/one"
_HEADER, _KEY_HEADER = "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id"


def decides_encryption(request: Request) -> bool:
    """True if a request writes an object or begins an upload."""
    begins = request.method == "POST" and "uploads" in request.query
    return begins or (request.method == "PUT" and request.path.count("/") > 1 and "partNumber" not in request.query)


def refuse_plain(request: Request) -> tuple[str, bytes] | None:
    """The bucket's policy."""
    if decides_encryption(request) and request.headers.get(_HEADER) != "aws:kms":
        return "403 Forbidden", b"<Error><Code>AccessDenied</Code><Message>not encrypted</Message></Error>"
    return None


def opened(s3_server: S3Server, bucket: str, **settings: str) -> S3Store:
    changed = StoreSettings.model_validate(s3_server.settings().model_dump() | settings)
    store = open_store(changed, Namespace.parse(f"s3://{bucket}/{uuid4().hex}"))
    assert isinstance(store, S3Store)
    return store


def write_in_every_way(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes in every way that the collector uses."""
    store.put("a", b"one")
    etag = store.put_if_absent("b", b"two")
    store.put_if_match("b", b"three", etag)
    store.copy("a", "whole")
    store.copy_if_absent("a", "new")
    with monkeypatch.context() as small:
        small.setattr(s3_module, "WHOLE", 0)
        store.copy("b", "in-parts")


def test_everything_that_is_written_asks_for_it(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(s3_server, bucket, server_side_encryption="aws:kms", kms_key_id=KEY)
    s3_server.requests.clear()

    with s3_server.failing(Faults(answer=refuse_plain)):
        write_in_every_way(store, monkeypatch)

    writes = [request for request in s3_server.requests if decides_encryption(request)]
    assert len(writes) == 6
    assert {(request.headers[_HEADER], request.headers[_KEY_HEADER]) for request in writes} == {("aws:kms", KEY)}
    assert {store.get(key) for key in ("b", "in-parts")} == {b"three"}


def test_without_the_setting_such_a_bucket_refuses(s3_server: S3Server, bucket: str) -> None:
    with s3_server.failing(Faults(answer=refuse_plain)), pytest.raises(StorageError, match="not encrypted"):
        opened(s3_server, bucket).put("a", b"one")


def test_nothing_is_asked_for_by_default(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s3_server.requests.clear()

    write_in_every_way(opened(s3_server, bucket), monkeypatch)

    assert not [request for request in s3_server.requests if _HEADER in request.headers]


def test_a_key_needs_an_encryption_that_has_keys(s3_server: S3Server, bucket: str) -> None:
    for encryption in ("", "AES256"):
        with pytest.raises(ConfigurationError, match=r"store\.kms_key_id goes with store\.server_side_encryption"):
            opened(s3_server, bucket, server_side_encryption=encryption, kms_key_id=KEY)


@pytest.mark.parametrize(
    "uri", ["gs://bucket/repo", "https://one.blob.core.windows.net/container/repo", "local://repo"]
)
def test_other_stores_do_not_take_it(uri: str) -> None:
    with pytest.raises(ConfigurationError, match=r"store\.server_side_encryption is for S3"):
        open_store(StoreSettings(server_side_encryption="AES256"), Namespace.parse(uri))
