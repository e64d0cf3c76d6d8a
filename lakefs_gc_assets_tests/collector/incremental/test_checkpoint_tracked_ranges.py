import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.incremental.checkpoint import count_ranges, read_ranges, write_ranges
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.servers.stores import local_store

__all__ = ["local_store"]
KEY = "_lakefs/retention/gc/uncommitted/run/committed_df/tracked-attempt.parquet"
NUMBERS = st.integers(0, 2**63 - 1)
RECORDS = st.lists(
    st.builds(RangeRecord, st.text("0123456789abcdef", min_size=64, max_size=64), *[st.binary()] * 2, *[NUMBERS] * 2)
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(RECORDS)
def test_are_read_as_they_were_written(local_store: ObjectStore, records: list[RangeRecord]) -> None:
    sha256 = write_ranges(local_store, "run", "attempt", range_records(records))
    assert read_ranges(local_store, "run", "attempt", sha256) == range_records(records)
    assert count_ranges(local_store, "run", "attempt", sha256) == len(records)


def test_that_are_missing_damaged_or_others_end_the_run(local_store: ObjectStore) -> None:
    record = RangeRecord("a" * 64, b"a", b"b", 1, 2)
    sha256 = write_ranges(local_store, "run", "attempt", range_records([record]))
    others = write_ranges(local_store, "run", "attempt", range_records([record, record]))
    for asked in (read_ranges, count_ranges):
        with pytest.raises(CorruptFile, match="checksum"):
            asked(local_store, "run", "attempt", sha256)
        with pytest.raises(CorruptFile, match="existence"):
            asked(local_store, "run", "another", sha256)
    assert count_ranges(local_store, "run", "attempt", others) == 2
    local_store.put(KEY, local_store.get(KEY)[:-9])
    with pytest.raises(CorruptFile, match="checksum"):
        read_ranges(local_store, "run", "attempt", others)
