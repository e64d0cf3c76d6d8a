"""Answers that no S3 service gives, but something that speaks like one, or lies between, may."""

from unittest import mock

import pytest

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets_tests.fuzzing.s3_answers import Service

OBJECT = "<Contents><Key>repo/data/x</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
LAST = "<IsTruncated>false</IsTruncated>"


def require_refused(service: Service, answer: str, problem: str) -> None:
    """By each way of listing."""
    service.answer = answer.encode()
    with mock.patch("time.sleep"), pytest.raises(StorageError, match=problem):
        service.store.list_level("data/")
    with mock.patch("time.sleep"), pytest.raises(StorageError, match=problem):
        list(service.store.listable.pages("repo/data/", ""))


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (OBJECT.replace("<Size>1</Size>", ""), "without size or time"),
        (OBJECT.replace("repo/data/x", "repo2/data/x"), "an object elsewhere"),
        ("<CommonPrefixes><Prefix>repo/other/</Prefix></CommonPrefixes>", "a prefix elsewhere"),
        ("<CommonPrefixes><Prefix>repo/data/x</Prefix></CommonPrefixes>", "without a slash"),
        ("<CommonPrefixes/>", "a prefix elsewhere"),
        (OBJECT.replace("2026-01-01", "never"), "not expected of a store"),
        (OBJECT.replace("<Size>1<", "<Size>many<"), "not expected of a store"),
        (OBJECT[:-9], "kept failing"),
    ],
)
def test_a_listing_that_makes_no_sense_is_an_error(service: Service, content: str, problem: str) -> None:
    require_refused(service, f"<ListBucketResult>{LAST}{content}</ListBucketResult>", problem)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "whether there is more"),
        (f"<ListBucketResult>{OBJECT}</ListBucketResult>", "whether there is more"),
        (f"<ListBucketResult>{OBJECT}{LAST.replace('false', 'true')}</ListBucketResult>", "not where to go on"),
    ],
)
def test_a_listing_may_end_only_where_the_answer_says_so(service: Service, answer: str, problem: str) -> None:
    require_refused(service, answer, problem)


def test_no_key_is_deleted_that_only_the_service_speaks_of(service: Service) -> None:
    busy = "<Error><Key>repo/data/{}</Key><Code>SlowDown</Code></Error>"
    service.answer = f"<DeleteResult>{busy.format('asked')}{busy.format('another')}</DeleteResult>".encode()
    with mock.patch("time.sleep"):
        (outcome,) = service.store.delete(["data/asked"])
    assert outcome.result is DeleteResult.FAILED
    assert len(service.bodies) > 1
    assert not any(b"another" in body for body in service.bodies)
