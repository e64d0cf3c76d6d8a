import json
import logging
import socket
import subprocess
import sys
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from lakefs_gc_assets.configuration import LakeFSSettings
from lakefs_gc_assets.errors import (
    AccessDenied,
    ConfigurationError,
    LakeFSError,
    NotFound,
    NotSupported,
    ReadOnlyRepository,
    ServerUnavailable,
)
from lakefs_gc_assets.lakefs.api import LakeFSClient
from lakefs_gc_assets.lakefs.facts import Branch, LakeFSApi, ObjectStats, RefsDump
from lakefs_gc_assets_tests.lakefs.scripted_server import Scripted, ScriptedServer, refused, said, scripted
from lakefs_gc_assets_tests.recordings import FIXTURES, needs_recordings
from lakefs_gc_assets_tests.replay.server import ReplayServer

RECORDED = ("small", "merge-dangling", "random-dag/11", "random-dag/14", "chain/1", "chain/4", "empty", "wide")
KEY_ID = "AKIA-never-to-be-shown"
SECRET = "secret/never+to=be-shown"
NOW = datetime(2026, 11, 21, 12, 0, 0, 250_000, UTC)


class FixedClock:
    def now(self) -> datetime:
        return NOW


class Sleeps:
    """Stands in for time.sleep: notes the pauses and makes none."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def settings(endpoint: str, **changes: Any) -> LakeFSSettings:
    values: dict[str, Any] = {"connect_timeout_seconds": 2, "read_timeout_seconds": 5, "retries": 3}
    return LakeFSSettings(endpoint=endpoint, access_key_id=KEY_ID, secret_access_key=SECRET, **(values | changes))


def client_of(server: ReplayServer) -> LakeFSClient:
    return LakeFSClient(server.configuration().lakefs, server.repository, FixedClock())


@contextmanager
def talking(*answers: Scripted, **changes: Any) -> Iterator[tuple[LakeFSClient, ScriptedServer, Sleeps]]:
    sleeps = Sleeps()
    with scripted(*answers, now=FixedClock().now) as server:
        yield LakeFSClient(settings(server.url, **changes), "repo", FixedClock(), sleeps), server, sleeps


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / name / "api.jsonl").read_text().splitlines()]


def last(rows: list[dict[str, Any]], method: str, end: str) -> Any:
    """JSON of the last 2xx answer whose path ends so."""
    found = [row for row in rows if row["method"] == method and row["path"].endswith(end) and row["status"] < 300]
    return found[-1]["response_json"]


@pytest.fixture(scope="module", params=RECORDED)
def replayed(request: pytest.FixtureRequest) -> Iterator[tuple[ReplayServer, LakeFSClient, list[dict[str, Any]]]]:
    with ReplayServer(FIXTURES / request.param, now=NOW) as server:
        yield server, client_of(server), recorded(request.param)


@needs_recordings
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
        assert client.storage_configuration(repository.storage_id).blockstore_type == "s3"
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


@needs_recordings
def test_paths_of_every_kind_are_asked_for_as_they_are() -> None:
    uploads = {
        row["query"]["path"]: row["response_json"]
        for row in recorded("small")
        if row["note"] == "committed_live" and row["path"].endswith("/branches/main/objects")
    }
    assert {"we ird/sp ace+plus%25.txt", "unicode/שלום/日本.parquet", "a//double", "hash#q?and&"} <= uploads.keys()
    with ReplayServer(FIXTURES / "small") as server:
        client = client_of(server)
        for path, upload in uploads.items():
            assert client.stat("v1", path) == ObjectStats(path, upload["physical_address"], upload["size_bytes"])
        assert client.stat("v1", "no such path") is None


@needs_recordings
def test_several_threads_ask_at_once() -> None:
    with ReplayServer(FIXTURES / "small", now=NOW) as server, ThreadPoolExecutor(8) as pool:
        client = client_of(server)
        answers = {future.result() for future in [pool.submit(client.branches) for _ in range(64)]}
    assert len(answers) == 1


@needs_recordings
def test_the_endpoint_may_name_the_api_path_or_not() -> None:
    with ReplayServer(FIXTURES / "empty") as server:
        given = server.configuration().lakefs
        for end in ("", "/", "/api/v1", "/api/v1/"):
            client = LakeFSClient(
                given.model_copy(update={"endpoint": server.url + end}), server.repository, FixedClock()
            )
            assert client.repository().id == server.repository


@needs_recordings
def test_wrong_keys_and_unknown_repositories_of_a_recorded_server() -> None:
    with ReplayServer(FIXTURES / "small") as server:
        with pytest.raises(AccessDenied, match=r"access_key_id and lakefs\.secret_access_key"):
            LakeFSClient(settings(server.url), server.repository, FixedClock()).repository()
        with pytest.raises(NotFound, match=r"repository not found.* the setting repository"):
            LakeFSClient(server.configuration().lakefs, "another", FixedClock()).branches()
        with pytest.raises(NotFound):
            client_of(server).refs_dump("no-such-task")
        with pytest.raises(LakeFSError, match="400 Bad Request: invalid continuation token"):
            client_of(server).prepare_uncommitted("nonsense")


class TestRefusals:
    @pytest.mark.parametrize(
        ("answer", "kind", "words"),
        [
            (refused(401, "error authenticating request"), AccessDenied, "lakefs.access_key_id and"),
            (refused(403, "read-only repository"), ReadOnlyRepository, "read-only repository"),
            (refused(403, "insufficient permissions"), AccessDenied, "retention:PrepareGarbageCollectionUncommitted"),
            (refused(404, "repository not found"), NotFound, "the setting repository"),
            (Scripted(404, b"<html>nginx</html>"), NotFound, "an answer that is not lakeFS's"),
            (refused(500, "invalid API endpoint"), NotFound, "offers this call"),
            (refused(501, "Not Implemented"), NotSupported, "does not offer"),
            (Scripted(301, b"", {"Location": "https://elsewhere/"}), LakeFSError, "redirects"),
            (refused(410, "gone"), LakeFSError, "410 Gone"),
            (Scripted(418, b""), LakeFSError, "418"),
            (Scripted(400, b"\xff\xfe"), LakeFSError, "400 Bad Request"),
        ],
    )
    def test_are_told_apart_at_once(self, answer: Scripted, kind: type[LakeFSError], words: str) -> None:
        with talking(answer) as (client, server, sleeps):
            with pytest.raises(kind) as raised:
                client.prepare_uncommitted(None)
            assert type(raised.value) is kind
            assert words in str(raised.value)
            assert str(raised.value).startswith("POST /repositories/repo/gc/prepare_uncommited: ")
            assert "\n" not in str(raised.value)
            assert (len(server.requests), sleeps.seconds) == (1, [])

    @pytest.mark.parametrize("status", [401, 403, 404, 501])
    def test_of_a_dump_allow_the_fallback(self, status: int) -> None:
        with (
            talking(refused(status, "no")) as (client, _, _),
            pytest.raises((AccessDenied, NotFound, NotSupported)),
        ):
            client.start_refs_dump()

    @pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
    def test_that_may_pass_are_repeated_then_end_as_unavailable(self, status: int) -> None:
        with talking(refused(status, "later")) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable, match=rf"{status}.*later.*attempts: 4"):
                client.start_refs_dump()
            assert len(server.requests) == 4
            assert len(sleeps.seconds) == 3
            assert 0.5 <= sleeps.seconds[0] <= 1 <= sleeps.seconds[1] <= 1.5 < 2 <= sleeps.seconds[2] <= 2.5

    def test_no_retries_where_none_are_wanted(self) -> None:
        with talking(refused(503, "later"), retries=0) as (client, server, _):
            with pytest.raises(ServerUnavailable):
                client.start_refs_dump()
            assert len(server.requests) == 1

    def test_a_server_that_recovers_is_believed(self) -> None:
        with talking(refused(500, "a"), Scripted(breaks=True), refused(503, "c"), said({"id": "task"})) as (
            c,
            server,
            _,
        ):
            assert c.start_refs_dump() == "task"
            assert [method for method, _, _ in server.requests] == ["POST"] * 4

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [("7", 7), ("0", 0), ("Sat, 21 Nov 2026 12:00:09 GMT", 9), ("Sat, 21 Nov 2026 11:00:00 GMT", 0)],
    )
    def test_retry_after_is_honoured(self, value: str, seconds: float) -> None:
        with talking(refused(429, "slow down", Retry_After=value), said({"id": "task"})) as (client, _, sleeps):
            assert client.start_refs_dump() == "task"
            assert sleeps.seconds == [seconds]

    def test_retry_after_that_is_no_time_is_passed_over(self) -> None:
        with talking(refused(503, "down", Retry_After="soon"), said({"id": "task"})) as (client, _, sleeps):
            assert client.start_refs_dump() == "task"
            assert 0.5 <= sleeps.seconds[0] <= 1

    def test_a_day_of_retry_after_is_not_waited_for(self) -> None:
        with talking(refused(429, "quota", Retry_After="86400")) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable, match="asks to wait for 86400 s"):
                client.start_refs_dump()
            assert (len(server.requests), sleeps.seconds) == (1, [])


class TestConnections:
    def test_refused(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
            client = LakeFSClient(settings(endpoint, retries=1), "repo", FixedClock(), Sleeps())
            with pytest.raises(
                ServerUnavailable, match=rf"{endpoint}/api/v1 cannot be reached.*refused.*lakefs\.endpoint"
            ):
                client.repository()

    def test_unknown_host(self) -> None:
        client = LakeFSClient(settings("http://lakefs.invalid", retries=0), "repo", FixedClock(), Sleeps())
        with pytest.raises(ServerUnavailable, match=r"http://lakefs\.invalid/api/v1 cannot be reached"):
            client.repository()

    def test_silence_is_a_timeout_never_a_reason_for_the_fallback(self) -> None:
        with talking(Scripted(hangs=5), read_timeout_seconds=0.1, retries=1) as (client, server, sleeps):
            with pytest.raises(ServerUnavailable, match=r"did not answer in time.*attempts: 2.*read_timeout_seconds"):
                client.start_refs_dump()
            assert (len(server.requests), len(sleeps.seconds)) == (2, 1)

    @pytest.mark.parametrize("answer", [Scripted(breaks=True), Scripted(body=b'{"id": "ta', truncated=True)])
    def test_broken(self, answer: Scripted) -> None:
        with talking(answer, retries=1) as (client, server, _):
            with pytest.raises(ServerUnavailable, match="broke the connection"):
                client.start_refs_dump()
            assert len(server.requests) == 2

    def test_a_server_without_tls(self) -> None:
        with talking(said({})) as (_, server, _):
            secure = settings(server.url.replace("http:", "https:"), retries=0)
            client = LakeFSClient(secure, "repo", FixedClock(), Sleeps())
            with pytest.raises(ServerUnavailable, match=r"https://127.0.0.1"):
                client.repository()

    @pytest.mark.parametrize(
        "endpoint",
        ["", "lakefs.example.com", "ftp://lakefs", "http://", "http://host/?x=1", f"http://{KEY_ID}:{SECRET}@host"],
    )
    def test_endpoints_that_cannot_be_used(self, endpoint: str) -> None:
        with pytest.raises(ConfigurationError, match=r"lakefs\.endpoint") as raised:
            LakeFSClient(settings(endpoint), "repo", FixedClock())
        assert KEY_ID not in str(raised.value)
        assert SECRET not in str(raised.value)

    def test_a_repository_must_be_named(self) -> None:
        with pytest.raises(ConfigurationError, match="repository is not set"):
            LakeFSClient(settings("http://127.0.0.1:1"), "", FixedClock())


GOOD: dict[str, dict[str, Any]] = {
    "repository": {
        "id": "repo",
        "storage_namespace": "s3://bucket/repo",
        "default_branch": "main",
        "creation_date": 1,
        "read_only": False,
        "storage_id": "",
    },
    "storage_configuration": {"storage_config": {"blockstore_type": "s3"}, "storage_config_list": []},
    "grace_period": {"grace_period": 60},
    "prepare_uncommitted": {"run_id": "r", "gc_uncommitted_location": "", "continuation_token": "t"},
    "branches": {
        "results": [{"id": "main", "commit_id": "c"}],
        "pagination": {"has_more": False, "next_offset": "", "results": 1},
    },
    "tags": {
        "results": [{"id": "v1", "commit_id": "c"}],
        "pagination": {"has_more": False, "next_offset": "", "results": 1},
    },
    "first_change": {
        "results": [{"path": "p", "type": "added"}],
        "pagination": {"has_more": True, "next_offset": "p", "results": 1},
    },
    "stat": {"path": "p", "physical_address": "s3://bucket/repo/data/x", "size_bytes": 3},
    "start_refs_dump": {"id": "task"},
    "refs_dump": {
        "done": True,
        "refs": {"commits_meta_range_id": "a", "branches_meta_range_id": "b", "tags_meta_range_id": "c"},
    },
    "commit": {
        "id": "c",
        "meta_range_id": "",
        "parents": ["p"],
        "creation_date": 1,
        "version": 1,
        "generation": 2,
    },
}
ARGUMENTS: dict[str, tuple[object, ...]] = {
    "storage_configuration": ("",),
    "prepare_uncommitted": (None,),
    "first_change": ("main",),
    "stat": ("main", "p"),
    "refs_dump": ("task",),
    "commit": ("c",),
}
OPTIONAL = {
    ("repository", "read_only"),
    ("repository", "storage_id"),
    ("storage_configuration", "storage_config_list"),
    ("prepare_uncommitted", "continuation_token"),
    ("stat", "size_bytes"),
    ("refs_dump", "refs"),
    ("refs_dump", "refs.commits_meta_range_id"),
    ("refs_dump", "refs.branches_meta_range_id"),
    ("refs_dump", "refs.tags_meta_range_id"),
}
"""Fields that servers leave out or set to null."""
NULLABLE = {("commit", "parents")}


def ask(client: LakeFSClient, method: str) -> Any:
    return cast(Callable[..., Any], getattr(client, method))(*ARGUMENTS.get(method, ()))


def places(content: Any, place: str = "") -> Iterator[str]:
    """Every field of an answer, as a dotted path."""
    if isinstance(content, dict):
        for name, value in content.items():
            yield f"{place}{name}"
            yield from places(value, f"{place}{name}.")
    elif isinstance(content, list):
        for index, value in enumerate(content):
            yield from places(value, f"{place}{index}.")


def changed(content: Any, place: str, change: Callable[[dict[str, Any], str], None]) -> Any:
    """A copy of an answer with one field changed."""
    copy = json.loads(json.dumps(content))
    holder, names = copy, place.split(".")
    for name in names[:-1]:
        holder = holder[int(name) if isinstance(holder, list) else name]
    change(holder, names[-1])
    return copy


def putting(value: object) -> Callable[[Any, str], None]:
    """Sets a field to this value."""

    def put(holder: Any, name: str) -> None:
        holder[name] = value

    return put


FIELDS = [(method, place) for method, content in GOOD.items() for place in places(content) if not place[-1].isdigit()]


class TestAnswers:
    @pytest.mark.parametrize("method", GOOD)
    def test_good_ones_are_read(self, method: str) -> None:
        with talking(said(GOOD[method])) as (client, _, _):
            assert ask(client, method) is not None

    @pytest.mark.parametrize(("method", "place"), FIELDS)
    def test_a_missing_field_ends_the_run(self, method: str, place: str) -> None:
        with talking(said(changed(GOOD[method], place, lambda holder, name: holder.pop(name)))) as (client, _, _):
            if (method, place) in OPTIONAL:
                ask(client, method)
            else:
                with pytest.raises(LakeFSError, match=f"{place.rpartition('.')[2]} is missing"):
                    ask(client, method)

    @pytest.mark.parametrize(("method", "place"), FIELDS)
    def test_another_type_ends_the_run(self, method: str, place: str) -> None:
        original: Any = GOOD[method]
        for name in place.split("."):
            original = original[int(name) if isinstance(original, list) else name]
        values: tuple[object, ...] = (None, 1.5, "text", 7, True, {}, [])
        wrong = [value for value in values if type(value) is not type(original)]
        answers = [said(changed(GOOD[method], place, putting(value))) for value in wrong]
        with talking(*answers) as (client, server, _):
            for value in wrong:
                if value is None and (method, place) in OPTIONAL | NULLABLE:
                    ask(client, method)
                else:
                    with pytest.raises(LakeFSError):
                        ask(client, method)
            assert len(server.requests) == len(wrong)

    @pytest.mark.parametrize("method", GOOD)
    def test_what_is_no_json_object_ends_the_run(self, method: str) -> None:
        bodies = (b"", b"null", b"[]", b"{", b'{"id": "x', b"<html></html>", b"\xff\xff")
        with talking(*(Scripted(200, body) for body in bodies)) as (client, server, _):
            for _ in bodies:
                with pytest.raises(LakeFSError) as raised:
                    ask(client, method)
                assert not isinstance(raised.value, ServerUnavailable)
            assert len(server.requests) == len(bodies)

    @pytest.mark.parametrize(
        ("method", "place", "value", "words"),
        [
            ("repository", "id", "another", "although 'repo' was asked for"),
            ("repository", "storage_namespace", "", "storage_namespace is empty"),
            ("grace_period", "grace_period", -1, "negative"),
            ("first_change", "results.0.type", "renamed", "no known kind of change"),
            ("branches", "pagination.results", 2, "is 2, but 1 came"),
            ("branches", "results.0.commit_id", "", "is empty"),
            ("stat", "path", "q", "was not asked for"),
            ("stat", "physical_address", "", "is empty"),
            ("start_refs_dump", "id", "", "is empty"),
            ("commit", "id", "d", "was not asked for"),
            ("commit", "parents", [1], "other than strings"),
            ("prepare_uncommitted", "run_id", "", "is empty"),
        ],
    )
    def test_nonsense_ends_the_run(self, method: str, place: str, value: object, words: str) -> None:
        with (
            talking(said(changed(GOOD[method], place, putting(value)))) as (client, _, _),
            pytest.raises(LakeFSError, match=words),
        ):
            ask(client, method)

    def test_null_lists_of_parents_are_empty(self) -> None:
        with talking(said(GOOD["commit"] | {"parents": None})) as (client, _, _):
            assert client.commit("c").parents == ()

    @pytest.mark.parametrize("token", [None, "", "  "])
    def test_a_blank_token_ends_the_preparation(self, token: str | None) -> None:
        with talking(said(GOOD["prepare_uncommitted"] | {"continuation_token": token})) as (client, _, _):
            assert client.prepare_uncommitted("before").continuation_token is None

    def test_tokens_are_sent_as_they_came(self) -> None:
        token = "eyJicmFuY2giOiJtYWluIn0="
        with talking(said(GOOD["prepare_uncommitted"])) as (client, server, _):
            client.prepare_uncommitted(None)
            client.prepare_uncommitted(token)
            assert [json.loads(body) for _, _, body in server.requests] == [{}, {"continuation_token": token}]

    def test_a_failed_dump_may_lack_tables(self) -> None:
        answer = {"done": True, "error": "context canceled", "refs": {"commits_meta_range_id": "a"}}
        with talking(said(answer)) as (client, _, _):
            assert client.refs_dump("task") == RefsDump(True, "context canceled", "a")


TWO_STORES = {
    "storage_config": {"blockstore_type": "wrong"},
    "storage_config_list": [
        {"blockstore_id": "first", "blockstore_type": "s3"},
        {"blockstore_id": "second", "blockstore_type": "gs"},
    ],
}


class TestStores:
    def test_the_one_store_is_taken_whatever_its_id(self) -> None:
        one = {"storage_config": {"blockstore_type": "s3"}, "storage_config_list": [{"blockstore_id": "x"}]}
        with talking(said(one)) as (client, _, _):
            assert client.storage_configuration("y").blockstore_type == "s3"

    def test_of_several_stores_the_repository_names_one(self) -> None:
        with talking(said(TWO_STORES)) as (client, _, _):
            assert client.storage_configuration("second").blockstore_type == "gs"

    @pytest.mark.parametrize("storage_id", ["", "third"])
    def test_of_several_stores_none_is_guessed(self, storage_id: str) -> None:
        with talking(said(TWO_STORES)) as (client, _, _), pytest.raises(LakeFSError, match="2 stores, none of them"):
            client.storage_configuration(storage_id)


class TestAbsence:
    def test_of_the_grace_period_on_old_servers_is_zero(self) -> None:
        for answer in (refused(404, "invalid API endpoint"), refused(500, "invalid API endpoint")):
            with talking(answer) as (client, _, _):
                assert client.grace_period() == timedelta()

    def test_of_the_grace_period_is_not_believed_of_a_proxy(self) -> None:
        with talking(Scripted(404, b"404 page not found")) as (client, _, _), pytest.raises(NotFound):
            client.grace_period()

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

    def test_an_object_that_is_gone_keeps_its_address(self) -> None:
        with talking(said(GOOD["stat"], 410)) as (client, _, _):
            assert client.stat("main", "p") == ObjectStats("p", "s3://bucket/repo/data/x", 3)
        with talking(refused(410, "gone")) as (client, _, _), pytest.raises(LakeFSError, match="path is missing"):
            client.stat("main", "p")


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


class TestClocks:
    def test_every_date_is_noted_those_of_errors_too(self) -> None:
        answers = [
            refused(503, "a", Date="Sat, 21 Nov 2026 11:59:00 GMT"),
            refused(401, "b", Date="Sat, 21 Nov 2026 12:10:00 GMT"),
        ]
        with talking(*answers) as (client, _, _):
            with pytest.raises(AccessDenied):
                client.repository()
            assert client.server_clocks.earliest == timedelta(seconds=-60.25)
            assert client.server_clocks.latest == timedelta(seconds=599.75)

    @pytest.mark.parametrize("date", ["", "yesterday", "Sat, 21 Nov 2026 12:00:00 -0000"])
    def test_what_is_no_date_is_not_noted(self, date: str) -> None:
        with talking(said(GOOD["start_refs_dump"], Date=date)) as (client, _, _):
            client.start_refs_dump()
            assert client.server_clocks.earliest is None


class TestKeys:
    @pytest.mark.parametrize("status", [400, 401, 403, 404, 418, 429, 500, 501])
    def test_never_show_even_where_the_server_repeats_them(self, status: int, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        answer = refused(status, f"user {KEY_ID} with {SECRET} is\nrefused")
        with talking(answer, retries=1) as (client, _, _):
            with pytest.raises(LakeFSError) as raised:
                client.prepare_uncommitted(None)
            shown = "".join(traceback.format_exception(raised.value)) + repr(raised.value) + repr(client) + caplog.text
            assert "user *** with *** is refused" in str(raised.value)
            assert KEY_ID not in shown
            assert SECRET not in shown

    def test_are_sent_as_basic_authentication(self) -> None:
        with talking(said(GOOD["repository"])) as (client, server, _):
            client.repository()
            assert server.authorizations == ["Basic " + b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()]


def test_the_client_is_the_port() -> None:
    port: type[LakeFSApi] = LakeFSClient
    assert port is LakeFSClient


def test_the_sdk_is_imported_by_those_who_talk_only() -> None:
    code = "import sys, lakefs_gc_assets.lakefs.api; sys.exit('lakefs_sdk' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
