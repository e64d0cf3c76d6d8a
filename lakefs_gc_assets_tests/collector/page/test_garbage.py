"""Garbage counts, computed by tasks or in this process: every object is in one group by age and in one by size."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.page.garbage import (
    AGES,
    LARGEST,
    SIZES,
    UNKNOWN_WHY,
    Garbage,
    LargeObject,
    count_batches,
    count_by_month,
    count_by_tasks,
    count_here,
    written_by,
)
from lakefs_gc_assets.collector.records.outcomes import Why
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES, frame_of_rows

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def counted(*objects: tuple[timedelta, int]) -> Garbage:
    written = pa.array([NOW - age for age, _ in objects], pa.timestamp("us", "UTC"))
    sizes = pa.array([size for _, size in objects], pa.int64())
    addresses = pa.array([f"data/{place:04}" for place in range(len(objects))])
    why = pa.array([Why.NO_COMMIT.value, None] * len(objects))[: len(objects)]
    columns = {"address": addresses, "last_modified": written, "size": sizes, "why": why}
    batch = pa.RecordBatch.from_pydict(columns)
    parts = [count_batches([batch.slice(0, 2), batch.slice(0, 0)], NOW), count_batches([batch.slice(2)], NOW)]
    return Garbage.from_counts(each for part in parts for each in part)


def candidates(folder: Path, rows: int, window: str = "2026-11") -> StoredFrame[CandidateFigures]:
    """Candidates of 1, 2, 3… bytes, each a day older than the previous one."""
    objects: list[dict[str, Any]] = [
        {
            "address": f"data/{place:04}",
            "slice_window": window if place % 2 else "legacy",
            "layout": "slice",
            "last_modified": NOW - place * DAY,
            "size": place + 1,
            "why": Why.RESTORED.value if place < 2 else Why.NO_COMMIT.value,
        }
        for place in range(rows)
    ]
    (folder / "repo").mkdir(exist_ok=True)
    opener = StoreOpener(StoreSettings(local_root=str(folder)), "local://repo/")
    return frame_of_rows(opener, CANDIDATES_DF, objects, CANDIDATE_FIGURES)


def test_every_object_is_in_one_group_by_age_and_in_one_by_size() -> None:
    borders = [
        (age + moment, size)
        for age in AGES.values()
        for moment in (-timedelta.resolution, timedelta())
        for size in SIZES.values()
    ]
    found = counted(*borders)

    for groups in (found.by_age, found.by_size, found.by_why):
        assert sum(objects for objects, _ in groups.values()) == len(borders)
        assert sum(total for _, total in groups.values()) == sum(size for _, size in borders)
    assert found.oldest == NOW - max(AGES.values())


def test_borders_belong_to_the_older_and_larger_group() -> None:
    found = counted((2 * DAY, 2**16), (2 * DAY - timedelta.resolution, 2**16 - 1), (-DAY, 0), (3650 * DAY, 2**40))

    assert found.by_age == {"< 2 days": (2, 2**16 - 1), "2 to 7 days": (1, 2**16), "over a year": (1, 2**40)}
    assert found.by_size == {"< 64 KiB": (2, 2**16 - 1), "64 KiB to 1 MiB": (1, 2**16), "> 4 GiB": (1, 2**40)}


def test_the_largest_are_named_whichever_task_saw_them() -> None:
    found = counted(*((DAY, size) for size in range(50)), (2 * DAY, 49))

    assert found.largest[:3] == (
        LargeObject("data/0049", 49, NOW - DAY),
        LargeObject("data/0050", 49, NOW - 2 * DAY),
        LargeObject("data/0048", 48, NOW - DAY),
    )
    assert [each.size for each in found.largest] == sorted([49, *range(50)], reverse=True)[:LARGEST]


def test_candidates_of_earlier_versions_say_no_reason() -> None:
    assert counted((DAY, 1), (DAY, 2)).by_why == {Why.NO_COMMIT: (1, 1), UNKNOWN_WHY: (1, 2)}


def test_nothing_is_counted_where_nothing_is() -> None:
    assert Garbage.from_counts(count_batches([], NOW)) == Garbage({}, {}, None)


def test_many_are_counted_by_tasks_and_few_here_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = candidates(tmp_path, 60)
    here = count_here(frame.opener.open(), frame.manifest, NOW)
    assert sum(objects for objects, _ in here.by_age.values()) == 60
    assert here.largest[0] == LargeObject("data/0059", 60, NOW - 59 * DAY)
    assert here.by_why == {Why.RESTORED: (2, 3), Why.NO_COMMIT: (58, 60 * 61 // 2 - 3)}

    assert count_by_tasks(frame, LocalEngine(), NOW) == here
    monkeypatch.setattr(files, "LOCAL_ROWS", 0)
    assert count_by_tasks(frame, LocalEngine(), NOW) == here


def test_files_that_are_gone_are_said_to_be(tmp_path: Path) -> None:
    frame = candidates(tmp_path, 4)
    store = frame.opener.open()
    store.delete([frame.manifest.files[0].key])
    with pytest.raises(CorruptFile, match="missing from the object store"):
        count_here(store, frame.manifest, NOW)


@pytest.mark.parametrize("size", ["month", "day", "hour", "slice"])
def test_months_whatever_slices_are_grouped_by(tmp_path: Path, size: Any) -> None:
    windows = {
        "month": "2026-11",
        "day": "2026-11-22",
        "hour": "2026-11-22T10",
        "slice": layout.XidGenerator().descending(NOW),
    }
    frame = candidates(tmp_path, 3, windows[size])

    assert count_by_month(frame.manifest, size) == {"2026-11": (1, 2), "legacy": (2, 4)}


def test_what_wrote_an_object_is_told_by_its_name_and_its_etag() -> None:
    name = "data/g4uk6erfnfus73frbnqg/dc0n8tpksdu988af5sdg"
    parts = "a" * 32 + "-2"
    expected = {
        (name, None): "upload or copy by lakeFS",
        (name, "a" * 32): "upload or copy by lakeFS",
        ("a" * 32, None): "upload or copy by lakeFS",
        (name, parts): "upload in parts",
        (f"{name},{'A' * 43}", None): "client, at an address that lakeFS issued",
        (f"{name},{'A' * 43}", parts): "upload in parts",
        ("data/repo:token/V1StGXR8_Z5jdHi6B-myT", None): "client, at an address that lakeFS issued",
        (f"{name}.part_00001", None): "upload in parts that has not ended",
        (f"{name}.multipart", "a" * 32): "upload in parts that has not ended",
    }
    columns = zip(*expected, strict=True)
    rows = pa.table([pa.array(column, pa.string()) for column in columns], names=["address", "etag"])
    assert dict(zip(expected, written_by(rows).to_pylist(), strict=True)) == expected
    assert written_by(rows.slice(0, 0)).to_pylist() == []
