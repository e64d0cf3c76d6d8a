from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.spark import tasks

WORK = st.lists(st.lists(st.text(max_size=30) | st.binary(max_size=30), min_size=1, max_size=5), max_size=5)


@given(WORK, st.randoms(use_true_random=False), st.integers(1, 40))
def test_items_of_several_tasks_in_one_partition_are_all_there(
    work: Sequence[Sequence[object]], random: Random, piece: int
) -> None:
    """Spark promises one task per partition. If work got lost in another task, live objects would go unnoticed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "_PIECE", piece)
        rows = tasks.as_rows(tasks.pack(work)).to_batches()
    random.shuffle(rows)
    assert [*tasks.of_rows(rows)] == [item for group in work for item in group]
