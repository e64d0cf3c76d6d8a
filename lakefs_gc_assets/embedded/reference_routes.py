"""Routes of branches, tags, commits, logs, merges, reverts, imports; and of differences, page by page.

Differences are grouped by common prefix where a delimiter is given.
"""

import itertools
from collections.abc import Iterable
from typing import Any

from lakefs_gc_assets.embedded import branches, commits, committing, repositories
from lakefs_gc_assets.embedded.committing import Description, Difference, MergeOptions
from lakefs_gc_assets.embedded.core import Core, bad_request, not_found, timestamp
from lakefs_gc_assets.embedded.formats import decode_entry
from lakefs_gc_assets.embedded.http import (
    NO_CONTENT,
    Request,
    Response,
    Route,
    checked_object,
    json_response,
    page,
    text_response,
)


def _create_branch(core: Core, request: Request, repository: str) -> Response:
    body = request.json_object("name", "source")
    commit_id = branches.create(
        core,
        repositories.get_writable(core, repository),
        str(body["name"]),
        str(body["source"]),
        hidden=bool(body.get("hidden", False)),
    )
    return text_response(201, commit_id)


def _list_branches(core: Core, request: Request, repository: str) -> Response:
    all_branches = branches.every(core, repositories.get(core, repository), hidden=request.flag("show_hidden"))
    return json_response(200, page([branch.as_json() for branch in all_branches], request, "id"))


def _get_branch(core: Core, request: Request, repository: str, branch: str) -> Response:
    return json_response(200, branches.get(core, repositories.get(core, repository), branch).as_json())


def _delete_branch(core: Core, request: Request, repository: str, branch: str) -> Response:
    branches.delete(core, repositories.get_writable(core, repository), branch)
    return NO_CONTENT


def _reset_branch(core: Core, request: Request, repository: str, branch: str) -> Response:
    body = request.json_object("type")
    branches.reset(
        core, repositories.get_writable(core, repository), branch, str(body["type"]), str(body.get("path") or "")
    )
    return NO_CONTENT


def _commit(core: Core, request: Request, repository: str, branch: str) -> Response:
    request.refuse("source_metarange")
    body = request.json_object("message")
    commit = committing.commit_staged(
        core,
        repositories.get_writable(core, repository),
        branch,
        Description(request.user, body["message"], body.get("metadata") or {}, body.get("date")),
        allow_empty=bool(body.get("allow_empty", False)),
    )
    return json_response(201, commit.as_json())


def _get_commit(core: Core, request: Request, repository: str, commit: str) -> Response:
    return json_response(200, commits.resolve(core, repositories.get(core, repository), commit).as_json())


def _log(core: Core, request: Request, repository: str, ref: str) -> Response:
    request.refuse("objects", "prefixes", "first_parent", "since", "stop_at")
    repo = repositories.get(core, repository)
    amount = request.amount()
    ancestors = commits.log(core, repo, commits.resolve(core, repo, ref))
    if after := request.query.get("after"):
        ancestors = itertools.islice(itertools.dropwhile(lambda commit: commit.id != after, ancestors), 1, None)
    shown = [commit.as_json() for commit in itertools.islice(ancestors, amount + 1)]
    return json_response(200, page(shown[:amount], request, "id", more=len(shown) > amount))


def _merge(core: Core, request: Request, repository: str, ref: str, branch: str) -> Response:
    body = request.json_object()
    commit = committing.merge(
        core,
        repositories.get_writable(core, repository),
        ref,
        branch,
        Description(request.user, body.get("message") or "", body.get("metadata") or {}),
        MergeOptions(
            body.get("strategy") or "", bool(body.get("squash_merge", False)), bool(body.get("allow_empty", False))
        ),
    )
    return json_response(200, {"reference": commit.id})


def _revert(core: Core, request: Request, repository: str, branch: str) -> Response:
    body = request.json_object("ref", "parent_number")
    committing.revert(
        core,
        repositories.get_writable(core, repository),
        branch,
        str(body["ref"]),
        int(body["parent_number"]),
        request.user,
    )
    return NO_CONTENT


def _create_tag(core: Core, request: Request, repository: str) -> Response:
    body = request.json_object("id", "ref")
    repo = repositories.get_writable(core, repository)
    return json_response(
        201, branches.create_tag(core, repo, str(body["id"]), str(body["ref"]), force=bool(body.get("force", False)))
    )


def _list_tags(core: Core, request: Request, repository: str) -> Response:
    return json_response(200, page(branches.every_tag(core, repositories.get(core, repository)), request, "id"))


def _get_tag(core: Core, request: Request, repository: str, tag: str) -> Response:
    return json_response(200, branches.get_tag(core, repositories.get(core, repository), tag))


def _delete_tag(core: Core, request: Request, repository: str, tag: str) -> Response:
    branches.delete_tag(core, repositories.get_writable(core, repository), tag)
    return NO_CONTENT


def _start_import(core: Core, request: Request, repository: str, branch: str) -> Response:
    body = request.json_object("paths", "commit")
    for source in body["paths"]:
        checked_object(source, "path", "destination", "type")
    repo = repositories.get_writable(core, repository)
    branches.get(core, repo, branch)
    task_id = core.tasks.start("", lambda: committing.run_import(core, repo, branch, request.user, body))
    return json_response(202, {"id": task_id})


def _import_status(core: Core, request: Request, repository: str, branch: str) -> Response:
    repositories.get(core, repository)
    state = core.tasks.state(request.required("id"))
    if state is None:
        raise not_found()
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


_TYPES = ("three_dot", "two_dot")


def _of_branch(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo = repositories.get(core, repository)
    start = max(_bytes(request, "after"), _bytes(request, "prefix"))
    with core.database.transaction():
        return _page_of_differences(request, committing.branch_differences(core, repo, branch, start))


def _of_references(core: Core, request: Request, repository: str, left: str, right: str) -> Response:
    repo = repositories.get(core, repository)
    kind = request.query.get("type") or _TYPES[0]
    if kind not in _TYPES:
        raise bad_request(f"type of a difference is one of {', '.join(_TYPES)}")
    before, after = (commits.resolve(core, repo, name) for name in (left, right))
    return _page_of_differences(
        request, committing.commit_differences(core, repo, before, after, since_base=kind == "three_dot")
    )


def _page_of_differences(request: Request, differences: Iterable[Difference]) -> Response:
    amount, after = request.amount(), _bytes(request, "after")
    prefix, delimiter = _bytes(request, "prefix"), _bytes(request, "delimiter")
    results: list[dict[str, Any]] = []
    last = after
    for difference in differences:
        if not difference.path.startswith(prefix):
            continue
        shown, end = difference.path, difference.path.find(delimiter, len(prefix)) if delimiter else -1
        if end >= 0:
            shown = difference.path[: end + len(delimiter)]
        if shown <= last:
            continue
        last = shown
        results.append(_group(shown) if end >= 0 else _object(difference))
        if len(results) > amount:
            break
    return json_response(200, page(results[:amount], request, "path", more=len(results) > amount))


def _bytes(request: Request, name: str) -> bytes:
    return branches.encode_path(request.query.get(name, ""))


def _group(prefix: bytes) -> dict[str, Any]:
    return {"type": "prefix_changed", "path": branches.decode_path(prefix), "path_type": "common_prefix"}


def _object(difference: Difference) -> dict[str, Any]:
    path, size = branches.decode_path(difference.path), decode_entry(difference.data).size
    return {"type": difference.type, "path": path, "path_type": "object", "size_bytes": size}


_REPOSITORY = "/repositories/{repository}"
_BRANCH = _REPOSITORY + "/branches/{branch}"

ROUTES = (
    Route("POST", _REPOSITORY + "/branches", "fs:CreateBranch", _create_branch),
    Route("GET", _REPOSITORY + "/branches", "fs:ListBranches", _list_branches),
    Route("GET", _BRANCH, "fs:ReadBranch", _get_branch),
    Route("DELETE", _BRANCH, "fs:DeleteBranch", _delete_branch),
    Route("PUT", _BRANCH, "fs:RevertBranch", _reset_branch),
    Route("POST", _BRANCH + "/commits", "fs:CreateCommit", _commit),
    Route("POST", _BRANCH + "/revert", "fs:RevertBranch", _revert),
    Route("POST", _BRANCH + "/import", "fs:ImportFromStorage", _start_import),
    Route("GET", _BRANCH + "/import", "fs:ReadBranch", _import_status),
    Route("GET", _REPOSITORY + "/commits/{commit}", "fs:ReadCommit", _get_commit),
    Route("GET", _REPOSITORY + "/refs/{ref}/commits", "fs:ReadBranch", _log),
    Route("POST", _REPOSITORY + "/refs/{ref}/merge/{branch}", "fs:CreateCommit", _merge),
    Route("POST", _REPOSITORY + "/tags", "fs:CreateTag", _create_tag),
    Route("GET", _REPOSITORY + "/tags", "fs:ListTags", _list_tags),
    Route("GET", _REPOSITORY + "/tags/{tag}", "fs:ReadTag", _get_tag),
    Route("DELETE", _REPOSITORY + "/tags/{tag}", "fs:DeleteTag", _delete_tag),
    Route("GET", _BRANCH + "/diff", "fs:ListObjects", _of_branch),
    Route("GET", _REPOSITORY + "/refs/{left}/diff/{right}", "fs:ListObjects", _of_references),
)
