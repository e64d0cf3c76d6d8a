import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lakefs_gc_assets.errors import AccessDenied, LakeFSError, NotFound, ServerUnavailable
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.lakefs.api.models import (
    Branch,
    LakeFSApi,
    ObjectsPage,
    ObjectStats,
    PrepareCommitsTask,
    PreparedCommits,
    PullRequest,
    RefsDump,
    RetentionRules,
)
from lakefs_gc_assets_tests.lakefs.api.scripted_server import (
    GOOD,
    NOW,
    FixedClock,
    Scripted,
    ask,
    refused,
    said,
    settings,
    talking,
)
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, needs_recordings, recorded_and_made

RECORDED = recorded_and_made("small", "random-dag/14", "empty")


def client_of(server: ReplayServer) -> LakeFSClient:
    return LakeFSClient(server.configuration().lakefs, server.repository, FixedClock())


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder_of(name) / "api.jsonl").read_text().splitlines()]


def last(rows: list[dict[str, Any]], method: str, end: str) -> Any:
    """JSON of the last 2xx answer whose path has this end."""
    found = [row for row in rows if row["method"] == method and row["path"].endswith(end) and row["status"] < 300]
    return found[-1]["response_json"]


@pytest.fixture(scope="module", params=RECORDED)
def replayed(request: pytest.FixtureRequest) -> Iterator[tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]]:
    with ReplayServer(folder_of(request.param), now=NOW) as server:
        yield server, client_of(server), recorded(request.param)


class TestRecordedServers:
    def test_repository_and_configuration(
        self, replayed: tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]
    ) -> None:
        server, client, rows = replayed
        repository = client.repository()
        said_last = last(rows, "GET", f"/repositories/{server.repository}")
        assert repository.id == said_last["id"]
        assert repository.storage_namespace == said_last["storage_namespace"]
        assert (repository.default_branch, repository.read_only) == ("main", False)
        assert repository.creation_date == said_last["creation_date"]
        assert client.grace_period() == timedelta(days=1)

    def test_every_branch_tag_and_head(self, replayed: tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]) -> None:
        _, client, rows = replayed
        branches = client.branches()
        expected = {item["id"]: item["commit_id"] for item in last(rows, "GET", "/branches")["results"]}
        assert {branch.id: branch.commit_id for branch in branches} == expected
        assert [branch.id for branch in branches] == sorted(expected)
        assert {tag.id: tag.commit_id for tag in client.tags()} == {
            item["id"]: item["commit_id"] for item in last(rows, "GET", "/tags")["results"]
        }
        for branch in branches:
            log = last(rows, "GET", f"/refs/{branch.id}/commits")["results"]
            head = next(commit for commit in log if commit["id"] == branch.commit_id)
            commit = client.commit(branch.commit_id)
            assert (commit.metarange_id, list(commit.parents)) == (head["meta_range_id"], head["parents"])
            assert (commit.creation_date, commit.version) == (head["creation_date"], head["version"])

    def test_first_change_of_each_branch_has_an_address(
        self, replayed: tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]
    ) -> None:
        server, client, rows = replayed
        for branch in client.branches():
            results = last(rows, "GET", f"/branches/{branch.id}/diff")["results"]
            change = client.first_change(branch.id)
            assert ([] if change is None else [(change.path, change.type)]) == [
                (item["path"], item["type"]) for item in results
            ]
            assert next(iter(client.changes(branch.id)), None) == change
            if change is not None and change.type != "removed":
                stats = client.stat(branch.id, change.path)
                assert stats is not None
                assert stats.physical_address.startswith(server.storage_namespace + "/")

    def test_dump_and_uncommitted_data(self, replayed: tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]) -> None:
        _, client, rows = replayed
        dump = client.refs_dump(client.start_refs_dump())
        assert dump == RefsDump(True, None, **last(rows, "GET", "/dump")["refs"])
        page = client.prepare_uncommitted(None)
        expected = last(rows, "POST", "/gc/prepare_uncommited")
        assert (page.run_id, page.location) == (expected["run_id"], expected["gc_uncommitted_location"])
        assert page.continuation_token is None

    def test_retention(self, replayed: tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]) -> None:
        _, client, rows = replayed
        stated = last(rows, "GET", "/settings/gc_rules")
        rules = client.retention_rules()
        assert rules is not None
        assert rules.default_days == stated["default_retention_days"]
        assert rules.branches == {rule["branch_id"]: rule["retention_days"] for rule in stated["branches"] or ()}
        result = client.prepare_commits_task(client.start_prepare_commits()).result
        assert result is not None
        assert result.location.endswith(f"/_lakefs/retention/gc/commits/run_id={result.run_id}/commits.csv")
        assert client.prepare_commits().location.endswith("/commits.csv")


@needs_recordings
def test_paths_of_every_kind_are_asked_for_as_they_are() -> None:
    uploads = {
        row["query"]["path"]: row["response_json"]
        for row in recorded("small")
        if row["note"] == "committed_live" and row["path"].endswith("/branches/main/objects")
    }
    assert {"we ird/sp ace+plus%25.txt", "unicode/שלום/日本.parquet", "a//double", "hash#q?and&"} <= uploads.keys()
    with ReplayServer(folder_of("small")) as server:
        client = client_of(server)
        for path, upload in uploads.items():
            assert client.stat("v1", path) == ObjectStats(path, upload["physical_address"], upload["size_bytes"])
        assert client.stat("v1", "no such path") is None


def test_what_changes_branches_is_asked_once() -> None:
    """The first call may have succeeded, and a user may have made a branch of that name since."""
    for answer in (refused(503, "later"), Scripted(breaks=True)):
        with talking(answer) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable):
                client.delete_branch("a")
            with pytest.raises(ServerUnavailable):
                client.create_branch("a", "c", True)
            assert [target for _, target, _ in server.requests] == [
                "/api/v1/repositories/repo/branches/a",
                "/api/v1/repositories/repo/branches",
            ]
            assert json.loads(server.requests[1][2]) == {"name": "a", "source": "c", "force": False, "hidden": True}
            assert not sleeps.seconds


def test_calls_of_lifecycle_send_what_lakefs_expects() -> None:
    with talking(said({"errors": []}), said({"reference": "m"}), Scripted(204, b""), said({"id": "p"}, 201)) as (
        client,
        server,
        _,
    ):
        assert client.delete_paths("hidden", ["a", "ü"]) == ()
        assert client.squash_merge("hidden", "main", "text", {"k": "v"}, "dest-wins") == "m"
        client.revert("hidden", "c")
        assert client.open_pull_request("hidden", "main", "title", "text") == "p"
    assert [(method, target, json.loads(body)) for method, target, body in server.requests] == [
        ("POST", "/api/v1/repositories/repo/branches/hidden/objects/delete", {"paths": ["a", "ü"]}),
        (
            "POST",
            "/api/v1/repositories/repo/refs/hidden/merge/main",
            {
                "message": "text",
                "metadata": {"k": "v"},
                "strategy": "dest-wins",
                "squash_merge": True,
                "force": False,
                "allow_empty": False,
            },
        ),
        (
            "POST",
            "/api/v1/repositories/repo/branches/hidden/revert",
            {"ref": "c", "parent_number": 1, "force": False, "allow_empty": False},
        ),
        (
            "POST",
            "/api/v1/repositories/repo/pulls",
            {"title": "title", "description": "text", "source_branch": "hidden", "destination_branch": "main"},
        ),
    ]


def test_refused_paths_of_a_batch_are_returned() -> None:
    errors = [{"path": "b", "status_code": 401, "message": "Unauthorized"}, {"status_code": 500, "message": ""}]
    with talking(said({"errors": errors})) as (client, _, _):
        assert client.delete_paths("hidden", ["a", "b"]) == (("b", "401 Unauthorized"), ("", "500 "))
    for content in ({}, {"errors": None}, {"errors": ["b"]}, {"errors": [{"path": "b"}]}):
        with talking(said(content)) as (client, _, _), pytest.raises(LakeFSError):
            client.delete_paths("hidden", ["a", "b"])


def test_merges_and_pull_requests_are_asked_once() -> None:
    for answer in (refused(503, "later"), Scripted(breaks=True)):
        with talking(answer) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable):
                client.squash_merge("hidden", "main", "text", {})
            with pytest.raises(ServerUnavailable):
                client.revert("hidden", "c")
            with pytest.raises(ServerUnavailable):
                client.open_pull_request("hidden", "main", "title", "text")
            with pytest.raises(ServerUnavailable):
                client.close_pull_request("p")
            assert (len(server.requests), sleeps.seconds) == (4, [])


def test_a_pull_request_of_any_status_is_read() -> None:
    merged = {**PULL, "status": "merged", "merged_commit_id": "m"}
    with talking(said(PULL), said(merged), said({"id": "p"})) as (client, _, _):
        assert client.pull_request("p") == PullRequest("p", "dev", "main")
        assert client.pull_request("p") == PullRequest("p", "dev", "main", "merged", "m")
        with pytest.raises(LakeFSError):
            client.pull_request("p")


def test_protection_rules_are_read_strictly() -> None:
    with talking(said([{"pattern": "main"}, {"pattern": "v*"}])) as (client, _, _):
        assert client.protection_patterns() == ("main", "v*")
    with talking(said([])) as (client, _, _):
        assert client.protection_patterns() == ()
    contents: tuple[object, ...] = ({}, None, ["main"], [{}], [{"pattern": ""}], [{"pattern": 1}])
    for content in contents:
        with talking(said(content)) as (client, _, _), pytest.raises(LakeFSError):
            client.protection_patterns()
    with talking(refused(403, "no")) as (client, _, _), pytest.raises(AccessDenied, match="GetBranchProtectionRules"):
        client.protection_patterns()


PULL = {"id": "p", "status": "open", "source_branch": "dev", "destination_branch": "main"}


def test_open_pull_requests_are_read_strictly() -> None:
    def page(*pulls: object) -> Scripted:
        return said({"results": pulls, "pagination": {"has_more": False, "next_offset": "", "results": len(pulls)}})

    closed = [{**PULL, "status": status} for status in ("closed", "merged")]
    with talking(page(PULL, *closed)) as (client, server, _):
        assert client.open_pull_requests() == (PullRequest("p", "dev", "main"),)
        assert [target for _, target, _ in server.requests] == [
            "/api/v1/repositories/repo/pulls?amount=1000&status=open"
        ]
    with talking(page({**PULL, "status": "draft"})) as (client, _, _):
        assert len(client.open_pull_requests()) == 1, "an unknown status may be an open one"
    for content in ({**PULL, "source_branch": ""}, {"id": "p", "status": "open"}, {**PULL, "status": None}, "p"):
        with talking(page(content)) as (client, _, _), pytest.raises(LakeFSError):
            client.open_pull_requests()


@pytest.mark.parametrize("status", [404, 500, 501])
def test_a_server_without_pull_requests_has_none(status: int) -> None:
    with talking(refused(status, "invalid API endpoint")) as (client, _, _):
        assert client.open_pull_requests() == ()


def test_pull_requests_that_cannot_be_read_are_not_none() -> None:
    with talking(refused(403, "no")) as (client, _, _), pytest.raises(AccessDenied, match="pr:ListPullRequests"):
        client.open_pull_requests()
    with talking(refused(404, "repository not found")) as (client, _, _), pytest.raises(NotFound):
        client.open_pull_requests()


def test_the_last_run_of_hooks_is_read_strictly() -> None:
    run = {"run_id": "r", "branch": "dev", "start_time": "2026-11-28T10:00:00.123456789+02:00", "status": "failed"}

    def page(*runs: object) -> Scripted:
        return said({"results": runs, "pagination": {"has_more": True, "next_offset": "r", "results": len(runs)}})

    with talking(page(run)) as (client, server, _):
        assert client.last_action_run("dev") == datetime(2026, 11, 28, 8, 0, 0, 123456, tzinfo=UTC)
        assert [target for _, target, _ in server.requests] == [
            "/api/v1/repositories/repo/actions/runs?amount=1&branch=dev"
        ]
    with talking(page()) as (client, _, _):
        assert client.last_action_run("dev") is None
    commits = [{**run, "commit_id": "c1"}, {**run, "commit_id": "", "start_time": "2026-11-01T10:00:00Z"}]
    with talking(
        page(commits[0]),
        said({"results": commits[1:], "pagination": {"has_more": False, "next_offset": "", "results": 1}}),
    ) as (client, _, _):
        assert client.last_action_run("dev", ["c1", "c2"]) == datetime(2026, 11, 1, 10, tzinfo=UTC)
    with talking(page(run)) as (client, _, _), pytest.raises(LakeFSError, match="commit_id"):
        client.last_action_run("dev", ["c1"])
    for time in ("", None, "today", 1_700_000_000, "2026-11-28T10:00:00"):
        with talking(page({**run, "start_time": time})) as (client, _, _), pytest.raises(LakeFSError):
            client.last_action_run("dev")
    with talking(refused(501, "not implemented")) as (client, _, _):
        assert client.last_action_run("dev") is None
    with talking(refused(403, "no")) as (client, _, _), pytest.raises(AccessDenied, match="ci:ReadAction"):
        client.last_action_run("dev")


def test_several_threads_ask_at_once() -> None:
    with ReplayServer(folder_of("small"), now=NOW) as server, ThreadPoolExecutor(8) as pool:
        client = client_of(server)
        answers = {future.result() for future in [pool.submit(client.branches) for _ in range(64)]}
    assert len(answers) == 1


def test_the_endpoint_may_name_the_api_path_or_not() -> None:
    with ReplayServer(folder_of("empty")) as server:
        given = server.configuration().lakefs
        for end in ("", "/", "/api/v1", "/api/v1/"):
            client = LakeFSClient(
                given.model_copy(update={"endpoint": server.url + end}), server.repository, FixedClock()
            )
            assert client.repository().id == server.repository


def test_wrong_keys_and_unknown_repositories_of_a_recorded_server() -> None:
    with ReplayServer(folder_of("small")) as server:
        with pytest.raises(AccessDenied, match=r"access_key_id and lakefs\.secret_access_key"):
            LakeFSClient(settings(server.url), server.repository, FixedClock()).repository()
        with pytest.raises(NotFound, match=r"repository not found.* the setting repository"):
            LakeFSClient(server.configuration().lakefs, "another", FixedClock()).branches()
        with pytest.raises(NotFound):
            client_of(server).refs_dump("no-such-task")
        with pytest.raises(LakeFSError, match="400 Bad Request: invalid continuation token"):
            client_of(server).prepare_uncommitted("nonsense")


class TestAbsence:
    def test_of_the_grace_period_on_old_servers_is_a_day(self) -> None:
        for answer in (refused(404, "invalid API endpoint"), refused(500, "invalid API endpoint")):
            with talking(answer) as (client, _, _):
                assert client.grace_period() == timedelta(hours=24)

    def test_of_the_grace_period_is_not_believed_of_a_proxy(self) -> None:
        with talking(Scripted(404, b"404 page not found")) as (client, _, _), pytest.raises(NotFound):
            client.grace_period()

    def test_of_rules_is_what_their_own_endpoint_says(self) -> None:
        with talking(refused(404, "not found")) as (client, server, _):
            assert client.retention_rules() is None
            assert [target for _, target, _ in server.requests] == ["/api/v1/repositories/repo/settings/gc_rules"]

    @pytest.mark.parametrize(
        "answer",
        [
            refused(404, "repository not found"),
            refused(404, "get gc rules: not found"),
            refused(404, "invalid API endpoint"),
            refused(500, "invalid API endpoint"),
            refused(404, ""),
            Scripted(404, b"not found"),
            said(["not found"], 404),
            refused(401, "not found"),
            refused(403, "not found"),
            refused(410, "not found"),
            refused(500, "not found"),
        ],
    )
    def test_of_something_else_is_not_absence_of_rules(self, answer: Scripted) -> None:
        with talking(answer) as (client, _, _), pytest.raises(LakeFSError):
            client.retention_rules()

    @pytest.mark.parametrize(
        "message",
        ["not found", "path not found", "branch not found", "get entry: not found", "stat x: commit not found"],
    )
    def test_of_an_object_is_what_lakefs_says(self, message: str) -> None:
        with talking(refused(404, message)) as (client, _, _):
            assert client.stat("main", "p") is None

    @pytest.mark.parametrize(
        "answer",
        [
            refused(404, "repository not found"),
            refused(404, "invalid API endpoint"),
            refused(404, "metarange not found"),
            refused(404, "reference is ambiguous: not found"),
            refused(404, ""),
            Scripted(404, b"not found"),
            said({"error": "not found"}, 404),
            said(["not found"], 404),
        ],
    )
    def test_of_something_else_is_not_absence_of_an_object(self, answer: Scripted) -> None:
        with talking(answer) as (client, _, _), pytest.raises(NotFound):
            client.stat("main", "p")
        with talking(answer) as (client, _, _), pytest.raises(NotFound):
            client.list_objects("main", "p")

    def test_of_a_branch_is_what_lakefs_says(self) -> None:
        with talking(refused(404, "branch not found")) as (client, server, _):
            assert client.branch("gone") is None
            client.delete_branch("gone")
            assert [method for method, _, _ in server.requests] == ["GET", "DELETE"]
        for answer in (refused(404, "repository not found"), Scripted(404, b"not found")):
            with talking(answer) as (client, _, _):
                with pytest.raises(NotFound):
                    client.branch("gone")
                with pytest.raises(NotFound):
                    client.delete_branch("gone")
        with talking(said({"id": "other", "commit_id": "c"})) as (client, _, _), pytest.raises(LakeFSError):
            client.branch("main")

    def test_of_a_branch_is_no_objects(self) -> None:
        with talking(refused(404, "branch not found")) as (client, _, _):
            assert client.list_objects("gone", "p") == ObjectsPage((), more=False)

    def test_an_object_that_is_gone_keeps_its_address(self) -> None:
        with talking(said(GOOD["stat"], 410)) as (client, _, _):
            assert client.stat("main", "p") == ObjectStats("p", "s3://bucket/repo/data/x", 3)
        with talking(refused(410, "gone")) as (client, _, _), pytest.raises(LakeFSError, match="path is missing"):
            client.stat("main", "p")


class TestListingObjects:
    def test_asks_for_addresses_behind_a_path(self) -> None:
        with talking(said(GOOD["list_objects"])) as (client, server, _):
            found = client.list_objects("main", "o/\U0010ffff&")
        assert found == ObjectsPage((ObjectStats("p", "s3://bucket/repo/data/x", 3),), more=True)
        asked = urlsplit(server.requests[0][1])
        assert asked.path.endswith("/repositories/repo/refs/main/objects/ls")
        query = parse_qs(asked.query)
        assert (query["after"], query["amount"]) == (["o/\U0010ffff&"], ["1000"])
        assert (query["presign"][0].lower(), query["user_metadata"][0].lower()) == ("false", "false")

    @pytest.mark.parametrize(
        ("paths", "kind", "more"),
        [
            (["b", "a"], "object", False),
            (["a", "a"], "object", False),
            (["A"], "object", False),
            (["a"], "common_prefix", False),
            ([], "object", True),
        ],
    )
    def test_believes_only_objects_in_order(self, paths: list[str], kind: str, more: bool) -> None:
        results = [{"path": path, "path_type": kind, "physical_address": "s3://b/a"} for path in paths]
        pagination = {"has_more": more, "next_offset": "z" if more else "", "results": len(paths)}
        with (
            talking(said({"results": results, "pagination": pagination})) as (client, _, _),
            pytest.raises(LakeFSError),
        ):
            client.list_objects("main", "B")


def page(names: list[str], more: bool, offset: str) -> Scripted:
    return said(
        {
            "results": [{"id": name, "commit_id": "c", "path": name, "type": "added"} for name in names],
            "pagination": {"has_more": more, "next_offset": offset, "results": len(names)},
        }
    )


class TestPages:
    def test_all_are_asked_for(self) -> None:
        with talking(page(["a", "b"], True, "b"), page([], True, "m"), page(["z"], False, "")) as (client, server, _):
            assert client.branches() == (Branch("a", "c"), Branch("b", "c"), Branch("z", "c"))
            targets = [target for _, target, _ in server.requests]
            assert ["after=b" in target for target in targets] == [False, True, False]
            assert ["after=m" in target for target in targets] == [False, False, True]
            assert all("show_hidden=True" in target and "amount=1000" in target for target in targets)

    @pytest.mark.parametrize("method", ["branches", "tags"])
    @pytest.mark.parametrize(
        "pages",
        [
            [page(["a"], True, "")],
            [page(["a"], True, "a"), page(["a"], True, "a")],
            [page(["a"], True, "a"), page(["b"], True, "b"), page(["a"], True, "a")],
        ],
    )
    def test_a_server_that_goes_in_circles_is_refused(self, pages: list[Scripted], method: str) -> None:
        with talking(*pages) as (client, server, _):
            with pytest.raises(LakeFSError, match="once more"):
                ask(client, method)
            assert len(server.requests) == len(pages)

    def test_a_failing_page_ends_the_list(self) -> None:
        with talking(page(["a"], True, "a"), refused(500, "kv")) as (client, _, _), pytest.raises(ServerUnavailable):
            client.tags()

    def test_changes_come_page_by_page(self) -> None:
        with talking(page(["a", "b"], True, "b"), page(["c"], False, "")) as (client, server, _):
            changes = client.changes("main")
            assert next(changes).path == "a"
            assert len(server.requests) == 1
            assert [change.path for change in changes] == ["b", "c"]

    def test_more_without_a_first_change_is_refused(self) -> None:
        with talking(page([], True, "a")) as (client, _, _), pytest.raises(LakeFSError, match="results is empty"):
            client.first_change("main")
        with talking(page([], False, "")) as (client, _, _):
            assert client.first_change("main") is None


class TestRetention:
    def test_rules_without_branches(self) -> None:
        stated: list[dict[str, Any]] = [{}, {"branches": None}, {"branches": []}]
        for branches in stated:
            with talking(said({"default_retention_days": 7, **branches})) as (client, _, _):
                assert client.retention_rules() == RetentionRules(7, {})

    def test_rules_are_handed_on_as_stated(self) -> None:
        stated = {"default_retention_days": -3, "branches": [{"branch_id": "main", "retention_days": 2**31 - 1}]}
        with talking(said(stated)) as (client, _, _):
            assert client.retention_rules() == RetentionRules(-3, {"main": 2**31 - 1})

    def test_rules_are_set(self) -> None:
        with talking(Scripted(204, b"")) as (client, server, _):
            client.set_retention_rules(RetentionRules(21, {"main": 28}))
            client.set_retention_rules(RetentionRules(0, {}))
        assert [method for method, _, _ in server.requests] == ["PUT", "PUT"]
        assert [json.loads(body) for _, _, body in server.requests] == [
            {"default_retention_days": 21, "branches": [{"branch_id": "main", "retention_days": 28}]},
            {"default_retention_days": 0, "branches": []},
        ]

    def test_states_of_a_preparation(self) -> None:
        result = {"run_id": "r", "gc_commits_location": "s3://b/c.csv", "gc_addresses_location": "s3://b/a/"}
        with talking(
            said({"completed": False, "task_id": "t"}),
            said({"completed": True, "error": {"message": "get gc rules: not found"}}),
            said({"completed": True, "error": {}}),
            said({"completed": True, "result": result, "error": None}),
        ) as (client, server, _):
            assert [client.prepare_commits_task("t 1") for _ in range(4)] == [
                PrepareCommitsTask(False),
                PrepareCommitsTask(True, "get gc rules: not found"),
                PrepareCommitsTask(True, "no reason given"),
                PrepareCommitsTask(True, None, PreparedCommits("r", "s3://b/c.csv")),
            ]
            assert all("id=t%201" in target for _, target, _ in server.requests)

    def test_old_servers_know_only_the_blocking_call(self) -> None:
        for answer in (refused(404, "invalid API endpoint"), refused(500, "invalid API endpoint")):
            with talking(answer) as (client, server, _):
                with pytest.raises(NotFound):
                    client.start_prepare_commits()
                assert len(server.requests) == 1


def test_the_client_is_the_port() -> None:
    port: type[LakeFSApi] = LakeFSClient
    assert port is LakeFSClient
