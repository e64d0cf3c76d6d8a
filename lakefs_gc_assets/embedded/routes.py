"""Routes of objects, branches, tags, commits and differences.

Objects: upload, read, describe, list, copy, delete, stage; issued addresses. Branches, tags, commits: logs, merges,
reverts, imports; staged differences page by page, grouped by common prefix where a delimiter is given.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

from lakefs_gc_assets.embedded import branches, commits, committing, objects, repositories
from lakefs_gc_assets.embedded.committing import Description, Difference, MergeOptions
from lakefs_gc_assets.embedded.core import ApiFailure, Core, bad_request, not_found, timestamp
from lakefs_gc_assets.embedded.formats import decode_entry
from lakefs_gc_assets.embedded.http import (
    NO_CONTENT,
    Request,
    Response,
    Route,
    checked_object,
    json_response,
    page,
)
from lakefs_gc_assets.embedded.objects import Found, Place
from lakefs_gc_assets.embedded.repositories import Repository

_METADATA_HEADER = "x-lakefs-meta-"
CONDITIONS = ("if-match", "if-none-match")
"""Headers of a write on a condition, which is refused: without regard to it, it would overwrite what it must not."""
_CONTENT_PART = re.compile(r'content-disposition:.*;\s*name="?content\b', re.IGNORECASE)


def _upload(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    content, content_type = _content(request)
    metadata = {
        name[len(_METADATA_HEADER) :]: value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_HEADER)
    }
    request.refuse(*CONDITIONS)
    entry = objects.upload(core, Place(repo, branch, path), content, content_type, metadata)
    return json_response(201, objects.stats(repo, path, entry))


def _content(request: Request) -> tuple[bytes, str]:
    """The uploaded bytes and their type: the body itself, or the part `content` of a form."""
    content_type = request.headers.get("content-type", "")
    if not content_type.startswith("multipart/form-data"):
        return request.body, content_type
    boundary = content_type.partition("boundary=")[2].strip('"').encode()
    for part in request.body.split(b"--" + boundary):
        head, separator, content = part.partition(b"\r\n\r\n")
        lines = head.decode("utf-8", "replace").splitlines()
        if separator and any(_CONTENT_PART.match(line) for line in lines):
            types = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("content-type:")]
            return content.removesuffix(b"\r\n"), types[0] if types else ""
    raise bad_request("missing multipart upload content")


def _read(core: Core, request: Request, repository: str, ref: str) -> Response:
    repo = repositories.get(core, repository)
    entry = objects.find(core, repo, ref, request.required("path")).entry
    headers = {"ETag": f'"{entry.etag}"'}
    if request.flag("presign") and request.method == "GET":
        return Response(302, headers={"Location": repositories.presigned_url(core, repo, entry.address, "GET")})
    if request.method == "HEAD":
        if not objects.exists(core, repo, entry):
            raise ApiFailure(410, "No data")
        return Response(200, b"", entry.content_type, {**headers, "Content-Length": str(entry.size)})
    return Response(200, objects.read(core, repo, entry), entry.content_type, headers)


def _stat(core: Core, request: Request, repository: str, ref: str) -> Response:
    repo, path = repositories.get(core, repository), request.required("path")
    return json_response(200, _described(core, request, repo, objects.find(core, repo, ref, path)))


def _described(core: Core, request: Request, repository: Repository, result: Found) -> dict[str, Any]:
    """An object as the API describes it, with a link in place of the address where one is asked for."""
    described = objects.stats(repository, result.path, result.entry)
    if request.flag("presign"):
        described["physical_address"] = repositories.presigned_url(core, repository, result.entry.address, "GET")
        described["physical_address_expiry"] = repositories.link_expiry(core)
    return described


def _list_objects(core: Core, request: Request, repository: str, ref: str) -> Response:
    repo = repositories.get(core, repository)
    amount = request.amount()
    results: list[dict[str, Any]] = []
    with core.database.transaction():
        scanned = objects.scan(core, repo, ref, request.query.get("prefix", ""), request.query.get("after", ""))
        for item in grouped(scanned, request.query.get("prefix", ""), request.query.get("delimiter", "")):
            if isinstance(item, str) and item <= request.query.get("after", ""):
                continue
            results.append(_common_prefix(item) if isinstance(item, str) else _described(core, request, repo, item))
            if len(results) > amount:
                break
    return json_response(200, page(results[:amount], request, "path", more=len(results) > amount))


def grouped(results: Iterable[Found], prefix: str, delimiter: str) -> Iterator[Found | str]:
    """Objects, and one string for all objects below a common prefix."""
    last = None
    for item in results:
        rest = item.path[len(prefix) :]
        if delimiter and delimiter in rest:
            common = prefix + rest[: rest.index(delimiter) + len(delimiter)]
            if common != last:
                last = common
                yield common
        else:
            yield item


def _common_prefix(path: str) -> dict[str, Any]:
    return {"path": path, "path_type": "common_prefix", "physical_address": "", "checksum": "", "mtime": 0}


def _delete(core: Core, request: Request, repository: str, branch: str) -> Response:
    objects.delete(core, repositories.get_writable(core, repository), branch, request.required("path"))
    return NO_CONTENT


def _copy(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, destination = repositories.get_writable(core, repository), request.required("dest_path")
    body = request.json_object("src_path")
    metadata = body.get("user_metadata")
    entry = objects.copy(
        core,
        Place(repo, str(body.get("src_ref") or branch), str(body["src_path"])),
        Place(repo, branch, destination),
        shallow=bool(body.get("shallow", False)),
        metadata=metadata if body.get("override_metadata", metadata is not None) else None,
    )
    return json_response(201, objects.stats(repo, destination, entry))


def _stage(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    body = request.json_object("physical_address", "checksum", "size_bytes")
    answer = objects.stats(repo, path, objects.stage_address(core, repo, branch, path, body))
    del answer["metadata"]
    return json_response(201, answer)


def _set_metadata(core: Core, request: Request, repository: str, branch: str) -> Response:
    body = request.json_object("set")
    repo = repositories.get_writable(core, repository)
    metadata = {str(key): str(value) for key, value in body["set"].items()}
    objects.set_metadata(core, repo, branch, request.required("path"), metadata)
    return Response(201)


def _get_address(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    branches.get(core, repo, branch)
    address = repositories.issue_address(core, repo, branch, path)
    answer: dict[str, Any] = {"physical_address": repo.namespace + address, "presigned_url": None}
    if request.flag("presign"):
        answer["presigned_url"] = repositories.presigned_url(core, repo, address, "PUT")
        answer["presigned_url_expiry"] = repositories.link_expiry(core)
    return json_response(200, answer)


def _link_address(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    body = request.json_object("staging", "checksum", "size_bytes")
    request.refuse(*CONDITIONS)
    entry = objects.link(core, repo, branch, path, body)
    return json_response(200, objects.stats(repo, path, entry))


_REPOSITORY = "/repositories/{repository}"
_BRANCH = _REPOSITORY + "/branches/{branch}"
_REF = _REPOSITORY + "/refs/{ref}"

OBJECT_ROUTES = (
    Route("POST", _BRANCH + "/objects", "fs:WriteObject", _upload),
    Route("PUT", _BRANCH + "/objects", "fs:WriteObject", _stage),
    Route("DELETE", _BRANCH + "/objects", "fs:DeleteObject", _delete),
    Route("POST", _BRANCH + "/objects/copy", "fs:WriteObject fs:ReadObject", _copy),
    Route("PUT", _BRANCH + "/objects/stat/user_metadata", "fs:WriteObject", _set_metadata),
    Route("GET", _REF + "/objects", "fs:ReadObject", _read),
    Route("HEAD", _REF + "/objects", "fs:ReadObject", _read),
    Route("GET", _REF + "/objects/stat", "fs:ReadObject", _stat),
    Route("GET", _REF + "/objects/ls", "fs:ListObjects", _list_objects),
    Route("GET", _BRANCH + "/staging/backing", "fs:WriteObject", _get_address),
    Route("PUT", _BRANCH + "/staging/backing", "fs:WriteObject", _link_address),
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
    return Response(201, commit_id.encode(), "text/plain; charset=utf-8")


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


def _of_branch(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo = repositories.get(core, repository)
    start = max(_bytes(request, "after"), _bytes(request, "prefix"))
    with core.database.transaction():
        return page_of_differences(request, committing.branch_differences(core, repo, branch, start))


def page_of_differences(request: Request, differences: Iterable[Difference]) -> Response:
    """One page of differences, grouped by common prefix where a delimiter is given."""
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


REFERENCE_ROUTES = (
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
)
