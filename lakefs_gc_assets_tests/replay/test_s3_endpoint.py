import re
from datetime import UTC, datetime, timedelta

import obstore
import pytest
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError

from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.replay.clients import NOW, RUNS, boto3_client, listing, obstore_store, place, small
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made

__all__ = ["small"]


def may_be_a_metarange(key: str) -> bool:
    """True for files that may be served with an earlier date, so that commits of a recording keep their dates."""
    return re.fullmatch("_lakefs/[0-9a-f]{64}", key) is not None


class TestListing:
    @pytest.mark.parametrize("name", recorded_and_made("small"))
    def test_is_the_recorded_one_for_boto3(self, name: str) -> None:
        size = 7 if name.endswith("small") else 1000
        with ReplayServer(folder_of(name)) as server:
            bucket, prefix = place(server)
            paginator = boto3_client(server).get_paginator("list_objects_v2")
            pages = list(paginator.paginate(Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": size}))
            found = [item for page in pages for item in page["Contents"]]
            recorded = listing(name)
            assert len(pages) == -(-len(recorded) // size)
            assert [item["Key"] for item in found] == sorted(prefix + row["key"] for row in recorded)
            facts = {row["key"]: row for row in recorded}
            for item in found:
                row = facts[item["Key"].removeprefix(prefix)]
                assert item["Size"] == row["size"]
                difference = item["LastModified"] - datetime.fromtimestamp(row["mtime"], UTC)
                assert difference < timedelta(milliseconds=1)
                assert may_be_a_metarange(row["key"]) or difference > -timedelta(milliseconds=1)
                assert item["ETag"].strip('"') == row.get("etag", item["ETag"].strip('"'))


class TestObjects:
    def test_are_written_on_conditions_and_have_the_time_of_the_replay(self) -> None:
        with ReplayServer(folder_of("empty"), now=NOW) as server:
            client, (bucket, root) = boto3_client(server), place(server)
            key = f"{root}{RUNS}run/lock é+ %.json"
            first = client.put_object(Bucket=bucket, Key=key, Body=b"one", IfNoneMatch="*")
            with pytest.raises(ClientError, match="PreconditionFailed"):
                client.put_object(Bucket=bucket, Key=key, Body=b"two", IfNoneMatch="*")
            with pytest.raises(ClientError, match="PreconditionFailed"):
                client.put_object(Bucket=bucket, Key=key, Body=b"two", IfMatch='"other"')
            with pytest.raises(ClientError, match="NoSuchKey"):
                client.put_object(Bucket=bucket, Key=key + "2", Body=b"two", IfMatch=first["ETag"])
            client.put_object(Bucket=bucket, Key=key, Body=b"two", IfMatch=first["ETag"])
            listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{root}{RUNS}run/")["Contents"]
            assert [(item["Key"], item["Size"], item["LastModified"]) for item in listed] == [(key, 3, NOW)]
            assert client.get_object(Bucket=bucket, Key=key)["LastModified"] == NOW.replace(microsecond=0)
            store = obstore_store(server)
            obstore.put(store, "frames/part-0", b"three", mode="create")
            with pytest.raises(AlreadyExistsError):
                obstore.put(store, "frames/part-0", b"four", mode="create")
            assert bytes(obstore.get(store, "frames/part-0").bytes()) == b"three"

    def test_what_is_not_offered_is_refused(self, small: ReplayServer) -> None:
        client, (bucket, root) = boto3_client(small), place(small)
        with pytest.raises(ClientError, match="NotImplemented"):
            client.create_multipart_upload(Bucket=bucket, Key=root + "x")
        with pytest.raises(ClientError, match="NoSuchKey"):
            client.put_object(Bucket=bucket, Key="outside", Body=b"")

    def test_the_collectors_own_store_works_on_it(self) -> None:
        with ReplayServer(folder_of("small")) as server:
            store = open_store(server.configuration().store, Namespace.parse(server.storage_namespace))
            recorded = {row["key"]: row["size"] for row in listing("small")}
            found: dict[str, int] = {}
            for batch in store.list(""):
                found |= dict(zip(batch["key"].to_pylist(), batch["size"].to_pylist(), strict=True))
            assert found == recorded
            assert set(store.list_level("data/").prefixes) == {
                key[: key.index("/", 5) + 1] for key in recorded if key.startswith("data/")
            }
            etag = store.put_if_absent(RUNS + "lock", b"1")
            store.put_if_match(RUNS + "lock", b"2", etag)
            assert store.get(RUNS + "lock") == b"2"
            victim = next(key for key in recorded if key.startswith("data/"))
            outcomes = store.delete([victim, RUNS + "lock"])
            assert [outcome.result for outcome in outcomes] == [DeleteResult.FAILED, DeleteResult.ACCEPTED]
            assert outcomes[0].error is not None
            assert "AccessDenied" in outcomes[0].error
            assert store.head(victim).size == recorded[victim]
            with pytest.raises(ObjectNotFound):
                store.get(RUNS + "lock")


class TestDeletes:
    def test_are_refused_key_by_key(self) -> None:
        with ReplayServer(folder_of("small")) as server:
            client, (bucket, root) = boto3_client(server), place(server)
            victims = [row["key"] for row in listing("small") if row["key"].startswith("data/")][:5]
            client.put_object(Bucket=bucket, Key=root + RUNS + "lock", Body=b"")
            answer = client.delete_objects(
                Bucket=bucket,
                Delete={"Objects": [{"Key": root + key} for key in [*victims, RUNS + "lock"]]},
            )
            assert [error["Key"] for error in answer["Errors"]] == [root + key for key in victims]
            assert {error["Code"] for error in answer["Errors"]} == {"AccessDenied"}
            assert [item["Key"] for item in answer["Deleted"]] == [root + RUNS + "lock"]
            with pytest.raises(ClientError, match="AccessDenied"):
                client.delete_object(Bucket=bucket, Key=root + victims[0])
            assert server.refused_deletes == set(victims)
            assert server.deleted == set()
            for key in victims:
                client.head_object(Bucket=bucket, Key=root + key)
