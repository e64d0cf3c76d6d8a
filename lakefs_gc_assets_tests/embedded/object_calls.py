"""Calls about objects that only clients in tests make: links to read by, groups below common prefixes, copies with
other metadata, and staging of objects by their addresses. The server itself refuses them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lakefs_gc_assets.embedded import branches, objects, repositories
from lakefs_gc_assets.embedded.branches import Change
from lakefs_gc_assets.embedded.core import ApiFailure, Core, bad_request
from lakefs_gc_assets.embedded.formats import Entry
from lakefs_gc_assets.embedded.http import Request, Response, Route, json_response, page_of
from lakefs_gc_assets.embedded.objects import Found, Place
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.embedded.routes import ROUTES as SERVED
from lakefs_gc_assets.lakefs.addresses import AddressType

_BRANCH = "/repositories/{repository}/branches/{branch}"
_REF = "/repositories/{repository}/refs/{ref}"
_SERVED = {(route.method, route.template): route for route in SERVED}


def _read(core: Core, request: Request, repository: Repository, ref: str) -> Response:
    if not request.flag("presign") or request.method != "GET":
        return _SERVED["GET", _REF + "/objects"].handler(core, _without(request, "presign"), repository, ref)
    entry = objects.find(core, repository, ref, request.required("path")).entry
    return Response(302, headers={"Location": repositories.presigned_url(core, repository, entry.address, "GET")})


def _without(request: Request, name: str) -> Request:
    return replace(request, query={key: value for key, value in request.query.items() if key != name})


def _stat(core: Core, request: Request, repository: Repository, ref: str) -> Response:
    path = request.required("path")
    return json_response(200, _described(core, request, repository, objects.find(core, repository, ref, path)))


def _described(core: Core, request: Request, repository: Repository, result: Found) -> dict[str, Any]:
    """An object as the API describes it, with a link in place of the address where one is asked for."""
    described = objects.stats(repository, result.path, result.entry)
    if request.flag("presign"):
        described["physical_address"] = repositories.presigned_url(core, repository, result.entry.address, "GET")
        described["physical_address_expiry"] = repositories.link_expiry(core)
    return described


def _list_objects(core: Core, request: Request, repository: Repository, ref: str) -> Response:
    prefix, after, delimiter = (request.query.get(name, "") for name in ("prefix", "after", "delimiter"))
    with core.database.transaction():
        items = grouped(objects.scan(core, repository, ref, prefix, after), prefix, delimiter)
        shown = (
            _common_prefix(item) if isinstance(item, str) else _described(core, request, repository, item)
            for item in items
            if not (isinstance(item, str) and item <= after)
        )
        return page_of(shown, request, "path")


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


def _stage(core: Core, request: Request, repository: Repository, branch: str) -> Response:
    path = request.required("path")
    body = request.json_object("physical_address", "checksum", "size_bytes")
    answer = objects.stats(repository, path, _stage_address(core, repository, branch, path, body))
    del answer["metadata"]
    return json_response(201, answer)


def _stage_address(core: Core, repository: Repository, branch_id: str, path: str, body: Mapping[str, Any]) -> Entry:
    """Stages an object that is already somewhere; in rule set `seed` only outside the storage namespace.

    Raises ApiFailure 400 for an address that this server's blockstore cannot hold.
    """
    if not str(body["physical_address"]).startswith(core.blockstore.scheme):
        raise bad_request(f"physical address is not valid for block adapter: {core.blockstore.type}")
    address, kind = objects.address_of(repository, str(body["physical_address"]))
    if core.settings.rules == "seed" and kind == AddressType.RELATIVE:
        raise bad_request("physical address: staging is allowed outside the storage namespace only")
    entry = objects.described_entry(core, address, kind, body)
    objects.stage(core, repository, branch_id, path, entry)
    return entry


def _copy(core: Core, request: Request, repository: Repository, branch: str) -> Response:
    destination = request.required("dest_path")
    body = request.json_object("src_path")
    metadata = body.get("user_metadata")
    source = Place(repository, str(body.get("src_ref") or branch), str(body["src_path"]))
    if body.get("shallow"):
        if core.settings.rules == "oss":
            raise ApiFailure(501, "Not Implemented")
        if not objects.find(core, repository, source.reference, source.path).staged or source.reference != branch:
            raise bad_request("a shallow copy needs a staged source on the same branch")
    replaced = metadata if body.get("override_metadata", metadata is not None) else None
    entry = copy_as(core, source, Place(repository, branch, destination), replaced)
    return json_response(201, objects.stats(repository, destination, entry))


def copy_as(
    core: Core, source: Place, destination: Place, metadata: Mapping[str, str] | None, content_type: str = ""
) -> Entry:
    """Copies an object, with other metadata and another content type where they are given."""
    with core.database.transaction():
        entry = objects.copy(core, source, destination)
        if metadata is not None or content_type:
            given = entry.metadata if metadata is None else dict(metadata)
            entry = replace(entry, metadata=given, content_type=content_type or entry.content_type)
            objects.stage(core, destination.repository, destination.reference, destination.path, entry)
    return entry


def _of_branch(core: Core, request: Request, repository: Repository, branch: str) -> Response:
    start = max(_bytes(request, "after"), _bytes(request, "prefix"))
    with core.database.transaction() as database:
        found = branches.get(core, repository, branch)
        return page_of_differences(request, branches.staged_changes(core, database, repository, found, start))


def page_of_differences(request: Request, differences: Iterable[Change]) -> Response:
    """One page of differences, grouped by common prefix where a delimiter is given."""
    return page_of(_grouped_differences(request, differences), request, "path")


def _grouped_differences(request: Request, differences: Iterable[Change]) -> Iterator[dict[str, Any]]:
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


_HANDLERS = {
    ("GET", _REF + "/objects"): _read,
    ("HEAD", _REF + "/objects"): _read,
    ("GET", _REF + "/objects/stat"): _stat,
    ("GET", _REF + "/objects/ls"): _list_objects,
    ("GET", _BRANCH + "/diff"): _of_branch,
    ("POST", _BRANCH + "/objects/copy"): _copy,
}

ROUTES = (
    Route("PUT", _BRANCH + "/objects", "fs:WriteObject", _stage),
    *(replace(_SERVED[call], handler=handler) for call, handler in _HANDLERS.items()),
)
"""The server's own calls, in which these are served as well, and staging."""
