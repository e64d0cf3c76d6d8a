import hashlib

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]

KEY = "_lakefs/retention/gc/uncommitted/run/ids.parquet"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=20)
@given(st.sets(st.text(st.characters(codec="utf-8"), max_size=8)))
def test_are_read_as_they_were_written(local_store: ObjectStore, ids: set[str]) -> None:
    sha256 = tables.write_ids(local_store, KEY, ids)
    assert tables.read_ids(local_store, KEY) == tables.read_ids(local_store, KEY, sha256) == ids
    assert tables.count_ids(local_store, KEY) == tables.count_ids(local_store, KEY, sha256) == len(ids)
    assert sha256 == hashlib.sha256(local_store.get(KEY)).hexdigest()


def test_the_same_ids_are_the_same_file(store: ObjectStore) -> None:
    assert tables.write_ids(store, KEY, ["b", "a", "b"]) == tables.write_ids(store, KEY, ["a", "b"])


def test_missing_ones_end_the_run(store: ObjectStore) -> None:
    for asked in (tables.read_ids, tables.count_ids):
        with pytest.raises(CorruptFile, match=f"{KEY}: existence: the file is missing"):
            asked(store, KEY)


@pytest.mark.parametrize("content", [b"", b"text"])
def test_damaged_ones_end_the_run(store: ObjectStore, content: bytes) -> None:
    sha256 = tables.write_ids(store, KEY, ["a"])
    store.put(KEY, content)
    for asked in (tables.read_ids, tables.count_ids):
        with pytest.raises(CorruptFile, match=f"{KEY}: ids: cannot be read"):
            asked(store, KEY)
        with pytest.raises(CorruptFile, match=f"{KEY}: checksum: the file was changed"):
            asked(store, KEY, sha256)


def test_others_than_expected_end_the_run(store: ObjectStore) -> None:
    sha256 = tables.write_ids(store, KEY, ["a"])
    tables.write_ids(store, KEY, ["a", "b"])
    with pytest.raises(CorruptFile, match=f"{KEY}: checksum: the file was changed"):
        tables.read_ids(store, KEY, sha256)


def test_of_another_shape_end_the_run(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(tables, "_SCHEMA", pa.schema([("name", pa.string())]))
        tables.write_ids(store, KEY, ["a"])
    with pytest.raises(CorruptFile, match=f"{KEY}: ids: cannot be read"):
        tables.read_ids(store, KEY)
