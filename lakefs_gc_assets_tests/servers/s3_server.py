"""An S3 service over HTTP for tests: moto's server, made atomic like S3, with faults on demand."""

import ssl
import threading
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import boto3
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

from lakefs_gc_assets.settings import StoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
xml.register_namespace("", _NAMESPACE)


@dataclass(frozen=True)
class Request:
    """One request; `path` is not decoded."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Faults:
    """Faults of the service.

    Attributes:
        answer: returns status and body in place of the service, or None.
        undeletable: keys that fail in bulk deletes, with their error codes.
        unmentioned: keys that bulk deletes neither delete nor mention.
    """

    answer: Callable[[Request], tuple[str, bytes] | None] | None = None
    undeletable: dict[str, str] = field(default_factory=dict)
    unmentioned: set[str] = field(default_factory=set)


def listing_names(names: Callable[[Request], str]) -> Faults:
    """A service that lists one-letter names at every request."""

    def answer(request: Request) -> tuple[str, bytes] | None:
        root = request.query.partition("prefix=")[2].partition("%2F")[0]
        return "200 OK", (
            "<ListBucketResult><IsTruncated>false</IsTruncated>"
            + "".join(
                f"<Contents><Key>{root}/{name}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                "<Size>0</Size></Contents>"
                for name in names(request)
            )
            + "</ListBucketResult>"
        ).encode()

    return Faults(answer=answer)


def upload_in_parts(client: "S3Client", bucket: str, key: str, parts: Sequence[bytes], **encryption: Any) -> None:
    """Uploads an object in these parts."""
    upload = client.create_multipart_upload(Bucket=bucket, Key=key, **encryption)["UploadId"]
    made: list[Any] = []
    for number, part in enumerate(parts, 1):
        answer = client.upload_part(Bucket=bucket, Key=key, UploadId=upload, PartNumber=number, Body=part)
        made.append({"PartNumber": number, "ETag": answer["ETag"]})
    client.complete_multipart_upload(Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": made})


class S3Server:
    """The service while it runs; every request is kept in `requests`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.faults = Faults()
        self.requests: list[Request] = []
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Quiet, ssl_context=tls)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def settings(self) -> StoreSettings:
        """Settings of a store that reach this service."""
        return StoreSettings(
            endpoint_url=self.url,
            region="us-east-1",
            path_style=True,
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
        )

    def client(self, verify: str | None = None) -> "S3Client":
        """A plain boto3 client of this service, which trusts a bundle of certificates."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            verify=verify,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def new_bucket(self, verify: str | None = None) -> str:
        """Makes a bucket with a unique name."""
        bucket = f"bucket-{uuid4().hex}"
        self.client(verify).create_bucket(Bucket=bucket)
        return bucket

    def new_versioned_bucket(self) -> str:
        """Makes a bucket with a unique name that keeps versions."""
        bucket = self.new_bucket()
        self.client().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        return bucket

    def fill(self, bucket: str, keys: Iterable[str]) -> None:
        """Puts empty objects without HTTP, for speed."""
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        for key in keys:
            backend.put_object(bucket, key, b"")

    @contextmanager
    def failing(self, faults: Faults) -> Iterator[None]:
        """Makes faults while the context is open."""
        self.faults = faults
        try:
            yield
        finally:
            self.faults = Faults()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        request = Request(
            environ["REQUEST_METHOD"],
            environ["RAW_URI"].partition("?")[0],
            environ["QUERY_STRING"],
            {name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name.startswith("HTTP_")},
            environ["wsgi.input"].read(length),
        )
        environ["wsgi.input"] = BytesIO(request.body)
        self.requests.append(request)
        faults = self.faults
        if faults.answer is not None and (answer := faults.answer(request)) is not None:
            status, body = answer
            start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body]
        if request.method == "POST" and "delete" in request.query and (faults.undeletable or faults.unmentioned):
            return self._delete_some(environ, start_response, request, faults)
        # moto checks before it writes, without a lock: conditional puts would not be atomic.
        with self._one_at_a_time:
            return list(self._moto(environ, start_response))

    def _delete_some(
        self, environ: dict[str, Any], start_response: Any, request: Request, faults: Faults
    ) -> Iterable[bytes]:
        """Passes a bulk delete on without the failing keys, and adds their errors to the answer."""
        asked = xml.fromstring(request.body)
        refused = []
        for element in list(asked.findall(f"{{{_NAMESPACE}}}Object")):
            key = element.findtext(f"{{{_NAMESPACE}}}Key") or ""
            if key in faults.undeletable or key in faults.unmentioned:
                asked.remove(element)
            if key in faults.undeletable:
                refused.append(key)
        body = xml.tostring(asked)
        environ |= {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        kept: dict[str, Any] = {"status": "200 OK"}
        answer = xml.Element(f"{{{_NAMESPACE}}}DeleteResult")
        if asked.findall(f"{{{_NAMESPACE}}}Object"):
            with self._one_at_a_time:
                answer = xml.fromstring(
                    b"".join(self._moto(environ, lambda status, headers, *_: kept.update(status=status)))
                )
        for key in refused:
            error = xml.SubElement(answer, f"{{{_NAMESPACE}}}Error")
            for name, text in (("Key", key), ("Code", faults.undeletable[key]), ("Message", "not today")):
                xml.SubElement(error, f"{{{_NAMESPACE}}}{name}").text = text
        body = xml.tostring(answer)
        start_response(kept["status"], [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]


class _Quiet(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:
        """Logs nothing."""
