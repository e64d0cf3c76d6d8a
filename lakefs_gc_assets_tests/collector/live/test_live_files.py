import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES, LISTED, LIVE, RANGES
from lakefs_gc_assets.collector.live import facts, live_files
from lakefs_gc_assets.collector.live.facts import FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES, range_ids_of
from lakefs_gc_assets.collector.live.live_files import LiveFiles, live_table
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.written import (
    METADATA,
    Staged,
    put_dump,
    put_metarange,
    put_range,
    put_table,
    put_uncommitted,
)
from lakefs_gc_assets_tests.lakefs.formats.table_bytes import TableBytes
from lakefs_gc_assets_tests.lakefs.test_layout import SHARDED, USUAL
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made

NAMESPACE = Namespace.parse("s3://bucket/repo")
SLICE = layout.XidGenerator().descending(datetime(2026, 3, 1, tzinfo=UTC))
OBJECT = layout.XidGenerator().ascending(datetime(2026, 3, 1, tzinfo=UTC))
KEY = f"data/{SLICE}/{OBJECT}"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    return LocalStore(tmp_path_factory.mktemp("namespace"))


def files(store: ObjectStore, namespace: Namespace = NAMESPACE) -> LiveFiles:
    return LiveFiles(store, namespace, "month")


def read(table: pa.Table) -> set[str]:
    """Addresses of a LIVE table, each once and with its own slice and window."""
    assert table.schema == LIVE
    rows = table.to_pylist()
    for row in rows:
        name = layout.parse(row["address"])
        assert (row["slice"], row["slice_window"]) == (name.slice, layout.window(name.slice, "month"))
    found = [row["address"] for row in rows]
    assert len(found) == len(set(found))
    return set(found)


def of_range(store: ObjectStore, entries: dict[str | bytes, Staged]) -> set[str]:
    return read(files(store).range(put_range(store, entries)))


ADDRESSES = st.one_of(
    USUAL,
    SHARDED,
    USUAL.map(lambda key: NAMESPACE.uri + key),
    USUAL.map(lambda key: "s3a://bucket/repo/" + key.replace("/", "//")),
    USUAL.map(lambda key: key.replace(",", "%2C") + "/"),
    USUAL.map(lambda key: "s3://bucket/repo2/" + key),
    USUAL.map(lambda key: "s3://bucket/repo/data/../" + key),
    st.text(max_size=12),
    st.text(max_size=8).map(lambda text: "data/" + text),
    st.text(max_size=8).map(lambda text: "data/x/" + text),
)
TYPES = st.sampled_from([0, 1, 2, 3, 255])
FOLDERS = st.sampled_from([b"", b"a/", b"a/b/", b"a/b/c/d/", b"/", b"a//b/", b"\xff/", b"two\nlines/x/"])


def recorded_sizes(store: LocalStore) -> tuple[list[str], list[int]]:
    """Ranges with recorded sizes in one file, and these sizes."""
    (file,) = facts.files_of(SIZES, facts.list_files(store, SIZES.root))
    rows = facts.read(SIZES, store, file)
    return range_ids_of(rows.schema.metadata), rows.column("size").to_pylist()


class TestRanges:
    def test_every_entry_counts_once(self, store: LocalStore) -> None:
        entries: dict[str | bytes, Staged] = {
            "a": Staged(KEY),
            "b": Staged(KEY),
            "c": Staged(NAMESPACE.uri + KEY, AddressType.FULL),
            "d": Staged("data/!ab/c/x"),
            "e": Staged("s3://elsewhere/x", AddressType.FULL),
        }
        assert of_range(store, entries) == {KEY, "data/!ab/c/x"}

    @settings(max_examples=30)
    @given(entries=st.lists(st.tuples(ADDRESSES, TYPES), min_size=1, max_size=12))
    def test_hold_what_each_address_means(self, shared_store: LocalStore, entries: list[tuple[str, int]]) -> None:
        expected = {key for address, type_ in entries for key in NAMESPACE.live_keys(address, type_)}
        found = of_range(shared_store, {f"path{number:03}": Staged(*entry) for number, entry in enumerate(entries)})
        assert found == expected

    @pytest.mark.parametrize(
        "address",
        [KEY + "/", "/" + KEY, KEY.replace("/", "//"), KEY.replace("/", "%2F"), KEY + "?x", KEY + "%2Csigned"],
        ids=["slash at the end", "slash before", "double slashes", "escaped slashes", "query", "signature"],
    )
    def test_odd_spellings_are_not_taken_for_usual_ones(self, store: LocalStore, address: str) -> None:
        assert of_range(store, {"a": Staged(address)}) == set(NAMESPACE.live_keys(address, AddressType.RELATIVE))

    def test_what_was_linked_on_a_servers_local_blockstore_is_live(self, store: LocalStore) -> None:
        record = put_range(store, {"a": Staged(f"local:///var/lakefs/data/locns/{KEY},signature", AddressType.FULL)})
        assert f"{KEY},signature" in read(files(store, Namespace.parse("local://locns")).range(record))

    def test_a_full_address_without_a_scheme_is_live(self, store: LocalStore) -> None:
        assert KEY in of_range(store, {"a": Staged(KEY, AddressType.FULL)})

    @pytest.mark.parametrize("wrong", [{"count": 2}, {"min_key": b"A"}, {"max_key": b"z"}])
    def test_that_are_not_as_their_metarange_says_end_the_run(
        self, store: LocalStore, wrong: dict[str, object]
    ) -> None:
        record = put_range(store, {"a": Staged(KEY)})
        stated = {"min_key": record.min_key, "max_key": record.max_key, "count": record.count} | wrong
        with pytest.raises(CorruptFile, match="metarange"):
            files(store).range(RangeRecord(record.id, estimated_size=0, **stated))  # type: ignore[arg-type]

    def test_a_metarange_is_no_range(self, store: LocalStore) -> None:
        name = put_metarange(store, [put_range(store, {"a": Staged(KEY)})])
        with pytest.raises(CorruptFile, match="type"):
            files(store).range(RangeRecord(name, b"a", b"a", 1, 0))


class TestEntriesThatMayGo:
    def test_leave_out_what_may_be_another_key_or_lie_in_another_bucket(self, store: LocalStore) -> None:
        entries: dict[str | bytes, Staged] = {
            "a": Staged(KEY),
            "b": Staged(NAMESPACE.uri + KEY + "1", AddressType.FULL),
            "c": Staged(KEY + "2%2Cx"),
            "d": Staged(f"s3://reader-s3alias/repo/{KEY}3", AddressType.FULL),
        }
        record = put_range(store, entries)
        assert files(store).entries(record).column("address").to_pylist() == [KEY, KEY + "1"]
        assert read(files(store).range(record)) >= {KEY, KEY + "1", KEY + "2,x", KEY + "3"}

    def test_are_objects_as_a_listing_has_them_but_for_etags(self, store: LocalStore) -> None:
        md5 = "0123456789abcdef" * 2
        record = put_range(
            store,
            {
                "a": Staged(KEY, size=3, etag=md5, modified=1_700_000_000),
                "b": Staged("data/somebody/elses", size=5, etag=f"{md5}-2", modified=1_700_000_001),
                "c": Staged("dummy", size=7),
            },
        )
        issued = datetime(2026, 3, 1, tzinfo=UTC)
        table = files(store).entries(record)
        assert table.schema == LISTED
        assert table.to_pylist() == [
            {
                "address": KEY,
                "slice": SLICE,
                "slice_window": "2026-03",
                "layout": "slice",
                "issued_at": issued,
                "last_modified": issued,
                "size": 3,
                "etag": None,
                "storage_class": None,
            },
            {
                "address": "data/somebody/elses",
                "slice": None,
                "slice_window": "legacy",
                "layout": "unrecognised",
                "issued_at": None,
                "last_modified": datetime(2023, 11, 14, 22, 13, 21, tzinfo=UTC),
                "size": 5,
                "etag": None,
                "storage_class": None,
            },
        ]
        assert files(store).held(record).column("certain").to_pylist() == [True, True, False]


READERS: dict[str, Callable[[LiveFiles, RangeRecord], object]] = {
    "range": LiveFiles.range,
    "entries": LiveFiles.entries,
    "held": LiveFiles.held,
    "paths": lambda reader, record: reader.paths(record, KEY),
    "folders": LiveFiles.folders,
    "head_entries": lambda reader, record: reader.head_entries(record.id, pa.array([10], pa.int64())),
    "metadata_file": lambda reader, record: reader.metadata_file(record.id),
    "unnamed": lambda reader, record: reader.unnamed((record.id, 0)),
    "unnamed, from its end": lambda reader, record: reader.unnamed((record.id, 1 << 20)),
}


class TestFilesThatAreDamaged:
    @pytest.mark.parametrize("reader", READERS)
    def test_are_named_whoever_reads_them(self, store: LocalStore, reader: str) -> None:
        record = put_range(store, {"a": Staged(KEY), "b": Staged(KEY + "1")})
        key = METADATA + record.id
        whole = store.get(key)
        damaged = bytearray(whole)
        damaged[3] ^= 1
        for content in (bytes(damaged), whole[:-1]):
            store.put(key, content)
            with pytest.raises(CorruptFile) as caught:
                READERS[reader](files(store), record)
            assert caught.value.file == key and caught.value.check != "existence"
        store.delete([key])
        with pytest.raises(CorruptFile) as caught:
            READERS[reader](files(store), record)
        assert (caught.value.file, caught.value.check) == (key, "existence")

    @pytest.mark.parametrize("reader", ["range", "entries", "held", "paths", "folders"])
    def test_are_compared_with_what_their_metarange_says(self, store: LocalStore, reader: str) -> None:
        record = put_range(store, {"a": Staged(KEY), "b": Staged(KEY + "1")})
        with pytest.raises(CorruptFile, match="metarange"):
            READERS[reader](files(store), replace(record, count=3))

    def test_metaranges_are_named(self, store: LocalStore) -> None:
        name = put_metarange(store, [put_range(store, {"a": Staged(KEY)})])
        whole = store.get(METADATA + name)
        store.put(METADATA + name, whole[:-1])
        reader = files(store)
        for read in (reader.metarange, lambda name: reader.unnamed((name, 0)), reader.metadata_file):
            with pytest.raises(CorruptFile) as caught:
                read(name)
            assert caught.value.file == METADATA + name

    def test_a_metarange_whose_records_are_damaged_is_named_though_no_commit_names_it(self, store: LocalStore) -> None:
        name = put_metarange(store, [put_range(store, {"a": Staged(KEY)})])
        damaged = bytearray(store.get(METADATA + name))
        damaged[3] ^= 1
        store.put(METADATA + name, bytes(damaged))
        with pytest.raises(CorruptFile, match=r"no commit of the repository refers to the file") as caught:
            files(store).unnamed((name, 0))
        assert caught.value.file == METADATA + name


class TestFilesThatNoCommitNames:
    def test_tell_of_ranges_whatever_they_are(self, store: LocalStore) -> None:
        record = replace(put_range(store, {"a": Staged(KEY), "b": Staged(KEY + "1")}), estimated_size=7)
        name = put_metarange(store, [record])
        own = [{"id": record.id, "min_key": b"a", "max_key": b"b", "count": 2, "estimated_size": 0}]
        for file in (record.id, name):
            table = files(store).unnamed((file, 0))
            assert table.schema == RANGES
            assert table.to_pylist() == own

    def test_tell_of_none_where_they_are_tables_of_a_dump(self, store: LocalStore) -> None:
        put_dump(store, [], [])
        for name in {key.removeprefix(METADATA) for key in keys(store)}:
            assert files(store).unnamed((name, 0)) == RANGES.empty_table()

    def test_of_a_large_table_of_a_dump_only_the_end_is_read(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_dump(store, [], [])
        sizes = {key.removeprefix(METADATA): store.head(key).size for key in keys(store)}
        monkeypatch.setattr(live_files, "_READ_WHOLE", 0)
        monkeypatch.setattr(live_files, "_END_BYTES", min(sizes.values()) - 1)
        monkeypatch.setattr(store, "get", lambda key: pytest.fail(f"{key} is read whole"))
        for file in sizes.items():
            assert files(store).unnamed(file) == RANGES.empty_table()

    def test_a_large_range_is_read_whole_and_so_is_a_table_whose_end_is_damaged(self, store: LocalStore) -> None:
        record = put_range(store, {f"{number:06}": Staged(f"{KEY}{number:06}") for number in range(5_000)})
        size = store.head(METADATA + record.id).size
        assert size > 128 << 10
        assert files(store).unnamed((record.id, size)).column("count").to_pylist() == [5_000]
        damaged = bytearray(store.get(METADATA + record.id))
        damaged[-60] ^= 1
        store.put(METADATA + record.id, bytes(damaged))
        with pytest.raises(CorruptFile, match="no commit of the repository refers to the file"):
            files(store).unnamed((record.id, size))


class TestHeldEntries:
    @settings(max_examples=30)
    @given(entries=st.lists(st.tuples(ADDRESSES, TYPES), min_size=1, max_size=12))
    def test_are_those_that_may_go_and_every_other_address_once(
        self, shared_store: LocalStore, entries: list[tuple[str, int]]
    ) -> None:
        record = put_range(shared_store, {f"path{number:03}": Staged(*entry) for number, entry in enumerate(entries)})
        found = files(shared_store).held(record)
        certain = found.filter(found.column("certain")).drop_columns("certain")
        assert certain.to_pylist() == files(shared_store).entries(record).to_pylist()
        others = found.filter(pc.invert(found.column("certain"))).column("address").to_pylist()
        live = read(files(shared_store).range(record))
        assert sorted(others) == sorted(live - set(certain.column("address").to_pylist()))

    @settings(max_examples=30)
    @given(entries=st.lists(st.tuples(FOLDERS, ADDRESSES, TYPES), min_size=1, max_size=12), depth=st.integers(1, 3))
    def test_are_in_the_folder_of_each_entry(
        self, shared_store: LocalStore, entries: list[tuple[bytes, str, int]], depth: int
    ) -> None:
        staged: dict[str | bytes, Staged] = {
            folder + f"{number:03}".encode(): Staged(address, kind)
            for number, (folder, address, kind) in enumerate(entries)
        }
        record = put_range(shared_store, staged)
        found = files(shared_store).held(record, depth)
        assert {(each["address"], each["folder"]) for each in found.to_pylist()} == {
            (key, "".join(f"{part}/" for part in folder.decode(errors="backslashreplace").split("/")[:-1][:depth]))
            for folder, address, kind in entries
            for key in NAMESPACE.live_keys(address, kind)
        }
        certain, known = (each.filter(each.column("certain")) for each in (found, files(shared_store).held(record)))
        assert certain.drop_columns("folder").to_pylist() == known.to_pylist()

    def test_have_their_sizes_recorded(self, store: LocalStore) -> None:
        record = put_range(store, {"a": Staged(KEY, size=3), "b": Staged(KEY + "1", size=5)})
        LiveFiles(store, NAMESPACE, "month", writer := FactWriter(SIZES, store, SIZES.folder("run", "1"))).held(record)
        writer.put()
        assert recorded_sizes(store) == ([record.id], [3, 5])


class TestPaths:
    def test_are_all_those_at_which_a_range_may_reference_an_address(self, store: LocalStore) -> None:
        entries: dict[str | bytes, Staged] = {
            "a": Staged(KEY),
            "b": Staged(f"{KEY}x"),
            "c": Staged(f"s3a://bucket/repo/{KEY}", AddressType.FULL),
            b"\xff": Staged(KEY.replace("data/", "data//")),
            "e": Staged(f"s3://other/repo/{KEY}", AddressType.FULL),
        }
        record = put_range(store, entries)
        assert files(store).paths(record, KEY) == [b"a", b"c", b"\xff"]
        assert files(store).paths(record, "data/nothing") == []


class TestFolders:
    def test_are_those_of_each_path_in_order(self, store: LocalStore) -> None:
        entries: dict[str | bytes, Staged] = {
            "a/b/c": Staged(f"{KEY}1"),
            "b/x": Staged(f"s3a://bucket/repo/{KEY}2", AddressType.FULL),
            "c/x": Staged(f"{KEY}1"),
            b"d\xff/x": Staged(f"s3://other/repo/{KEY}", AddressType.FULL),
            b"e\xff/x": Staged(f"{KEY}3"),
            "top": Staged(KEY.replace("data/", "data//")),
        }
        table = files(store).folders(put_range(store, entries))
        assert table.schema == live_files.FOLDERS
        rows = [(row["address"], row["folder"]) for row in table.to_pylist()]
        assert rows[:4] == [(f"{KEY}1", b"a/"), (f"{KEY}2", b"b/"), (f"{KEY}1", b"c/"), (f"{KEY}3", b"e\xff/")]
        assert rows[4:] == [(key, b"") for key in NAMESPACE.live_keys(KEY.replace("data/", "data//"), 1)]

    def test_of_no_path(self, store: LocalStore) -> None:
        record = put_range(store, {"a": Staged("s3://elsewhere/x", AddressType.FULL)})
        assert files(store).folders(record) == live_files.FOLDERS.empty_table()


class TestMetaranges:
    def test_name_their_ranges(self, store: LocalStore) -> None:
        parts = [put_range(store, {"a": Staged("data/x"), "b": Staged("data/y")}), put_range(store, {"c": Staged("z")})]
        table = files(store).metarange(put_metarange(store, parts))
        assert table.schema == RANGES
        assert [RangeRecord(*row.values()) for row in table.to_pylist()] == parts

    def test_may_be_empty(self, store: LocalStore) -> None:
        assert files(store).metarange(put_metarange(store, [])).num_rows == 0

    def test_that_are_missing_end_the_run(self, store: LocalStore) -> None:
        with pytest.raises(CorruptFile, match="existence"):
            files(store).metarange("a" * 64)

    def test_sizes_are_recorded_where_their_ranges_are_read(self, store: LocalStore) -> None:
        record = put_range(store, {"a": Staged(KEY, size=3), "b": Staged(KEY + "1", size=5)})
        LiveFiles(store, NAMESPACE, "month", writer := FactWriter(SIZES, store, SIZES.folder("run", "1"))).range(record)
        writer.put()
        assert recorded_sizes(store) == ([record.id], [3, 5])


class TestFilesThatNoMetarangeNamed:
    def test_ranges_are_read(self, store: LocalStore) -> None:
        record = put_range(store, {"a": Staged(KEY), "b": Staged("s3://elsewhere/x", AddressType.FULL)})
        assert read(files(store).metadata_file(record.id)) == {KEY}

    def test_metaranges_and_dumps_hold_no_objects(self, store: LocalStore) -> None:
        record = put_range(store, {"a": Staged(KEY)})
        put_metarange(store, [record])
        put_dump(store, [], [])
        for name in {key.removeprefix(METADATA) for key in keys(store)} - {record.id}:
            assert read(files(store).metadata_file(name)) == set()

    def test_a_kind_that_nobody_knows_ends_the_run(self, store: LocalStore) -> None:
        for type_, entity in ((b"ranges", b"object"), (b"ranges", b""), (b"bloom", None)):
            name = put_table(store, TableBytes([], {"type": type_, "entity": entity}))
            with pytest.raises(CorruptFile, match="type"):
                files(store).metadata_file(name)

    @pytest.mark.parametrize("content", [b"", b"x" * 100, b"<Error/>"])
    def test_what_is_no_table_ends_the_run(self, store: LocalStore, content: bytes) -> None:
        store.put(METADATA + "a" * 64, content)
        with pytest.raises(CorruptFile):
            files(store).metadata_file("a" * 64)
        with pytest.raises(CorruptFile, match="existence"):
            files(store).metadata_file("b" * 64)


def keys(store: ObjectStore) -> list[str]:
    return [key for batch in store.list(METADATA) for key in batch.column("key").to_pylist()]


class TestUncommittedData:
    def test_every_row_counts_once(self, store: LocalStore) -> None:
        put_uncommitted(store, "f", [KEY, KEY, NAMESPACE.uri + "data/y", "data/z//q", "s3://elsewhere/x"])
        assert read(files(store).uncommitted("f")) == {KEY, "data/y", "data/z//q", "data/z/q"}

    def test_no_row_at_all(self, store: LocalStore) -> None:
        put_uncommitted(store, "f", [])
        assert read(files(store).uncommitted("f")) == set()


class TestHeadEntries:
    def test_are_those_of_a_size(self, store: LocalStore) -> None:
        record = put_range(
            store,
            {
                "a": Staged("data/a", size=1, etag="e1"),
                b"\xff": Staged("data/b", size=2, etag=""),
                "c": Staged("data/c", size=0),
                "d": Staged("data/d", size=2, etag="e2"),
            },
        )
        table = files(store).head_entries(record.id, pa.array([2, 7], pa.int64()))
        assert table.schema == HEAD_ENTRIES
        assert table.to_pylist() == [
            {"range_id": record.id, "path": b"d", "size": 2, "etag": "e2", "key": "data/d"},
            {"range_id": record.id, "path": b"\xff", "size": 2, "etag": "", "key": "data/b"},
        ]
        assert files(store).head_entries(record.id, pa.array([], pa.int64())).num_rows == 0
        assert files(store).head_entries(record.id, pa.array([0], pa.int64())).num_rows == 1

    def test_have_the_key_only_where_it_is_certain(self, store: LocalStore) -> None:
        record = put_range(
            store,
            {
                "a": Staged("s3://elsewhere/import/a", type=AddressType.FULL),
                "b": Staged(NAMESPACE.uri + KEY, type=AddressType.FULL),
                "c": Staged("data//twice", type=AddressType.RELATIVE),
                "d": Staged(KEY),
            },
        )
        table = files(store).head_entries(record.id, pa.array([10], pa.int64()))
        assert table.column("path").to_pylist() == [b"a", b"b", b"c", b"d"]
        assert table.column("key").to_pylist() == [None, KEY, None, KEY]


def test_a_table_of_no_keys() -> None:
    assert live_table(pa.array([], pa.string()), "month") == LIVE.empty_table()


@pytest.fixture(params=recorded_and_made("small", "merge-dangling", "chain/4"))
def recorded(request: pytest.FixtureRequest) -> Iterator[tuple[LiveFiles, Path]]:
    folder = folder_of(request.param)
    with ReplayServer(folder) as server:
        namespace = Namespace.parse(server.storage_namespace)
        yield files(open_store(server.configuration().store, namespace), namespace), folder


def test_all_that_recorded_servers_committed(recorded: tuple[LiveFiles, Path]) -> None:
    reader, folder = recorded
    truth = json.loads((folder / "truth.json").read_text())
    committed = {row["address"] for row in truth["objects"] if row["n_commits"] and row["inside_namespace"]}
    by_metaranges: set[str] = set()
    for metarange_id in {commit["meta_range_id"] for commit in truth["commits"]} - {""}:
        for row in reader.metarange(metarange_id).to_pylist():
            by_metaranges |= read(reader.range(RangeRecord(*row.values())))
    assert by_metaranges == committed
    by_folder: set[str] = set()
    for file in cast(ObjectStore, reader.store).list_level(METADATA).objects:
        name = file.key.removeprefix(METADATA)
        if len(name) == 64:
            by_folder |= read(reader.metadata_file(name))
    assert by_folder >= committed
