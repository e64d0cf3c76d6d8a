"""Metaranges that a run by retention rules reads, with real files."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.live import facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live.facts import FactFile
from lakefs_gc_assets.collector.live.facts_of_ranges import METARANGES
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import find_ranges
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets_tests.collector.breaking import flipped
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import DAY, began
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_metarange, put_range


def metaranges_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the metaranges that this process reads from now on, in order."""
    read: list[str] = []
    metarange = LiveFiles.metarange

    def counted(files: LiveFiles, metarange_id: str) -> Any:
        read.append(metarange_id)
        return metarange(files, metarange_id)

    monkeypatch.setattr(LiveFiles, "metarange", counted)
    return read


class Repository:
    """A folder with four metaranges of two ranges each, and a run that builds on an earlier one.

    Attributes:
        read: metaranges that were read, in order.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.repository = opened_by(opener_in(folder))
        self.store = self.repository.store
        before = began(self.repository, 3 * DAY, flow=Flow.UNIFIED)
        self.lines: list[str] = []
        self.earlier = self.step(before)
        self.later = self.step(
            began(self.repository, DAY, flow=Flow.UNIFIED, base_run=before.run_id, base_run_attempt=before.attempt)
        )
        self.ranges = [put_range(self.store, {f"{number}/a": Staged(f"data/{number}")}) for number in range(5)]
        self.metaranges = [put_metarange(self.store, self.ranges[number : number + 2]) for number in range(4)]
        self.read = metaranges_read(monkeypatch)

    def step(self, plan: Any) -> Step[Any]:
        return made_step(LocalEngine(), self.repository, plan, note=self.lines.append)

    def named(self, *numbers: int) -> set[RangeRecord]:
        """The ranges of some metaranges."""
        return {each for number in numbers for each in self.ranges[number : number + 2]}

    def found(self, step: Step[Any], *numbers: int) -> set[RangeRecord]:
        """Ranges that a step finds in some metaranges; resets the record of reads."""
        self.read.clear()
        records = [*find_ranges(step, self.repository, [self.metaranges[number] for number in numbers])]
        assert len(records) == len({*records})
        return {*records}

    def files(self) -> list[FactFile]:
        """All files of facts about metaranges."""
        return facts.files_of(METARANGES, facts.list_files(self.store, METARANGES.root))

    def damage(self) -> None:
        """Flips a bit in each file of facts."""
        for file in self.files():
            self.store.put(file.key, flipped(self.store.get(file.key), 40))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    return Repository(tmp_path, monkeypatch)


def test_a_metarange_is_read_once_in_a_run(repository: Repository) -> None:
    step = repository.earlier
    assert repository.found(step, 0, 1) == repository.named(0, 1)
    assert sorted(repository.read) == sorted(repository.metaranges[:2])
    assert repository.found(step, 1, 2) == repository.named(1, 2)
    assert repository.read == [repository.metaranges[2]]
    assert repository.lines[-1] == "1 of 2 metaranges are not read again"
    assert repository.found(step, 0, 1, 2) == repository.named(0, 1, 2)
    assert repository.found(step) == set()
    assert repository.read == []


def test_what_is_not_asked_for_is_not_reported(repository: Repository) -> None:
    """A range that only expired commits reference would count as live."""
    repository.found(repository.earlier, 0, 1, 2, 3)
    assert repository.found(repository.earlier, 3) == repository.named(3)


def test_a_run_that_builds_on_another_one_reads_what_nobody_recorded(repository: Repository) -> None:
    repository.found(repository.earlier, 0, 1)
    repository.found(repository.earlier, 2)
    assert repository.found(repository.later, 1, 2, 3) == repository.named(1, 2, 3)
    assert repository.read == [repository.metaranges[3]]
    assert repository.found(repository.later, 0, 1, 2, 3) == repository.named(0, 1, 2, 3)
    assert repository.read == []


def test_one_that_lists_nothing_believes_others_about_what_expired_alone(repository: Repository) -> None:
    repository.found(repository.earlier, 0)
    plan = replace(repository.later.plan, flow=Flow.COMMITTED)
    step = repository.step(plan)
    expired = find_ranges(step, repository.repository, repository.metaranges[:1], expired=True)
    assert ({*expired}, repository.read) == (repository.named(0), [repository.metaranges[0]])
    repository.read.clear()
    assert {*find_ranges(step, repository.repository, repository.metaranges[:1], expired=True)} == repository.named(0)
    assert repository.read == []
    assert repository.found(step, 0) == repository.named(0)
    assert repository.read == [repository.metaranges[0]]
    # A run without a base run trusts only its own attempt.
    alone = repository.step(replace(plan, base_run=None, base_run_attempt=None, attempt="another"))
    repository.read.clear()
    assert {*find_ranges(alone, repository.repository, repository.metaranges[:1], expired=True)} == repository.named(0)
    assert repository.read == [repository.metaranges[0]]


def test_one_that_looks_at_everything_believes_its_own_attempt_alone(repository: Repository) -> None:
    """So it notices missing files."""
    repository.found(repository.earlier, 0)
    again = repository.step(replace(repository.earlier.plan, attempt="another"))
    assert repository.found(again, 0) == repository.named(0)
    assert repository.read == [repository.metaranges[0]]
    assert repository.found(again, 0) == repository.named(0)
    assert repository.read == []


@pytest.mark.parametrize(
    ("flow", "of_newer", "left"), [(Flow.COMMITTED, False, 1), (Flow.COMMITTED, True, 2), (Flow.UNIFIED, True, 2)]
)
def test_so_does_one_that_has_tidied_up(repository: Repository, flow: Flow, of_newer: bool, left: int) -> None:
    """Other runs recorded wrongly that metaranges lack a range; the run reads these again before it deletes."""
    step = repository.step(began(repository.repository, 2 * DAY, flow=flow))
    wrong = repository.later if of_newer else repository.earlier
    for number in (0, 1):
        rows = LiveFiles(repository.store, repository.repository.namespace, step.plan.slice_window).metarange(
            repository.metaranges[number]
        )
        rows = facts_of_ranges.name_ranges(repository.metaranges[number], 0, rows.slice(1))
        facts_of_ranges.put_metaranges(repository.store, references.facts_folder(wrong, METARANGES).key, rows)
    assert repository.found(step, 2) == repository.named(2)
    references.tidy_facts(step)
    assert len(repository.files()) == left
    assert repository.found(step, 0, 1, 2) == repository.named(0, 1, 2)
    assert sorted(repository.read) == sorted(repository.metaranges[:2])


def test_facts_of_many_runs_become_few_files(repository: Repository) -> None:
    for number in range(4):
        repository.found(repository.later, number)
    references.tidy_facts(repository.later)
    assert len(repository.files()) == 1
    assert repository.found(repository.later, 0, 1, 2, 3) == repository.named(0, 1, 2, 3)
    assert repository.read == []


def test_by_other_flows_nothing_is_noted(repository: Repository) -> None:
    step = repository.step(began(repository.repository, 2 * DAY, flow=Flow.CLEAN))
    assert repository.found(step, 0) == repository.named(0)
    assert repository.files() == []


def test_of_other_repositories_nothing_is_noted_anywhere(tmp_path: Path, repository: Repository) -> None:
    other = opened_by(opener_in(tmp_path, "other"))
    part = put_range(other.store, {"a": Staged("data/a")})
    metarange = put_metarange(other.store, [part])
    step = repository.earlier
    assert {*find_ranges(step, other, [metarange])} == {part}
    for store in (repository.store, other.store):
        assert facts.list_files(store, facts.ROOT) == {}


def test_metaranges_of_damaged_facts_are_read_and_it_is_reported(repository: Repository) -> None:
    repository.found(repository.earlier, 0, 1)
    repository.damage()
    assert repository.found(repository.earlier, 0, 1) == repository.named(0, 1)
    assert sorted(repository.read) == sorted(repository.metaranges[:2])
    assert "1 file of facts (ranges of metaranges) cannot be used" in repository.lines[-1]
    # The last call wrote the same file in its place.
    repository.found(repository.earlier, 0, 1)
    assert repository.read == []
    repository.damage()
    assert repository.found(repository.later, 0) == repository.named(0)
    assert repository.read == [repository.metaranges[0]]


def test_facts_that_are_gone_are_read_again(repository: Repository) -> None:
    repository.found(repository.earlier, 0)
    repository.store.delete([file.key for file in repository.files()])
    assert repository.found(repository.earlier, 0) == repository.named(0)
    assert repository.read == [repository.metaranges[0]]


def test_two_counts_of_a_range_stay_two(repository: Repository) -> None:
    """So reading it fails, whether the counts come from one reading or one comes from a fact."""
    wrong = replace(repository.ranges[0], count=7)
    repository.metaranges.append(put_metarange(repository.store, [wrong]))
    repository.found(repository.earlier, 0)
    assert repository.found(repository.earlier, 0, 4) == {*repository.named(0), wrong}
    assert repository.found(repository.earlier, 0, 4) == {*repository.named(0), wrong}


def test_a_metarange_that_is_gone_and_was_not_noted_fails_the_run(repository: Repository) -> None:
    repository.found(repository.earlier, 0)
    repository.store.delete([METADATA + repository.metaranges[1], METADATA + repository.metaranges[0]])
    assert repository.found(repository.earlier, 0) == repository.named(0)
    with pytest.raises(CorruptFile, match="missing"):
        repository.found(repository.earlier, 0, 1)
