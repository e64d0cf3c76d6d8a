"""Heads of branches that are read for candidates, with real files."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.live import facts, hidden, references
from lakefs_gc_assets.collector.live.facts import FactFile
from lakefs_gc_assets.collector.live.facts_of_ranges import METARANGES
from lakefs_gc_assets.collector.live.hidden import HeadRange
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.breaking import flipped
from lakefs_gc_assets_tests.collector.made_frames import made_step, opened_by, opener_in
from lakefs_gc_assets_tests.collector.past_runs import DAY, began
from lakefs_gc_assets_tests.collector.written import METADATA, Staged, put_metarange, put_range


@pytest.fixture(autouse=True)
def _worth_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "HEADS_WORTH_RECORDING", 1)


class Repository:
    """Ranges a to f, heads that name some ranges, a run that reads the heads, and a run that builds on it."""

    def __init__(self, folder: Path) -> None:
        self.repository = opened_by(opener_in(folder))
        self.store = self.repository.store
        self.parts: dict[str, RangeRecord] = {
            name: put_range(self.store, {f"{name}{place}": Staged(f"data/{name}{place}") for place in range(number)})
            for number, name in enumerate("abcdef", start=1)
        }
        self.lines: list[str] = []
        before = began(self.repository, 3 * DAY, flow=Flow.CLEAN)
        self.earlier = self.step(before)
        self.later = self.step(replace(before, base_run=before.run_id, base_run_attempt=before.attempt))

    def step(self, plan: Any) -> Step[Any]:
        return made_step(LocalEngine(), self.repository, plan, note=self.lines.append)

    def head(self, names: str) -> str:
        return put_metarange(self.store, [self.parts[name] for name in sorted(names)])

    def found(self, step: Step[Any], heads: dict[str, str], *, record: bool = True) -> dict[str, HeadRange]:
        ranges_of = references.ranges_of_heads(step, self.repository, {*heads.values()}, record=record)
        return {
            range_id: replace(head, branches=tuple(sorted(head.branches)))
            for range_id, head in hidden.heads_by_range(heads.items(), ranges_of).items()
        }

    def expected(self, heads: dict[str, str]) -> dict[str, HeadRange]:
        """The ranges of heads, from their files alone."""
        return self.found(self.step(replace(self.earlier.plan, attempt="another")), heads, record=False)

    def files(self) -> list[FactFile]:
        return facts.files_of(METARANGES, facts.list_files(self.store, METARANGES.root))

    def lose(self, *heads: str) -> None:
        """Makes every read of these heads fail."""
        self.store.delete([METADATA + head for head in heads])


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


@given(st.dictionaries(st.sampled_from("vwxyz"), st.text("abcdef", max_size=4)), st.sets(st.sampled_from("vwxyz")))
@settings(max_examples=25, deadline=None)
def test_whatever_is_recorded_the_ranges_of_heads_are_the_same(branches: dict[str, str], before: set[str]) -> None:
    with TemporaryDirectory() as folder:
        repository = Repository(Path(folder))
        heads = {branch: repository.head("".join(set(names))) for branch, names in branches.items()}
        expected = repository.expected(heads)
        repository.found(repository.earlier, {branch: head for branch, head in heads.items() if branch in before})
        assert repository.found(repository.later, heads) == expected
        assert repository.lines == []


def test_heads_that_are_recorded_are_not_read(repository: Repository) -> None:
    heads = {"x": repository.head("ab"), "y": repository.head("bc")}
    expected = repository.found(repository.earlier, heads)
    repository.lose(*heads.values())
    heads["z"] = repository.head("f")
    found = repository.found(repository.later, heads)
    assert {name: found[name] for name in expected} == expected
    assert found[repository.parts["f"].id].branches == ("z",)
    # The same goes for heads that the later run has read.
    repository.lose(heads["z"])
    assert repository.found(repository.later, heads) == found


def test_many_heads_are_merged_as_they_are_read(repository: Repository) -> None:
    heads = {str(number): repository.head("abcdef"[number % 5 :]) for number in range(20)}
    with mock.patch.object(references, "ROWS_MERGED", 2):
        expected = repository.found(repository.earlier, heads)
    assert repository.found(repository.later, heads) == expected


def test_a_run_that_looks_at_everything_reads_every_head(repository: Repository) -> None:
    heads = {"x": repository.head("ab")}
    expected = repository.found(repository.earlier, heads)
    assert repository.expected(heads) == expected
    repository.lose(heads["x"])
    with pytest.raises(Exception, match="missing"):
        repository.expected(heads)


@pytest.mark.parametrize("damage", [b"", b"damaged", None])
def test_heads_of_damaged_facts_are_read_and_it_is_reported(repository: Repository, damage: bytes | None) -> None:
    heads = {"x": repository.head("ab")}
    expected = repository.found(repository.earlier, heads)
    (file,) = repository.files()
    repository.store.put(file.key, repository.store.get(file.key)[:-5] if damage is None else damage)
    assert repository.found(repository.later, heads) == expected
    assert (
        len(repository.lines) == 1
        and "reading these heads again" in repository.lines[0]
        and file.key in repository.lines[0]
    )


def test_every_changed_byte_counts_for_nothing(repository: Repository) -> None:
    heads = {"x": repository.head("ab"), "y": repository.head("bc")}
    expected = repository.found(repository.earlier, heads)
    (file,) = repository.files()
    whole = repository.store.get(file.key)
    for place in range(0, len(whole), 9):
        repository.store.put(file.key, flipped(whole, place))
        repository.lines.clear()
        assert repository.found(repository.later, heads, record=False) == expected
        assert len(repository.lines) == 1


def test_little_is_not_recorded(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "HEADS_WORTH_RECORDING", 3)
    repository.found(repository.earlier, {"x": repository.head("ab")})
    assert repository.files() == []
    repository.found(repository.earlier, {"x": repository.head("ab"), "y": repository.head("b")})
    assert len(repository.files()) == 1


def test_who_only_looks_records_nothing(repository: Repository) -> None:
    repository.found(repository.earlier, {"x": repository.head("ab")}, record=False)
    assert repository.files() == []


def test_a_store_that_refuses_is_reported_and_ends_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalStore, key: str, *more: object) -> None:
        raise StorageError(f"{key} is refused")

    heads = {"x": repository.head("ab")}
    expected = repository.expected(heads)
    monkeypatch.setattr(LocalStore, "put", refuse)
    assert repository.found(repository.earlier, heads) == expected
    assert len(repository.lines) == 1 and "is refused" in repository.lines[0]
