"""Azure's own client of a container: how often it asks, what it refuses to read, and how it spells names of blobs."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.core.exceptions import AzureError, DecodeError, HttpResponseError, ServiceResponseError
from azure.core.pipeline.transport import HttpRequest, RequestsTransport
from azure.storage.blob import ContainerClient, ExponentialRetry

from lakefs_gc_assets.storage import http_service, safe_xml
from lakefs_gc_assets.storage.azure.credentials import Authorization
from lakefs_gc_assets.storage.http_service import Answer

if TYPE_CHECKING:
    from azure.core.pipeline import PipelineRequest

VERSION = "2021-12-02"
"""The version of the service's interface. From 2021-02-12 on, listings mark names that XML cannot hold."""
LARGEST_PUT = 5000 * 1024 * 1024
"""Bytes that one request can write, the service's limit: an object is written whole, or not at all."""
_SOURCE = "x-ms-copy-source"


class _Retries(ExponentialRetry):
    """Retries as often, and with the same pauses, as requests to every other cloud."""

    def __init__(self) -> None:
        left = http_service.ATTEMPTS - 1
        super().__init__(retry_total=left, retry_connect=left, retry_read=left, retry_status=left)

    def get_backoff_time(self, settings: dict[str, Any]) -> float:
        """Seconds to wait before the next attempt; `count` is how many have failed."""
        return http_service.pause_after(settings["count"])


class _Transport(RequestsTransport):  # type: ignore[misc]
    """HTTP as the library does it, but 429 is a failure that is retried, and XML with a DOCTYPE is not read."""

    def __init__(self, ca_bundle: str) -> None:
        super().__init__(
            connection_timeout=http_service.CONNECT_TIMEOUT.total_seconds(),
            read_timeout=http_service.READ_TIMEOUT.total_seconds(),
            connection_verify=ca_bundle or True,
        )
        self.last = threading.local()
        """The `response` that came last in a thread; the library's hook loses it where an attempt before it failed."""

    def send(self, request: Any, *, proxies: Any = None, **kwargs: Any) -> Any:
        """See HttpTransport.send. Raises HttpResponseError for 429, ParseError for XML with a DOCTYPE."""
        response = super().send(request, proxies=proxies, **kwargs)
        if response.status_code == 429:
            raise HttpResponseError(response=response)
        if not kwargs.get("stream") and b"<!DOCTYPE" in response.body():
            safe_xml.parse(response.body())
        self.last.response = response
        return response


class Client:
    """The library's client of a container, and the answers as they came. Safe to use from several threads."""

    def __init__(self, endpoint: str, container: str, authorization: Authorization, ca_bundle: str) -> None:
        """Asks nothing. Raises ValueError for tokens without TLS."""
        self._transport = _Transport(ca_bundle)
        self.container = ContainerClient(
            endpoint,
            container,
            credential=authorization.for_library,
            api_version=VERSION,
            retry_policy=_Retries(),
            transport=self._transport,
            max_single_put_size=LARGEST_PUT,
            permit_redirects=False,
            raw_request_hook=_keep_names(f"{urlsplit(endpoint).path.rstrip('/')}/{container}/"),
        )

    def ask(self, call: Callable[[], object]) -> Answer:
        """The answer that a call of the library ended with, also where it is an error.

        Raises AzureError where none came.
        """
        self._transport.last.response = None
        try:
            call()
        except AzureError as error:
            if not isinstance(error, HttpResponseError) or error.response is None:
                raise
            return _answer(error.response)
        if self._transport.last.response is None:
            raise ServiceResponseError("no answer")
        return _answer(self._transport.last.response)


def answer_of(error: AzureError) -> Answer | None:
    """The answer for which the library raised an error; None where there was none, or it did not come whole."""
    if not isinstance(error, HttpResponseError) or isinstance(error, DecodeError) or error.response is None:
        return None
    return _answer(error.response)


def _keep_names(root: str) -> "Callable[[PipelineRequest[HttpRequest]], None]":
    """Changes each request before it is signed, so that the name of a blob is one segment of the path.

    Otherwise HTTP libraries and services take `a/../b` for `b`, which is another blob.
    """

    def keep(request: "PipelineRequest[HttpRequest]") -> None:
        asked = request.http_request
        asked.url = _one_segment(asked.url, root)
        if _SOURCE in asked.headers:
            asked.headers[_SOURCE] = _one_segment(asked.headers[_SOURCE], root)

    return keep


def _one_segment(url: str, root: str) -> str:
    parts = urlsplit(url)
    if not parts.path.startswith(root):
        return url
    return parts._replace(path=root + parts.path.removeprefix(root).replace("/", "%2F")).geturl()


def _answer(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, response.body())
