"""The ids lakeFS gives to objects, slices and runs: 12 bytes in 20 characters that sort like the bytes.

An object's id begins with its time of issue, a slice's and a run's with a time that counts down from the year 4000,
so that the newest sorts first (lakeFS server, `pkg/upload/path_provider.go`; `rs/xid` for the encoding).
Times are whole seconds since 1970-01-01 UTC.
"""

import os
import threading
from datetime import UTC, datetime, timedelta

ALPHABET = "0123456789abcdefghijklmnopqrstuv"
LENGTH = 20
_YEAR_4000 = 64_060_588_800
_CHARACTERS = frozenset(ALPHABET)
_MASK_32 = 0xFFFF_FFFF
_AHEAD = timedelta(hours=1)
"""So much later than now an id may say that it was issued: another machine's clock may have done so."""


def is_xid(text: str) -> bool:
    """True if the text is an id as lakeFS writes it (96 bits, so the last character carries one bit only)."""
    return len(text) == LENGTH and text[-1] in "0g" and _CHARACTERS.issuperset(text)


def encode(raw: bytes) -> str:
    """The 20 characters of 12 raw bytes."""
    if len(raw) != 12:
        raise ValueError(f"an xid has 12 bytes, not {len(raw)}")
    number = int.from_bytes(raw) << 4
    return "".join(ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))


def decode(xid: str) -> bytes:
    """The 12 raw bytes of an id. Raises ValueError for anything that is no xid."""
    if not is_xid(xid):
        raise ValueError(f"not an xid: {xid!r}")
    return (int(xid, 32) >> 4).to_bytes(12)


def issued_at(xid: str) -> int:
    """When an object's id was issued."""
    return int.from_bytes(decode(xid)[:4])


def created_at(descending: str) -> int:
    """When a slice or a run was created, from its descending id."""
    return (_YEAR_4000 - int.from_bytes(decode(descending)[:4])) & _MASK_32


def is_to_come(descending: str, now: datetime) -> bool:
    """True if a descending id is of a time that no clock shows yet, so that somebody made it up. `now`: UTC."""
    return created_at(descending) > (now + _AHEAD).timestamp()


class Generator:
    """Issues ids that are unique in this process and, by 5 random bytes, between processes."""

    def __init__(self, machine: bytes | None = None, counter: int | None = None) -> None:
        self._machine = os.urandom(5) if machine is None else machine
        self._counter = int.from_bytes(os.urandom(3)) if counter is None else counter
        self._lock = threading.Lock()

    def _with_prefix(self, prefix: int) -> str:
        with self._lock:
            self._counter = (self._counter + 1) & 0xFF_FFFF
            counter = self._counter
        return encode((prefix & _MASK_32).to_bytes(4) + self._machine + counter.to_bytes(3))

    def ascending(self, now: datetime) -> str:
        """An id as lakeFS gives it to an object."""
        return self._with_prefix(int(now.timestamp()))

    def descending(self, now: datetime) -> str:
        """An id as lakeFS gives it to a slice or a run."""
        return self._with_prefix(_YEAR_4000 - int(now.timestamp()))


def issue_run_id(now: datetime) -> str:
    """A new id of a run of ours: of two that processes issue in one second, the later one sorts first as well.

    The bytes that follow the seconds count the microseconds of that second down; five more are random.
    """
    seconds = (_YEAR_4000 - int(now.timestamp())) & _MASK_32
    return encode(seconds.to_bytes(4) + (999_999 - now.microsecond).to_bytes(3) + os.urandom(5))


def as_datetime(seconds: int) -> datetime:
    """The moment of a time in an id."""
    return datetime.fromtimestamp(seconds, UTC)
