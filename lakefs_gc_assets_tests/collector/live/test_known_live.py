"""Live addresses known without reading their ranges, with real range files and facts that a run recorded."""

import itertools
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF, LISTED, NoFigures
from lakefs_gc_assets.collector.live import current, facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live.current import Committed, KnownLive, find_known_live
from lakefs_gc_assets.collector.live.facts import FactFile, FactKind, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, SIZES
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.made_frames import found_live, made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import DAY, IDS, NOW, SEALED, began
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_range
from lakefs_gc_assets_tests.runs.made_ranges import range_records

_read = facts.read
OPEN = IDS.descending(NOW - 2 * DAY)
EVERY = [f"data/{SEALED}/{IDS.ascending(NOW - 9 * DAY)}" for _ in range(8)]


class Repository:
    """A folder of ranges, a run that records facts about them, and a run that builds on it."""

    def __init__(self, folder: Path, engine: Any = None) -> None:
        repository = opened_by(opener_in(folder))
        self.lines: list[str] = []
        before = began(repository, 3 * DAY, flow=Flow.UNIFIED)
        plan = began(repository, DAY, flow=Flow.UNIFIED, base_run=before.run_id, base_run_attempt=before.attempt)
        engine = engine or LocalEngine()
        self.earlier: Step[Any] = made_step(engine, repository, before)
        self.step: Step[Any] = made_step(engine, repository, plan, note=self.lines.append)
        self.store = repository.store

    def commit(self, *ranges: list[str]) -> list[RangeRecord]:
        """Writes ranges with these addresses, and with paths that contain the addresses."""
        return [
            put_range(self.store, {f"{number}/{address}": Staged(address) for address in sorted(each)})
            for number, each in enumerate(ranges)
        ]

    def record(self, *records: RangeRecord) -> None:
        """Records the facts that the earlier run records when it reads ranges."""
        into = [references.facts_folder(self.earlier, HASHES)]
        self.earlier.engine.collect(References.from_step(self.earlier).committed(range_records(records), into))

    def record_wrongly(self, record: RangeRecord, addresses: list[str]) -> None:
        """Records another range's addresses for a range."""
        writer = FactWriter(HASHES, self.store, references.facts_folder(self.earlier, HASHES).key)
        rows = pa.table({"address": addresses, "slice": pa.nulls(len(addresses), pa.string())})
        facts_of_ranges.record_hashes(writer, record, rows, self.step.repository.namespace.uri)
        writer.put()

    def files(self) -> list[FactFile]:
        """All files of facts about hashes."""
        return facts.files_of(HASHES, facts.list_files(self.store, HASHES.root))

    def found(self, *records: RangeRecord) -> Committed:
        """Live commits with these ranges."""
        return found_live(self.step, *records)

    def asked(self, *addresses: str) -> StoredFrame[NoFigures]:
        """A frame with these addresses."""
        rows = [
            {"address": address, "slice": None, "slice_window": "legacy", "layout": "slice", "size": 1}
            | {"last_modified": NOW, "issued_at": None, "etag": None}
            for address in addresses
        ]
        written = self.step.write(EXPIRED_DF, self.step.engine.table(pa.Table.from_pylist(rows, LISTED)))
        return self.step.complete(EXPIRED_DF, NoFigures(), written)

    def held(self, records: list[RangeRecord], *asked: str) -> tuple[set[str], set[str]]:
        """Known ranges, and their addresses among the given ones."""
        found = find_known_live(self.step, self.found(*records), [self.asked(*asked)], frozenset([SEALED]))
        return {*found.range_ids}, self.addresses(found)

    def addresses(self, held: KnownLive[Any]) -> set[str]:
        if held.addresses is None:
            return set()
        return {*self.step.engine.collect(held.addresses).column("address").to_pylist()}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@given(
    st.lists(st.lists(st.sampled_from(EVERY), min_size=1, unique=True), min_size=1, max_size=5),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
    st.lists(st.sampled_from(EVERY), unique=True),
    st.sampled_from([None, b"", b"damaged"]),
)
@settings(max_examples=20, deadline=None)
def test_what_is_read_and_what_is_looked_up_are_what_all_ranges_hold(
    ranges: list[list[str]], noted: set[int], live: set[int], asked: list[str], damage: bytes | None
) -> None:
    """For any ranges with facts, any live ranges, and readable or unreadable facts."""
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        records = repository.commit(*ranges)
        repository.record(*(record for place, record in enumerate(records) if place in noted))
        if damage is not None:
            for file in repository.files():
                repository.store.put(file.key, damage)
        alive = [place for place in range(len(records)) if place in live]
        unread, found = repository.held([records[place] for place in alive], *asked)
        known = {place for place in alive if place in noted and damage is None}
        assert unread == {records[place].id for place in known}
        assert found == {address for place in known for address in ranges[place]}.intersection(asked)


def test_they_are_counted(repository: Repository) -> None:
    records = repository.commit(EVERY[:2], EVERY[1:4], EVERY[4:])
    repository.record(*records[:2])
    found = find_known_live(
        repository.step, repository.found(*records), [repository.asked(*EVERY)], frozenset([SEALED])
    )
    assert (len(found.range_ids), found.recorded, found.count) == (2, 5, 8)
    assert "2 of 3 live ranges are not read" in repository.lines[-1]


def test_facts_are_true_in_every_run(repository: Repository) -> None:
    """Facts of any run count: also of a dry run and a failed run."""
    records = repository.commit(EVERY[:2], EVERY[2:4])
    repository.record(records[0])
    repository.earlier = made_step(
        repository.step.engine, repository.step.repository, replace(repository.earlier.plan, attempt="another")
    )
    repository.record(records[1])
    assert repository.held(records, *EVERY) == ({record.id for record in records}, {*EVERY[:4]})


def test_facts_of_a_namespace_that_is_spelled_otherwise_are_not_used(repository: Repository, monkeypatch: Any) -> None:
    """Another server sees the same folder elsewhere, and treats a full address as outside."""
    monkeypatch.setattr(current, "_RANGES_COMPARED", 0)
    records = repository.commit([f"local:///mounted/repo/{EVERY[0]}", EVERY[1]])
    own = repository.earlier
    theirs = replace(own.repository, namespace=Namespace.parse("local://elsewhere/repo/"))
    repository.earlier = made_step(own.engine, theirs, own.plan)
    repository.record(*records)
    assert repository.held(records, *EVERY) == (set(), set())
    # Merged, each fact keeps its namespace.
    repository.earlier = own
    repository.record(*records)
    references.tidy_facts(repository.step)
    assert len(repository.files()) == 1
    assert repository.held(records, *EVERY) == ({records[0].id}, {*EVERY[:2]})


def test_a_range_with_a_slice_that_appeared_late_is_read(repository: Repository) -> None:
    """Its slice is older than a sealed one, but the run lists it."""
    late = IDS.descending(NOW - 20 * DAY)
    records = repository.commit([f"data/{late}/x", EVERY[0]], EVERY[1:3])
    repository.record(*records)
    assert repository.held(records, f"data/{late}/x", *EVERY) == ({records[1].id}, {*EVERY[1:3]})


def test_a_file_that_cannot_be_read_is_reported(repository: Repository) -> None:
    records = repository.commit(EVERY[:2], EVERY[2:4])
    for record in records:
        repository.record(record)
    file, _ = repository.files()
    repository.store.put(file.key, b"damaged")
    assert len(repository.held(records, *EVERY)[0]) == 1
    assert any("cannot be used; the run reads the data again" in line and file.key in line for line in repository.lines)


def test_of_a_range_whose_metarange_counts_otherwise_the_fact_is_not_believed() -> None:
    with TemporaryDirectory() as folder, mock.patch.object(current, "_RANGES_COMPARED", 0):
        repository = Repository(Path(folder))
        (record,) = repository.commit(EVERY[:2])
        repository.record(record)
        unread, _ = repository.held([replace(record, count=3)], *EVERY)
        assert unread == set()
        assert any("another number of entries than their metarange states" in line for line in repository.lines)


def test_a_fact_that_fits_does_not_make_up_for_one_that_does_not(repository: Repository) -> None:
    (record,) = repository.commit(EVERY[:2])
    repository.record(record)
    repository.record_wrongly(replace(record, count=1), EVERY[2:3])
    unread, _ = repository.held([record], *EVERY)
    assert unread == set()


def test_a_range_that_two_metaranges_state_differently_is_read(repository: Repository) -> None:
    """Reading it fails: one of the metaranges is wrong about it."""
    (record,) = repository.commit(EVERY[:2])
    repository.record(record)
    assert repository.held([record, replace(record, max_key=b"zzz")], *EVERY) == (set(), set())


def test_what_is_recorded_wrongly_ends_the_run(repository: Repository) -> None:
    (record,) = repository.commit(EVERY[:2])
    repository.record_wrongly(record, EVERY[2:4])
    with pytest.raises(CorruptFile, match=f"{record.id}.*differs from its recorded facts"):
        repository.held([record], *EVERY)


def test_what_was_recorded_wrongly_no_later_run_believes(repository: Repository) -> None:
    """Even after a full run in between, and whichever ranges are compared."""
    record, other = repository.commit(EVERY[:2], EVERY[2:4])
    repository.record_wrongly(record, EVERY[2:4])
    repository.record(other)
    with pytest.raises(CorruptFile, match=r"differs from its recorded facts"):
        repository.held([record, other], *EVERY)
    with mock.patch.object(current, "_RANGES_COMPARED", 0):
        assert repository.held([record, other], *EVERY) == (set(), set())


def test_so_does_a_range_that_is_compared_and_gone(repository: Repository) -> None:
    (record,) = repository.commit(EVERY[:2])
    repository.record(record)
    repository.store.delete([METADATA + record.id])
    with pytest.raises(CorruptFile, match=record.id):
        repository.held([record], *EVERY)


def test_of_many_ranges_some_are_compared(repository: Repository) -> None:
    records = repository.commit(*([EVERY[place % 8]] for place in range(40)))
    repository.record(*records)
    read: list[str] = []
    asked = type(References.from_step(repository.step)).sums

    def sums(self: Any, ranges: RangeRecords) -> Any:
        read.extend(record.id for record in ranges)
        return asked(self, ranges)

    with mock.patch.object(type(References.from_step(repository.step)), "sums", sums):
        assert len(repository.held(records, *EVERY)[0]) == len({record.id for record in records})
    assert len(read) == 8


def test_too_many_addresses_are_not_looked_up(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    records = repository.commit(EVERY[:2])
    repository.record(*records)
    monkeypatch.setattr(current, "_LOOKED_UP_AT_ONCE", 1)
    monkeypatch.setattr(current, "_ROUNDS", 2)
    assert repository.held(records, *EVERY[:3]) == (set(), set())
    assert "reading every range: 3 addresses" in repository.lines[-1]
    # Ranges with addresses in unsealed slices are read, so these addresses do not count.
    assert repository.held(records, *EVERY[:2], f"data/{OPEN}/x") == ({records[0].id}, {*EVERY[:2]})


@given(
    st.lists(st.lists(st.sampled_from(EVERY), min_size=1, unique=True), min_size=1, max_size=5),
    st.lists(st.sampled_from(EVERY), unique=True),
    st.integers(1, 4),
    st.sets(st.integers(0, 12)),
)
@settings(max_examples=20, deadline=None)
def test_what_is_asked_for_in_parts_is_found_as_if_at_once(
    ranges: list[list[str]], asked: list[str], at_once: int, failing: set[int]
) -> None:
    """Whichever reading of a facts file fails: ranges that cannot be looked up for some part are read."""
    with TemporaryDirectory() as folder, mock.patch.object(current, "_LOOKED_UP_AT_ONCE", at_once):
        repository = Repository(Path(folder))
        records = repository.commit(*ranges)
        for record in records:
            repository.record(record)
        readings = itertools.count()
        failed: set[str] = set()

        def read(kind: FactKind, store: ObjectStore, file: FactFile) -> pa.Table:
            rows = _read(kind, store, file)
            if next(readings) in failing:
                failed.update(rows.column("range_id").to_pylist())
                raise CorruptFile(file.key, "notes", "gone")
            return rows

        with (
            mock.patch.object(current, "_ROUNDS", 8),
            mock.patch.object(facts, "read", read),
        ):
            held = find_known_live(
                repository.step, repository.found(*records), [repository.asked(*asked)], frozenset([SEALED])
            )
        unread = {*held.range_ids}
        assert unread == {record.id for record in records} - failed
        found = {
            address for record, each in zip(records, ranges, strict=True) if record.id in unread for address in each
        }
        everything = {address for each in ranges for address in each}
        assert found.intersection(asked) <= repository.addresses(held) <= everything.intersection(asked)
        assert len(set(repository.addresses(held))) == repository.step.engine.count(held.addresses)


def test_beside_another_repository_every_range_is_read(repository: Repository) -> None:
    (record,) = repository.commit(EVERY[:2])
    repository.record(record)
    found = repository.found(record)
    both = replace(found, unread=(*found.unread, *found.unread))
    held = find_known_live(repository.step, both, [repository.asked(*EVERY)], frozenset([SEALED]))
    assert (held.addresses, len(held.range_ids)) == (None, 0)
    assert [folder.kind for folder in current.facts_folders(repository.step, both)] == [SIZES]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [2, 5])
def test_tasks_of_spark_record_addresses_and_look_them_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(references, "VALUES_READ_HERE", -1)
    repository = Repository(tmp_path, SparkEngine(spark, 2))
    records = repository.commit(EVERY[:2], EVERY[2:4], EVERY[4:])
    repository.record(*records)
    monkeypatch.setattr(current, "_LOOKED_UP_AT_ONCE", at_once)
    assert repository.held(records[:2], *EVERY[1:6]) == ({record.id for record in records[:2]}, {*EVERY[1:4]})
