"""Routes of repositories, objects, branches, tags and commits, and routes for garbage collection.

Read routes are in `reads`. Routes below `/_embedded` do not exist in lakeFS: the clock, and presigned objects.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

from lakefs_gc_assets.errors import ObjectNotFound, StorageError
from lakefs_gc_assets.extensions.playground.embedded import branches, collection, commits, objects, reads, repositories
from lakefs_gc_assets.extensions.playground.embedded.branches import MergeOptions
from lakefs_gc_assets.extensions.playground.embedded.commits import Description
from lakefs_gc_assets.extensions.playground.embedded.core import (
    ApiFailure,
    Core,
    TaskState,
    bad_request,
    not_found,
    timestamp,
)
from lakefs_gc_assets.extensions.playground.embedded.http import (
    NO_CONTENT,
    Request,
    Response,
    Route,
    checked_object,
    json_response,
    page,
    part_of,
)
from lakefs_gc_assets.extensions.playground.embedded.objects import ObjectPlace
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.storage.interface import head_if_there

_REPOSITORY = "/repositories/{repository}"
_BRANCH = _REPOSITORY + "/branches/{branch}"


def _create_repository(core: Core, request: Request) -> Response:
    request.refuse("bare")
    body = request.json_object("name", "storage_namespace")
    default_branch, read_only = str(body.get("default_branch") or "main"), bool(body.get("read_only", False))
    repository = create_repository(core, body["name"], body["storage_namespace"], default_branch, read_only=read_only)
    return json_response(201, repository.as_json())


def _list_repositories(core: Core, request: Request) -> Response:
    return json_response(200, page([repository.as_json() for repository in repositories.every(core)], request, "id"))


def _get_repository(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(200, repository.as_json())


_MARKER = "_lakefs/dummy"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{2,62}")


def create_repository(
    core: Core, name: str, storage_namespace: str, default_branch: str, *, read_only: bool
) -> ServedRepository:
    """Creates a repository with a first commit, after a test write to its storage namespace.

    Raises ApiFailure 409 if the name is taken, 400 if the namespace is in use or the name is invalid.
    """
    if not _NAME.fullmatch(name) or not storage_namespace:
        raise bad_request(
            'request body has an error: Error at "/name": string doesn\'t match the regular expression '
            f'"^{_NAME.pattern}$"'
        )
    branches.check_name(default_branch)
    now = core.clock.seconds()
    repository = ServedRepository(name, storage_namespace, default_branch, now, read_only, {})
    with core.database.transaction() as database:
        if database.execute("SELECT 1 FROM repositories WHERE id = ?", (name,)).fetchone():
            raise ApiFailure(409, "error creating repository: not unique")
        _claim(core, repository)
        # Files of an earlier repository at this namespace are gone: they must be written again.
        database.execute("DELETE FROM files WHERE storage_namespace = ?", (storage_namespace,))
        database.execute(
            "INSERT INTO repositories VALUES (?, ?, ?, ?, ?, '{}')",
            (name, storage_namespace, default_branch, now, int(read_only)),
        )
        first = commits.add(core, repository, Description("", "Repository created"), "", (), 1)
        branches.insert(database, repository, default_branch, first.id, hidden=False)
    return repository


def _claim(core: Core, repository: ServedRepository) -> None:
    try:
        store = core.blockstore.create(repository.storage_namespace)
        if head_if_there(store, _MARKER) is not None:
            raise bad_request(
                f"failed to create repository: found lakeFS objects in the storage (:{repository.storage_namespace}) "
                f"key({_MARKER}): storage namespace already in use"
            )
        if repository.read_only:
            return  # lakeFS writes nothing of its own beside the first commit.
        store.put(_MARKER, b"written by the embedded lakeFS to see that it can write here\n")
    except StorageError as error:
        raise bad_request(f"error creating repository: failed to access storage: {error}") from None


def _garbage_collection(core: Core, request: Request) -> Response:
    return json_response(200, {"grace_period": core.settings.link_seconds})


_PREPARE_PREFIX, _DUMP_PREFIX = "GCPC", "DR"


def _get_rules(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(200, collection.get_rules(core, repository).as_json())


def _put_rules(core: Core, request: Request, repository: ServedRepository) -> Response:
    collection.put_rules(core, repository, request.json())
    return NO_CONTENT


def _get_protection(core: Core, request: Request, repository: ServedRepository) -> Response:
    patterns = repositories.protection_patterns(core, repository)
    return json_response(200, [{"pattern": pattern} for pattern in patterns])


def _prepare_uncommitted(core: Core, request: Request, repository: ServedRepository) -> Response:
    body = request.json_object()
    if body.get("continuation_token", "") is None:
        raise bad_request('request body has an error: Error at "/continuation_token": Value is not nullable')
    token = body.get("continuation_token") or None
    return json_response(201, collection.prepare_uncommitted(core, repository, token))


def _prepare_commits(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(201, collection.prepare_commits(core, repository))


def _start_prepare_commits(core: Core, request: Request, repository: ServedRepository) -> Response:
    task_id = core.tasks.start(_PREPARE_PREFIX, lambda: collection.prepare_commits(core, repository))
    return json_response(202, {"id": task_id})


def _find_task(core: Core, task_id: str) -> TaskState:
    """The state of a task. Raises ApiFailure 404 if there is no such task."""
    state = core.tasks.state(task_id)
    if state is None:
        raise not_found()
    return state


def _prepare_commits_status(core: Core, request: Request, repository: ServedRepository) -> Response:
    task_id = request.required("id")
    state = _find_task(core, task_id)
    answer = {"task_id": task_id, "completed": state.done.is_set(), "update_time": timestamp(state.updated_at)}
    if state.done.is_set() and state.error is not None:
        answer["error"] = {"message": state.error}
    elif state.done.is_set():
        answer["result"] = state.result
    return json_response(200, answer)


def _start_dump(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(202, {"id": core.tasks.start(_DUMP_PREFIX, lambda: collection.dump_refs(core, repository))})


def _dump_status(core: Core, request: Request, repository: ServedRepository) -> Response:
    task_id = request.required("task_id")
    state = _find_task(core, task_id)
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
        return part_of(request, Response(200, content, "application/octet-stream"))
    etag = core.blockstore.put(repository.storage_namespace, key, request.body)
    return Response(200, headers={"ETag": f'"{etag}"'})


_PREPARE = "retention:PrepareGarbageCollection"
_DUMP_ACTIONS = "fs:ListTags fs:ListBranches fs:ListCommits"

_REPOSITORY_ROUTES = (
    Route("POST", "/repositories", "fs:CreateRepository", _create_repository),
    Route("GET", "/repositories", "fs:ListRepositories", _list_repositories),
    Route("GET", _REPOSITORY, "fs:ReadRepository", _get_repository),
    Route("GET", _REPOSITORY + "/settings/gc_rules", "retention:GetGarbageCollectionRules", _get_rules),
    Route("PUT", _REPOSITORY + "/settings/gc_rules", "retention:SetGarbageCollectionRules", _put_rules),
    Route("GET", _REPOSITORY + "/settings/branch_protection", "branches:GetBranchProtectionRules", _get_protection),
    Route("POST", _REPOSITORY + "/gc/prepare_uncommited", _PREPARE + "Uncommitted", _prepare_uncommitted),
    Route("POST", _REPOSITORY + "/gc/prepare_commits", _PREPARE + "Commits", _prepare_commits),
    Route("POST", _REPOSITORY + "/gc/prepare_commits/async", _PREPARE + "Commits", _start_prepare_commits),
    Route("GET", _REPOSITORY + "/gc/prepare_commits/status", _PREPARE + "Commits", _prepare_commits_status),
    Route("POST", _REPOSITORY + "/dump", _DUMP_ACTIONS, _start_dump, changes=False),
    Route("GET", _REPOSITORY + "/dump", _DUMP_ACTIONS, _dump_status),
    Route("GET", "/config/garbage-collection", "", _garbage_collection),
)
ADMINISTRATION_ROUTES = (Route("POST", ADMINISTRATION_PREFIX + "/clock/advance", "", _advance_clock),)
"""Routes beside the API; any user's credentials are accepted."""


_METADATA_HEADER = "x-lakefs-meta-"
CONDITIONS = ("if-match", "if-none-match")
"""Headers of conditional writes, which are refused: ignoring the condition could overwrite data it protects."""


def _upload(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    path = request.required("path")
    metadata = {
        name[len(_METADATA_HEADER) :]: value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_HEADER)
    }
    request.refuse(*CONDITIONS)
    content, content_type = request.body, request.headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        content, content_type = _content(content, content_type)
    entry = objects.upload(core, ObjectPlace(repository, branch, path), content, content_type, metadata)
    return json_response(201, objects.stats(repository, path, entry))


_CONTENT_PART = re.compile(r'content-disposition:.*;\s*name="?content\b', re.IGNORECASE)


def _content(form: bytes, kind: str) -> tuple[bytes, str]:
    """The `content` part of a form, as lakefs-sdk uploads it, and its type. Raises ApiFailure 400."""
    boundary = kind.partition("boundary=")[2].strip('"').encode()
    for part in form.split(b"--" + boundary):
        head, separator, content = part.partition(b"\r\n\r\n")
        lines = head.decode("utf-8", "replace").splitlines()
        if separator and any(_CONTENT_PART.match(line) for line in lines):
            types = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("content-type:")]
            return content.removesuffix(b"\r\n"), types[0] if types else ""
    raise bad_request("missing multipart upload content")


def _delete(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    objects.delete(core, repository, branch, request.required("path"))
    return NO_CONTENT


_MAX_DELETED = 1000


def _delete_several(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    paths = request.json_object("paths")["paths"]
    if not all(isinstance(path, str) for path in paths):
        raise bad_request("request body has an error: paths must be strings")
    if len(paths) > _MAX_DELETED:
        raise ApiFailure(500, f"request size exceeded: {len(paths)} paths, at most {_MAX_DELETED}")
    branches.get(core, repository, branch)
    with core.database.transaction():
        for path in paths:
            objects.delete(core, repository, branch, path)
    return json_response(200, {"errors": []})


def _copy(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    destination = request.required("dest_path")
    body = request.json_object("src_path")
    if body.get("shallow") or body.get("user_metadata") is not None:
        raise ApiFailure(501, "the embedded server copies objects as they are: neither `shallow` nor `user_metadata`")
    source = ObjectPlace(repository, body.get("src_ref") or branch, body["src_path"])
    entry = objects.copy(core, source, ObjectPlace(repository, branch, destination))
    return json_response(201, objects.stats(repository, destination, entry))


def _set_metadata(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    body = request.json_object("set")
    metadata = {str(key): str(value) for key, value in body["set"].items()}
    objects.set_metadata(core, repository, branch, request.required("path"), metadata)
    return NO_CONTENT


def _get_address(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    path = request.required("path")
    branches.get(core, repository, branch)
    address = repositories.issue_address(core, repository, branch, path)
    answer: dict[str, Any] = {"physical_address": repository.namespace + address, "presigned_url": None}
    if request.flag("presign"):
        answer["presigned_url"] = repositories.presigned_url(core, repository, address, "PUT")
        answer["presigned_url_expiry"] = repositories.link_expiry(core)
    return json_response(200, answer)


def _link_address(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    path = request.required("path")
    body = request.json_object("staging", "checksum", "size_bytes")
    request.refuse(*CONDITIONS)
    entry = objects.link(core, repository, branch, path, body)
    return json_response(200, objects.stats(repository, path, entry))


_OBJECT_ROUTES = (
    Route("POST", _BRANCH + "/objects", "fs:WriteObject", _upload),
    Route("DELETE", _BRANCH + "/objects", "fs:DeleteObject", _delete),
    Route("POST", _BRANCH + "/objects/delete", "fs:DeleteObject", _delete_several),
    Route("POST", _BRANCH + "/objects/copy", "fs:WriteObject fs:ReadObject", _copy),
    Route("PUT", _BRANCH + "/objects/stat/user_metadata", "fs:WriteObject", _set_metadata),
    Route("GET", _BRANCH + "/staging/backing", "fs:WriteObject", _get_address, changes=True),
    Route("PUT", _BRANCH + "/staging/backing", "fs:WriteObject", _link_address),
)


def _create_branch(core: Core, request: Request, repository: ServedRepository) -> Response:
    body = request.json_object("name", "source")
    commit_id = branches.create(core, repository, body["name"], body["source"], hidden=bool(body.get("hidden")))
    return Response(201, commit_id.encode(), "text/plain; charset=utf-8")


def _list_branches(core: Core, request: Request, repository: ServedRepository) -> Response:
    all_branches = branches.every(core, repository, hidden=request.flag("show_hidden"))
    return json_response(200, page([branch.as_json() for branch in all_branches], request, "id"))


def _get_branch(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    branches.check_name(branch)
    return json_response(200, branches.get(core, repository, branch).as_json())


def _delete_branch(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    branches.delete(core, repository, branch)
    return NO_CONTENT


def _reset_branch(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    body = request.json_object("type")
    branches.reset(core, repository, branch, body["type"], body.get("path") or "")
    return NO_CONTENT


def _commit(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    request.refuse("source_metarange")
    body = request.json_object("message")
    described = Description(request.user, body["message"], body.get("metadata") or {}, body.get("date"))
    commit = branches.commit_staged(core, repository, branch, described, allow_empty=bool(body.get("allow_empty")))
    return json_response(201, commit.as_json())


def _get_commit(core: Core, request: Request, repository: ServedRepository, commit: str) -> Response:
    return json_response(200, commits.resolve(core, repository, commit, "commit").as_json())


def _merge(core: Core, request: Request, repository: ServedRepository, ref: str, branch: str) -> Response:
    body = request.json_object()
    described = Description(request.user, body.get("message") or "", body.get("metadata") or {})
    options = MergeOptions(body.get("strategy") or "", bool(body.get("squash_merge")), bool(body.get("allow_empty")))
    try:
        return json_response(200, {"reference": branches.merge(core, repository, ref, branch, described, options).id})
    except ApiFailure as failure:
        if failure.status != 409:
            raise
        # lakeFS answers a conflict with the body of a merge, without a message.
        return json_response(409, {"reference": ""})


def _merge_base(core: Core, request: Request, repository: ServedRepository, ref: str, branch: str) -> Response:
    destination = commits.resolve(core, repository, branch, f"get commit by ref {branch}:")
    source = commits.resolve(core, repository, ref, f"get commit by branch {ref}:")
    base = commits.merge_base(core, repository, source, destination)
    return json_response(
        200,
        {
            "base_commit_id": base.id if base else "",
            # lakeFS confuses these two.
            "destination_commit_id": source.id,
            "source_commit_id": destination.id,
        },
    )


def _revert(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    body = request.json_object("ref", "parent_number")
    branches.revert(core, repository, branch, body["ref"], body["parent_number"], request.user)
    return NO_CONTENT


def _cherry_pick(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    """Repeats the changes of one commit, in a new commit on the branch."""
    body, doing = request.json_object("ref"), "update branch"
    with core.database.transaction():
        moved = branches.get(core, repository, branch)
        head = commits.get(core, repository, moved.commit_id)
        picked = commits.resolve(core, repository, body["ref"], f"get commit from ref {body['ref']}:")
        number = body.get("parent_number")
        if len(picked.parents) > 1 and not number:
            raise bad_request("must specify 1-based parent number for cherry-picking merge commit")
        branches.require_clean(core, repository, moved)
        base = branches.parent_of(core, repository, picked, number or 1).metarange_id
        metarange_id = branches.combine(core, repository, (base, picked.metarange_id), head.metarange_id, "", doing)
        origin = {"cherry-pick-origin": picked.id, "cherry-pick-committer": picked.committer}
        described = commits.Description(request.user, picked.message, {**picked.metadata, **origin})
        made = branches.add_to(core, repository, moved, head, described, metarange_id)
    return json_response(201, made.as_json())


def _create_tag(core: Core, request: Request, repository: ServedRepository) -> Response:
    body = request.json_object("id", "ref")
    return json_response(201, branches.create_tag(core, repository, body["id"], body["ref"]))


def _list_tags(core: Core, request: Request, repository: ServedRepository) -> Response:
    return json_response(200, page(branches.every_tag(core, repository), request, "id"))


def _delete_tag(core: Core, request: Request, repository: ServedRepository, tag: str) -> Response:
    branches.delete_tag(core, repository, tag)
    return NO_CONTENT


def _require_foreign_sources(namespace: str, sources: Iterable[Mapping[str, str]]) -> None:
    """Raises ApiFailure 400 for a source in the repository's own namespace, or around it, as lakeFS does."""
    for source in sources:
        path = source["path"]
        if path.startswith(namespace):
            raise bad_request(
                f"import path ({path}) in repository namespace ({namespace}) is prohibited: invalid import source"
            )
        if source["type"] == "common_prefix" and namespace.startswith(path):
            raise bad_request(f"prefix ({path}) contains repository namespace: ({namespace}), invalid import source")


def _start_import(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    body = request.json_object("paths", "commit")
    for source in body["paths"]:
        checked_object(source, "path", "destination", "type")
    branches.get(core, repository, branch)
    _require_foreign_sources(repository.storage_namespace, body["paths"])
    task_id = core.tasks.start("", lambda: branches.run_import(core, repository, branch, request.user, body))
    return json_response(202, {"id": task_id})


def _import_status(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    state = _find_task(core, request.required("id"))
    answer: dict[str, Any] = {
        "completed": state.done.is_set() and state.error is None,
        "update_time": timestamp(state.updated_at),
        "ingested_objects": 0,
    }
    if state.error is not None:
        answer["error"] = {"message": state.error}
    elif state.done.is_set():
        answer |= state.result or {}
    return json_response(200, answer)


_REFERENCE_ROUTES = (
    Route("POST", _REPOSITORY + "/branches", "fs:CreateBranch", _create_branch),
    Route("GET", _REPOSITORY + "/branches", "fs:ListBranches", _list_branches),
    Route("GET", _BRANCH, "fs:ReadBranch", _get_branch),
    Route("DELETE", _BRANCH, "fs:DeleteBranch", _delete_branch),
    Route("PUT", _BRANCH, "fs:RevertBranch", _reset_branch),
    Route("POST", _BRANCH + "/commits", "fs:CreateCommit", _commit),
    Route("POST", _BRANCH + "/revert", "fs:RevertBranch", _revert),
    Route("POST", _BRANCH + "/cherry-pick", "fs:CreateCommit", _cherry_pick),
    Route("POST", _BRANCH + "/import", "fs:ImportFromStorage", _start_import),
    Route("GET", _BRANCH + "/import", "fs:ReadBranch", _import_status),
    Route("GET", _REPOSITORY + "/commits/{commit}", "fs:ReadCommit", _get_commit),
    Route("POST", _REPOSITORY + "/refs/{ref}/merge/{branch}", "fs:CreateCommit", _merge),
    Route("GET", _REPOSITORY + "/refs/{ref}/merge/{branch}", "fs:ListCommits", _merge_base),
    Route("POST", _REPOSITORY + "/tags", "fs:CreateTag", _create_tag),
    Route("GET", _REPOSITORY + "/tags", "fs:ListTags", _list_tags),
    Route("DELETE", _REPOSITORY + "/tags/{tag}", "fs:DeleteTag", _delete_tag),
)

ROUTES = (*_REPOSITORY_ROUTES, *_REFERENCE_ROUTES, *_OBJECT_ROUTES, *reads.ROUTES)
"""Routes of the API."""
