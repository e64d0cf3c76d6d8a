import pyarrow as pa
import pytest

from lakefs_gc_assets.collection import ranges_read, run_folder
from lakefs_gc_assets.collection.ranges_read import read, write
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


def test_are_those_of_the_attempt(store: ObjectStore) -> None:
    write(store, "run", "first", ["a"])
    write(store, "run", "second", ["b"])
    assert read(store, "run", "second") == {"b"}
    assert read(store, "run", "first") == {"a"}


def test_that_are_missing_end_the_run(store: ObjectStore) -> None:
    write(store, "run", "first", ["a"])
    with pytest.raises(CorruptFile, match="existence"):
        read(store, "run", "second")


@pytest.mark.parametrize("content", [b"", b"text"])
def test_that_are_damaged_end_the_run(store: ObjectStore, content: bytes) -> None:
    write(store, "run", "attempt", ["a"])
    (key,) = (key for batch in store.list(run_folder.folder("run")) for key in batch.column("key").to_pylist())
    store.put(key, content)
    with pytest.raises(CorruptFile, match="ranges read"):
        read(store, "run", "attempt")


def test_of_another_shape_end_the_run(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(ranges_read, "_SCHEMA", pa.schema([("name", pa.string())]))
        write(store, "run", "attempt", ["a"])
    with pytest.raises(CorruptFile, match="ranges read"):
        read(store, "run", "attempt")
