"""Differences of branches and commits, page by page, grouped by common prefix where a delimiter is given."""

from collections.abc import Iterable
from typing import Any

from lakefs_gc_assets.embedded import commits, differences, repositories, staging
from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.differences import Difference
from lakefs_gc_assets.embedded.entries import decode_entry
from lakefs_gc_assets.embedded.failures import bad_request
from lakefs_gc_assets.embedded.http import Request, Response, Route, json_response, page

_TYPES = ("three_dot", "two_dot")


def _of_branch(core: Core, request: Request, repository: str, branch: str) -> Response:
    found = repositories.get(core, repository)
    start = max(_bytes(request, "after"), _bytes(request, "prefix"))
    with core.database.transaction():
        return _page(request, differences.of_branch(core, found, branch, start))


def _of_references(core: Core, request: Request, repository: str, left: str, right: str) -> Response:
    found = repositories.get(core, repository)
    kind = request.query.get("type") or _TYPES[0]
    if kind not in _TYPES:
        raise bad_request(f"type of a difference is one of {', '.join(_TYPES)}")
    before, after = (commits.resolve(core, found, name) for name in (left, right))
    return _page(request, differences.of_commits(core, found, before, after, since_base=kind == "three_dot"))


def _page(request: Request, found: Iterable[Difference]) -> Response:
    amount, after = request.amount(), _bytes(request, "after")
    prefix, delimiter = _bytes(request, "prefix"), _bytes(request, "delimiter")
    results: list[dict[str, Any]] = []
    last = after
    for difference in found:
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
    return staging.encode_path(request.query.get(name, ""))


def _group(prefix: bytes) -> dict[str, Any]:
    return {"type": "prefix_changed", "path": staging.decode_path(prefix), "path_type": "common_prefix"}


def _object(difference: Difference) -> dict[str, Any]:
    path, size = staging.decode_path(difference.path), decode_entry(difference.data).size
    return {"type": difference.type, "path": path, "path_type": "object", "size_bytes": size}


_REPOSITORY = "/repositories/{repository}"

ROUTES = (
    Route("GET", _REPOSITORY + "/branches/{branch}/diff", "fs:ListObjects", _of_branch),
    Route("GET", _REPOSITORY + "/refs/{left}/diff/{right}", "fs:ListObjects", _of_references),
)
