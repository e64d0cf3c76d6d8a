import pytest

from lakefs_gc_assets.collector.incremental.ranges_read import read, write
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]


def test_are_read_as_they_were_written(store: ObjectStore) -> None:
    write(store, "run", "attempt", ["b" * 64, "a" * 64, "b" * 64])
    assert read(store, "run", "attempt") == {"a" * 64, "b" * 64}


def test_may_be_none(store: ObjectStore) -> None:
    write(store, "run", "attempt", [])
    assert read(store, "run", "attempt") == frozenset()


def test_lie_beside_the_committed_addresses_of_their_run(local_store: ObjectStore) -> None:
    write(local_store, "run", "attempt", ["a"])
    assert local_store.head("_lakefs/retention/gc/uncommitted/run/committed_df/read-attempt.parquet").size


def test_are_those_of_the_attempt(store: ObjectStore) -> None:
    write(store, "run", "first", ["a"])
    write(store, "run", "second", ["b"])
    assert read(store, "run", "second") == {"b"}
    assert read(store, "run", "first") == {"a"}


def test_that_are_missing_end_the_run(store: ObjectStore) -> None:
    write(store, "run", "first", ["a"])
    with pytest.raises(CorruptFile, match="existence"):
        read(store, "run", "second")


def test_that_are_not_those_of_a_report_end_the_run(store: ObjectStore) -> None:
    written = write(store, "run", "first", ["a"])
    assert read(store, "run", "first", written) == {"a"}
    write(store, "run", "first", ["b"])
    with pytest.raises(CorruptFile, match="checksum"):
        read(store, "run", "first", written)
