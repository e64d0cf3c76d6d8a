"""Addresses handed out for an object that the client uploads by itself and links afterwards.

The address carries an HMAC over repository, branch, path and itself, so a server needs no memory to check it; its age
is in its name. Rule set `seed` also remembers each address, and forgets it when it is used or too old: it works once.
"""

import base64
import hashlib
import hmac

from lakefs_gc_assets.embedded.core import Core
from lakefs_gc_assets.embedded.failures import bad_request
from lakefs_gc_assets.embedded.repositories import Repository
from lakefs_gc_assets.lakefs import xids


def issue(core: Core, repository: Repository, branch_id: str, path: str) -> str:
    """A new relative address that may be linked to this path of this branch."""
    bare = core.writer.new_address()
    address = f"{bare},{_signature(core, repository, branch_id, path, bare)}"
    if core.settings.rules == "seed":
        with core.database.transaction() as database:
            forget_expired(core)
            database.execute(
                "INSERT INTO issued_addresses VALUES (?, ?, ?)", (repository.id, address, core.clock.seconds())
            )
    return address


def redeem(core: Core, repository: Repository, branch_id: str, path: str, address: str) -> None:
    """Checks an address before it is linked. Raises ApiFailure 400 for one issued for something else, or too old."""
    bare, _, signature = address.partition(",")
    expected = _signature(core, repository, branch_id, path, bare)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise bad_request("invalid address signature: invalid address")
    name = bare.rpartition("/")[2]
    if not xids.is_xid(name) or core.clock.seconds() - xids.issued_at(name) > core.settings.link_seconds:
        raise bad_request("invalid address signature: address expired")
    if core.settings.rules == "seed":
        with core.database.transaction() as database:
            forget_expired(core)
            used = database.execute(
                "DELETE FROM issued_addresses WHERE repository = ? AND address = ?", (repository.id, address)
            ).rowcount
            if not used:
                raise bad_request("invalid address token: used before, or never issued")


def forget_expired(core: Core) -> None:
    """Removes addresses that may no longer be linked."""
    with core.database.transaction() as database:
        database.execute(
            "DELETE FROM issued_addresses WHERE issued_at < ?", (core.clock.seconds() - core.settings.link_seconds,)
        )


def _signature(core: Core, repository: Repository, branch_id: str, path: str, address: str) -> str:
    message = "\0".join((repository.id, branch_id, path, address)).encode("utf-8", "surrogateescape")
    digest = hmac.new(core.signing_key, message, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
