from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.frames import (
    COMMITTED_DF,
    LIVE,
    NOT_COMMITTED_DF,
    PROVISIONAL_DF,
    SIGHTINGS,
    STORE_DF,
    UNCOMMITTED_DF,
    NoFigures,
)
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.universe.subtraction import Reasons, count_reasons, subtract_committed, subtract_live
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.made_frames import (
    COMMITTED_FIGURES,
    LISTED_FIGURES,
    UNCOMMITTED_FIGURES,
    frame_of_rows,
    made_step,
    opened_by,
    opener_in,
)
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.spark.frame_rows import listed, live

__all__ = ["replaying"]


def place_old(runs: PlainRuns, days: int, count: int = 1, etag: str | None = None) -> list[str]:
    """Objects in a slice that were written `days` ago."""
    then = runs.clock.now() - timedelta(days=days)
    generator = layout.XidGenerator()
    folder = f"data/{generator.descending(then)}/"
    addresses = [folder + generator.ascending(then) for _ in range(count)]
    for address in addresses:
        runs.server.place(address, written_at=then, etag=etag)
    return sorted(addresses)


def test_a_run_of_some_windows_lists_these_and_subtracts_all(replaying: Replaying) -> None:
    runs = replaying("chain/1")
    old = place_old(runs, days=70, count=3)
    opened = runs.open()
    assert opened.windows == ("legacy", "2026-09", "2026-11")

    result = runs.make(replace(opened, windows=("2026-09",)))

    assert result.success, result.failures
    report = runs.report(opened.run_id)
    assert (report.windows, report.limited_to) == (("2026-09",), "the window 2026-09")
    assert runs.addresses(opened.run_id, "candidates") == old
    assert (report.counts["listed"], report.kept) == (3, {})
    windows = {name: runs.frame(opened.run_id, name).manifest.rows_by_window() for name in ("store_df", "committed_df")}
    assert windows == {
        "store_df": {"2026-09": 3},
        "committed_df": {"other": report.counts["committed"]},
    }


def test_what_is_too_young_by_its_name_or_its_writing_stays(replaying: Replaying) -> None:
    runs = replaying("empty", max_candidate_share=1)
    now = runs.clock.now()
    generator = layout.XidGenerator()
    folder = f"data/{generator.descending(now - timedelta(days=9))}/"
    old, young = now - timedelta(hours=25, seconds=1), now - timedelta(hours=24, minutes=59)
    addresses = {
        "old": folder + generator.ascending(old),
        "young by its name": folder + generator.ascending(young),
        "young by its writing": folder + generator.ascending(old),
    }
    runs.server.place(addresses["old"], written_at=old)
    runs.server.place(addresses["young by its name"], written_at=old)
    runs.server.place(addresses["young by its writing"], written_at=young)
    runs.server.place("data/somebody/elses", written_at=old)
    opened = runs.open()

    assert runs.make(opened).success

    assert runs.addresses(opened.run_id, "candidates") == [addresses["old"]]
    assert runs.addresses(opened.run_id, "unrecognised") == ["data/somebody/elses"]
    assert runs.report(opened.run_id).kept == {Kept.YOUNG.value: 2, Kept.UNRECOGNISED.value: 1}


PARTS = "0123456789abcdef0123456789abcdef-3"
MICROSECOND = timedelta(microseconds=1)


class Noting(LocalEngine):
    """Records the stated sizes of subtracted tables, and the number of remaining rows."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []
        self.least: list[int] = []

    def without(self, rows: ArrowRows, *live: ArrowRows, count: int, least: int = 0) -> ArrowRows:
        self.counts.append(count)
        self.least.append(least)
        return super().without(rows, *live, count=count)


def test_what_is_neither_staged_nor_committed_is_left_with_the_reason_why_it_stays(tmp_path: Path) -> None:
    opener = opener_in(tmp_path, "repository")
    engine, plan = Noting(), replace(PLAN, attempt="attempt", cutoff=NOW - timedelta(days=1), windows=("2026-11",))
    rows: dict[str, dict[str, Any]] = {
        "staged": {},
        "committed": {},
        "may go": {},
        "at the cutoff": {"last_modified": plan.cutoff},
        "right before it": {"last_modified": plan.cutoff - MICROSECOND},
        "young by its name": {"issued_at": plan.cutoff},
        "elsewhere": {"slice_window": "2026-10"},
        "strange": {"layout": "unrecognised", "slice": None, "issued_at": None},
        "in parts": {"etag": PARTS},
        "in parts, seen too late": {"etag": PARTS},
        "in parts, seen in time": {"etag": PARTS},
    }
    stored = frame_of_rows(opener, STORE_DF, [listed(name, **more) for name, more in rows.items()], LISTED_FIGURES)
    staged = frame_of_rows(opener, UNCOMMITTED_DF, [live("staged"), live("nowhere")], UNCOMMITTED_FIGURES)
    committed = frame_of_rows(opener, COMMITTED_DF, [live("committed")], COMMITTED_FIGURES)
    an_hour_before = stored.manifest.span.started_at - timedelta(hours=1)
    earlier = [
        {"address": "in parts, seen too late", "first_listed_at": an_hour_before + MICROSECOND},
        {"address": "in parts, seen in time", "first_listed_at": an_hour_before},
    ]
    schema = pa.schema([SIGHTINGS.field("address"), SIGHTINGS.field("first_listed_at")])

    step = made_step(engine, opened_by(opener), plan)
    not_committed = subtract_committed(step, stored, committed)
    unreferenced = subtract_live(
        step, stored, not_committed, committed, staged, engine.table(pa.Table.from_pylist(earlier, schema=schema))
    )

    found = engine.collect(unreferenced)
    assert not_committed.count == stored.count - 1 and set(not_committed.manifest.inputs) == {
        "store_df",
        "committed_df",
    }
    assert step.stored(NOT_COMMITTED_DF).manifest == not_committed.manifest and not_committed.figures == NoFigures()
    assert engine.counts == [stored.count + committed.count, not_committed.count + staged.count]
    assert engine.least == [stored.count - committed.count, 0]
    assert dict(zip(found["address"].to_pylist(), found["kept"].to_pylist(), strict=True)) == {
        "may go": None,
        "at the cutoff": Kept.YOUNG,
        "right before it": None,
        "young by its name": Kept.YOUNG,
        "elsewhere": Kept.OTHER_WINDOW,
        "strange": Kept.UNRECOGNISED,
        "in parts": Kept.MULTIPART,
        "in parts, seen too late": Kept.MULTIPART,
        "in parts, seen in time": None,
    }
    assert found.column_names == [*STORE_DF.schema.names, "kept"]
    kept = {Kept.YOUNG.value: 2, Kept.OTHER_WINDOW.value: 1, Kept.UNRECOGNISED.value: 1, Kept.MULTIPART.value: 2}
    reasons = count_reasons(engine, unreferenced)
    assert reasons == Reasons(eligible=3, kept=kept, multipart=3)


def test_where_nothing_is_committed_the_files_of_the_listing_are_what_no_commit_holds(tmp_path: Path) -> None:
    opener = opener_in(tmp_path, "repository")
    engine = Noting()
    stored = frame_of_rows(opener, STORE_DF, [listed("a"), listed("b")], LISTED_FIGURES)
    committed = frame_of_rows(opener, COMMITTED_DF, [], COMMITTED_FIGURES)
    step = made_step(engine, opened_by(opener), replace(PLAN, attempt="attempt"))
    not_committed = subtract_committed(step, stored, committed)
    assert not_committed.manifest.files == stored.manifest.files and not_committed.manifest.files
    assert not_committed.manifest.inputs == {each.name: each.manifest.digest for each in (stored, committed)}
    assert step.stored(NOT_COMMITTED_DF).manifest == not_committed.manifest and not_committed.figures == NoFigures()
    assert sorted(not_committed.table()["address"].to_pylist()) == ["a", "b"] and engine.counts == []


def test_where_everything_is_live_nothing_may_go(tmp_path: Path) -> None:
    opener = opener_in(tmp_path, "repository")
    engine = LocalEngine()
    stored = frame_of_rows(opener, STORE_DF, [listed("a"), listed("b")], LISTED_FIGURES)
    staged = frame_of_rows(opener, UNCOMMITTED_DF, [live("a")], UNCOMMITTED_FIGURES)
    committed = frame_of_rows(opener, COMMITTED_DF, [live("a"), live("b")], COMMITTED_FIGURES)
    schema = pa.schema([SIGHTINGS.field("address"), SIGHTINGS.field("first_listed_at")])
    step = made_step(engine, opened_by(opener), replace(PLAN, attempt="attempt"))
    not_committed = subtract_committed(step, stored, committed)
    left = subtract_live(step, stored, not_committed, committed, staged, engine.table(schema.empty_table()))
    assert count_reasons(engine, left) == Reasons(eligible=0, kept={}, multipart=0)


def test_what_is_live_and_not_committed_for_good_is_subtracted_and_stays_pending(tmp_path: Path) -> None:
    opener = opener_in(tmp_path, "repository")
    engine = LocalEngine()
    stored = frame_of_rows(opener, STORE_DF, [listed("a"), listed("b")], LISTED_FIGURES)
    staged = frame_of_rows(opener, UNCOMMITTED_DF, [], UNCOMMITTED_FIGURES)
    step = made_step(engine, opened_by(opener), replace(PLAN, attempt="attempt"))
    provisional = step.complete(PROVISIONAL_DF, NoFigures(), step.write(PROVISIONAL_DF, engine.table(live_rows("a"))))
    figures = replace(COMMITTED_FIGURES, provisional_ranges=1)
    committed = step.complete(COMMITTED_DF, figures, (), (provisional,))
    not_committed = subtract_committed(step, stored, committed)
    earlier = engine.table(SIGHTINGS.empty_table())

    left = subtract_live(step, stored, not_committed, committed, staged, earlier)

    assert engine.collect(left).column("address").to_pylist() == ["b"]
    assert sorted(not_committed.table()["address"].to_pylist()) == ["a", "b"]
    step.complete(PROVISIONAL_DF, NoFigures(), step.write(PROVISIONAL_DF, engine.table(live_rows("b"))))
    with pytest.raises(OrderViolation, match="provisional was materialized again"):
        subtract_live(step, stored, not_committed, committed, staged, earlier)


def live_rows(*addresses: str) -> pa.Table:
    return pa.Table.from_pylist([live(address) for address in addresses], LIVE)
