"""Intact and damaged contents, by the checksums of every kind of upload; in a folder and on S3."""

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from lakefs_gc_assets.extensions.check import contents
from lakefs_gc_assets.extensions.check.contents import MIB, Comparison
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import ObjectStore, TellsParts
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.s3_server import S3Server, upload_in_parts
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

KEY = "data/object"
EQUAL, UNEVEN, ONE = (5 * MIB, 5 * MIB, 1000), (6 * MIB, 5 * MIB + 1, 7), (77,)


def md5(content: bytes) -> bytes:
    return hashlib.md5(content).digest()


def parts_of(sizes: Sequence[int]) -> list[bytes]:
    return [bytes([65 + number]) * size for number, size in enumerate(sizes)]


def sum_of(parts: Sequence[bytes]) -> str:
    return md5(b"".join(map(md5, parts))).hex()


def compared(store: ObjectStore, checksum: str | None) -> Comparison:
    size = store.head(KEY).size
    length, digest = contents.read_digest(store, KEY, size)
    assert length == size
    return contents.compare(store, KEY, size, checksum, digest)[0]


class OnS3:
    """An object of a bucket without a prefix."""

    def __init__(self, server: S3Server) -> None:
        self.bucket, self.client = server.new_bucket(), server.client()
        self.store = open_store(server.settings(), Namespace.parse(f"s3://{self.bucket}"))

    def upload(self, parts: Sequence[bytes], **encryption: str) -> None:
        upload_in_parts(self.client, self.bucket, KEY, parts, **encryption)

    def put(self, content: bytes, **encryption: str) -> None:
        self.client.put_object(Bucket=self.bucket, Key=KEY, Body=content, **encryption)  # type: ignore[arg-type]

    def turn_a_bit(self) -> None:
        """Damages the content inside the service, so that it keeps reporting the old ETag."""
        stored: Any = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(self.bucket, KEY)
        etag, content = stored.etag, stored.value
        stored.value = content[:-1] + bytes([content[-1] ^ 1])
        stored._etag = etag.strip('"')
        assert stored.etag == etag


@pytest.fixture
def on_s3(s3_server: S3Server) -> OnS3:
    return OnS3(s3_server)


class TestInOnePiece:
    def test_content_is_the_same_or_another_under_the_same_etag(self, on_s3: OnS3) -> None:
        on_s3.put(b"content")
        checksum = md5(b"content").hex()
        assert compared(on_s3.store, checksum) is Comparison.SAME
        on_s3.turn_a_bit()
        assert compared(on_s3.store, checksum) is Comparison.OTHER

    def test_content_of_any_store_that_was_replaced_is_another(self, store: ObjectStore) -> None:
        store.put(KEY, b"contend")
        assert compared(store, md5(b"content").hex()) is Comparison.OTHER

    def test_etag_of_a_kms_key_that_became_the_checksum_cannot_be_compared(self, on_s3: OnS3) -> None:
        on_s3.put(b"content", ServerSideEncryption="aws:kms")
        assert compared(on_s3.store, "0" * 32) is Comparison.UNKNOWN
        assert compared(on_s3.store, md5(b"content").hex()) is Comparison.SAME


@pytest.mark.parametrize("sizes", [EQUAL, UNEVEN, ONE])
class TestInParts:
    """Uploads by the gateway, whose checksums omit the number of parts, and by presigned links, which state it."""

    @staticmethod
    def checksums(sizes: Sequence[int]) -> tuple[str, str]:
        checksum = sum_of(parts_of(sizes))
        return checksum, f"{checksum}-{len(sizes)}"

    def test_bit_that_was_turned_under_the_same_etag_is_found(self, on_s3: OnS3, sizes: Sequence[int]) -> None:
        on_s3.upload(parts_of(sizes))
        assert cast(TellsParts, on_s3.store).part_sizes(KEY) == sizes
        for checksum in self.checksums(sizes):
            assert compared(on_s3.store, checksum) is Comparison.SAME
        on_s3.turn_a_bit()
        for checksum in self.checksums(sizes):
            assert compared(on_s3.store, checksum) is Comparison.OTHER

    def test_copy_in_one_piece_is_the_same_or_of_unknown_parts(self, store: ObjectStore, sizes: Sequence[int]) -> None:
        store.put(KEY, b"".join(parts_of(sizes)))
        expected = Comparison.UNKNOWN if sizes is UNEVEN else Comparison.SAME
        for checksum in self.checksums(sizes):
            assert compared(store, checksum) is expected


def test_parts_under_a_kms_key_are_never_damage(on_s3: OnS3) -> None:
    on_s3.upload(parts_of(EQUAL), ServerSideEncryption="aws:kms")
    assert compared(on_s3.store, "0" * 32) is Comparison.UNKNOWN


def test_copy_of_parts_with_a_turned_bit_is_found_by_the_etag_of_the_copy(on_s3: OnS3) -> None:
    parts = parts_of(UNEVEN)
    on_s3.put(b"".join(parts))
    on_s3.turn_a_bit()
    assert compared(on_s3.store, sum_of(parts)) is Comparison.OTHER


def test_upload_without_a_checksum_is_compared_with_what_the_store_tells(on_s3: OnS3) -> None:
    on_s3.upload(parts_of(EQUAL))
    assert compared(on_s3.store, None) is Comparison.NO_CHECKSUM
    on_s3.turn_a_bit()
    assert compared(on_s3.store, "") is Comparison.OTHER


def test_sum_of_parts_is_the_same_however_chunks_are_cut() -> None:
    content = b"".join(parts_of((10, 10, 3)))
    for cut in range(1, len(content) + 1):
        for sizes in ((10,), (10, 10, 3)):
            tried = contents._Parts(sizes)
            for start in range(0, len(content), cut):
                tried.add(content[start : start + cut])
            assert tried.sum() == sum_of(parts_of((10, 10, 3)))
