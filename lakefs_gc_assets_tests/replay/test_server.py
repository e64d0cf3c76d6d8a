import csv
import gzip
import hashlib
import json
import shutil
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import boto3
import obstore
import pytest
import urllib3
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.recordings import FIXTURES, needs_recordings
from lakefs_gc_assets_tests.replay.server import ReplayServer, Request

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

pytestmark = needs_recordings

NOW = datetime(2026, 11, 23, 12, 0, 1, 250_000, UTC)
RUNS = "_lakefs/retention/gc/uncommitted/"


def listing(name: str) -> list[dict[str, Any]]:
    plain = FIXTURES / name / "listing.json"
    content = plain.read_bytes() if plain.exists() else gzip.decompress(Path(f"{plain}.gz").read_bytes())
    return list(json.loads(content))


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / name / "api.jsonl").read_text().splitlines()]


def boto3_client(server: ReplayServer) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=server.s3_url,
        region_name="us-east-1",
        aws_access_key_id="anybody",
        aws_secret_access_key="anything",
    )


def place(server: ReplayServer) -> tuple[str, str]:
    """Bucket, and prefix of all keys."""
    bucket, _, prefix = server.storage_namespace.removeprefix("s3://").partition("/")
    return bucket, prefix + "/"


def obstore_store(server: ReplayServer) -> S3Store:
    return S3Store.from_url(
        server.storage_namespace,
        endpoint=server.s3_url,
        access_key_id="anybody",
        secret_access_key="anything",
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


class Api:
    """Plain requests to the API of a replay."""

    def __init__(self, server: ReplayServer) -> None:
        self._server = server
        self._pool = urllib3.PoolManager()
        keys = b64encode(f"{server.access_key_id}:{server.secret_access_key}".encode()).decode()
        self.headers = {"Authorization": f"Basic {keys}"}

    def __call__(self, method: str, path: str, body: object = None, /, **query: str) -> tuple[int, Any]:
        """Status and JSON; paths that begin with a dot are those of the recorded repository."""
        if path.startswith("."):
            path = f"/repositories/{self._server.repository}{path[1:]}"
        query_string = "?" + urlencode(query) if query else ""
        url = f"{self._server.url}/api/v1{path}"
        content = b"" if body is None else json.dumps(body).encode()
        answer = self._pool.request(method, url + query_string, body=content, headers=self.headers)
        return answer.status, json.loads(answer.data) if answer.data else None


@pytest.fixture(scope="module")
def small() -> Iterator[ReplayServer]:
    with ReplayServer(FIXTURES / "small", now=NOW) as server:
        yield server


class TestListing:
    @pytest.mark.parametrize(("name", "size"), [("small", 7), ("empty", 1000), ("wide", 1000)])
    def test_is_the_recorded_one_for_boto3(self, name: str, size: int) -> None:
        with ReplayServer(FIXTURES / name) as server:
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
                assert abs(difference) < timedelta(milliseconds=1)
                assert item["ETag"].strip('"') == row.get("etag", item["ETag"].strip('"'))

    def test_is_the_recorded_one_for_obstore(self, small: ReplayServer) -> None:
        store = obstore_store(small)
        found = {item["path"]: item for batch in obstore.list(store, chunk_size=10) for item in batch}
        assert {key: (item["size"], int(item["last_modified"].timestamp())) for key, item in found.items()} == {
            row["key"]: (row["size"], int(row["mtime"])) for row in listing("small")
        }
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
    @pytest.mark.parametrize("name", ["small", "wide"])
    def test_are_those_of_the_folder(self, name: str) -> None:
        with ReplayServer(FIXTURES / name) as server:
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
        assert content == (FIXTURES / "small/namespace" / row["key"]).read_bytes()
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
        with ReplayServer(FIXTURES / "empty", now=NOW) as server:
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

    def test_written_at_once_if_absent_have_one_winner(self) -> None:
        with ReplayServer(FIXTURES / "empty") as server, ThreadPoolExecutor(16) as pool:
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
        with pytest.raises(ClientError, match="NotImplemented"):
            client.copy_object(Bucket=bucket, Key=root + "x", CopySource=f"{bucket}/{root}dummy")
        with pytest.raises(ClientError, match="NoSuchKey"):
            client.put_object(Bucket=bucket, Key="outside", Body=b"")

    def test_the_collectors_own_store_works_on_it(self) -> None:
        with ReplayServer(FIXTURES / "small") as server:
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
        with ReplayServer(FIXTURES / "small") as server:
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
        with ReplayServer(FIXTURES / "chain/1", deletes="overlay") as first:
            client, (bucket, root) = boto3_client(first), place(first)
            victims = [row["key"] for row in listing("chain/1") if row["key"].startswith("data/")][:3]
            client.put_object(Bucket=bucket, Key=root + RUNS + "run/carry", Body=b"1")
            answer = client.delete_objects(
                Bucket=bucket, Delete={"Objects": [{"Key": root + key} for key in victims], "Quiet": True}
            )
            assert "Errors" not in answer
            assert "Deleted" not in answer
            assert first.deleted == set(victims)
        with ReplayServer(FIXTURES / "chain/2", continues=first) as second:
            client = boto3_client(second)
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=root)
            found = {item["Key"].removeprefix(root) for page in pages for item in page["Contents"]}
            expected = {row["key"] for row in listing("chain/2")} - set(victims) | {RUNS + "run/carry"}
            assert found == expected
            assert client.get_object(Bucket=bucket, Key=root + RUNS + "run/carry")["Body"].read() == b"1"

    def test_and_writes_leave_the_folder_alone(self, tmp_path: Path) -> None:
        folder = tmp_path / "recording"
        shutil.copytree(FIXTURES / "empty", folder)

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


class TestClock:
    def test_is_the_same_for_api_and_store(self, small: ReplayServer) -> None:
        pool = urllib3.PoolManager()
        for url in (small.url + "/api/v1/config", small.s3_url + "/lakefs?list-type=2", small.s3_url + "/x"):
            assert parsedate_to_datetime(pool.request("GET", url).headers["Date"]) == NOW.replace(microsecond=0)

    def test_may_tick_or_be_the_machines(self) -> None:
        ticks = iter(range(1000))
        pool = urllib3.PoolManager()
        with ReplayServer(FIXTURES / "empty", now=lambda: NOW + timedelta(minutes=next(ticks))) as server:
            dates = [parsedate_to_datetime(pool.request("GET", server.url).headers["Date"]) for _ in range(2)]
            assert dates[1] - dates[0] == timedelta(minutes=1)
        with ReplayServer(FIXTURES / "empty") as server:
            date = parsedate_to_datetime(pool.request("GET", server.url).headers["Date"])
            assert abs(date - datetime.now(UTC)) < timedelta(seconds=5)

    def test_of_the_recording_is_told(self, small: ReplayServer) -> None:
        assert small.recorded_at == datetime.fromtimestamp(rows("small")[-1]["at"], UTC)


def commits_of(server: ReplayServer, result: dict[str, Any]) -> set[str]:
    """Commits in the file that an answer of prepare_commits names."""
    key = result["gc_commits_location"].removeprefix(server.storage_namespace + "/")
    content = bytes(obstore.get(obstore_store(server), key).bytes()).decode()
    return {row["commit_id"] for row in csv.DictReader(content.splitlines())}


class TestApi:
    def test_keys_repositories_and_paths_are_checked(self, small: ReplayServer) -> None:
        api = Api(small)
        assert api("GET", "/repositories/another/branches") == (404, {"message": "repository not found"})
        assert api("POST", "/repositories/small-s3-1-ro/gc/prepare_uncommited", {})[0] == 404
        assert api("GET", "./no/such/path") == (404, {"message": "invalid API endpoint"})
        assert api("DELETE", "./branches/main")[0] == 404
        api.headers = {"Authorization": "Basic " + b64encode(b"a:b").decode()}
        assert api("GET", ".") == (401, {"message": "error authenticating request"})
        api.headers = {}
        assert api("GET", "/config")[0] == 401

    def test_the_state_is_that_of_the_end(self, small: ReplayServer) -> None:
        api = Api(small)
        assert api("GET", "./settings/gc_rules")[1]["default_retention_days"] == 21
        branches = api("GET", "./branches", amount="1000", show_hidden="true")[1]
        assert "doomed" not in {item["id"] for item in branches["results"]}
        assert {"hid", "sq-dst"} <= {item["id"] for item in branches["results"]}

    def test_lists_have_any_page_size(self, small: ReplayServer) -> None:
        api = Api(small)
        whole = api("GET", "./branches", amount="1000", show_hidden="true")[1]["results"]
        found, after = [], ""
        while True:
            page = api("GET", "./branches", amount="5", show_hidden="true", **({"after": after} if after else {}))[1]
            found += page["results"]
            after = page["pagination"]["next_offset"]
            if not page["pagination"]["has_more"]:
                break
        assert found == whole
        assert len(whole) == 12

    def test_changes_that_were_not_recorded_are_none(self, small: ReplayServer) -> None:
        api = Api(small)
        first = api("GET", "./branches/main/diff", amount="1")[1]
        assert (first["pagination"]["has_more"], first["results"][0]["path"]) == (True, "copy/clone-1")
        more = api("GET", "./branches/main/diff", amount="1000")[1]
        assert more["results"] == first["results"]
        rest = api("GET", "./branches/main/diff", amount="1000", after=more["pagination"]["next_offset"])[1]
        assert (rest["results"], rest["pagination"]["has_more"]) == ([], False)
        assert api("GET", "./branches/doomed/diff", amount="1") == (404, {"message": "branch not found"})

    @pytest.mark.parametrize("name", ["small", "random-dag/14", "chain/4"])
    def test_unrecorded_objects_come_from_the_heads(self, name: str) -> None:
        tables = {
            table["file"]: table["entries"]
            for table in map(json.loads, (FIXTURES / name / "sstables.jsonl").read_text().splitlines())
        }
        recorded = {
            (row["path"].split("/")[6], row["query"]["path"])
            for row in rows(name)
            if row["path"].endswith("objects/stat")
        }
        asked = 0
        with ReplayServer(FIXTURES / name) as server:
            api = Api(server)
            for branch in api("GET", "./branches", amount="1000", show_hidden="true")[1]["results"]:
                commit = api("GET", f"./commits/{branch['commit_id']}")[1]
                parts = tables[commit["meta_range_id"]] if commit["meta_range_id"] else []
                for entry in [entry for part in parts for entry in tables[part["range_id"]]]:
                    full = "://" in entry["address"]
                    expected = entry["address"] if full else f"{server.storage_namespace}/{entry['address']}"
                    for reference in (branch["id"], branch["commit_id"]):
                        if (reference, entry["key"]) in recorded:
                            continue
                        status, stats = api("GET", f"./refs/{reference}/objects/stat", path=entry["key"])
                        assert status == 200
                        assert (stats["path"], stats["physical_address"]) == (entry["key"], expected)
                        assert (stats["size_bytes"], stats["checksum"]) == (entry["size"], entry["etag"])
                        asked += 1
                status, answer = api("GET", f"./refs/{branch['id']}/objects/stat", path="no/such\x7fpath")
                assert (status, answer) == (404, {"message": "not found"})
            assert api("GET", "./refs/no-such-branch/objects/stat", path="x")[0] == 404
        assert asked > 20

    def test_recorded_objects_of_staging_come_first(self, small: ReplayServer) -> None:
        row = next(row for row in reversed(rows("small")) if row["path"].endswith("/refs/main/objects/stat"))
        found = Api(small)("GET", "./refs/main/objects/stat", path=row["query"]["path"], presign="false")
        assert found == (200, row["response_json"])

    def test_a_dump_is_done_when_it_is_asked_for(self, small: ReplayServer) -> None:
        api = Api(small)
        task = api("POST", "./dump")[1]["id"]
        assert api("GET", "./dump", task_id=task)[1]["done"] is True
        assert api("GET", "./dump", task_id="another")[0] == 404

    def test_requests_are_counted(self) -> None:
        with ReplayServer(FIXTURES / "empty") as server:
            Api(server)("GET", ".")
            bucket, root = place(server)
            boto3_client(server).list_objects_v2(Bucket=bucket, Prefix=root + "é ", MaxKeys=1)
            first, second = server.requests
            assert first == Request("GET", f"/api/v1/repositories/{server.repository}", "")
            assert (second.method, second.path) == ("GET", f"/{bucket}")
            assert "max-keys=1" in second.query


class TestPreparedCommits:
    @pytest.mark.parametrize("name", ["small", "merge-dangling", "random-dag/11", "empty"])
    def test_are_those_of_the_last_rules(self, name: str) -> None:
        recorded = [row["response_json"] for row in rows(name) if (row["note"] or "").startswith("gc: prepare_commits")]
        with ReplayServer(FIXTURES / name) as server:
            api = Api(server)
            status, task = api("POST", "./gc/prepare_commits/async")
            assert status == 202
            status, answer = api("GET", "./gc/prepare_commits/status", id=task["id"])
            assert (status, answer["completed"]) == (200, True)
            assert answer in recorded
            status, blocking = api("POST", "./gc/prepare_commits")
            assert status == 201
            assert blocking == recorded[-1]
            assert commits_of(server, blocking) == commits_of(server, answer["result"]) != set()
            assert api("GET", "./gc/prepare_commits/status", id="unknown") == (404, {"message": "not found"})
            assert api("GET", "./gc/prepare_commits/status")[0] == 400

    @pytest.mark.parametrize("name", ["merge-dangling", "random-dag/11", "random-dag/12", "random-dag/14"])
    def test_of_each_variant_are_those_of_its_rules(self, name: str) -> None:
        variants = json.loads((FIXTURES / name / "truth.json").read_text())["rule_variants"]
        for number, variant in enumerate(variants):
            with ReplayServer(FIXTURES / name, variant=number) as server:
                api = Api(server)
                task = api("POST", "./gc/prepare_commits/async")[1]["id"]
                result = api("GET", "./gc/prepare_commits/status", id=task)[1]["result"]
                assert result["run_id"] == variant["run_id"]
                assert api("POST", "./gc/prepare_commits") == (201, result)
                assert commits_of(server, result) == set(variant["active_commits"])
                rules = api("GET", "./settings/gc_rules")[1]
                assert rules["default_retention_days"] == variant["rules"]["default_retention_days"]
                assert (rules["branches"] or []) == variant["rules"]["branches"]

    def test_of_an_unknown_variant_cannot_be_replayed(self) -> None:
        for name, number in (("merge-dangling", 5), ("merge-dangling", -1), ("small", 0)):
            with pytest.raises(ValueError, match=rf"rule variants.* no {number}"):
                ReplayServer(FIXTURES / name, variant=number)


class TestPreparedPages:
    @pytest.mark.parametrize(("name", "pages", "files"), [("by-time", 4, 4), ("by-size", 3, 3), ("row-groups", 1, 1)])
    def test_follow_their_tokens(self, name: str, pages: int, files: int) -> None:
        folder = f"uncommitted-paging/{name}"
        recorded = [row["response_json"] for row in rows(folder)]
        with ReplayServer(FIXTURES / folder, now=NOW) as server:
            assert (server.repository, server.storage_namespace) == ("wide-local-1", "s3://blocks/wide-local-1")
            found = self.prepared(server)
            assert [page.get("continuation_token") for page in found] == [
                page.get("continuation_token") for page in recorded
            ]
            assert len(found) == pages
            prefix = found[-1]["gc_uncommitted_location"].removeprefix(server.storage_namespace + "/")
            listed = [item for batch in obstore.list(obstore_store(server), prefix) for item in batch]
            assert len(listed) == files
            for item in listed:
                content = (FIXTURES / folder / "namespace" / item["path"]).read_bytes()
                assert item["size"] == len(content)
                assert (item["e_tag"] or "").strip('"') == hashlib.md5(content).hexdigest()
                assert item["last_modified"] == NOW

    def test_repeat_tokens_in_order_and_start_anew_without_one(self) -> None:
        with ReplayServer(FIXTURES / "uncommitted-paging/by-time-tight.tar.gz") as server:
            first = self.prepared(server)
            assert len(first) == 782
            tokens = [page.get("continuation_token") for page in first]
            assert sum(earlier == later for earlier, later in pairwise(tokens)) == 548
            assert len({page["run_id"] for page in first}) == 1
            assert self.prepared(server) == first
            api = Api(server)
            last_token = [token for token in tokens if token][-1]
            for _ in range(3):
                assert api("POST", "./gc/prepare_uncommited", {"continuation_token": last_token})[1] == first[-1]
            assert api("POST", "./gc/prepare_uncommited", {"continuation_token": "bm9uc2Vuc2U="}) == (
                400,
                {"message": "invalid continuation token"},
            )

    def test_are_those_of_the_last_preparation_of_the_repository(self) -> None:
        for name in ("small", "empty", "chain/3"):
            ran = [row for row in rows(name) if row["note"] == "gc: prepare_uncommited"]
            with ReplayServer(FIXTURES / name) as server:
                assert self.prepared(server) == [ran[-1]["response_json"]]
                assert Api(server)("POST", "./gc/prepare_uncommited", {"continuation_token": None})[0] == 201

    @staticmethod
    def prepared(server: ReplayServer) -> list[dict[str, Any]]:
        api, found, token = Api(server), [], None
        while True:
            status, page = api("POST", "./gc/prepare_uncommited", {"continuation_token": token} if token else {})
            assert status == 201
            found.append(page)
            token = page.get("continuation_token")
            if not token:
                return found


def test_nothing_but_rule_variants_is_read_of_the_truth(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    shutil.copytree(
        FIXTURES / "small", folder, ignore=shutil.ignore_patterns("truth.json", "sstables.jsonl", "README*")
    )
    with ReplayServer(folder) as server:
        assert Api(server)("GET", "./refs/main/objects/stat", path="live/00.bin")[0] == 200
        pages = boto3_client(server).get_paginator("list_objects_v2").paginate(Bucket="lakefs")
        assert sum(len(page["Contents"]) for page in pages) == 130


def test_a_folder_without_answers_or_objects_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match=r"has no api\.jsonl"):
        ReplayServer(FIXTURES / "large")
    with pytest.raises(ValueError, match="no objects to serve"):
        ReplayServer(FIXTURES / "bench-wide")


def test_the_configuration_waits_for_nothing(small: ReplayServer) -> None:
    configuration = small.configuration()
    assert configuration.repository == small.repository
    assert (
        configuration.collection.wait_before_dump_seconds,
        configuration.collection.wait_before_recheck_seconds,
    ) == (
        0,
        0,
    )
    assert configuration.collection.sweep is False
