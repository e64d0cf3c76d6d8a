"""The gateway with unusual keys, ranges, permissions and requests."""

from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients, routes

_ODD = (
    "q?x",
    "q?versionId=1",
    "c\x01d",
    "cr\rlf\n",
    "sp ace+%2F",
    "a&<b>",
    "é/ü",
    "😀",
    "#f",
    "//d",
    "t/",
    "..",
    "'\"",
)


def _without_retries(server: EmbeddedServer, access_key_id: str, secret_access_key: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=clients.s3_url(server),
        aws_access_key_id=access_key_id,
        aws_secret_access_key=secret_access_key,
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 1}),
    )


def _raw(server: EmbeddedServer, method: str, target: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Status and answer of a request that boto3 would not send."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named["Authorization"] = f"AWS4-HMAC-SHA256 Credential={server.access_key_id}/x"
    connection = HTTPConnection(urlsplit(clients.s3_url(server)).netloc, timeout=10)
    connection.request(method, target, body, named)
    response = connection.getresponse()
    received = response.read()
    connection.close()
    return response.status, received


def _admin(server: EmbeddedServer) -> Any:
    return _without_retries(server, server.access_key_id, server.secret_access_key)


def _keys(s3: Any, call: str, **arguments: Any) -> list[str]:
    pages = s3.get_paginator(call).paginate(Bucket="repo", **arguments)
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


@pytest.mark.parametrize("call", ["list_objects", "list_objects_v2"])
def test_pages_over_branches_are_in_order_of_key(server: EmbeddedServer, call: str) -> None:
    s3 = _admin(server)
    for branch in ("a", "a-b", "a_b"):
        clients.call(server, "POST", "/repositories/repo/branches", {"name": branch, "source": "main"})
        for number in range(3):
            s3.put_object(Bucket="repo", Key=f"{branch}/{number}", Body=b"x")
    expected = [f"{branch}/{number}" for branch in ("a-b", "a", "a_b") for number in range(3)]
    for size in (1, 2, 1000):
        assert _keys(s3, call, PaginationConfig={"PageSize": size}) == expected
    assert _keys(s3, "list_objects_v2", StartAfter="a-b/1") == expected[2:]
    assert _keys(s3, "list_objects_v2", StartAfter="a-c") == expected[3:]


def test_odd_keys_are_written_read_copied_listed_and_deleted(server: EmbeddedServer) -> None:
    s3 = _admin(server)
    for name in _ODD:
        s3.put_object(Bucket="repo", Key=f"main/odd/{name}", Body=name.encode())
        s3.copy_object(
            Bucket="repo", Key=f"main/copied/{name}", CopySource={"Bucket": "repo", "Key": f"main/odd/{name}"}
        )
        assert s3.get_object(Bucket="repo", Key=f"main/copied/{name}")["Body"].read() == name.encode()
    expected = sorted(f"main/odd/{name}" for name in _ODD)
    for call in ("list_objects", "list_objects_v2"):
        assert _keys(s3, call, Prefix="main/odd/", PaginationConfig={"PageSize": 1}) == expected
    # XML 1.0 allows only these two control characters.
    several = [f"main/odd/{name}" for name in _ODD if "\x01" not in name]
    answer = s3.delete_objects(Bucket="repo", Delete={"Objects": [{"Key": key} for key in several]})
    assert [item["Key"] for item in answer["Deleted"]] == several
    assert _keys(s3, "list_objects_v2", Prefix="main/odd/") == ["main/odd/c\x01d"]


def test_a_list_of_no_keys_is_whole(server: EmbeddedServer) -> None:
    s3 = _admin(server)
    s3.put_object(Bucket="repo", Key="main/a", Body=b"x")
    answer = s3.list_objects_v2(Bucket="repo", MaxKeys=0)
    assert (answer["KeyCount"], answer["IsTruncated"]) == (0, False)


def test_calls_on_something_else_than_bytes_do_not_touch_the_object(server: EmbeddedServer) -> None:
    s3 = _admin(server)
    s3.put_object(Bucket="repo", Key="main/a", Body=b"content")
    for call, arguments in (
        ("put_object_tagging", {"Tagging": {"TagSet": [{"Key": "k", "Value": "v"}]}}),
        ("delete_object_tagging", {}),
        ("get_object_acl", {}),
    ):
        with pytest.raises(ClientError) as error:
            getattr(s3, call)(Bucket="repo", Key="main/a", **arguments)
        assert error.value.response["Error"]["Code"] == "NotImplemented"
    with pytest.raises(ClientError):
        s3.list_object_versions(Bucket="repo")
    assert "Status" not in s3.get_bucket_versioning(Bucket="repo")
    assert s3.get_object(Bucket="repo", Key="main/a")["Body"].read() == b"content"


@pytest.mark.parametrize(
    ("denied", "call", "arguments"),
    [
        ("fs:ReadObject", "get_object", {"Key": "main/a"}),
        ("fs:ReadObject", "copy_object", {"Key": "main/b", "CopySource": "repo/main/a"}),
        ("fs:WriteObject", "put_object", {"Key": "main/b", "Body": b"x"}),
        ("fs:WriteObject", "create_multipart_upload", {"Key": "main/b"}),
        ("fs:DeleteObject", "delete_object", {"Key": "main/a"}),
        ("fs:DeleteObject", "delete_objects", {"Delete": {"Objects": [{"Key": "main/a"}]}}),
        ("fs:ListObjects", "list_objects_v2", {}),
    ],
)
def test_what_a_user_may_not_do_is_refused(
    server: EmbeddedServer, denied: str, call: str, arguments: dict[str, Any]
) -> None:
    clients.upload(server, "a", b"content")
    user = routes.add_user(server, "limited", denied)
    limited = _without_retries(server, user.access_key_id, user.secret_access_key)
    with pytest.raises(ClientError) as error:
        getattr(limited, call)(Bucket="repo", **arguments)
    assert error.value.response["Error"]["Code"] == "AccessDenied"
    getattr(_admin(server), call)(Bucket="repo", **arguments)


_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code"),
    [
        ("POST", "/repo?delete", b"<Delete", 400, b"MalformedXML"),
        ("PUT", "/", b"", 405, b"MethodNotAllowed"),
        ("PUT", "/repo/main/a", b"5;chunk-signature=x\r\nabc", 400, b"IncompleteBody"),
        ("PUT", "/repo/main/a", b"zz\r\nabc", 400, b"IncompleteBody"),
        ("PUT", "/repo/main/a", b"", 400, b"IncompleteBody"),
        ("GET", "/repo/%ff/a", b"", 400, b"InvalidRequest"),
        ("GET", "/repo?prefix=%ff/a", b"", 400, b"InvalidRequest"),
    ],
)
def test_a_broken_request_is_refused_in_xml(
    server: EmbeddedServer, method: str, target: str, body: bytes, status: int, code: bytes
) -> None:
    more = {"x_amz_content_sha256": _SIGNED} if method == "PUT" else {}
    found, answer = _raw(server, method, target, body, **more)
    assert (found, f"<Code>{code.decode()}</Code>".encode() in answer) == (status, True), answer
    assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a")[0] == 404


def test_a_body_in_chunks_is_put_together(server: EmbeddedServer) -> None:
    body = b"3;chunk-signature=x\r\nabc\r\nA;chunk-signature=y\r\n0123456789\r\n0;chunk-signature=z\r\n\r\n"
    assert _raw(server, "PUT", "/repo/main/a", body, x_amz_content_sha256=_SIGNED)[0] == 200
    assert clients.call(server, "GET", "/repositories/repo/refs/main/objects", path="a") == (200, b"abc0123456789")


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_older_signatures_and_links_are_served(server: EmbeddedServer, version: str) -> None:
    s3 = boto3.client(
        "s3",
        endpoint_url=clients.s3_url(server),
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        region_name="us-east-1",
        config=Config(signature_version=version),
    )
    named: Any = {"Bucket": "repo", "Key": "main/a"}
    s3.put_object(**named, Body=b"one")
    assert s3.get_object(**named)["Body"].read() == b"one"
    with urlopen(Request(s3.generate_presigned_url("put_object", Params=named), b"two", method="PUT")) as answer:
        assert answer.status == 200
    with urlopen(s3.generate_presigned_url("get_object", Params=named)) as answer:
        assert answer.read() == b"two"


def test_parts_are_named_as_s3_asks(server: EmbeddedServer) -> None:
    s3 = _admin(server)
    named: Any = {"Bucket": "repo", "Key": "main/a"}
    upload = s3.create_multipart_upload(**named)["UploadId"]
    s3.put_object(Bucket="repo", Key="main/source", Body=b"0123456789")
    etags = [
        s3.upload_part(**named, UploadId=upload, PartNumber=number, Body=b"%d" % number)["ETag"] for number in (1, 2)
    ]
    copied = {"CopySource": "repo/main/source", "PartNumber": 3, "UploadId": upload}
    etags.append(s3.upload_part_copy(**named, **copied, CopySourceRange="bytes=2-4")["CopyPartResult"]["ETag"])
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, start=1)]
    complete = s3.complete_multipart_upload
    for call, arguments, code in (
        (s3.upload_part, {"PartNumber": 0, "Body": b"x"}, "InvalidArgument"),
        (s3.upload_part, {"PartNumber": 10_001, "Body": b"x"}, "InvalidArgument"),
        (s3.upload_part_copy, {**copied, "CopySourceRange": "bytes=4-2"}, "InvalidArgument"),
        (s3.upload_part_copy, {**copied, "CopySourceRange": "bytes=5-10"}, "InvalidArgument"),
        (s3.upload_part_copy, {**copied, "CopySource": "none/main/source"}, "NoSuchBucket"),
        (complete, {"MultipartUpload": {"Parts": []}}, "MalformedXML"),
        (complete, {"MultipartUpload": {"Parts": parts[::-1]}}, "InvalidPartOrder"),
        (complete, {"MultipartUpload": {"Parts": [parts[0], parts[0]]}}, "InvalidPartOrder"),
        (complete, {"MultipartUpload": {"Parts": [parts[0] | {"ETag": "other"}]}}, "InvalidPart"),
    ):
        with pytest.raises(ClientError) as error:
            call(**{**named, "UploadId": upload, **arguments})
        assert error.value.response["Error"]["Code"] == code, arguments
    complete(**named, UploadId=upload, MultipartUpload={"Parts": parts})
    assert s3.get_object(**named)["Body"].read() == b"12234"


def test_an_upload_belongs_to_its_key(server: EmbeddedServer) -> None:
    s3 = _admin(server)
    upload = s3.create_multipart_upload(Bucket="repo", Key="main/one")["UploadId"]
    etag = s3.upload_part(Bucket="repo", Key="main/one", UploadId=upload, PartNumber=1, Body=b"1")["ETag"]
    complete = {"UploadId": upload, "MultipartUpload": {"Parts": [{"PartNumber": 1, "ETag": etag}]}}
    for call, arguments in (
        ("upload_part", {"UploadId": upload, "PartNumber": 2, "Body": b"2"}),
        ("complete_multipart_upload", complete),
        ("abort_multipart_upload", {"UploadId": upload}),
    ):
        with pytest.raises(ClientError) as error:
            getattr(s3, call)(Bucket="repo", Key="main/two", **arguments)
        assert error.value.response["Error"]["Code"] == "NoSuchUpload"
    s3.complete_multipart_upload(Bucket="repo", Key="main/one", **complete)
    assert s3.get_object(Bucket="repo", Key="main/one")["Body"].read() == b"1"


def test_a_copy_may_replace_the_content_type(server: EmbeddedServer, seed_server: EmbeddedServer) -> None:
    for started in (server, seed_server):
        s3 = _admin(started)
        s3.put_object(Bucket="repo", Key="main/a", Body=b"x", ContentType="text/a")
        for directive, expected in (("COPY", "text/a"), ("REPLACE", "text/b")):
            s3.copy_object(
                Bucket="repo",
                Key="main/b",
                CopySource="repo/main/a",
                MetadataDirective=directive,
                ContentType="text/b",
            )
            assert s3.head_object(Bucket="repo", Key="main/b")["ContentType"] == expected
