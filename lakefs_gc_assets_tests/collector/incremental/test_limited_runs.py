"""Runs limited to some windows: they take the committed addresses that the limited run before them stored.

Whole runs in a small world, on plain tables. Tests without fixtures are also called by `simulation.guard_bugs`, with a
rule left out.
"""

import json
import re
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, LIVE, STEPS, CommittedFigures
from lakefs_gc_assets.collector.incremental import checkpoint, planning
from lakefs_gc_assets.collector.live import facts
from lakefs_gc_assets.collector.live.current import Committed, KnownLive, ask_committed
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.errors import CorruptFile
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.spark.engine import SparkEngine
from lakefs_gc_assets_tests.collector.live.test_known_live import EVERY, Repository
from lakefs_gc_assets_tests.collector.past_runs import SEALED
from lakefs_gc_assets_tests.collector.test_run_guards import UNIFIED, WITHOUT_LEGACY, allowing, world_of
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns, Opened
from lakefs_gc_assets_tests.runs.made_ranges import range_records
from lakefs_gc_assets_tests.simulation.clocks import DAY
from lakefs_gc_assets_tests.simulation.collecting import Run
from lakefs_gc_assets_tests.simulation.failing_calls import Faults
from lakefs_gc_assets_tests.simulation.fault_kinds import DRY, FOLLOWING, SWEEP
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.run_requests import Asked
from lakefs_gc_assets_tests.simulation.scenes import Ended, Scene
from lakefs_gc_assets_tests.simulation.stored_results import stored_rows

_LISTED, _STAGED, _COMMITTED, _MARKED, _SWEPT = STEPS
NEWEST, OTHERS = Asked(Flow.CLEAN, 1), Asked(Flow.CLEAN, -1)
BY_RULES = Asked(Flow.UNIFIED, 1)
BY_SLICE = allowing(DRY, slice_window="slice")


def limited(scene: Scene, asked: Asked = OTHERS, options: CollectionSettings = BY_SLICE) -> str:
    """Makes a limited run; returns its log."""
    lines: list[str] = []

    def note(self: Run, line: str) -> None:
        lines.append(line)

    with mock.patch.multiple(Run, log=note, warn=note):
        assert scene.start(options, Faults(), asked) is Ended.WELL, scene.world.log[-1]
    assert scene.reported.limited_to
    return "\n".join(lines)


def results(scene: Scene) -> dict[str, list[str]]:
    """The rows of the last run's frames that depend on committed addresses."""
    found = {}
    for name in (_COMMITTED, _MARKED):
        found[name] = sorted(json.dumps(row, default=str) for row in stored_rows(scene.store, run_of(scene), name))
    return found


def run_of(scene: Scene) -> str:
    return scene.reported.run_id


def taken(scene: Scene) -> int:
    """Ranges that the last run did not read."""
    return scene.reported.counts["ranges_from_facts"]


def reading_everything(scene: Scene, asked: Asked, options: CollectionSettings = BY_SLICE) -> dict[str, list[str]]:
    """Results of the same limited run if it takes nothing."""
    with mock.patch.object(checkpoint, "find_stored_live", lambda *arguments: KnownLive()):
        limited(scene, asked, options)
    assert taken(scene) == 0
    return results(scene)


@pytest.mark.parametrize(
    ("kind", "first", "then"), [("clean", NEWEST, OTHERS), ("following", BY_RULES, WITHOUT_LEGACY)]
)
def test_another_window_reads_no_range_again_and_finds_the_same(kind: str, first: Asked, then: Asked) -> None:
    with world_of(kind) as scene:
        limited(scene, first)
        ranges, windows = scene.reported.counts["ranges_read"], scene.reported.limited_to
        limited(scene, then)
        assert scene.reported.limited_to != windows
        assert (taken(scene), scene.reported.counts["ranges_read"]) == (ranges, 0) != (0, 0)
        assert results(scene) == reading_everything(scene, then)


def test_hashes_that_no_later_run_would_look_up_are_not_recorded() -> None:
    with world_of("following") as scene:
        limited(scene, BY_RULES, FOLLOWING)
        recorded = facts.list_files(scene.store, facts.ROOT)
        assert any(run_of(scene) in key for key in recorded)
        assert not any(run_of(scene) in key and key.startswith(HASHES.root) for key in recorded)


def test_losses_are_found_although_no_range_is_read() -> None:
    """A commit holds an object that an earlier run deleted; nothing is staged."""
    with world_of("optimized") as scene:
        assert scene.start(SWEEP, Faults()) is Ended.WELL
        deleted = [key for each in scene.world.oracle.runs.values() for key in each.receipted]
        entry = Entry(max(key for key in deleted if layout.parse(key).slice), 1, 1, "f" * 32)
        repository = scene.world.repository
        made = scene.world.commit({"again": entry}, (repository.branches["main"].commit_id,), 0.0)
        repository.new_branch("zeta", made)
        for branch in repository.branches.values():
            for token in branch.tokens:
                token.clear()
        repository.copies.clear()
        scene.world.oracle.look()
        with mock.patch.object(planning, "windows_to_collect", lambda *_: (("legacy",), None)):
            for ranges_read in (True, False):
                limited(scene)
                counts = scene.reported.counts
                assert (counts["uncommitted"], bool(counts["ranges_read"]), counts["lost"]) == (0, ranges_read, 1)


def test_twelve_windows_read_each_range_and_metarange_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the embedded server, each window with a sweep. New commits between the windows are read as well."""
    now, reads = datetime.now(UTC), Counter[str]()
    read_range, read_metarange = LiveFiles.range, LiveFiles.metarange

    def counted_range(self: LiveFiles, record: RangeRecord) -> pa.Table:
        reads[record.id] += 1
        return read_range(self, record)

    def counted_metarange(self: LiveFiles, metarange_id: str) -> pa.Table:
        reads[metarange_id] += 1
        return read_metarange(self, metarange_id)

    monkeypatch.setattr(LiveFiles, "range", counted_range)
    monkeypatch.setattr(LiveFiles, "metarange", counted_metarange)
    with EmbeddedServer(tmp_path) as server:
        for days in range(3, 15):
            with server.clock.at(now - timedelta(days=18 - days)):
                if days == 3:
                    clients.repository(server)
                clients.upload(server, "draft", bytes(100 + days))
                clients.upload(server, "draft", bytes(200 + days))
                clients.upload(server, f"day/{days}", bytes(days))
                clients.commit(server, f"day {days}")
        given = demo.configuration(server, "repo")
        changes = {"sweep": True, "max_candidate_share": 1.0, "slice_window": "day"}
        collection = given.collection.model_copy(update=changes)
        runs = ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {}))
        _, *windows = runs.open_run(Flow.CLEAN, "").windows
        assert len(windows) == 12
        deleted = []
        for place, window in enumerate(windows):
            if place == 6:
                clients.upload(server, "new", b"new")
                clients.commit(server, "new")
            opened = Opened(layout.issue_run_id(now + timedelta(microseconds=place)), (window,), Flow.CLEAN)
            made = runs.make(opened, STEPS, "owner")
            assert made.success, made.failures
            reported = report.read(runs.open().store, opened.run_id)
            assert reported is not None
            deleted.append(reported.counts["deleted"])
        assert deleted == [1] * 12
        assert {*reads.values()} == {1} and len(reads) == 26


def test_a_range_that_expired_since_is_not_live() -> None:
    with world_of("following") as scene:
        limited(scene, BY_RULES)
        repository = scene.world.repository
        del repository.branches[min(repository.branches.keys() - {"main"})]
        scene.world.pass_time(40 * DAY)
        assert "are no longer live" in limited(scene, WITHOUT_LEGACY)
        assert taken(scene) == 0 < scene.reported.counts["ranges_read"]
        assert results(scene) == reading_everything(scene, WITHOUT_LEGACY)


def test_nothing_is_taken_from_a_run_that_stored_only_a_part() -> None:
    """A run by retention rules that builds on another one stores only addresses that it looked up."""
    with world_of("following") as scene:
        assert scene.start(FOLLOWING, Faults(), UNIFIED) is Ended.WELL
        assert scene.reported.base_run is not None
        limited(scene, WITHOUT_LEGACY, FOLLOWING)
        assert taken(scene) == 0 < scene.reported.counts["ranges_read"]


def test_nothing_is_taken_from_a_run_of_another_repository() -> None:
    """Repositories can share a folder, and count other addresses as their own."""
    with world_of("clean") as scene:
        limited(scene, NEWEST)
        change_plan(scene, storage_namespace="local://elsewhere/")
        limited(scene)
        assert taken(scene) == 0


def test_nothing_is_taken_from_frames_of_another_attempt() -> None:
    with world_of("clean") as scene:
        limited(scene, NEWEST)
        change_plan(scene, attempt="another")
        limited(scene)
        assert taken(scene) == 0


def change_plan(scene: Scene, **changes: Any) -> None:
    """Changes the plan of the last run, as if the store had another one."""
    key = run_folder.plan(run_of(scene))
    scene.world.bucket.put(key, replace(plans.read(scene.store, run_of(scene)), **changes).to_json())


def test_of_damaged_files_nothing_is_taken() -> None:
    """If a frame has many rows, tasks read it, and would find the damage after ranges were left out."""
    read = StoredFrame.rows

    def read_later(self: StoredFrame[Any], engine: LocalEngine, *columns: str, **named: Any) -> ArrowRows:
        try:
            return read(self, engine, *columns, **named)
        except CorruptFile:
            return engine.table(LIVE.empty_table())

    with world_of("clean") as scene:
        limited(scene, NEWEST)
        damage(scene, "committed_df/[^mt]", b"damaged")
        with mock.patch.object(StoredFrame, "rows", read_later), mock.patch.object(checkpoint, "LOCAL_ROWS", 0):
            limited(scene)
        assert taken(scene) == 0
        assert results(scene) == reading_everything(scene, OTHERS)


@pytest.mark.parametrize("content", [b"", b"damaged", None])
@pytest.mark.parametrize("place", ["committed_df/manifest", "committed_df/tracked", "committed_df/[^mt]", "plan.json"])
def test_every_range_is_read_if_a_file_is_damaged_or_gone(place: str, content: bytes | None) -> None:
    with world_of("clean") as scene:
        limited(scene, NEWEST)
        damage(scene, place, content)
        assert "reading every range, not the addresses" in limited(scene)
        assert taken(scene) == 0 < scene.reported.counts["ranges_read"]


def damage(scene: Scene, place: str, content: bytes | None) -> None:
    """Damages or deletes some files of the last run; fails if there are none."""
    folder = run_folder.folder(run_of(scene))
    keys = [key for key in scene.world.bucket.keys_below(folder) if re.match(place, key.removeprefix(folder))]
    assert keys
    for key in keys:
        scene.world.bucket.remove(key)
        if content is not None:
            scene.world.bucket.put(key, content)


def test_a_range_that_a_metarange_now_states_differently_is_read() -> None:
    """So it fails as it would without the earlier run."""
    with world_of("clean") as scene:
        limited(scene, NEWEST)

        def miscounted(*arguments: Any, **named: Any) -> Committed:
            found = ask_committed(*arguments, **named)
            (own,) = found.unread
            rows = own.records.rows
            more = rows.set_column(rows.schema.get_field_index("count"), "count", pc.add(rows.column("count"), 1))
            return replace(found, unread=(replace(own, records=RangeRecords.of_rows(more)),))

        with mock.patch.object(run, "ask_committed", miscounted):
            assert scene.start(DRY, Faults(), OTHERS) is Ended.FAILED


def stored_and_taken(repository: Repository, before: list[RangeRecord], live: list[RangeRecord]) -> KnownLive[Any]:
    """The result for some live ranges, after a limited run that read others."""
    earlier = repository.earlier
    plans.write_first(repository.store, earlier.plan)
    rows = References.from_step(earlier).committed(range_records(before))
    tracked = checkpoint.write_ranges(
        repository.store, earlier.plan.run_id, earlier.plan.attempt, range_records(before)
    )
    figures = CommittedFigures(
        commit_source="refs dump",
        heads={},
        read_sha256="",
        tracked_sha256=tracked,
        commits=1,
        commits_fetched=0,
        metaranges_read=1,
        ranges_read=len(before),
        unnamed_ranges=0,
    )
    earlier.complete(COMMITTED_DF, figures, earlier.write_distinct(COMMITTED_DF, [rows], len(EVERY)))
    return checkpoint.find_stored_live(repository.step, repository.found(*live))


def repository_in(folder: Path, engine: Any = None) -> Repository:
    """A repository with two plans of limited runs, of which the second one follows the first."""
    repository = Repository(folder, engine)
    earlier = replace(repository.earlier.plan, limited=True)
    repository.earlier.plan = earlier
    repository.step.plan = replace(
        repository.step.plan, limited=True, previous_run=earlier.run_id, base_run=None, base_run_attempt=None
    )
    return repository


@given(
    st.lists(st.lists(st.sampled_from(EVERY), min_size=1, unique=True), min_size=1, max_size=5),
    st.sets(st.integers(0, 4)),
    st.sets(st.integers(0, 4)),
)
@settings(max_examples=20, deadline=None)
def test_what_is_taken_and_what_is_read_are_what_all_live_ranges_hold(
    ranges: list[list[str]], before: set[int], live: set[int]
) -> None:
    with TemporaryDirectory() as folder:
        repository = repository_in(Path(folder))
        records = repository.commit(*ranges)
        of = [[record for place, record in enumerate(records) if place in some] for some in (before, live)]
        known = stored_and_taken(repository, *of)
        ids = [{record.id for record in some} for some in of]
        assert {*known.range_ids} == (ids[0] if ids[0] <= ids[1] else set())
        held = {
            address for record, each in zip(records, ranges, strict=True) if record.id in ids[0] for address in each
        }
        assert repository.addresses(known) == (held if ids[0] <= ids[1] else set())


@pytest.mark.slow
def test_tasks_of_spark_read_what_is_taken(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCAL_ROWS", 0)
    monkeypatch.setattr(checkpoint, "LOCAL_ROWS", 0)
    repository = repository_in(tmp_path, SparkEngine(spark, 2))
    records = repository.commit(EVERY[:2], EVERY[2:4], EVERY[4:])
    known = stored_and_taken(repository, records[:2], records)
    assert {*known.range_ids} == {record.id for record in records[:2]}
    assert known.addresses is not None
    rows = repository.step.engine.collect(known.addresses).sort_by("address").to_pylist()
    assert rows == [
        {"address": address, "slice": SEALED, "slice_window": layout.window(SEALED, "month")}
        for address in sorted(EVERY[:4])
    ]
