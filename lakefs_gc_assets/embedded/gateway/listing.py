"""Lists of a repository's keys: objects of all branches, each behind its branch's name, in order of key."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from lakefs_gc_assets.embedded import branches, objects
from lakefs_gc_assets.embedded.api.objects import grouped
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.gateway import xml
from lakefs_gc_assets.embedded.http import Request, Response
from lakefs_gc_assets.embedded.objects import Found
from lakefs_gc_assets.embedded.repositories import Repository

MAX_KEYS = 1000
"""Keys in a page, and in a bulk delete."""


def list_keys(core: Core, request: Request, repository: Repository) -> Response:
    """One page, as version 1 or 2 of S3's call asks. Raises ApiFailure 404 for a prefix below an unknown reference."""
    prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
    second = request.query.get("list-type") == "2"
    after = request.query.get("start-after" if second else "marker", "")
    if second and "continuation-token" in request.query:
        after = _from_token(request.query["continuation-token"])
    limit = min(max(request.number("max-keys", MAX_KEYS), 0), MAX_KEYS)
    with core.database.transaction():
        listed = grouped(_scan(core, repository, prefix, after), prefix, delimiter)
        items = list(itertools.islice((item for item in listed if _key(item) > after), limit + 1))
    truncated, items = len(items) > limit > 0, items[:limit]
    encoded = _quoted if request.query.get("encoding-type") == "url" else str
    content: list[xml.Element] = [
        ("Name", repository.id),
        ("Prefix", encoded(prefix)),
        ("MaxKeys", limit),
        ("IsTruncated", str(truncated).lower()),
    ]
    if delimiter:
        content.append(("Delimiter", encoded(delimiter)))
    if request.query.get("encoding-type") == "url":
        content.append(("EncodingType", "url"))
    if second:
        content.append(("KeyCount", len(items)))
    if truncated:
        last = _key(items[-1])
        content.append(("NextContinuationToken", _token(last)) if second else ("NextMarker", encoded(last)))
    for item in items:
        if isinstance(item, str):
            content.append(("CommonPrefixes", [("Prefix", encoded(item))]))
        else:
            content.append(("Contents", _described(encoded(item.path), item)))
    return xml.document("ListBucketResult", content)


def _scan(core: Core, repository: Repository, prefix: str, after: str) -> Iterator[Found]:
    """Objects whose keys begin with the prefix and lie behind `after`; their paths begin with the branch."""
    reference, slash, path = prefix.partition("/")
    if slash:
        names = [reference]
    else:
        names = [
            branch.id for branch in branches.every(core, repository, hidden=False) if branch.id.startswith(reference)
        ]
    # In order of key, `a-b/…` comes before `a/…`, though the branch `a` comes before `a-b`.
    for folder in sorted(f"{name}/" for name in names):
        if after > folder and not after.startswith(folder):
            continue
        behind = after.removeprefix(folder) if after.startswith(folder) else ""
        for found in objects.scan(core, repository, folder[:-1], path, behind):
            yield replace(found, path=folder + found.path)


def _key(item: Found | str) -> str:
    return item if isinstance(item, str) else item.path


def _quoted(text: str) -> str:
    return quote(text, safe="/", errors="surrogateescape")


def _token(key: str) -> str:
    """Where the next page begins: clients do not decode it, and XML could not carry every key as it is."""
    return quote(key, safe="", errors="surrogateescape")


def _from_token(token: str) -> str:
    return unquote(token, errors="surrogateescape")


def _described(key: str, found: Found) -> list[xml.Element]:
    return [
        ("Key", key),
        ("LastModified", iso_time(found.entry.last_modified)),
        ("ETag", f'"{found.entry.etag}"'),
        ("Size", found.entry.size),
        ("StorageClass", "STANDARD"),
    ]


def iso_time(seconds: int) -> str:
    """Seconds since 1970 UTC as S3 writes a time into XML."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
