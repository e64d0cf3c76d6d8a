"""If-None-Match and If-Match: conditional writes and reads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from lakefs_sdk.exceptions import ApiException

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.extensions.playground.embedded.clients import models


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
