from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.live import noted_files, noted_sizes, range_sizes
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import objects
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets.storage.interface import CopiesObjects, DeleteResult
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.written import Staged, put_range

BASE = "an earlier run"


class Repository:
    """A folder of ranges, and a step of a run that reads them."""

    def __init__(self, folder: Path) -> None:
        (folder / "repo").mkdir()
        opener = StoreOpener(StoreSettings(local_root=str(folder)), "local://repo/")
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
        """Reads ranges as a run does that learns what is committed."""
        into = noted_sizes.folder_of(self.step)
        self.step.engine.collect(References.from_step(self.step).committed(RangeRecords.of(records), into))

    def chosen(self, records: Mapping[str, RangeRecord], *sizes: int) -> set[str]:
        """The names of the ranges that are read for candidates of these sizes."""
        ids = noted_sizes.select_ranges(
            self.step, {record.id for record in records.values()}, pa.array(sizes, pa.int64())
        )
        return {name for name, record in records.items() if record.id in ids}

    def hand_on(self) -> None:
        """What the run noted is from now on what its base run noted."""
        for file in range_sizes.files_of(self.store, PLAN.run_id):
            self.store.put(range_sizes.folder(BASE) + file.key.rpartition("/")[2], self.store.get(file.key))
        own = [key for batch in self.store.list(range_sizes.folder(PLAN.run_id)) for key in batch["key"].to_pylist()]
        assert all(outcome.result is DeleteResult.ACCEPTED for outcome in self.store.delete(own))


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
    """However many of the ranges are noted, and whether the notes can be read or not."""
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        records = repository.commit({str(number): each for number, each in enumerate(sizes)})
        repository.read(*list(records.values())[:noted])
        for file in range_sizes.files_of(repository.store, PLAN.run_id)[: int(damaged)]:
            repository.store.put(file.key, b"damaged")
        values = pa.array(sorted(wanted), pa.int64())
        every = sorted(record.id for record in records.values())
        chosen = noted_sizes.select_ranges(repository.step, every, values)
        references, engine = References.from_step(repository.step), repository.step.engine
        assert engine.collect(references.head_entries(chosen, values)).sort_by("path") == engine.collect(
            references.head_entries(every, values)
        ).sort_by("path")
        if not damaged and noted >= len(sizes):
            assert len(chosen) == sum(not wanted.isdisjoint(each) for each in sizes)


def test_only_ranges_that_can_match_are_read(repository: Repository) -> None:
    records = repository.commit({"a": [1, 2], "b": [2, 3], "c": [4]})
    repository.read(*records.values())
    assert repository.chosen(records, 2) == {"a", "b"}
    assert repository.chosen(records, 4, 5) == {"c"}
    assert repository.chosen(records, 6) == set()
    assert "1 of 3 ranges of branch heads may have" in repository.lines[1]


def test_a_range_of_which_nothing_is_noted_is_read() -> None:
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        records = repository.commit({"a": [1], "b": [1]})
        assert repository.chosen(records, 2) == {"a", "b"}
        repository.read(records["a"])
        assert repository.chosen(records, 2) == {"b"}
        assert "of 1 of them no sizes are noted" in repository.lines[-1]


def test_ranges_of_damaged_notes_are_read_and_it_is_told(repository: Repository) -> None:
    records = repository.commit({"a": [1], "b": [1]})
    repository.read(records["a"])
    repository.read(records["b"])
    file, other = range_sizes.files_of(repository.store, PLAN.run_id)
    repository.store.put(file.key, b"damaged")
    assert len(repository.chosen(records, 2)) == 1
    assert any(
        "cannot be used, and what they tell of is read" in line and file.key in line for line in repository.lines
    )
    repository.store.delete([other.key])
    assert repository.chosen(records, 2) == {"a", "b"}


def test_notes_that_contradict_each_other_leave_out_nothing(repository: Repository) -> None:
    records = repository.commit({"a": [1]})
    repository.read(*records.values())
    noted = range_sizes.RangeSizes(repository.store, range_sizes.folder(PLAN.run_id))
    noted.note(records["a"].id, pa.array([7, 8], pa.int64()))
    noted.put()
    assert repository.chosen(records, 1) == repository.chosen(records, 7) == {"a"}


def test_many_sizes_are_looked_at_in_tasks(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noted_files, "VALUES_READ_HERE", -1)
    records = repository.commit({"a": [1, 2], "b": [2, 3]})
    repository.read(*records.values())
    assert repository.chosen(records, 3) == {"b"}


@pytest.mark.slow
def test_tasks_of_spark_note_sizes_and_look_at_them(
    spark: SparkSession, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noted_files, "VALUES_READ_HERE", -1)
    records = repository.commit({"a": [1, 2], "b": [2, 3], "c": [4]})
    step = made_step(SparkEngine(spark, 2), repository.step.repository)
    step.engine.collect(
        References.from_step(step).committed(RangeRecords.of(records.values()), noted_sizes.folder_of(step))
    )
    every = [record.id for record in records.values()]
    for size, names in ((2, "ab"), (9, "")):
        chosen = noted_sizes.select_ranges(step, every, pa.array([size], pa.int64()))
        assert chosen == sorted(records[name].id for name in names)


def test_an_address_is_read_as_it_is_without_notes(repository: Repository) -> None:
    records = RangeRecords.of(repository.commit({"a": [1, 2], "b": [3]}).values())
    references, engine = References.from_step(repository.step), repository.step.engine
    noting = references.committed(records, noted_sizes.folder_of(repository.step))
    assert engine.collect(noting).sort_by("address") == engine.collect(references.committed(records)).sort_by("address")


class TestTakingOver:
    def test_what_an_earlier_run_noted_is_known_when_that_run_has_expired(self, repository: Repository) -> None:
        records = repository.commit({"a": [1], "b": [2]})
        repository.read(*records.values())
        repository.hand_on()
        noted_sizes.gather(repository.step, BASE)
        for file in range_sizes.files_of(repository.store, BASE):
            repository.store.delete([file.key])
        assert repository.chosen(records, 2) == {"b"}

    def test_however_many_runs_follow_each_other_there_are_few_files(self, repository: Repository) -> None:
        records = repository.commit({str(number): [number] for number in range(1, 33)})
        for record in records.values():
            repository.hand_on()
            repository.read(record)
            noted_sizes.gather(repository.step, BASE)
            for file in range_sizes.files_of(repository.store, BASE):
                repository.store.delete([file.key])
        assert len(range_sizes.files_of(repository.store, PLAN.run_id)) <= 8
        assert repository.chosen(records, 7, 9) == {"7", "9"}

    @pytest.mark.parametrize("copies", [False, True])
    def test_large_files_are_copied(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch, copies: bool
    ) -> None:
        monkeypatch.setattr(range_sizes, "SIZES_OF_A_FILE", 1)
        if not copies:
            monkeypatch.setattr(objects, "CopiesObjects", type("Nothing", (), {}))
        records = repository.commit({"a": [1], "b": [2]})
        repository.read(*records.values())
        repository.hand_on()
        noted_sizes.gather(repository.step, BASE)
        assert len(range_sizes.files_of(repository.store, PLAN.run_id)) == 2
        assert repository.chosen(records, 2) == {"b"}

    def test_what_cannot_be_taken_over_is_told_and_unknown(self, repository: Repository) -> None:
        records = repository.commit({"a": [1], "b": [2]})
        for record in records.values():
            repository.read(record)
        repository.hand_on()
        file, _ = range_sizes.files_of(repository.store, BASE)
        repository.store.put(file.key, b"damaged")
        noted_sizes.gather(repository.step, BASE)
        assert len(repository.chosen(records, 7)) == 1
        assert any("were not taken over from run" in line and file.key in line for line in repository.lines)

    def test_a_file_that_cannot_be_copied_is_told(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: LocalStore, source: str, target: str) -> None:
            raise StorageError(f"{source} is refused")

        assert isinstance(repository.store, CopiesObjects)
        records = repository.commit({"a": [1]})
        repository.read(*records.values())
        repository.hand_on()
        monkeypatch.setattr(LocalStore, "copy", refuse)
        noted_sizes.gather(repository.step, BASE)
        assert repository.chosen(records, 7) == {"a"}
        assert any("is refused" in line for line in repository.lines)

    @pytest.mark.parametrize("here", [8_000_000, -1])
    def test_what_tasks_noted_becomes_one_file(
        self, repository: Repository, monkeypatch: pytest.MonkeyPatch, here: int
    ) -> None:
        monkeypatch.setattr(noted_files, "VALUES_READ_HERE", here)
        records = repository.commit({"a": [1, 2], "b": [2, 3], "c": [4, 5]})
        for record in records.values():
            repository.read(record)
        noted_sizes.gather(repository.step)
        (file,) = range_sizes.files_of(repository.store, PLAN.run_id)
        assert (file.sizes, range_sizes.read(repository.store, file).sizes.tolist()) == (6, [1, 2, 2, 3, 4, 5])
        assert repository.chosen(records, 2) == {"a", "b"}

    def test_what_one_task_noted_stays_where_it_is(self, repository: Repository) -> None:
        records = repository.commit({"a": [1]})
        repository.read(records["a"])
        before = range_sizes.files_of(repository.store, PLAN.run_id)
        noted_sizes.gather(repository.step)
        assert range_sizes.files_of(repository.store, PLAN.run_id) == before

    def test_a_run_that_noted_nothing(self, repository: Repository) -> None:
        noted_sizes.gather(repository.step, BASE)
        assert (repository.lines, range_sizes.files_of(repository.store, PLAN.run_id)) == ([], [])
