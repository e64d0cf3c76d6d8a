"""Calls about objects that only clients in tests make: copies with other metadata, and staging of objects by their
addresses. The server itself refuses them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lakefs_gc_assets.extensions.playground.embedded import objects
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request
from lakefs_gc_assets.extensions.playground.embedded.formats import Entry
from lakefs_gc_assets.extensions.playground.embedded.http import Request, Response, Route, json_response
from lakefs_gc_assets.extensions.playground.embedded.objects import ObjectPlace
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.extensions.playground.embedded.routes import ROUTES as SERVED
from lakefs_gc_assets.lakefs.addresses import AddressType

_BRANCH = "/repositories/{repository}/branches/{branch}"
_SERVED = {(route.method, route.template): route for route in SERVED}


def _stage(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    path = request.required("path")
    body = request.json_object("physical_address", "checksum", "size_bytes")
    answer = objects.stats(repository, path, _stage_address(core, repository, branch, path, body))
    del answer["metadata"]
    return json_response(201, answer)


def _stage_address(
    core: Core, repository: ServedRepository, branch_id: str, path: str, body: Mapping[str, Any]
) -> Entry:
    """Stages an existing object; in rule set `seed` only outside the storage namespace.

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


def _copy(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
    destination = request.required("dest_path")
    body = request.json_object("src_path")
    metadata = body.get("user_metadata")
    source = ObjectPlace(repository, str(body.get("src_ref") or branch), str(body["src_path"]))
    if body.get("shallow"):
        if core.settings.rules == "oss":
            raise ApiFailure(501, "Not Implemented")
        if not objects.find(core, repository, source.reference, source.path).staged or source.reference != branch:
            raise bad_request("a shallow copy needs a staged source on the same branch")
    replaced = metadata if body.get("override_metadata", metadata is not None) else None
    entry = copy_as(core, source, ObjectPlace(repository, branch, destination), replaced)
    return json_response(201, objects.stats(repository, destination, entry))


def copy_as(
    core: Core,
    source: ObjectPlace,
    destination: ObjectPlace,
    metadata: Mapping[str, str] | None,
    content_type: str = "",
) -> Entry:
    """Copies an object, with other metadata and another content type if given."""
    with core.database.transaction():
        entry = objects.copy(core, source, destination)
        if metadata is not None or content_type:
            given = entry.metadata if metadata is None else dict(metadata)
            entry = replace(entry, metadata=given, content_type=content_type or entry.content_type)
            objects.stage(core, destination.repository, destination.reference, destination.path, entry)
    return entry


ROUTES = (
    Route("PUT", _BRANCH + "/objects", "fs:WriteObject", _stage),
    replace(_SERVED["POST", _BRANCH + "/objects/copy"], handler=_copy),
)
"""Staging, and copies by the server's own call with more options."""
