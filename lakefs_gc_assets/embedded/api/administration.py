"""What no lakeFS has, below `/_embedded`: the clock, presigned objects."""

from datetime import timedelta
from urllib.parse import unquote

from lakefs_gc_assets.embedded import byte_ranges, multipart_uploads, objects, presigned, repositories
from lakefs_gc_assets.embedded.core import Core, timestamp
from lakefs_gc_assets.embedded.failures import bad_request, not_found
from lakefs_gc_assets.embedded.http import Request, Response, Route, json_response
from lakefs_gc_assets.errors import ObjectNotFound

PREFIX = "/_embedded"


def _advance_clock(core: Core, request: Request) -> Response:
    seconds = request.json_object("seconds")["seconds"]
    try:
        core.clock.advance(timedelta(seconds=seconds))
    except (OverflowError, ValueError):
        raise bad_request(f"the clock cannot be moved by {seconds} seconds") from None
    return json_response(200, {"now": timestamp(core.clock.now())})


ROUTES = (Route("POST", PREFIX + "/clock/advance", "", _advance_clock),)


def serve_presigned(core: Core, request: Request) -> Response:
    """Serves a presigned link, as an object store would. Raises ApiFailure 403, 404."""
    repository_id, _, key = request.path.removeprefix(presigned.PATH + "/").partition("/")
    repository_id, key = unquote(repository_id), unquote(key)
    presigned.check(core, repository_id, key, request.method, dict(request.query))
    repository = repositories.get(core, repository_id)
    if request.method == "GET":
        try:
            content = objects.read_address(core, repository, key)
        except ObjectNotFound:
            raise not_found("object") from None
        return byte_ranges.body(request, content, "application/octet-stream", {})
    if upload_id := request.query.get("uploadId"):
        number = int(request.query["partNumber"])
        etag = multipart_uploads.put_part(core, repository, upload_id, number, request.body)
    else:
        etag = core.blockstore.put(repository.storage_namespace, key, request.body)
    return Response(200, headers={"ETag": f'"{etag}"'})
