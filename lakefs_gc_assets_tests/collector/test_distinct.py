import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.distinct import distinct


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3)))
def test_integers_each_once_in_order(values: list[int]) -> None:
    assert distinct(np.array(values, np.int64)).tolist() == sorted({*values})


@given(st.lists(st.binary(min_size=2, max_size=2)))
def test_bytes_each_once_in_order(values: list[bytes]) -> None:
    assert distinct(np.array(values, "S2")).tolist() == sorted({value.rstrip(b"\x00") for value in values})
