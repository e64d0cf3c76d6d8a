"""Links that let a client without credentials read or write one object for a quarter of an hour.

Real servers hand out the object store's own links. Here they lead back to this server, which does as the store would.
"""

import hashlib
import hmac
from urllib.parse import quote, urlencode

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import ApiFailure
from lakefs_gc_assets.embedded.repositories import Repository

PATH = "/_embedded/objects"
LIFETIME_SECONDS = 900


def url(core: Core, repository: Repository, key: str, method: str, upload: tuple[str, int] | None = None) -> str:
    """A link for one key below the repository's namespace; with `upload` (id, part number) for one part."""
    expiry = core.clock.seconds() + LIFETIME_SECONDS
    query = {"expires": str(expiry)}
    if upload is not None:
        query |= {"uploadId": upload[0], "partNumber": str(upload[1])}
    query["signature"] = _signature(core, repository.id, key, method, query)
    return f"{core.public_url}{PATH}/{quote(repository.id)}/{quote(key)}?{urlencode(query)}"


def expiry(core: Core) -> int:
    """When a link made now ends, in seconds since 1970 UTC."""
    return core.clock.seconds() + LIFETIME_SECONDS


def check(core: Core, repository_id: str, key: str, method: str, query: dict[str, str]) -> None:
    """Raises ApiFailure 403 for a link that is not ours or too old."""
    given = query.get("signature", "")
    rest = {name: value for name, value in query.items() if name != "signature"}
    expected = _signature(core, repository_id, key, method, rest)
    if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode()):
        raise ApiFailure(403, "SignatureDoesNotMatch")
    if core.clock.seconds() > int(query.get("expires", "0")):
        raise ApiFailure(403, "Request has expired")


def _signature(core: Core, repository_id: str, key: str, method: str, query: dict[str, str]) -> str:
    message = "\0".join((repository_id, key, method, urlencode(sorted(query.items()))))
    return hmac.new(core.signing_key, message.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()
