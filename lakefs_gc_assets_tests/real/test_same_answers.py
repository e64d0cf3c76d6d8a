"""The embedded and the simulated server answer and write what a real one does, call by call and file by file.

The simulated server of the histories plays the users' calls that change what the collector sees, by the operations of
the histories. Left out are:

- calls that the real server refused: no user of the histories makes one, so the simulated server checks no request;
- read-only repositories, pull requests and branch protection, which the histories do not have;
- pages of uncommitted data: a real server begins a new one after a minute, or 20 MiB of compressed rows.

The collector's own calls, by `collectors_calls`, are compared all.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from lakefs_gc_assets.lakefs.api.models import LakeFSApi, RetentionRules
from lakefs_gc_assets_tests.real import collectors_calls, scene
from lakefs_gc_assets_tests.real.calls import Server, both
from lakefs_gc_assets_tests.simulation import writers
from lakefs_gc_assets_tests.simulation.bucket import md5
from lakefs_gc_assets_tests.simulation.clocks import DAY, MachineClock
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.servers import CollectorsApi, Misbehaviour
from lakefs_gc_assets_tests.simulation.world import Job, Setup, World

_REPOSITORY = "/repositories/repo"
_BRANCH = "/branches/([^/]+)"
_URI = "s3://lake/repo/"
_OK = range(200, 300)


def new_world(now: float) -> World:
    """A world with the scene's repository, which has nothing of older versions in it."""
    return World.from_setup(Setup(start=now, uri=_URI, old_objects=0, page_rows=1000))


@dataclass
class SimulatedServer(Server):
    """The simulated server.

    Attributes:
        real_answers: of the real server, on which the scene was played before.
        played: names of the calls that changed something here.
    """

    world: World = field(kw_only=True)
    real_answers: Mapping[str, Any] = field(kw_only=True)
    played: set[str] = field(default_factory=set)

    @cached_property
    def api(self) -> LakeFSApi:
        """The collector's port."""
        clock = MachineClock(self.world.time, 0.0)
        return CollectorsApi(self.world.servers, lambda _: False, lambda: None, clock, 1)

    def folder(self) -> Path:
        """The folder of all buckets, into which new files of lakeFS are written; none changes once it is there."""
        for key in self.world.bucket.keys_below("_lakefs/"):
            path = self.buckets / _URI.removeprefix("s3://") / key
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self.world.bucket.objects[key].data)
        return self.buckets

    def ask(self, name: str, method: str, path: str, body: Any = None, /, **query: Any) -> Any:
        """Plays a call that the real server accepted; the answer has what the scene needs."""
        if self.real_answers[name][0] not in _OK or not path.startswith(_REPOSITORY):
            return {}
        for wanted, pattern, play in _CALLS:
            found = re.fullmatch(pattern, path.removeprefix(_REPOSITORY))
            if found and method == wanted:
                self.played.add(name)
                return play(self.world, *found.groups(), body=body, **query) or {"id": ""}
        assert method == "GET" or path.startswith(f"{_REPOSITORY}/gc/"), f"{name!r} is not played"
        return {"id": ""}

    def wait(self, name: str, path: str, done: str, /, **query: Any) -> Any:
        """Nothing: the collector's calls wait for tasks of their own."""
        return {}


def _branch(world: World, name: str) -> int:
    """The number by which operations choose a branch."""
    return sorted(world.repository.branches).index(name)


def _commit_id(world: World, reference: str) -> str:
    """The commit of a reference, which may have one `~`."""
    name, _, steps = reference.partition("~")
    repository = world.repository
    heads = {branch.name: branch.commit_id for branch in repository.branches.values()}
    commit_id = heads.get(name) or repository.tags.get(name) or name
    for _ in range(int(steps or 0)):
        commit_id = repository.commits[commit_id].facts.parents[0]
    return commit_id


def _finish(job: Job) -> None:
    for _ in job:
        pass


def _stage(world: World, branch: str, path: str, data: bytes, like: Entry | None = None) -> None:
    key, _ = world.issue(world.servers.servers[0])
    world.bucket.put_data(key, data)
    entry = replace(like, address=key) if like else Entry(key, 1, len(data), md5(data))
    world.repository.stage(world.repository.branch(branch), path, entry)


def _upload(world: World, branch: str, *, body: bytes, path: str) -> None:
    _stage(world, branch, path, body)


def _shown_entry(world: World, branch: str, path: str) -> Entry:
    entry = world.repository.find(branch, path)
    assert entry is not None
    return entry


def _copy(world: World, branch: str, *, body: dict[str, Any], dest_path: str) -> None:
    entry = _shown_entry(world, branch, body["src_path"])
    _stage(world, branch, dest_path, world.bucket.objects[entry.address].data, entry)


def _set_metadata(world: World, branch: str, *, body: dict[str, Any], path: str) -> None:
    metadata = int(body["set"]["m"])
    entry = replace(_shown_entry(world, branch, path), metadata=metadata)
    world.repository.stage(world.repository.branch(branch), path, entry)


def _delete(world: World, branch: str, *, body: None, path: str) -> None:
    world.repository.remove(world.repository.branch(branch), path)


def _delete_several(world: World, branch: str, *, body: dict[str, Any]) -> None:
    for path in body["paths"]:
        world.repository.remove(world.repository.branch(branch), path)


def _issue(world: World, branch: str, *, body: None, path: str) -> dict[str, str]:
    return {"physical_address": _URI + world.issue(world.servers.servers[0], linkable=True)[0]}


def _link(world: World, branch: str, *, body: dict[str, Any], path: str) -> None:
    key = body["staging"]["physical_address"].removeprefix(_URI)
    entry = Entry(key, 1, body["size_bytes"], body["checksum"])
    world.repository.stage(world.repository.branch(branch), path, entry)


def _commit(world: World, branch: str, *, body: dict[str, Any]) -> dict[str, str]:
    found = world.repository.branch(branch)
    if body.get("allow_empty"):
        found.commit_id = world.commit(dict(world.repository.head(found)), (found.commit_id,), 0.0)
    else:
        # Half a second more than asked for: dates are cut to seconds.
        days = (body["date"] + 0.5 - world.time.now) / DAY if "date" in body else 0
        _finish(writers.commit(world, _branch(world, branch), writers.dated(0) + days, 0))
    return {"id": found.commit_id}


def _reset(world: World, branch: str, *, body: dict[str, Any]) -> None:
    if body["type"] == "reset":
        _finish(writers.reset_branch(world, _branch(world, branch)))
    else:
        writers.reset_paths(world, world.repository.branch(branch), lambda path: path == body["path"])


def _hard_reset(world: World, branch: str, *, body: None, ref: str, force: str = "") -> None:
    world.repository.branch(branch).commit_id = _commit_id(world, ref)


def _create_branch(world: World, *, body: dict[str, Any]) -> None:
    hidden = bool(body.get("hidden"))
    world.repository.new_branch(body["name"], _commit_id(world, body["source"]), hidden=hidden)


def _delete_branch(world: World, branch: str, *, body: None) -> None:
    _finish(writers.delete_branch(world, _branch(world, branch)))


def _create_tag(world: World, *, body: dict[str, Any]) -> None:
    world.repository.tags[body["id"]] = _commit_id(world, body["ref"])


def _delete_tag(world: World, tag: str, *, body: None) -> None:
    del world.repository.tags[tag]


def _merge(world: World, source: str, destination: str, *, body: dict[str, Any]) -> None:
    _finish(writers.merge(world, _branch(world, source), _branch(world, destination), 0))


def _on_top(
    operation: Callable[[World, int, int, int], Job], world: World, branch: str, *, body: dict[str, Any]
) -> None:
    number = sorted(world.repository.commits).index(_commit_id(world, body["ref"]))
    _finish(operation(world, _branch(world, branch), number, 0))


def _revert(world: World, branch: str, *, body: dict[str, Any]) -> None:
    _on_top(writers.revert, world, branch, body=body)


def _cherry_pick(world: World, branch: str, *, body: dict[str, Any]) -> None:
    _on_top(writers.cherry_pick, world, branch, body=body)


def _set_rules(world: World, *, body: dict[str, Any]) -> None:
    branches = {rule["branch_id"]: rule["retention_days"] for rule in body.get("branches") or ()}
    world.repository.set_rules(RetentionRules(body["default_retention_days"], branches))


def _delete_rules(world: World, *, body: None) -> None:
    world.repository.rules = None


_CALLS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("POST", f"{_BRANCH}/objects", _upload),
    ("POST", f"{_BRANCH}/objects/copy", _copy),
    ("PUT", f"{_BRANCH}/objects/stat/user_metadata", _set_metadata),
    ("DELETE", f"{_BRANCH}/objects", _delete),
    ("POST", f"{_BRANCH}/objects/delete", _delete_several),
    ("GET", f"{_BRANCH}/staging/backing", _issue),
    ("PUT", f"{_BRANCH}/staging/backing", _link),
    ("POST", f"{_BRANCH}/commits", _commit),
    ("PUT", _BRANCH, _reset),
    ("PUT", f"{_BRANCH}/hard_reset", _hard_reset),
    ("POST", "/branches", _create_branch),
    ("DELETE", _BRANCH, _delete_branch),
    ("POST", "/tags", _create_tag),
    ("DELETE", "/tags/([^/]+)", _delete_tag),
    ("POST", "/refs/([^/]+)/merge/([^/]+)", _merge),
    ("POST", f"{_BRANCH}/revert", _revert),
    ("POST", f"{_BRANCH}/cherry-pick", _cherry_pick),
    ("PUT", "/settings/gc_rules", _set_rules),
    ("DELETE", "/settings/gc_rules", _delete_rules),
)


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


def test_hard_resets_keep_staged_entries_and_change_which_of_them_are_listed(servers: tuple[Server, Server]) -> None:
    for server in servers:
        listed = {
            call: [change["path"] for change in server.answers[call][2]["results"]]
            for call in server.answers
            if re.fullmatch("diff (before|after) hard reset.*", call)
        }
        assert listed == {
            "diff before hard reset": ["other"],
            "diff after hard reset": ["moved", "other"],
            "diff after hard reset back": ["other"],
            "diff after hard reset by force": ["other"],
        }
        staged = server.answers["stage committed content"][2]["physical_address"]
        assert server.answers["stat after hard reset back"][2]["physical_address"] == staged


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
    assert len(real["uncommitted"]["addresses"]) == 3


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
    """The answers without committer, message and metadata of commits, which the simulated server leaves out."""
    answers = dict(answers)
    for call, answer in answers.items():
        if isinstance(answer, dict) and "committer" in answer:
            answers[call] = {**answer, "committer": "", "metadata": []}
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
