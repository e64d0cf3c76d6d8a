"""Conditional requests to an embedded server, which only clients in tests send (RFC 9110, section 13).

If-None-Match and If-Match write only to a free path or over a known version, and read only an unknown version. The
server itself refuses conditional writes.
"""

from dataclasses import dataclass, replace

from lakefs_gc_assets.extensions.playground.embedded import objects
from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, Core, bad_request
from lakefs_gc_assets.extensions.playground.embedded.http import Request, Response, Route
from lakefs_gc_assets.extensions.playground.embedded.objects import ObjectPlace
from lakefs_gc_assets.extensions.playground.embedded.repositories import ServedRepository
from lakefs_gc_assets.extensions.playground.embedded.routes import CONDITIONS
from lakefs_gc_assets.extensions.playground.embedded.routes import ROUTES as SERVED
from lakefs_gc_assets_tests.extensions.playground.embedded import object_calls


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition on a path before a write: it has no object, or an object with one of these ETags."""

    absent: bool = False
    etags: tuple[str, ...] = ()

    def check(self, etag: str | None) -> None:
        """Checks conditions against the current ETag; None if there is no object. Raises ApiFailure 412."""
        if self.absent and etag is not None:
            raise ApiFailure(412, "path already exists")
        if self.etags and (etag is None or not _among(etag, self.etags)):
            raise ApiFailure(412, "precondition failed")


def check_write(core: Core, request: Request, place: ObjectPlace) -> None:
    """Checks the condition of a write, in the transaction of that write.

    Raises ApiFailure 412, or 400 for an If-None-Match that is not `*`.
    """
    absent = etags_of(request, "if-none-match")
    if absent not in ((), ("*",)):
        raise bad_request("Unsupported value for If-None-Match - Only '*' is supported")
    try:
        etag = objects.find(core, place.repository, place.reference, place.path).entry.etag
    except ApiFailure:
        etag = None
    Condition(bool(absent), etags_of(request, "if-match")).check(etag)


def is_unchanged(request: Request, etag: str) -> bool:
    """True if a reader already has this content, and gets a 304."""
    return _among(etag, etags_of(request, "if-none-match"))


def etags_of(request: Request, header: str) -> tuple[str, ...]:
    """The ETags in the header of a condition."""
    etags = (part.strip().removeprefix("W/").strip('"') for part in request.headers.get(header, "").split(","))
    return tuple(etag for etag in etags if etag)


def _among(etag: str, etags: tuple[str, ...]) -> bool:
    return "*" in etags or etag in etags


def _writing_on_condition(route: Route) -> Route:
    def write(core: Core, request: Request, repository: ServedRepository, branch: str) -> Response:
        place = ObjectPlace(repository, branch, request.required("path"))
        headers = {name: value for name, value in request.headers.items() if name not in CONDITIONS}
        if len(headers) == len(request.headers):
            return route.handler(core, request, repository, branch)
        with core.database.transaction():
            check_write(core, request, place)
            return route.handler(core, replace(request, headers=headers), repository, branch)

    return replace(route, handler=write)


def _reading_on_condition(route: Route) -> Route:
    def read(core: Core, request: Request, repository: ServedRepository, ref: str) -> Response:
        answer = route.handler(core, request, repository, ref)
        if answer.status == 200 and is_unchanged(request, answer.headers["ETag"].strip('"')):
            return Response(304, headers=answer.headers)
        return answer

    return replace(route, handler=read)


_CALLS = {(route.method, route.template): route for route in (*SERVED, *object_calls.ROUTES)}.values()
_ON_CONDITION = (("POST", "/objects"), ("PUT", "/staging/backing"))

ROUTES = (
    *(
        _writing_on_condition(route)
        for route in _CALLS
        if (route.method, route.template.partition("{branch}")[2]) in _ON_CONDITION
    ),
    *(_reading_on_condition(route) for route in _CALLS if route.template.endswith("/refs/{ref}/objects")),
)
"""Routes of the server that take conditions."""
