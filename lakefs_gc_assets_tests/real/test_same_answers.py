"""The embedded and the simulated server answer and write what a real one does, call by call and file by file."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets_tests.real import collectors_calls, scene
from lakefs_gc_assets_tests.real.calls import Server, both
from lakefs_gc_assets_tests.real.simulated import SimulatedServer, new_world
from lakefs_gc_assets_tests.simulation.servers import Misbehaviour

DIFFERENCES = {
    "commit on missing branch": "the embedded server runs no hooks: lakeFS fails while it looks for their files",
    "log of path": "the embedded server refuses filters of logs, with 501",
    "upload to protected branch": "the embedded server states protection rules, and does not enforce them",
    "delete in protected branch": "as above",
    "commit to protected branch": "as above",
    "diff of protected branch": "as above",
    "reset protected branch": "as above",
}
"""Calls whose answers differ on purpose, with the reason."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    """A real server and the embedded one, after the whole scene was played on both."""
    with both() as (real, embedded):
        for server in (real, embedded):
            scene.play(server)
        yield real, embedded


def _shown(answers: dict[str, Any]) -> dict[str, str]:
    return {call: json.dumps(answer, sort_keys=True) for call, answer in answers.items() if call not in DIFFERENCES}


def test_answers_are_equal(servers: tuple[Server, Server]) -> None:
    real, embedded = servers
    assert _shown(embedded.answers) == _shown(real.answers)
    assert len(real.answers) > 200


def test_differences_are_as_stated(servers: tuple[Server, Server]) -> None:
    real, embedded = servers
    assert {call for call in real.answers if real.answers[call] != embedded.answers[call]} == set(DIFFERENCES)


def test_dumped_branches_have_id_and_commit_alone(servers: tuple[Server, Server]) -> None:
    for server in servers:
        records = collectors_calls.tables(server, "lake/repo", server.kept["refs"]["branches_meta_range_id"])["records"]
        assert {tuple(tag for tag, _ in record) for record in records} == {(1, 2)}
        assert "dev-hidden" in {record[0][1] for record in records}


def _written(server: Server) -> dict[str, Any]:
    """Content of the files that calls of the scene made the server write."""
    return {
        **{name: collectors_calls.tables(server, "lake/repo", id_) for name, id_ in server.kept["refs"].items()},
        "entries": collectors_calls.tables(server, "lake/repo", server.kept["metarange"]),
        "uncommitted": collectors_calls.uncommitted(server, server.kept["uncommitted"]),
        "commits": collectors_calls.prepared_commits(server, server.kept["commits"]),
        "rules": server.files("lake")["repo/_lakefs/retention/gc/rules/config.json"].read_bytes(),
    }


def test_files_of_both_servers_are_equal(servers: tuple[Server, Server]) -> None:
    real, embedded = map(_written, servers)
    assert real == embedded
    assert real["rules"] and real["commits"]["header"] == ["commit_id", "expired", "metarange_id"]
    assert all(len(table["records"]) > 1 for table in real.values() if isinstance(table, dict) and "records" in table)
    assert len(real["uncommitted"]["addresses"]) == 2


def test_files_lie_in_the_same_folders(servers: tuple[Server, Server]) -> None:
    real, embedded = ({_place(key) for key in server.files("lake")} for server in servers)
    # A real server writes the bytes of an upload before it checks that the repository is read-only.
    assert real - embedded == {"frozen/data/<20>/<20>"}
    assert embedded <= real


def _place(key: str) -> str:
    """A key with placeholders for names that a server generates."""
    parts = key.split("/")
    made_up = [part if not part.isalnum() or len(part) not in (20, 64) else f"<{len(part)}>" for part in parts]
    return "/".join("run_id=<20>" if part.startswith("run_id=") else part for part in made_up)


def _played(real: Server, buckets: Path, misbehaviour: Misbehaviour | None = None) -> SimulatedServer:
    """The simulated server of the histories, on which the scene's changes were made."""
    world = new_world(float(int(time.time())))
    if misbehaviour is not None:
        world.servers.misbehaviour = misbehaviour
    server = SimulatedServer("", ("", ""), buckets, False, world=world, real_answers=real.answers)
    scene.play_changes(server)
    return server


@pytest.fixture(scope="module")
def simulated(servers: tuple[Server, Server], tmp_path_factory: pytest.TempPathFactory) -> SimulatedServer:
    """The simulated server, which does nothing wrong."""
    return _played(servers[0], tmp_path_factory.mktemp("buckets"))


def _read_by_collector(answers: dict[str, Any]) -> dict[str, str]:
    """The answers without committer, message and metadata of dumped commits, which the simulated server leaves out."""
    answers = dict(answers)
    for call, answer in answers.items():
        if call.endswith("dumped commits_meta_range_id"):
            records = [[field for field in record if field[0] not in (2, 3, 6)] for record in answer["records"]]
            answers[call] = {**answer, "records": sorted(records, key=str)}
    return _shown(answers)


def test_embedded_server_answers_collector_as_real_one(servers: tuple[Server, Server]) -> None:
    real, embedded = (server.collector.answers for server in servers)
    assert _shown(embedded) == _shown(real)


def test_simulated_server_answers_collector_as_real_one(
    servers: tuple[Server, Server], simulated: SimulatedServer
) -> None:
    real = servers[0].collector.answers
    assert _read_by_collector(simulated.collector.answers) == _read_by_collector(real)
    assert len(simulated.played) > 50
    assert len(real) > 500


def test_simulated_files_lie_in_the_same_folders(servers: tuple[Server, Server], simulated: SimulatedServer) -> None:
    real, own = ({_place(key) for key in server.files("lake")} for server in (servers[0], simulated))
    # The collector asks for rules by the API alone.
    assert {key for key in real if key.startswith("repo/_lakefs/")} - own == {
        "repo/_lakefs/retention/gc/rules/config.json"
    }
    assert own <= real


@pytest.mark.parametrize(
    "misbehaviour",
    [
        Misbehaviour(page_rows=1000, aliased=True),
        Misbehaviour(page_rows=1000, blank_pages=1),
        Misbehaviour(page_rows=1000, lost_branches=1),
        Misbehaviour(page_rows=1000, missing_commits=True),
        Misbehaviour(page_rows=1000, old_lists=True),
    ],
    ids=["aliased addresses", "blank page", "lost branch", "missing commits", "old lists"],
)
def test_misbehaviour_of_simulated_server_is_found(
    servers: tuple[Server, Server], misbehaviour: Misbehaviour, tmp_path: Path
) -> None:
    answers = _played(servers[0], tmp_path, misbehaviour).collector.answers
    assert _read_by_collector(answers) != _read_by_collector(servers[0].collector.answers)
