"""One opened repository: the facts, server, store and clock with which the steps of a collection work.

Time is behind a port, so that a simulation can replace it.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol, cast

from lakefs_gc_assets.errors import ConfigurationError, LogLine, ReadOnlyRepository
from lakefs_gc_assets.lakefs.addresses import Namespace, parse_location
from lakefs_gc_assets.lakefs.api.models import LakeFSApi, RepositoryFacts, ServerClocks
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore

if TYPE_CHECKING:
    from lakefs_gc_assets.lakefs.api.client import LakeFSClient


class Clock(Protocol):
    """Tells the time and waits."""

    def now(self) -> datetime:
        """The present time, aware, UTC."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment, unaffected by clock changes; comparable only within one process."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """A start time from which a process counts: setting its clock back does not shorten the elapsed time.

    Attributes:
        at: UTC.
        counter: value of `Clock.monotonic` at that time.
    """

    at: datetime
    counter: float

    @classmethod
    def now(cls, clock: Clock) -> "Moment":
        """The present by a clock."""
        return cls(clock.now(), clock.monotonic())

    def passed(self, clock: Clock) -> timedelta:
        """The elapsed time: by the clock's time or by its counter, whichever is longer."""
        return max(timedelta(seconds=clock.monotonic() - self.counter), clock.now() - self.at)


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        """See Clock.now."""
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        """See Clock.sleep."""
        time.sleep(seconds)

    def monotonic(self) -> float:
        """See Clock.monotonic."""
        return time.monotonic()


class Pace:
    """Limits the work of one task to an average rate."""

    def __init__(self, rate: float, clock: Clock) -> None:
        """Sets the rate in pieces per second; 0 for no limit. The first pieces may begin at once."""
        self._rate, self._clock = rate, clock
        self._next = clock.monotonic()

    def at_once(self, most: int) -> int:
        """Number of pieces to begin together: a second's worth, at least one."""
        return min(most, max(1, int(self._rate))) if self._rate else most

    def wait(self, pieces: int) -> None:
        """Waits until this many pieces may begin."""
        if self._rate:
            now = self._clock.monotonic()
            if self._next > now:
                self._clock.sleep(self._next - now)
            self._next = max(self._next, now) + pieces / self._rate


@dataclass(frozen=True, slots=True)
class Clocks:
    """Readings of three clocks at one moment, UTC. The server has two: from the extreme `Date` headers seen.

    Each clock can be wrong: our own, the lakeFS server's (`Date` headers), and the store's (LastModified of an object
    just written).
    """

    own: datetime
    server_earliest: datetime
    server_latest: datetime
    store: datetime

    @classmethod
    def read(cls, own: datetime, server: ServerClocks, store: datetime) -> "Clocks":
        """Combines our clock's time, the offsets of the server's clock from it, and the store's time; all UTC."""
        none = timedelta()
        return cls(own, own + (server.earliest or none), own + (server.latest or none), store)

    @property
    def earliest(self) -> datetime:
        """The time for the cutoff: an object that is young by any clock is young."""
        return min(self.own, self.server_earliest, self.store)

    @property
    def latest(self) -> datetime:
        """The time for expiries: anything that is too old by any clock is too old."""
        return max(self.own, self.server_latest, self.store)

    def cutoff(self, min_age: timedelta, grace_period: timedelta, skew: timedelta) -> datetime:
        """The time before which an object must have been written and named to be collected.

        It is the earliest clock minus the longer of minimum age and the server's grace period, minus the skew. An early
        cutoff only keeps more. The result is rounded down to a whole second, since names and many stores have whole
        seconds: a time that they show as earlier than the cutoff is earlier.
        """
        return (self.earliest - max(min_age, grace_period) - skew).replace(microsecond=0)


@dataclass(frozen=True)
class Launch:
    """The scheduler's run that started this process, if any. Locks name it.

    Attributes:
        run: id of the run in a scheduler such as Dagster; empty if no scheduler can tell when this work ends.
        ended_at: returns the end time of a run of the same scheduler, UTC; None if it has not ended or is unknown.
    """

    run: str = ""
    ended_at: Callable[[str], datetime | None] = lambda _: None


@dataclass(frozen=True)
class OpenRepository:
    """A repository's facts, its server, its store and the clock.

    Attributes:
        opener: opens the same store again in another process.
        others: repositories whose references into this one's namespace count as well.
        loosened: settings that a launch changed for this run; includes `sweep` if the launch requested a sweep.
        opened: True if the run was opened; otherwise assets are materialized under an id that the user chose.
        launch: the launch that started this process.
    """

    facts: RepositoryFacts
    namespace: Namespace
    api: LakeFSApi
    store: ObjectStore
    opener: OpensStore
    settings: CollectionSettings
    clock: Clock
    others: tuple["OpenRepository", ...] = ()
    loosened: Mapping[str, bool | int | float] = field(default_factory=dict)
    opened: bool = True
    launch: Launch = field(default_factory=Launch)

    @property
    def branches_api(self) -> "LakeFSClient":
        """The client with calls that change branches, tags and rules. Runs use LakeFSApi, which has none."""
        return cast("LakeFSClient", self.api)

    @property
    def skew(self) -> timedelta:
        """The safety margin below the earliest clock."""
        return timedelta(minutes=self.settings.clock_skew_minutes)

    @property
    def min_age(self) -> timedelta:
        """The minimum age in the settings."""
        return timedelta(hours=self.settings.min_age_hours)

    def wait_until(self, moment: datetime, note: LogLine, what: str) -> float:
        """Waits until a moment, after logging the reason; returns the seconds waited."""
        seconds = max((moment - self.clock.now()).total_seconds(), 0.0)
        if seconds:
            note(f"waiting {seconds:.0f} s before {what}")
            self.clock.sleep(seconds)
        return seconds

    def dumping_at_once(self, **changes: object) -> "OpenRepository":
        """The repository without the wait before a refs dump, for a dump that no deletion is based on.

        Args:
            changes: other settings.
        """
        settings = self.settings.model_copy(update={"wait_before_dump_seconds": 0, **changes})
        return replace(self, settings=settings)


def require_writable(facts: RepositoryFacts) -> None:
    """Raises ReadOnlyRepository if lakeFS would refuse to prepare a collection."""
    if facts.read_only:
        raise ReadOnlyRepository(
            f"repository {facts.id} is read-only: lakeFS refuses to prepare a collection, and nothing in it can become "
            "garbage"
        )


def relative(repository: OpenRepository, address: str) -> str:
    """The address relative to the storage namespace. Raises ConfigurationError if it lies outside."""
    if parse_location(address) is None:
        return address
    key = repository.namespace.relative(address)
    if not key:
        raise ConfigurationError(
            f"{address} is outside of {repository.namespace.uri}: objects there are never collected"
        )
    return key
