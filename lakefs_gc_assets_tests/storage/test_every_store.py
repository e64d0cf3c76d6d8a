"""The contract of every store, tested for each kind."""

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.errors import AlreadyExists, CorruptFile, ObjectNotFound, PreconditionFailed, StorageError
from lakefs_gc_assets.storage import interface, traffic
from lakefs_gc_assets.storage.azure import AzureStore
from lakefs_gc_assets.storage.interface import (
    LISTING_SCHEMA,
    DeleteResult,
    ObjectStore,
    deletes_until,
    fetch,
    get_if_there,
    head_if_there,
)
from lakefs_gc_assets.storage.local import LocalStore

# The last two cannot be written in XML: emulators replace them with another character, or fail.
_NOT_IN_NAMES = "/\ufffe\uffff"
SEGMENTS = st.text(
    st.characters(exclude_characters=_NOT_IN_NAMES, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20
).filter(lambda segment: segment not in (".", ".."))
KEYS = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)
ODD_KEYS = [
    "a b",
    "a%20b",
    "a%2520b",
    "a+b",
    "a,b",
    "a%2Fb",
    "data/ft6os3pksdubls6qdbqg/d4g3r8hksdubls6qdbr0,W0fAKF4Oc2dAsoFxwhE1ZLb1ZGCVqk_9NFpD6OBNGBQ",
    "data/!ab/c/x",
    "data/repository:token/nanoid",
    "?query#fragment&x=1;y",
    "~*'()[]{}|^`<>\":@$=",
    "é",
    "e\u0301",
    "日本/語",
    "\U0001f5d1",
    ".hidden",
    "..double",
    "trailing. ",
    " leading",
    # Last: Azure treats it as a slash.
    "back\\slash",
]


def rows(store: ObjectStore, prefix: str = "") -> dict[str, dict[str, object]]:
    batches = list(store.list(prefix))
    assert all(batch.schema.equals(LISTING_SCHEMA) for batch in batches)
    listed = pa.Table.from_batches(batches, LISTING_SCHEMA).to_pylist()
    assert len({row["key"] for row in listed}) == len(listed)
    return {row["key"]: row for row in listed}


def test_nothing_is_deleted_once_the_time_for_it_is_over(store: ObjectStore) -> None:
    names = [f"data/slice/{number}" for number in range(3)]
    for name in names:
        store.put(name, b"content")
    with deletes_until(lambda: True):
        outcomes = store.delete(names)
    assert [(outcome.key, outcome.result) for outcome in outcomes] == [(name, DeleteResult.LEFT) for name in names]
    assert set(rows(store)) == set(names)
    with deletes_until(lambda: False):
        assert {outcome.result for outcome in store.delete(names)} == {DeleteResult.ACCEPTED}
    assert rows(store) == {}


def test_requests_and_bytes_read_are_counted(store: ObjectStore) -> None:
    store.delete([])
    before = traffic.total()
    store.put("data/slice/object", b"content")
    store.get("data/slice/object")
    used = traffic.total() - before
    expected = {} if isinstance(store, LocalStore) else {traffic.REQUESTS: 2, traffic.BYTES_READ: 7}
    assert used == expected


def test_what_is_put_can_be_read_looked_at_and_listed(store: ObjectStore) -> None:
    before = datetime.now(UTC)
    etag = store.put("data/slice/object", b"content")
    facts = store.head("data/slice/object")
    assert store.get("data/slice/object") == b"content"
    assert (facts.key, facts.size, facts.etag) == ("data/slice/object", 7, etag)
    assert facts.last_modified.utcoffset() == timedelta(0)
    assert before - timedelta(seconds=1) <= facts.last_modified <= datetime.now(UTC)
    listed = rows(store)["data/slice/object"]
    assert listed["size"] == 7
    # Listings of some services show whole seconds only, as do headers of others.
    listed_at = listed["last_modified"]
    assert isinstance(listed_at, datetime)
    assert abs(facts.last_modified - listed_at) < timedelta(seconds=1)


def test_the_md5_is_reported_of_the_very_object_or_not_at_all(store: ObjectStore) -> None:
    store.put("object", b"content")
    assert store.head("object").md5 in (hashlib.md5(b"content").hexdigest(), None)


def test_s3_lists_md5_and_folders_list_no_etags(s3_store: ObjectStore, local_store: ObjectStore) -> None:
    for store in (s3_store, local_store):
        store.put("object", b"content")
    assert rows(s3_store)["object"]["etag"] == hashlib.md5(b"content").hexdigest()
    assert rows(local_store)["object"]["etag"] is None


def test_a_record_that_is_too_big_is_not_read(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parsed record would take ten times as much memory."""
    monkeypatch.setattr(interface, "_MAX_RECORD_BYTES", 1000)
    keys = ["_lakefs/retention/gc/lock.json", "_lakefs/retention/gc/table.parquet", "data/slice/object.json"]
    for key in keys:
        store.put(key, b"x" * 1001)

    with pytest.raises(CorruptFile, match=r"lock\.json: size: .* another program wrote it"):
        store.get(keys[0])

    assert [len(store.get(key)) for key in keys[1:]] == [1001, 1001]
    store.put(keys[0], b"x" * 1000)
    assert len(store.get(keys[0])) == 1000


def test_a_put_replaces_and_empty_objects_are_objects(store: ObjectStore) -> None:
    first = store.put("key", b"one")
    second = store.put("key", b"")
    assert first != second
    assert store.get("key") == b""
    assert rows(store)["key"]["size"] == 0


def test_a_part_of_an_object_is_read(store: ObjectStore) -> None:
    for key in ("folder/key", "folder/a%20b", "folder/日本"):
        store.put(key, b"0123456789")
        assert [store.get_part(key, *bounds) for bounds in ((0, 10), (0, 1), (3, 7), (9, 10))] == [
            b"0123456789",
            b"0",
            b"3456",
            b"9",
        ]
    with pytest.raises(ObjectNotFound):
        store.get_part("folder/other", 0, 1)
    with suppress(StorageError):
        assert store.get_part("folder/key", 8, 12) == b"89"
    with suppress(StorageError):
        assert store.get_part("folder/key", 20, 30) == b""


def test_odd_keys_stay_apart(store: ObjectStore) -> None:
    names = ODD_KEYS[:-1] if isinstance(store, AzureStore) else ODD_KEYS
    for key in names:
        store.put(key, key.encode())
    assert set(rows(store)) == set(names)
    for key in names:
        assert store.get(key) == key.encode()
        assert store.head(key).key == key
    gone = names[::2]
    assert [outcome.key for outcome in store.delete(gone)] == gone
    assert set(rows(store)) == set(names) - set(gone)


@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(keys=st.sets(KEYS, min_size=1, max_size=4))
def test_any_key_round_trips(store: ObjectStore, keys: set[str]) -> None:
    folder = f"{uuid4().hex}/"
    # A folder cannot hold a file and a folder with the same name, so each key has its own number in front.
    named = {f"{folder}{number}/{key}": key.encode() for number, key in enumerate(sorted(keys))}
    named = {key: data for key, data in named.items() if all(len(part.encode()) < 250 for part in key.split("/"))}
    if isinstance(store, AzureStore):
        named = {key: data for key, data in named.items() if "\\" not in key}
    for key, data in named.items():
        store.put(key, data)
    assert set(rows(store, folder)) == set(named)
    assert {key: store.get(key) for key in named} == named
    assert {outcome.result for outcome in store.delete(list(named))} <= {DeleteResult.ACCEPTED}
    assert rows(store, folder) == {}


def test_a_prefix_is_a_folder_and_not_the_beginning_of_a_name(store: ObjectStore) -> None:
    for key in ("data/a/1", "data/a/b/2", "data/ab/3", "data/a-1", "other"):
        store.put(key, b"")
    assert set(rows(store, "data/a/")) == {"data/a/1", "data/a/b/2"}
    assert set(rows(store, "data/")) == {"data/a/1", "data/a/b/2", "data/ab/3", "data/a-1"}
    assert rows(store, "data/none/") == {}
    assert rows(store, "other/") == {}
    with pytest.raises(ValueError, match="ends with a slash"):
        store.list("data/a")
    with pytest.raises(ValueError, match="ends with a slash"):
        store.list_level("data/a")


def test_one_level_shows_sub_prefixes_and_objects(store: ObjectStore) -> None:
    for key in ("data/s2/1", "data/s1/1", "data/s1/2", "data/s1/deep/3", "data/z", "data/é", "data/a b", "dummy"):
        store.put(key, b"xy")
    top = store.list_level("")
    assert top.prefixes == ("data/",)
    assert [facts.key for facts in top.objects] == ["dummy"]
    level = store.list_level("data/")
    assert level.prefixes == ("data/s1/", "data/s2/")
    assert [(facts.key, facts.size) for facts in level.objects] == [("data/a b", 2), ("data/z", 2), ("data/é", 2)]
    first, looked_at = level.objects[0], store.head("data/a b")
    assert replace(first, last_modified=looked_at.last_modified) == looked_at
    assert abs(first.last_modified - looked_at.last_modified) < timedelta(seconds=1)
    nothing = store.list_level("data/none/")
    assert (nothing.prefixes, nothing.objects) == ((), ())


def test_a_prefix_whose_last_object_is_deleted_is_gone(store: ObjectStore) -> None:
    store.put("data/s1/deep/1", b"")
    store.delete(["data/s1/deep/1"])
    assert store.list_level("data/").prefixes == ()


def test_what_is_missing_is_missing(store: ObjectStore) -> None:
    store.put("there/object", b"")
    for key in ("missing", "there", "there/object/below"):
        with pytest.raises(ObjectNotFound, match=key):
            store.get(key)
        with pytest.raises(ObjectNotFound, match=key):
            store.head(key)
        assert get_if_there(store, key) is None
        assert head_if_there(store, key) is None
        with pytest.raises(CorruptFile, match=f"{key}: existence"):
            fetch(store, key)
    outcomes = store.delete(["missing", "there", "there/object/below"])
    assert [outcome.result for outcome in outcomes] == [DeleteResult.ACCEPTED] * 3
    assert store.get("there/object") == b""
    assert get_if_there(store, "there/object") == fetch(store, "there/object") == b""


def test_delete_answers_for_each_key_in_order_and_takes_so_many(store: ObjectStore) -> None:
    # More than any service takes in one batch, except S3.
    keys = [f"data/s/{number}" for number in range(300)]
    for key in keys[:20]:
        store.put(key, b"")
    store.put("data/s/kept", b"")
    outcomes = store.delete(keys)
    assert [outcome.key for outcome in outcomes] == keys
    assert {(outcome.result, outcome.error) for outcome in outcomes} == {(DeleteResult.ACCEPTED, None)}
    assert set(rows(store)) == {"data/s/kept"}
    assert list(store.delete([])) == []
    assert store.delete_limit == 1000
    with pytest.raises(ValueError, match="at most 1000"):
        store.delete([str(number) for number in range(1001)])


def test_a_put_if_absent_leaves_what_is_there(store: ObjectStore) -> None:
    etag = store.put_if_absent("folder/key", b"first")
    assert store.head("folder/key").etag == etag
    with pytest.raises(AlreadyExists, match="folder/key"):
        store.put_if_absent("folder/key", b"second")
    assert store.get("folder/key") == b"first"


def test_a_put_if_match_replaces_one_version_only(store: ObjectStore) -> None:
    first = store.put_if_absent("folder/key", b"first")
    second = store.put_if_match("folder/key", b"second", first)
    assert store.head("folder/key").etag == second
    with pytest.raises(PreconditionFailed, match="folder/key"):
        store.put_if_match("folder/key", b"third", first)
    assert store.get("folder/key") == b"second"
    store.delete(["folder/key"])
    with pytest.raises(PreconditionFailed, match="folder/key"):
        store.put_if_match("folder/key", b"fourth", second)
    with pytest.raises(ObjectNotFound):
        store.get("folder/key")


def test_of_many_writers_one_creates(store: ObjectStore) -> None:
    def create(writer: int) -> bool:
        try:
            store.put_if_absent(f"race-{attempt}", str(writer).encode())
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        for attempt in range(5):
            won = list(pool.map(create, range(4)))
            assert won.count(True) == 1
            assert store.get(f"race-{attempt}") == str(won.index(True)).encode()


def test_a_counter_kept_by_compare_and_swap_loses_no_step(store: ObjectStore) -> None:
    store.put("counter", b"0")

    def count(steps: int) -> None:
        while steps:
            etag = store.head("counter").etag
            value = int(store.get("counter"))
            assert etag is not None
            try:
                store.put_if_match("counter", str(value + 1).encode(), etag)
            except PreconditionFailed:
                continue
            steps -= 1

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count, [8] * 3))
    assert store.get("counter") == b"24"


@pytest.mark.parametrize("key", ["", "\ud800"])
def test_no_object_can_have_such_a_key(store: ObjectStore, key: str) -> None:
    for ask in (store.get, store.head, lambda key: store.put(key, b"")):
        with pytest.raises(StorageError):
            ask(key)


def test_outcomes_can_be_handed_to_other_processes(store: ObjectStore) -> None:
    outcomes = store.delete(["a"])
    assert pickle.loads(pickle.dumps(outcomes)) == outcomes
