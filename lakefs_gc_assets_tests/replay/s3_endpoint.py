"""The S3 calls of object stores' clients, path style, on one bucket; any signature is accepted.

It offers ListObjectsV2, GetObject with ranges, HeadObject, PutObject with `If-None-Match: *` or `If-Match`, CopyObject
of a version of an object, DeleteObject and DeleteObjects, as in the S3 API reference. All other calls get 501
NotImplemented.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Protocol
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lakefs_gc_assets_tests.replay.recording import DeleteRefused, Listed, NoSuchKey, PreconditionFailed, RecordedObject

_XML_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, slots=True)
class S3Answer:
    """Status, headers and body; `length` is the size of a body that HEAD leaves out."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None


def _xml(name: str, content: str) -> S3Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{_XML_NAMESPACE}">{content}</{name}>'
    return S3Answer(200, text.encode(), {"Content-Type": "application/xml"})


def _error(status: int, code: str, message: str) -> S3Answer:
    content = f"<Code>{code}</Code><Message>{escape(message)}</Message>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{content}<RequestId>replay</RequestId></Error>'
    return S3Answer(status, text.encode(), {"Content-Type": "application/xml"})


def _tag(name: str, value: object) -> str:
    return f"<{name}>{escape(str(value), {chr(13): '&#13;'})}</{name}>"


class Objects(Protocol):
    """Objects in the bucket, by keys relative to the storage namespace; see `overlay.Overlay`."""

    def head(self, key: str) -> RecordedObject: ...

    def read(self, key: str) -> tuple[RecordedObject, bytes]: ...

    def put(self, key: str, content: bytes, if_absent: bool = False, if_match: str | None = None) -> RecordedObject: ...

    def delete(self, key: str, if_match: str | None = None) -> None: ...

    def page(self, prefix: str, delimiter: str, start: str, limit: int) -> Listed: ...


class S3Endpoint:
    """Answers S3 requests from an `Objects` store.

    Args:
        storage_namespace: `s3://bucket/prefix`; objects are below the prefix.
    """

    def __init__(self, objects: Objects, storage_namespace: str) -> None:
        self._objects = objects
        self._bucket, _, prefix = storage_namespace.removeprefix("s3://").partition("/")
        self._prefix = prefix.rstrip("/") + "/" if prefix else ""

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> S3Answer:
        """Returns the answer to one request; `target` is the raw path and query, header names are lower case."""
        path, _, raw_query = target.partition("?")
        bucket, _, key = unquote(path.removeprefix("/")).partition("/")
        query = dict(parse_qsl(raw_query, keep_blank_values=True))
        if bucket != self._bucket:
            return _error(404, "NoSuchBucket", f"there is only the bucket {self._bucket}")
        try:
            if not key:
                return self._on_bucket(method, query, body)
            if not key.startswith(self._prefix):
                return _error(404 if method in ("GET", "HEAD") else 403, "NoSuchKey", f"nothing outside {self._prefix}")
            return self._on_object(method, key.removeprefix(self._prefix), query, headers, body)
        except NoSuchKey:
            return _error(404, "NoSuchKey", "The specified key does not exist.")
        except PreconditionFailed:
            return _error(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        except DeleteRefused:
            return _error(403, "AccessDenied", "Access Denied")

    def _on_bucket(self, method: str, query: dict[str, str], body: bytes) -> S3Answer:
        if method == "GET" and query.get("list-type") == "2":
            return self._list(query)
        if method == "GET" and "location" in query:
            return _xml("LocationConstraint", "")
        if method == "POST" and "delete" in query:
            return self._delete_many(body)
        if method == "HEAD":
            return S3Answer(200, headers={"x-amz-bucket-region": "us-east-1"})
        return _error(501, "NotImplemented", "not part of this endpoint")

    def _on_object(
        self, method: str, key: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> S3Answer:
        if query.keys() - {"x-id"} or "aws-chunked" in headers.get("content-encoding", ""):
            return _error(501, "NotImplemented", "not part of this endpoint")
        if method == "GET":
            return self._get(key, headers)
        if method == "HEAD":
            facts = self._objects.head(key)
            return S3Answer(200, headers=_facts(facts), length=facts.size)
        if method == "PUT":
            wanted = headers.get("if-match")
            copied = "x-amz-copy-source" in headers
            content = self._source(headers) if copied else body
            facts = self._objects.put(
                key, content, headers.get("if-none-match") == "*", wanted.strip('"') if wanted is not None else None
            )
            if copied:
                reported = f"{_tag('LastModified', _iso(facts.last_modified))}<ETag>&quot;{facts.etag}&quot;</ETag>"
                return _xml("CopyObjectResult", reported)
            return S3Answer(200, headers={"ETag": f'"{facts.etag}"'})
        if method == "DELETE":
            wanted = headers.get("if-match")
            self._objects.delete(key, wanted.strip('"') if wanted is not None else None)
            return S3Answer(204)
        return _error(501, "NotImplemented", "not part of this endpoint")

    def _get(self, key: str, headers: dict[str, str]) -> S3Answer:
        facts, content = self._objects.read(key)
        if "if-match" in headers and headers["if-match"].strip('"') != facts.etag:
            raise PreconditionFailed(key)
        if headers.get("if-none-match", "").strip('"') == facts.etag:
            return S3Answer(304, headers=_facts(facts))
        asked = _RANGE.fullmatch(headers.get("range", ""))
        if asked is None or asked[0] == "bytes=-":
            return S3Answer(200, content, _facts(facts))
        first, last = _bounds(asked[1], asked[2], len(content))
        if first >= len(content) or first > last:
            return _error(416, "InvalidRange", "The requested range is not satisfiable")
        part = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        return S3Answer(206, content[first : last + 1], _facts(facts) | part)

    def _source(self, headers: dict[str, str]) -> bytes:
        """The content to copy. Raises NoSuchKey or PreconditionFailed."""
        bucket, _, key = unquote(headers["x-amz-copy-source"].removeprefix("/")).partition("/")
        if bucket != self._bucket or not key.startswith(self._prefix):
            raise NoSuchKey(key)
        facts, content = self._objects.read(key.removeprefix(self._prefix))
        if headers.get("x-amz-copy-source-if-match", facts.etag).strip('"') != facts.etag:
            raise PreconditionFailed(key)
        return content

    def _list(self, query: dict[str, str]) -> S3Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        limit = min(int(query.get("max-keys", "1000")), 1000)
        token = query.get("continuation-token")
        start = urlsafe_b64decode(token).decode() if token else ""
        if not token and query.get("start-after"):
            start = query["start-after"] + "\0"
        encode = quote if query.get("encoding-type") == "url" else str
        objects, prefixes, next_start = self._page(prefix, delimiter, start, limit)
        content = [
            _tag("Name", self._bucket),
            _tag("Prefix", encode(prefix)),
            _tag("KeyCount", len(objects) + len(prefixes)),
            _tag("MaxKeys", limit),
            _tag("IsTruncated", "true" if next_start is not None else "false"),
        ]
        content += [_tag("Delimiter", encode(delimiter))] if delimiter else []
        content += [_tag("EncodingType", "url")] if encode is quote else []
        content += [_tag("ContinuationToken", token)] if token else []
        if next_start is not None:
            content.append(_tag("NextContinuationToken", urlsafe_b64encode(next_start.encode()).decode()))
        for key, facts in objects:
            content.append(
                f"<Contents>{_tag('Key', encode(key))}{_tag('LastModified', _iso(facts.last_modified))}"
                f"<ETag>&quot;{facts.etag}&quot;</ETag>{_tag('Size', facts.size)}"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        content += [f"<CommonPrefixes>{_tag('Prefix', encode(common))}</CommonPrefixes>" for common in prefixes]
        return _xml("ListBucketResult", "".join(content))

    def _page(
        self, prefix: str, delimiter: str, start: str, limit: int
    ) -> tuple[list[tuple[str, RecordedObject]], list[str], str | None]:
        """One page of the bucket; its keys are the objects' keys after the namespace's prefix."""
        inside = prefix.removeprefix(self._prefix)
        if prefix.startswith(self._prefix):
            first = start.removeprefix(self._prefix) if start.startswith(self._prefix) else ""
            if start > self._prefix and not start.startswith(self._prefix):
                return [], [], None
            page = self._objects.page(inside, delimiter, first, limit)
            objects = [(self._prefix + key, facts) for key, facts in page.objects]
            next_start = None if page.next_start is None else self._prefix + page.next_start
            return objects, [self._prefix + common for common in page.prefixes], next_start
        if not self._prefix.startswith(prefix):
            return [], [], None
        cut = self._prefix.find(delimiter, len(prefix)) if delimiter else -1
        if cut >= 0:
            common = self._prefix[: cut + len(delimiter)]
            return [], [common] if start <= common else [], None
        return self._page(self._prefix, delimiter, start, limit)

    def _delete_many(self, body: bytes) -> S3Answer:
        request = ElementTree.fromstring(body)
        quiet = any(element.tag.endswith("Quiet") and element.text == "true" for element in request)
        outcome: list[str] = []
        for element in request:
            if not element.tag.endswith("Object"):
                continue
            key = next(child.text or "" for child in element if child.tag.endswith("Key"))
            try:
                if not key.startswith(self._prefix):
                    raise DeleteRefused(key)
                self._objects.delete(key.removeprefix(self._prefix))
            except DeleteRefused:
                refused = f"{_tag('Key', key)}<Code>AccessDenied</Code><Message>Access Denied</Message>"
                outcome.append(f"<Error>{refused}</Error>")
            else:
                outcome += [] if quiet else [f"<Deleted>{_tag('Key', key)}</Deleted>"]
        return _xml("DeleteResult", "".join(outcome))


def _facts(facts: RecordedObject) -> dict[str, str]:
    return {
        "ETag": f'"{facts.etag}"',
        "Last-Modified": format_datetime(facts.last_modified.astimezone(UTC), usegmt=True),
        "Content-Type": "binary/octet-stream",
        "Accept-Ranges": "bytes",
    }


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(int(last), size - 1) if last else size - 1
