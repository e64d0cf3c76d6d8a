from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.live import range_notes
from lakefs_gc_assets.collector.live.range_notes import NotesFile

MOST = 100


@given(st.lists(st.integers(0, 2 * MOST), max_size=60))
def test_files_become_few_and_none_of_them_large(values: list[int]) -> None:
    files = [NotesFile(f"{place:03}", count, "") for place, count in enumerate(values)]
    with mock.patch.object(range_notes, "_VALUES_OF_A_FILE", MOST):
        groups = range_notes.group(files)
    assert sorted((file for group in groups for file in group), key=lambda each: each.key) == files
    sums = [sum(file.values for file in group) for group in groups]
    assert all(total <= MOST for group, total in zip(groups, sums, strict=True) if len(group) > 1)
    # Of files that are alike, as those of many tasks are, each two make one.
    assert all(len(group) > 1 for group in groups[:-1] if len({*values}) == 1 and 2 * values[0] <= MOST)
