import json
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.frames import LISTED
from lakefs_gc_assets.collector.frame.slices import UnsealedSlices, folders, windows_of
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.collector.universe import listing as parts
from lakefs_gc_assets.collector.universe.listing import Listing, Part, Rest
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, ListsInOrder, ObjectFacts, ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3.inventory import open_inventory
from lakefs_gc_assets_tests.lakefs.test_layout import SIZES
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server
from lakefs_gc_assets_tests.servers.stores import local_store as store
from lakefs_gc_assets_tests.storage.s3 import inventories
from lakefs_gc_assets_tests.storage.s3.inventories import Version

__all__ = ["bucket", "s3_server", "store"]

CUTOFF = datetime(2026, 11, 20, 11, 0, tzinfo=UTC)
ISSUE = layout.XidGenerator()


def slice_of(moment: datetime) -> str:
    return ISSUE.descending(moment)


def listed(store: ObjectStore, listing: Listing) -> list[dict[str, object]]:
    """Rows of all parts."""
    batches = [batch for part in listing.parts for batch in parts.list_part(store, part, "month")[0]]
    assert all(batch.schema == LISTED and batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, LISTED).to_pylist() if batches else []


def addresses(store: ObjectStore, cutoff: datetime = CUTOFF) -> list[str]:
    return sorted(str(row["address"]) for row in listed(store, parts.listing(store, cutoff)))


def fill(store: ObjectStore, *keys: str) -> None:
    for key in keys:
        store.put(key, b"content")


class TestWhatIsListed:
    def test_everything_but_lakefs_own_files(self, store: ObjectStore) -> None:
        slice_name, xid = slice_of(CUTOFF - timedelta(days=2)), ISSUE.ascending(CUTOFF - timedelta(days=2))
        data = [
            f"data/{slice_name}/{xid}",
            f"data/{slice_name}/deeper/foreign",
            f"data/!ab/c/{slice_name}/{xid}",
            "data/repo:token/V1StGXR8_Z5jdHi6B-myT",
            "data/by-hand",
            "data/stray-1/s0",
            "d41d8cd98f00b204e9800998ecf8427e",
            "stray-at-root",
        ]
        fill(store, *data, "dummy", "_lakefs/dummy", "_lakefs/" + "a" * 64, "_lakefs/retention/gc/rules/config.json")
        fill(store, "nested/repository/data/x", "other/data/" + slice_name + "/" + xid)
        assert addresses(store) == sorted(data)

    def test_each_object_once(self, store: ObjectStore) -> None:
        slices = [slice_of(CUTOFF - timedelta(hours=hours)) for hours in range(1, 40, 3)]
        fill(store, *(f"data/{name}/{ISSUE.ascending(CUTOFF)}" for name in slices), "root", "data/x", "data/y/z")
        found = addresses(store)
        assert len(found) == len(set(found)) == len(slices) + 3

    def test_an_inventory_of_it_gives_the_same_objects(self, s3_server: S3Server, bucket: str) -> None:
        settings, namespace = s3_server.settings(), Namespace.parse(f"s3://{bucket}/some/repository")
        store = open_store(settings, namespace)
        slices, xid = [slice_of(CUTOFF - timedelta(hours=hours)) for hours in (-1, 1, 4)], ISSUE.ascending(CUTOFF)
        fill(store, *(f"data/{name}/{xid}" for name in slices), f"data/{slices[1]}/a b/c", "root", "data/x", "data//y")
        fill(store, "data/folder/z", "dummy", "_lakefs/dummy", "other/data/x", "deep/er")
        whole = open_store(settings, Namespace.parse(f"s3://{bucket}"))
        facts = pa.Table.from_batches(whole.list("")).to_pylist()
        versions = [Version(row["key"], row["size"], row["last_modified"], row["etag"]) for row in facts]
        # Objects of a slice that has since disappeared are left out.
        store.delete([f"data/{slices[2]}/{xid}"])
        key = inventories.write(whole, "reports/", "CSV", [versions[:3], versions[3:]], sourceBucket=bucket)
        inventory = open_inventory(settings, f"s3://{bucket}/{key}", namespace)
        listing = parts.listing(store, CUTOFF)
        batches = [
            batch for file in inventory.files for batch in parts.list_inventory_file(inventory, listing, "month", file)
        ]
        found = pa.Table.from_batches(batches, LISTED).sort_by("address").to_pylist()
        assert found == sorted(listed(store, listing), key=lambda row: str(row["address"]))
        assert len(found) == 6

    def test_shards_are_listed_down_to_the_newest_sealed_slice(self, store: ObjectStore) -> None:
        older, sealed, young = (slice_of(CUTOFF - timedelta(hours=hours)) for hours in (20, 9, 1))
        new = [f"data/{young}/x", f"data/!ab/c/{young}/x", f"data/!cd/e/{young}/x", f"data/!cd/e/{young}/odd/y"]
        fill(store, *new, f"data/{sealed}/x", f"data/!ab/c/{sealed}/x", f"data/!ab/{young}/x", "data/!ab/c/x", "data/y")
        late = f"data/!cd/e/{older}/x"
        fill(store, late)
        assert self.unsealed(store, sealed) == sorted(new)
        assert [part.prefix for part in parts.listing(store, CUTOFF, frozenset([sealed])).parts] == [
            "data/!ab/",
            "data/!cd/",
            f"data/{young}/",
        ]
        # A slice that appears late outside of shards is sealed with its folders in shards, so these are listed, too.
        fill(store, f"data/{older}/y")
        assert self.unsealed(store, sealed) == sorted([*new, late, f"data/{older}/y"])
        assert not [part for part in parts.listing(store, CUTOFF, frozenset(), ["2026-11"]).parts if part.slice is None]

    def unsealed(self, store: ObjectStore, *sealed: str) -> list[str]:
        listing = parts.listing(store, CUTOFF, frozenset(sealed))
        listed = (parts.list_part(store, part, "month", unsealed=listing.unsealed)[0] for part in listing.parts)
        return sorted(pa.Table.from_batches([*chain(*listed)])["address"].to_pylist())

    def test_an_empty_namespace(self, store: ObjectStore) -> None:
        found = parts.listing(store, CUTOFF)
        assert (found.slices, found.skipped_slices) == ((), ())
        assert listed(store, found) == []

    def test_keys_with_doubled_slashes(self, s3_server: S3Server) -> None:
        bucket = s3_server.new_bucket()
        keys = ["data//x", "data/a//c", "data/a/b"]
        for key in keys:
            s3_server.client().put_object(Bucket=bucket, Key="repo/" + key, Body=b"")
        assert addresses(open_store(s3_server.settings(), Namespace.parse(f"s3://{bucket}/repo"))) == keys


class TestSlicesThatAreSkipped:
    @pytest.mark.parametrize(
        ("created", "skipped"),
        [
            (CUTOFF - timedelta(seconds=1), False),
            (CUTOFF, True),
            (CUTOFF + timedelta(seconds=1), True),
            (CUTOFF + timedelta(days=1), True),
            (CUTOFF - timedelta(days=4000), False),
        ],
    )
    def test_are_those_created_at_the_cutoff_or_later(
        self, store: ObjectStore, created: datetime, skipped: bool
    ) -> None:
        name = slice_of(created)
        fill(store, f"data/{name}/{ISSUE.ascending(created)}")
        found = parts.listing(store, CUTOFF)
        assert found.skipped_slices == ((name,) if skipped else ())
        assert found.slices == (() if skipped else (name,))
        assert len(listed(store, found)) == (0 if skipped else 1)

    @given(st.integers(-100_000, 100_000), st.integers(0, 3600), st.integers(0, 999_999))
    def test_hold_no_name_older_than_the_cutoff(self, seconds: int, later: int, micros: int) -> None:
        # A server names a slice's objects from the slice's creation on.
        created = CUTOFF + timedelta(seconds=seconds, microseconds=micros)
        name = f"data/{slice_of(created)}/{ISSUE.ascending(created + timedelta(seconds=later))}"
        issued = layout.parse(name).issued_at
        assert issued is not None
        if layout.as_datetime(layout.created_at(name.split("/")[1])) >= CUTOFF:
            assert layout.as_datetime(issued) >= CUTOFF

    def test_folders_that_are_no_slices_are_never_skipped(self, store: ObjectStore) -> None:
        fill(store, "data/zzzz/x", f"data/{'0' * 19}1/x", "data/!ab/c/x")
        found = parts.listing(store, datetime(1970, 1, 1, tzinfo=UTC))
        assert found.skipped_slices == ()
        assert len(listed(store, found)) == 3

    def test_newest_first(self, store: ObjectStore) -> None:
        names = [slice_of(CUTOFF - timedelta(hours=hours)) for hours in (5, 1, 3)]
        fill(store, *(f"data/{name}/x" for name in names), "data/foreign/x")
        newest_first = tuple(names[at] for at in (1, 2, 0))
        assert parts.listing(store, CUTOFF).slices == newest_first
        assert folders(store).slices == newest_first


class TestRows:
    def test_say_what_the_name_and_the_store_say(self, store: ObjectStore) -> None:
        created = datetime(2026, 10, 31, 23, 30, tzinfo=UTC)
        slice_name = slice_of(created)
        late = ISSUE.ascending(created + timedelta(minutes=40))
        fill(store, f"data/{slice_name}/{late}", "data/foreign/x", "root")
        rows = {str(row["address"]): row for row in listed(store, parts.listing(store, CUTOFF))}
        row = rows.pop(f"data/{slice_name}/{late}")
        assert (row["slice"], row["slice_window"], row["layout"]) == (slice_name, "2026-10", "slice")
        assert row["issued_at"] == datetime(2026, 11, 1, 0, 10, tzinfo=UTC)
        assert row["size"] == len(b"content")
        written = row["last_modified"]
        assert isinstance(written, datetime)
        assert abs(datetime.now(UTC) - written) < timedelta(minutes=5)
        for row in rows.values():
            assert (row["slice"], row["slice_window"], row["layout"]) == (None, "legacy", "unrecognised")
            assert row["issued_at"] is None

    def test_of_one_level_have_no_etag_where_the_store_has_none(self) -> None:
        class OneLevel:
            def list_level(self, prefix: str) -> object:
                facts = ObjectFacts("d41d8cd98f00b204e9800998ecf8427e", 1, CUTOFF, None)
                return type("Level", (), {"objects": (facts, ObjectFacts("dummy", 0, CUTOFF, "x")), "prefixes": ()})

        store: ObjectStore = OneLevel()  # type: ignore[assignment]
        (batch,), _ = parts.list_part(store, Part("", only_directly=True), "month")
        assert batch.to_pylist() == [
            {
                "address": "d41d8cd98f00b204e9800998ecf8427e",
                "slice": None,
                "slice_window": "legacy",
                "layout": "flat",
                "issued_at": None,
                "last_modified": CUTOFF,
                "size": 1,
                "etag": None,
                "storage_class": None,
            }
        ]

    def test_a_listing_without_a_key_ends_the_run(self) -> None:
        schema = pa.schema(
            [
                ("key", pa.string()),
                ("size", pa.int64()),
                ("last_modified", LISTED.field("last_modified").type),
                ("etag", pa.string()),
                ("storage_class", pa.string()),
            ]
        )
        batch = pa.RecordBatch.from_pydict(
            {
                "key": ["data/x", None],
                "size": [1, 2],
                "last_modified": [CUTOFF] * 2,
                "etag": [None] * 2,
                "storage_class": [None] * 2,
            },
            schema=schema,
        )

        class Damaged:
            def list(self, prefix: str) -> object:
                return iter([batch])

        store: ObjectStore = Damaged()  # type: ignore[assignment]
        with pytest.raises(ValueError, match="null"):
            parts.list_part(store, Part("data/x/"), "month")

    def test_a_listing_that_breaks_off_ends_the_run(self, store: ObjectStore) -> None:
        fill(store, "data/a/x")

        class Breaking:
            def list(self, prefix: str) -> object:
                yield from store.list(prefix)
                raise OSError("connection reset")

        broken: ObjectStore = Breaking()  # type: ignore[assignment]
        with pytest.raises(OSError, match="reset"):
            parts.list_part(broken, Part("data/a/"), "month")


class TestWindows:
    def test_legacy_then_oldest_first(self) -> None:
        moments = [datetime(2026, month, day, tzinfo=UTC) for month, day in ((11, 2), (9, 1), (11, 1), (10, 31))]
        slices = tuple(slice_of(moment) for moment in moments)
        assert windows_of(slices, "month") == ("legacy", "2026-09", "2026-10", "2026-11")
        assert windows_of(slices, "slice") == ("legacy", slices[1], slices[3], slices[2], slices[0])
        assert windows_of((), "month") == ("legacy",)

    @given(st.lists(st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)), max_size=20))
    def test_hold_every_slice(self, moments: list[datetime]) -> None:
        slices = tuple(slice_of(moment.replace(tzinfo=UTC)) for moment in moments)
        for size in SIZES:
            windows = windows_of(slices, size)
            assert {layout.window(name, size) for name in slices} == set(windows) - {"legacy"}
            assert len(windows) == len(set(windows))
            if size != "slice":
                assert list(windows[1:]) == sorted(windows[1:])


@pytest.mark.parametrize("name", recorded_and_made("small", "chain/4"))
def test_all_objects_of_a_recorded_server(name: str) -> None:
    folder = folder_of(name)
    rows = json.loads((folder / "listing.json").read_text())
    expected = {row["key"]: row for row in rows if row["key"].startswith("data/") or "/" not in row["key"]}
    with ReplayServer(folder) as server:
        store = open_store(server.configuration().store, Namespace.parse(server.storage_namespace))
        found = {str(row["address"]): row for row in listed(store, parts.listing(store, datetime.now(UTC)))}
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key]["size"] == row["size"]
        assert found[key]["last_modified"] == datetime.fromtimestamp(int(row["mtime"]), UTC)
        assert found[key]["etag"] == row["etag"]


# A part that one task stops and other tasks continue.


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

    def listed(
        self, names: Sequence[str], sealed: Sequence[str], folder: Path, others: Sequence[str] = ()
    ) -> tuple[list[str], list[int]]:
        store = Names(folder, names, 1000, "data/!ab/")
        unsealed = UnsealedSlices.from_sealed(sealed, others)
        batches, _ = listing.list_part(store, Part("data/!ab/"), "month", unsealed=unsealed)
        rows = [address.removeprefix("data/!ab/") for batch in batches for address in batch["address"].to_pylist()]
        return rows, store.listed

    def test_behind_the_newest_sealed_slice_nothing_is_listed(self, tmp_path: Path) -> None:
        newest, new, old, oldest = sorted(self.SLICES)
        counts = ((f"c/{newest}", 2), (f"c/{old}", 8_000), (f"c/{new}", 1_500), (f"d/{oldest}", 4_000))
        names = {folder: [f"{folder}/{number:06}" for number in range(count)] for folder, count in counts}
        for sealed in ([old, oldest], [old]):
            rows, pages = self.listed([*chain(*names.values())], sealed, tmp_path)
            assert rows == names[f"c/{newest}"] + names[f"c/{new}"]
            # The second page ends in a sealed slice. Then comes one page of the other shard.
            assert pages == [2_000, 1_000, 0]

    def test_of_a_sealed_slice_before_a_late_one_a_page_is_listed(self, tmp_path: Path) -> None:
        newest, new, old, oldest = sorted(self.SLICES)
        counts = ((f"c/{newest}", 8_000), (f"c/{new}", 1_500), (f"c/{old}", 3_000), (f"c/{oldest}", 4_000))
        names = {folder: [f"{folder}/{number:06}" for number in range(count)] for folder, count in counts}
        rows, pages = self.listed([*chain(*names.values())], [newest, oldest], tmp_path, [old])
        assert rows == names[f"c/{new}"] + names[f"c/{old}"]
        assert pages == [1_000, 5_000, 0]

    @given(st.data())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
    def test_exactly_the_unsealed_slices_before_the_end_are_listed(self, tmp_path: Path, data: st.DataObject) -> None:
        folders = [*(f"{leaf}/{name}" for leaf in "-c" for name in self.SLICES), "c", f"cd/{self.SLICES[0]}", ""]
        counts = data.draw(st.lists(st.sampled_from([0, 1, 2_500]), min_size=len(folders), max_size=len(folders)))
        odd = data.draw(
            st.sets(st.sampled_from([f"{folder}/{name}" for folder in folders for name in ("~", "é~", "x/y")]))
        )
        names = {
            f"{folder}/{at:05}" for folder, count in zip(folders, counts, strict=True) for at in range(count)
        } | odd
        sealed = data.draw(st.sets(st.sampled_from(self.SLICES)))
        others = data.draw(st.sets(st.sampled_from(self.SLICES))) - sealed
        rows, _ = self.listed(sorted(names), sorted(sealed), tmp_path, sorted(others))
        end = max([min(sealed, default="~"), *others])
        unsealed = {f"{leaf}/{name}" for leaf in "-c" for name in self.SLICES if name not in sealed and name <= end}
        assert sorted(rows) == sorted(name for name in names if "/".join(name.split("/")[:2]) in unsealed)


def test_a_wrong_order_of_keys_hides_objects_and_adds_none(tmp_path: Path) -> None:
    """Real services end the run then, see storage/test_listing_in_order.py."""
    chance = random.Random(1)
    newest, new, sealed, older = sorted(TestShards.SLICES)
    names = [f"data/!ab/{leaf}/{name}/{at:04}" for leaf in "cd" for name in TestShards.SLICES for at in range(700)]
    wanted = {name for name in names if name.split("/")[3] in (newest, new)}

    class Shuffled(Names):
        def list_between(self, *arguments: Any, **named: Any) -> Iterator[pa.RecordBatch]:
            for page in super().list_between(*arguments, **named):
                yield page.take(pa.array(chance.sample(range(page.num_rows), page.num_rows)))

    for _ in range(5):
        mixed = chance.sample(names, len(names))
        for broken in (Shuffled(tmp_path, names, 1000, ""), Unsorted(tmp_path, mixed, 1000, "")):
            unsealed = UnsealedSlices.from_sealed([sealed, older], ())
            batches, _ = listing.list_part(broken, Part("data/!ab/"), "month", unsealed=unsealed)
            found = [address for batch in batches for address in batch["address"].to_pylist()]
            assert set(found) <= wanted


class Unsorted(Names):
    """A store that lists all names in the order of their creation, whatever the bounds."""

    def __init__(self, folder: Path, names: Sequence[str], batch: int, prefix: str) -> None:
        super().__init__(folder, names, batch, prefix)
        self._names = [*names]

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        yield from super().list_between(prefix, "", None)


class ManyShards(LocalStore):
    """A store of 4,096 shards that lists names which it computes.

    Attributes:
        pages: pages that were listed, with empty ones: the requests of a service.
    """

    LETTERS = "".join(sorted("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"))
    GROUPS = tuple(f"data/!a{letter}/" for letter in LETTERS)

    def __init__(self, folder: Path, slices: Sequence[str], objects: int, page: int, *, spread: bool) -> None:
        """Makes the store.

        Args:
            slices: newest first.
            objects: objects of a slice in each shard that has the slice.
            spread: True if every shard has every slice; False if each slice has one shard, in turn.
        """
        super().__init__(folder)
        self._slices, self._objects, self._page, self._spread = slices, objects, page, spread
        self.pages = 0

    def _names(self, prefix: str, after: str) -> Iterator[str]:
        """Names of a group in order, from the slice that has the key `after`."""
        first = self.GROUPS.index(prefix) * len(self.LETTERS)
        for number, shard in enumerate((f"{prefix}{letter}/" for letter in self.LETTERS), first):
            if shard + "~" <= after:
                continue
            slices = self._slices if self._spread else self._slices[number::4096]
            for name in slices[max(0, bisect_right(slices, after.removeprefix(shard)) - 1) :]:
                yield from (f"{shard}{name}/{object_:06}" for object_ in range(self._objects))

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        names = (name for name in self._names(prefix, after) if name > after and (until is None or name <= until))
        while True:
            page = [*islice(names, self._page)]
            self.pages += 1
            if page:
                nothing = [None] * len(page)
                rows = [page, [1] * len(page), [BORN] * len(page), nothing, nothing]
                arrays = [pa.array(row, field.type) for row, field in zip(rows, LISTING_SCHEMA, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=LISTING_SCHEMA)
            if len(page) < self._page:
                return


@pytest.mark.parametrize(("spread", "slices", "objects", "requests"), [(True, 50, 2, 4_160), (False, 8_192, 50, 4_180)])
def test_requests_for_4096_shards_do_not_grow_with_sealed_slices(
    tmp_path: Path, spread: bool, slices: int, objects: int, requests: int
) -> None:
    """A page has ten names here. A shard with few new objects takes one page, and 64 groups of shards one more each."""
    names = sorted(layout.XidGenerator().descending(BORN + timedelta(minutes=minute)) for minute in range(slices))
    new = 4
    unsealed = UnsealedSlices.from_sealed(names[new:], ())
    store = ManyShards(tmp_path, names, objects, 10, spread=spread)
    with mock.patch.object(listing, "_FULL_PAGE", 10):
        listed = [listing.list_part(store, Part(group), "month", unsealed=unsealed)[0] for group in store.GROUPS]
    assert sum(batch.num_rows for batch in chain(*listed)) == new * objects * (4096 if spread else 1)
    assert store.pages == requests
