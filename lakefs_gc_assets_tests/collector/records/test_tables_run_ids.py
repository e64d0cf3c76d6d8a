import hashlib
from collections.abc import Iterable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.collector import expiring
from lakefs_gc_assets.collector.expiring import PastFolder
from lakefs_gc_assets.collector.records import tables
from lakefs_gc_assets.collector.records.tables import StoredIds
from lakefs_gc_assets.errors import CorruptFile, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

FOLDER = "_lakefs/retention/gc/uncommitted/"
MANY = [f"{number:064x}" for number in range(9)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes three ids count as many."""
    monkeypatch.setattr(tables, "_SMALL", 2)


class Chain:
    """Runs that build on each other, each named by its place."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.stored: list[StoredIds] = []

    def clean(self, ids: Iterable[str]) -> "Chain":
        """A run without a base run."""
        name = f"run{len(self.stored)}"
        self.stored.append(StoredIds(name, "attempt", tables.write_run_ids(self.store, name, "attempt", ids)))
        return self

    def read(self, place: int = -1) -> set[str]:
        """Ids that a run and its base runs have read."""
        of = self.stored[place]
        assert of.sha256 is not None
        found = tables.read_run_ids(self.store, of.run_id, of.attempt, of.sha256)
        assert tables.count_run_ids(self.store, of.run_id, of.attempt, of.sha256) == len(found)
        return set(found)

    def then(self, new: Iterable[str]) -> "Chain":
        """A run that builds on the last one."""
        before, name = self.stored[-1], f"run{len(self.stored)}"
        sha256 = tables.add_run_ids(
            self.store, name, "attempt", new, tables.read_run_ids(self.store, before.run_id, before.attempt), before
        )
        self.stored.append(StoredIds(name, "attempt", sha256))
        return self

    def files(self) -> list[str]:
        """The names of the files of the last run."""
        folder = f"{FOLDER}{self.stored[-1].run_id}/committed_df/"
        return [facts.key.removeprefix(folder) for facts in self.store.list_level(folder).objects]


def test_are_read_as_they_were_written(store: ObjectStore) -> None:
    tables.write_run_ids(store, "run", "attempt", ["b" * 64, "a" * 64, "b" * 64])
    assert tables.read_run_ids(store, "run", "attempt") == {"a" * 64, "b" * 64}


def test_may_be_none(store: ObjectStore) -> None:
    tables.write_run_ids(store, "run", "attempt", [])
    assert tables.read_run_ids(store, "run", "attempt") == frozenset()


def test_lie_beside_the_committed_addresses_of_their_run(store: ObjectStore) -> None:
    tables.write_run_ids(store, "run", "attempt", ["a"])
    assert store.head("_lakefs/retention/gc/uncommitted/run/committed_df/read-attempt.parquet").size


def test_are_those_of_the_attempt(store: ObjectStore) -> None:
    tables.write_run_ids(store, "run", "first", ["a"])
    tables.write_run_ids(store, "run", "second", ["b"])
    assert tables.read_run_ids(store, "run", "second") == {"b"}
    assert tables.read_run_ids(store, "run", "first") == {"a"}


def test_that_are_missing_end_the_run(store: ObjectStore) -> None:
    tables.write_run_ids(store, "run", "first", ["a"])
    with pytest.raises(CorruptFile, match="existence"):
        tables.read_run_ids(store, "run", "second")


def test_that_are_not_those_of_a_report_end_the_run(store: ObjectStore) -> None:
    written = tables.write_run_ids(store, "run", "first", ["a"])
    assert tables.read_run_ids(store, "run", "first", written) == {"a"}
    tables.write_run_ids(store, "run", "first", ["b"])
    with pytest.raises(CorruptFile, match="checksum"):
        tables.read_run_ids(store, "run", "first", written)


class TestMany:
    """Many ids are in two files; a run writes only the small one."""

    pytestmark = pytest.mark.usefixtures("few")

    def test_are_read_with_what_a_run_added(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        chain = Chain(store).clean(MANY[:7])
        assert chain.files() == ["read-attempt.parquet", "read-earlier-attempt.parquet"]
        with monkeypatch.context() as patched:
            # Ids read before are not written again.
            patched.setattr(tables, "write_ids", None)
            chain.then([MANY[7], MANY[0]]).then([MANY[8]])
        assert chain.files() == ["read-attempt.parquet", "read-earlier-attempt.parquet"]
        assert [chain.read(place) for place in range(3)] == [set(MANY[:7]), set(MANY[:8]), set(MANY)]

    def test_are_written_together_when_those_added_are_many(self, store: ObjectStore) -> None:
        chain = Chain(store).clean(MANY[:3]).then(MANY[3:5])
        before = store.get(chain.stored[-1].earlier_key)
        chain.then([MANY[5]])
        assert store.get(chain.stored[-1].earlier_key) != before
        assert chain.read() == set(MANY[:6])
        assert tables.count_ids(store, chain.stored[-1].earlier_key) == 6

    def test_a_few_in_proportion_are_few(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "_SMALL_PART", 2)
        chain = Chain(store).clean(MANY[:6]).then(MANY[6:9])
        assert tables.count_ids(store, chain.stored[-1].earlier_key) == 6
        chain.then(["a" * 64])
        assert tables.count_ids(store, chain.stored[-1].earlier_key) == 10
        assert chain.read() == {*MANY, "a" * 64}

    def test_do_not_go_with_the_frames_of_the_run_that_wrote_them(self, store: ObjectStore) -> None:
        chain = Chain(store).clean(MANY[:7]).then([MANY[7]])
        expiring.remove_frames(store, PastFolder("run0", ("committed_df",), frozenset()))
        with pytest.raises(CorruptFile, match="existence"):
            chain.read(0)
        assert chain.read() == set(MANY[:8])
        assert chain.then([MANY[8]]).read() == set(MANY)

    @pytest.mark.parametrize("damage", [None, b"damaged", "another"])
    def test_without_the_earlier_file_nothing_is_read(self, store: ObjectStore, damage: object) -> None:
        chain = Chain(store).clean(MANY[:7]).then([MANY[7]])
        left = chain.stored[-1]
        assert left.sha256 is not None
        if damage is None:
            store.delete([left.earlier_key])
        elif isinstance(damage, bytes):
            store.put(left.earlier_key, damage)
        else:
            tables.write_ids(store, left.earlier_key, MANY)
        for asked in (tables.read_run_ids, tables.count_run_ids):
            with pytest.raises(CorruptFile, match="existence" if damage is None else "checksum"):
                asked(store, left.run_id, left.attempt, left.sha256)

    def test_are_written_whole_where_the_store_cannot_copy(
        self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: LocalStore, source: str, target: str) -> None:
            raise StorageError("it takes a hard link")

        monkeypatch.setattr(LocalStore, "copy", refuse)
        chain = Chain(store).clean(MANY[:7]).then([MANY[7]])
        assert chain.read() == set(MANY[:8])
        assert tables.count_ids(store, chain.stored[-1].earlier_key) == 8

    def test_of_a_run_that_were_changed_are_not_built_on(self, store: ObjectStore) -> None:
        chain = Chain(store).clean(MANY[:7])
        tables.write_run_ids(store, "run0", "attempt", MANY)
        with pytest.raises(CorruptFile, match="checksum"):
            chain.then([])

    def test_two_earlier_files_are_one_too_many(self, store: ObjectStore) -> None:
        rows = pa.table([["a" * 64, "b" * 64], pa.array([1, 1], pa.int64())], schema=tables._OWN_FILE)
        store.put(StoredIds("run", "attempt").key, tables.encode(rows))
        with pytest.raises(CorruptFile, match="it names 2 earlier files"):
            tables.read_run_ids(store, "run", "attempt")

    def test_of_a_version_that_wrote_one_file_are_read_and_added_to(self, store: ObjectStore) -> None:
        of = StoredIds("run0", "attempt")
        sha256 = tables.write_ids(store, of.key, MANY[:7])
        assert hashlib.sha256(store.get(of.key)).hexdigest() == sha256
        chain = Chain(store)
        chain.stored.append(StoredIds("run0", "attempt", sha256))
        assert chain.read() == set(MANY[:7])
        assert chain.then([MANY[7]]).read() == set(MANY[:8])
        assert chain.then([MANY[8]]).read() == set(MANY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=50)
@given(st.lists(st.sets(st.integers(0, 40)), min_size=1, max_size=6), st.integers(0, 5), st.integers(1, 8))
def test_a_chain_of_runs_knows_what_each_of_them_read(
    store: ObjectStore, reads: list[set[int]], small: int, part: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tables, "_SMALL", small)
        patched.setattr(tables, "_SMALL_PART", part)
        known, chain = set[str](), Chain(store)
        for number, places in enumerate(reads):
            new = {f"{place:064x}" if place % 5 else f"odd {place}" for place in places}
            known |= new
            chain = chain.then(new) if number else chain.clean(new)
            assert chain.read() == known
