import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.extensions.playground.embedded.http import Request, Response, part_of
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, faults
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


# Conditions of requests.


def _status(call: Callable[..., Any], *arguments: Any, **named: Any) -> int:
    try:
        call(*arguments, **named)
    except ApiException as error:
        return int(error.status)
    except ClientError as error:
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return 200


def _etag(content: bytes) -> str:
    return md5(content).hexdigest()


def _read(server: EmbeddedServer, path: str) -> bytes:
    return bytes(clients.sdk(server).objects_api.get_object("repo", "main", path))


def test_an_upload_overwrites_what_it_names_only(server: EmbeddedServer) -> None:
    objects = clients.sdk(server).objects_api
    for committed in (False, True):
        path = f"a-{committed}"
        clients.upload(server, path, b"one")
        if committed:
            clients.commit(server, "one")
        for condition in ({"if_none_match": "*"}, {"if_match": _etag(b"other")}):
            assert _status(objects.upload_object, "repo", "main", path, content=b"two", **condition) == 412
        assert _read(server, path) == b"one"
        objects.upload_object("repo", "main", path, content=b"two", if_match=f'"{_etag(b"one")}"')
        assert _read(server, path) == b"two"
    assert _status(objects.upload_object, "repo", "main", "new", content=b"x", if_match=_etag(b"x")) == 412
    assert _status(objects.upload_object, "repo", "main", "new", content=b"x", if_none_match="e") == 400
    objects.upload_object("repo", "main", "new", content=b"x", if_none_match="*")
    clients.call(server, "DELETE", "/repositories/repo/branches/main/objects", path="a-True")
    objects.upload_object("repo", "main", "a-True", content=b"again", if_none_match="*")


def test_the_server_itself_refuses_to_write_on_a_condition(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        clients.repository(server)
        objects = clients.sdk(server).objects_api
        for condition in ({"if_none_match": "*"}, {"if_match": _etag(b"one")}):
            assert _status(objects.upload_object, "repo", "main", "a", content=b"two", **condition) == 501
        staging = clients.sdk(server).staging_api
        issued = staging.get_physical_address("repo", "main", "a")
        body = models.StagingMetadata(staging=issued, checksum="c", size_bytes=1)
        assert _status(staging.link_physical_address, "repo", "main", "a", body, if_none_match="*") == 501
        assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a")[0] == 404


def test_of_several_uploads_of_what_is_not_there_one_succeeds(server: EmbeddedServer) -> None:
    objects = clients.sdk(server).objects_api

    def upload(number: int) -> int:
        content = b"%d" % number
        return _status(objects.upload_object, "repo", "main", "one", content=content, if_none_match="*")

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(upload, range(6))) == [200, *[412] * 5]


def test_an_address_whose_link_was_refused_may_still_be_linked(seed_server: EmbeddedServer) -> None:
    staging = clients.sdk(seed_server).staging_api
    clients.upload(seed_server, "a", b"one")
    issued = staging.get_physical_address("repo", "main", "a")
    body = models.StagingMetadata(staging=issued, checksum="c", size_bytes=1)
    assert _status(staging.link_physical_address, "repo", "main", "a", body, if_none_match="*") == 412
    assert _read(seed_server, "a") == b"one"
    staging.link_physical_address("repo", "main", "a", body, if_match=_etag(b"one"))
    stat = clients.sdk(seed_server).objects_api.stat_object("repo", "main", "a")
    assert stat.physical_address == issued.physical_address


def test_the_gateway_writes_on_condition(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    s3.put_object(Bucket="repo", Key="main/a", Body=b"one")
    for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"other"'}):
        assert _status(s3.put_object, Bucket="repo", Key="main/a", Body=b"two", **condition) == 412
    upload = s3.create_multipart_upload(Bucket="repo", Key="main/a")["UploadId"]
    etag = s3.upload_part(Bucket="repo", Key="main/a", UploadId=upload, PartNumber=1, Body=b"two")["ETag"]
    parts: Any = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    named: Any = {"Bucket": "repo", "Key": "main/a", "UploadId": upload, "MultipartUpload": parts}
    with pytest.raises(ClientError) as error:
        s3.complete_multipart_upload(**named, IfNoneMatch="*")
    assert error.value.response["Error"]["Code"] == "PreconditionFailed"
    assert _read(server, "a") == b"one"
    s3.complete_multipart_upload(**named, IfMatch=f'"{_etag(b"one")}"')
    assert _read(server, "a") == b"two"


def test_content_that_a_reader_has_is_not_sent_again(server: EmbeddedServer) -> None:
    clients.upload(server, "a", b"one")
    objects, s3 = clients.sdk(server).objects_api, clients.s3(server)
    for etag, status in ((_etag(b"one"), 304), (_etag(b"two"), 200)):
        quoted = f'"{etag}"'
        assert _status(objects.get_object, "repo", "main", "a", if_none_match=quoted) == status
        assert _status(s3.get_object, Bucket="repo", Key="main/a", IfNoneMatch=quoted) == status
        assert _status(s3.head_object, Bucket="repo", Key="main/a", IfNoneMatch=quoted) == status
        expected = 200 if status == 304 else 412
        assert _status(s3.get_object, Bucket="repo", Key="main/a", IfMatch=quoted) == expected


# Faults.


_REPOSITORY = "/repositories/repo"


def test_throttled_and_failing_answers_come_as_often_as_asked(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("throttled", "/repositories/repo$", times=2))
    faults.switch_on(server, faults.Fault("failing", "/branches", method="GET", status=503, times=1, after=1))
    assert [clients.call(server, "GET", _REPOSITORY)[0] for _ in range(3)] == [429, 429, 200]
    assert [clients.call(server, "GET", _REPOSITORY + "/branches")[0] for _ in range(3)] == [200, 503, 200]


def test_a_failing_call_may_have_been_carried_out(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("failing", "/branches", method="POST", acts=True))
    body = {"name": "side", "source": "main"}
    assert clients.call(server, "POST", _REPOSITORY + "/branches", body)[0] == 500
    assert clients.call(server, "GET", _REPOSITORY + "/branches/side")[0] == 200


def test_a_slow_answer_takes_its_time(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("slow", "/repo$", seconds=0.3))
    start = time.monotonic()
    assert clients.call(server, "GET", _REPOSITORY)[0] == 200
    assert time.monotonic() - start >= 0.3


def test_a_truncated_answer_ends_halfway(server: EmbeddedServer) -> None:
    faults.switch_on(server, faults.Fault("truncated", "/repo$"))
    with pytest.raises(IncompleteRead):
        clients.call(server, "GET", _REPOSITORY)
    assert clients.call(server, "GET", _REPOSITORY)[0] == 200


def test_faults_are_switched_on_and_off_over_http(server: EmbeddedServer) -> None:
    fault = {"kind": "failing", "path": "/repo$", "times": None, "status": 502}
    assert clients.call(server, "POST", "/_embedded/faults", fault)[0] == 204
    assert [clients.call(server, "GET", _REPOSITORY)[0] for _ in range(3)] == [502] * 3
    assert clients.call(server, "DELETE", "/_embedded/faults")[0] == 204
    assert clients.call(server, "GET", _REPOSITORY)[0] == 200
    assert clients.call(server, "POST", "/_embedded/faults", {"kind": "strange"})[0] == 400
    assert clients.call(server, "POST", "/_embedded/faults", fault, authorization="Basic bm86bm8=")[0] == 401


def test_answers_carry_the_date_of_the_clock(server: EmbeddedServer) -> None:
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime
    from urllib.request import urlopen

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    server.clock.set(moment)
    with urlopen(f"{server.url}/_health") as answer:
        assert abs((parsedate_to_datetime(answer.headers["Date"]) - moment).total_seconds()) < 5
