"""The header Range: which bytes of an object are asked for (RFC 9110, section 14). Several ranges at once are not."""

import re

from lakefs_gc_assets.embedded.http import Request, Response

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def _wanted(request: Request, size: int) -> range | None:
    """Positions of the bytes asked for, empty where the object has none of them; None for the whole object."""
    match = _RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return range(max(size - int(last), 0), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(int(last) + 1, size) if last else size)


def body(request: Request, content: bytes, content_type: str, headers: dict[str, str]) -> Response:
    """Answers GET: the bytes asked for, or all of them."""
    wanted = _wanted(request, len(content))
    if wanted is None:
        return Response(200, content, content_type, headers)
    if not wanted:
        return Response(416, headers={"Content-Range": f"bytes */{len(content)}"})
    described = {"Content-Range": f"bytes {wanted.start}-{wanted.stop - 1}/{len(content)}"}
    return Response(206, content[wanted.start : wanted.stop], content_type, headers | described)


def head(request: Request, size: int, content_type: str, headers: dict[str, str]) -> Response:
    """Answers HEAD: what GET would say of an object of this size."""
    wanted = _wanted(request, size)
    if wanted is None:
        return Response(200, content_type=content_type, headers=headers | {"Content-Length": str(size)})
    if not wanted:
        return Response(416, headers={"Content-Range": f"bytes */{size}"})
    described = {
        "Content-Range": f"bytes {wanted.start}-{wanted.stop - 1}/{size}",
        "Content-Length": str(len(wanted)),
    }
    return Response(206, content_type=content_type, headers=headers | described)
