import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.frames import LISTED
from lakefs_gc_assets.collector.frame.slices import folders, windows_of
from lakefs_gc_assets.collector.universe import listing as parts
from lakefs_gc_assets.collector.universe.listing import Listing, Part
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore
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

    def test_shards_are_listed_whole_and_only_what_lies_in_unsealed_slices_is_taken(self, store: ObjectStore) -> None:
        sealed, young = (slice_of(CUTOFF - timedelta(hours=hours)) for hours in (9, 1))
        new = [f"data/{young}/x", f"data/!ab/c/{young}/x", f"data/!cd/e/{young}/x", f"data/!cd/e/{young}/odd/y"]
        fill(store, *new, f"data/{sealed}/x", f"data/!ab/c/{sealed}/x", f"data/!ab/{young}/x", "data/!ab/c/x", "data/y")
        listing = parts.listing(store, CUTOFF, frozenset([sealed]))
        folders = pa.array(["", sealed], pa.string())
        batches = [
            batch for part in listing.parts for batch in parts.list_part(store, part, "month", sealed=folders)[0]
        ]
        assert sorted(pa.Table.from_batches(batches)["address"].to_pylist()) == sorted(new)
        assert [part.prefix for part in listing.parts] == ["data/!ab/", "data/!cd/", f"data/{young}/"]
        assert not [part for part in parts.listing(store, CUTOFF, frozenset(), ["2026-11"]).parts if part.slice is None]

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
