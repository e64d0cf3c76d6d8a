import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import changes, collecting, counting, event_log, prices, repositories, runs, vast
from benchmarks.counting import Call, Counts
from benchmarks.event_log import Task
from benchmarks.marks import at_least, at_most, figure, summary
from benchmarks.processes import Memory
from benchmarks.shapes import Shape
from benchmarks.vast import Vast
from benchmarks.vast_bucket import NumberedBucket
from lakefs_gc_assets.collector.engine import port
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.extensions.playground.embedded import branches, commits
from lakefs_gc_assets.extensions.playground.embedded import repositories as embedded_repositories
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.api.transport import SdkClient
from lakefs_gc_assets.lakefs.formats import ranges
from lakefs_gc_assets.lakefs.layout import Layout
from lakefs_gc_assets.spark import engine
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets.storage.s3.store import S3Store

TINY = Shape("tiny", committed=600, ranges=3, commits=4, branches=3, uncommitted=20, garbage=30)


def test_a_mark_is_reached_from_its_own_side() -> None:
    measures = [at_most("a", 1, "s", 1), at_most("b", 2, "s", 1), at_least("c", 2, "x", 1), figure("d", 9, "s")]

    assert [measure.reached for measure in measures] == [True, False, True, None]
    assert summary(measures) == "2 marks reached, 1 missed"
    assert "MISSED" in str(measures[1])
    assert json.loads(json.dumps(measures[0].as_json()))["reached"] is True


def test_addresses_are_those_of_lakefs() -> None:
    names = list(repositories.addresses(25_000, repositories.BORN))

    assert len(set(names)) == len(names)
    assert len({name.split("/")[1] for name in names}) == 3
    for name in names[::5000]:
        parsed = layout.parse(name)
        assert parsed.layout is Layout.SLICE
        assert parsed.issued_at is not None
        assert parsed.issued_at >= int(repositories.BORN.timestamp())


def test_an_address_tells_its_place_in_a_slice() -> None:
    # The counter of a slice wraps around at 2^24 objects.
    for index in (0, 1, 1677, 1678):
        names = repositories.addresses_of_slice(index, repositories.BORN)
        places = [repositories.place_in_slice(index, repositories.BORN, name) for name in names]
        assert places == list(range(len(names)))
        others = (names[3][:-1], names[3] + "0", names[3][:-1] + "1", "data/a/b-c", "data")
        for other in (*others, *repositories.addresses_of_slice(index + 1, repositories.BORN, 2)):
            assert repositories.place_in_slice(index, repositories.BORN, other) is None


def test_a_repository_holds_what_its_shape_says_and_is_restored(tmp_path: Path) -> None:
    folder = repositories.made(TINY, tmp_path)
    root = repositories.objects_folder(folder)
    store = LocalStore(root)

    stored = {key for batch in store.list("data/") for key in batch.column("key").to_pylist()}
    committed: set[str] = set()
    for file in (root / "_lakefs").iterdir():
        if len(file.name) == 64 and ranges.table_kind(file.read_bytes(), file.name).type == "ranges":
            committed |= set(ranges.read_range(file.read_bytes(), file.name).addresses.to_pylist())
    assert len(stored) == TINY.objects
    assert len(committed) == TINY.committed
    assert committed < stored

    assert repositories.garbage_left(folder, TINY) == TINY.garbage
    garbage = (folder / "garbage.txt").read_text().split()
    assert committed.isdisjoint(garbage)
    for address in garbage:
        (root / address).unlink()
    assert repositories.garbage_left(folder, TINY) == 0

    assert repositories.made(TINY, tmp_path) == folder
    assert repositories.garbage_left(folder, TINY) == TINY.garbage


def test_tasks_are_read_from_the_log_of_events(tmp_path: Path) -> None:
    settings: dict[str, Any] = {}
    with event_log.kept(settings, "local[4]") as folder:
        assert settings["spark"]["config"]["spark.eventLog.dir"] == folder.as_uri()
    submitted = {"Stage ID": 3, "Stage Name": "collect", "Submission Time": 500}
    stage = {"Event": "SparkListenerStageSubmitted", "Stage Info": submitted}
    ended: dict[str, Any] = {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": 3,
        "Task End Reason": {"Reason": "Success"},
        "Task Info": {"Task ID": 9, "Launch Time": 1000, "Finish Time": 3500, "Executor ID": "1"},
        "Task Metrics": {
            "Executor CPU Time": 700_000_000,
            "Executor Deserialize CPU Time": 50_000_000,
            "Shuffle Read Metrics": {"Total Records Read": 7},
        },
    }
    failed = {**ended, "Task End Reason": {"Reason": "ExceptionFailure"}}
    lines = [json.dumps(event) for event in ({"Event": "SparkListenerLogStart"}, stage, ended, failed)]
    (tmp_path / "log").write_text("\n".join(lines))

    assert event_log.tasks(tmp_path) == [Task("collect", 2.5, 7, 9, 3, 0.5, 1.0, 0.75, "1")]


def test_counts_of_all_processes_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counting.FOLDER_VARIABLE, str(tmp_path))
    counting._own.clear()

    counting._add(api_calls=1, bytes_read=10)
    if (child := os.fork()) == 0:
        counting._add(store_calls=2, bytes_read=5)
        os._exit(0)
    os.waitpid(child, 0)

    assert counting.total(tmp_path) == Counts(api_calls=1, store_calls=2, bytes_read=15)
    assert counting.total(tmp_path) - Counts(api_calls=1) == Counts(store_calls=2, bytes_read=15)


def test_requests_are_counted_as_a_bucket_bills_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(counting.FOLDER_VARIABLE, str(tmp_path / "counts"))
    for name in ("counts", "objects"):
        (tmp_path / name).mkdir()
    counting._own.clear()
    with monkeypatch.context() as patched:
        for kind in (LocalStore, S3Store, SdkClient):
            for name in dir(kind):
                if not name.startswith("_"):
                    patched.setattr(kind, name, getattr(kind, name))  # restored, or removed, at the end
        counting.install()
        store = LocalStore(tmp_path / "objects")
        store.put("a/b", b"123")
        assert store.get("a/b") == b"123"
        assert store.get_part("a/b", 1, 3) == b"23"
        with pytest.raises(ObjectNotFound):
            store.head("a/c")
        assert sum(batch.num_rows for batch in store.list("a/")) == 1
        assert not store.list_level("empty/").objects
        store.delete(["a/b", "a/c"])
    counts = counting.total(tmp_path / "counts")
    assert (counts.lists, counts.gets, counts.puts, counts.deletes, counts.bytes_read) == (2, 3, 1, 1, 5)
    assert counting.read_by_kind(tmp_path / "counts") == {"a/b": 5}
    calls = counting.calls(tmp_path / "counts")
    assert [(call.kind, call.amount) for call in calls] == [
        *(("put", 3), ("get", 3), ("get_part", 2), ("head", 0), ("list", 1), ("list_level", 0), ("delete", 2)),
    ]
    assert all(call.task is None and call.began <= call.ended for call in calls)
    assert [counting.pages(keys) for keys in (0, 1, 1000, 1001)] == [1, 1, 1, 2]


def test_requests_cost_what_the_table_says_and_the_least_is_beside_them() -> None:
    shape = Shape("shape", committed=2_000, ranges=7, commits=5, branches=1, uncommitted=500, garbage=1_001)
    least = prices.least_of_clean(shape)
    assert least == Counts(lists=4, gets=13, deletes=2)
    counts = Counts(lists=1_000, gets=10_000, puts=2_000, deletes=3_000)
    assert prices.cost(counts) == pytest.approx({"lists": 0.005, "gets": 0.004, "puts": 0.01, "deletes": 0})
    *_, this, possible = prices.table(counts, least)
    assert this.split() == ["this", "run", "1,000", "10,000", "2,000", "3,000", "0.019000"]
    assert possible.split() == ["least", "possible", "4", "13", "0", "2", "0.000025"]


def test_a_vast_repository_has_the_size_that_it_says(tmp_path: Path) -> None:
    size = Vast(1)
    folder = vast.made(size, tmp_path)
    bucket = NumberedBucket(folder / "objects", vast.VastObjects.from_size(folder, size))

    folders = bucket.page("data/", "/", "", 1000).prefixes
    objects: dict[str, Any] = {}
    for prefix in folders:
        page = bucket.page(prefix, "", "", 7000)
        assert page.next_start is not None
        rest = bucket.page(prefix, "", page.next_start, 7000)
        assert rest.next_start is None
        objects.update(page.objects + rest.objects)
    assert len(objects) == size.objects
    committed: set[str] = set()
    held = tables = 0
    for file in (folder / "objects" / "_lakefs").iterdir():
        if len(file.name) == 64 and ranges.table_kind(file.read_bytes(), file.name).type == "ranges":
            found = ranges.read_range(file.read_bytes(), file.name).addresses.to_pylist()
            committed |= set(found)
            held, tables = held + len(found), tables + 1
    assert (len(committed), held, tables) == (size.committed, size.entries, size.ranges)
    assert committed < objects.keys()

    garbage = next(key for key in objects if key not in committed and vast.is_garbage(bucket._number(key)))
    facts, content = bucket.read(garbage)
    assert hashlib.md5(content).hexdigest() == facts.etag
    bucket.delete(garbage)
    assert sum(bucket.deleted) == 1
    assert len(bucket.page(f"data/{garbage.split('/')[1]}/", "", "", 10_000).objects) == 9_999


def test_ids_and_numbers_of_keys_make_no_kind_of_their_own(tmp_path: Path) -> None:
    names = (f"_lakefs/{'a' * 64}", f"_lakefs/{'b' * 64}", "gc/runs/gcq5k3m2abcd01234567/part-00001-7.parquet")
    (tmp_path / "7.read").write_text("".join(f"{name}\t{place + 1}\n" for place, name in enumerate(names)))

    assert counting.read_by_kind(tmp_path) == {"_lakefs/*": 3, "gc/runs/*/part-*-*.parquet": 3}
    assert counting.total(tmp_path) == Counts()


def test_objects_of_a_shape_can_be_numbers_that_a_bucket_lists(tmp_path: Path) -> None:
    shape = replace(TINY, numbered=True)
    folder = repositories.made(shape, tmp_path)
    root = repositories.objects_folder(folder)
    assert not (root / "data").exists()
    numbers = repositories.NumberedObjects.from_shape(folder, shape)
    bucket = NumberedBucket(root, numbers)
    (slice_,) = bucket.page("data/", "/", "", 10).prefixes
    page = bucket.page(slice_, "", "", 10_000)
    listed, garbage = dict(page.objects), []
    assert len(listed) == shape.objects and page.next_start is None
    held: dict[str, tuple[int, str]] = {}
    for file in (root / "_lakefs").iterdir():
        if len(file.name) == 64 and ranges.table_kind(file.read_bytes(), file.name).type == "ranges":
            found = ranges.read_range(file.read_bytes(), file.name, columns=["etags"])
            assert found.etags is not None
            described = zip(found.sizes.to_pylist(), found.etags.to_pylist(), strict=True)
            held |= dict(zip(found.addresses.to_pylist(), described, strict=True))
    assert len(held) == shape.committed
    for number, (key, facts) in enumerate(listed.items()):
        if shape.is_garbage(number):
            garbage.append(key)
        assert (key in held) <= (not shape.is_garbage(number))
        assert held.get(key, (facts.size, facts.etag)) == (facts.size, facts.etag)
    assert len(garbage) == shape.garbage

    with changes.changed(folder, shape) as files:
        added = bucket.page("data/", "/", "", 10).prefixes
        (other,) = set(added) - {slice_}
        assert len(bucket.page(other, "", "", 10_000).objects) == changes.OBJECTS + changes.GARBAGE
        facts, content = bucket.read(str(files[0].relative_to(root)))
        assert (facts.size, facts.etag) == (len(content), hashlib.md5(content).hexdigest())
        assert facts.size in {size for size, _ in held.values()}
    bucket.delete(garbage[0])
    (folder / repositories.DELETED).write_bytes(bucket.deleted)
    assert repositories.garbage_left(folder, shape) == shape.garbage - 1
    bucket.delete(next(iter(held)))
    (folder / repositories.DELETED).write_bytes(bucket.deleted)
    with pytest.raises(ValueError, match="no garbage"):
        repositories.garbage_left(folder, shape)


def test_small_objects_that_are_numbers_hold_what_their_md5_says(tmp_path: Path) -> None:
    numbers = repositories.NumberedObjects(replace(TINY, garbage=0), repositories.BORN, repositories.BORN)
    described = [(f"data/{number}", *numbers.size_and_md5(f"data/{number}", number)) for number in range(20_000)]
    small = [each for each in described if each[1] < 2**16]
    assert small
    for number, (address, size, md5) in enumerate(described):
        if (address, size, md5) in small:
            content = numbers.content(address, number)
            assert (len(content), hashlib.md5(content).hexdigest()) == (size, md5)
    with pytest.raises(LookupError):
        numbers.content(*next((address, number) for number, (address, size, _) in enumerate(described) if size > 2**16))


def test_changes_of_a_repository_are_undone(tmp_path: Path) -> None:
    folder = repositories.made(TINY, tmp_path)
    root = repositories.objects_folder(folder)
    before = {file: file.stat().st_mtime for file in root.rglob("*") if file.is_file()}

    with changes.changed(folder, TINY) as garbage:
        files = [file for file in root.rglob("data/*/*") if file not in before]
        assert len(files) == changes.OBJECTS + changes.GARBAGE
        assert len(garbage) == changes.GARBAGE and set(garbage) <= set(files)
        with EmbeddedServer(folder / "lakefs") as server:
            repository = embedded_repositories.get(server.core, repositories.REPOSITORY)
            head = commits.get(server.core, repository, branches.get(server.core, repository, "main").commit_id)
        name = layout.METADATA_PREFIX + head.metarange_id
        held = ranges.read_metarange((root / name).read_bytes(), name)
        assert len(held) == TINY.ranges + changes.COMMITS
        assert sum(part.count for part in held) == TINY.committed + changes.OBJECTS
        garbage[0].unlink()

    assert {file: file.stat().st_mtime for file in root.rglob("*") if file.is_file()} == before
    assert (folder / "complete").exists()
    with EmbeddedServer(folder / "lakefs") as server:
        assert branches.get(server.core, repository, "main").commit_id != head.id


def test_thresholds_shrink_wherever_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"LOCAL_ROWS": port.LOCAL_ROWS, "FEW_HASHES": engine.FEW_HASHES, "MANY_ADDRESSES": engine.MANY_ADDRESSES}
    for module in [*sys.modules.values()]:
        for threshold in collecting.THRESHOLDS if module.__name__.startswith("lakefs_gc_assets.") else ():
            if threshold in vars(module):
                monkeypatch.setattr(module, threshold, before[threshold])

    collecting.scale_thresholds(0.1)
    assert vars(files)["LOCAL_ROWS"] == vars(engine)["LOCAL_ROWS"] == before["LOCAL_ROWS"] // 10
    assert before["FEW_HASHES"] // 10 == engine.FEW_HASHES
    assert before["MANY_ADDRESSES"] // 10 == engine.MANY_ADDRESSES


def test_spans_that_overlap_count_once() -> None:
    assert runs.length([(1.0, 3.0), (2.0, 4.0), (6.0, 7.0), (6.5, 6.6), (9.0, 9.0)]) == 4.0


def test_a_step_has_its_own_processor_time_and_its_waits_for_the_server() -> None:
    memory = Memory([(0.0, 1)], {}, [(10.0, 1.0), (20.0, 5.0), (30.0, 6.0)])
    counts = dict.fromkeys(vars(Counts()), 0)
    steps = [
        {"at": 10.0, "line": "cutoff 2026", **counts},
        {"at": 20.0, "line": "  store_df: 5 rows in 9.0 s", **counts},
        {"at": 30.0, "line": "the end", **counts},
    ]
    calls = [Call("api", None, 12.0, 15.0, 0), Call("api", None, 14.0, 16.0, 0), Call("api", 7, 16.0, 19.0, 0)]
    calls += [Call("get", None, 16.0, 20.0, 0), Call("api", None, 19.0, 22.0, 0)]

    phases = runs._phases(0.0, steps, memory, calls)
    assert [(phase.name, phase.cpu_seconds, phase.server_seconds) for phase in phases] == [
        ("start", 1.0, 0.0),
        ("store_df", 4.0, 5.0),
        ("report", 1.0, 2.0),
    ]
