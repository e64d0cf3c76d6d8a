import hashlib
from io import BytesIO

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients


def _code(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def test_put_get_head_and_delete(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    put = s3.put_object(
        Bucket="repo", Key="main/a/ü +%25", Body=b"content", Metadata={"k": "v"}, ContentType="text/plain"
    )
    assert put["ETag"] == f'"{hashlib.md5(b"content").hexdigest()}"'
    got = s3.get_object(Bucket="repo", Key="main/a/ü +%25")
    assert (got["Body"].read(), got["Metadata"], got["ContentType"]) == (b"content", {"k": "v"}, "text/plain")
    assert s3.get_object(Bucket="repo", Key="main/a/ü +%25", Range="bytes=2-4")["Body"].read() == b"nte"
    assert s3.get_object(Bucket="repo", Key="main/a/ü +%25", Range="bytes=-2")["Body"].read() == b"nt"
    assert s3.head_object(Bucket="repo", Key="main/a/ü +%25")["ContentLength"] == 7
    _, stat = clients.call(server, "GET", "/repositories/repo/refs/main/objects/stat", path="a/ü +%25")
    assert stat["metadata"] == {"X-Amz-Meta-k": "v"}
    s3.delete_object(Bucket="repo", Key="main/a/ü +%25")
    with pytest.raises(ClientError) as error:
        s3.get_object(Bucket="repo", Key="main/a/ü +%25")
    assert _code(error) == "NoSuchKey"


def test_listing_pages_prefixes_and_branches(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    keys = [f"main/{folder}/{number:02d} &<>" for folder in ("a", "b") for number in range(15)]
    for key in keys:
        s3.put_object(Bucket="repo", Key=key, Body=b"x")
    pages = s3.get_paginator("list_objects_v2").paginate(
        Bucket="repo", Prefix="main/", PaginationConfig={"PageSize": 4}
    )
    assert [item["Key"] for page in pages for item in page["Contents"]] == keys
    old_pages = s3.get_paginator("list_objects").paginate(Bucket="repo", PaginationConfig={"PageSize": 7})
    assert [item["Key"] for page in old_pages for item in page["Contents"]] == keys
    top = s3.list_objects_v2(Bucket="repo", Prefix="main/", Delimiter="/")
    assert [item["Prefix"] for item in top["CommonPrefixes"]] == ["main/a/", "main/b/"]
    assert "Contents" not in top
    folded = s3.get_paginator("list_objects_v2").paginate(
        Bucket="repo", Prefix="main/", Delimiter="/", PaginationConfig={"PageSize": 1}
    )
    assert [item["Prefix"] for page in folded for item in page["CommonPrefixes"]] == ["main/a/", "main/b/"]
    clients.call(server, "POST", "/repositories/repo/branches", {"name": "side", "source": "main"})
    branches = s3.list_objects_v2(Bucket="repo", Delimiter="/")
    assert [item["Prefix"] for item in branches["CommonPrefixes"]] == ["main/"]
    s3.put_object(Bucket="repo", Key="side/z", Body=b"x")
    branches = s3.list_objects_v2(Bucket="repo", Delimiter="/")
    assert [item["Prefix"] for item in branches["CommonPrefixes"]] == ["main/", "side/"]
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == ["repo"]


def test_a_multipart_upload_has_an_etag_of_parts(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    content = bytes(range(256)) * 4096 * 12
    part = 5 << 20
    s3.upload_fileobj(
        BytesIO(content),
        "repo",
        "main/large",
        Config=TransferConfig(multipart_threshold=part, multipart_chunksize=part, max_concurrency=4),
    )
    assert s3.get_object(Bucket="repo", Key="main/large")["Body"].read() == content
    parts = [content[start : start + part] for start in range(0, len(content), part)]
    digest = hashlib.md5(b"".join(hashlib.md5(piece).digest() for piece in parts)).hexdigest()
    assert s3.head_object(Bucket="repo", Key="main/large")["ETag"] == f'"{digest}"'
    upload = s3.create_multipart_upload(Bucket="repo", Key="main/mpu")["UploadId"]
    one = s3.upload_part(Bucket="repo", Key="main/mpu", UploadId=upload, PartNumber=1, Body=b"one")
    done = s3.complete_multipart_upload(
        Bucket="repo",
        Key="main/mpu",
        UploadId=upload,
        MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": one["ETag"]}]},
    )
    assert done["ETag"].endswith('-1"')


def test_an_aborted_upload_stages_nothing(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    upload = s3.create_multipart_upload(Bucket="repo", Key="main/mpu")["UploadId"]
    s3.upload_part(Bucket="repo", Key="main/mpu", UploadId=upload, PartNumber=1, Body=b"one")
    s3.abort_multipart_upload(Bucket="repo", Key="main/mpu", UploadId=upload)
    with pytest.raises(ClientError) as error:
        s3.upload_part(Bucket="repo", Key="main/mpu", UploadId=upload, PartNumber=2, Body=b"two")
    assert _code(error) == "NoSuchUpload"
    assert s3.list_objects_v2(Bucket="repo")["KeyCount"] == 0


def test_a_copy_is_a_new_object(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    s3.put_object(Bucket="repo", Key="main/source", Body=b"content", Metadata={"k": "v"})
    s3.copy_object(Bucket="repo", Key="main/copy", CopySource="repo/main/source")
    clients.call(server, "POST", "/repositories/repo/branches", {"name": "side", "source": "main"})
    s3.copy_object(
        Bucket="repo",
        Key="side/copy",
        CopySource={"Bucket": "repo", "Key": "main/source"},
        Metadata={"other": "value"},
        MetadataDirective="REPLACE",
    )
    assert s3.get_object(Bucket="repo", Key="side/copy")["Body"].read() == b"content"
    assert s3.head_object(Bucket="repo", Key="main/copy")["Metadata"] == {"k": "v"}
    assert s3.head_object(Bucket="repo", Key="side/copy")["Metadata"] == {"other": "value"}
    addresses = {
        clients.call(server, "GET", f"/repositories/repo/refs/{branch}/objects/stat", path=path)[1]["physical_address"]
        for branch, path in (("main", "source"), ("main", "copy"), ("side", "copy"))
    }
    assert len(addresses) == 3


def test_a_copy_of_a_collected_object_fails(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    address = clients.upload(server, "source", b"x")
    (server.objects_folder / "repo" / address).unlink()
    for action in (
        lambda: s3.copy_object(Bucket="repo", Key="main/copy", CopySource="repo/main/source"),
        lambda: s3.get_object(Bucket="repo", Key="main/source"),
    ):
        with pytest.raises(ClientError) as error:
            action()
        assert _code(error) == "NoSuchVersion"


def test_several_keys_are_deleted_at_once(server: EmbeddedServer) -> None:
    s3 = clients.s3(server)
    for number in range(5):
        s3.put_object(Bucket="repo", Key=f"main/{number}", Body=b"x")
    answer = s3.delete_objects(
        Bucket="repo", Delete={"Objects": [{"Key": "main/1"}, {"Key": "main/3"}, {"Key": "nowhere/3"}]}
    )
    assert [item["Key"] for item in answer["Deleted"]] == ["main/1", "main/3"]
    assert [item["Key"] for item in answer["Errors"]] == ["nowhere/3"]
    assert [item["Key"] for item in s3.list_objects_v2(Bucket="repo")["Contents"]] == ["main/0", "main/2", "main/4"]


def test_unknown_keys_and_buckets_are_refused(server: EmbeddedServer) -> None:
    server.access_key_id = "unknown"
    with pytest.raises(ClientError) as error:
        clients.s3(server).list_buckets()
    assert _code(error) == "InvalidAccessKeyId"
    server.access_key_id = next(iter(server.users))
    with pytest.raises(ClientError) as error:
        clients.s3(server).list_objects_v2(Bucket="none")
    assert _code(error) == "NoSuchBucket"
