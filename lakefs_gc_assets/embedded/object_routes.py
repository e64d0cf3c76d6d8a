"""Objects: upload, read, describe, list, copy, delete, stage; issued addresses; presigned multipart uploads."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from lakefs_gc_assets.embedded import branches, http, objects, repositories
from lakefs_gc_assets.embedded.core import ApiFailure, Core, bad_request
from lakefs_gc_assets.embedded.http import NO_CONTENT, Request, Response, Route, checked_object, json_response, page
from lakefs_gc_assets.embedded.objects import Found, Place
from lakefs_gc_assets.embedded.repositories import Repository

_METADATA_HEADER = "x-lakefs-meta-"
_MAX_DELETED = 1000
_CONTENT_PART = re.compile(r'content-disposition:.*;\s*name="?content\b', re.IGNORECASE)


def _upload(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    content, content_type = _content(request)
    metadata = {
        name[len(_METADATA_HEADER) :]: value
        for name, value in request.headers.items()
        if name.startswith(_METADATA_HEADER)
    }
    condition = http.write_condition(request)
    entry = objects.upload(core, Place(repo, branch, path), content, content_type, metadata, condition)
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
    headers = {"ETag": f'"{entry.etag}"', "Accept-Ranges": "bytes"}
    if request.flag("presign") and request.method == "GET":
        return Response(302, headers={"Location": repositories.presigned_url(core, repo, entry.address, "GET")})
    if http.is_unchanged(request, entry.etag):
        return Response(304, headers=headers)
    if request.method == "HEAD":
        if not objects.exists(core, repo, entry):
            raise ApiFailure(410, "No data")
        return http.answer_head(request, entry.size, entry.content_type, headers)
    return http.answer_get(request, objects.read(core, repo, entry), entry.content_type, headers)


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


def _delete_several(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo = repositories.get_writable(core, repository)
    paths = request.json_object("paths")["paths"]
    if not all(isinstance(path, str) for path in paths):
        raise bad_request("request body has an error: paths must be strings")
    if len(paths) > _MAX_DELETED:
        raise ApiFailure(500, f"request size exceeded: {len(paths)} paths, at most {_MAX_DELETED}")
    branches.get(core, repo, branch)
    with core.database.transaction():
        for path in paths:
            objects.delete(core, repo, branch, path)
    return json_response(200, {"errors": []})


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
    entry = objects.link(core, repo, branch, path, body, http.write_condition(request))
    return json_response(200, objects.stats(repo, path, entry))


def _begin_multipart(core: Core, request: Request, repository: str, branch: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    count = request.number("parts", 0)
    if not 0 <= count <= objects.MOST_PARTS:
        raise bad_request(f"parts can be at most {objects.MOST_PARTS}")
    branches.get(core, repo, branch)
    address = repositories.issue_address(core, repo, branch, path)
    upload = objects.begin_upload(core, Place(repo, branch, path), address, objects.DEFAULT_CONTENT_TYPE, {})
    urls = [repositories.presigned_url(core, repo, address, "PUT", (upload.id, number + 1)) for number in range(count)]
    return json_response(
        201, {"upload_id": upload.id, "physical_address": repo.namespace + address, "presigned_urls": urls}
    )


def _complete_multipart(core: Core, request: Request, repository: str, branch: str, upload: str) -> Response:
    repo, path = repositories.get_writable(core, repository), request.required("path")
    body = request.json_object("physical_address", "parts")
    address = str(body["physical_address"]).removeprefix(repo.namespace)
    numbered = [checked_object(part, "part_number", "etag") for part in body["parts"]]
    parts = [(part["part_number"], part["etag"]) for part in numbered]
    # In one transaction: where a part is missing, the address can still be used.
    with core.database.transaction():
        repositories.redeem_address(core, repo, branch, path, address)
        if objects.get_upload(core, repo, upload).address != address:
            raise bad_request("physical address is not that of the upload")
        entry = objects.complete_upload(core, repo, upload, parts)
        objects.stage(core, repo, branch, path, entry)
    # Real servers answer this one call with the relative address.
    return json_response(200, objects.stats(repo, path, entry) | {"physical_address": address})


def _abort_multipart(core: Core, request: Request, repository: str, branch: str, upload: str) -> Response:
    objects.abort_upload(core, repositories.get_writable(core, repository), upload)
    return NO_CONTENT


_REPOSITORY = "/repositories/{repository}"
_BRANCH = _REPOSITORY + "/branches/{branch}"
_REF = _REPOSITORY + "/refs/{ref}"

ROUTES = (
    Route("POST", _BRANCH + "/objects", "fs:WriteObject", _upload),
    Route("PUT", _BRANCH + "/objects", "fs:WriteObject", _stage),
    Route("DELETE", _BRANCH + "/objects", "fs:DeleteObject", _delete),
    Route("POST", _BRANCH + "/objects/delete", "fs:DeleteObject", _delete_several),
    Route("POST", _BRANCH + "/objects/copy", "fs:WriteObject fs:ReadObject", _copy),
    Route("PUT", _BRANCH + "/objects/stat/user_metadata", "fs:WriteObject", _set_metadata),
    Route("GET", _REF + "/objects", "fs:ReadObject", _read),
    Route("HEAD", _REF + "/objects", "fs:ReadObject", _read),
    Route("GET", _REF + "/objects/stat", "fs:ReadObject", _stat),
    Route("GET", _REF + "/objects/ls", "fs:ListObjects", _list_objects),
    Route("GET", _BRANCH + "/staging/backing", "fs:WriteObject", _get_address),
    Route("PUT", _BRANCH + "/staging/backing", "fs:WriteObject", _link_address),
    Route("POST", _BRANCH + "/staging/pmpu", "fs:WriteObject", _begin_multipart),
    Route("PUT", _BRANCH + "/staging/pmpu/{upload}", "fs:WriteObject", _complete_multipart),
    Route("DELETE", _BRANCH + "/staging/pmpu/{upload}", "fs:WriteObject", _abort_multipart),
)
