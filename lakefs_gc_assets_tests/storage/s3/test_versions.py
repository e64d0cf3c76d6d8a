"""Buckets that keep versions: deleted objects are hidden, and the outcome of a delete suffices to restore them."""

from uuid import uuid4

import pytest

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import DeleteResult, KeepsVersions, ListsVersions, ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.s3_server import S3Server


@pytest.fixture
def versioned(s3_server: S3Server) -> str:
    return s3_server.new_versioned_bucket()


def opened(server: S3Server, bucket: str) -> ObjectStore:
    return open_store(server.settings(), Namespace.parse(f"s3://{bucket}/{uuid4().hex}"))


def keys(store: ObjectStore) -> set[str]:
    return {key for batch in store.list("") for key in batch["key"].to_pylist()}


@pytest.mark.parametrize("key", ["data/slice/object", "data/slice/no\x01xml"])
def test_a_delete_marker_is_recorded_and_undone(s3_server: S3Server, versioned: str, key: str) -> None:
    store = opened(s3_server, versioned)
    store.put(key, b"old")
    store.put(key, b"new")
    [outcome] = store.delete([key])
    assert (outcome.result, outcome.soft_deleted) == (DeleteResult.ACCEPTED, True)
    assert keys(store) == set()

    assert outcome.version_id is not None
    full = f"{store._root}{key}"  # type: ignore[attr-defined]
    s3_server.client().delete_object(Bucket=versioned, Key=full, VersionId=outcome.version_id)
    assert keys(store) == {key}
    assert store.get(key) == b"new"


def test_each_key_has_a_marker_of_its_own(s3_server: S3Server, versioned: str) -> None:
    store = opened(s3_server, versioned)
    names = [f"data/slice/{number}" for number in range(50)]
    for name in names:
        store.put(name, b"")
    outcomes = store.delete(names)
    assert len({outcome.version_id for outcome in outcomes}) == 50


def test_without_versions_nothing_is_said_to_be_kept(s3_store: ObjectStore) -> None:
    s3_store.put("key", b"")
    [outcome] = s3_store.delete(["key"])
    assert (outcome.version_id, outcome.soft_deleted) == (None, None)


def test_suspended_versions_promise_nothing(s3_server: S3Server, versioned: str) -> None:
    s3_server.client().put_bucket_versioning(Bucket=versioned, VersioningConfiguration={"Status": "Suspended"})
    store = opened(s3_server, versioned)
    store.put("key", b"")
    [outcome] = store.delete(["key"])
    assert outcome.result == DeleteResult.ACCEPTED
    assert outcome.soft_deleted is None
    assert keys(store) == set()


def test_a_lock_is_put_only_if_absent_below_a_delete_marker(s3_server: S3Server, versioned: str) -> None:
    store = opened(s3_server, versioned)
    store.put_if_absent("lock", b"first")
    store.delete(["lock"])
    etag = store.put_if_absent("lock", b"second")
    assert store.put_if_match("lock", b"third", etag)
    assert store.get("lock") == b"third"


class TestADeleteMarker:
    @pytest.mark.parametrize("key", ["data/slice/object", "data/slice/ä b%2F+"])
    def test_is_removed_and_the_object_is_there_again(self, s3_server: S3Server, versioned: str, key: str) -> None:
        store = opened(s3_server, versioned)
        assert isinstance(store, KeepsVersions)
        for other in (key + "0", key + "/0"):
            store.put(other, b"")
            store.delete([other])
        store.put(key, b"content")
        [outcome] = store.delete([key])
        assert outcome.version_id is not None
        assert store.remove_delete_marker(key, outcome.version_id) is True
        assert keys(store) == {key}
        assert store.get(key) == b"content"
        assert store.remove_delete_marker(key, outcome.version_id) is False

    def test_stays_where_anything_is_newer(self, s3_server: S3Server, versioned: str) -> None:
        store = opened(s3_server, versioned)
        assert isinstance(store, KeepsVersions)
        for key in ("deleted again", "written again"):
            store.put(key, b"content")
        first = [outcome.version_id or "" for outcome in store.delete(["deleted again", "written again"])]
        store.delete(["deleted again"])
        store.put("written again", b"newer")
        assert not store.remove_delete_marker("deleted again", first[0])
        assert not store.remove_delete_marker("written again", first[1])
        assert keys(store) == {"written again"}
        answer = s3_server.client().list_object_versions(Bucket=versioned, Prefix=store._root)  # type: ignore[attr-defined]
        assert len(answer["DeleteMarkers"]) == 3

    def test_is_reported_from_an_object_by_more_than_its_id(self, s3_server: S3Server, versioned: str) -> None:
        store = opened(s3_server, versioned)
        assert isinstance(store, KeepsVersions)
        store.put("key", b"content")
        answer = s3_server.client().list_object_versions(Bucket=versioned, Prefix=store._root)  # type: ignore[attr-defined]
        assert not store.remove_delete_marker("key", answer["Versions"][0]["VersionId"])
        assert store.get("key") == b"content"

    def test_without_a_version_of_its_own_is_refused(self, s3_server: S3Server, versioned: str) -> None:
        store = opened(s3_server, versioned)
        assert isinstance(store, KeepsVersions)
        with pytest.raises(StorageError, match="no version of its own"):
            store.remove_delete_marker("key", "null")


class TestVersions:
    @pytest.mark.parametrize("key", ["data/slice/object", "data/slice/ä b%2F+"])
    def test_all_are_listed_and_single_ones_deleted(self, s3_server: S3Server, versioned: str, key: str) -> None:
        store = opened(s3_server, versioned)
        assert isinstance(store, ListsVersions)
        for content in (b"old", b"newer"):
            store.put(key, content)
        store.put(f"{key}2", b"")
        store.delete([key])
        of_key = [version for version in store.versions(key) if version.key == key]
        assert sorted((each.is_marker, each.is_latest, each.size) for each in of_key) == [
            (False, False, 3),
            (False, False, 5),
            (True, True, 0),
        ]
        old = next(version for version in of_key if version.size == 3)
        assert old.etag == "149603e6c03516362a8da23f624db945"
        store.delete_version(key, old.version_id)
        store.delete_version(key, old.version_id)
        assert {*store.versions(key)} == {*of_key, *store.versions(f"{key}2")} - {old}

    def test_a_bucket_without_versions_has_its_objects(self, s3_store: ObjectStore) -> None:
        assert isinstance(s3_store, ListsVersions)
        s3_store.put("versions/key", b"1")
        (version,) = s3_store.versions("versions/")
        expected = ("versions/key", "null", False, True, 1)
        assert (version.key, version.version_id, version.is_marker, version.is_latest, version.size) == expected

    def test_page_by_page(self, s3_server: S3Server, versioned: str) -> None:
        store = opened(s3_server, versioned)
        assert isinstance(store, ListsVersions)
        full = store._root  # type: ignore[attr-defined]
        s3_server.fill(versioned, [f"{full}key {number}" for number in range(1001)])
        assert len({version.key for version in store.versions("key")}) == 1001

    def test_a_store_that_refuses(self, s3_server: S3Server) -> None:
        store = opened(s3_server, "no-such-bucket")
        assert isinstance(store, ListsVersions)
        with pytest.raises(StorageError, match="list the versions"):
            next(iter(store.versions("data/")))
