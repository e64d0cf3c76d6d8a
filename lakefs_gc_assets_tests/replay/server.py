"""A recorded lakeFS and its object store, served over HTTP on the loopback interface."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from lakefs_gc_assets.settings import CollectionSettings, Configuration, LakeFSSettings, StoreSettings
from lakefs_gc_assets_tests.replay.api_answers import ACCESS_KEY_ID, SECRET_ACCESS_KEY, ApiAnswers
from lakefs_gc_assets_tests.replay.recording import Deletes, Overlay, Recording
from lakefs_gc_assets_tests.replay.s3_endpoint import S3Answer, S3Endpoint

Answering = Callable[[str, str, dict[str, str], bytes], S3Answer]


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `path` is unquoted and has no query."""

    method: str
    path: str
    query: str


class LoopbackServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Answering, now: Callable[[], datetime], requests: list[Request]) -> None:
        self.answer = answer
        self.now = now
        self.requests = requests
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores clients that close their connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: LoopbackServer

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path, _, query = self.path.partition("?")
        self.server.requests.append(Request(self.command, unquote(path), query))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            answer = self.server.answer(self.command, self.path, headers, body)
        except Exception as failure:
            answer = S3Answer(500, f"the replay failed: {failure!r}".encode(), {"Content-Type": "text/plain"})
        self.send_response_only(answer.status)
        length = len(answer.body) if answer.length is None else answer.length
        moment = self.server.now().astimezone(UTC)
        bodiless = {} if answer.status in (204, 304) else {"Content-Length": str(length)}
        for name, value in ({"Date": format_datetime(moment, usegmt=True)} | bodiless | answer.headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def handle_expect_100(self) -> bool:
        """Flushes the answer, which is buffered, so that the client sends its body at once."""
        proceed = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: requests are kept in memory instead."""


def loopback_store(url: str) -> StoreSettings:
    """Settings that reach the object store at this address."""
    return StoreSettings(
        endpoint_url=url,
        region="us-east-1",
        path_style=True,
        access_key_id=ACCESS_KEY_ID,
        secret_access_key=SECRET_ACCESS_KEY,
    )


class ReplayServer:
    """Serves one recording while its context is open.

    Args:
        folder: a recording, see `recording`; it is only read.
        now: the clock of API and store: a moment or a function that returns one; None for the machine's clock.
        variant: number of the rule set to replay; None for the repository's last one.
        deletes: refuses deletions or does them in the scratch layer.
        continues: another replay of the same repository, whose writes and deletions this one begins with.

    Attributes:
        url, s3_url: addresses of the API (without its path) and of the object store; set inside the context only.
        requests: every request, in order of arrival.
        recorded_at: time of the last recorded answer.
    """

    access_key_id = ACCESS_KEY_ID
    secret_access_key = SECRET_ACCESS_KEY

    def __init__(
        self,
        folder: Path | Recording,
        *,
        now: datetime | Callable[[], datetime] | None = None,
        variant: int | None = None,
        deletes: Deletes = "refuse",
        continues: "ReplayServer | None" = None,
    ) -> None:
        self._now = _clock(now)
        recording = folder if isinstance(folder, Recording) else Recording(folder, self._now())
        self.repository = recording.repository
        self.storage_namespace = recording.storage_namespace
        self.recorded_at = recording.recorded_at
        self.requests: list[Request] = []
        self._overlay: Overlay = Overlay(recording, self._now, deletes, continues._overlay if continues else None)
        self._api_answers = ApiAnswers(recording, variant)
        self._s3_endpoint = S3Endpoint(self._overlay, self.storage_namespace)
        self._servers: list[LoopbackServer] = []

    @property
    def deleted(self) -> set[str]:
        """Recorded keys, relative to the storage namespace, that were deleted during this replay."""
        return set(self._overlay.deleted)

    @property
    def refused_deletes(self) -> set[str]:
        """Keys, relative to the storage namespace, whose deletion was refused."""
        return set(self._overlay.refused)

    def configuration(self) -> Configuration:
        """Settings that collect the recorded repository here, without waits.

        Commits of a recording were made within minutes and have dates over weeks, some older than their parents'. The
        settings trust these dates, as the recorded server did.
        """
        return Configuration(
            repository=self.repository,
            lakefs=LakeFSSettings(
                endpoint=self.url, access_key_id=self.access_key_id, secret_access_key=self.secret_access_key
            ),
            store=loopback_store(self.s3_url),
            collection=CollectionSettings(
                wait_before_dump_seconds=0, wait_before_recheck_seconds=0, commit_dates="claimed"
            ),
        )

    def __enter__(self) -> Self:
        for answer in (self._api, self._s3_endpoint.answer):
            self._servers.append(LoopbackServer(answer, self._now, self.requests))
        self.url, self.s3_url = (server.url for server in self._servers)
        for server in self._servers:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _api(self, method: str, target: str, headers: dict[str, str], body: bytes) -> S3Answer:
        answer = self._api_answers.answer(method, target, headers, body)
        return S3Answer(answer.status, answer.body, {"Content-Type": answer.content_type})


def _clock(now: datetime | Callable[[], datetime] | None) -> Callable[[], datetime]:
    if now is None:
        return lambda: datetime.now(UTC)
    if isinstance(now, datetime):
        moment = now
        return lambda: moment
    return now
