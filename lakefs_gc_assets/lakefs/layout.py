"""Names of objects in a storage namespace: their ids, layouts, slices and windows.

An id (xid) has 12 bytes in 20 characters that sort like the bytes. An object's id begins with its time of issue. Ids of
slices and runs begin with a time that counts down from the year 4000, so that the newest sorts first. Times are whole
seconds since 1970-01-01 UTC.

Sources: lakeFS server, `pkg/upload/path_provider.go`, `pkg/block/gs/adapter.go` and `compose.go`; `rs/xid` for the
encoding.
"""

import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

XID_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
XID_LENGTH = 20
_YEAR_4000 = 64_060_588_800
_CHARACTERS = frozenset(XID_ALPHABET)
_MASK_32 = 0xFFFF_FFFF
_AHEAD = timedelta(hours=1)
"""Tolerance for ids from the future: the clock of another machine may be ahead."""


def is_xid(text: str) -> bool:
    """True if the text is an id as lakeFS writes it (96 bits, so the last character holds only one bit)."""
    return len(text) == XID_LENGTH and text[-1] in "0g" and _CHARACTERS.issuperset(text)


def encode_xid(raw: bytes) -> str:
    """The 20 characters of 12 raw bytes."""
    if len(raw) != 12:
        raise ValueError(f"an xid has 12 bytes, not {len(raw)}")
    number = int.from_bytes(raw) << 4
    return "".join(XID_ALPHABET[number >> shift & 31] for shift in range(95, -1, -5))


def decode_xid(xid: str) -> bytes:
    """The 12 raw bytes of an id. Raises ValueError if it is not an xid."""
    if not is_xid(xid):
        raise ValueError(f"not an xid: {xid!r}")
    return (int(xid, 32) >> 4).to_bytes(12)


def issued_at(xid: str) -> int:
    """Time of issue of an object's id."""
    return int.from_bytes(decode_xid(xid)[:4])


def created_at(descending: str) -> int:
    """Creation time of a slice or a run, from its descending id."""
    return (_YEAR_4000 - int.from_bytes(decode_xid(descending)[:4])) & _MASK_32


def is_to_come(descending: str, now: datetime) -> bool:
    """True if a descending id lies so far in the future that it must be forged. `now`: UTC."""
    return created_at(descending) > (now + _AHEAD).timestamp()


class XidGenerator:
    """Issues ids that are unique in this process and, by 5 random bytes, between processes."""

    def __init__(self, machine: bytes | None = None, counter: int | None = None) -> None:
        self._machine = os.urandom(5) if machine is None else machine
        self._counter = int.from_bytes(os.urandom(3)) if counter is None else counter
        self._lock = threading.Lock()

    def _with_prefix(self, prefix: int) -> str:
        with self._lock:
            self._counter = (self._counter + 1) & 0xFF_FFFF
            counter = self._counter
        return encode_xid((prefix & _MASK_32).to_bytes(4) + self._machine + counter.to_bytes(3))

    def ascending(self, now: datetime) -> str:
        """An id as lakeFS issues it for an object."""
        return self._with_prefix(int(now.timestamp()))

    def descending(self, now: datetime) -> str:
        """An id as lakeFS issues it for a slice or a run."""
        return self._with_prefix(_YEAR_4000 - int(now.timestamp()))


def issue_run_id(now: datetime) -> str:
    """A new id for a run of this collector. Later ids sort first, even within one second.

    The three bytes after the seconds count down the microseconds of the second; the last five are random.
    """
    seconds = (_YEAR_4000 - int(now.timestamp())) & _MASK_32
    return encode_xid(seconds.to_bytes(4) + (999_999 - now.microsecond).to_bytes(3) + os.urandom(5))


def as_datetime(seconds: int) -> datetime:
    """A time of an id as datetime in UTC."""
    return datetime.fromtimestamp(seconds, UTC)


DATA_PREFIX = "data/"
METADATA_PREFIX = "_lakefs/"
RUNS_PREFIX = f"{METADATA_PREFIX}retention/gc/uncommitted/"
"""Folder of the server's preparations of uncommitted data, and of our runs."""
QUARANTINE_PREFIX = f"{METADATA_PREFIX}retention/gc/quarantine/"
"""Folder of moved objects, with a subfolder for each run."""
MOVED_METADATA = "metadata"
"""Subfolder of the quarantine, instead of a run's, for unneeded ranges and metaranges."""
SIGNATURE = "signature"
"""Name of the entry with the signature in JSON records of our runs."""
LEGACY_WINDOW = "legacy"
OTHER_WINDOW = "other"
SLICE_SPAN_SECONDS = 3600
"""Age in seconds after which lakeFS opens a new slice on the next use (or after 50,000 names)."""

WindowSize = Literal["month", "day", "hour", "slice"]

_XID = r"[0-9a-v]{19}[0g]"
_SIGNATURE = r",[A-Za-z0-9_-]{43}"
_PART_NUMBER = r"(?:0000[1-9]|000[1-9][0-9]|00[1-9][0-9]{2}|0[1-9][0-9]{3}|10000)"
LEFTOVER = rf"\.(?:multipart|part_{_PART_NUMBER}(?:_1(?:_2)?)?)"
"""Suffix of a leftover, a helper object of a multipart upload that no entry ever names.

On Google Cloud Storage, lakeFS writes a marker `<address>.multipart` and each part as `<address>.part_<5 digits>`. It
composes up to 32 parts into one object, which has the name of its first part with the suffix `_1`. A second round adds
`_2`; two rounds suffice for the maximum of 10,000 parts. Abandoned uploads leave these objects behind.
"""
_SUFFIX = f"(?:{_SIGNATURE}|{LEFTOVER})?"
SLICE_NAME = rf"data/({_XID})/({_XID}){_SUFFIX}"
SHARDED_NAME = rf"data/![0-9A-Za-z_-]{{2}}/[0-9A-Za-z_-]/(?P<slice>{_XID})/(?P<id>{_XID}){_SUFFIX}"
_TOKEN_NAME = r"data/[A-Za-z0-9_-]+:[A-Za-z0-9_:-]+/[A-Za-z0-9_-]{20,21}"  # noqa: S105
_FLAT_NAME = r"[0-9a-f]{32}"
_PATTERNS = tuple(re.compile(p) for p in (SLICE_NAME, SHARDED_NAME, _TOKEN_NAME, _FLAT_NAME))
_WINDOW = re.compile(rf"{LEGACY_WINDOW}|\d{{4}}-\d\d(-\d\d(T\d\d)?)?|{_XID}", re.ASCII)


class Layout(StrEnum):
    """Layout of a name.

    | layout | name |
    |---|---|
    | `slice` | `data/<slice>/<xid>[,<43 characters of signature>]`, since v0.87 |
    | `sharded` | `data/!ab/c/<slice>/<xid>[,signature]`, Enterprise servers |
    | `token` | `data/<repository>:<staging token>/<nanoid>`, addresses issued by old servers |
    | `flat` | 32 hexadecimal digits at the root, repositories older than `data/` |
    | `slice`, `sharded` | such a name without signature, and the suffix of a leftover (`LEFTOVER`) |
    | `unrecognised` | anything else: kept, and reported |
    | `special` | `_lakefs/…` and the root `dummy`: never part of the universe |
    """

    SLICE = "slice"
    SHARDED = "sharded"
    TOKEN = "token"  # noqa: S105
    FLAT = "flat"
    UNRECOGNISED = "unrecognised"
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class Name:
    """Facts in the name of a namespace-relative address.

    `issued_at` is the later of the object's and its slice's time, which keeps more. It is in seconds UTC, or None if
    the layout has no time.
    """

    layout: Layout
    slice: str | None = None
    issued_at: int | None = None


def parse(address: str) -> Name:
    """Parses one namespace-relative address."""
    if address.startswith(METADATA_PREFIX) or address == "dummy":
        return Name(Layout.SPECIAL)
    in_slice, sharded, token, flat = _PATTERNS
    if match := in_slice.fullmatch(address):
        return _timed(Layout.SLICE, match, slice_name=match[1])
    if match := sharded.fullmatch(address):
        return _timed(Layout.SHARDED, match, slice_name=None)
    if token.fullmatch(address):
        return Name(Layout.TOKEN)
    if flat.fullmatch(address):
        return Name(Layout.FLAT)
    return Name(Layout.UNRECOGNISED)


def _timed(layout: Layout, match: re.Match[str], slice_name: str | None) -> Name:
    return Name(layout, slice_name, max(issued_at(match[2]), created_at(match[1])))


def moved_metadata(key: str) -> str:
    """Key of a range's or metarange's copy in quarantine."""
    return f"{QUARANTINE_PREFIX}{MOVED_METADATA}/{key}"


def parse_copy(key: str) -> tuple[str, str]:
    """Run id and original address, from the key of a copy in quarantine."""
    run_id, _, address = key.removeprefix(QUARANTINE_PREFIX).partition("/")
    return run_id, address


def is_window(name: str) -> bool:
    """True if a text is the name of a window of any size."""
    return _WINDOW.fullmatch(name) is not None


def window(slice_name: str | None, size: WindowSize) -> str:
    """The window of a slice. Windows group slices by creation time (UTC); names without a slice belong to `legacy`."""
    if slice_name is None:
        return LEGACY_WINDOW
    if size == "slice":
        return slice_name
    created = as_datetime(created_at(slice_name))
    return created.strftime({"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}[size])


_IN_SLICE = f"^{SLICE_NAME}$"
_SLICE_AT = len(DATA_PREFIX)
_OBJECT_AT = _SLICE_AT + XID_LENGTH + 1
_VALUES = np.zeros(256, np.uint64)
_VALUES[np.frombuffer(XID_ALPHABET.encode(), np.uint8)] = np.arange(32, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class NameColumns:
    """Facts in the names of a column of addresses: layout, slice (or null), window, time of issue (or null).

    Times are microseconds since 1970-01-01 UTC, the unit of Arrow's timestamps.
    """

    layouts: pa.StringArray
    slices: pa.StringArray
    windows: pa.StringArray
    issued_at: pa.TimestampArray


def read_names(addresses: pa.StringArray, window_size: WindowSize) -> NameColumns:
    """Parses a column of namespace-relative addresses. The layout `slice` needs no Python object per row.

    Raises ValueError if an address is null.
    """
    if addresses.null_count:
        raise ValueError(f"{addresses.null_count} of {len(addresses)} addresses are null")
    usual = pc.match_substring_regex(addresses, _IN_SLICE)
    if usual.true_count == len(addresses):
        return _usual_names(addresses, window_size)
    at, others_at = pc.indices_nonzero(usual), pc.indices_nonzero(pc.invert(usual))
    parts = _usual_names(addresses.take(at), window_size), _other_names(addresses.take(others_at))
    order = np.empty(len(addresses), np.int64)
    order[np.concatenate([at, others_at])] = np.arange(len(addresses))
    columns = (pa.concat_arrays([getattr(part, column.name) for part in parts]) for column in fields(NameColumns))
    return NameColumns(*(column.take(pa.array(order)) for column in columns))


def _usual_names(addresses: pa.StringArray, window_size: WindowSize) -> NameColumns:
    slices = pc.utf8_slice_codeunits(addresses, _SLICE_AT, _SLICE_AT + XID_LENGTH).dictionary_encode()
    created = np.array([created_at(name) for name in slices.dictionary.to_pylist()], np.int64)
    windows = pa.array([window(name, window_size) for name in slices.dictionary.to_pylist()], pa.string())
    return NameColumns(
        pa.repeat(pa.scalar(Layout.SLICE.value), len(addresses)),
        slices.dictionary.take(slices.indices),
        windows.take(slices.indices),
        _times(np.maximum(_issued_at(addresses), created[slices.indices.to_numpy()])),
    )


def _times(seconds: np.ndarray | Sequence[int | None]) -> pa.TimestampArray:
    return pa.array(seconds, pa.int64()).cast(pa.timestamp("s", "UTC")).cast(pa.timestamp("us", "UTC"))


def _issued_at(addresses: pa.StringArray) -> np.ndarray:
    """Seconds in the ids of addresses, all with the layout `slice`: the first 32 bits of each id."""
    ids = pc.utf8_slice_codeunits(addresses, _OBJECT_AT, _OBJECT_AT + 7)
    if not len(ids):
        return np.empty(0, np.int64)
    values_buffer = ids.buffers()[2]
    start = ids.offset * 7
    letters = np.frombuffer(values_buffer, np.uint8)[start : start + 7 * len(ids)].reshape(-1, 7)
    number = np.zeros(len(ids), np.uint64)
    for position in range(7):
        number = number << np.uint64(5) | _VALUES[letters[:, position]]
    return (number >> np.uint64(3)).astype(np.int64)


def _other_names(addresses: pa.StringArray) -> NameColumns:
    names = [parse(address) for address in addresses.to_pylist()]
    return NameColumns(
        pa.array([name.layout.value for name in names], pa.string()),
        pa.nulls(len(names), pa.string()),
        pa.repeat(pa.scalar(LEGACY_WINDOW), len(names)),
        _times([name.issued_at for name in names]),
    )
