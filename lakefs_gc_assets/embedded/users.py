"""Who may ask, and what each may not do."""

import base64
import binascii
import fnmatch
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakefs_gc_assets.embedded.failures import ApiFailure


@dataclass(frozen=True, slots=True)
class User:
    """Credentials and refusals; `denied` holds actions, with `*` for any part of one."""

    name: str
    access_key_id: str
    secret_access_key: str = field(repr=False)
    denied: tuple[str, ...] = ()

    @property
    def basic_authorization(self) -> str:
        """Value of the header Authorization."""
        pair = f"{self.access_key_id}:{self.secret_access_key}".encode()
        return "Basic " + base64.b64encode(pair).decode()

    def require(self, action: str) -> None:
        """Raises ApiFailure 403 where the user may not do this."""
        if any(fnmatch.fnmatchcase(action, pattern) for pattern in self.denied):
            raise ApiFailure(403, "insufficient permissions")


def new_user(name: str, denied: tuple[str, ...] = ()) -> User:
    """A user with new credentials."""
    return User(name, "AKIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30), denied)


def authenticate(users: Mapping[str, User], headers: Mapping[str, str]) -> User:
    """The user of HTTP basic authentication. Raises ApiFailure 401."""
    scheme, _, encoded = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            key, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            key, secret = "", ""
        user = users.get(key)
        if user is not None and hmac.compare_digest(user.secret_access_key.encode(), secret.encode()):
            return user
    raise ApiFailure(401, "error authenticating request")
