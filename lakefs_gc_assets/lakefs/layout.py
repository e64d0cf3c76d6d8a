"""Layouts of names in a storage namespace: which one wrote a name, in which slice, and when it was issued.

Layouts (lakeFS server, `pkg/upload/path_provider.go` and the runs that it builds on):

| layout | name |
|---|---|
| `slice` | `data/<slice>/<xid>[,<43 characters of signature>]`, since v0.87 |
| `sharded` | `data/!ab/c/<slice>/<xid>[,signature]`, Enterprise servers |
| `token` | `data/<repository>:<staging token>/<nanoid>`, addresses issued by old servers |
| `flat` | 32 hexadecimal digits at the root, repositories older than `data/` |
| `unrecognised` | anything else: kept, and reported |
| `special` | `_lakefs/…` and the root `dummy`: never part of the universe |

A *window* groups slices by their creation (UTC); what lies in no slice belongs to the window `legacy`.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from lakefs_gc_assets.lakefs import xids

DATA_PREFIX = "data/"
METADATA_PREFIX = "_lakefs/"
LEGACY_WINDOW = "legacy"
OTHER_WINDOW = "other"
SLICE_SPAN_SECONDS = 3600
"""lakeFS opens a new slice on the first use after this long (or after 50,000 names)."""

WindowSize = Literal["month", "day", "hour", "slice"]

_XID = r"[0-9a-v]{19}[0g]"
_SIGNATURE = r"(?:,[A-Za-z0-9_-]{43})?"
SLICE_NAME = rf"data/({_XID})/({_XID}){_SIGNATURE}"
_SHARDED_NAME = rf"data/![0-9A-Za-z_-]{{2}}/[0-9A-Za-z_-]/({_XID})/({_XID}){_SIGNATURE}"
_TOKEN_NAME = r"data/[A-Za-z0-9_-]+:[A-Za-z0-9_:-]+/[A-Za-z0-9_-]{20,21}"  # noqa: S105
_FLAT_NAME = r"[0-9a-f]{32}"
_PATTERNS = tuple(re.compile(p) for p in (SLICE_NAME, _SHARDED_NAME, _TOKEN_NAME, _FLAT_NAME))
_WINDOW = re.compile(rf"{LEGACY_WINDOW}|\d{{4}}-\d\d(-\d\d(T\d\d)?)?|{_XID}", re.ASCII)


class Layout(StrEnum):
    """Layout that a name belongs to."""

    SLICE = "slice"
    SHARDED = "sharded"
    TOKEN = "token"  # noqa: S105
    FLAT = "flat"
    UNRECOGNISED = "unrecognised"
    SPECIAL = "special"


@dataclass(frozen=True, slots=True)
class Name:
    """Facts that a namespace-relative address states; `issued_at` in seconds UTC, None where the layout has no time.

    `issued_at` is the later of the object's and its slice's time: the reading that keeps more.
    """

    layout: Layout
    slice: str | None = None
    issued_at: int | None = None


def parse(address: str) -> Name:
    """Reads one namespace-relative address."""
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
    return Name(layout, slice_name, max(xids.issued_at(match[2]), xids.created_at(match[1])))


def is_window(name: str) -> bool:
    """True if a text is the name of a window of some size."""
    return _WINDOW.fullmatch(name) is not None


def window(slice_name: str | None, size: WindowSize) -> str:
    """The window a slice falls into; `legacy` for what lies in no slice."""
    if slice_name is None:
        return LEGACY_WINDOW
    if size == "slice":
        return slice_name
    created = xids.as_datetime(xids.created_at(slice_name))
    return created.strftime({"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}[size])
