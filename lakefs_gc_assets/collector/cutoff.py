"""The cutoff: the moment before which an object must have been written and named to be collected.

Three clocks are asked, because each of them can be wrong: our own, the lakeFS server's (`Date` headers) and the store's
(LastModified of an object just written). The earliest of them counts, since an early cutoff only keeps more.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.lakefs.api.models import ServerClocks


@dataclass(frozen=True, slots=True)
class Clocks:
    """Readings of the three clocks at one moment, UTC; the server's two are of the extreme `Date` headers seen."""

    own: datetime
    server_earliest: datetime
    server_latest: datetime
    store: datetime

    @classmethod
    def read(cls, own: datetime, server: ServerClocks, store: datetime) -> "Clocks":
        """Combines our clock's time, the differences of the server's clock from it, and the store's time; all UTC."""
        none = timedelta()
        return cls(own, own + (server.earliest or none), own + (server.latest or none), store)

    @property
    def earliest(self) -> datetime:
        """For the cutoff: what is young by any clock is young."""
        return min(self.own, self.server_earliest, self.store)

    @property
    def latest(self) -> datetime:
        """For expiries: what is too old by any clock is too old."""
        return max(self.own, self.server_latest, self.store)


def require_agreement(clocks: Clocks, skew: timedelta) -> None:
    """Raises GuardTripped where clocks are further apart than half of the skew that the cutoff allows for."""
    apart = clocks.latest - clocks.earliest
    if apart > skew / 2:
        raise GuardTripped(
            "clocks",
            f"our clock says {clocks.own:%F %T}Z, the lakeFS server {clocks.server_earliest:%F %T}Z to "
            f"{clocks.server_latest:%F %T}Z, the object store {clocks.store:%F %T}Z: {apart} apart, "
            f"more than half of the allowed skew of {skew}",
            "Set the clocks right, or raise collection.clock_skew_minutes",
        )


def cutoff(clocks: Clocks, min_age: timedelta, grace_period: timedelta, skew: timedelta) -> datetime:
    """The earliest clock minus the longer of minimum age and the server's grace period, minus the skew.

    The result is cut down to a whole second: names and many stores keep whole seconds, so what they show as earlier
    than the cutoff is earlier.
    """
    return (clocks.earliest - max(min_age, grace_period) - skew).replace(microsecond=0)
