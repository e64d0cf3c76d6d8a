import re
from datetime import UTC, datetime, timedelta

import pytest

from lakefs_gc_assets.errors import ObjectNotFound
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.replay.clients import RUNS, boto3_client, listing, place
from lakefs_gc_assets_tests.replay.server import ReplayServer
from lakefs_gc_assets_tests.runs.recordings import folder_of, recorded_and_made


def may_be_a_metarange(key: str) -> bool:
    """True for files that may be served with an earlier date, so that commits of a recording keep their dates."""
    return re.fullmatch("_lakefs/[0-9a-f]{64}", key) is not None


@pytest.mark.parametrize("name", recorded_and_made("small"))
def test_the_listing_is_the_recorded_one_for_boto3(name: str) -> None:
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


def test_the_collectors_own_store_works_on_it() -> None:
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
