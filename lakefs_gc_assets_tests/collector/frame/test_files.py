import hashlib
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame import files as manifests
from lakefs_gc_assets.collector.frame.files import (
    FileWriter,
    FrameFile,
    Manifest,
    Span,
    require_safe_order,
    require_same_attempt,
    require_same_source,
)
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    FRAMES,
    LISTED,
    LIVE,
    STORE_DF,
    Frame,
    ReasonsToStay,
    StoredFigures,
)
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.figures import OLDEST, STEP_FIGURES, StepFigures, of_step
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.records_json import with_digest
from lakefs_gc_assets.errors import CorruptFile, OrderViolation, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import RetentionRules
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.collector.breaking import flipped
from lakefs_gc_assets_tests.collector.made_frames import (
    CANDIDATE_FIGURES,
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
)
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store
from lakefs_gc_assets_tests.spark.frame_rows import RUN_ID, listed, live, put_table, span

__all__ = ["store"]

FOLDER = run_folder.frame(RUN_ID, "store_df")
STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
WINDOWS = st.sampled_from(["legacy", "2026-10", "2026-11", "other"])
ROWS = st.lists(
    st.builds(
        lambda address, slice_, window, size, etag, storage_class: listed(
            address, slice=slice_, slice_window=window, size=size, etag=etag, storage_class=storage_class
        ),
        STRINGS,
        st.none() | STRINGS,
        WINDOWS,
        st.integers(0, 2**40),
        st.none() | STRINGS,
        st.none() | st.sampled_from(["STANDARD", "GLACIER", ""]),
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def folder_store(tmp_path_factory: pytest.TempPathFactory) -> ObjectStore:
    root = tmp_path_factory.mktemp("frames")
    (root / "repository").mkdir()
    return open_store(StoreSettings(local_root=str(root)), Namespace.parse("local://repository"))


def batches(rows: list[dict[str, object]], schema: pa.Schema, each: int = 7) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = pa.Table.from_pylist(rows, schema=schema).to_batches(max_chunksize=each)
    return found


def written(store: ObjectStore, rows: list[dict[str, object]], schema: pa.Schema = LISTED) -> list[FrameFile]:
    writer = FileWriter(store, FOLDER, schema)
    for batch in batches(rows, schema):
        writer.write(batch)
    return writer.close()


def read(store: ObjectStore, stored: list[FrameFile], schema: pa.Schema = LISTED) -> list[dict[str, object]]:
    return [row for file in stored for row in files.read_file(store, file, schema).to_pylist()]


def sorted_rows(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(
        rows, key=lambda row: [str(row.get(name)) for name in LISTED.names if row.get(name).__class__ is not datetime]
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ROWS)
def test_rows_are_read_as_they_were_written(folder_store: ObjectStore, rows: list[dict[str, object]]) -> None:
    stored = written(folder_store, rows)

    assert sorted_rows(read(folder_store, stored)) == sorted_rows(rows)
    assert sorted(file.slice_window for file in stored) == sorted({str(row["slice_window"]) for row in rows})
    for file in stored:
        inside = [row for row in rows if row["slice_window"] == file.slice_window]
        assert read(folder_store, [file]) == inside
        assert (file.rows, file.object_bytes) == (len(inside), sum(int(str(row["size"])) for row in inside))
        assert Counter({name: amount[0] for name, amount in file.classes.items()}) == Counter(
            row["storage_class"] for row in inside if row["storage_class"] is not None
        )
        assert all(
            amount[1] == sum(int(str(row["size"])) for row in inside if row["storage_class"] == name)
            for name, amount in file.classes.items()
        )
        assert file.key.startswith(f"{FOLDER}slice_window={file.slice_window}/part-")
        assert file.bytes == folder_store.head(file.key).size


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=30)
@given(ROWS, st.integers(0, 25))
def test_a_sample_has_rows_of_the_frame_each_once(
    folder_store: ObjectStore, rows: list[dict[str, object]], count: int
) -> None:
    stored = written(folder_store, rows)

    shown = files.sample(folder_store, stored, LISTED, count)

    assert shown.num_rows == min(count, len(rows))
    assert not Counter(map(repr, shown.to_pylist())) - Counter(map(repr, read(folder_store, stored)))
    assert shown.schema.names == LISTED.names


def test_a_sample_is_from_many_slices_and_windows_but_few_files(store: ObjectStore) -> None:
    stored = []
    for month in range(1, 9):
        slices = [f"slice-{month}-{number // 100}" for number in range(1000)]
        rows = [
            listed(f"data/{month}/{at}", slice=name, slice_window=f"2026-{month:02}") for at, name in enumerate(slices)
        ]
        stored += written(store, rows)
    unread = [replace(file, key="nowhere") for file in stored if file.slice_window in ("2026-03", "2026-05")]
    others = [file for file in stored if file.slice_window not in ("2026-03", "2026-05")]

    shown = files.sample(store, [*others, *unread], LISTED, 20)

    assert shown.num_rows == 20 and len(set(shown.column("slice").to_pylist())) == 20
    assert {"2026-01", "2026-08"} < set(shown.column("slice_window").to_pylist())


def test_a_sample_of_small_files_has_enough_rows_and_reads_no_more(store: ObjectStore) -> None:
    first = written(store, [listed(f"data/{number}") for number in range(19)])
    second = written(store, [listed(f"data/x{number}") for number in range(20)])
    missing = [FrameFile("nowhere", "2026-11", 5, 10**9, "")]

    assert files.sample(store, first + second + missing, LISTED, 20).num_rows == 20


def test_a_full_file_is_put_and_the_next_one_begun(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_FILE_BYTES", 1)
    monkeypatch.setattr(files, "_ROWS_WAITING", 7)
    rows = [listed(f"data/{number}") for number in range(20)]

    stored = written(store, rows)

    assert [file.rows for file in stored] == [7, 7, 6]
    assert len({file.key for file in stored}) == 3
    assert sorted_rows(read(store, stored)) == sorted_rows(rows)


def test_rows_of_many_windows_wait_for_each_other(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ROWS_WAITING", 30)
    rows = [listed(f"data/{number}", slice_window=f"2026-1{number % 3}") for number in range(54)]

    stored = written(store, rows)

    groups = [pq.ParquetFile(pa.BufferReader(store.get(file.key))).num_row_groups for file in stored]
    assert groups == [2, 2, 2]  # not one group for each of the eight batches
    assert sorted_rows(read(store, stored)) == sorted_rows(rows)


def test_files_are_put_at_once(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    together, put = threading.Barrier(files._PUT_AT_ONCE, timeout=900), store.put

    def wait_and_put(key: str, data: bytes) -> None:
        together.wait()
        put(key, data)

    monkeypatch.setattr(store, "put", wait_and_put)

    stored = written(store, [listed(f"data/{number}", slice_window=f"w{number}") for number in range(16)])

    assert [file.slice_window for file in stored] == [f"w{number}" for number in range(16)]


def test_a_file_that_cannot_be_put_ends_the_task(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put = store.put

    def refuse(key: str, data: bytes) -> None:
        if "slice_window=w3/" in key:
            raise StorageError(key, "refused")
        put(key, data)

    monkeypatch.setattr(store, "put", refuse)

    with pytest.raises(StorageError, match="refused"):
        written(store, [listed(f"data/{number}", slice_window=f"w{number}") for number in range(16)])


def test_live_frames_have_no_sizes(store: ObjectStore) -> None:
    (file,) = written(store, [live("data/a"), live("data/b")], LIVE)

    assert (file.rows, file.object_bytes) == (2, 0)


def test_a_null_where_none_may_be_is_not_written(store: ObjectStore) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in LIVE])
    writer = FileWriter(store, FOLDER, LIVE)

    with pytest.raises((ValueError, pa.ArrowException)):
        writer.write(batches([{**live("data/a"), "address": None}], nullable)[0])
    assert writer.close() == []


def test_columns_are_put_into_the_order_of_the_frame(store: ObjectStore) -> None:
    turned = pa.schema(list(LIVE)[::-1])
    writer = FileWriter(store, FOLDER, LIVE)
    writer.write(batches([live("data/a")], turned)[0])

    assert read(store, writer.close(), LIVE) == [live("data/a")]


def test_a_task_tells_of_each_file_it_wrote(store: ObjectStore) -> None:
    write = files.write_task(lambda: store, FOLDER, LIVE, lambda batch: batch)
    rows = [live("data/a"), live("data/b", slice_window="legacy")]

    def tasks() -> Iterator[pa.RecordBatch]:
        yield from batches(rows, LIVE)
        yield from batches([], LIVE)

    reported = pa.Table.from_batches(list(write(tasks())), schema=files.WRITTEN)

    stored = list(files.frame_files(reported))
    assert sorted_rows(read(store, stored, LIVE)) == sorted_rows(rows)


def test_a_task_without_rows_tells_of_nothing(store: ObjectStore) -> None:
    write = files.write_task(lambda: store, FOLDER, LIVE, lambda batch: batch)

    assert list(write(iter(LIVE.empty_table().to_batches()))) == []


@pytest.fixture
def one_file(store: ObjectStore) -> FrameFile:
    (file,) = written(store, [listed("data/a"), listed("data/b")])
    return file


def test_a_missing_file_is_noticed(store: ObjectStore, one_file: FrameFile) -> None:
    store.delete([one_file.key])

    with pytest.raises(CorruptFile, match="missing") as caught:
        files.read_file(store, one_file, LISTED)
    assert caught.value.file == one_file.key


@pytest.mark.parametrize("change", ["truncated", "one bit", "longer", "empty"])
def test_a_changed_file_is_noticed(store: ObjectStore, one_file: FrameFile, change: str) -> None:
    data = store.get(one_file.key)
    middle = len(data) // 2
    store.put(
        one_file.key,
        {
            "truncated": data[:-1],
            "one bit": flipped(data, middle),
            "longer": data + b"\0",
            "empty": b"",
        }[change],
    )

    with pytest.raises(CorruptFile, match="changed after it was written"):
        files.read_file(store, one_file, LISTED)


def test_another_number_of_rows_is_noticed(store: ObjectStore, one_file: FrameFile) -> None:
    with pytest.raises(CorruptFile, match="it has 2 rows, but its manifest says 3"):
        files.read_file(store, replace(one_file, rows=3), LISTED)


@pytest.mark.parametrize(
    "table",
    [
        pa.Table.from_pylist([live("data/a", new="column")]),
        pa.Table.from_pylist([live("data/a")]).drop_columns(["slice"]),
        pa.table({"address": [1], "slice": ["s"], "slice_window": ["w"]}),
    ],
    ids=["a column more", "a column less", "another type"],
)
def test_other_columns_are_noticed(store: ObjectStore, table: pa.Table) -> None:
    file = put_table(store, "committed_df", table)

    with pytest.raises(CorruptFile, match="columns"):
        files.read_file(store, file, LIVE)


EARLIER = pa.Table.from_pylist([live("data/a"), live("data/b")])


def test_a_column_that_files_of_earlier_versions_lack_is_null_there(store: ObjectStore) -> None:
    file = put_table(store, "committed_df", EARLIER)
    wanted = LIVE.append(pa.field("why", pa.string()))

    found = files.read_file(store, file, wanted, added=("why",))
    assert found.schema == nullable(wanted) and found.column("why").to_pylist() == [None, None]
    assert found.column("address").to_pylist() == ["data/a", "data/b"]
    some = files.read_file(store, file, wanted, ("why", "address"), ("why",))
    assert some.to_pylist() == [{"why": None, "address": "data/a"}, {"why": None, "address": "data/b"}]
    assert files.read_file(store, file, wanted, ("address",), ("why",)).column_names == ["address"]
    assert files.sample(store, [file], wanted, 20, added=("why",)) == found
    with pytest.raises(CorruptFile, match="columns"):
        files.read_file(store, file, wanted)


def test_a_listing_from_before_classes_were_listed_is_read(store: ObjectStore) -> None:
    table = pa.Table.from_pylist([{**listed("data/a"), "why": "w"}], LISTED.append(pa.field("why", pa.string())))
    file = put_table(store, "candidates", table.drop_columns(["storage_class"]))

    found = files.read_file(store, file, table.schema, added=("storage_class", "why"))
    assert found.to_pylist() == table.to_pylist()


def test_of_several_such_columns_a_file_may_have_some(store: ObjectStore) -> None:
    file = put_table(store, "committed_df", EARLIER.append_column("why", pa.array(["a", "b"])))
    wanted = LIVE.append(pa.field("since", pa.string())).append(pa.field("why", pa.string()))

    found = files.read_file(store, file, wanted, ("why", "since"), ("why", "since"))
    assert found.to_pylist() == [{"why": "a", "since": None}, {"why": "b", "since": None}]
    with pytest.raises(CorruptFile, match="columns"):
        files.read_file(store, file, wanted, added=("since",)[:0])


def test_no_parquet_is_noticed(store: ObjectStore) -> None:
    store.put(FOLDER + "x", b"no parquet")
    file = FrameFile(FOLDER + "x", "w", 1, 10, hashlib.sha256(b"no parquet").hexdigest())

    with pytest.raises(CorruptFile, match="cannot be read"):
        files.read_file(store, file, LISTED)


def test_a_null_is_read_for_the_checks_to_see(store: ObjectStore) -> None:
    nullable = pa.schema([field.with_nullable(True) for field in LIVE])
    table = pa.Table.from_pylist([{**live("data/a"), "address": None}], schema=nullable)
    file = put_table(store, "committed_df", table)

    assert files.read_file(store, file, LIVE).column("address").null_count == 1


_READS = """
import os, sys
from pathlib import Path
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import FrameFile
from lakefs_gc_assets.collector.frame.frames import LISTED
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import open_store

store = open_store(StoreSettings(local_root=sys.argv[1]), Namespace.parse("local://repository"))
file = FrameFile(**eval(sys.argv[2]))
store.get(file.key)
before = set(os.listdir("/proc/self/task"))
rows = files.read_file(store, file, LISTED).num_rows
print(rows, len(set(os.listdir("/proc/self/task")) - before))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="only Linux lists the threads of a process")
def test_reading_begins_no_thread(tmp_path: Path) -> None:
    """A command that ended right after an Arrow thread had started could abort."""
    (tmp_path / "repository").mkdir()
    store = open_store(StoreSettings(local_root=str(tmp_path)), Namespace.parse("local://repository"))
    (file,) = written(store, [listed("data/a"), listed("data/b")])

    command = [sys.executable, "-c", _READS, str(tmp_path), repr(asdict(file))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)

    assert (ended.stdout, ended.stderr) == ("2 0\n", "")


# Manifests.


TEXT = st.text(max_size=20)
COUNTS = st.integers(0, 2**62)
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
VALUES: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: COUNTS,
    str: TEXT,
    int | None: st.none() | COUNTS,
    str | None: st.none() | TEXT,
    float | None: st.none() | st.floats(0, 1e6),
    ReasonsToStay | None: st.none()
    | st.builds(
        ReasonsToStay,
        st.dictionaries(TEXT, TEXT, max_size=2),
        st.dictionaries(TEXT, TEXT, max_size=2),
        st.none() | st.builds(RetentionRules, COUNTS, st.dictionaries(TEXT, COUNTS, max_size=2)),
        TEXT,
    ),
    tuple[str, ...]: st.lists(TEXT, max_size=2).map(tuple),
    tuple[tuple[str, str, str], ...]: st.lists(st.tuples(TEXT, TEXT, TEXT), max_size=2).map(tuple),
    tuple[Mapping[str, str], ...]: st.lists(st.dictionaries(TEXT, TEXT, max_size=2), max_size=2).map(tuple),
    Mapping[str, str]: st.dictionaries(TEXT, TEXT, max_size=2),
    Mapping[str, int]: st.dictionaries(TEXT, COUNTS, max_size=2),
}
"""Values per type in figures."""


def figures_of(frame: Frame[Any]) -> st.SearchStrategy[Any]:
    """Figures and facts of a kind of frame, every one of them with a value of its own."""
    types, own = get_type_hints(frame.figures), of_step(frame.name)
    values = {name: VALUES[kind] for name, kind in types.items() if name not in STEP_FIGURES or name in own}
    known = {name: value.filter(is_known) for name, value in values.items() if name in own and not own[name].optional}
    return st.builds(frame.figures, **(values | known))


def is_known(value: object) -> bool:
    return value is not None


MANIFESTS = st.sampled_from([*FRAMES.values()]).flatmap(
    lambda frame: st.builds(
        Manifest,
        st.builds(Span, st.just(frame.name), TEXT, TEXT, TIMES, TIMES),
        st.lists(st.builds(FrameFile, TEXT, TEXT, COUNTS, COUNTS, TEXT, COUNTS), max_size=4).map(tuple),
        figures_of(frame),
        VALUES[Mapping[str, str]],
    )
)


def made(*files: FrameFile) -> Manifest[StoredFigures]:
    return Manifest(span(), files, LISTED_FIGURES, {"before": "digest"})


@given(MANIFESTS)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest[Any]) -> None:
    again = Manifest.from_json(manifest.to_json(), "key", FRAMES[manifest.span.frame])

    assert again == manifest
    assert again.digest == manifest.digest


@given(MANIFESTS, MANIFESTS)
def test_a_digest_names_one_content(one: Manifest[Any], other: Manifest[Any]) -> None:
    assert (one.digest == other.digest) == (one == other)


def test_sums_are_those_of_the_files() -> None:
    manifest = made(
        FrameFile("a", "2026-10", 1, 10, "x", 100),
        FrameFile("b", "2026-11", 2, 20, "y", 200),
        FrameFile("c", "2026-10", 4, 40, "z", 400),
    )

    assert (manifest.rows, manifest.object_bytes) == (7, 700)
    assert manifest.rows_by_window() == {"2026-10": 5, "2026-11": 2}
    assert (made().rows, made().rows_by_window(), made().classes) == (0, {}, {})


def test_classes_are_summed_and_a_manifest_from_before_names_none() -> None:
    with_classes = made(
        FrameFile("a", "2026-10", 3, 10, "x", 100, {"STANDARD": [1, 40], "GLACIER": [2, 60]}),
        FrameFile("b", "2026-11", 1, 20, "y", 200, {"STANDARD": [1, 200]}),
    )
    again = Manifest.from_json(with_classes.to_json(), "key", STORE_DF)
    assert again.classes == {"STANDARD": Amount(2, 240), "GLACIER": Amount(2, 60)}
    content = json.loads(with_classes.to_json())
    for file in content["files"]:
        del file["classes"]
    before = Manifest.from_json(with_digest(content), "key", STORE_DF)
    assert (before.classes, before.rows) == ({}, 4)


def test_a_frame_exists_once_its_manifest_does(store: ObjectStore) -> None:
    with pytest.raises(OrderViolation, match=rf"store_df of run {RUN_ID} does not exist: materialize it first"):
        manifests.read_manifest(store, RUN_ID, STORE_DF)

    manifests.write_manifest(store, made())
    assert manifests.read_manifest(store, RUN_ID, STORE_DF) == made()

    later = replace(made(), span=span(attempt="a2"))
    manifests.write_manifest(store, later)
    assert manifests.read_manifest(store, RUN_ID, STORE_DF) == later


def broken(**changed: object) -> bytes:
    return with_digest({**json.loads(made().to_json()), **changed})


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "manifest"),
        (b"null", "manifest"),
        (b"[]", "manifest"),
        (made().to_json()[:-2], "manifest"),
        (broken(format_version=1), "format version: 1, this program reads 2"),
        (broken(span={"frame": "store_df"}), "manifest"),
        (broken(files=[{"key": "a"}]), "manifest"),
        (broken(files=[{"key": "a", "slice_window": "w", "rows": 1, "bytes": 1, "sha256": "", "new": 1}]), "manifest"),
    ],
)
def test_what_is_no_manifest_ends_the_run(store: ObjectStore, data: bytes, what: str) -> None:
    key = run_folder.manifest(RUN_ID, "store_df")
    store.put(key, data)

    with pytest.raises(CorruptFile, match=what) as caught:
        manifests.read_manifest(store, RUN_ID, STORE_DF)
    assert caught.value.file == key


def test_a_time_without_a_zone_is_no_time() -> None:
    content = json.loads(made().to_json())
    content["span"]["ended_at"] = "2026-11-23T12:30:00"

    with pytest.raises(CorruptFile, match="time without a zone"):
        Manifest.from_json(with_digest(content), "key", STORE_DF)


def test_a_manifest_that_was_changed_ends_the_run() -> None:
    content = json.loads(made().to_json())
    content["figures"]["slices_listed"] += 1

    with pytest.raises(CorruptFile, match="changed after it was written"):
        Manifest.from_json(json.dumps(content).encode(), "key", STORE_DF)


def test_what_was_changed_since_it_was_read_is_stored_as_changed(store: ObjectStore) -> None:
    manifests.write_manifest(store, made())
    found = manifests.read_manifest(store, RUN_ID, STORE_DF)
    assert found.to_json() == made().to_json()

    changed = replace(found, figures=replace(found.figures, slices_listed=7))

    assert changed.digest != found.digest
    manifests.write_manifest(store, changed)
    assert manifests.read_manifest(store, RUN_ID, STORE_DF).figures.slices_listed == 7


def test_a_digest_is_that_of_the_very_bytes(store: ObjectStore) -> None:
    """The digest also covers figures of a later version that this version does not know."""
    content = json.loads(made().to_json())
    content["figures"]["of a later version"] = 1
    data = with_digest(content)
    store.put(run_folder.manifest(RUN_ID, "store_df"), data)

    found = manifests.read_manifest(store, RUN_ID, STORE_DF)

    assert found == made()
    assert found.digest == hashlib.sha256(data).hexdigest()
    assert found.to_json() == data


@pytest.mark.parametrize(
    ("name", "value"),
    [("slices_listed", "7"), ("slices_listed", None), ("slices_listed", 1.5), ("other_folders", "ab"), ("flow", 1)],
)
def test_figures_of_another_type_are_no_figures(name: str, value: object) -> None:
    content = json.loads(made().to_json())
    content["figures"][name] = value

    with pytest.raises(CorruptFile, match=name):
        Manifest.from_json(with_digest(content), "key", STORE_DF)


OF_STEPS: Mapping[str, StepFigures] = {
    "store_df": LISTED_FIGURES,
    "uncommitted_df": UNCOMMITTED_FIGURES,
    "committed_df": COMMITTED_FIGURES,
    "candidates": CANDIDATE_FIGURES,
}


def without(step: str, name: str) -> bytes:
    """A manifest of a step without one of its figures."""
    content = json.loads(Manifest(span(step), (), OF_STEPS[step]).to_json())
    del content["figures"][name]
    return with_digest(content)


@pytest.mark.parametrize("name", STEP_FIGURES)
def test_a_manifest_may_lack_only_figures_that_came_later(name: str) -> None:
    figure = STEP_FIGURES[name]
    data = without(figure.step, name)
    if figure.since == OLDEST:
        with pytest.raises(CorruptFile, match=f"figures are missing: {name}\\."):
            Manifest.from_json(data, "key", FRAMES[figure.step])
    else:
        assert getattr(Manifest.from_json(data, "key", FRAMES[figure.step]).figures, name) is None


@pytest.mark.parametrize("name", [name for name, figure in STEP_FIGURES.items() if figure.formerly])
def test_a_manifest_of_an_earlier_version_is_read_by_the_names_of_that_version(name: str) -> None:
    figure = STEP_FIGURES[name]
    content = json.loads(without(figure.step, name))
    content["figures"][figure.formerly] = 7
    assert getattr(Manifest.from_json(with_digest(content), "key", FRAMES[figure.step]).figures, name) == 7


def test_a_manifest_is_not_stored_without_a_figure_that_a_guard_needs(store: ObjectStore) -> None:
    manifest = Manifest(span("candidates"), (), replace(CANDIDATE_FIGURES, missing=None))
    with pytest.raises(ValueError, match="figures are missing: missing"):
        manifests.write_manifest(store, manifest)


def test_the_manifest_of_another_frame_is_not_read(store: ObjectStore) -> None:
    store.put(run_folder.manifest(RUN_ID, "candidates"), made().to_json())

    with pytest.raises(CorruptFile, match="it is the manifest of another frame, store_df"):
        manifests.read_manifest(store, RUN_ID, CANDIDATES_DF)


# Order of frames and attempts.


NAMES = ("store_df", "uncommitted_df", "committed_df")


def spans(*minutes: int) -> list[Span]:
    """Three frames, from each minute to the next."""
    at = [NOW + timedelta(minutes=minute) for minute in minutes]
    return [Span(name, "run", "attempt", at[2 * n], at[2 * n + 1]) for n, name in enumerate(NAMES)]


def test_one_after_the_other_is_safe() -> None:
    require_safe_order(*spans(0, 1, 2, 3, 4, 5))
    require_safe_order(*spans(0, 1, 1, 2, 2, 3))
    require_safe_order(*spans(0, 0, 0, 0, 0, 0))


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_anything_else_is_not(minutes: list[int]) -> None:
    if minutes == sorted(minutes):
        require_safe_order(*spans(*minutes))
        return
    with pytest.raises(OrderViolation, match="so it may lack live objects"):
        require_safe_order(*spans(*minutes))


def test_a_microsecond_matters() -> None:
    listing, uncommitted, committed = spans(0, 1, 1, 2, 2, 3)
    early = replace(uncommitted, started_at=listing.ended_at - timedelta(microseconds=1))
    with pytest.raises(OrderViolation, match=r"uncommitted_df began at .*:59\.999999Z, before store_df was complete"):
        require_safe_order(listing, early, committed)
    early = replace(committed, started_at=uncommitted.ended_at - timedelta(microseconds=1))
    with pytest.raises(OrderViolation, match="committed_df began at"):
        require_safe_order(listing, uncommitted, early)


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    "change", [lambda span: replace(span, run_id="another"), lambda span: replace(span, attempt="another")]
)
def test_frames_of_different_attempts_are_never_combined(index: int, change: Callable[[Span], Span]) -> None:
    made = spans(0, 1, 2, 3, 4, 5)
    require_same_attempt(*made)
    changed = [change(span) if n == index else span for n, span in enumerate(made)]
    with pytest.raises(OrderViolation, match="another"):
        require_safe_order(*changed)
    with pytest.raises(OrderViolation, match="another"):
        require_same_attempt(*changed)


def test_times_without_a_zone_are_no_times() -> None:
    listing, uncommitted, committed = spans(0, 1, 2, 3, 4, 5)
    without: datetime = listing.ended_at.replace(tzinfo=None)
    with pytest.raises(TypeError):
        require_safe_order(replace(listing, ended_at=without), uncommitted, committed)


def test_a_recheck_learns_of_commits_as_the_mark_did() -> None:
    require_same_source("metadata folder", "metadata folder")
    with pytest.raises(OrderViolation, match="from the refs dump, but at the mark from the metadata folder"):
        require_same_source("refs dump", "metadata folder")
