"""A small client of one repository on an embedded server, over one connection."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from lakefs_gc_assets.embedded.server import EmbeddedServer
from lakefs_gc_assets.errors import CollectionError


class UnexpectedAnswer(CollectionError):
    """A call was not answered as expected."""


class Session:
    """Calls about one repository, over one connection."""

    def __init__(self, server: EmbeddedServer, repository: str) -> None:
        self._connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        self._headers = {"Authorization": server.basic_authorization}
        self._repository = repository
        self._base = f"/repositories/{quote(repository)}"
        self.namespace = f"{server.core.blockstore.scheme}{repository}/"

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()

    def call(self, method: str, path: str, body: Any = None, /, **query: str) -> tuple[int, Any]:
        """Status and answer of a call; `path` below the repository."""
        return self._send(method, self._base + quote(path), body, query)

    def expect(self, status: int, method: str, path: str, body: Any = None, /, **query: str) -> Any:
        """The answer of a call. Raises UnexpectedAnswer for another status."""
        found, answer = self.call(method, path, body, **query)
        if found != status:
            raise UnexpectedAnswer(f"{method} {path} {query}: {found} instead of {status}: {answer!r}")
        return answer

    def _send(self, method: str, target: str, body: Any, query: Mapping[str, str]) -> tuple[int, Any]:
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        encoded = f"?{urlencode(query)}" if query else ""
        self._connection.request(method, f"/api/v1{target}{encoded}", content, self._headers)
        response = self._connection.getresponse()
        received = response.read()
        is_json = response.getheader("Content-Type") == "application/json"
        return response.status, json.loads(received) if is_json else received

    def create(self) -> None:
        """Makes the repository, in a storage namespace of its name."""
        body = {"name": self._repository, "storage_namespace": self.namespace.rstrip("/")}
        status, answer = self._send("POST", "/repositories", body, {})
        if status != 201:
            raise UnexpectedAnswer(
                f"repository {self._repository} was not made in {self.namespace}: {status}: {answer!r}"
            )

    def relative(self, physical_address: str) -> str:
        """An address without the storage namespace."""
        return physical_address.removeprefix(self.namespace)

    def branch(self, name: str, source: str) -> None:
        """Makes a branch."""
        self.expect(201, "POST", "/branches", {"name": name, "source": source})

    def upload(self, branch: str, path: str, content: bytes) -> str:
        """Uploads an object; returns its address."""
        answer = self.expect(201, "POST", f"/branches/{branch}/objects", content, path=path)
        return self.relative(answer["physical_address"])

    def commit(self, branch: str, message: str) -> str:
        """Commits; returns the commit's id."""
        return str(self.expect(201, "POST", f"/branches/{branch}/commits", {"message": message})["id"])

    def delete(self, branch: str, path: str) -> None:
        """Removes a path."""
        self.expect(204, "DELETE", f"/branches/{branch}/objects", path=path)

    def address(self, reference: str, path: str) -> str:
        """Address of the object at a path."""
        return self.relative(self.expect(200, "GET", f"/refs/{reference}/objects/stat", path=path)["physical_address"])

    def upload_to_issued_address(self, branch: str, path: str, content: bytes) -> str:
        """Asks for an address and uploads to it; returns the physical address."""
        issued = self.expect(200, "GET", f"/branches/{branch}/staging/backing", path=path, presign="true")
        link = urlsplit(issued["presigned_url"])
        self._connection.request("PUT", f"{link.path}?{link.query}", content)
        response = self._connection.getresponse()
        response.read()
        if response.status != 200:
            raise UnexpectedAnswer(f"upload to a presigned link: {response.status}")
        return str(issued["physical_address"])

    def link(self, branch: str, path: str, physical_address: str, size: int) -> None:
        """Links an issued address."""
        body = {"staging": {"physical_address": physical_address}, "checksum": f"linked-{path}", "size_bytes": size}
        self.expect(200, "PUT", f"/branches/{branch}/staging/backing", body, path=path)


@contextmanager
def session(server: EmbeddedServer, repository: str) -> Iterator[Session]:
    """A session, closed afterwards."""
    opened = Session(server, repository)
    try:
        yield opened
    finally:
        opened.close()
