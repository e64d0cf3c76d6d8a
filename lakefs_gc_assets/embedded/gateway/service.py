"""The S3 calls: put, get, head, list, copy, delete, multipart uploads.

Every copy is a full copy, but in rule set `seed` within the staging area of one branch. Requests must name a known
access key; their signature is not computed again.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import quote, unquote

from lakefs_gc_assets.embedded import branches, multipart_uploads, objects, repositories
from lakefs_gc_assets.embedded.api.objects import grouped, partial
from lakefs_gc_assets.embedded.core import Core, timestamp
from lakefs_gc_assets.embedded.failures import ApiFailure
from lakefs_gc_assets.embedded.gateway import xml
from lakefs_gc_assets.embedded.http import Request, Response
from lakefs_gc_assets.embedded.objects import Found
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.embedded.users import User

_METADATA_HEADER = "x-amz-meta-"
_STORED_METADATA = "X-Amz-Meta-"
_MAX_KEYS = 1000
"""Keys in a page, and in a bulk delete."""


class _Failure(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class _Key:
    repository: Repository
    reference: str
    path: str


class Gateway:
    """Answers S3 requests, buckets in the path."""

    def __init__(self, core: Core, users: Mapping[str, User]) -> None:
        self._core = core
        self._users = users

    def serve(self, request: Request) -> Response:
        """One request."""
        try:
            self._authenticate(request)
            return self._route(request)
        except _Failure as failure:
            return xml.failure(failure.status, failure.code, failure.message)
        except ApiFailure as failure:
            return xml.failure(failure.status, _CODES.get(failure.status, "InternalError"), failure.message)

    def _authenticate(self, request: Request) -> None:
        credential = re.search(r"Credential=([^/]+)/", request.headers.get("authorization", ""))
        key = credential[1] if credential else request.query.get("X-Amz-Credential", "").partition("/")[0]
        if key not in self._users:
            raise _Failure(403, "InvalidAccessKeyId", "The access key is not known here.")

    def _route(self, request: Request) -> Response:
        bucket, _, rest = request.path.removeprefix("/").partition("/")
        if not bucket:
            return self._list_buckets()
        try:
            repository = repositories.get(self._core, unquote(bucket))
        except ApiFailure:
            raise _Failure(404, "NoSuchBucket", "There is no such repository.") from None
        if not rest:
            return self._bucket(request, repository)
        reference, _, path = unquote(rest, errors="surrogateescape").partition("/")
        key = _Key(repository, reference, path)
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

    def _list_buckets(self) -> Response:
        buckets: list[xml.Element] = [
            ("Bucket", [("Name", repository.id), ("CreationDate", _iso(repository.creation_date))])
            for repository in repositories.every(self._core)
        ]
        return xml.document("ListAllMyBucketsResult", [("Buckets", buckets)])

    def _bucket(self, request: Request, repository: Repository) -> Response:
        if request.method == "HEAD":
            return Response(200)
        if request.method == "POST" and "delete" in request.query:
            return self._delete_several(request, repository)
        if request.method == "GET" and "location" in request.query:
            return xml.document("LocationConstraint", [])
        if request.method == "GET":
            return self._list(request, repository)
        raise _Failure(405, "MethodNotAllowed", f"{request.method} is not served on buckets.")

    def _find(self, key: _Key) -> Found:
        try:
            return objects.find(self._core, key.repository, key.reference, key.path)
        except ApiFailure:
            raise _Failure(404, "NoSuchKey", "The specified key does not exist.") from None

    def _get(self, request: Request, key: _Key) -> Response:
        entry = self._find(key).entry
        headers = {
            "ETag": f'"{entry.etag}"',
            "Last-Modified": formatdate(entry.last_modified, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        for name, value in entry.metadata.items():
            if name.lower().startswith(_METADATA_HEADER):
                headers[name.lower()] = value
        if request.method == "HEAD":
            return Response(200, content_type=entry.content_type, headers=headers | {"Content-Length": str(entry.size)})
        try:
            content = objects.read(self._core, key.repository, entry)
        except ApiFailure:
            raise _Failure(404, "NoSuchVersion", "The object behind this key is gone.") from None
        return partial(request, content, entry.content_type, headers)

    def _put(self, request: Request, key: _Key) -> Response:
        if_absent = request.headers.get("if-none-match") == "*"
        entry = objects.upload(
            self._core,
            key.repository,
            key.reference,
            key.path,
            content_of(request),
            request.headers.get("content-type", ""),
            _metadata(request),
            if_absent=if_absent,
        )
        return Response(200, headers={"ETag": f'"{entry.etag}"'})

    def _copy(self, request: Request, key: _Key) -> Response:
        source = self._source(request)
        replaced = _metadata(request) if request.headers.get("x-amz-metadata-directive") == "REPLACE" else None
        if source.repository == key.repository:
            try:
                entry = objects.copy(
                    self._core,
                    key.repository,
                    key.reference,
                    key.path,
                    source.reference,
                    source.path,
                    metadata=replaced,
                )
            except ApiFailure as failure:
                if failure.status == 410:
                    raise _Failure(404, "NoSuchVersion", "The object behind this key is gone.") from None
                raise
        else:
            found = self._find(source).entry
            entry = objects.upload(
                self._core,
                key.repository,
                key.reference,
                key.path,
                objects.read(self._core, source.repository, found),
                found.content_type,
                found.metadata if replaced is None else replaced,
            )
        return xml.document(
            "CopyObjectResult", [("LastModified", _iso(entry.last_modified)), ("ETag", f'"{entry.etag}"')]
        )

    def _source(self, request: Request) -> _Key:
        bucket, _, rest = unquote(request.headers["x-amz-copy-source"]).removeprefix("/").partition("/")
        reference, _, path = rest.partition("/")
        key = _Key(repositories.get(self._core, bucket), reference, path.partition("?")[0])
        self._find(key)
        return key

    def _delete(self, key: _Key) -> Response:
        objects.delete(self._core, key.repository, key.reference, key.path)
        return Response(204)

    def _delete_several(self, request: Request, repository: Repository) -> Response:
        repositories.get_writable(self._core, repository.id)
        root = xml.parse(content_of(request))
        names = [element.text or "" for element in root.iter("Key")]
        if len(names) > _MAX_KEYS:
            raise _Failure(400, "MalformedXML", f"at most {_MAX_KEYS} keys")
        results: list[xml.Element] = []
        for name in names:
            reference, _, path = name.partition("/")
            try:
                objects.delete(self._core, repository, reference, path)
                results.append(("Deleted", [("Key", name)]))
            except ApiFailure as failure:
                code = _CODES.get(failure.status, "InternalError")
                results.append(("Error", [("Key", name), ("Code", code), ("Message", failure.message)]))
        return xml.document("DeleteResult", results)

    def _list(self, request: Request, repository: Repository) -> Response:
        prefix, delimiter = request.query.get("prefix", ""), request.query.get("delimiter", "")
        second = request.query.get("list-type") == "2"
        after = request.query.get("continuation-token") or request.query.get("start-after" if second else "marker", "")
        limit = min(request.number("max-keys", _MAX_KEYS), _MAX_KEYS)
        with self._core.database.transaction():
            listed = grouped(self._scan(repository, prefix, after), prefix, delimiter)
            behind = (item for item in listed if (item if isinstance(item, str) else item.path) > after)
            items = list(itertools.islice(behind, limit + 1))
        truncated, items = len(items) > limit, items[:limit]
        encoded = (lambda text: quote(text, safe="/")) if request.query.get("encoding-type") == "url" else str
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
            last = items[-1] if isinstance(items[-1], str) else items[-1].path
            content.append(("NextContinuationToken", last) if second else ("NextMarker", encoded(last)))
        for item in items:
            if isinstance(item, str):
                content.append(("CommonPrefixes", [("Prefix", encoded(item))]))
            else:
                content.append(("Contents", _described(encoded(item.path), item)))
        return xml.document("ListBucketResult", content)

    def _scan(self, repository: Repository, prefix: str, after: str) -> Iterator[Found]:
        """Objects of all branches whose keys, branch included, begin with the prefix and lie behind `after`."""
        reference, slash, path = prefix.partition("/")
        if slash:
            names = [reference]
        else:
            branch_names = [branch.id for branch in branches.every(self._core, repository, hidden=False)]
            names = [name for name in branch_names if name.startswith(reference)]
        after_reference, _, after_path = after.partition("/")
        for name in names:
            if name < after_reference:
                continue
            start = after_path if name == after_reference else ""
            for found in objects.scan(self._core, repository, name, path if slash else "", start):
                yield replace(found, path=f"{name}/{found.path}")

    def _multipart(self, request: Request, key: _Key) -> Response:
        upload_id = request.query.get("uploadId", "")
        if request.method == "POST" and "uploads" in request.query:
            return self._begin(request, key)
        try:
            if request.method == "PUT":
                return self._put_part(request, key, upload_id)
            if request.method == "POST":
                return self._complete(request, key, upload_id)
            if request.method == "DELETE":
                multipart_uploads.abort(self._core, key.repository, upload_id)
                return Response(204)
        except ApiFailure as failure:
            raise _Failure(failure.status, failure.message, failure.message) from None
        raise _Failure(405, "MethodNotAllowed", f"{request.method} is not served on uploads.")

    def _begin(self, request: Request, key: _Key) -> Response:
        branches.get(self._core, key.repository, key.reference)
        upload = multipart_uploads.begin(
            self._core,
            key.repository,
            key.reference,
            key.path,
            self._core.writer.new_address(),
            request.headers.get("content-type") or objects.DEFAULT_CONTENT_TYPE,
            _metadata(request),
        )
        name = f"{key.reference}/{key.path}"
        return xml.document(
            "InitiateMultipartUploadResult", [("Bucket", key.repository.id), ("Key", name), ("UploadId", upload.id)]
        )

    def _put_part(self, request: Request, key: _Key, upload_id: str) -> Response:
        number, content = request.number("partNumber", 0), content_of(request)
        if "x-amz-copy-source" not in request.headers:
            etag = multipart_uploads.put_part(self._core, key.repository, upload_id, number, content)
            return Response(200, headers={"ETag": f'"{etag}"'})
        source = self._source(request)
        content = objects.read(self._core, source.repository, self._find(source).entry)
        if wanted := request.headers.get("x-amz-copy-source-range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last) + 1]
        etag = multipart_uploads.put_part(self._core, key.repository, upload_id, number, content)
        now = timestamp(self._core.clock.now())
        return xml.document("CopyPartResult", [("LastModified", now), ("ETag", f'"{etag}"')])

    def _complete(self, request: Request, key: _Key, upload_id: str) -> Response:
        root = xml.parse(content_of(request))
        parts = [
            (int(part.findtext("PartNumber") or 0), (part.findtext("ETag") or "").strip('"'))
            for part in root.iter("Part")
        ]
        entry = multipart_uploads.complete(self._core, key.repository, upload_id, parts)
        # The answer has S3's ETag; the entry keeps it without the number of parts, as on real servers.
        stored = replace(entry, etag=entry.etag.partition("-")[0])
        objects.stage(self._core, key.repository, key.reference, key.path, stored)
        name = f"{key.reference}/{key.path}"
        return xml.document(
            "CompleteMultipartUploadResult",
            [("Bucket", key.repository.id), ("Key", name), ("ETag", f'"{entry.etag}"')],
        )


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


def content_of(request: Request) -> bytes:
    """The body, taken out of the chunks that some clients sign one by one."""
    if not request.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return request.body
    content, position, body = bytearray(), 0, request.body
    while position < len(body):
        end = body.index(b"\r\n", position)
        size = int(body[position:end].partition(b";")[0], 16)
        if size == 0:
            break
        content += body[end + 2 : end + 2 + size]
        position = end + 2 + size + 2
    return bytes(content)


def _described(key: str, found: Found) -> list[xml.Element]:
    return [
        ("Key", key),
        ("LastModified", _iso(found.entry.last_modified)),
        ("ETag", f'"{found.entry.etag}"'),
        ("Size", found.entry.size),
        ("StorageClass", "STANDARD"),
    ]


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
