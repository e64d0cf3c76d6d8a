"""What can become of a candidate."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a candidate. `ACCEPTED` is not yet proof that the object is gone: the next listing is.

    `COPIED` says that there is a copy in quarantine, `QUARANTINED` that the object was deleted after that. `RESTORED`
    is a later receipt of the same address and attempt, after one of GONE or `COPIED`. `PURGED` is a later receipt too:
    the copy was deleted, for good. `DELETED_BY_ANOTHER_RUN` says that another run deleted or moved the object since
    this one listed it. It stands in `deleted_report` alone: the receipt is the other run's.
    """

    DRY_RUN = "dry_run"
    ACCEPTED = "accepted"
    FAILED = "failed"
    KEPT_LIVE = "kept_live"
    COPIED = "copied"
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    PURGED = "purged"
    DELETED_BY_ANOTHER_RUN = "deleted_by_another_run"
