"""Read routes: objects, listings, diffs, logs, and the server's configuration.

Presigned links lead back to this server. Listings and diffs take prefix, delimiter, `after` and `amount`.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from lakefs_gc_assets.extensions.playground.embedded import branches, commits, objects, repositories
from lakefs_gc_assets.extensions.playground.embedded.branches import StagedChange
from lakefs_gc_assets.extensions.playground.embedded.core import Core, bad_request, not_found
from lakefs_gc_assets.extensions.playground.embedded.http import (
    Request,
    Response,
    Route,
    json_response,
    page_of,
    part_of,
)
from lakefs_gc_assets.extensions.playground.embedded.objects import Found
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository

_REPOSITORY = "/repositories/{repository}"
_REF = _REPOSITORY + "/refs/{ref}"
VERSION = {"version": "1.84.0", "version_context": "lakeFS"}
"""The release whose behaviour this server follows."""


def storage_config(core: Core) -> dict[str, Any]:
    """Facts about the blockstore that tell clients how to write."""
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
        "pre_sign_multipart_upload": False,
        "pre_sign_support": True,
        "pre_sign_support_ui": False,
    }


def _config(core: Core, request: Request) -> Response:
    return json_response(
        200,
        {
            "capabilities_config": {},
            "storage_config": storage_config(core),
            "storage_config_list": [],
            "ui_config": {},
            "version_config": VERSION,
        },
    )


def _storage(core: Core, request: Request) -> Response:
    return json_response(200, storage_config(core))


def _version(core: Core, request: Request) -> Response:
    return json_response(200, VERSION)


def _read(core: Core, request: Request, repository: ServedRepository, ref: str) -> Response:
    entry = objects.find(core, repository, ref, request.required("path")).entry
    if request.flag("presign") and request.method == "GET":
        return Response(302, headers={"Location": repositories.presigned_url(core, repository, entry.address, "GET")})
    whole = Response(200, objects.read(core, repository, entry), entry.content_type, {"ETag": f'"{entry.etag}"'})
    return part_of(request, whole)


def _stat(core: Core, request: Request, repository: ServedRepository, ref: str) -> Response:
    path = request.required("path")
    described = _described(core, request, repository, objects.find(core, repository, ref, path))
    return json_response(200, described if _wants_metadata(request) else {**described, "metadata": {}})


def _described(core: Core, request: Request, repository: ServedRepository, result: Found) -> dict[str, Any]:
    """An object as the API describes it; with a link instead of its address if the request asks for one."""
    described = objects.stats(repository, result.path, result.entry)
    if request.flag("presign"):
        described["physical_address"] = repositories.presigned_url(core, repository, result.entry.address, "GET")
        described["physical_address_expiry"] = repositories.link_expiry(core)
    return described


def _listed(core: Core, request: Request, repository: ServedRepository, result: Found) -> dict[str, Any]:
    """An object in a listing; includes metadata only if there are any and the client wants them."""
    described = _described(core, request, repository, result)
    if not described["metadata"] or not _wants_metadata(request):
        del described["metadata"]
    return described


def _wants_metadata(request: Request) -> bool:
    return request.query.get("user_metadata", "").lower() not in ("false", "0")


def _list_objects(core: Core, request: Request, repository: ServedRepository, ref: str) -> Response:
    prefix, after, delimiter = (request.query.get(name, "") for name in ("prefix", "after", "delimiter"))
    with core.database.transaction():
        items = grouped(objects.scan(core, repository, ref, prefix, after), prefix, delimiter)
        shown = (
            _common_prefix(item) if isinstance(item, str) else _listed(core, request, repository, item)
            for item in items
            if not (isinstance(item, str) and item <= after)
        )
        return page_of(shown, request, "path")


def grouped(results: Iterable[Found], prefix: str, delimiter: str) -> Iterator[Found | str]:
    """Objects, with one string in place of all objects below a common prefix."""
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


def _branch_differences(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    start = max(_bytes(request, "after"), _bytes(request, "prefix"))
    with core.database.transaction() as database:
        found = branches.get(core, repository, branch)
        changes = branches.staged_changes(core, database, repository, found, start)
        # A tombstone has no size, and lakeFS does not look up the deleted entry's.
        changes = (replace(change, before=None) if change.type == "removed" else change for change in changes)
        return _page_of_differences(request, changes)


def _page_of_differences(request: Request, differences: Iterable[StagedChange]) -> Response:
    """One page of differences, grouped by common prefix if a delimiter is given."""
    return page_of(_grouped_differences(request, differences), request, "path")


def _grouped_differences(request: Request, differences: Iterable[StagedChange]) -> Iterator[dict[str, Any]]:
    prefix, delimiter, last = (_bytes(request, name) for name in ("prefix", "delimiter", "after"))
    for difference in differences:
        if not difference.path.startswith(prefix):
            continue
        shown, end = difference.path, difference.path.find(delimiter, len(prefix)) if delimiter else -1
        if end >= 0:
            shown = difference.path[: end + len(delimiter)]
        if shown <= last:
            continue
        last = shown
        yield _group(shown) if end >= 0 else difference.as_json()


def _bytes(request: Request, name: str) -> bytes:
    return branches.encode_path(request.query.get(name, ""))


def _group(prefix: bytes) -> dict[str, Any]:
    return {"type": "prefix_changed", "path": branches.decode_path(prefix), "path_type": "common_prefix"}


def _commit_differences(
    core: Core,
    repository: ServedRepository,
    left: commits.ServedCommit,
    right: commits.ServedCommit,
    *,
    since_base: bool,
) -> Iterator[StagedChange]:
    """Paths whose entries in `right` differ from those in `left`, in order.

    Args:
        since_base: yield only changes that a merge of `right` into `left` would make. Changes made only in `left` since
            the merge base are left out; a path that changed in both is a `conflict`.
    """
    base = commits.merge_base(core, repository, left, right) if since_base else left
    before, common, after = (
        {record[0]: record for record in commits.all_records(core, metarange)}
        for metarange in (left.metarange_id, base.metarange_id if base else "", right.metarange_id)
    )
    for path in sorted(before.keys() | after.keys()):
        was, shared, now = (records.get(path) for records in (before, common, after))
        identities = [None if record is None else record[1] for record in (was, shared, now)]
        if identities[0] == identities[2] or (since_base and identities[1] == identities[2]):
            continue
        kind = "added" if was is None else "removed" if now is None else "changed"
        yield StagedChange(kind if identities[0] == identities[1] else "conflict", path, now, was)


_TYPES = ("three_dot", "two_dot")


def _differences(core: Core, request: Request, repository: ServedRepository, left: str, right: str) -> Response:
    kind = request.query.get("type") or _TYPES[0]
    if kind not in _TYPES:
        raise bad_request(f"type of a difference is one of {', '.join(_TYPES)}")
    before, after = (commits.resolve(core, repository, name, f"get commit by ref {name}:") for name in (left, right))
    return _page_of_differences(
        request, _commit_differences(core, repository, before, after, since_base=kind == "three_dot")
    )


def _log(core: Core, request: Request, repository: ServedRepository, ref: str) -> Response:
    request.refuse("objects", "prefixes", "first_parent", "since", "stop_at")
    ancestors = commits.log(core, repository, commits.resolve(core, repository, ref, "ref:"))
    if after := request.query.get("after"):
        ancestors = itertools.islice(itertools.dropwhile(lambda commit: commit.id != after, ancestors), 1, None)
    return page_of((commit.as_json() for commit in ancestors), request, "id")


def _get_tag(core: Core, request: Request, repository: ServedRepository, tag: str) -> Response:
    for each in branches.every_tag(core, repository):
        if each["id"] == tag:
            return json_response(200, each)
    raise not_found("tag")


ROUTES = (
    Route("GET", "/config", "", _config),
    Route("GET", "/config/storage", "", _storage),
    Route("GET", "/config/version", "", _version),
    Route("GET", _REF + "/objects", "fs:ReadObject", _read),
    Route("HEAD", _REF + "/objects", "fs:ReadObject", _read),
    Route("GET", _REF + "/objects/stat", "fs:ReadObject", _stat),
    Route("GET", _REF + "/objects/ls", "fs:ListObjects", _list_objects),
    Route("GET", _REPOSITORY + "/branches/{branch}/diff", "fs:ListObjects", _branch_differences),
    Route("GET", _REPOSITORY + "/refs/{left}/diff/{right}", "fs:ListObjects", _differences),
    Route("GET", _REF + "/commits", "fs:ReadBranch", _log),
    Route("GET", _REPOSITORY + "/tags/{tag}", "fs:ReadTag", _get_tag),
)
"""Routes of the API."""
