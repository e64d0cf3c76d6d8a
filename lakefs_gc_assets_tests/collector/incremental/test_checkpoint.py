import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.frame.files import Manifest
from lakefs_gc_assets.collector.frame.frames import CHECKPOINT_COMMITTED_DF, PENDING_DF
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore

CUTOFF = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
IDS = layout.XidGenerator()
SLICES = st.builds(lambda hours: IDS.descending(CUTOFF + hours * HOUR / 2), st.integers(-20, 20))


def carried(store: ObjectStore, sealed: frozenset[str], read: frozenset[str]) -> Checkpoint:
    """The record of a checkpoint stored as run `run`, attempt `attempt`."""
    return Checkpoint(
        attempt="attempt",
        sealed=len(sealed),
        sealed_objects=0,
        sealed_sha256=checkpoint.write_sealed(store, "run", "attempt", sealed),
        read=len(read),
        read_sha256=tables.write_run_ids(store, "run", "attempt", read),
        pending=0,
        pending_digest="",
        committed=0,
        committed_digest="",
        pending_windows=(),
        other_folders=(),
    )


def keys(store: ObjectStore) -> list[str]:
    """All keys of a store."""
    return [key for batch in store.list("") for key in batch.column("key").to_pylist()]


class TestSettled:
    @pytest.mark.parametrize(
        ("before_cutoff", "sealed"),
        [(2 * HOUR + SECOND, True), (2 * HOUR, False), (HOUR, False), (-HOUR, False)],
    )
    def test_a_slice_is_sealed_an_interval_and_the_skew_before_the_cutoff(
        self, before_cutoff: timedelta, sealed: bool
    ) -> None:
        name = IDS.descending(CUTOFF - before_cutoff)
        assert checkpoint.sealed(frozenset(), [name], CUTOFF, HOUR) == (frozenset([name]) if sealed else frozenset())

    @given(st.sets(SLICES), st.sets(SLICES), st.timedeltas(timedelta(), timedelta(hours=5)))
    def test_the_set_only_grows_and_only_by_what_was_listed(
        self, before: set[str], listed: set[str], skew: timedelta
    ) -> None:
        after = checkpoint.sealed(frozenset(before), listed, CUTOFF, skew)
        assert before <= after <= before | listed

    def test_a_slice_that_was_not_listed_is_not_sealed_however_old_it_is(self) -> None:
        assert checkpoint.sealed(frozenset(), [], CUTOFF, HOUR) == frozenset()

    def test_a_cutoff_that_goes_back_unsettles_nothing(self) -> None:
        name = IDS.descending(CUTOFF - 3 * HOUR)
        sealed = checkpoint.sealed(frozenset(), [name], CUTOFF, HOUR)
        assert checkpoint.sealed(sealed, [name], CUTOFF - timedelta(days=9), HOUR) == sealed == {name}


def test_what_a_run_left_is_read_back(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    left = carried(store, frozenset(["one", "two"]), frozenset(["a" * 64]))
    assert checkpoint.read_sealed(store, "run", left) == {"one", "two"}
    assert checkpoint.read_ids(store, "run", left) == {"a" * 64}
    assert checkpoint.count_ids(store, "run", left) == 1


def test_what_was_changed_since_is_not_read(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    left = carried(store, frozenset(["one", "two"]), frozenset(["a" * 64]))
    checkpoint.write_sealed(store, "run", "attempt", frozenset(["one"]))
    tables.write_run_ids(store, "run", "attempt", [])
    with pytest.raises(CorruptFile, match="checksum"):
        checkpoint.read_sealed(store, "run", left)
    for asked in (checkpoint.read_ids, checkpoint.count_ids):
        with pytest.raises(CorruptFile, match="checksum"):
            asked(store, "run", left)


def test_what_a_run_left_is_no_other_runs(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    left = carried(store, frozenset(["one"]), frozenset(["a" * 64]))
    checkpoint.write_listed_slices(store, "run", "attempt", ["one"])
    for read in (checkpoint.read_sealed, checkpoint.read_ids):
        with pytest.raises(CorruptFile, match="existence"):
            read(store, "other", left)
    with pytest.raises(CorruptFile, match="existence"):
        checkpoint.read_listed_slices(store, "other", "attempt")
    assert all(key.startswith(run_folder.folder("run")) for key in keys(store))
    assert f"{run_folder.frame('run', 'store_df')}slices-attempt.parquet" in keys(store)


@pytest.mark.parametrize("frame", [PENDING_DF.name, CHECKPOINT_COMMITTED_DF.name])
def test_frames_must_be_there_and_the_ones_that_were_left(
    tmp_path: Path, frame: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The manifest's content does not matter here.
    monkeypatch.setattr(Manifest, "from_json", lambda *arguments: SimpleNamespace(files=()))
    store = LocalStore(tmp_path)
    for name in (PENDING_DF.name, CHECKPOINT_COMMITTED_DF.name):
        store.put(run_folder.manifest("run", name), name.encode())
    left = replace(
        carried(store, frozenset(), frozenset()),
        pending_digest=hashlib.sha256(PENDING_DF.name.encode()).hexdigest(),
        committed_digest=hashlib.sha256(CHECKPOINT_COMMITTED_DF.name.encode()).hexdigest(),
    )
    checkpoint.require_frames(store, "run", left)
    key = run_folder.manifest("run", frame)
    store.put(key, b"another one")
    with pytest.raises(CorruptFile) as other:
        checkpoint.require_frames(store, "run", left)
    assert other.value.args == (key, "digest", "the frame differs from the one in the report")
    store.delete([key])
    with pytest.raises(CorruptFile) as gone:
        checkpoint.require_frames(store, "run", left)
    assert gone.value.args == (key, "existence", "the file is missing from the object store")


def test_listed_slices_are_those_of_the_attempt(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    checkpoint.write_listed_slices(store, "run", "first", ["one"])
    checkpoint.write_listed_slices(store, "run", "second", [])
    assert checkpoint.read_listed_slices(store, "run", "first") == {"one"}
    assert checkpoint.read_listed_slices(store, "run", "second") == frozenset()
    with pytest.raises(CorruptFile, match="existence"):
        checkpoint.read_listed_slices(store, "run", "third")
