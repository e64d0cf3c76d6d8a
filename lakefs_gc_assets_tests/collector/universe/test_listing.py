import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote

import pyarrow as pa
import pytest

from benchmarks.repositories import make_files
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import STORE_DF, StoredFigures
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ListsInOrder
from lakefs_gc_assets.storage.local import store as local_store
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import LISTED_FIGURES
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server
from lakefs_gc_assets_tests.spark.frame_rows import RUN_ID

__all__ = ["bucket", "s3_server"]

BORN = datetime(2026, 11, 1, tzinfo=UTC)
CUTOFF = BORN + timedelta(days=9)
PLAN_OF_NOVEMBER = replace(PLAN, run_id=RUN_ID, slice_window="month", windows=("2026-11",))
TASKS = 16
"""As many tasks as four workers have."""
ISSUE = layout.XidGenerator(b"12345", 0)


def slice_of(count: int, created: datetime) -> list[str]:
    """Objects of a slice that filled within an hour."""
    name = ISSUE.descending(created)
    return [f"data/{name}/{ISSUE.ascending(created + timedelta(hours=number / count))}" for number in range(count)]


@pytest.fixture
def opener(tmp_path: Path) -> StoreOpener:
    (tmp_path / "repository").mkdir()
    return StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://repository")


def stored(opener: StoreOpener, large: int) -> StoredFrame[StoredFigures]:
    parts = listing.listing(opener.open(), CUTOFF)
    step = made_step(LocalEngine(), opened_by(opener, listing_partitions=TASKS), PLAN_OF_NOVEMBER)
    files = listing.list_parts(step, parts, large)
    return step.unfinished(STORE_DF, LISTED_FIGURES, files)


def test_of_a_slice_with_half_of_all_objects_no_task_lists_much(opener: StoreOpener, tmp_path: Path) -> None:
    large = slice_of(6000, BORN)
    others = [name for hour in range(1, 25) for name in slice_of(250, BORN + timedelta(hours=hour))]
    make_files(tmp_path / "repository", large + others, BORN.timestamp())

    frame = stored(opener, large=500)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(large + others)
    # All rows are in one window, so each task wrote one file.
    rows = [file.rows for file in frame.manifest.files]
    assert max(rows) <= sum(rows) / 5
    assert len(rows) > TASKS


def test_a_large_slice_is_listed_by_several_calls_at_once(opener: StoreOpener, tmp_path: Path) -> None:
    large, other = slice_of(2000, BORN), slice_of(10, BORN + timedelta(hours=1))
    make_files(tmp_path / "repository", large + other, BORN.timestamp())
    store, under_way, most = opener.open(), 0, 0
    assert isinstance(store, ListsInOrder)
    list_between = type(store).list_between

    def watched(self: Any, prefix: str, *given: Any, **named: Any) -> Iterator[Any]:
        nonlocal under_way, most
        of_large = large[0].startswith(prefix) and prefix != layout.DATA_PREFIX
        under_way += of_large
        most = max(most, under_way)
        try:
            time.sleep(0.01)
            yield from list_between(self, prefix, *given, **named)
        finally:
            under_way -= of_large

    with mock.patch.object(type(store), "list_between", watched):
        parts = [part for part in listing.listing(store, CUTOFF).parts if part.prefix]
        found = pa.Table.from_batches(listing.list_all(store, parts, "month", large=200))

    assert Counter(found["address"].to_pylist()) == Counter(large + other)
    assert 1 < most <= 4


def test_a_large_folder_that_is_no_slice_is_shared_out(
    opener: StoreOpener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each object in it, in the root or in a shard is listed once."""
    monkeypatch.setattr(local_store, "BATCH_ROWS", 50)
    flat = [sha256(bytes([number % 256, number // 256])).hexdigest()[:32] for number in range(1000)]
    large, shard = [f"data/old/{name}" for name in flat], [f"data/!ab/c/{name}" for name in flat[:300]]
    slice_ = slice_of(300, BORN)
    make_files(tmp_path / "repository", flat + large + shard + slice_, BORN.timestamp())
    store = opener.open()

    parts = listing.share_out(store, listing.listing(store, CUTOFF), "month", large=100)

    shares = [
        [key for batch in listing.list_all(store, [part], "month") for key in batch["address"].to_pylist()]
        for part in parts
    ]
    assert Counter(key for share in shares for key in share) == Counter(flat + large + shard + slice_)
    pieces = Counter(part.prefix for part in parts)
    assert min(pieces[""], pieces["data/old/"]) > 5
    assert pieces["data/!ab/"] == pieces[slice_[0].rpartition("/")[0] + "/"] == 1
    assert max(map(len, shares)) == 300


@pytest.mark.parametrize(
    ("windows", "listed", "elsewhere"),
    [
        (None, ["", "data/", "data/other/", "october", "november"], 0),
        (["legacy", "2026-10", "2026-11"], ["", "data/", "data/other/", "october", "november"], 0),
        (["legacy"], ["", "data/", "data/other/"], 2),
        (["2026-10"], ["october"], 1),
        (["2026-10", "2026-11"], ["october", "november"], 0),
    ],
)
def test_only_slices_of_the_windows_are_listed(
    opener: StoreOpener, tmp_path: Path, windows: list[str] | None, listed: list[str], elsewhere: int
) -> None:
    dates = {"october": BORN - timedelta(days=9), "november": BORN, "too young": CUTOFF + timedelta(hours=1)}
    slices = {name: slice_of(1, date)[0] for name, date in dates.items()}
    make_files(tmp_path / "repository", ["0" * 32, "data/other/x", *slices.values()], BORN.timestamp())
    names = {address.rpartition("/")[0] + "/": name for name, address in slices.items()}

    found = listing.listing(opener.open(), CUTOFF, windows=windows)

    assert sorted(names.get(part.prefix, part.prefix) for part in found.parts) == sorted(listed)
    assert (len(found.slices_elsewhere), len(found.skipped_slices)) == (elsewhere, 1)
    assert found.limited == (windows is not None and len(windows) < 3)


@pytest.mark.slow
def test_a_large_slice_of_a_bucket_is_listed_in_pieces(s3_server: S3Server, bucket: str) -> None:
    large, other = slice_of(13_000, BORN), slice_of(1000, BORN + timedelta(hours=1))
    s3_server.fill(bucket, (f"skewed/{name}" for name in large + other))
    s3_server.requests.clear()

    frame = stored(StoreOpener(s3_server.settings(), f"s3://{bucket}/skewed/"), large=1000)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(large + other)
    asked = [unquote(request.query) for request in s3_server.requests if "list-type=2" in request.query]
    begun_behind = {query.partition("start-after=")[2] for query in asked if "start-after=" in query}
    assert len([name for name in begun_behind if large[0][:26] in name]) >= 4


def test_what_is_not_large_is_listed_in_one_round_of_few_files(opener: StoreOpener, tmp_path: Path) -> None:
    names = [name for hour in range(40) for name in slice_of(50, BORN + timedelta(hours=hour))]
    make_files(tmp_path / "repository", names, BORN.timestamp())

    frame = stored(opener, large=1000)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(names)
    assert len(frame.manifest.files) == TASKS


def test_roots_and_foreign_folders_are_listed_in_pieces_too_and_other_windows_are_told_apart(
    opener: StoreOpener, tmp_path: Path
) -> None:
    flat = [f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}" for number in range(5000)]
    foreign = [f"data/foreign/{number % 3}/é{number:05} x" for number in range(5000)]
    stray = [f"data/{number}" for number in range(3000)]
    october = slice_of(100, BORN - timedelta(days=2))
    november = slice_of(100, BORN)
    make_files(tmp_path / "repository", sorted(flat + foreign + stray + october + november), BORN.timestamp())

    frame = stored(opener, large=1000)

    assert Counter(frame.table()["address"].to_pylist()) == Counter(flat + foreign + stray + october + november)
    assert frame.manifest.rows_by_window() == {"2026-11": 100, "other": 13_100}
    assert max(file.rows for file in frame.manifest.files) <= 13_200 / 3


def test_nothing_is_no_file(opener: StoreOpener) -> None:
    assert stored(opener, large=1000).manifest.files == ()
