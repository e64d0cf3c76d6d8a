from datetime import UTC, datetime, timedelta

import pytest

from lakefs_gc_assets.collector.frame.slices import select_windows, windows_of
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import WindowSize

ISSUE = layout.XidGenerator(b"12345", 0)
MOMENTS = tuple(datetime(2026, 9, 30, 22, tzinfo=UTC) + number * timedelta(hours=12) for number in range(130))
SLICES = tuple(map(ISSUE.descending, MOMENTS))


@pytest.mark.parametrize(
    ("size", "choice", "first", "last", "count"),
    [
        ("month", "2026-10", "2026-10", "2026-10", 1),
        ("month", "2026-10..2026-11", "2026-10", "2026-11", 2),
        ("month", "2026-01..2027-12", "2026-09", "2026-12", 4),
        ("month", "legacy", "legacy", "legacy", 1),
        ("month", "legacy..2026-10", "legacy", "2026-10", 3),
        ("day", "2026-10", "2026-10-01", "2026-10-31", 31),
        ("day", "2026-10-05..2026-10", "2026-10-05", "2026-10-31", 27),
        ("day", "2026-10-05", "2026-10-05", "2026-10-05", 1),
        ("hour", "2026-10-05", "2026-10-05T10", "2026-10-05T22", 2),
        ("slice", "2026-10", SLICES[1], SLICES[62], 62),
        ("slice", f"{SLICES[3]}..{SLICES[5]}", SLICES[3], SLICES[5], 3),
        ("slice", f"2026-10-01..{SLICES[5]}", SLICES[1], SLICES[5], 5),
        ("slice", SLICES[3], SLICES[3], SLICES[3], 1),
        ("slice", f"legacy..{SLICES[0]}", "legacy", SLICES[0], 2),
    ],
)
def test_a_choice_of_windows(size: WindowSize, choice: str, first: str, last: str, count: int) -> None:
    windows = windows_of(SLICES, size)

    chosen = select_windows(windows, choice, size)

    assert (chosen[0], chosen[-1], len(chosen)) == (first, last, count)
    assert chosen == windows[windows.index(first) : windows.index(last) + 1]


@pytest.mark.parametrize(
    ("size", "choice", "why"),
    [
        ("month", "October", "'October' is not a slice window"),
        ("month", "2026-10..", "'' is not a slice window"),
        ("month", "other", "'other' is not a slice window"),
        ("month", "2025-10", "2025-10 has no slice: there are slices in the windows legacy to 2026-12"),
        ("month", "2026-11..2026-10", "has no slice"),
        ("month", "2026-10-05..2026-11", "2026-10-05 is only part of a slice window: windows are months here"),
        ("day", f"2026-10..{SLICES[3]}", "is only part of a slice window: windows are days here"),
    ],
)
def test_a_choice_that_cannot_be_meant(size: WindowSize, choice: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        select_windows(windows_of(SLICES, size), choice, size)


def test_a_repository_without_slices() -> None:
    assert select_windows(("legacy",), "legacy", "month") == ("legacy",)
    with pytest.raises(ConfigurationError, match="2026-10 has no slice"):
        select_windows(("legacy",), "2026-10", "month")
