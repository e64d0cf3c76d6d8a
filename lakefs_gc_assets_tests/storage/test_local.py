import multiprocessing
import os
import stat
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lakefs_gc_assets.errors import AlreadyExists, ObjectNotFound, PreconditionFailed, StorageError, UnlistableKey
from lakefs_gc_assets.storage import local as local_store
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets.storage.local import HIDDEN, LocalStore

spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    root.mkdir()
    return root


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


def keys(store: LocalStore, prefix: str = "") -> set[str]:
    return {key for batch in store.list(prefix) for key in batch["key"].to_pylist()}


def test_a_namespace_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not a folder"):
        LocalStore(tmp_path / "none")


def test_a_namespace_that_vanished_is_not_an_empty_one(root: Path, store: LocalStore) -> None:
    root.rmdir()
    with pytest.raises(StorageError, match="cannot list"):
        keys(store)
    with pytest.raises(StorageError, match="cannot list"):
        store.list_level("")


def test_times_are_kept_to_the_microsecond(root: Path, store: LocalStore) -> None:
    store.put("object", b"")
    os.utime(root / "object", ns=(0, 1_700_000_000_123_456_789))
    facts = store.head("object")
    assert facts.last_modified.isoformat() == "2023-11-14T22:13:20.123456+00:00"
    [batch] = store.list("")
    assert batch["last_modified"].to_pylist() == [facts.last_modified]


def test_listing_comes_in_batches(root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_store, "BATCH_ROWS", 10)
    names = {f"data/{number % 4}/{number}" for number in range(35)}
    for name in names:
        store.put(name, b"")
    batches = list(store.list("data/"))
    assert [batch.num_rows for batch in batches] == [10, 10, 10, 5]
    assert {key for batch in batches for key in batch["key"].to_pylist()} == names


def test_helper_files_are_no_objects(root: Path, store: LocalStore) -> None:
    store.put("_lakefs/retention/gc/uncommitted/run/plan.json", b"")
    (root / HIDDEN / "new-left-behind").write_bytes(b"")
    assert keys(store) == {"_lakefs/retention/gc/uncommitted/run/plan.json"}
    assert store.list_level("_lakefs/retention/gc/").prefixes == ("_lakefs/retention/gc/uncommitted/",)
    for ask in (store.get, store.head, lambda key: store.put(key, b"")):
        with pytest.raises(StorageError, match="helper files"):
            ask(f"{HIDDEN}lock")
    assert store.delete([f"{HIDDEN}lock"])[0].result == DeleteResult.FAILED


def test_nothing_is_left_behind_by_puts(root: Path, store: LocalStore) -> None:
    etag = store.put("key", b"1")
    store.put_if_match("key", b"2", etag)
    with pytest.raises(PreconditionFailed):
        store.put_if_match("key", b"3", etag)
    with pytest.raises(AlreadyExists):
        store.put_if_absent("key", b"4")
    assert os.listdir(root / HIDDEN) == ["lock"]  # noqa: PTH208


def test_files_can_be_read_by_others(root: Path, store: LocalStore) -> None:
    mask = os.umask(0o022)
    try:
        store.put("key", b"")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((root / "key").stat().st_mode) == 0o644


@pytest.mark.parametrize("key", ["../outside", "a/../b", "a/./b", "a//b", "/a", "a/", ".", "..", "a\0b", "\ud800"])
def test_keys_that_are_no_path_below_the_folder_are_refused(store: LocalStore, root: Path, key: str) -> None:
    (root.parent / "outside").write_bytes(b"precious")
    for ask in (store.get, store.head, lambda key: store.put(key, b""), lambda key: store.put_if_absent(key, b"")):
        with pytest.raises(StorageError) as caught:
            ask(key)
        assert not isinstance(caught.value, ObjectNotFound)
    [outcome] = store.delete([key])
    assert outcome.result == DeleteResult.FAILED
    assert (root.parent / "outside").read_bytes() == b"precious"


def test_a_listing_outside_is_refused(store: LocalStore) -> None:
    for prefix in ("../", "/", "a/../../", "a//"):
        with pytest.raises(StorageError):
            store.list(prefix)
        with pytest.raises(StorageError):
            store.list_level(prefix)


def test_a_name_that_is_not_utf8_ends_the_listing(root: Path, store: LocalStore) -> None:
    store.put("data/fine", b"")
    try:
        (root / "data" / os.fsdecode(b"b\xe9d")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(UnlistableKey, match=r"data/b\\+xe9d.*not UTF-8"):
        keys(store)
    with pytest.raises(UnlistableKey, match="not UTF-8"):
        store.list_level("data/")


def test_links_are_neither_followed_nor_listed(root: Path, store: LocalStore, caplog: pytest.LogCaptureFixture) -> None:
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"precious")
    store.put("data/object", b"mine")
    (root / "data" / "file-link").symlink_to(outside / "secret")
    (root / "data" / "folder-link").symlink_to(outside)
    (root / "data" / "inner-link").symlink_to(root / "data" / "object")
    assert keys(store) == {"data/object"}
    assert "3 symbolic links were neither followed nor listed" in caplog.text
    assert [facts.key for facts in store.list_level("data/").objects] == ["data/object"]
    assert store.list_level("data/").prefixes == ()
    for key in ("data/file-link", "data/folder-link/secret"):
        with pytest.raises(StorageError, match="symbolic link out of"):
            store.get(key)
    with pytest.raises(StorageError, match="symbolic link"):
        store.list("data/folder-link/")
    with pytest.raises(StorageError, match="symbolic link"):
        store.put("data/folder-link/secret", b"replaced")
    [outcome] = store.delete(["data/folder-link/secret"])
    assert outcome.result == DeleteResult.FAILED
    assert outcome.error is not None and "symbolic link" in outcome.error
    assert (outside / "secret").read_bytes() == b"precious"
    assert store.get("data/inner-link") == b"mine"


def test_a_linked_root_is_the_folder_it_leads_to(root: Path) -> None:
    link = root.parent / "link"
    link.symlink_to(root)
    store = LocalStore(link)
    store.put("data/object", b"mine")
    assert keys(store, "data/") == {"data/object"}
    assert [outcome.result for outcome in store.delete(["data/object"])] == [DeleteResult.ACCEPTED]
    assert keys(store) == set()


def test_pipes_are_no_objects(root: Path, store: LocalStore) -> None:
    os.mkfifo(root / "pipe")
    assert keys(store) == set()
    with pytest.raises(ObjectNotFound):
        store.get("pipe")


def test_what_may_not_be_read_ends_the_listing(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("data/closed/object", b"")
    scandir = os.scandir

    def refusing(path: bytes) -> Iterator[os.DirEntry[bytes]]:
        if path.rstrip(b"/").endswith(b"closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(StorageError, match=r"data/closed.*Permission denied"):
        keys(store)
    with pytest.raises(StorageError, match=r"data/closed.*Permission denied"):
        store.list_level("data/")


def test_a_failed_delete_names_its_key_and_stops_no_other(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("1", "2", "3"):
        store.put(key, b"")
    unlink = os.unlink

    def failing(path: bytes) -> None:
        if path.endswith(b"/2"):
            raise PermissionError(1, "Operation not permitted", path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", failing)
    outcomes = store.delete(["1", "2", "3"])
    assert [(outcome.key, outcome.result.value) for outcome in outcomes] == [
        ("1", "accepted"),
        ("2", "failed"),
        ("3", "accepted"),
    ]
    assert outcomes[1].error == "Operation not permitted"
    assert keys(store) == {"2"}


def test_a_put_that_fails_changes_nothing(root: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("key", b"old")

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        store.put("key", b"new")
    assert store.get("key") == b"old"
    assert [name for name in os.listdir(root / HIDDEN) if name != "lock"] == []  # noqa: PTH208


def test_a_file_in_the_way_of_a_folder_is_an_error(store: LocalStore) -> None:
    store.put("a", b"")
    with pytest.raises(StorageError, match="cannot write"):
        store.put("a/b", b"")
    store.put("c/d", b"")
    with pytest.raises(StorageError, match="cannot write"):
        store.put("c", b"")


def test_a_replacement_is_later_than_what_it_replaces_whatever_the_clock(root: Path, store: LocalStore) -> None:
    store.put("key", b"x")
    ahead = 4_000_000_000_000_000_000
    os.utime(root / "key", ns=(ahead, ahead))
    etags = [store.head("key").etag or ""]
    for _ in range(50):
        etags.append(store.put_if_match("key", b"x", etags[-1]))
    etags.append(store.put("key", b"x"))
    assert len(set(etags)) == 52
    assert (root / "key").stat().st_mtime_ns > ahead


def test_readers_see_whole_objects_only(store: LocalStore) -> None:
    contents = [bytes([letter]) * 200_000 for letter in b"ab"]
    store.put("key", contents[0])
    done = threading.Event()

    def write() -> None:
        for number in range(60):
            store.put("key", contents[number % 2])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert store.get("key") in contents
    writer.join()


def _count(root: Path, steps: int, ready: Connection) -> None:
    store = LocalStore(root)
    ready.send(None)
    ready.recv()
    created = 0
    for step in range(steps):
        try:
            store.put_if_absent(f"created/{step}", str(os.getpid()).encode())
            created += 1
        except AlreadyExists:
            pass
        while True:
            etag = store.head("counter").etag or ""
            value = int(store.get("counter"))
            try:
                store.put_if_match("counter", str(value + 1).encode(), etag)
                break
            except PreconditionFailed:
                continue
    ready.send(created)


def test_processes_never_both_win(root: Path, store: LocalStore) -> None:
    store.put("counter", b"0")
    pipes = [spawn.Pipe() for _ in range(2)]
    workers = [spawn.Process(target=_count, args=(root, 60, theirs)) for _, theirs in pipes]
    for worker in workers:
        worker.start()
    for ours, _ in pipes:
        ours.recv()
    for ours, _ in pipes:
        ours.send(None)
    created = [ours.recv() for ours, _ in pipes]
    for worker in workers:
        worker.join()
    assert sum(created) == 60
    assert store.get("counter") == b"120"
