"""`lakefs-gc overview` on repositories of an embedded server, and its page."""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.cli import COMMANDS, main
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.records.report import Ending
from lakefs_gc_assets.extensions.holdings import overview_page
from lakefs_gc_assets.extensions.holdings.overview import RepositoryFigures, make_overview
from lakefs_gc_assets.extensions.holdings.overview_command import HELP
from lakefs_gc_assets.extensions.holdings.overview_page import squarify
from lakefs_gc_assets_tests.cli.test_json import require_documented
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.extensions.holdings.lake import GIB, Lake, lake

__all__ = ["lake"]

Ask = Callable[..., Result]


@pytest.fixture
def ask(lake: Lake, tmp_path: Path) -> Ask:
    """Calls a command with the configuration as it is then."""

    def call(command: str, *arguments: str) -> Result:
        file = lake.write_configuration(tmp_path)
        return CliRunner().invoke(main, [command, "--config", str(file), *arguments], catch_exceptions=False)

    return call


def test_lines_show_sums_repositories_and_alerts(lake: Lake, ask: Ask) -> None:
    for name in ("alpha", "beta", "new"):
        lake.create(name)
    lake.end_run("alpha", DAY, dry_run=False, ending=Ending.NOTHING_TO_DELETE, counts={"listed": 1, "candidates": 0})
    lake.end_run("beta", success=False)
    lake.content["report"] = {"price_per_gb_month": 0.5}
    lines = ask("overview").stdout.splitlines()
    assert lines[0].startswith("3 repositories at ")
    assert "20.0 GiB stored, 6.0 GiB garbage, 10.00 USD a month; the bytes of 1 repository are unknown" in lines[0]
    assert re.split(r"\s{2,}", lines[1])[:3] == ["repository", "stored", "as of"]
    assert [line.split()[0] for line in lines[2:5]] == ["alpha", "beta", "new"]
    assert f"{NOW - DAY:%F}" in lines[2] and lines[2].endswith("all commits stay")
    assert "no run" in lines[4] and "?" not in lines[4]
    assert lines[5].startswith("failed run: beta: run ") and "--repository beta" in lines[5]
    assert lines[6] == "prices: report.price_per_gb_month"


def test_json_has_every_figure_and_is_documented(lake: Lake, ask: Ask) -> None:
    lake.create("alpha")
    lake.end_run("alpha")
    answer = json.loads(ask("overview", "--json").stdout)
    require_documented("overview --json", answer)
    (row,) = answer["rows"]
    assert row.keys() == set(RepositoryFigures.__dataclass_fields__)
    assert (row["stored_bytes"], row["stale_bytes"], row["standing"]) == (10 * GIB, None, "read")


def test_status_with_all_is_the_overview(lake: Lake, ask: Ask) -> None:
    lake.create("alpha")
    lake.end_run("alpha")
    assert ask("status", "--all").stdout.startswith("1 repository at ")
    assert [row["repository"] for row in json.loads(ask("status", "--all", "--json").stdout)["rows"]] == ["alpha"]
    shown = CliRunner().invoke(main, ["status", "--help"]).stdout
    assert "--all" in shown and "lakefs-gc overview" in shown
    assert [option for each in COMMANDS["status"].load().params for option in each.opts].count("--all") == 1


def test_keeping_needs_a_folder_and_is_read_by_the_next_one(lake: Lake, ask: Ask) -> None:
    lake.create("alpha")
    assert ask("overview", "--keep").exit_code == 0
    assert ask("overview").exit_code == 0
    (kept,) = (lake.server.objects_folder / "overviews").glob("overview-*.parquet")
    assert len(json.loads(ask("overview", "--json").stdout)["days"]) == 2
    del lake.content["overview"]
    refused = ask("overview", "--keep")
    assert refused.exit_code == Status.CONFIGURATION and "overview.history" in refused.stderr
    assert kept.exists()


def test_unreadable_repository_is_named_in_the_exit_status(lake: Lake, ask: Ask) -> None:
    lake.create("alpha")
    lake.content["repositories"] = [{"repository": "alpha", "store": {"local_root": "/nowhere"}}]
    answer = ask("overview")
    assert answer.exit_code == Status.INCOMPLETE
    assert "unreadable: alpha: there is no folder /nowhere" in answer.stdout


def test_figures_for_prometheus_are_known_and_have_no_unknown_ones(lake: Lake, ask: Ask) -> None:
    lake.create("alpha")
    lake.create("new")
    lake.end_run("alpha", success=False)
    lines = ask("overview", "--prometheus").stdout.splitlines()
    assert f'lakefs_gc_overview_stored_bytes{{repository="alpha"}} {10 * GIB}' in lines
    assert 'lakefs_gc_overview_alerts{repository="alpha",kind="failed run"} 1' in lines
    assert 'lakefs_gc_overview_repositories{state="no run"} 1' in lines
    assert not any('repository="new"' in line for line in lines)
    names = {line.split("{")[0].removeprefix("lakefs_gc_") for line in lines if not line.startswith("#")}
    assert names <= HELP.keys()


def page_of(lake: Lake) -> str:
    return overview_page.render(make_overview(lake.everything, HandClock(NOW + DAY), lambda line: None)).decode()


def test_page_shows_repositories_and_runs_only_its_own_script(lake: Lake, ask: Ask, tmp_path: Path) -> None:
    lake.create("alpha")
    lake.create("new")
    lake.end_run("alpha")
    assert ask("overview", "--keep", "--html", str(tmp_path / "all.html")).exit_code == 0
    page = (tmp_path / "all.html").read_text()
    assert "<h1>2 repositories</h1>" in page and "10.0 GiB stored, 3.0 GiB garbage" in page
    assert "new (no run)" in page and 'data-key="10737418240"' in page
    (script,) = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(page)
    assert page.count("<script") == 1 and not re.search(r"(src|href)=", page)
    assert "Over time" not in page
    assert "Over time" in page_of(lake), "there is an earlier overview"


def test_names_of_repositories_never_become_markup(lake: Lake) -> None:
    overview = make_overview(lake.everything, HandClock(NOW), lambda line: None)
    row = RepositoryFigures(repository="<img>", seen_at=NOW, stored_bytes=GIB, rules="<script>")
    page = overview_page.render(type(overview)(NOW, (row,), (), overview.days)).decode()
    assert "<img>" not in page and page.count("<script") == 1


@given(
    sizes=st.lists(st.integers(1, 10**15), min_size=1, max_size=40),
    width=st.floats(10, 1000),
    height=st.floats(10, 1000),
)
def test_tiles_fill_the_rectangle_in_proportion_to_their_sizes(sizes: list[int], width: float, height: float) -> None:
    tiles = [
        *squarify([(str(place), count) for place, count in enumerate(sorted(sizes, reverse=True))], 0, 0, width, height)
    ]
    assert len(tiles) == len(sizes)
    for tile in tiles:
        assert tile.width * tile.height == pytest.approx(tile.bytes / sum(sizes) * width * height, rel=1e-3, abs=1e-6)
        assert tile.x >= -1e-6 and tile.x + tile.width <= width * (1 + 1e-6) + 1e-6
        assert tile.y >= -1e-6 and tile.y + tile.height <= height * (1 + 1e-6) + 1e-6


def test_page_of_a_thousand_repositories_is_small(lake: Lake) -> None:
    empty = make_overview(lake.everything, HandClock(NOW), lambda line: None)
    rows: list[Any] = [
        RepositoryFigures(repository=f"repository-{number}", seen_at=NOW, stored_bytes=number * GIB)
        for number in range(1000)
    ]
    page = overview_page.render(type(empty)(NOW, tuple(rows), (), empty.days))
    assert len(page) < 1_000_000
    assert page.count(b'class="tile"') == 61, "the smaller ones share a tile"
