"""HTTP requests, responses and routes."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote

from pydantic import Field, TypeAdapter, ValidationError

from lakefs_gc_assets.extensions.playground.embedded.core import ApiFailure, bad_request

_MAX_PER_PAGE = 1000


_Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_NAMES_BY_TYPE: dict[Any, str] = {
    str: "name storage_namespace default_branch source type path message src_path src_ref physical_address checksum "
    "content_type ref id strategy committer metarange_id continuation_token now destination branch_id etag",
    _Int64: "size_bytes mtime parent_number creation_date generation date count part_number version "
    "default_retention_days retention_days",
    float: "seconds",
    bool: "read_only hidden force allow_empty squash_merge shallow override_metadata",
    list[Any]: "paths parts",
    list[str]: "parents",
    dict[str, Any]: "staging commit",
    dict[str, str]: "metadata user_metadata set",
}
"""Names of body properties by type. A name has the same type in every call."""
_KINDS = {
    "string": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "list": "an array",
    "dict": "an object",
}
"""Kinds of values in messages, by pydantic's names."""
_TYPES = {name: TypeAdapter[Any](kind) for kind, names in _NAMES_BY_TYPE.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class Request:
    """One call.

    Attributes:
        path: as sent, still percent-encoded.
        query: decoded; the last value of a repeated name.
        headers: names in lower case.
        user: name of the authenticated user.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: str = ""

    def json(self) -> Any:
        """The body. Raises ApiFailure 400 if it is not JSON."""
        if not self.body:
            return {}
        try:
            content = json.loads(self.body)
            # JSON can escape half of a surrogate pair; UTF-8 cannot encode it.
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            raise bad_request("request body has an error: failed to decode request body") from None
        return content

    def json_object(self, *required: str) -> dict[str, Any]:
        """The body as an object with these properties. Raises ApiFailure 400."""
        return checked_object(self.json(), *required)

    def required(self, name: str) -> str:
        """A query parameter. Raises ApiFailure 400 if it is missing or empty."""
        if not self.query.get(name):
            problem = "empty value is not allowed" if name in self.query else "value is required but missing"
            raise bad_request(f'parameter "{name}" in query has an error: {problem}')
        return self.query[name]

    def number(self, name: str, default: int) -> int:
        """An integer query parameter. Raises ApiFailure 400."""
        value = self.query.get(name) or str(default)
        try:
            return int(value)
        except ValueError:
            problem = f"value {value}: an invalid integer: invalid syntax"
            raise bad_request(f'parameter "{name}" in query has an error: {problem}') from None

    def amount(self) -> int:
        """Items per page: 100 by default, 1000 for 0 or -1. Raises ApiFailure 400 for other numbers out of range."""
        amount = self.number("amount", 100)
        if not -1 <= amount <= _MAX_PER_PAGE:
            limit = f"most {_MAX_PER_PAGE}" if amount > 0 else "least -1"
            raise bad_request(f'parameter "amount" in query has an error: number must be at {limit}')
        return amount if amount > 0 else _MAX_PER_PAGE

    def refuse(self, *names: str) -> None:
        """Raises ApiFailure 501 if the request has one of these query parameters or headers: they are unsupported."""
        for name in names:
            if self.query.get(name, self.headers.get(name, "")).lower() not in ("", "false"):
                raise ApiFailure(501, f"parameter {name!r} is not served by the embedded server")

    def flag(self, name: str) -> bool:
        """A boolean query parameter."""
        return self.query.get(name, "").lower() in ("true", "1")


def checked_object(body: Any, *required: str) -> dict[str, Any]:
    """A body or nested object that has these properties with valid types. Raises ApiFailure 400."""
    if not isinstance(body, dict):
        raise bad_request("request body has an error: value must be an object")
    for name in required:
        if name not in body:
            raise bad_request(f'request body has an error: Error at "/{name}": property "{name}" is missing')
    for name, value in body.items():
        if name in _TYPES and (value is not None or name in required):
            try:
                _TYPES[name].validate_python(value, strict=True)
            except ValidationError as error:
                kind = error.errors()[0]["type"].removesuffix("_type")
                problem = f"value must be {_KINDS.get(kind, 'of another kind')}"
                raise bad_request(f'request body has an error: Error at "/{name}": {problem}') from None
    return body


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    status: int
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


def json_response(status: int, content: Any, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    body = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    return Response(status, body, "application/json", headers or {})


NO_CONTENT = Response(204)

Handler = Callable[..., Response]
"""Takes core, request and the path's values by name; `repository` is the Repository instead of its name."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path, its handler, and the actions that the user needs, separated by spaces.

    Attributes:
        changes: True if it changes the repository in its path; by default true for methods other than GET and HEAD.
    """

    method: str
    template: str
    actions: str
    handler: Handler
    changes: bool | None = None

    @property
    def needs_writable(self) -> bool:
        """True if it is refused for a read-only repository."""
        return self.method not in ("GET", "HEAD") if self.changes is None else self.changes


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(route, _pattern(route.template)) for route in routes]

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route, and the decoded values in its path."""
        for route, pattern in self._routes:
            if route.method == method and (match := pattern.fullmatch(path)):
                return route, {name: unquote(value) for name, value in match.groupdict().items()}
        return None


def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile(
        "".join(f"(?P<{part}>[^/]+)" if number % 2 else re.escape(part) for number, part in enumerate(parts))
    )


_BYTE_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def _wanted_bytes(request: Request, size: int) -> range | None:
    """Requested byte positions, empty if they are all beyond the end; None for the whole object."""
    match = _BYTE_RANGE.fullmatch(request.headers.get("range", "").strip())
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        return range(max(size - int(last), 0), size)
    if last and int(last) < int(first):
        return None
    return range(int(first), min(int(last) + 1, size) if last else size)


def part_of(request: Request, answer: Response) -> Response:
    """Cuts a successful answer to GET or HEAD to the requested byte range; returns other answers unchanged."""
    if answer.status != 200 or request.method not in ("GET", "HEAD"):
        return answer
    size = int(answer.headers.get("Content-Length", len(answer.body)))
    wanted = _wanted_bytes(request, size)
    if wanted is None:
        return answer
    if not wanted:
        return Response(416, headers={"Content-Range": f"bytes */{size}"})
    described = {"Content-Range": f"bytes {wanted.start}-{wanted.stop - 1}/{size}", "Content-Length": str(len(wanted))}
    body = answer.body[wanted.start : wanted.stop]
    return replace(answer, status=206, body=body, headers={**answer.headers, **described})


def parse_query(text: str) -> dict[str, str]:
    """Decodes a query string."""
    return dict(parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))


def page(items: Sequence[Mapping[str, Any]], request: Request, key: str, *, more: bool | None = None) -> dict[str, Any]:
    """One page of a list, with `pagination`. `items` are sorted by `key`, and cut here unless `more` is given."""
    if more is None:
        amount = request.amount()
        after, prefix = request.query.get("after", ""), request.query.get("prefix", "")
        matching = [item for item in items if item[key] > after and item[key].startswith(prefix)]
        items, more = matching[:amount], len(matching) > amount
    return {
        "pagination": {
            "has_more": more,
            "max_per_page": _MAX_PER_PAGE,
            "next_offset": items[-1][key] if more and items else "",
            "results": len(items),
        },
        "results": list(items),
    }


def page_of(items: Iterable[Mapping[str, Any]], request: Request, key: str) -> Response:
    """The page of items, sorted by `key`, that begins behind `after`; consumes one item more than it returns."""
    amount = request.amount()
    shown = list(islice(items, amount + 1))
    return json_response(200, page(shown[:amount], request, key, more=len(shown) > amount))
