"""Messages of the S3 gateway: XML, bodies in chunks, lists of keys.

Some clients send bodies in chunks, each with its length and signature ahead (aws-chunked). Lists have the objects of
all branches, each behind its branch's name, in order of key.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lakefs_gc_assets.embedded import branches, objects
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.http import Request, Response
from lakefs_gc_assets.embedded.object_routes import grouped
from lakefs_gc_assets.embedded.objects import Found
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.storage import cloud

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_LINE_ENDS = {"\r": "&#13;"}
"""Readers take a bare carriage return for a line feed."""

Element = tuple[str, "str | int | Iterable[Element]"]
"""A name, and text or further elements."""


def xml_document(name: str, content: Iterable[Element], status: int = 200) -> Response:
    """An answer whose root element has this name."""
    body = "".join(_render(child) for child in content)
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{_NAMESPACE}">{body}</{name}>'
    return Response(status, text.encode("utf-8", "surrogateescape"), "application/xml")


def error_document(status: int, code: str, message: str) -> Response:
    """An error."""
    content = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{content}</Error>'
    return Response(status, text.encode("utf-8", "surrogateescape"), "application/xml")


def _render(element: Element) -> str:
    name, content = element
    if isinstance(content, str | int):
        return f"<{name}>{escape(str(content), _LINE_ENDS)}</{name}>"
    return f"<{name}>{''.join(_render(child) for child in content)}</{name}>"


def parse_xml(body: bytes) -> ElementTree.Element:
    """The root of a request's body, namespaces taken off its names.

    Raises ElementTree.ParseError, also for a document with a DOCTYPE.
    """
    root = cloud.parse_xml(body)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


class BrokenChunks(ValueError):
    """The body ends inside a chunk, or has no length where one must be."""


def content_of(request: Request) -> bytes:
    """The body, taken out of its chunks where it has any. Raises BrokenChunks."""
    if not request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return request.body
    content, position, body = bytearray(), 0, request.body
    while True:
        end = body.find(b"\r\n", position)
        length = body[position:end].partition(b";")[0]
        if end < 0 or not length or length.strip(b"0123456789abcdefABCDEF"):
            raise BrokenChunks("a chunk does not begin with its length")
        size = int(length, 16)
        if size == 0:
            return bytes(content)
        chunk = body[end + 2 : end + 2 + size]
        if len(chunk) < size:
            raise BrokenChunks("the body ends inside a chunk")
        content += chunk
        position = end + 2 + size + 2


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
    content: list[Element] = [
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
    return xml_document("ListBucketResult", content)


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
        for item in objects.scan(core, repository, folder[:-1], path, behind):
            yield replace(item, path=folder + item.path)


def _key(item: Found | str) -> str:
    return item if isinstance(item, str) else item.path


def _quoted(text: str) -> str:
    return quote(text, safe="/", errors="surrogateescape")


def _token(key: str) -> str:
    """Start of the next page: clients do not decode it, and XML could not carry every key as it is."""
    return quote(key, safe="", errors="surrogateescape")


def _from_token(token: str) -> str:
    return unquote(token, errors="surrogateescape")


def _described(key: str, item: Found) -> list[Element]:
    return [
        ("Key", key),
        ("LastModified", iso_time(item.entry.last_modified)),
        ("ETag", f'"{item.entry.etag}"'),
        ("Size", item.entry.size),
        ("StorageClass", "STANDARD"),
    ]


def iso_time(seconds: int) -> str:
    """Seconds since 1970 UTC as S3 writes a time into XML."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
