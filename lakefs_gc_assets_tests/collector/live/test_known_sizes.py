from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.live import facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live.facts import FactFile, FactWriter
from lakefs_gc_assets.collector.live.facts_of_ranges import SIZES
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import IDS, NOW
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.written import Staged, put_range
from lakefs_gc_assets_tests.runs.made_ranges import range_records


class Repository:
    """A folder of ranges, and a step of a run that reads them."""

    def __init__(self, folder: Path) -> None:
        opener = opener_in(folder)
        self.lines: list[str] = []
        self.step: Step[ArrowRows] = made_step(LocalEngine(), opened_by(opener), note=self.lines.append)
        self.store = self.step.repository.store

    def commit(self, ranges: Mapping[str, list[int]]) -> dict[str, RangeRecord]:
        """Writes ranges whose entries have these sizes."""
        return {
            name: put_range(
                self.store, {f"{name}/{place}": Staged(f"data/s/{name}-{place}", size=size) for place, size in rows}
            )
            for name, sizes in ranges.items()
            for rows in [list(enumerate(sizes))]
        }

    def read(self, *records: RangeRecord) -> None:
        """Reads ranges as a run does to learn committed objects."""
        into = [references.facts_folder(self.step, SIZES)]
        self.step.engine.collect(References.from_step(self.step).committed(range_records(records), into))

    def chosen(self, records: Mapping[str, RangeRecord], *sizes: int) -> set[str]:
        """Names of the ranges that are read for candidates with these sizes."""
        ids = references.select_ranges_by_size(
            self.step, {record.id for record in records.values()}, pa.array(sizes, pa.int64())
        )
        return {name for name, record in records.items() if record.id in ids}

    def files(self) -> list[FactFile]:
        """All files of facts."""
        return facts.files_of(SIZES, facts.list_files(self.store, SIZES.root))

    def follow(self, **changes: Any) -> None:
        """From now on, the step belongs to a run that builds on the previous one."""
        plan = self.step.plan
        following = replace(plan, run_id=IDS.descending(NOW), base_run=plan.run_id, base_run_attempt=plan.attempt)
        self.step = made_step(
            self.step.engine, self.step.repository, replace(following, **changes), note=self.lines.append
        )


def refuse(store: LocalStore, keys: list[str]) -> list[DeleteOutcome]:
    """A store that refuses all deletes."""
    return [DeleteOutcome(key, DeleteResult.FAILED, "AccessDenied") for key in keys]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=6),
    st.sets(st.integers(1, 9)),
    st.integers(0, 6),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_what_is_not_read_has_no_entry_of_a_size(
    sizes: list[list[int]], wanted: set[int], noted: int, damaged: bool
) -> None:
    """For any number of ranges with facts, and readable or unreadable facts."""
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        records = repository.commit({str(number): each for number, each in enumerate(sizes)})
        repository.read(*list(records.values())[:noted])
        for file in repository.files()[: int(damaged)]:
            repository.store.put(file.key, b"damaged")
        values = pa.array(sorted(wanted), pa.int64())
        every = sorted(record.id for record in records.values())
        chosen = references.select_ranges_by_size(repository.step, every, values)
        reader, engine = References.from_step(repository.step), repository.step.engine
        assert engine.collect(reader.head_entries(chosen, values)).sort_by("path") == engine.collect(
            reader.head_entries(every, values)
        ).sort_by("path")
        if not damaged and noted >= len(sizes):
            assert len(chosen) == sum(not wanted.isdisjoint(each) for each in sizes)


def test_only_ranges_that_can_match_are_read(repository: Repository) -> None:
    records = repository.commit({"a": [1, 2], "b": [2, 3], "c": [4]})
    repository.read(*records.values())
    assert repository.chosen(records, 2) == {"a", "b"}
    assert repository.chosen(records, 4, 5) == {"c"}
    assert repository.chosen(records, 6) == set()
    assert "reading 1 of 3 ranges of branch heads" in repository.lines[1]


def test_a_range_without_facts_is_read() -> None:
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        records = repository.commit({"a": [1], "b": [1]})
        assert repository.chosen(records, 2) == {"a", "b"}
        repository.read(records["a"])
        assert repository.chosen(records, 2) == {"b"}
        assert "1 without recorded sizes" in repository.lines[-1]


def test_ranges_of_damaged_facts_are_read_and_it_is_reported(repository: Repository) -> None:
    records = repository.commit({"a": [1], "b": [1]})
    repository.read(records["a"])
    repository.read(records["b"])
    file, other = repository.files()
    repository.store.put(file.key, b"damaged")
    assert len(repository.chosen(records, 2)) == 1
    assert any("cannot be used; the run reads the data again" in line and file.key in line for line in repository.lines)
    repository.store.delete([other.key])
    assert repository.chosen(records, 2) == {"a", "b"}


def test_facts_that_contradict_each_other_leave_out_nothing(repository: Repository) -> None:
    records = repository.commit({"a": [1]})
    repository.read(*records.values())
    writer = FactWriter(SIZES, repository.store, references.facts_folder(repository.step, SIZES).key)
    facts_of_ranges.record_sizes(writer, records["a"].id, pa.array([7, 8], pa.int64()))
    writer.put()
    assert repository.chosen(records, 1) == repository.chosen(records, 7) == {"a"}


def test_many_sizes_are_looked_at_in_tasks(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "VALUES_READ_HERE", -1)
    records = repository.commit({"a": [1, 2], "b": [2, 3]})
    repository.read(*records.values())
    assert repository.chosen(records, 3) == {"b"}


@pytest.mark.slow
def test_tasks_of_spark_record_sizes_and_look_at_them(
    spark: SparkSession, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "VALUES_READ_HERE", -1)
    records = repository.commit({"a": [1, 2], "b": [2, 3], "c": [4]})
    step = made_step(SparkEngine(spark, 2), repository.step.repository)
    step.engine.collect(
        References.from_step(step).committed(range_records(records.values()), [references.facts_folder(step, SIZES)])
    )
    every = [record.id for record in records.values()]
    for size, names in ((2, "ab"), (9, "")):
        chosen = references.select_ranges_by_size(step, every, pa.array([size], pa.int64()))
        assert chosen == sorted(records[name].id for name in names)


def test_an_address_is_read_as_it_is_without_facts(repository: Repository) -> None:
    records = range_records(repository.commit({"a": [1, 2], "b": [3]}).values())
    reader, engine = References.from_step(repository.step), repository.step.engine
    recording = reader.committed(records, [references.facts_folder(repository.step, SIZES)])
    assert engine.collect(recording).sort_by("address") == engine.collect(reader.committed(records)).sort_by("address")


class TestRuns:
    def test_what_any_run_recorded_is_known_to_one_that_builds_on_another(self, repository: Repository) -> None:
        records = repository.commit({"a": [1], "b": [2]})
        repository.read(*records.values())
        repository.follow()
        assert repository.chosen(records, 2) == {"b"}

    def test_one_that_looks_at_everything_knows_what_its_own_attempt_recorded(self, repository: Repository) -> None:
        records = repository.commit({"a": [1], "b": [2]})
        repository.read(records["a"])
        for changes in ({"base_run": None}, {"base_run": None, "attempt": "another", "run_id": PLAN.run_id}):
            repository.follow(**changes)
            assert repository.chosen(records, 7) == {"a", "b"}
        repository.read(records["b"])
        assert repository.chosen(records, 7) == {"a"}

    def test_one_that_looks_at_everything_drops_what_it_did_not_meet(self, repository: Repository) -> None:
        records = repository.commit({"a": [1], "b": [2]})
        repository.read(*records.values())
        repository.follow(base_run=None)
        repository.read(records["b"])
        references.tidy_facts(repository.step)
        repository.follow()
        assert repository.chosen(records, 7) == {"a"}

    def test_one_that_lists_nothing_drops_no_sizes(self, repository: Repository) -> None:
        records = repository.commit({"a": [1]})
        repository.read(*records.values())
        repository.follow(base_run=None, flow=Flow.COMMITTED)
        references.tidy_facts(repository.step)
        repository.follow(flow=Flow.UNIFIED)
        assert repository.chosen(records, 7) == set()

    @pytest.mark.parametrize("here", [8_000_000, -1])
    def test_however_many_runs_follow_each_other_there_are_few_files(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch, here: int
    ) -> None:
        monkeypatch.setattr(references, "VALUES_READ_HERE", here)
        records = repository.commit({str(number): [number] for number in range(1, 33)})
        for record in records.values():
            repository.follow()
            repository.read(record)
            references.tidy_facts(repository.step)
        assert len(repository.files()) <= 8
        assert repository.chosen(records, 7, 9) == {"7", "9"}

    @pytest.mark.parametrize("here", [8_000_000, -1])
    def test_what_tasks_recorded_becomes_one_file(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch, here: int
    ) -> None:
        monkeypatch.setattr(references, "VALUES_READ_HERE", here)
        records = repository.commit({"a": [1, 2], "b": [2, 3], "c": [4, 5]})
        for record in records.values():
            repository.read(record)
        references.tidy_facts(repository.step)
        (file,) = repository.files()
        sizes = facts.read(SIZES, repository.store, file).column("size").to_pylist()
        assert (file.values, sizes) == (6, [1, 2, 2, 3, 4, 5])
        assert repository.chosen(records, 2) == {"a", "b"}

    def test_what_one_task_recorded_stays_where_it_is(self, repository: Repository) -> None:
        records = repository.commit({"a": [1]})
        repository.read(records["a"])
        before = repository.files()
        references.tidy_facts(repository.step)
        assert repository.files() == before

    @pytest.mark.parametrize("here", [8_000_000, -1])
    def test_a_damaged_file_is_reported_and_its_ranges_are_read(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch, here: int
    ) -> None:
        monkeypatch.setattr(references, "VALUES_READ_HERE", here)
        records = repository.commit({"a": [1], "b": [2]})
        for record in records.values():
            repository.read(record)
        file, _ = repository.files()
        repository.store.put(file.key, b"damaged")
        references.tidy_facts(repository.step)
        assert any("1 file of facts was damaged" in line and file.key in line for line in repository.lines)
        assert len(repository.files()) == 1
        assert len(repository.chosen(records, 7)) == 1

    def test_a_store_that_refuses_to_delete_is_reported_and_ends_nothing(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        records = repository.commit({"a": [1], "b": [2]})
        for record in records.values():
            repository.read(record)
        monkeypatch.setattr(LocalStore, "delete", refuse)
        references.tidy_facts(repository.step)
        assert any("AccessDenied" in line and facts.ROOT in line for line in repository.lines)
        assert not any("lost" in line for line in repository.lines)
        assert repository.chosen(records, 2) == {"b"}

    def test_old_facts_that_cannot_be_deleted_stay_and_are_reported_to_stay(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They are still true: a run that builds on a later one trusts them."""
        records = repository.commit({"a": [1], "b": [2]})
        repository.read(*records.values())
        before = repository.files()
        repository.follow(base_run=None, base_run_attempt=None)
        repository.read(records["a"])
        monkeypatch.setattr(LocalStore, "delete", refuse)
        references.tidy_facts(repository.step)
        assert {*before} < {*repository.files()}
        (line,) = (line for line in repository.lines if "AccessDenied" in line)
        assert line.startswith("old files of facts could not be deleted") and before[0].key in line
        assert repository.chosen(records, 1) == {"a", "b"}
        repository.follow()
        assert repository.chosen(records, 1) == {"a"}

    def test_a_file_that_is_gone_when_it_is_read_counts_as_missing(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another run may merge files at the same time."""
        records = repository.commit({"a": [1]})
        repository.read(records["a"])
        before = repository.files()
        repository.store.delete([file.key for file in before])
        monkeypatch.setattr(references, "find_fact_files", lambda *about: before)
        assert repository.chosen(records, 7) == {"a"}
        assert any("missing" in line for line in repository.lines)

    def test_where_there_are_no_facts(self, repository: Repository) -> None:
        references.tidy_facts(repository.step)
        assert (repository.lines, repository.files()) == ([], [])
