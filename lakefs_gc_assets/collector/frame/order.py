"""The safe order of the steps, checked by the times and attempts that the frames' manifests state.

An object that is uploaded, staged or committed while a collection runs must be seen by a later step at the latest. That
holds when the listing ended before the preparation of uncommitted data began, and that ended before commits were read.
"""

from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.errors import OrderViolation


@dataclass(frozen=True, slots=True)
class Span:
    """Time span in which a frame was made, UTC, with its run and attempt.

    Attributes:
        waited_seconds: for how long of that time its step waited because that protects; 0 in manifests from before.
    """

    frame: str
    run_id: str
    attempt: str
    started_at: datetime
    ended_at: datetime
    waited_seconds: float = 0.0

    @property
    def worked_seconds(self) -> float:
        """Seconds that it took, without waits."""
        return max((self.ended_at - self.started_at).total_seconds() - self.waited_seconds, 0.0)


def require_same_attempt(*spans: Span) -> None:
    """Raises OrderViolation where frames belong to different runs or attempts."""
    first = spans[0]
    for other in spans[1:]:
        if (other.run_id, other.attempt) != (first.run_id, first.attempt):
            raise OrderViolation(
                f"{first.frame} is of run {first.run_id}, attempt {first.attempt}, but {other.frame} of run "
                f"{other.run_id}, attempt {other.attempt}. Materialize {other.frame} and what follows it again"
            )


def require_same_source(source: str, marked: str) -> None:
    """Raises OrderViolation where the commits of a recheck come from another source than those of the mark.

    A recheck skips the ranges and metaranges whose ids the mark has read. A listing of metadata files may show a
    metarange and lack a range that was written before it; only another listing is sure to find that range.

    Args:
        source, marked: where commits come from, at the recheck and at the mark.
    """
    if source != marked:
        raise OrderViolation(f"commits come from the {source}, at the mark from the {marked}: open a new run")


def require_safe_order(listing: Span, uncommitted: Span, committed: Span) -> None:
    """Raises OrderViolation unless listing, preparation and reading of commits followed each other in one attempt."""
    require_same_attempt(listing, uncommitted, committed)
    for earlier, later in ((listing, uncommitted), (uncommitted, committed)):
        if not earlier.started_at <= earlier.ended_at <= later.started_at <= later.ended_at:
            raise OrderViolation(
                f"{later.frame} began at {later.started_at:%F %T.%f}Z, before {earlier.frame} was complete at "
                f"{earlier.ended_at:%F %T.%f}Z: something live may have been missed. Materialize {later.frame} and "
                "what follows it again"
            )
