import hashlib
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.replay.clients import NOW, RUNS, boto3_client, listing, obstore_store, place
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made


def may_be_a_metarange(key: str) -> bool:
    """True for files that may be served with an earlier date, so that commits of a recording keep their dates."""
    return re.fullmatch("_lakefs/[0-9a-f]{64}", key) is not None


class TestListing:
    @pytest.mark.parametrize("name", recorded_and_made("small", "empty", "wide"))
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

    def test_is_the_recorded_one_for_obstore(self, small: ReplayServer) -> None:
        store = obstore_store(small)
        found = {item["path"]: item for batch in obstore.list(store, chunk_size=10) for item in batch}
        recorded = {row["key"]: row for row in listing("small")}
        assert {key: item["size"] for key, item in found.items()} == {key: row["size"] for key, row in recorded.items()}
        for key, item in found.items():
            time = int(item["last_modified"].timestamp())
            assert time <= int(recorded[key]["mtime"])
            assert may_be_a_metarange(key) or time == int(recorded[key]["mtime"])
        below = {item["path"] for batch in obstore.list(store, "_lakefs/retention") for item in batch}
        assert below == {row["key"] for row in listing("small") if row["key"].startswith("_lakefs/retention/")}

    def test_by_level_is_the_same_for_boto3_and_obstore(self, small: ReplayServer) -> None:
        bucket, root = place(small)
        names = [row["key"] for row in listing("small")]
        for folder in ("", "data/", "_lakefs/", "_lakefs/retention/gc/"):
            rest = [name.removeprefix(folder) for name in names if name.startswith(folder)]
            objects = sorted(folder + name for name in rest if "/" not in name)
            prefixes = sorted({f"{folder}{name.partition('/')[0]}/" for name in rest if "/" in name})
            paginator = boto3_client(small).get_paginator("list_objects_v2")
            pages = list(
                paginator.paginate(Bucket=bucket, Prefix=root + folder, Delimiter="/", PaginationConfig={"PageSize": 3})
            )
            assert [item["Key"] for page in pages for item in page.get("Contents", [])] == [
                root + key for key in objects
            ]
            assert [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])] == [
                root + prefix for prefix in prefixes
            ]
            level = obstore.list_with_delimiter(obstore_store(small), folder)
            assert [item["path"] for item in level["objects"]] == objects
            assert [prefix + "/" for prefix in level["common_prefixes"]] == prefixes

    def test_starts_after_a_key_and_knows_the_bucket_above_the_namespace(self, small: ReplayServer) -> None:
        bucket, root = place(small)
        client = boto3_client(small)
        names = sorted(row["key"] for row in listing("small"))
        page = client.list_objects_v2(Bucket=bucket, Prefix=root, StartAfter=root + names[4], MaxKeys=2)
        assert [item["Key"] for item in page["Contents"]] == [root + name for name in names[5:7]]
        assert [item["Prefix"] for item in client.list_objects_v2(Bucket=bucket, Delimiter="/")["CommonPrefixes"]] == [
            root
        ]
        assert client.list_objects_v2(Bucket=bucket, Prefix="another/")["KeyCount"] == 0
        assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == len(names)
        with pytest.raises(ClientError, match="NoSuchBucket"):
            client.list_objects_v2(Bucket="another")


class TestObjects:
    @pytest.mark.parametrize("name", recorded_and_made("small", "wide"))
    def test_are_those_of_the_folder(self, name: str) -> None:
        with ReplayServer(folder_of(name)) as server:
            store = obstore_store(server)
            for row in listing(name)[::17]:
                content = bytes(obstore.get(store, row["key"]).bytes())
                assert len(content) == row["size"]
                etag = row.get("etag", "")
                assert "-" in etag or hashlib.md5(content).hexdigest() == (etag or hashlib.md5(content).hexdigest())

    def test_are_read_whole_in_part_or_not_at_all(self, small: ReplayServer) -> None:
        client, (bucket, root) = boto3_client(small), place(small)
        row = max(listing("small"), key=lambda row: row["size"])
        key, size = root + row["key"], row["size"]
        whole = client.get_object(Bucket=bucket, Key=key)
        content = whole["Body"].read()
        assert content == (folder_of("small") / "namespace" / row["key"]).read_bytes()
        assert whole["LastModified"] == datetime.fromtimestamp(int(row["mtime"]), UTC)
        head = client.head_object(Bucket=bucket, Key=key)
        assert (head["ContentLength"], head["ETag"]) == (size, whole["ETag"])
        for asked, expected in (("3-9", content[3:10]), (f"{size - 4}-", content[-4:]), ("-5", content[-5:])):
            part = client.get_object(Bucket=bucket, Key=key, Range=f"bytes={asked}")
            assert part["Body"].read() == expected
            assert part["ContentRange"].endswith(f"/{size}")
        assert bytes(obstore.get_range(obstore_store(small), row["key"], start=2, end=6)) == content[2:6]
        with pytest.raises(ClientError, match="InvalidRange"):
            client.get_object(Bucket=bucket, Key=key, Range=f"bytes={size}-")
        with pytest.raises(ClientError, match="NoSuchKey"):
            client.get_object(Bucket=bucket, Key=root + "nothing")
        with pytest.raises(ClientError, match="404"):
            client.head_object(Bucket=bucket, Key=root + "nothing")
        with pytest.raises(FileNotFoundError):
            obstore.head(obstore_store(small), "nothing")

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

    def test_are_copied_as_they_are(self) -> None:
        with ReplayServer(folder_of("empty")) as server:
            store = open_store(server.configuration().store, Namespace.parse(server.storage_namespace))
            store.put(RUNS + "a b", b"one")
            store.copy(RUNS + "a b", RUNS + "copy")
            assert store.get(RUNS + "copy") == b"one"
            with pytest.raises(ObjectNotFound):
                store.copy(RUNS + "gone", RUNS + "copy")
            client, (bucket, root) = boto3_client(server), place(server)
            source = f"{bucket}/{root}{RUNS}copy"
            conditions: tuple[dict[str, Any], ...] = ({"CopySourceIfMatch": '"other"'}, {"IfNoneMatch": "*"})
            for condition in conditions:
                with pytest.raises(ClientError, match="PreconditionFailed"):
                    client.copy_object(Bucket=bucket, Key=f"{root}{RUNS}a b", CopySource=source, **condition)
            with pytest.raises(ClientError, match="NoSuchKey"):
                client.copy_object(Bucket=bucket, Key=root + RUNS + "x", CopySource=f"other/{root}{RUNS}copy")

    def test_written_at_once_if_absent_have_one_winner(self) -> None:
        with ReplayServer(folder_of("empty")) as server, ThreadPoolExecutor(16) as pool:
            store = open_store(server.configuration().store, Namespace.parse(server.storage_namespace))

            def win(number: int) -> bool:
                try:
                    store.put_if_absent(RUNS + "lock", b"%d" % number)
                except AlreadyExists:
                    return False
                return True

            assert sum(pool.map(win, range(16))) == 1

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

    def test_happen_in_the_scratch_layer_where_wanted(self) -> None:
        with ReplayServer(folder_of("chain/1"), deletes="overlay") as first:
            client, (bucket, root) = boto3_client(first), place(first)
            victims = [row["key"] for row in listing("chain/1") if row["key"].startswith("data/")][:3]
            client.put_object(Bucket=bucket, Key=root + RUNS + "run/carry", Body=b"1")
            answer = client.delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": root + key} for key in victims], "Quiet": True}
            )
            assert "Errors" not in answer
            assert "Deleted" not in answer
            assert first.deleted == set(victims)
        with ReplayServer(folder_of("chain/2"), continues=first) as second:
            client = boto3_client(second)
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=root)
            found = {item["Key"].removeprefix(root) for page in pages for item in page["Contents"]}
            expected = {row["key"] for row in listing("chain/2")} - set(victims) | {RUNS + "run/carry"}
            assert found == expected
            assert client.get_object(Bucket=bucket, Key=root + RUNS + "run/carry")["Body"].read() == b"1"

    def test_and_writes_leave_the_folder_alone(self, tmp_path: Path) -> None:
        folder = tmp_path / "recording"
        shutil.copytree(folder_of("empty"), folder)

        def state() -> dict[str, tuple[int, bytes]]:
            return {
                path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
                for path in folder.rglob("*")
                if path.is_file()
            }

        before = state()
        with ReplayServer(folder, deletes="overlay") as server:
            client, (bucket, root) = boto3_client(server), place(server)
            for row in listing("empty"):
                client.put_object(Bucket=bucket, Key=root + row["key"], Body=b"changed")
                client.delete_object(Bucket=bucket, Key=root + row["key"])
            client.put_object(Bucket=bucket, Key=root + "data/new", Body=b"x")
            assert client.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
        assert state() == before
