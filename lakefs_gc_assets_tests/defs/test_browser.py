"""The UI in a real browser, as a new user sees it after `lakefs-gc ui`.

Needs the package playwright and an installed Chromium. LAKEFS_GC_SCREENSHOTS names a folder that gets a picture of each
page, for the documentation.
"""

import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.defs.partitions import key_of
from lakefs_gc_assets.extensions.playground.ui_command import LINEAGE
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.defs.test_attacked_over_graphql import ADD_PARTITION
from lakefs_gc_assets_tests.extensions.playground.test_ui_command import end, lines_until_url, start
from lakefs_gc_assets_tests.servers.free_ports import free_port

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
_CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.timeout(2400),
]
LOCATION = "/locations/lakefs_gc_assets.definitions"
_PATIENT = 900_000
"""Milliseconds: a busy machine draws pages slowly."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The UI of a sample repository, with its first dry run."""
    process = start(tmp_path_factory.mktemp("ui"), free_port())
    try:
        yield lines_until_url(process)[-1].removesuffix(LINEAGE)
        end(process, signal.SIGTERM)
    finally:
        process.kill()


_shared: list[Any] = []
"""The browser of the tests of this file."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, untyped because playwright may not be installed."""
    with sync_api.sync_playwright() as playwright:
        # Chromium has no sandbox when run as root in a container.
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser.new_context()
        finally:
            browser.close()


@pytest.fixture(scope="module", autouse=True)
def browser(url: str) -> Iterator[None]:
    """Opens pages in one browser, whose cache has the UI's scripts."""
    with chromium() as found:
        _shared.append(found)
        yield
        _shared.clear()


@contextmanager
def page(url: str, path: str, *texts: str, width: int = 1500, height: int = 1300, picture: str = "") -> Iterator[Any]:
    """A page of the UI once it shows some texts; saves a picture if LAKEFS_GC_SCREENSHOTS is set.

    Args:
        picture: name of the picture; defaults to the name of the page.
    """
    with nullcontext(_shared[0]) if _shared else chromium() as context, closing(context.new_page()) as found:
        found.set_viewport_size({"width": width, "height": height})
        found.set_default_timeout(_PATIENT)
        found.goto(url + path)
        for text in texts:
            found.get_by_text(text).first.wait_for()
        yield found
        if folder := os.environ.get("LAKEFS_GC_SCREENSHOTS"):
            found.screenshot(path=Path(folder) / f"{picture or Path(path.partition('?')[0]).name}.png")


def test_the_lineage_is_green_and_its_checks_have_passed(url: str) -> None:
    path = f"{LOCATION}/asset-groups/garbage_collection/lineage"
    with page(url, path, "collection_history", "5 / 5 Passed", "100% filled", width=2300, height=1200) as lineage:
        assert lineage.get_by_text("1 / 1 Passed").count() == 5
        assert lineage.get_by_text("100% filled").count() == 5
        assert lineage.get_by_text("failed").count() == 0


def test_the_printed_address_opens_the_lineage_of_the_five_assets_whole(url: str) -> None:
    with page(url, LINEAGE, width=1440, height=900, picture="first_look") as lineage:
        nodes = lineage.locator("foreignObject")
        nodes.nth(len(STEPS) - 1).wait_for()
        assert {*nodes.all_text_contents()} == {*STEPS}
        left = lineage.get_by_placeholder("Jump to").bounding_box()
        for place in range(nodes.count()):
            box = nodes.nth(place).bounding_box()
            assert left["x"] + left["width"] < box["x"] and box["x"] + box["width"] <= 1440
            assert box["y"] >= 0 and box["y"] + box["height"] <= 900


def test_the_runs_page_says_what_a_run_does_and_how_it_ended(url: str) -> None:
    with page(
        url, "/runs", "collect", "lakefs/run_id: ", "lakefs/mode: dry run", "lakefs/ending: marked, nothing deleted"
    ) as runs:
        assert runs.get_by_text("lakefs-opened").count() == 0


_TABLES = """tables => tables.map(table => [table.clientWidth, table.scrollWidth])"""


@pytest.mark.parametrize(
    ("asset", "pictures", "first"),
    [
        ("store_df", 0, ("frame", "preview")),
        ("candidates", 3, ("next", "garbage_by_age", "frame")),
        ("deleted_report", 1, ("ending", "outcome", "from_stored_to_deleted", "next", "frame")),
    ],
)
def test_what_decides_comes_first_and_nothing_is_cut(
    url: str, asset: str, pictures: int, first: tuple[str, ...]
) -> None:
    """Pictures are visible without a click."""
    with page(url, f"/assets/{asset}?view=overview", "Metadata", "rows_by_window", width=1440, height=2600) as shown:
        tops = [shown.get_by_text(key, exact=True).last.bounding_box()["y"] for key in (*first, "rows_by_window")]
        assert tops == sorted(tops)
        images = shown.locator("img[src^='data:image/svg+xml']")
        if pictures:
            images.nth(pictures - 1).wait_for()
        assert images.count() == pictures
        for place in range(pictures):
            assert images.nth(place).evaluate("image => image.complete && image.naturalWidth > 0")
        tables = shown.locator("div[class*='ScrollContainer']").evaluate_all(_TABLES)
        assert tables and all(whole <= seen for seen, whole in tables)


def test_the_page_of_a_run_opens_by_its_link(url: str) -> None:
    with page(url, "/assets/deleted_report?view=overview", "from_stored_to_deleted", height=2600) as shown:
        shown.get_by_role("link", name="report.html").first.click()
        shown.wait_for_url("**/report.html")
        shown.get_by_text("What the garbage is").first.wait_for()
        styled = "element => getComputedStyle(element).fontFamily"
        assert "sans" in shown.locator("body").evaluate(styled)


def test_the_history_tells_of_whole_runs(url: str) -> None:
    texts = ("freed_bytes_in_all", "stored_objects", "seconds_candidates", "dry run")
    with page(url, "/assets/collection_history", *texts, height=2600):
        pass


def test_partitions_have_dates_and_the_newest_comes_first_where_one_asks_for_it(url: str) -> None:
    selector = {"repositoryName": "__repository__", "repositoryLocationName": "lakefs_gc_assets.definitions"}
    variables = {"repository": selector, "set": "gc_runs_sample", "key": key_of(layout.issue_run_id(datetime.now(UTC)))}
    body = json.dumps({"query": ADD_PARTITION, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:
        assert "AddDynamicPartitionSuccess" in answer.read().decode()
    with page(url, "/assets/candidates?view=partitions", "Add a partition", width=1440, picture="partitions") as shown:
        shown.get_by_role("button", name="All", exact=True).click()
        keys = shown.locator("div[class*='MiddleTruncate_measure']").filter(has_text=re.compile(r"^20\d\d-\d\d-\d\d "))
        keys.nth(1).wait_for(state="attached")
        in_order = [*dict.fromkeys(keys.all_text_contents())]
        shown.get_by_placeholder("Filter by run_id").locator("xpath=..").get_by_role("button").click()
        shown.get_by_text("Reverse creation sort").click()
        assert in_order
        # Chosen keys are above the list, in the order in which they were chosen.
        sync_api.expect(keys.nth(len(in_order))).to_have_text(in_order[-1], timeout=_PATIENT)


def test_a_dry_run_is_approved_in_two_clicks_and_a_name(url: str) -> None:
    with page(url, "/assets/deleted_report", "Approve: ", height=2600) as asset:
        asset.get_by_role("link", name="Approve: ").first.click()
        asset.get_by_text("# Moves to quarantine the candidates of dry run").first.wait_for()
        asset.get_by_text("Enter your name in approved_by.").first.wait_for()
        asset.get_by_text("approved_by: ''").click()
        asset.keyboard.press("End")
        asset.keyboard.press("ArrowLeft")
        asset.keyboard.type("Ada")
        asset.get_by_role("button", name="Launch Run").click()
        asset.get_by_text("RUN_SUCCESS").wait_for()
    with page(url, "/runs", "approved sweep", "Ada, as the launch says", width=2400):
        pass
