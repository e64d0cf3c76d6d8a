"""Repositories and what belongs to them as a whole."""

from typing import Any

from lakefs_gc_assets.embedded import repositories, repository_creation
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.http import NO_CONTENT, Request, Response, Route, json_response, page
from lakefs_gc_assets.embedded.repositories import Repository


def _as_json(repository: Repository) -> dict[str, Any]:
    return {
        "id": repository.id,
        "creation_date": repository.creation_date,
        "default_branch": repository.default_branch,
        "storage_id": "",
        "storage_namespace": repository.storage_namespace,
        "read_only": repository.read_only,
    }


def _create(core: Core, request: Request) -> Response:
    body = request.json_object("name", "storage_namespace")
    bare = request.flag("bare")
    repository = repository_creation.create(
        core,
        str(body["name"]),
        str(body["storage_namespace"]),
        str(body.get("default_branch") or "main"),
        read_only=bool(body.get("read_only", False)),
        bare=bare,
    )
    answer = _as_json(repository)
    if bare:
        del answer["read_only"]
    return json_response(201, answer)


def _list_all(core: Core, request: Request) -> Response:
    return json_response(200, page([_as_json(repository) for repository in repositories.every(core)], request, "id"))


def _get(core: Core, request: Request, repository: str) -> Response:
    return json_response(200, _as_json(repositories.get(core, repository)))


def _delete(core: Core, request: Request, repository: str) -> Response:
    if not request.flag("force"):
        repositories.get_writable(core, repository)
    repositories.delete(core, repository)
    return NO_CONTENT


ROUTES = (
    Route("POST", "/repositories", "fs:CreateRepository", _create),
    Route("GET", "/repositories", "fs:ListRepositories", _list_all),
    Route("GET", "/repositories/{repository}", "fs:ReadRepository", _get),
    Route("DELETE", "/repositories/{repository}", "fs:DeleteRepository", _delete),
)
