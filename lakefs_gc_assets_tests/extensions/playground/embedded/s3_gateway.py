"""lakeFS's S3 gateway for an embedded server: put, get, head, list, copy, delete, multipart uploads; their messages.

Only clients in tests speak S3 to the server; the collector and the sample repository use the lakeFS API.

Every copy is a full copy, except in rule set `seed` within the staging area of one branch. Requests must name a known
access key, by signature version 4 or 2, in a header or a link; the signature is not verified.

Some clients send bodies in chunks, each preceded by its length and signature (aws-chunked). Lists have the objects of
all branches, each prefixed with its branch's name, in order of key.
"""

import itertools
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from lakefs_gc_assets.extensions.playground.embedded import branches, objects, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, User, timestamp
from lakefs_gc_assets.extensions.playground.embedded.http import Request, Response, part_of
from lakefs_gc_assets.extensions.playground.embedded.objects import Found, ObjectPlace
from lakefs_gc_assets.extensions.playground.embedded.reads import grouped
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.extensions.playground.embedded.server import Listener
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets_tests.extensions.playground.embedded import headers, uploads
from lakefs_gc_assets_tests.extensions.playground.embedded.faults import FailingServer
from lakefs_gc_assets_tests.extensions.playground.embedded.object_calls import copy_as

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"

_LINE_ENDS = {"\r": "&#13;"}
"""XML parsers turn a bare carriage return into a line feed."""

Element = tuple[str, "str | int | Iterable[Element]"]
"""A name, and text or child elements."""


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
    """The root of a request's body, without namespaces.

    Raises ElementTree.ParseError, also for a document with a DOCTYPE.
    """
    root = cloud.parse_xml(body)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


class BrokenChunks(ValueError):
    """The body ends inside a chunk, or a required length is missing."""


def content_of(request: Request) -> bytes:
    """The body without chunk framing, if it has any. Raises BrokenChunks."""
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


def list_keys(core: Core, request: Request, repository: ServedRepository) -> Response:
    """One page, for version 1 or 2 of S3's call. Raises ApiFailure 404 for a prefix below an unknown reference."""
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


def _scan(core: Core, repository: ServedRepository, prefix: str, after: str) -> Iterator[Found]:
    """Objects whose keys begin with the prefix and follow `after`; their paths begin with the branch."""
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
    """Start of the next page: clients do not decode it, and XML cannot carry every key unescaped."""
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
    """Seconds since 1970 UTC in S3's XML time format."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


_METADATA_HEADER = "x-amz-meta-"
_STORED_METADATA = "X-Amz-Meta-"
_NOT_SERVED = frozenset({"acl", "attributes", "legal-hold", "restore", "retention", "select", "tagging", "torrent"})
"""Query parameters of S3 about parts of an object other than its bytes."""
_NOT_SERVED_ON_BUCKETS = frozenset({"acl", "lifecycle", "policy", "tagging", "uploads", "versions"})


_CREDENTIAL = re.compile(r"Credential=([^/]+)/|^AWS ([^:]+):")
"""The access key in the header Authorization, of signature version 4 or 2."""
_SOURCE_RANGE = re.compile(r"bytes=(\d+)-(\d+)")
_CODES_OF_UPLOADS = frozenset({"NoSuchUpload", "InvalidPart"})


class _Failure(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Gateway:
    """Answers S3 requests, with buckets in the path."""

    def __init__(self, core: Core, users: Mapping[str, User]) -> None:
        self._core = core
        self._users = users

    def serve(self, request: Request) -> Response:
        """Answers one request."""
        try:
            return self._route(request, self._authenticate(request))
        except _Failure as failure:
            return error_document(failure.status, failure.code, failure.message)
        except ApiFailure as failure:
            return error_document(failure.status, _CODES.get(failure.status, "InternalError"), failure.message)
        except ElementTree.ParseError as error:
            return error_document(400, "MalformedXML", f"The body is no XML: {error}")
        except BrokenChunks as error:
            return error_document(400, "IncompleteBody", str(error))
        except UnicodeEncodeError:
            return error_document(400, "InvalidRequest", "The request holds bytes that are no UTF-8.")

    def _authenticate(self, request: Request) -> User:
        header = _CREDENTIAL.search(request.headers.get("authorization", ""))
        in_link = request.query.get("X-Amz-Credential", "").partition("/")[0] or request.query.get("AWSAccessKeyId", "")
        key = header[1] or header[2] if header else in_link
        if key not in self._users:
            raise _Failure(403, "InvalidAccessKeyId", "The access key is not known here.")
        return self._users[key]

    def _route(self, request: Request, user: User) -> Response:
        bucket, _, rest = request.path.removeprefix("/").partition("/")
        if not bucket:
            if request.method != "GET":
                raise _Failure(405, "MethodNotAllowed", f"{request.method} is not served here.")
            user.require("fs:ListRepositories")
            return self._list_buckets()
        repository = self._repository(unquote(bucket))
        if not rest:
            user.require("fs:DeleteObject" if request.method == "POST" else "fs:ListObjects")
            return self._bucket(request, repository)
        user.require(_ACTIONS.get(request.method, ""))
        if "x-amz-copy-source" in request.headers:
            user.require("fs:ReadObject")
        if unserved := _NOT_SERVED & request.query.keys():
            raise _Failure(501, "NotImplemented", f"{min(unserved)} of objects is not served.")
        reference, _, path = unquote(rest, errors="surrogateescape").partition("/")
        key = ObjectPlace(repository, reference, path)
        if request.method in ("PUT", "POST", "DELETE"):
            repositories.get_writable(self._core, repository.id)
        if "uploadId" in request.query or "uploads" in request.query:
            return self._multipart(request, key)
        match request.method:
            case "GET" | "HEAD":
                return self._get(request, key)
            case "PUT" if "x-amz-copy-source" in request.headers:
                return self._copy(request, key)
            case "PUT":
                return self._put(request, key)
            case "DELETE":
                return self._delete(key)
        raise _Failure(405, "MethodNotAllowed", f"{request.method} is not served on objects.")

    def _repository(self, bucket: str) -> ServedRepository:
        try:
            return repositories.get(self._core, bucket)
        except ApiFailure:
            raise _Failure(404, "NoSuchBucket", "There is no such repository.") from None

    def _list_buckets(self) -> Response:
        buckets: list[Element] = [
            ("Bucket", [("Name", repository.id), ("CreationDate", iso_time(repository.creation_date))])
            for repository in repositories.every(self._core)
        ]
        return xml_document("ListAllMyBucketsResult", [("Buckets", buckets)])

    def _bucket(self, request: Request, repository: ServedRepository) -> Response:
        if request.method == "HEAD":
            return Response(200)
        if request.method == "POST" and "delete" in request.query:
            return self._delete_several(request, repository)
        if request.method == "GET" and "location" in request.query:
            return xml_document("LocationConstraint", [])
        if request.method == "GET" and "versioning" in request.query:
            return xml_document("VersioningConfiguration", [])
        if unserved := _NOT_SERVED_ON_BUCKETS & request.query.keys():
            raise _Failure(501, "NotImplemented", f"{min(unserved)} of buckets is not served.")
        if request.method == "GET":
            return list_keys(self._core, request, repository)
        raise _Failure(405, "MethodNotAllowed", f"{request.method} is not served on buckets.")

    def _find(self, key: ObjectPlace) -> Found:
        try:
            return objects.find(self._core, key.repository, key.reference, key.path)
        except ApiFailure:
            raise _Failure(404, "NoSuchKey", "The specified key does not exist.") from None

    def _get(self, request: Request, key: ObjectPlace) -> Response:
        entry = self._find(key).entry
        described = {
            "ETag": f'"{entry.etag}"',
            "Last-Modified": formatdate(entry.last_modified, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        for name, value in entry.metadata.items():
            if name.lower().startswith(_METADATA_HEADER):
                described[name.lower()] = value
        headers.Condition(etags=headers.etags_of(request, "if-match")).check(entry.etag)
        if headers.is_unchanged(request, entry.etag):
            return Response(304, headers=described)
        if request.method == "HEAD":
            described["Content-Length"] = str(entry.size)
            return part_of(request, Response(200, b"", entry.content_type, described))
        try:
            content = objects.read(self._core, key.repository, entry)
        except ApiFailure:
            raise _Failure(404, "NoSuchVersion", "The object behind this key is gone.") from None
        return part_of(request, Response(200, content, entry.content_type, described))

    def _put(self, request: Request, key: ObjectPlace) -> Response:
        content, content_type = content_of(request), request.headers.get("content-type", "")
        with self._core.database.transaction():
            headers.check_write(self._core, request, key)
            entry = objects.upload(self._core, key, content, content_type, _metadata(request))
        return Response(200, headers={"ETag": f'"{entry.etag}"'})

    def _copy(self, request: Request, key: ObjectPlace) -> Response:
        source = self._source(request)
        replaces = request.headers.get("x-amz-metadata-directive") == "REPLACE"
        replaced = _metadata(request) if replaces else None
        content_type = request.headers.get("content-type", "") if replaces else ""
        if source.repository == key.repository:
            try:
                entry = copy_as(self._core, source, key, replaced, content_type)
            except ApiFailure as failure:
                if failure.status == 410:
                    raise _Failure(404, "NoSuchVersion", "The object behind this key is gone.") from None
                raise
        else:
            original = self._find(source).entry
            entry = objects.upload(
                self._core,
                key,
                objects.read(self._core, source.repository, original),
                content_type or original.content_type,
                original.metadata if replaced is None else replaced,
            )
        return xml_document(
            "CopyObjectResult", [("LastModified", iso_time(entry.last_modified)), ("ETag", f'"{entry.etag}"')]
        )

    def _source(self, request: Request) -> ObjectPlace:
        # A question mark of the key itself is percent-encoded.
        address = unquote(request.headers["x-amz-copy-source"].partition("?")[0], errors="surrogateescape")
        bucket, _, rest = address.removeprefix("/").partition("/")
        reference, _, path = rest.partition("/")
        key = ObjectPlace(self._repository(bucket), reference, path)
        self._find(key)
        return key

    def _delete(self, key: ObjectPlace) -> Response:
        objects.delete(self._core, key.repository, key.reference, key.path)
        return Response(204)

    def _delete_several(self, request: Request, repository: ServedRepository) -> Response:
        repositories.get_writable(self._core, repository.id)
        root = parse_xml(content_of(request))
        names = [element.text or "" for element in root.iter("Key")]
        if len(names) > MAX_KEYS:
            raise _Failure(400, "MalformedXML", f"at most {MAX_KEYS} keys")
        results: list[Element] = []
        for name in names:
            reference, _, path = name.partition("/")
            try:
                objects.delete(self._core, repository, reference, path)
                results.append(("Deleted", [("Key", name)]))
            except ApiFailure as failure:
                code = _CODES.get(failure.status, "InternalError")
                results.append(("Error", [("Key", name), ("Code", code), ("Message", failure.message)]))
        return xml_document("DeleteResult", results)

    def _multipart(self, request: Request, key: ObjectPlace) -> Response:
        upload_id = request.query.get("uploadId", "")
        if request.method == "POST" and "uploads" in request.query:
            return self._begin(request, key)
        try:
            upload = uploads.get_upload(self._core, key.repository, upload_id)
            if (upload.branch, upload.path) != (key.reference, key.path):
                raise ApiFailure(404, "NoSuchUpload")
            if request.method == "PUT":
                return self._put_part(request, key, upload_id)
            if request.method == "POST":
                return self._complete(request, key, upload_id)
            if request.method == "DELETE":
                uploads.abort_upload(self._core, key.repository, upload_id)
                return Response(204)
        except ApiFailure as failure:
            if failure.message in _CODES_OF_UPLOADS:
                raise _Failure(failure.status, failure.message, failure.message) from None
            raise
        raise _Failure(405, "MethodNotAllowed", f"{request.method} is not served on uploads.")

    def _begin(self, request: Request, key: ObjectPlace) -> Response:
        branches.get(self._core, key.repository, key.reference)
        upload = uploads.begin_upload(
            self._core,
            key,
            self._core.writer.new_address(),
            request.headers.get("content-type") or objects.DEFAULT_CONTENT_TYPE,
            _metadata(request),
        )
        name = f"{key.reference}/{key.path}"
        return xml_document(
            "InitiateMultipartUploadResult", [("Bucket", key.repository.id), ("Key", name), ("UploadId", upload.id)]
        )

    def _put_part(self, request: Request, key: ObjectPlace, upload_id: str) -> Response:
        number, content = request.number("partNumber", 0), content_of(request)
        if not 1 <= number <= uploads.MOST_PARTS:
            raise _Failure(400, "InvalidArgument", f"Part numbers are from 1 to {uploads.MOST_PARTS:,}.")
        if "x-amz-copy-source" not in request.headers:
            etag = uploads.put_part(self._core, key.repository, upload_id, number, content)
            return Response(200, headers={"ETag": f'"{etag}"'})
        source = self._source(request)
        content = objects.read(self._core, source.repository, self._find(source).entry)
        if wanted := request.headers.get("x-amz-copy-source-range"):
            match = _SOURCE_RANGE.fullmatch(wanted)
            if match is None or not int(match[1]) <= int(match[2]) < len(content):
                raise _Failure(400, "InvalidArgument", f"The source has no {wanted}.")
            content = content[int(match[1]) : int(match[2]) + 1]
        etag = uploads.put_part(self._core, key.repository, upload_id, number, content)
        now = timestamp(self._core.clock.now())
        return xml_document("CopyPartResult", [("LastModified", now), ("ETag", f'"{etag}"')])

    def _complete(self, request: Request, key: ObjectPlace, upload_id: str) -> Response:
        root = parse_xml(content_of(request))
        parts = [
            (_part_number(part.findtext("PartNumber") or ""), (part.findtext("ETag") or "").strip('"'))
            for part in root.iter("Part")
        ]
        if not parts:
            raise _Failure(400, "MalformedXML", "No parts are named.")
        if any(later <= earlier for (earlier, _), (later, _) in pairwise(parts)):
            raise _Failure(400, "InvalidPartOrder", "Parts must be named in ascending order.")
        # In one transaction: if the condition fails, the upload remains.
        with self._core.database.transaction():
            headers.check_write(self._core, request, key)
            entry = uploads.complete_upload(self._core, key.repository, upload_id, parts)
            # The answer has S3's ETag; the entry keeps it without the number of parts, as on real servers.
            stored = replace(entry, etag=entry.etag.partition("-")[0])
            objects.stage(self._core, key.repository, key.reference, key.path, stored)
        name = f"{key.reference}/{key.path}"
        return xml_document(
            "CompleteMultipartUploadResult",
            [("Bucket", key.repository.id), ("Key", name), ("ETag", f'"{entry.etag}"')],
        )


def _part_number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _Failure(400, "MalformedXML", f"{text!r} is no part's number.")
    return int(text)


_ACTIONS = {
    "GET": "fs:ReadObject",
    "HEAD": "fs:ReadObject",
    "PUT": "fs:WriteObject",
    "POST": "fs:WriteObject",
    "DELETE": "fs:DeleteObject",
}
"""Action that a user needs for a call on an object, by method."""

_CODES = {
    400: "InvalidRequest",
    403: "AccessDenied",
    404: "NoSuchKey",
    409: "OperationAborted",
    410: "NoSuchVersion",
    412: "PreconditionFailed",
}


def _metadata(request: Request) -> dict[str, str]:
    return {
        _STORED_METADATA + name[len(_METADATA_HEADER) :]: value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_HEADER)
    }


class GatewayServer(FailingServer):
    """An embedded server that also serves S3, at `s3_url`, with the same credentials, clock and faults.

    It also accepts parts of multipart uploads at their links, and serves parts of objects.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        gateway = Gateway(self.core, self.users)
        self._s3_listener = Listener("127.0.0.1", 0, self.faults.striking(gateway.serve), self.clock)
        self.s3_url = self._s3_listener.url

    def __enter__(self) -> "GatewayServer":
        super().__enter__()
        threading.Thread(target=self._s3_listener.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def _serve(self, request: Request) -> Response:
        if request.path.startswith(uploads.PARTS_PATH):
            return uploads.serve_part(self.core, request)
        return part_of(request, super()._serve(request))

    def stop(self) -> None:
        self._s3_listener.shutdown()
        self._s3_listener.server_close()
        super().stop()
