import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from lakefs_gc_assets.errors import LakeFSError, ServerUnavailable
from lakefs_gc_assets.lakefs.api.models import RefsDump
from lakefs_gc_assets.lakefs.api.parsing import Answer, Call, refusal
from lakefs_gc_assets_tests.lakefs.api.scripted_server import (
    GOOD,
    KEY_ID,
    SECRET,
    Scripted,
    ask,
    refused,
    said,
    talking,
)

OPTIONAL = {
    ("repository", "read_only"),
    ("repository", "storage_id"),
    ("prepare_uncommitted", "continuation_token"),
    ("stat", "size_bytes"),
    ("list_objects", "results.0.size_bytes"),
    ("refs_dump", "refs"),
    ("refs_dump", "refs.commits_meta_range_id"),
    ("refs_dump", "refs.branches_meta_range_id"),
    ("refs_dump", "refs.tags_meta_range_id"),
    ("retention_rules", "branches"),
}
"""Fields that servers leave out or set to null."""


NULLABLE = {("commit", "parents")}


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
            ("retention_rules", "branches.1.branch_id", "main", "'main', which has a rule already"),
            ("retention_rules", "branches.0.retention_days", 1.5, "a fraction, not a number"),
            ("start_prepare_commits", "id", "", "is empty"),
            ("prepare_commits_task", "result.gc_commits_location", "", "is empty"),
            ("prepare_commits_task", "result", None, "result is null"),
            ("prepare_commits", "run_id", "", "is empty"),
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


@pytest.mark.parametrize(
    ("method", "place", "value", "problem"),
    [
        ("stat", "physical_address", "s3://bucket/\ud800", "no Unicode text"),
        ("commit", "parents.0", "\udfff", "no Unicode text"),
        ("commit", "creation_date", 1 << 63, "more than 64 bits"),
        ("commit", "creation_date", -(1 << 63) - 1, "more than 64 bits"),
        ("grace_period", "grace_period", 10**15, "cannot be meant"),
    ],
)
def test_values_that_nothing_can_hold_are_refused(method: str, place: str, value: Any, problem: str) -> None:
    def put(holder: Any, name: str) -> None:
        holder[int(name) if isinstance(holder, list) else name] = value

    with talking(said(changed(GOOD[method], place, put))) as (client, _, _), pytest.raises(LakeFSError, match=problem):
        ask(client, method)


def test_a_document_of_many_brackets_is_refused() -> None:
    with talking(Scripted(body=b"[" * 100_000)) as (client, _, _), pytest.raises(LakeFSError, match="not JSON"):
        ask(client, "repository")


# Errors of the server.


CALL = Call("GET", "/repositories/repo", "fs:ReadRepository")


def error_of(words: str) -> str:
    return str(refusal(CALL, Answer(400, {}, json.dumps({"message": words})), "http://server", (SECRET, KEY_ID)))


@pytest.mark.parametrize("spelling", [SECRET, quote(SECRET), quote(SECRET, safe=""), quote(SECRET, safe="").lower()])
def test_secrets_are_left_out_however_they_are_escaped(spelling: str) -> None:
    assert f"cannot sign ***: {'x' * 5}" in error_of(f"cannot sign {spelling}: {'x' * 5}")


@pytest.mark.parametrize("before", range(270, 301))
def test_no_part_of_a_secret_is_left_where_a_long_message_is_cut(before: int) -> None:
    assert SECRET[:4] not in error_of("x" * before + SECRET)


def test_the_header_that_holds_both_keys_is_left_out() -> None:
    header = "Basic " + base64.b64encode(f"{KEY_ID}:{SECRET}".encode()).decode()
    with talking(refused(400, f"cannot read {header} at all")) as (client, _, _), pytest.raises(Exception) as caught:
        client.repository()
    assert "cannot read Basic *** at all" in str(caught.value)


def test_a_body_of_many_brackets_is_no_message() -> None:
    assert Answer(500, {}, "[" * 100_000).message is None
