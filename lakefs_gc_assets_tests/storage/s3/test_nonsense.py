"""Answers that no S3 service gives, but that an imitation or a proxy may."""

from datetime import UTC, datetime
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.s3 import client
from lakefs_gc_assets_tests.fuzzing.s3_answers import Service

OBJECT = "<Contents><Key>repo/data/x</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
LAST = "<IsTruncated>false</IsTruncated>"


def require_refused(service: Service, answer: str, problem: str) -> None:
    """Requires that each way of listing refuses an answer."""
    service.answer = answer.encode()
    with mock.patch("time.sleep"), pytest.raises(StorageError, match=problem):
        service.store.list_level("data/")
    with mock.patch("time.sleep"), pytest.raises(StorageError, match=problem):
        list(service.store.list("data/"))
    with mock.patch("time.sleep"), pytest.raises(StorageError, match=problem):
        list(service.store.list_between("data/", "", None, only_directly=True))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (OBJECT.replace("<Size>1</Size>", ""), "without key, size or time"),
        (OBJECT.replace("repo/data/x", "repo2/data/x"), "an object elsewhere"),
        ("<CommonPrefixes><Prefix>repo/other/</Prefix></CommonPrefixes>", "a prefix elsewhere"),
        ("<CommonPrefixes><Prefix>repo/data/x</Prefix></CommonPrefixes>", "without a slash"),
        ("<CommonPrefixes/>", "a prefix without a name"),
        (OBJECT.replace("2026-01-01", "never"), "makes no sense"),
        (OBJECT.replace("<Size>1<", "<Size>many<"), "makes no sense"),
        (OBJECT.replace("<Size>1<", "<Size>-1<"), "a negative size"),
        (OBJECT.replace("<Size>1</Size>", "<Size>1</Size><Size>2</Size>"), "it has Size more than once"),
        (OBJECT[:-9], "kept failing"),
    ],
)
def test_a_listing_that_makes_no_sense_is_an_error(service: Service, content: str, problem: str) -> None:
    require_refused(service, f"<ListBucketResult>{LAST}{content}</ListBucketResult>", problem)


def test_a_service_that_passes_over_the_delimiter_is_not_believed(service: Service) -> None:
    deeper = OBJECT.replace("data/x", "data/a/x")
    service.answer = f"<ListBucketResult>{LAST}{deeper}</ListBucketResult>".encode()
    assert [batch["key"].to_pylist() for batch in service.store.list("data/")] == [["data/a/x"]]
    with pytest.raises(StorageError, match="lies deeper"):
        service.store.list_level("data/")
    with pytest.raises(StorageError, match="lies deeper"):
        list(service.store.list_between("data/", "", None, only_directly=True))


ROWS = [
    "<Contents><Key>repo/data/a%2Cb</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    "<ETag>&quot;e&quot;</ETag><Size>1</Size><StorageClass>GLACIER</StorageClass></Contents>",
    '<Contents><Key>repo/data/b</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"e"</ETag>'
    "<ChecksumAlgorithm>CRC64NVME</ChecksumAlgorithm><Size>1</Size><Owner><ID>i</ID></Owner></Contents>",
    "<Contents><ETag>e</ETag><Size>1</Size><Key>repo/data/c</Key><LastModified>2026-01-01T01:00:00+01:00</LastModified>"
    "</Contents>",
    "<Contents>\n  <Key>repo/data/d</Key>\n  <ETag>e</ETag><Size>1</Size><!-- c -->"
    "<LastModified>Thu, 01 Jan 2026 00:00:00 GMT</LastModified></Contents>",
]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[:2], ROWS[2:], ROWS[2:3], ROWS[3:]])
def test_objects_are_listed_however_services_write_them(service: Service, rows: list[str]) -> None:
    head = "<?xml version='1.0'?><x:ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/' xmlns:x='urn:x'>"
    encoding = "<EncodingType>url</EncodingType>"
    service.answer = f"{head}{LAST}{encoding}{''.join(rows)}</x:ListBucketResult>".encode()
    (batch,) = service.store.list("data/")
    names = ["data/a,b", "data/b", "data/c", "data/d"]
    first = ROWS.index(rows[0])
    # Some services leave out the default class.
    assert batch["storage_class"].to_pylist() == ["GLACIER" if row == ROWS[0] else "STANDARD" for row in rows]
    assert batch["key"].to_pylist() == names[first : first + len(rows)]
    assert {(row["size"], row["etag"], row["last_modified"]) for row in batch.to_pylist()} == {
        (1, "e", datetime(2026, 1, 1, tzinfo=UTC))
    }


_CLASS = "<StorageClass>{}</StorageClass>"
_PARTS = [
    "<Key>repo/data/{}</Key>",
    "<LastModified>2026-01-01T00:00:00.000Z</LastModified>",
    "<ETag>&quot;e&quot;</ETag>",
    "<Size>1</Size>",
    "<Owner><ID>i</ID></Owner>",
]


@given(
    st.permutations([*_PARTS, _CLASS]),
    st.lists(st.sampled_from([None, "", "STANDARD", "GLACIER", "STANDARD_IA"]), min_size=1, max_size=6),
)
def test_a_class_is_read_wherever_it_stands_and_the_page_is_matched_fast(
    order: list[str], classes: list[str | None]
) -> None:
    rows = [
        "".join(part for part in order if part != _CLASS or name is not None)
        .replace("{}</Key>", f"{number}</Key>")
        .replace("{}", name or "")
        for number, name in enumerate(classes)
    ]
    contents = "".join(f"<Contents>{row}</Contents>" for row in rows)
    body = f"<ListBucketResult>{LAST}{contents}</ListBucketResult>".encode()
    found = client.parsed(body).rows
    assert client._fast(body) is not None
    assert found["storage_class"].to_pylist() == [name or "STANDARD" for name in classes]
    assert found["key"].to_pylist() == [f"repo/data/{number}" for number in range(len(classes))]


def test_an_object_of_two_classes_makes_no_sense(service: Service) -> None:
    twice = OBJECT.replace("</Contents>", _CLASS.format("GLACIER") * 2 + "</Contents>")
    require_refused(
        service, f"<ListBucketResult>{LAST}{twice}</ListBucketResult>", "it has StorageClass more than once"
    )


@pytest.mark.parametrize("key", ["repo/data/%ff", "repo/data/%C3"])
def test_a_key_that_is_no_text_ends_a_listing(service: Service, key: str) -> None:
    named = f"<EncodingType>url</EncodingType>{OBJECT.replace('repo/data/x', key)}"
    require_refused(service, f"<ListBucketResult>{LAST}{named}</ListBucketResult>", "makes no sense")


def test_no_key_is_deleted_that_only_the_service_speaks_of(service: Service) -> None:
    busy = "<Error><Key>repo/data/{}</Key><Code>SlowDown</Code></Error>"
    service.answer = f"<DeleteResult>{busy.format('asked')}{busy.format('another')}</DeleteResult>".encode()
    with mock.patch("time.sleep"):
        (outcome,) = service.store.delete(["data/asked"])
    assert outcome.result is DeleteResult.FAILED
    assert len(service.bodies) > 1
    assert not any(b"another" in body for body in service.bodies)
