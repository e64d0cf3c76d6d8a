"""The headers If-None-Match and If-Match (RFC 9110, section 13): write only where nothing is, or what is known."""

from dataclasses import dataclass

from lakefs_gc_assets.embedded.failures import ApiFailure, bad_request
from lakefs_gc_assets.embedded.http import Request


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be true of a path before it is written: that it has no object, or one with one of these ETags."""

    absent: bool = False
    etags: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.absent or bool(self.etags)

    def check(self, etag: str | None) -> None:
        """Takes the ETag of what is there, None for nothing. Raises ApiFailure 412."""
        if self.absent and etag is not None:
            raise ApiFailure(412, "path already exists")
        if self.etags and (etag is None or not _among(etag, self.etags)):
            raise ApiFailure(412, "precondition failed")


ALWAYS = Condition()


def of_writing(request: Request) -> Condition:
    """What an upload asks for. Raises ApiFailure 400 for an If-None-Match that is not `*`."""
    absent = _etags(request, "if-none-match")
    if absent not in ((), ("*",)):
        raise bad_request("Unsupported value for If-None-Match - Only '*' is supported")
    return Condition(bool(absent), _etags(request, "if-match"))


def is_unchanged(request: Request, etag: str) -> bool:
    """Whether a reader has this content already, and is answered 304."""
    return _among(etag, _etags(request, "if-none-match"))


def check_reading(request: Request, etag: str) -> None:
    """Raises ApiFailure 412 where a reader asks for other content than this."""
    Condition(etags=_etags(request, "if-match")).check(etag)


def _etags(request: Request, header: str) -> tuple[str, ...]:
    given = (part.strip().removeprefix("W/").strip('"') for part in request.headers.get(header, "").split(","))
    return tuple(etag for etag in given if etag)


def _among(etag: str, etags: tuple[str, ...]) -> bool:
    return "*" in etags or etag in etags
