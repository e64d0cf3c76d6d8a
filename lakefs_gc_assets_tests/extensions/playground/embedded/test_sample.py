import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.engine.local import LocalEngine
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.extensions.forecast import forecast, page
from lakefs_gc_assets.extensions.forecast.forecast import Forecast
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded import branches, commits, repositories
from lakefs_gc_assets.extensions.playground.embedded.core import RuleSet, ServerSettings
from lakefs_gc_assets.extensions.playground.embedded.formats import decode_entry
from lakefs_gc_assets.extensions.playground.embedded.sample import (
    STALE_BRANCH,
    Sample,
    link_pending,
    make_sample_repository,
    rename,
    unreadable,
)
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

_GARBAGE = {"overwritten", "deleted", "reset", "deleted branch", "expired link", "aborted upload", "failed copy"}
_LIVE = {
    "committed",
    "only in an old commit",
    "only in a tag's commit",
    "staged",
    "copied",
    "staged again from a commit",
    "just uploaded",
    "linked",
    "imported from outside",
    "uploaded again with equal content",
}


def _referenced(server: EmbeddedServer, name: str) -> set[str]:
    """Every relative address in any commit or any staging area, from the database."""
    repository = repositories.get(server.core, name)
    found = set()
    for commit in commits.every(server.core, repository):
        found |= {decode_entry(record[2]).address for record in commits.all_records(server.core, commit.metarange_id)}
    for branch in branches.every(server.core, repository, hidden=True):
        with server.core.database.transaction() as database:
            staged = [data for _, _, data in branches.scan_staged(database, branch.staging_token)]
        found |= {decode_entry(data).address for data in staged if data is not None}
    return found


def _stored(server: EmbeddedServer, name: str) -> set[str]:
    folder = server.objects_folder / name
    return {str(file.relative_to(folder)) for file in (folder / "data").rglob("*") if file.is_file()}


@pytest.fixture(params=["oss", "seed"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EmbeddedServer, Sample]:
    rules: RuleSet = request.param
    server = EmbeddedServer(tmp_path, settings=ServerSettings(rules=rules)).__enter__()
    request.addfinalizer(server.stop)
    return server, make_sample_repository(server, objects=200)


def test_it_has_every_kind_and_says_so_truly(made: tuple[EmbeddedServer, Sample]) -> None:
    server, sample = made
    assert {garbage.kind for garbage in sample.garbage} == _GARBAGE
    assert {live.kind for live in sample.live} == _LIVE
    referenced, stored = _referenced(server, "sample"), _stored(server, "sample")
    pending = {pending.physical_address.removeprefix("local://sample/") for pending in sample.pending}
    garbage = {item.address for item in sample.garbage}
    assert stored - referenced == garbage | pending
    assert len(garbage) == len(sample.garbage)
    assert {live.address for live in sample.live if "://" not in live.address} <= stored & referenced
    assert unreadable(server, sample) == []
    assert 150 <= len(stored) <= 260
    folder, old = server.objects_folder / "sample", time.time() - timedelta(days=2).total_seconds()
    assert all((folder / garbage.address).stat().st_mtime < old for garbage in sample.garbage)
    before, reported, after = datetime.now(UTC), server.clock.now(), datetime.now(UTC)
    assert before - timedelta(seconds=1) < reported < after + timedelta(seconds=1)
    young = [live for live in sample.live if live.kind == "just uploaded"]
    assert all((folder / live.address).stat().st_mtime > old for live in young)


def test_renaming_and_linking_keep_everything_readable(made: tuple[EmbeddedServer, Sample]) -> None:
    server, sample = made
    for live in list(sample.to_rename):
        renamed = rename(server, sample, live)
        assert (renamed.address == live.address) == (server.core.settings.rules == "seed")
    link_pending(server, sample)
    assert sample.pending == []
    assert unreadable(server, sample) == []
    lost = next(live for live in sample.live if live.kind == "only in an old commit")
    for address in (lost.address, *(garbage.address for garbage in sample.garbage)):
        (server.objects_folder / "sample" / address).unlink()
    assert unreadable(server, sample) == [lost]


# Samples of several months.


_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    with demo.months(tmp_path_factory.mktemp("months")) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def found(served: Loaded) -> Forecast:
    repository = Collector.from_loaded(served, SystemClock()).open()
    return forecast.make(repository, LocalEngine(), print, depth=1)


def test_forecast_shows_periods_a_forgotten_branch_and_folders(found: Forecast) -> None:
    freed = [each.amount.bytes for each in found.rules if each.scenario.days is not None]
    assert freed == sorted(freed, reverse=True)
    assert len(set(freed)) > 6 and freed[0] > found.stored.bytes // 3
    stale = next(each for each in found.holdings if each.holder.name == STALE_BRANCH)
    assert stale.holder.stale and sum(each.holder.stale for each in found.holdings) == 2
    assert stale.alone.bytes >= 1024 * 1024
    more = found.more_if_deleted(stale)
    assert more is not None and more.bytes >= stale.alone.bytes
    assert found.by_folder is not None
    folders = {each.folder for each in found.by_folder.largest}
    assert folders == {"events/", "features/", "models/", "prices/", "reference/", "sales/"}


def test_a_dry_run_marks_what_was_said(served: Loaded, found: Forecast) -> None:
    report = ArrowRuns(served).collect(Flow.COMMITTED)
    said = found.in_force.amount
    assert (report.counts["candidates"], report.object_bytes["candidates"]) == said
    assert said.objects > 50


@pytest.mark.slow
@pytest.mark.skipif(_CHROMIUM is None, reason="there is no Chromium on this machine")
def test_the_page_in_a_browser(found: Forecast, tmp_path: Path) -> None:
    """LAKEFS_GC_SCREENSHOTS names a folder that gets its screenshots, for the documentation."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    file = tmp_path / "forecast.html"
    file.write_bytes(page.render(found))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        try:
            opened = browser.new_page(viewport={"width": 780, "height": 1180})
            asked: list[str] = []
            opened.on("request", lambda request: asked.append(request.url))
            said: list[str] = []
            opened.on("console", lambda message: said.append(message.text))
            opened.goto(file.as_uri())
            opened.get_by_text("What rules would free").wait_for()
            drawn = opened.locator("svg[role=img]")
            assert drawn.count() == 1
            assert all(bar.bounding_box()["width"] >= 60 for bar in opened.locator("svg.rail").all())
            assert opened.evaluate("document.documentElement.scrollWidth") <= 780
            box = drawn.first.bounding_box()
            for words in drawn.first.locator("text").all():
                each = words.bounding_box()
                assert box["x"] <= each["x"] and each["x"] + each["width"] <= box["x"] + box["width"] + 1
            opened.set_viewport_size({"width": 390, "height": 844})
            hidden = opened.locator("table").evaluate_all("all => all.map(t => t.scrollWidth - t.clientWidth)")
            assert opened.locator("table.lines").count() and opened.locator("table.stacked").count()
            assert max(hidden) <= 0, "nothing scrolls sideways on a phone"
            opened.set_viewport_size({"width": 780, "height": 1180})
            assert (asked, said) == ([file.as_uri()], [])
            if folder := os.environ.get("LAKEFS_GC_SCREENSHOTS"):
                places = {
                    "days": "figure",
                    "branches": "table:has-text('Held alone')",
                    "folders": "table:has-text('deep')",
                }
                opened.set_viewport_size({"width": 980, "height": 1180})
                for name, place in places.items():
                    opened.locator(place).screenshot(path=Path(folder) / f"forecast-{name}.png")
        finally:
            browser.close()
