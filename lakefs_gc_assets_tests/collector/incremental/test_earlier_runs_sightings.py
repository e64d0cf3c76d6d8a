import logging
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.frames import LISTED, SIGHTINGS, SIGHTINGS_DF, NoFigures
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_steps import made_step, opened_by
from lakefs_gc_assets_tests.collector.past_runs import HOUR, NOW, began, ended
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.collector.universe.test_subtraction import place_old
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.spark.frame_rows import listed

__all__ = ["replaying"]

PARTS = "0123456789abcdef0123456789abcdef-3"
SECOND = timedelta(seconds=1)


def test_an_object_uploaded_in_parts_goes_an_hour_after_an_earlier_run_listed_it(replaying: Replaying) -> None:
    runs = replaying("empty", max_candidate_share=1)
    (parts,) = place_old(runs, days=3, etag=PARTS)
    (whole,) = place_old(runs, days=3)

    def marked() -> tuple[list[str], dict[str, int]]:
        opened = runs.open()
        result = runs.make(opened)
        assert result.success, result.failures
        sightings = runs.table(opened.run_id, "sightings").to_pylist()
        assert [(row["address"], row["first_listed_at"]) for row in sightings] == [(parts, first_listed_at)]
        return runs.addresses(opened.run_id, "candidates"), runs.report(opened.run_id).kept

    first_listed_at = runs.clock.now()
    assert marked() == ([whole], {Kept.MULTIPART.value: 1})
    runs.clock.sleep(3599)
    assert marked() == ([whole], {Kept.MULTIPART.value: 1})
    runs.clock.sleep(1)
    assert marked() == (sorted([parts, whole]), {})


def marked(runs: PlainRuns) -> str:
    """Makes a successful mark; returns its run id."""
    opened = runs.open()
    result = runs.make(opened)
    assert result.success, result.failures
    return opened.run_id


@pytest.mark.parametrize("damaged", ["a file", "the manifest", "a file that is gone"])
def test_damaged_sightings_keep_objects_for_longer_and_end_no_run(
    replaying: Replaying, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    runs = replaying("empty", max_candidate_share=1)
    (parts,) = place_old(runs, days=3, etag=PARTS)
    (whole,) = place_old(runs, days=3)
    earlier = marked(runs)
    (file,) = runs.frame(earlier, "sightings").manifest.files
    key = run_folder.manifest(earlier, "sightings") if damaged == "the manifest" else file.key
    store = runs.repository.store
    if damaged == "a file that is gone":
        store.delete([key])
    else:
        store.put(key, store.get(key)[:-1])
    runs.clock.sleep(3600)

    with caplog.at_level(logging.WARNING):
        again = marked(runs)

    assert runs.addresses(again, "candidates") == [whole]
    assert runs.report(again).kept == {Kept.MULTIPART.value: 1}
    warned = [line for line in [*runs.lines, caplog.text] if "an earlier run saw are kept for longer" in line]
    assert warned and all(key in line for line in warned)
    runs.clock.sleep(3600)
    assert runs.addresses(marked(runs), "candidates") == sorted([parts, whole])


class Repository:
    """A repository with runs that left sightings, and a step of a run that reads them."""

    def __init__(self, folder: Path) -> None:
        (folder / "repository").mkdir()
        self.engine = LocalEngine()
        self.opened: OpenRepository = opened_by(
            StoreOpener(StoreSettings(local_root=str(folder)), "local://repository")
        )
        self.reported: list[str] = []

    def step(self, ago: timedelta, flow: Flow = Flow.CLEAN) -> Step[ArrowRows]:
        """A step of a run that began `ago`, with the clock at that time."""
        plan: Plan = began(self.opened, ago, flow=flow)
        assert isinstance(self.opened.clock, HandClock)
        self.opened.clock.moment = NOW - ago
        return made_step(self.engine, self.opened, plan, self.reported.append)

    def settled(self, ago: timedelta, flow: Flow, **first_listed: datetime) -> None:
        """A successful run in the index of runs that left these sightings."""
        run_id = self.sighted(ago, flow, **first_listed)
        plan = plans.read(self.opened.store, run_id)
        earlier_runs.note(self.opened.store, plan, ended(self.opened, plan), self.reported.append)

    def sighted(self, ago: timedelta, flow: Flow = Flow.CLEAN, /, **first_listed: datetime) -> str:
        """A run that left these sightings, and whose listing ended `ago`; returns its id."""
        step = self.step(ago, flow)
        rows = [
            {"address": f"data/{name}", "slice_window": "legacy", "first_listed_at": moment}
            for name, moment in first_listed.items()
        ]
        table = self.engine.table(pa.Table.from_pylist(rows, schema=SIGHTINGS))
        step.complete(SIGHTINGS_DF, NoFigures(), step.write(SIGHTINGS_DF, table))
        return step.plan.run_id

    def read(self, before: datetime, step: Step[ArrowRows] | None = None) -> dict[str, datetime]:
        """The earliest sighting per address."""
        rows = self.engine.collect(earlier_runs.read_sightings(step or self.step(timedelta()), before))
        latest_first = rows.sort_by([("first_listed_at", "descending")]).to_pylist()
        return {row["address"]: row["first_listed_at"] for row in latest_first}

    def rows(self, **etags: str | None) -> ArrowRows:
        """Unreferenced objects with these ETags."""
        rows: list[dict[str, Any]] = [listed(f"data/{name}", etag=etag) for name, etag in etags.items()]
        return self.engine.table(pa.Table.from_pylist(rows, schema=nullable(LISTED)))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


class TestEarlierSightings:
    def test_are_the_first_of_all_runs_that_had_listed_before(self, repository: Repository) -> None:
        repository.sighted(5 * HOUR, a=NOW - 7 * HOUR, b=NOW - 5 * HOUR)
        repository.sighted(4 * HOUR, a=NOW - 4 * HOUR, b=NOW - 6 * HOUR)
        repository.sighted(3 * HOUR, c=NOW - 3 * HOUR)
        assert repository.read(NOW - 3 * HOUR) == {
            "data/a": NOW - 7 * HOUR,
            "data/b": NOW - 6 * HOUR,
            "data/c": NOW - 3 * HOUR,
        }
        assert repository.read(NOW - 3 * HOUR - SECOND).keys() == {"data/a", "data/b"}

    def test_are_none_where_no_run_was(self, repository: Repository) -> None:
        assert repository.read(NOW) == {}

    def test_are_not_those_of_the_run_itself(self, repository: Repository) -> None:
        repository.sighted(3 * HOUR, a=NOW - 3 * HOUR)
        step = repository.step(2 * HOUR)
        rows = pa.Table.from_pylist(
            [{"address": "data/own", "slice_window": "legacy", "first_listed_at": NOW}], schema=SIGHTINGS
        )
        written = step.write(SIGHTINGS_DF, repository.engine.table(rows))
        step.complete(SIGHTINGS_DF, NoFigures(), written)
        assert repository.read(NOW, step).keys() == {"data/a"}

    def test_are_those_of_the_newest_runs_whether_they_left_any_or_not(self, repository: Repository) -> None:
        for hours in range(21, 1, -1):
            repository.sighted(hours * HOUR, **{f"at{hours}": NOW - hours * HOUR})
        # Neither the reading run nor one that ended before its mark has any.
        repository.step(HOUR)
        found = repository.read(NOW)
        assert found.keys() == {f"data/at{hours}" for hours in range(2, 20)}

    def test_are_those_of_the_newest_run_of_each_flow_that_the_index_knows_to_have_some(
        self, repository: Repository
    ) -> None:
        repository.settled(7 * HOUR, Flow.OPTIMIZED, g=NOW - 7 * HOUR)
        repository.settled(5 * HOUR, Flow.CLEAN, e=NOW - 5 * HOUR)
        repository.settled(4 * HOUR, Flow.CLEAN, d=NOW - 4 * HOUR)
        repository.settled(3 * HOUR, Flow.OPTIMIZED, c=NOW - 3 * HOUR)
        repository.settled(2 * HOUR, Flow.CLEAN)
        repository.sighted(HOUR, f=NOW - HOUR)
        # Unfinished runs, which no index names, are read as well; a run that listed too late counts for no flow.
        assert repository.read(NOW).keys() == {"data/c", "data/d", "data/f"}
        assert repository.read(NOW - 4 * HOUR - SECOND).keys() == {"data/e", "data/g"}
        assert repository.reported == []

    def test_of_a_run_whose_manifest_is_damaged_are_left_out_and_reported(self, repository: Repository) -> None:
        repository.sighted(5 * HOUR, a=NOW - 5 * HOUR)
        damaged = run_folder.manifest(repository.sighted(4 * HOUR, b=NOW - 4 * HOUR), "sightings")
        repository.opened.store.put(damaged, b"nothing")
        repository.sighted(3 * HOUR, c=NOW - 3 * HOUR)
        assert repository.read(NOW).keys() == {"data/a", "data/c"}
        (line,) = [line for line in repository.reported if "an earlier run saw are kept for longer" in line]
        assert damaged in line

    def test_of_a_file_that_is_damaged_are_left_out_and_reported(
        self, repository: Repository, caplog: pytest.LogCaptureFixture
    ) -> None:
        repository.sighted(5 * HOUR, a=NOW - 5 * HOUR)
        run_id = repository.sighted(4 * HOUR, b=NOW - 4 * HOUR)
        (file,) = repository.step(2 * HOUR).stored_of(run_id, SIGHTINGS_DF).manifest.files
        repository.opened.store.put(file.key, b"nothing")
        with caplog.at_level(logging.WARNING):
            assert repository.read(NOW).keys() == {"data/a"}
        assert "an earlier run saw are kept for longer" in caplog.text and file.key in caplog.text


def test_an_hour_to_the_microsecond_before_the_listing_is_old_enough(repository: Repository) -> None:
    began = NOW - HOUR
    rows = [
        {"address": name, "first_listed_at": began - HOUR + timedelta(microseconds=late)}
        for name, late in {"before": -1, "at": 0, "after": 1}.items()
    ]
    schema = pa.schema([SIGHTINGS.field("address"), SIGHTINGS.field("first_listed_at")])
    table = repository.engine.table(pa.Table.from_pylist(rows, schema=schema))
    found = earlier_runs.select_old_enough(repository.engine, table, began)
    assert repository.engine.collect(found).column("address").to_pylist() == ["before", "at"]


class TestOwnSightings:
    def test_are_of_objects_uploaded_in_parts_by_their_first_sighting_or_this_one(self, repository: Repository) -> None:
        repository.sighted(5 * HOUR, a=NOW - 5 * HOUR)
        step = repository.step(HOUR)
        rows = repository.rows(a=PARTS, b=PARTS, whole=PARTS[:32], none=None)
        earlier = earlier_runs.read_sightings(step, NOW - HOUR)
        earlier_runs.keep_sightings(step, rows, 2, earlier, NOW - HOUR)
        assert step.stored(SIGHTINGS_DF).table().sort_by("address").to_pylist() == [
            {"address": "data/a", "slice_window": "other", "first_listed_at": NOW - 5 * HOUR},
            {"address": "data/b", "slice_window": "other", "first_listed_at": NOW - HOUR},
        ]

    def test_are_an_empty_frame_where_nothing_was_uploaded_in_parts(self, repository: Repository) -> None:
        step = repository.step(HOUR)
        earlier_runs.keep_sightings(step, repository.rows(whole=None), 0, earlier_runs.read_sightings(step, NOW), NOW)
        frame = step.stored(SIGHTINGS_DF)
        assert (frame.count, frame.manifest.files, frame.figures) == (0, (), NoFigures())
