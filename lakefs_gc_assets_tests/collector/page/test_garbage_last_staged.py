"""Garbage by the run that last saw it staged: on the embedded server, and on frames of many rows."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.cli.candidates import Paths
from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, UNCOMMITTED_DF
from lakefs_gc_assets.collector.page.garbage import FrameReader, Garbage, LastStaged, PastRun, count_last_staged
from lakefs_gc_assets.collector.page.page import render
from lakefs_gc_assets.collector.page.run_facts import Counting, RunFacts, find_last_seen, gather, trace
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import CollectionSettings, ReportSettings, StoreSettings
from lakefs_gc_assets.storage.interface import delete_all, keys_below
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES, UNCOMMITTED_FIGURES, frame_of_rows
from lakefs_gc_assets_tests.collector.page.test_page import text
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

NOTHING = Garbage({}, {}, None)
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)


def facts_of(opened: OpenRepository, run_id: str) -> RunFacts:
    counting = Counting(lambda _: NOTHING, frames=FrameReader(LocalEngine(), opened.opener))
    return gather(opened.store, run_id, CollectionSettings(), ReportSettings(), opened.clock.now(), counting)


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[tuple[ArrowRuns, EmbeddedServer]]:
    """Two entries staged on one branch, one on another branch, and an object that no run could see staged."""
    with EmbeddedServer(tmp_path) as server:
        with server.clock.at(datetime.now(UTC) - 10 * DAY):
            repository = clients.repository(server)
            clients.upload(server, "kept", b"kept")
            clients.commit(server, "first")
            for branch in ("dev", "other"):
                body = {"name": branch, "source": "main"}
                assert clients.call(server, "POST", f"/repositories/{repository}/branches", body)[0] == 201
            clients.upload(server, "tmp/a", b"aaaa", branch="dev")
            clients.upload(server, "tmp/b", b"bb", branch="dev")
            clients.upload(server, "draft", b"d", branch="other")
            clients.upload(server, "unseen", b"unseen")
            remove(server, "unseen", "main")
        given = demo.configuration(server, repository)
        collection = given.collection.model_copy(update={"max_candidate_share": 1.0})
        yield ArrowRuns(Loaded(given.model_copy(update={"collection": collection}), {})), server


def remove(server: EmbeddedServer, path: str, branch: str) -> None:
    assert clients.call(server, "DELETE", f"/repositories/repo/branches/{branch}/objects", path=path)[0] == 204


def test_garbage_that_was_only_staged_has_its_run_its_branch_and_its_path(
    staged: tuple[ArrowRuns, EmbeddedServer],
) -> None:
    runs, server = staged
    opened = runs.open()
    first = runs.collect()
    assert facts_of(opened, first.run_id).last_staged is None
    assert "lakeFS keeps no names of objects that were never committed" in text(render(facts_of(opened, first.run_id)))

    assert clients.call(server, "DELETE", "/repositories/repo/branches/dev")[0] == 204
    second = runs.collect()
    remove(server, "draft", "other")
    third = runs.collect(Flow.UNIFIED)

    facts = facts_of(opened, third.run_id)
    found = facts.last_staged
    assert found is not None
    assert found.until == {second.started_at: (1, 1), first.started_at: (2, 6)}
    assert (found.unseen, found.since) == ((1, len("unseen")), first.started_at)
    assert sorted((each.branch, each.path, each.size, each.seen_at) for each in found.entries) == [
        ("dev", "tmp/a", 4, first.started_at),
        ("dev", "tmp/b", 2, first.started_at),
        ("other", "draft", 1, second.started_at),
    ]
    assert facts.gone_branches == {"dev"}
    paths = Paths(facts, Amount(4, 13)).table_of(iter(())).to_pylist()
    until_first = f"staged until the run of {first.started_at:%F %H:%M}Z"
    assert [*map(tuple, (each.values() for each in paths))] == [
        ("(no path is known)", 1, 6),
        (f"dev: tmp/, {until_first}", 2, 6),
        (f"other: (no folder), staged until the run of {second.started_at:%F %H:%M}Z", 1, 1),
    ]
    candidates = StoredFrame.from_run(opened.store, opened.opener, third.run_id, CANDIDATES_DF).table()
    seen = find_last_seen(opened.store, third.run_id, candidates, FrameReader(LocalEngine(), opened.opener), 1000)
    rows = seen.rows.append_column("size", candidates.column("size")).to_pylist()
    assert sorted((row["size"], row["branch"], row["path"], row["last_staged_at"]) for row in rows) == [
        (1, "other", "draft", second.started_at),
        (2, "dev", "tmp/b", first.started_at),
        (4, "dev", "tmp/a", first.started_at),
        (6, None, None, None),
    ]
    assert "Runs note a few staged paths" in " ".join(seen.describe_unknown())
    holders = trace(opened.store, third.run_id, candidates, FrameReader(LocalEngine(), opened.opener))
    assert ("tmp/a", f"staged on branch dev until the run of {first.started_at:%F %H:%M}Z") in holders
    assert ("", "no commit") in holders
    page = text(render(facts))
    assert "not known in a first run" not in page
    assert f"staged until the run of {first.started_at:%F %H:%M}Z | 2 | 6 B" in page
    assert f"not staged in any run since {first.started_at:%F %H:%M}Z | 1 | 6 B" in page
    assert f"dev (deleted since) | tmp/a | {first.started_at:%F %H:%M}Z | 4 B" in page
    assert f"other | draft | {second.started_at:%F %H:%M}Z | 1 B" in page


def test_runs_whose_frames_are_gone_or_damaged_say_nothing(staged: tuple[ArrowRuns, EmbeddedServer]) -> None:
    runs, server = staged
    opened = runs.open()
    first = runs.collect()
    remove(server, "draft", "other")
    second = runs.collect()
    folder = run_folder.frame(first.run_id, UNCOMMITTED_DF.name)
    (noted,) = (key for key in keys_below(opened.store, folder) if "/staged-" in key)
    opened.store.put(noted, b"damaged")
    found = facts_of(opened, second.run_id).last_staged
    assert found is not None and found.until == {first.started_at: (1, 1)} and found.entries == ()

    delete_all(opened.store, [*keys_below(opened.store, folder)])
    assert facts_of(opened, second.run_id).last_staged is None
    assert "saw it staged" not in text(render(facts_of(opened, second.run_id)))


def test_tasks_count_what_many_candidates_and_many_runs_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "repo").mkdir()
    opener = StoreOpener(StoreSettings(local_root=str(tmp_path)), "local://repo/")

    def rows(numbers: range, **more: Any) -> list[dict[str, Any]]:
        return [{"address": f"data/{each:04}", "slice_window": f"2026-{each % 3 + 1:02}", **more} for each in numbers]

    garbage = rows(range(60), layout="slice", last_modified=NOW, size=2)
    candidates = frame_of_rows(opener, CANDIDATES_DF, garbage, CANDIDATE_FIGURES)
    past = [
        PastRun(NOW - age * DAY, frame_of_rows(opener, UNCOMMITTED_DF, rows(numbers), UNCOMMITTED_FIGURES).manifest)
        for age, numbers in ((1, range(0)), (2, range(50, 200)), (3, range(40, 60)), (4, range(30)))
    ]

    def counted(most: int | None = None) -> LastStaged | None:
        reader = FrameReader(LocalEngine(), opener)
        total = Amount(candidates.count, candidates.manifest.object_bytes)
        return count_last_staged(reader, reader.rows(CANDIDATES_DF, candidates.manifest), total, past, most)

    everything = LastStaged(
        {NOW - 2 * DAY: Amount(10, 20), NOW - 3 * DAY: Amount(10, 20), NOW - 4 * DAY: Amount(30, 60)},
        Amount(10, 20),
        NOW - 4 * DAY,
    )
    assert counted() == everything
    assert counted(60 + 150) == LastStaged({NOW - 2 * DAY: Amount(10, 20)}, Amount(50, 100), NOW - 2 * DAY)
    assert counted(60) == LastStaged({}, Amount(60, 120), NOW - DAY) and counted(59) is None
    monkeypatch.setattr(files, "LOCAL_ROWS", 0)
    assert counted() == everything
    del past[1:]
    assert counted() == LastStaged({}, Amount(60, 120), NOW - DAY)
