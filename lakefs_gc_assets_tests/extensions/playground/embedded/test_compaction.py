"""A server that compacts staging: its listings, and runs over the metaranges that compaction leaves."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.cli.common import open_repository
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.extensions.explain import explain
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded import repositories
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes
from lakefs_gc_assets_tests.extensions.playground.embedded.test_twins import configuration
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns, Between

DAYS = timedelta(days=1)
OBJECTS = "/repositories/repo/branches/main/objects"
RULES = {"default_retention_days": 5, "branches": []}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server with a committed object, ten days old; its clock stays at that time."""
    with EmbeddedServer(tmp_path, routes=routes.ROUTES) as started, started.clock.at(datetime.now(UTC) - 10 * DAYS):
        clients.repository(started)
        clients.upload(started, "lasting", b"lasting")
        clients.commit(started, "first")
        yield started


def compact(server: EmbeddedServer) -> str:
    """Compacts the branch main; returns its new base metarange."""
    return routes.compact(server.core, repositories.get(server.core, "repo"), "main")


def delete(server: EmbeddedServer, path: str) -> None:
    assert clients.call(server, "DELETE", OBJECTS, path=path)[0] == 204


def shown(server: EmbeddedServer) -> dict[str, str]:
    """The address of each path of the branch."""
    results = clients.call(server, "GET", "/repositories/repo/refs/main/objects/ls")[1]["results"]
    for each in results:
        answer = clients.call(server, "GET", "/repositories/repo/refs/main/objects/stat", path=each["path"])[1]
        assert answer["physical_address"] == each["physical_address"]
    return {each["path"]: each["physical_address"].partition("repo/")[2] for each in results}


def collected(
    server: EmbeddedServer,
    settings: Mapping[str, bool],
    flow: Flow = Flow.CLEAN,
    between: Between = lambda name: None,
) -> Report:
    """One sweep now, with some settings of the section `collection`."""
    with server.clock.at(datetime.now(UTC)):
        return ArrowRuns(Loaded(configuration(server, **settings), {}), between=between).collect(flow)


def hidden_in_base(server: EmbeddedServer) -> str:
    """An object that only the compacted base holds: another one is staged at its path. Returns its address."""
    address = clients.upload(server, "tmp", b"compacted")
    compact(server)
    clients.upload(server, "tmp", b"staged over it")
    return address


NAMED_ALONE = {"keep_unnamed_ranges": False}
YOUNG = {"keep_old_unnamed_ranges": False}


@pytest.mark.parametrize(
    ("flow", "settings"),
    [(Flow.CLEAN, {}), (Flow.CLEAN, NAMED_ALONE), pytest.param(Flow.UNIFIED, YOUNG, marks=pytest.mark.slow)],
    ids=["all", "named alone", "young"],
)
def test_what_a_compacted_base_holds_is_live_though_the_server_does_not_list_it(
    server: EmbeddedServer, flow: Flow, settings: dict[str, bool]
) -> None:
    address = hidden_in_base(server)
    clients.call(server, "PUT", "/repositories/repo/settings/gc_rules", RULES)
    found = collected(server, settings, flow)
    assert (found.counts["candidates"], found.counts["compacted_bases"]) == (0, 1)
    assert found.counts["provisional_ranges"] > 0
    assert any("keep_unnamed_ranges is off" in warning for warning in found.warnings) == (settings == NAMED_ALONE)
    assert (server.objects_folder / "repo" / address).is_file()


@pytest.mark.parametrize("flow", [Flow.OPTIMIZED, pytest.param(Flow.UNIFIED, marks=pytest.mark.slow)])
def test_what_a_superseded_base_holds_goes_where_only_young_ranges_count(server: EmbeddedServer, flow: Flow) -> None:
    address = hidden_in_base(server)
    clients.call(server, "PUT", "/repositories/repo/settings/gc_rules", RULES)
    # The facts of a base are not permanent: the next run reads them again.
    assert collected(server, YOUNG, Flow.CLEAN if flow is Flow.OPTIMIZED else flow).checkpoint is not None
    compact(server)
    found = collected(server, YOUNG, flow)
    assert found.flow == flow.value and found.base_run is not None
    assert (found.counts["candidates"], found.counts["deleted"], found.counts["unnamed_ranges"]) == (1, 1, 0)
    assert not (server.objects_folder / "repo" / address).is_file()
    assert [clients.call(server, "GET", "/repositories/repo/refs/main/objects", path=p)[0] for p in shown(server)] == [
        200,
        200,
    ]


def test_what_a_superseded_base_holds_stays_where_another_repository_may_have_it(server: EmbeddedServer) -> None:
    hidden_in_base(server)
    compact(server)
    found = collected(server, {})
    assert (found.counts["candidates"], found.counts["unnamed_ranges"] > 0) == (0, True)
    (warning,) = found.warnings
    assert "objects of superseded compactions, turn collection.keep_old_unnamed_ranges off" in warning
    assert "provisional" not in warning


def test_a_young_base_that_nothing_names_any_more_counts_until_it_is_old(server: EmbeddedServer) -> None:
    address = clients.upload(server, "tmp", b"compacted")
    with server.clock.at(datetime.now(UTC)):
        compact(server)
        delete(server, "tmp")
        compact(server)
    assert collected(server, YOUNG).counts["candidates"] == 0
    assert (server.objects_folder / "repo" / address).is_file()


@pytest.mark.parametrize("settings", [NAMED_ALONE, YOUNG], ids=["named alone", "young"])
def test_what_is_compacted_between_mark_and_sweep_stays(server: EmbeddedServer, settings: dict[str, bool]) -> None:
    """The candidate is staged by its address after the mark, compacted, and hidden by a newer staged object."""
    address = clients.upload(server, "tmp", b"old")
    delete(server, "tmp")

    def between(name: str) -> None:
        if name == "candidates":
            physical = f"{server.core.blockstore.scheme}repo/{address}"
            body = {"physical_address": physical, "checksum": "x", "size_bytes": 3}
            assert clients.call(server, "PUT", OBJECTS, body, path="back")[0] == 201
            compact(server)
            clients.upload(server, "back", b"staged over it")

    found = collected(server, settings, between=between)
    assert (found.counts["candidates"], found.counts["kept_live"], found.counts["deleted"]) == (1, 1, 0)
    assert (server.objects_folder / "repo" / address).is_file()


def test_explain_says_which_branch_was_compacted(server: EmbeddedServer) -> None:
    address = hidden_in_base(server)
    with server.clock.at(datetime.now(UTC)):
        opened = open_repository(Loaded(demo.configuration(server, "repo"), {})).dumping_at_once()
        found = explain.explain(opened, address)
        assert [(place.branch, place.path) for place in found.compacted] == [("main", "tmp")]
        lasting = explain.explain(opened, shown(server)["lasting"])
    assert (found.uncommitted, found.unnamed, lasting.compacted) == (False, (), ())
