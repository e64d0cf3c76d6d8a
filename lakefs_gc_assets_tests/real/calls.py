"""The same calls on a real server and on the embedded one, and their answers with ids and times made equal.

    with both() as (real, embedded):
        for server in (real, embedded):
            server.ask("create", "POST", "/repositories", {...})

Every token that a server makes up (commit, metarange, object, task, ETag) becomes its kind and its number in the order
of appearance, so that equal answers compare equal with any tokens. Times of the call become the word `now`.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.extensions.playground.embedded.core import ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.extensions.playground.embedded.stores import StoreClock
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.settings import LakeFSSettings
from lakefs_gc_assets_tests.extensions.playground.embedded.routes import ROUTES
from lakefs_gc_assets_tests.real.server import LAKEFS_KEYS, installation
from lakefs_gc_assets_tests.replay.made_world import BucketFolder

_TOKENS = re.compile(
    "|".join(
        f"(?P<{kind}>{pattern})"
        for kind, pattern in {
            "hash": r"\b[0-9a-f]{64}\b",
            "upload": r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
            "signed": r"\b[0-9a-v]{20},[A-Za-z0-9_-]{43}",
            "xid": r"\b[0-9a-v]{20}\b",
            "task": r"\b(?:GCPC|DR)[A-Za-z0-9_-]{20}",
        }.items()
    )
)
_TIMES = frozenset(
    {"mtime", "creation_date", "closed_date", "update_time", "physical_address_expiry", "presigned_url_expiry"}
)
_TOLERANCE_SECONDS = 60
_LONGEST_SCENE_SECONDS = 3600
"""The collector is told times of all that was made since the scene began."""
_LINKS = frozenset({"presigned_url", "gc_commits_presigned_url"})
_WAIT_SECONDS = 900


@dataclass
class Server:
    """One of the two servers.

    Attributes:
        buckets: folder with the objects by bucket.
        answers: comparable form of answers, by the name of the call.
        enforces_protection: True if a protected branch cannot be written.
        kept: answers, or parts of answers, that lead to files.
        tolerance_seconds: how old a time may be that counts as the present.
    """

    url: str
    keys: tuple[str, str]
    buckets: Path
    enforces_protection: bool
    answers: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    tolerance_seconds: float = _TOLERANCE_SECONDS

    @cached_property
    def collector(self) -> "Server":
        """The same server with names and answers of the collector's calls alone; see `collectors_calls`."""
        return replace(self, answers={}, names={}, kept={}, tolerance_seconds=_LONGEST_SCENE_SECONDS)

    @cached_property
    def api(self) -> LakeFSApi:
        """The collector's client."""
        settings = LakeFSSettings(endpoint=self.url, access_key_id=self.keys[0], secret_access_key=self.keys[1])
        return LakeFSClient(settings, "repo", SystemClock())

    def folder(self) -> Path:
        """The folder with the objects of each bucket, as they are now."""
        return self.buckets

    def send(
        self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None, **headers: str
    ) -> urllib3.BaseHTTPResponse:
        """The answer to a call; `path` is below `/api/v1`, and bytes are sent as an object."""
        target = f"{self.url}/api/v1{quote(path)}" + (f"?{urlencode(query)}" if query else "")
        authorization = urllib3.make_headers(basic_auth=":".join(self.keys))
        kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {**authorization, **({"Content-Type": kind} if content is not None else {}), **headers}
        return urllib3.request(method, target, body=content, headers=sent, retries=False, redirect=False)

    def ask(self, name: str, method: str, path: str, body: Any = None, /, **query: Any) -> Any:
        """Keeps the comparable answer under a name; returns its JSON, or its text."""
        assert name not in self.answers, f"two calls are named {name!r}"
        answer = self.send(method, path, body, query)
        content = self._content(answer)
        self.answers[name] = [
            answer.status,
            answer.headers.get("Content-Type", ""),
            self.comparable(content, call=name),
        ]
        return content

    def wait(self, name: str, path: str, done: str, /, **query: Any) -> Any:
        """Asks until a task is done; keeps the last answer under a name."""
        until = time.monotonic() + _WAIT_SECONDS
        while not (content := self._content(self.send("GET", path, None, query))).get(done):
            assert time.monotonic() < until, f"{path} does not end: {content}"
            time.sleep(0.02)
        self.answers[name] = self.comparable(content, call=name)
        return content

    @staticmethod
    def _content(answer: urllib3.BaseHTTPResponse) -> Any:
        if answer.headers.get("Content-Type", "").startswith("application/json") and answer.data:
            return answer.json()
        return answer.data.decode(errors="replace")

    def comparable(self, value: Any, key: str = "", *, call: str) -> Any:
        """A value without differences between servers. Only the first line of a rejected body's message stays."""
        if isinstance(value, dict):
            return {name: self.comparable(value[name], name, call=call) for name in sorted(value)}
        if isinstance(value, list):
            return [self.comparable(item, key, call=call) for item in value]
        if key in _TIMES and value:
            return f"{type(value).__name__}: now" if self._is_now(value, key) else value
        if isinstance(value, str):
            text = _refusal(value) if key == "message" else value
            return "a link" if key in _LINKS and text.startswith("http") else self._named(text, call)
        return value

    def _is_now(self, value: Any, key: str) -> bool:
        if isinstance(value, str):
            value = datetime.fromisoformat(re.sub(r"(\.\d{6})\d*Z$", r"\1+00:00", value)).timestamp()
        ahead = 900 if key.endswith("_expiry") else 0
        return abs(float(value) - time.time() - ahead) < self.tolerance_seconds

    def _named(self, text: str, call: str) -> str:
        """Tokens are named after the call that showed them first."""
        return _TOKENS.sub(lambda match: self.names.setdefault(match[0], self._new_name(match, call)), text)

    def _new_name(self, match: re.Match[str], call: str) -> str:
        number = sum(name.startswith(f"<{match.lastgroup} of {call}") for name in self.names.values())
        return f"<{match.lastgroup} of {call}{f', {number + 1}' if number else ''}>"

    def files(self, bucket: str) -> dict[str, Path]:
        """The files of a bucket by their keys."""
        folder = self.folder() / bucket
        return {
            path.relative_to(folder).as_posix(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and ".sgwtmp" not in path.parts
        }


@contextmanager
def both(
    environment: Mapping[str, str] | None = None, settings: ServerSettings | None = None
) -> Iterator[tuple[Server, Server]]:
    """A real server and the embedded one, with the bucket `lake`.

    Args:
        environment: further LAKEFS_ variables of the real server.
        settings: settings of the embedded server.
    """
    with installation(environment) as lakefs, TemporaryDirectory() as folder:
        lakefs.start()
        real_buckets = lakefs.folder / "buckets"
        (real_buckets / "lake").mkdir()
        own_buckets = Path(folder, "buckets")

        def open_buckets(clock: StoreClock) -> BucketFolder:
            return BucketFolder(own_buckets, clock)

        with EmbeddedServer(
            Path(folder, "server"), blockstore=open_buckets, settings=settings, routes=ROUTES
        ) as embedded:
            yield (
                Server(lakefs.url, LAKEFS_KEYS, real_buckets, enforces_protection=True),
                Server(
                    embedded.url,
                    (embedded.access_key_id, embedded.secret_access_key),
                    own_buckets,
                    enforces_protection=False,
                ),
            )


_SCHEMA = re.compile(r"(?<=request body has an error: )doesn't match schema #/components/schemas/\w+: ")


def _refusal(message: str) -> str:
    """A message without the text of the violated schema."""
    return _SCHEMA.sub("", message.partition("\nSchema:")[0])
