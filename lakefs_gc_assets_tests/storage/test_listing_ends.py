"""No listing method takes a wrong answer of a service for the end of the listing."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from urllib.parse import parse_qs

import pytest

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage import azure, cloud, gcs
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore
from lakefs_gc_assets_tests.servers.emulators import AzureServer, GcsServer, Response
from lakefs_gc_assets_tests.servers.s3_server import Faults, Request, S3Server

FOLDER = "data/slice/"
NAMES = [f"{FOLDER}{number}" for number in range(5)]
PAGE = 3
"""Objects on the first page; the others are on the second."""
Answers = dict[str, Callable[[str], bytes]]
"""Answers that replace a page, by the requested full prefix."""

ANY: Answers = {
    "nothing": lambda prefix: b"",
    "a page of a proxy": lambda prefix: b"<html><body>log in</body></html>",
    "HTML that is no XML": lambda prefix: b"<!doctype html><html><body>log in<br></html>",
    "text": lambda prefix: b"OK",
    "an object of JSON": lambda prefix: b"{}",
    "a list of JSON": lambda prefix: b"[]",
    "JSON of an error": lambda prefix: b'{"error": {"code": 503, "message": "busy"}}',
    "an error": lambda prefix: b"<Error><Code>SlowDown</Code><Message>Please reduce your rate.</Message></Error>",
}


def s3_page(prefix: str, inner: str = "<IsTruncated>false</IsTruncated>", root: str = "ListBucketResult") -> bytes:
    return f"<{root}><Name>bucket</Name><Prefix>{prefix}</Prefix>{inner}</{root}>".encode()


def s3_object(key: str) -> str:
    return (
        f"<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        "<ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><Size>0</Size></Contents>"
    )


S3: Answers = {
    "another root": lambda prefix: s3_page(prefix, root="ListVersionsResult"),
    "another listing, empty": lambda prefix: s3_page("elsewhere/"),
    "another listing": lambda prefix: s3_page(
        "elsewhere/", s3_object("elsewhere/a") + "<IsTruncated>false</IsTruncated>"
    ),
    "no prefix, and no objects": lambda prefix: (
        b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
    ),
    "silence about more": lambda prefix: s3_page(prefix, s3_object(prefix + "0")),
    "neither yes nor no": lambda prefix: s3_page(prefix, "<IsTruncated/>"),
    "yes and no": lambda prefix: s3_page(prefix, "<IsTruncated>true</IsTruncated><IsTruncated>false</IsTruncated>"),
    "more, but not where": lambda prefix: s3_page(prefix, "<IsTruncated>true</IsTruncated>"),
    "cut short": lambda prefix: s3_page(prefix, s3_object(prefix + "0"))[:-20],
    "the same place for ever": lambda prefix: s3_page(
        prefix, "<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
    ),
    "objects out of order": lambda prefix: s3_page(
        prefix, "<IsTruncated>false</IsTruncated>" + s3_object(prefix + "9") + s3_object(prefix + "8")
    ),
    "an object without a size": lambda prefix: s3_page(
        prefix, "<IsTruncated>false</IsTruncated>" + s3_object(prefix + "0").replace("<Size>0</Size>", "")
    ),
}
GCS: Answers = {
    "another kind": lambda prefix: b'{"kind": "storage#buckets"}',
    "another listing": lambda prefix: json.dumps(
        {"kind": "storage#objects", "items": [gcs_object("elsewhere/a")]}
    ).encode(),
    "a name that is no text": lambda prefix: json.dumps(
        {"kind": "storage#objects", "items": [gcs_object(prefix) | {"name": 7}]}
    ).encode(),
    "cut short": lambda prefix: b'{"kind": "storage#objects", "items": [',
    "the same place for ever": lambda prefix: b'{"kind": "storage#objects", "nextPageToken": "YWdhaW4="}',
    "objects out of order": lambda prefix: json.dumps(
        {"kind": "storage#objects", "items": [gcs_object(prefix + "9"), gcs_object(prefix + "8")]}
    ).encode(),
    "an object without a size": lambda prefix: json.dumps(
        {"kind": "storage#objects", "items": [gcs_object(prefix + "0") | {"size": None}]}
    ).encode(),
}


def gcs_object(key: str) -> dict[str, str | int | None]:
    return {"name": key, "size": "0", "updated": "2026-01-01T00:00:00Z", "generation": "1"}


def azure_page(prefix: str, inner: str = "<Blobs/><NextMarker/>", root: str = "EnumerationResults") -> bytes:
    return f"<{root}><Prefix>{prefix}</Prefix>{inner}</{root}>".encode()


AZURE: Answers = {
    "another root": lambda prefix: azure_page(prefix, root="Results"),
    "another listing, empty": lambda prefix: azure_page("elsewhere/"),
    "another listing": lambda prefix: azure_page(
        "elsewhere/", "<Blobs><Blob><Name>elsewhere/a</Name></Blob></Blobs><NextMarker/>"
    ),
    "silence about more": lambda prefix: azure_page(prefix, "<Blobs/>"),
    "yes and no": lambda prefix: azure_page(prefix, "<Blobs/><NextMarker/><NextMarker>more</NextMarker>"),
    "no list of blobs": lambda prefix: azure_page(prefix, "<NextMarker/>"),
    "cut short": lambda prefix: azure_page(prefix)[:-20],
    "a blob without a name": lambda prefix: azure_page(prefix, "<Blobs><Blob/></Blobs><NextMarker/>"),
    "the same place for ever": lambda prefix: azure_page(prefix, "<Blobs/><NextMarker>again</NextMarker>"),
    "an object without a size": lambda prefix: azure_page(
        prefix, f"<Blobs><Blob><Name>{prefix}0</Name><Properties/></Blob></Blobs><NextMarker/>"
    ),
}
BY_KIND = {"s3": ANY | S3, "gcs": ANY | GCS, "azure": ANY | AZURE}


def whole(store: ObjectStore) -> list[str]:
    return [key for batch in store.list(FOLDER) for key in batch["key"].to_pylist()]


def between(store: ObjectStore, until: str | None = None, *, only_directly: bool = False) -> list[str]:
    if not isinstance(store, ListsInOrder):
        return whole(store)
    batches = store.list_between(FOLDER, "", until, only_directly=only_directly)
    return [key for batch in batches for key in batch["key"].to_pylist()]


WAYS: dict[str, Callable[[ObjectStore], list[str]]] = {
    "list": whole,
    "list_level": lambda store: [facts.key for facts in store.list_level(FOLDER).objects],
    "list_between": between,
    "list_between, to a key": lambda store: between(store, NAMES[-1]),
    "list_between, only directly": lambda store: between(store, only_directly=True),
}


@dataclass(frozen=True)
class Service:
    """A store with the objects NAMES on two pages."""

    kind: str
    store: ObjectStore
    server: S3Server | GcsServer | AzureServer

    def answering(self, answer: Callable[[str], bytes], later: bool) -> AbstractContextManager[None]:
        """Replaces every page, or every page except the first."""

        def replaced(request: Request) -> bytes | None:
            query = parse_qs(request.query, keep_blank_values=True)
            listed = request.method == "GET" and any(
                name in query for name in ("list-type", "maxResults", "maxresults")
            )
            follows = any(query.get(name, [""])[0] for name in ("continuation-token", "pageToken", "marker"))
            return answer(query.get("prefix", [""])[0]) if listed and (follows or not later) else None

        if isinstance(self.server, S3Server):

            def of_s3(request: Request) -> tuple[str, bytes] | None:
                body = replaced(request)
                return None if body is None else ("200 OK", body)

            return self.server.failing(Faults(answer=of_s3))

        def of_others(request: Request) -> Response | None:
            body = replaced(request)
            return None if body is None else Response(200, {"content-type": "application/xml"}, body)

        return self.server.failing(of_others)


@pytest.fixture
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    kind = request.param
    monkeypatch.setattr(cloud, "ATTEMPTS", 2)
    monkeypatch.setattr(cloud, "RETRY_FOR", timedelta(seconds=0.1))
    monkeypatch.setattr(cloud, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(PAGE))
    monkeypatch.setattr(gcs, "PAGE", PAGE)
    monkeypatch.setattr(azure, "PAGE", PAGE)
    store: ObjectStore = request.getfixturevalue(f"{kind}_store")
    for name in NAMES:
        store.put(name, b"")
    return Service(kind, store, request.getfixturevalue(f"{kind}_server"))


@pytest.mark.parametrize(
    "service", ["s3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in BY_KIND if kind != "s3")], indirect=True
)
def test_only_a_page_may_end_a_listing(service: Service) -> None:
    assert {name: way(service.store) for name, way in WAYS.items()} == dict.fromkeys(WAYS, NAMES)

    for (name, answer), later in product(BY_KIND[service.kind].items(), (False, True)):
        for way in WAYS.values():
            with service.answering(answer, later), pytest.raises(StorageError):
                found = way(service.store)
                pytest.fail(f"{found} is listed after {name}{' on a later page' if later else ''}")
