"""Contents of folders against a count with plain sets, for any distribution of objects, ranges and tasks."""

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.extensions.forecast import forecast, marking
from lakefs_gc_assets.extensions.forecast.forecast import ByFolder
from lakefs_gc_assets.extensions.forecast.marking import HELD, HELD_IN, PLACED
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, began, ended, opened
from lakefs_gc_assets_tests.extensions.forecast.test_marking import row

__all__ = ["opened"]
WIDTH = 16
HOLDERS = range(62, 67)
"""Holders in both words of a bit set."""
SIZES = {address: 2**place for place, address in enumerate("abcdefgh")}
FOLDERS = ("", "x/", "y/", "z/")

Entry = tuple[str, str, bool, int]
ENTRIES = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.sampled_from(FOLDERS), st.booleans(), st.integers(0, 2**70 - 1)),
    max_size=30,
)
"""Address, folder, certainty, and bits."""


def table(entries: list[Entry]) -> pa.Table:
    rows: list[dict[str, Any]] = []
    for address, folder, certain, bits in entries:
        rows.append({**row(address, certain, 0, SIZES[address], bits), "folder": folder})
    return pa.Table.from_pylist(rows, schema=HELD_IN)


def add_up(entries: list[Entry]) -> ByFolder:
    """Sums as a forecast does: tasks unite their rows, parts are merged, and sums are added."""
    engine = LocalEngine()
    halves = [marking.unite_in_folders(table(half)) for half in (entries[::2], entries[1::2]) if half]
    rows = engine.union(engine.table(table([])), *map(engine.table, halves))
    placed = engine.map_by_address(rows, marking.place, PLACED, len(entries))
    return forecast.add_up(engine, placed, 1, HOLDERS, WIDTH, len(entries))


@given(ENTRIES)
def test_each_object_counts_once_in_each_of_its_folders(entries: list[Entry]) -> None:
    certain = {address for address, _, is_certain, _ in entries if is_certain}
    having: dict[tuple[str, str], int] = {}
    everywhere: dict[str, int] = {}
    for address, folder, _, bits in entries:
        having[folder, address] = having.get((folder, address), 0) | bits
        everywhere[address] = everywhere.get(address, 0) | bits
    found = add_up(entries)
    reported = {each.folder: each for each in found.largest}
    assert found.others is None and found.other_folders == 0
    assert reported.keys() == {folder for folder, address in having if address in certain}
    for each in found.largest:
        here = {
            address: bits for (place, address), bits in having.items() if place == each.folder and address in certain
        }
        assert each.stored == amount(set(here))
        for bit, portion in zip(HOLDERS, each.portions, strict=True):
            has = {address for address, bits in here.items() if bits >> bit & 1}
            alone = {
                address
                for address in has
                if not any(everywhere[address] >> other & 1 for other in HOLDERS if other != bit)
            }
            assert (portion.in_all, portion.alone) == (amount(has), amount(alone))


def amount(addresses: set[str]) -> Amount:
    return Amount(len(addresses), sum(SIZES[address] for address in addresses))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_small_folders_become_one(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "LARGEST", most)
    held = 1 << HOLDERS[0]
    entries = [("h", "x/", True, held), ("g", "y/", True, held), ("f", "z/", True, 0), ("e", "", True, held)]
    found = add_up(entries)
    assert [each.folder for each in found.largest] == ["x/", "y/", "z/"][:most]
    others = [(SIZES[address], bits) for address, _, _, bits in entries][most:]
    assert found.others is not None and found.other_folders == len(others) == 4 - most
    assert found.others.stored == Amount(len(others), sum(size for size, _ in others))
    mine = [size for size, bits in others if bits]
    assert found.others.portions[0].in_all == Amount(len(mine), sum(mine))


def test_one_row_of_an_object_is_the_first() -> None:
    rows = table([("a", "x/", True, 1), ("a", "y/", True, 2), ("b", "x/", False, 4)])
    found = marking.place(rows).to_pylist()
    assert sorted((each["address"], each["folder"], each["held"][0], each["held_there"][0]) for each in found) == [
        ("a", "x/", 3, 1),
        ("a", "y/", 3, 2),
        ("b", "x/", 4, 4),
    ]
    assert sorted(each["address"] for each in found if each["first"]) == ["a", "b"]
    assert marking.unite(rows.select(HELD.names)).num_rows == 2


def test_classes_are_those_of_the_newest_run_that_listed_everything(opened: OpenRepository) -> None:
    def made(ago: timedelta, name: str, **changes: Any) -> str:
        classes = {"listed": {name: {"objects": 1, "bytes": 2}}} if name else {}
        return ended(opened, began(opened, ago), storage_classes=classes, **changes).run_id

    assert forecast.find_listed_classes(opened.store) is None
    made(4 * DAY, "OLDER")
    wanted = made(3 * DAY, "GLACIER")
    made(2 * DAY, "PART", base_run="another")
    made(DAY, "")
    opened.store.put(run_folder.report(made(HOUR, "DAMAGED")), b"damaged")
    found = forecast.find_listed_classes(opened.store)
    assert found is not None and (found.run_id, found.amounts) == (wanted, {"GLACIER": Amount(1, 2)})
