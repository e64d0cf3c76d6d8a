"""Clients of an embedded server: lakefs-sdk, unchanged, and a bare HTTP call."""

import json
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import lakefs_sdk
from lakefs_sdk.client import LakeFSClient

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer

models: Any = lakefs_sdk
"""Model classes of lakefs-sdk; the package has no usable types for them."""


def sdk(server: EmbeddedServer) -> Any:
    client: Any = LakeFSClient
    return client(
        models.Configuration(
            host=f"{server.url}/api/v1", username=server.access_key_id, password=server.secret_access_key
        )
    )


def call(
    server: EmbeddedServer,
    method: str,
    path: str,
    body: Any = None,
    /,
    *,
    authorization: str | None = None,
    **query: str,
) -> tuple[int, Any]:
    """Status and decoded answer of one call; `path` below `/api/v1` unless it begins with `/_`."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=900)
    target = quote(path if path.startswith("/_") else f"/api/v1{path}")
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(
        method,
        f"{target}?{urlencode(query, errors='surrogateescape')}" if query else target,
        content,
        {"Authorization": authorization or server.basic_authorization},
    )
    response = connection.getresponse()
    received = response.read()
    connection.close()
    is_json = response.getheader("Content-Type") == "application/json"
    return response.status, json.loads(received) if is_json and received else received


def repository(server: EmbeddedServer, name: str = "repo") -> str:
    """Makes a repository; returns its name."""
    namespace = f"{server.core.blockstore.scheme}{name}"
    status, answer = call(server, "POST", "/repositories", {"name": name, "storage_namespace": namespace})
    assert status == 201, answer
    return name


def upload(server: EmbeddedServer, path: str, content: bytes, *, branch: str = "main", name: str = "repo") -> str:
    """Uploads an object; returns its address relative to the storage namespace."""
    status, answer = call(server, "POST", f"/repositories/{name}/branches/{branch}/objects", content, path=path)
    assert status == 201, answer
    return str(answer["physical_address"].partition(f"{name}/")[2])


def commit(server: EmbeddedServer, message: str, *, branch: str = "main", name: str = "repo") -> dict[str, Any]:
    status, answer = call(server, "POST", f"/repositories/{name}/branches/{branch}/commits", {"message": message})
    assert status == 201, answer
    return dict(answer)
