"""Listings between bounds, divided among tasks: exactly one task lists each object, for any keys and bounds."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakefs_gc_assets.storage import bucket_store
from lakefs_gc_assets.storage.azure import AzureStore
from lakefs_gc_assets.storage.interface import LISTING_SCHEMA, ListsInOrder, ObjectStore
from lakefs_gc_assets.storage.local import HIDDEN, LocalStore
from lakefs_gc_assets_tests.servers.s3_server import S3Server, listing_names
from lakefs_gc_assets_tests.storage.test_every_store import KEYS, ODD_KEYS, SEGMENTS

SOME = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
BOUNDS = st.lists(KEYS | SEGMENTS | st.sampled_from(["0", "1/", "2//x", "3/../y", "~", "\x01"]), max_size=4)


@pytest.fixture
def ordered(store: ObjectStore) -> ListsInOrder:
    """An empty storage namespace of each kind of store that lists in order."""
    if not isinstance(store, ListsInOrder):
        assert isinstance(store, AzureStore)
        pytest.skip("accounts of Azure with a hierarchical namespace list folder by folder: one task lists a part")
    return store


def between(
    store: ListsInOrder, prefix: str, after: str, until: str | None, *, only_directly: bool = False
) -> list[str]:
    batches = list(store.list_between(prefix, after, until, only_directly=only_directly))
    assert all(batch.schema.equals(LISTING_SCHEMA) and batch.num_rows for batch in batches)
    return [key for batch in batches for key in batch["key"].to_pylist()]


def in_pieces(store: ListsInOrder, prefix: str, bounds: Sequence[str], *, only_directly: bool = False) -> list[str]:
    """Keys of all pieces between the bounds, in order."""
    ascending = sorted({prefix + bound for bound in bounds}, key=str.encode)
    ends: list[str | None] = ["", *ascending, None]
    found = []
    for after, until in pairwise(ends):
        piece = between(store, prefix, after or "", until, only_directly=only_directly)
        assert all(key.encode() > (after or "").encode() for key in piece)
        assert until is None or all(key.encode() <= until.encode() for key in piece)
        found += piece
    return found


@SOME
@given(keys=st.sets(KEYS, min_size=1, max_size=6), bounds=BOUNDS, among=st.data())
def test_pieces_give_each_key_once_and_in_order(
    ordered: ListsInOrder, keys: set[str], bounds: list[str], among: st.DataObject
) -> None:
    folder = f"{uuid4().hex}/"
    # A folder cannot hold a file and a folder with the same name, so each key has its own number in front.
    names = [f"{number}/{key}" for number, key in enumerate(sorted(keys))]
    names = [name for name in names if all(len(part.encode()) < 250 for part in name.split("/"))]
    for name in names:
        ordered.put(folder + name, b"")
    bounds += among.draw(st.lists(st.sampled_from(names), max_size=3)) if names else []
    expected = sorted((folder + name for name in names), key=str.encode)

    assert in_pieces(ordered, folder, bounds) == expected
    assert in_pieces(ordered, folder, bounds, only_directly=True) == []
    assert in_pieces(ordered, "", [folder + bound for bound in bounds]).count(folder) == 0


@pytest.mark.parametrize("bounds", [[], ["a b"], ["a%20b", "data/", "data/repository:token/nanoid"], ODD_KEYS])
def test_what_lies_directly_below_can_be_listed_in_pieces(ordered: ListsInOrder, bounds: list[str]) -> None:
    for key in ODD_KEYS:
        ordered.put(key, b"")

    assert in_pieces(ordered, "", bounds) == sorted(ODD_KEYS, key=str.encode)
    level = [facts.key for facts in ordered.list_level("").objects]
    assert in_pieces(ordered, "", bounds, only_directly=True) == level
    assert len(level) >= 10


def test_many_pages_in_pieces(ordered: ListsInOrder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "BATCH_ROWS", 20)
    names = [f"data/s/{number:03}" for number in range(100)]
    for name in names:
        ordered.put(name, b"")

    assert in_pieces(ordered, "data/s/", ["", "005", "0056", "006", "05", "099", "1"]) == names
    assert between(ordered, "data/s/", "data/s/010", "data/s/012") == ["data/s/011", "data/s/012"]


# S3


def test_a_piece_costs_no_more_calls_than_its_pages(
    s3_server: S3Server, bucket: str, s3_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(s3_store, ListsInOrder)
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    s3_store.put("data/s/00", b"")
    (path,) = {request.path for request in s3_server.requests[-1:]}
    root = path.removeprefix(f"/{bucket}/").removesuffix("data/s/00")
    s3_server.fill(bucket, (f"{root}data/s/{number:02}" for number in range(1, 50)))
    for after, until, calls in [("", None, 5), ("09", "19", 1), ("09", "29", 2), ("5", None, 1)]:
        s3_server.requests.clear()
        found = between(s3_store, "data/s/", f"data/s/{after}" if after else "", until and f"data/s/{until}")
        # The page after the last one shows that nothing else belongs to the piece.
        assert calls <= len(s3_server.requests) <= calls + 1
        assert len(found) == {5: 50, 1: len(found), 2: 20}[calls]


@pytest.mark.parametrize("odd", ["a//b", "a/./b", "a/control\x01character", "a/trailing/"])
def test_pieces_with_keys_beyond_obstore(s3_store: ObjectStore, odd: str) -> None:
    assert isinstance(s3_store, ListsInOrder)
    names = sorted(["a/0", "a/zz", "zz", odd, "a/trailing"], key=str.encode)
    for name in names:
        s3_store.put(name, b"")
    for bounds in ([], [odd], ["a/"], ["a/trailing"], names):
        assert in_pieces(s3_store, "", bounds) == names


def test_a_service_that_always_begins_with_the_first_key_is_listed_from_there(
    s3_server: S3Server, s3_store: ObjectStore
) -> None:
    assert isinstance(s3_store, ListsInOrder)
    with s3_server.failing(listing_names(lambda request: "abcde")):
        assert in_pieces(s3_store, "", ["a", "bb", "d"]) == list("abcde")


# Folders


def test_links_and_our_own_files_are_in_no_piece(
    tmp_path: Path, local_store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(local_store, LocalStore)
    root = tmp_path / "repository"
    for key in ("a", "b/c", "b-", "b0"):
        local_store.put(key, b"")
    local_store.put_if_match("a", b"", str(local_store.head("a").etag))
    (root / "b" / "link").symlink_to(root / "a")
    (root / "folder-link").symlink_to(root / "b")

    assert any((root / HIDDEN).iterdir())
    assert in_pieces(local_store, "", ["a", "b/"]) == ["a", "b-", "b/c", "b0"]
    assert "symbolic links were neither followed nor listed" in caplog.text


def test_a_folder_deeper_than_python_recurses(local_store: ObjectStore) -> None:
    assert isinstance(local_store, ListsInOrder)
    deep = "a/" * 800 + "b"
    local_store.put(deep, b"")

    assert between(local_store, "", "", None) == [deep]
    assert between(local_store, "", "a/a", "a/b") == [deep]
    assert between(local_store, "", "a0", None) == []
