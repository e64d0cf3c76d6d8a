"""A part of the listing that one task stops and other tasks continue."""

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import chain, pairwise
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.slices import sealed_folders
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe.listing import Part, Rest
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, ListsInOrder, ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore

PREFIX = "data/folder/"
BORN = datetime(2026, 11, 1, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.text(st.sampled_from("a0/._~é"), max_size=6)


class Names(LocalStore):
    """A store that lists a few names at a time.

    Attributes:
        listed: number of rows that each listing returned, in call order.
    """

    def __init__(self, folder: Path, names: Sequence[str], batch: int, prefix: str = PREFIX) -> None:
        super().__init__(folder)
        self._names = sorted((prefix + name for name in names), key=str.encode)
        self._bytes = [name.encode() for name in self._names]
        self._batch = batch
        self.listed: list[int] = []

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        at, end = bisect_right(self._bytes, after.encode()), len(self._names)
        if until is not None:
            end = bisect_right(self._bytes, until.encode())
        call = len(self.listed)
        self.listed.append(0)
        for start in range(at, end, self._batch):
            names = self._names[start : min(end, start + self._batch)]
            self.listed[call] += len(names)
            rows = [names, [1] * len(names), [BORN] * len(names), [None] * len(names), [None] * len(names)]
            arrays = [pa.array(row, field.type) for row, field in zip(rows, LISTING_SCHEMA, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=LISTING_SCHEMA)


def in_rounds(store: ListsInOrder, limit: int) -> tuple[list[str], int]:
    """Names that tasks list in the folder, and the number of rounds."""
    found: list[str] = []
    parts: Sequence[Part] = [Part(PREFIX)]
    rounds = 0
    while parts:
        left: list[Rest] = []

        def rows(listed: Part, left: list[Rest] = left) -> Iterator[pa.RecordBatch]:
            batches, rest = listing.list_part(store, listed, "month", limit)
            yield from batches
            left += [rest] if rest else []

        for part in parts:
            found += [address for batch in rows(part) for address in batch["address"].to_pylist()]
        parts = [piece for rest in left for piece in listing.cut(rest)]
        rounds += 1
    return found, rounds


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(names=st.sets(TEXT.filter(bool), max_size=60), limit=st.integers(1, 20), batch=st.integers(1, 5))
def test_any_names_are_listed_once_each(tmp_path: Path, names: set[str], limit: int, batch: int) -> None:
    store = Names(tmp_path, sorted(names), batch)

    found, _ = in_rounds(store, limit)

    assert sorted(found) == sorted(PREFIX + name for name in names)


@given(TEXT, TEXT, TEXT, st.text(st.sampled_from("abyzé\U0001f5d1"), max_size=6), st.booleans())
def test_pieces_follow_each_other_from_beginning_to_end(
    first: str, last: str, until: str, alphabet: str, ends: bool
) -> None:
    first, last, until = sorted((first, last, until), key=str.encode)
    part = Part(PREFIX, slice="slice", after=PREFIX + last, until=PREFIX + until if ends else None)

    cut = listing.cut(Rest(part, PREFIX + first, "".join(sorted(set(alphabet)))))

    assert 1 <= len(cut) <= 50
    assert cut[0].after == part.after
    assert cut[-1].until == part.until
    for one, other in pairwise(cut):
        assert one.until == other.after
        assert one.until is not None
        assert one.after.encode() < one.until.encode()
    assert {replace(piece, after="", until=None) for piece in cut} == {replace(part, after="", until=None)}


def ids(seconds: Sequence[float]) -> list[str]:
    issue = layout.XidGenerator(b"12345", 0)
    return [issue.ascending(BORN + timedelta(seconds=second)) for second in seconds]


COUNT = 8_000
SKEWED: dict[str, Callable[[], list[str]]] = {
    "a slice that filled evenly": lambda: ids([number * 3600 / COUNT for number in range(COUNT)]),
    "a slice that filled in a minute, and one late upload": lambda: ids(
        [*(number * 60 / COUNT for number in range(COUNT)), 1e5]
    ),
    "a slice that filled in a second": lambda: ids([0] * COUNT),
    "a root of old names": lambda: [md5(str(number).encode()).hexdigest() for number in range(COUNT)],
    "random names of all characters": lambda: [
        "".join(chance.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-", k=21))
        for chance in [random.Random(1)]
        for _ in range(COUNT)
    ],
    "tables in folders": lambda: [
        f"tables/t{number % 7}/year=2026/month={number % 12 + 1:02}/part-{number:06}.parquet" for number in range(COUNT)
    ],
}


@pytest.mark.parametrize("kind", SKEWED)
def test_no_listing_of_a_large_part_is_long(tmp_path: Path, kind: str) -> None:
    limit = COUNT // 40
    names = SKEWED[kind]()
    store = Names(tmp_path, names, 100)

    found, rounds = in_rounds(store, limit)

    assert sorted(found) == sorted(PREFIX + name for name in names)
    assert max(store.listed) == limit
    # No server creates nested folders; with them, most bounds fall outside all names.
    folders = kind == "tables in folders"
    assert rounds <= (10 if folders else 4)
    assert sum(listed == 0 for listed in store.listed) <= (500 if folders else 80)
    assert sum(listed > 0 for listed in store.listed) <= 2 * COUNT // limit


def test_a_store_without_an_order_lists_a_large_part_whole() -> None:
    names = pa.array([PREFIX + name for name in "cab"])

    class Unordered:
        def list(self, prefix: str) -> Iterator[pa.RecordBatch]:
            nothing = pa.nulls(3, pa.string())
            rows = [names, pa.array([1] * 3), pa.array([BORN] * 3, LISTING_SCHEMA.types[2]), nothing, nothing]
            yield pa.RecordBatch.from_arrays(rows, schema=LISTING_SCHEMA).slice(0, 2)
            yield pa.RecordBatch.from_arrays(rows, schema=LISTING_SCHEMA).slice(2)

    store = cast(ObjectStore, Unordered())
    batches, _ = listing.list_part(store, Part(PREFIX), "month", 1)
    assert [address for batch in batches for address in batch["address"].to_pylist()] == names.to_pylist()


def test_a_part_that_is_not_large_is_listed_in_one_go(tmp_path: Path) -> None:
    store = Names(tmp_path, SKEWED["a root of old names"]()[:1000], 100)

    assert in_rounds(store, 1001)[1] == 1
    assert store.listed == [1000]


class TestShards:
    """An optimized run lists a shard, and stores objects of slices that are not sealed."""

    SLICES = tuple(layout.XidGenerator().descending(BORN + timedelta(hours=hours)) for hours in range(4))

    def listed(self, names: Sequence[str], sealed: Sequence[str], folder: Path) -> tuple[list[str], list[int]]:
        store = Names(folder, names, 1000, "data/!ab/")
        folders = sealed_folders(sealed)
        batches, _ = listing.list_part(store, Part("data/!ab/"), "month", sealed=folders)
        rows = [address.removeprefix("data/!ab/") for batch in batches for address in batch["address"].to_pylist()]
        return rows, store.listed

    def test_of_a_sealed_slice_a_page_is_listed(self, tmp_path: Path) -> None:
        newest, new, old, oldest = sorted(self.SLICES)
        names = {
            folder: [f"{folder}/{number:06}" for number in range(count)]
            for folder, count in ((f"c/{newest}", 2), (f"c/{old}", 8_000), (f"c/{new}", 1_500), (f"d/{oldest}", 4_000))
        }
        rows, pages = self.listed([*chain(*names.values())], [old, oldest], tmp_path)
        assert rows == names[f"c/{newest}"] + names[f"c/{new}"]
        # Three pages until one is within a single sealed slice, then one page of the other slice.
        assert pages == [3_000, 1_000, 0]

    @given(st.data())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
    def test_exactly_what_lies_in_no_sealed_slice_is_left_out(self, tmp_path: Path, data: st.DataObject) -> None:
        folders = [*(f"{leaf}/{name}" for leaf in "-c" for name in self.SLICES), "c", f"cd/{self.SLICES[0]}", ""]
        counts = data.draw(st.lists(st.sampled_from([0, 1, 2_500]), min_size=len(folders), max_size=len(folders)))
        odd = data.draw(
            st.sets(st.sampled_from([f"{folder}/{name}" for folder in folders for name in ("~", "é~", "x/y")]))
        )
        names = {
            f"{folder}/{at:05}" for folder, count in zip(folders, counts, strict=True) for at in range(count)
        } | odd
        sealed = data.draw(st.sets(st.sampled_from(self.SLICES)))
        rows, _ = self.listed(sorted(names), sorted(sealed), tmp_path)
        unsealed = {f"{leaf}/{name}" for leaf in "-c" for name in self.SLICES if name not in sealed}
        assert sorted(rows) == sorted(name for name in names if "/".join(name.split("/")[:2]) in unsealed)
