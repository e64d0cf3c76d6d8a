from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import facts
from lakefs_gc_assets.collector.live.facts import FactFile
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, RANGE_HASHES, SIZES
from lakefs_gc_assets.storage.local import LocalStore


def rows_of(*numbers: int) -> pa.Table:
    rows = [
        {"range_id": f"range {each}", "namespace": "", "entries": 2, "slices": [], "hashes": [each, 10 + each]}
        for each in numbers
    ]
    return pa.Table.from_pylist(rows, RANGE_HASHES)


def files_of(store: LocalStore) -> list[FactFile]:
    return facts.files_of(HASHES, facts.list_files(store, facts.ROOT))


def test_what_is_merged_is_all_there_in_files_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_VALUES_OF_A_FILE", 4)
    store, before, after = LocalStore(tmp_path), HASHES.folder("run", "attempt"), HASHES.folder("next", "attempt")
    for number in range(7):
        facts.put(HASHES, store, before, rows_of(number))
    for group in facts.group(files_of(store)):
        if len(group) > 1:
            assert facts.merge(HASHES, store, after, group) == []
    found = files_of(store)
    assert sorted((file.values, file.key.startswith(after)) for file in found) == [(2, False), *[(4, True)] * 3]
    read = pa.concat_tables(facts.read(HASHES, store, file) for file in found).sort_by("range_id")
    assert read.to_pylist() == rows_of(*range(7)).to_pylist()


def test_of_a_fact_that_is_in_several_files_one_is_kept(tmp_path: Path) -> None:
    store, folder = LocalStore(tmp_path), HASHES.folder("run", "attempt")
    for numbers in ((1, 2), (2, 3)):
        facts.put(HASHES, store, folder, rows_of(*numbers))
    facts.merge(HASHES, store, folder, files_of(store))
    (file,) = files_of(store)
    assert sorted(facts.read(HASHES, store, file).column("range_id").to_pylist()) == ["range 1", "range 2", "range 3"]


def test_merging_one_file_keeps_it(tmp_path: Path) -> None:
    """All other files are damaged, and are deleted because no run trusts them."""
    store, folder = LocalStore(tmp_path), HASHES.folder("run", "attempt")
    for number in (1, 2):
        facts.put(HASHES, store, folder, rows_of(number))
    file, damaged = files_of(store)
    store.put(damaged.key, b"damaged")
    (problem,) = facts.merge(HASHES, store, folder, [file, damaged])
    assert damaged.key in problem
    assert files_of(store) == [file]


def test_a_run_that_looked_at_everything_drops_what_older_ones_recorded(tmp_path: Path) -> None:
    """Newer runs have smaller ids; their facts stay, as do files of no run."""
    store = LocalStore(tmp_path)
    keys = {
        (run_id, attempt): facts.put(kind, store, kind.folder(run_id, attempt), kind.schema.empty_table())
        for kind, run_id, attempt in (
            (HASHES, "a", "1"),
            (HASHES, "b", "1"),
            (SIZES, "b", "2"),
            (HASHES, "c", "2"),
        )
    }
    store.put(f"{facts.ROOT}notes.txt", b"")
    kept = facts.drop_older(store, facts.list_files(store, facts.ROOT), "b", "2")
    assert kept.keys() == {keys["a", "1"], keys["b", "2"], f"{facts.ROOT}notes.txt"}
    assert kept == facts.list_files(store, facts.ROOT)


def test_what_a_run_recorded_goes_by_its_id(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for kind, run_id in ((HASHES, "a"), (SIZES, "a"), (HASHES, "b")):
        facts.put(kind, store, kind.folder(run_id, "attempt"), kind.schema.empty_table())
    assert facts.drop_of_run(store, "a") == 2
    assert [file.key.startswith(HASHES.folder("b", "attempt")) for file in files_of(store)] == [True]


@given(st.lists(st.integers(50, 100), min_size=2, max_size=40))
def test_files_of_about_the_same_size_become_one(values: list[int]) -> None:
    """Files of a run's tasks are such, each slightly larger than the previous one."""
    files = [FactFile(f"{place:03}", 0, count, 0, "") for place, count in enumerate(values)]
    assert len(facts.group(files)) == 1
