from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.extensions.playground.embedded.http import Request, Response, part_of
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.clients import models

_CONTENT = bytes(range(10))


def _answers(wanted: str, content: bytes = _CONTENT) -> tuple[Response, Response]:
    get, head = (Request(method, "/", {}, {"range": wanted}, b"") for method in ("GET", "HEAD"))
    size = {"Content-Length": str(len(content))}
    return part_of(get, Response(200, content)), part_of(head, Response(200, headers=size))


@given(st.integers(0, 12), st.integers(0, 12), st.binary(max_size=10))
def test_first_and_last_are_both_within(first: int, last: int, content: bytes) -> None:
    body, head = _answers(f"bytes={first}-{last}", content)
    assert head.status == body.status
    if last < first:
        assert (body.status, body.body) == (200, content)
    elif first >= len(content):
        assert (body.status, body.headers["Content-Range"]) == (416, f"bytes */{len(content)}")
    else:
        assert (body.status, body.body) == (206, content[first : last + 1])
        assert head.headers["Content-Length"] == str(len(body.body))
        assert head.headers["Content-Range"] == body.headers["Content-Range"]


@pytest.mark.parametrize(
    ("wanted", "status", "expected"),
    [
        ("bytes=7-", 206, _CONTENT[7:]),
        ("bytes=-3", 206, _CONTENT[-3:]),
        ("bytes=-30", 206, _CONTENT),
        ("bytes=-0", 416, b""),
        ("", 200, _CONTENT),
        ("bytes=-", 200, _CONTENT),
        ("bytes=x-3", 200, _CONTENT),
        ("bytes=0-1,3-4", 200, _CONTENT),
        ("lines=0-1", 200, _CONTENT),
    ],
)
def test_open_ends_and_what_is_no_range(wanted: str, status: int, expected: bytes) -> None:
    body, head = _answers(wanted)
    assert (body.status, body.body, head.status) == (status, expected, status)


def test_lakefs_sdk_reads_parts_by_link_and_asks_for_their_size(server: EmbeddedServer) -> None:
    objects = clients.sdk(server).objects_api
    clients.upload(server, "a", b"content")
    for presign in (False, True):
        assert objects.get_object("repo", "main", "a", range="bytes=1-2", presign=presign) == b"on"
    head = objects.head_object_with_http_info("repo", "main", "a", range="bytes=1-2")
    assert (head.status_code, head.headers["Content-Length"]) == (206, "2")
    with pytest.raises(ApiException) as error:
        objects.get_object("repo", "main", "a", range="bytes=70-")
    assert error.value.status == 416


def _status(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    try:
        call(*arguments, **named)
    except ApiException as error:
        return int(error.status)
    return 200


def test_the_server_itself_refuses_to_write_on_a_condition(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        clients.repository(server)
        objects = clients.sdk(server).objects_api
        for condition in ({"if_none_match": "*"}, {"if_match": "etag"}):
            assert _status(objects.upload_object, "repo", "main", "a", content=b"two", **condition) == 501
        staging = clients.sdk(server).staging_api
        issued = staging.get_physical_address("repo", "main", "a")
        body = models.StagingMetadata(staging=issued, checksum="c", size_bytes=1)
        assert _status(staging.link_physical_address, "repo", "main", "a", body, if_none_match="*") == 501
        assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a")[0] == 404


def test_answers_carry_the_date_of_the_clock(server: EmbeddedServer) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    server.clock.set(moment)
    with urlopen(f"{server.url}/_health") as answer:
        assert abs((parsedate_to_datetime(answer.headers["Date"]) - moment).total_seconds()) < 5
