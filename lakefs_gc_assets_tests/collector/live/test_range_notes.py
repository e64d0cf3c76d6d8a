from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import range_notes
from lakefs_gc_assets.collector.live.range_hashes import HASHES, RANGE_HASHES
from lakefs_gc_assets.collector.live.range_notes import NotesFile
from lakefs_gc_assets.storage.local.store import LocalStore

MOST = 100


@given(st.lists(st.integers(0, 2 * MOST), max_size=60))
def test_files_become_few_and_none_of_them_large(values: list[int]) -> None:
    files = [NotesFile(f"{place:03}", count, "") for place, count in enumerate(values)]
    groups = range_notes.group(files, lambda file: file.values, MOST)
    assert sorted((file for group in groups for file in group), key=lambda each: each.key) == files
    sums = [sum(file.values for file in group) for group in groups]
    assert all(total <= MOST for group, total in zip(groups, sums, strict=True) if len(group) > 1)
    # Of files that are alike, as those of many tasks are, each two make one.
    assert all(len(group) > 1 for group in groups[:-1] if len({*values}) == 1 and 2 * values[0] <= MOST)


def test_what_is_taken_over_is_all_there_in_files_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_notes, "_VALUES_OF_A_FILE", 4)
    store, before, after = LocalStore(tmp_path), HASHES.folder("run", "attempt"), HASHES.folder("next", "attempt")
    rows = [{"range_id": f"range {number}", "entries": 2, "hashes": [number, 10 + number]} for number in range(7)]
    for row in rows:
        range_notes.put(HASHES, store, before, pa.Table.from_pylist([row], RANGE_HASHES))
    files = range_notes.files_of(HASHES, store, "run", "attempt")
    assert range_notes.take_over(HASHES, store, files, after) == []
    taken = range_notes.files_of(HASHES, store, "next", "attempt")
    assert sorted(file.values for file in taken) == [2, 4, 4, 4]
    read = [row for file in taken for row in range_notes.read(HASHES, store, file).to_pylist()]
    assert sorted(read, key=lambda row: row["range_id"]) == rows


@given(st.lists(st.integers(50, 100), min_size=2, max_size=40))
def test_files_of_about_the_same_size_become_one(values: list[int]) -> None:
    """As those of the tasks of a run are, each a little larger than the one before it."""
    files = [NotesFile(f"{place:03}", count, "") for place, count in enumerate(values)]
    assert len(range_notes.group(files, lambda file: file.values, sum(values))) == 1
