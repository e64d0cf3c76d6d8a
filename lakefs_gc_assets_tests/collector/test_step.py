from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.port import nullable
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    LISTED,
    LIVE,
    SIGHTINGS_DF,
    STORE_DF,
    UNCOMMITTED_DF,
    NoFigures,
)
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.step import place_by_address, require_own_plan
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings, StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import LISTED_FIGURES, UNCOMMITTED_FIGURES, made_step
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.collector.test_make_step import MINUTE, OneProcess, process
from lakefs_gc_assets_tests.spark.frame_rows import listed

__all__ = ["process"]


def test_rows_return_to_the_window_of_their_address() -> None:
    born = datetime(2026, 11, 20, tzinfo=UTC)
    ids = layout.XidGenerator(b"abcde", 7)
    slices = [ids.descending(born - timedelta(days=days)) for days in (1, 40, 80)]
    names = [f"data/{folder}/{ids.ascending(born)}" for folder in slices]
    rows = [{**listed(name), "slice_window": "other"} for name in [*names, "root"]]

    found = place_by_address(pa.RecordBatch.from_pylist(rows, schema=LISTED), "month")

    windows = {row["address"]: row["slice_window"] for row in found.to_pylist()}
    assert windows == {**dict(zip(names, ["2026-11", "2026-10", "2026-09"], strict=True)), "root": "legacy"}
    assert found.schema == LISTED


class TestFrames:
    """Frames that a step stores."""

    def rows(self, *names: str, **changed: Any) -> ArrowRows:
        return LocalEngine().table(
            pa.Table.from_pylist([listed(f"data/{name}", **changed) for name in names], schema=nullable(LISTED))
        )

    def test_say_what_they_were_made_of_and_when(self, process: OneProcess) -> None:
        clock = cast(HandClock, process.repository.clock)
        began = clock.now()
        step = made_step(LocalEngine(), process.repository, note=process.lines.append)
        assert step.started_at == began
        clock.sleep(60)
        written = [*step.write(STORE_DF, self.rows("a")), *step.write(STORE_DF, self.rows("b"))]
        stored = step.complete(STORE_DF, LISTED_FIGURES, written[::-1])
        span = stored.manifest.span
        assert (span.frame, span.run_id, span.attempt) == ("store_df", step.plan.run_id, step.plan.attempt)
        assert (span.started_at, span.ended_at) == (began, began + MINUTE)
        keys = [file.key for file in stored.manifest.files]
        assert keys == sorted(keys) and stored.manifest.inputs == {}
        assert all(key.startswith(run_folder.frame(step.plan.run_id, "store_df")) for key in keys)
        assert step.stored(STORE_DF).manifest == stored.manifest
        assert process.lines == ["2 rows in 60.0 s, 0 a second, by this process"]
        live_rows = step.engine.select(self.rows("x"), *LIVE.names)
        made = step.write_distinct(UNCOMMITTED_DF, [live_rows, live_rows], 2)
        later = step.complete(UNCOMMITTED_DF, UNCOMMITTED_FIGURES, made, (stored,), began + MINUTE)
        assert later.manifest.span.started_at == began + MINUTE
        assert later.manifest.inputs == {"store_df": stored.manifest.digest}
        assert later.count == 1

    def test_say_for_how_long_was_waited_and_have_their_rows(self, process: OneProcess) -> None:
        step = made_step(LocalEngine(), process.repository, note=process.lines.append)
        step.waited = 59.0
        cast(HandClock, process.repository.clock).sleep(60)
        stored = step.complete(STORE_DF, LISTED_FIGURES, step.write(STORE_DF, self.rows("a", "b")))
        assert stored.manifest.span.waited_seconds == 59.0
        assert process.lines == ["2 rows in 1.0 s, 2 a second, and 59.0 s of waiting, by this process"]
        found = step.engine.collect(step.stored(STORE_DF).rows(step.engine, "address"))
        assert found.column("address").to_pylist() == ["data/a", "data/b"]

    def test_are_not_reported_of_where_they_are_no_step(self, process: OneProcess) -> None:
        step = made_step(LocalEngine(), process.repository, note=process.lines.append)
        step.complete(SIGHTINGS_DF, NoFigures(), ())
        assert process.lines == []

    def test_have_rows_of_other_windows_apart(self, process: OneProcess) -> None:
        step = made_step(LocalEngine(), process.repository)
        rows = step.engine.union(self.rows("a"), self.rows("b", slice_window="2026-09"))
        assert {file.slice_window for file in step.write(STORE_DF, rows)} == {"2026-11", "other"}
        everywhere = step.write_everywhere(STORE_DF, rows)
        assert {file.slice_window for file in everywhere} == {"legacy"}
        unfinished = step.unfinished(STORE_DF, LISTED_FIGURES, everywhere)
        assert unfinished.figures == LISTED_FIGURES
        assert sorted(unfinished.table().column("address").to_pylist()) == ["data/a", "data/b"]
        with pytest.raises(OrderViolation, match="does not exist"):
            step.stored(STORE_DF)

    def test_have_columns_added_before_their_rows_are_placed(self, process: OneProcess) -> None:
        step = made_step(LocalEngine(), process.repository)

        def moved(batch: pa.RecordBatch) -> pa.RecordBatch:
            why = batch.append_column("why", pa.array(["no commit holds it"] * batch.num_rows))
            place = why.schema.get_field_index("slice_window")
            return why.set_column(place, why.schema.field(place), pa.array(["2026-09"] * batch.num_rows))

        (file,) = step.write(CANDIDATES_DF, self.rows("a"), moved)
        assert file.slice_window == "other"
        (file,) = step.write(
            CANDIDATES_DF, self.rows("b"), lambda batch: batch.append_column("why", pa.nulls(1, pa.string()))
        )
        assert file.slice_window == "2026-11"


def test_references_are_read_by_as_many_tasks_as_the_settings_say(process: OneProcess) -> None:
    repository = replace(process.repository, settings=CollectionSettings(range_partitions=3))
    step = made_step(LocalEngine(), repository)
    own = References.from_step(step)
    assert (own.engine, own.opener, own.namespace) == (step.engine, repository.opener, repository.namespace)
    assert (own.window_size, own.tasks) == (step.plan.slice_window, 3)
    other = replace(repository, opener=StoreOpener(StoreSettings(), "s3://other/repo/"))
    assert References.from_step(step, other).opener is other.opener
    assert References.from_step(step, other).namespace is repository.namespace


@pytest.mark.parametrize(
    ("repository", "storage_namespace"), [("another", "local://repository/"), ("repo", "local://another/")]
)
def test_plan_of_another_repository_or_namespace_is_refused(
    process: OneProcess, repository: str, storage_namespace: str
) -> None:
    own = replace(made_step(LocalEngine(), process.repository).plan, storage_namespace="local://repository/")
    require_own_plan(own, process.repository)
    foreign = replace(own, repository=repository, storage_namespace=storage_namespace)
    with pytest.raises(OrderViolation, match=rf"{own.run_id} is of repository {repository} .*open a new run"):
        require_own_plan(foreign, process.repository)
