"""Routes of whole repositories, of what the server says of itself, and of what garbage collection asks for.

Below `/_embedded` is what no lakeFS has: the clock, and presigned objects.
"""

import re
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from lakefs_gc_assets.embedded import branches, collection, commits, objects, repositories
from lakefs_gc_assets.embedded.core import ApiFailure, Core, TaskState, bad_request, not_found, timestamp
from lakefs_gc_assets.embedded.http import NO_CONTENT, Request, Response, Route, json_response, page
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.errors import ObjectNotFound, StorageError


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
    repository = create_repository(
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


_MARKER = "_lakefs/dummy"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")


def create_repository(
    core: Core, name: str, storage_namespace: str, default_branch: str, *, read_only: bool, bare: bool
) -> Repository:
    """Makes a repository and proves that its storage namespace can be written; a bare one has no commit.

    Raises ApiFailure 409 where the name is taken, 400 where the namespace is in use or the name is none.
    """
    if not _NAME.fullmatch(name) or not storage_namespace:
        raise bad_request("error creating repository: invalid name or no storage_namespace")
    branches.check_name(default_branch)
    now = core.clock.seconds()
    repository = Repository(name, storage_namespace, default_branch, now, read_only, {})
    with core.database.transaction() as database:
        if database.execute("SELECT 1 FROM repositories WHERE id = ?", (name,)).fetchone():
            raise ApiFailure(409, "error creating repository: not unique")
        _claim(core, repository, check_unused=not bare)
        if not bare:
            # Of a repository that was here before nothing is left: its files must be written again.
            database.execute("DELETE FROM files WHERE storage_namespace = ?", (storage_namespace,))
        database.execute(
            "INSERT INTO repositories VALUES (?, ?, ?, ?, ?, '{}')",
            (name, storage_namespace, default_branch, now, int(read_only)),
        )
        if not bare:
            first = commits.add(
                core,
                repository,
                commits.Draft(committer="", message="Repository created", metarange_id="", parents=(), generation=1),
            )
            branches.insert(database, repository, default_branch, first.id, hidden=False)
    return repository


def _claim(core: Core, repository: Repository, *, check_unused: bool) -> None:
    try:
        store = core.blockstore.create(repository.storage_namespace)
        if check_unused:
            try:
                store.head(_MARKER)
            except ObjectNotFound:
                pass
            else:
                raise bad_request("error creating repository: found lakeFS objects in the storage namespace")
        store.put(_MARKER, b"written by the embedded lakeFS to see that it can write here\n")
    except StorageError as error:
        raise bad_request(f"error creating repository: failed to access storage: {error}") from None


_VERSION = {"version": "1.84.0", "version_context": "lakeFS"}
"""The release whose answers this server gives."""


def _storage_config(core: Core) -> dict[str, Any]:
    scheme = core.blockstore.scheme
    return {
        "blockstore_description": "",
        "blockstore_id": "",
        "blockstore_namespace_ValidityRegex": f"^{scheme}",
        "blockstore_namespace_example": f"{scheme}example-bucket/",
        "blockstore_type": core.blockstore.type,
        "default_namespace_prefix": "",
        "import_support": True,
        "import_validity_regex": f"^{scheme}",
        "pre_sign_multipart_upload": True,
        "pre_sign_support": True,
        "pre_sign_support_ui": False,
    }


def _everything(core: Core, request: Request) -> Response:
    return json_response(
        200,
        {
            "capabilities_config": {},
            "storage_config": _storage_config(core),
            "storage_config_list": [],
            "ui_config": {},
            "version_config": _VERSION,
        },
    )


def _storage(core: Core, request: Request) -> Response:
    return json_response(200, _storage_config(core))


def _version(core: Core, request: Request) -> Response:
    return json_response(200, _VERSION)


def _garbage_collection(core: Core, request: Request) -> Response:
    return json_response(200, {"grace_period": core.settings.link_seconds})


_PREPARE_PREFIX, _DUMP_PREFIX = "GCPC", "DR"


def _get_rules(core: Core, request: Request, repository: str) -> Response:
    return json_response(200, collection.get_rules(core, repositories.get(core, repository)).as_json())


def _put_rules(core: Core, request: Request, repository: str) -> Response:
    collection.put_rules(core, repositories.get_writable(core, repository), request.json())
    return NO_CONTENT


def _get_protection(core: Core, request: Request, repository: str) -> Response:
    patterns = repositories.protection_patterns(core, repositories.get(core, repository))
    return json_response(200, [{"pattern": pattern} for pattern in patterns])


def _prepare_uncommitted(core: Core, request: Request, repository: str) -> Response:
    repo = repositories.get_writable(core, repository)
    token = request.json_object().get("continuation_token") or None
    return json_response(201, collection.prepare_uncommitted(core, repo, token))


def _prepare_commits(core: Core, request: Request, repository: str) -> Response:
    return json_response(201, collection.prepare_commits(core, repositories.get_writable(core, repository)))


def _start_prepare_commits(core: Core, request: Request, repository: str) -> Response:
    repo = repositories.get_writable(core, repository)
    return json_response(202, {"id": core.tasks.start(_PREPARE_PREFIX, lambda: collection.prepare_commits(core, repo))})


def _find_task(core: Core, repository: str, task_id: str) -> TaskState:
    """The state of a task. Raises the answer 404 where there is no such repository or task."""
    repositories.get(core, repository)
    state = core.tasks.state(task_id)
    if state is None:
        raise not_found()
    return state


def _prepare_commits_status(core: Core, request: Request, repository: str) -> Response:
    task_id = request.required("id")
    state = _find_task(core, repository, task_id)
    answer = {"task_id": task_id, "completed": state.done.is_set(), "update_time": timestamp(state.updated_at)}
    if state.done.is_set() and state.error is not None:
        answer["error"] = {"message": state.error}
    elif state.done.is_set():
        answer["result"] = state.result
    return json_response(200, answer)


def _start_dump(core: Core, request: Request, repository: str) -> Response:
    repo = repositories.get(core, repository)
    return json_response(202, {"id": core.tasks.start(_DUMP_PREFIX, lambda: collection.dump_refs(core, repo))})


def _dump_status(core: Core, request: Request, repository: str) -> Response:
    task_id = request.required("task_id")
    state = _find_task(core, repository, task_id)
    answer = {"id": task_id, "done": state.done.is_set(), "update_time": timestamp(state.updated_at)}
    if state.done.is_set() and state.error is not None:
        answer["error"] = state.error
    elif state.done.is_set():
        answer["refs"] = state.result
    return json_response(200, answer)


ADMINISTRATION_PREFIX = "/_embedded"


def _advance_clock(core: Core, request: Request) -> Response:
    seconds = request.json_object("seconds")["seconds"]
    try:
        core.clock.advance(timedelta(seconds=seconds))
    except (OverflowError, ValueError):
        raise bad_request(f"the clock cannot be moved by {seconds} seconds") from None
    return json_response(200, {"now": timestamp(core.clock.now())})


def serve_presigned(core: Core, request: Request) -> Response:
    """Serves a presigned link, as an object store would. Raises ApiFailure 403, 404."""
    repository_id, _, key = request.path.removeprefix(repositories.PRESIGNED_PATH + "/").partition("/")
    repository_id, key = unquote(repository_id), unquote(key)
    repositories.check_link(core, repository_id, key, request.method, dict(request.query))
    repository = repositories.get(core, repository_id)
    if request.method == "GET":
        try:
            content = objects.read_address(core, repository, key)
        except ObjectNotFound:
            raise not_found("object") from None
        return Response(200, content, "application/octet-stream")
    etag = core.blockstore.put(repository.storage_namespace, key, request.body)
    return Response(200, headers={"ETag": f'"{etag}"'})


_REPOSITORY = "/repositories/{repository}"
_PREPARE = "retention:PrepareGarbageCollection"
_DUMP_ACTIONS = "fs:ListTags fs:ListBranches fs:ListCommits"

ROUTES = (
    Route("POST", "/repositories", "fs:CreateRepository", _create),
    Route("GET", "/repositories", "fs:ListRepositories", _list_all),
    Route("GET", _REPOSITORY, "fs:ReadRepository", _get),
    Route("GET", _REPOSITORY + "/settings/gc_rules", "retention:GetGarbageCollectionRules", _get_rules),
    Route("PUT", _REPOSITORY + "/settings/gc_rules", "retention:SetGarbageCollectionRules", _put_rules),
    Route("GET", _REPOSITORY + "/settings/branch_protection", "branches:GetBranchProtectionRules", _get_protection),
    Route("POST", _REPOSITORY + "/gc/prepare_uncommited", _PREPARE + "Uncommitted", _prepare_uncommitted),
    Route("POST", _REPOSITORY + "/gc/prepare_commits", _PREPARE + "Commits", _prepare_commits),
    Route("POST", _REPOSITORY + "/gc/prepare_commits/async", _PREPARE + "Commits", _start_prepare_commits),
    Route("GET", _REPOSITORY + "/gc/prepare_commits/status", _PREPARE + "Commits", _prepare_commits_status),
    Route("POST", _REPOSITORY + "/dump", _DUMP_ACTIONS, _start_dump),
    Route("GET", _REPOSITORY + "/dump", _DUMP_ACTIONS, _dump_status),
    Route("GET", "/config", "", _everything),
    Route("GET", "/config/storage", "", _storage),
    Route("GET", "/config/version", "", _version),
    Route("GET", "/config/garbage-collection", "", _garbage_collection),
)
"""Routes of the API."""

ADMINISTRATION_ROUTES = (Route("POST", ADMINISTRATION_PREFIX + "/clock/advance", "", _advance_clock),)
"""Beside the API, for whoever knows the credentials of any user."""
