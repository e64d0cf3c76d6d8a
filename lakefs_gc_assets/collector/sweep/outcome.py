"""What can become of a candidate."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a candidate. `ACCEPTED` is not yet proof that the object is gone: the next listing is.

    `COPIED` says that there is a copy in quarantine, `QUARANTINED` that the object was deleted after that. `RESTORED`
    is a later receipt of the same address and attempt, after one of GONE or `COPIED`. `PURGED` is a later receipt too:
    the copy was deleted, for good.
    """

    DRY_RUN = "dry_run"
    ACCEPTED = "accepted"
    FAILED = "failed"
    KEPT_LIVE = "kept_live"
    COPIED = "copied"
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    PURGED = "purged"
