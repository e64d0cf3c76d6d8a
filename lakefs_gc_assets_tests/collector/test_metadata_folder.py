import os
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from lakefs_gc_assets.collector.retention.commits import list_ids, list_with_times
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore
from lakefs_gc_assets.storage.local.store import LocalStore

IDS = tuple(digit * 64 for digit in ("0", "9", "a", "f"))
OTHERS = ("dummy", "A" * 64, "a" * 63, "a" * 65, "g" * 64, "0" * 63 + "g", "a" * 64 + ".json")


class OnlyLevels:
    """A store that lists a level at a time alone."""

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


def test_a_namespace_without_any(tmp_path: Path) -> None:
    assert list_ids(LocalStore(tmp_path)) == {}
