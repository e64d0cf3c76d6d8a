import os
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import list_ids, list_with_times
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.storage.interface import ListsAtOnce, ListsInOrder, ObjectStore
from lakefs_gc_assets.storage.local import LocalStore

IDS = tuple(digit * 64 for digit in ("0", "9", "a", "f"))
OTHERS = ("dummy", "A" * 64, "a" * 63, "a" * 65, "g" * 64, "0" * 63 + "g", "a" * 64 + ".json")


class OnlyLevels:
    """A store that can only list level by level."""

    def __init__(self, store: ObjectStore) -> None:
        self.list_level = store.list_level


@pytest.mark.parametrize("in_order", [True, False])
def test_only_names_of_ranges_and_metaranges_directly_below(tmp_path: Path, in_order: bool) -> None:
    store = LocalStore(tmp_path)
    for name in (*OTHERS, "retention/gc/" + "b" * 64, "actions/" + "b" * 64, "a/" + "b" * 64):
        store.put(f"_lakefs/{name}", b"")
    for name in IDS:
        store.put(f"_lakefs/{name}", bytes(int(name[0], 16)))
    store.put("b" * 64, b"")
    given = store if in_order else cast(ObjectStore, OnlyLevels(store))
    assert isinstance(given, ListsInOrder) == in_order

    assert [*list_ids(given).items()] == [(name, int(name[0], 16)) for name in IDS]
    for known in (IdSet(IDS[1:3]), frozenset(IDS[1:3])):
        assert [*list_ids(given, known)] == [IDS[0], IDS[3]]
        times = list_with_times(given, known)
        assert [*times] == [IDS[0], IDS[3]]
        for name, (size, written_at) in times.items():
            facts = store.head(f"_lakefs/{name}")
            assert (size, written_at) == (int(name[0], 16), facts.last_modified)


@pytest.mark.parametrize("in_order", [True, False])
def test_files_that_are_older_than_a_moment_are_left_out(tmp_path: Path, in_order: bool) -> None:
    store = LocalStore(tmp_path)
    for number, name in enumerate(IDS):
        store.put(f"_lakefs/{name}", b"")
        os.utime(tmp_path / "_lakefs" / name, (1e9 + number, 1e9 + number))
    given = store if in_order else cast(ObjectStore, OnlyLevels(store))
    assert tuple(list_ids(given, since=datetime.fromtimestamp(1e9 + 2, UTC))) == IDS[2:]
    assert tuple(list_ids(given, IdSet(IDS[3:]), datetime.fromtimestamp(1e9 + 1, UTC))) == IDS[1:3]


class InPages:
    """A store that lists in order, a few files per page, and records the requested bounds."""

    listings_at_once = 8

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.bounds: list[tuple[str, str | None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def list_between(
        self, prefix: str, after: str, until: str | None, *, only_directly: bool = False
    ) -> Iterator[pa.RecordBatch]:
        self.bounds.append((after, until))
        for batch in self._store.list_between(prefix, after, until, only_directly=only_directly):
            yield from (batch.slice(start, 3) for start in range(0, batch.num_rows, 3))


def test_a_local_folder_is_listed_at_once(tmp_path: Path) -> None:
    """Each listing reads the whole folder."""
    assert not isinstance(LocalStore(tmp_path), ListsAtOnce)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_large_folder_is_listed_in_pieces_each_file_once(tmp_path: Path, uneven: bool) -> None:
    store = LocalStore(tmp_path)
    names = [sha256(bytes([number % 256, number // 256])).hexdigest() for number in range(300)]
    if uneven:
        names = [name if number < 70 else "fe" + name[2:] for number, name in enumerate(sorted(names))]
    for name in (*names, *OTHERS, "a/" + "b" * 64, "ffffffff" + "e" * 56, "f" * 64):
        store.put(f"_lakefs/{name}", b"")
    paged = InPages(store)
    expected = sorted({*names, "ffffffff" + "e" * 56, "f" * 64})

    assert [*list_ids(cast(ObjectStore, paged))] == expected
    listed = pa.concat_batches([*commits._batches(cast(ObjectStore, paged))]).column("key").to_pylist()
    assert len(listed) == len({*listed}) and len(paged.bounds) > 2 * 10


def test_a_namespace_without_any(tmp_path: Path) -> None:
    assert list_ids(LocalStore(tmp_path)) == {}
