"""What the frames' Spark functions do, on lists of rows: `test_spark_agrees.py` shows that they agree.

Rows are dictionaries with the columns of `collection/tables.py`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from lakefs_gc_assets.collection.eligibility import MULTIPART_ETAG, MULTIPART_SIGHTING_SECONDS, PLAIN_ETAG, Kept
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import Layout, WindowSize
from lakefs_gc_assets_tests.simulation.bucket import md5

Row = dict[str, Any]
_MULTIPART, _PLAIN = re.compile(MULTIPART_ETAG), re.compile(PLAIN_ETAG)
_EMPTY = md5(b"")
_SLICE_FOLDER = re.compile(r"^data/([0-9a-v]{19}[0g])/")


def slice_folder(address: str) -> str | None:
    """The slice whose folder an address lies in, None for addresses in no slice."""
    found = _SLICE_FOLDER.match(address)
    return found[1] if found else None


def is_multipart(row: Row) -> bool:
    """Whether an object was uploaded in parts."""
    return row["etag"] is not None and _MULTIPART.match(row["etag"]) is not None


def without(universe: Iterable[Row], *live: Collection[str]) -> list[Row]:
    """`sources.subtraction.without`."""
    return [row for row in universe if not any(row["address"] in addresses for addresses in live)]


def kept_because(row: Row, cutoff: datetime, windows: Collection[str], sighted: Collection[str]) -> Kept | None:
    """`sources.subtraction.kept_because`, for one row."""
    issued = row["issued_at"]
    if row["layout"] == Layout.UNRECOGNISED:
        return Kept.UNRECOGNISED
    if row["last_modified"] >= cutoff or (issued is not None and issued >= cutoff):
        return Kept.YOUNG
    if issued is None and row["layout"] in (Layout.SLICE, Layout.SHARDED):
        return Kept.YOUNG
    if row["slice_window"] not in windows:
        return Kept.OTHER_WINDOW
    if is_multipart(row) and row["address"] not in sighted:
        return Kept.MULTIPART
    return None


def first_sightings(sightings: Iterable[Sequence[Row]]) -> dict[str, datetime]:
    """The earliest sighting of each address in the frames of several runs: `assets.sightings.earlier`."""
    first: dict[str, datetime] = {}
    for rows in sightings:
        for row in rows:
            seen = row["first_listed_at"]
            first[row["address"]] = min(first.get(row["address"], seen), seen)
    return first


def old_enough(first: dict[str, datetime], listing_started_at: datetime) -> set[str]:
    """Addresses sighted long enough before a listing: `assets.sightings.old_enough`."""
    limit = listing_started_at - timedelta(seconds=MULTIPART_SIGHTING_SECONDS)
    return {address for address, seen in first.items() if seen <= limit}


def _content(row: Row) -> str | None:
    if row["size"] == 0:
        return _EMPTY
    etag = row["etag"]
    return etag if etag is not None and _PLAIN.match(etag) else None


def same_content(rows: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    """`sources.subtraction.same_content`."""
    known: set[tuple[int, str]] = set()
    known_sizes: set[int] = set()
    unknown_sizes: set[int] = set()
    for other in others:
        content = _content(other)
        if content is None:
            unknown_sizes.add(other["size"])
        else:
            known.add((other["size"], content))
            known_sizes.add(other["size"])
    found = []
    for row in rows:
        content, size = _content(row), row["size"]
        if size in unknown_sizes or (size in known_sizes if content is None else (size, content) in known):
            found.append(row)
    return found


def plain_etag(row: Row) -> bool:
    """Whether the ETag looks like the MD5 of a content that is not empty."""
    return row["etag"] is not None and _PLAIN.match(row["etag"]) is not None and row["size"] > 0


def of_settled(rows: Iterable[Row], settled: Collection[str]) -> list[Row]:
    """`sources.carrying.of_settled`."""
    return [row for row in rows if (folder := slice_folder(row["address"])) is None or folder in settled]


def of_unsettled(rows: Iterable[Row], settled: Collection[str]) -> list[Row]:
    """`sources.carrying.of_unsettled`."""
    return [row for row in rows if (folder := slice_folder(row["address"])) is not None and folder not in settled]


def still_open(
    universe: Iterable[Row], settled: Collection[str], committed: Collection[str], deleted: Collection[str]
) -> list[Row]:
    """`sources.carrying.still_open`."""
    return without(of_settled(universe, settled), committed, deleted)


def in_windows(rows: Iterable[Row], window_size: WindowSize) -> list[Row]:
    """`sources.carrying.in_windows`."""
    return [{**row, "slice_window": _window(row["address"], window_size)} for row in rows]


@lru_cache(maxsize=20_000)
def _window(address: str, window_size: WindowSize) -> str:
    return layout.window(layout.parse(address).slice, window_size)
