from datetime import UTC, datetime
from threading import Barrier, Event, current_thread, main_thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.errors import CorruptFile, ObjectNotFound
from lakefs_gc_assets.lakefs.layout import moved_metadata
from lakefs_gc_assets.storage.interface import ObjectFacts, fetch, read_ahead
from lakefs_gc_assets_tests.servers.stores import bucket, local_store, s3_server, s3_store, store

__all__ = ["bucket", "local_store", "s3_server", "s3_store", "store"]


SOURCE = "_lakefs/a"


class Store:
    """Returns each key as its content, unless the key is gone.

    Attributes:
        asked: the requested keys, in order.
    """

    def __init__(self, gone: frozenset[str] = frozenset()) -> None:
        self.asked: list[str] = []
        self.gone = gone

    def get(self, key: str) -> bytes:
        self.asked.append(key)
        if key in self.gone:
            raise ObjectNotFound(key)
        return key.encode()

    def get_part(self, key: str, start: int, end: int) -> bytes:
        return self.get(key)[start:end]

    def head(self, key: str) -> ObjectFacts:
        if key in self.gone:
            raise ObjectNotFound(key)
        return ObjectFacts(key, len(key), datetime.now(UTC), None)


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_missing_file_is_looked_for_in_quarantine_without_reading_it(is_moved: bool) -> None:
    store = Store(frozenset({SOURCE} if is_moved else {SOURCE, moved_metadata(SOURCE)}))
    with read_ahead(store, []) as ahead, pytest.raises(CorruptFile) as missing:
        fetch(ahead, SOURCE)
    assert ("lakefs-gc metadata restore" in str(missing.value)) == is_moved
    assert store.asked == [SOURCE]


KEYS = [f"key{number}" for number in range(9)]


@given(st.lists(st.sampled_from(KEYS)), st.lists(st.sampled_from(KEYS)), st.frozensets(st.sampled_from(KEYS)))
def test_whatever_is_asked_for_the_store_would_give(
    reported: list[str], asked: list[str], gone: frozenset[str]
) -> None:
    with read_ahead(Store(gone), ((key, 1) for key in reported)) as ahead:
        for key in asked:
            if key in gone:
                with pytest.raises(ObjectNotFound, match=key):
                    ahead.get(key)
            else:
                assert ahead.get(key) == key.encode()


def test_each_object_is_fetched_once() -> None:
    store = Store()
    with read_ahead(store, ((key, 1) for key in KEYS)) as ahead:
        assert [ahead.get(key) for key in KEYS] == [key.encode() for key in KEYS]
    assert sorted(store.asked) == KEYS


def test_four_objects_are_fetched_while_the_caller_deals_with_one() -> None:
    together = Barrier(5, timeout=900)

    class Waiting(Store):
        def get(self, key: str) -> bytes:
            if current_thread() is not main_thread():
                together.wait()
            return super().get(key)

    store = Waiting()
    with read_ahead(store, ((key, 1) for key in KEYS[:5])) as ahead:
        assert ahead.get(KEYS[0]) == b"key0"
        assert store.asked == KEYS[:1]
        together.wait()
        assert [ahead.get(key) for key in KEYS[1:5]] == [key.encode() for key in KEYS[1:5]]


def test_of_large_objects_one_is_fetched_ahead() -> None:
    store, large = Store(), 20 << 20
    with read_ahead(store, ((key, large) for key in KEYS)) as ahead:
        for number, key in enumerate(KEYS[:4]):
            ahead.get(key)
            assert len(store.asked) <= number + 2
    assert len(store.asked) <= 5


def test_an_object_alone_needs_no_thread() -> None:
    class Alone(Store):
        def get(self, key: str) -> bytes:
            assert current_thread() is main_thread()
            return super().get(key)

    with read_ahead(Alone(), [("key0", 1)]) as ahead:
        assert ahead.get("key0") == b"key0"


def test_nobody_waits_for_what_is_not_asked_for() -> None:
    ended = Event()

    class Slow(Store):
        def get(self, key: str) -> bytes:
            if current_thread() is not main_thread():
                ended.wait(60)
            return super().get(key)

    with pytest.raises(ValueError, match="the caller's"), read_ahead(Slow(), ((key, 1) for key in KEYS)) as ahead:
        ahead.get("key0")
        raise ValueError("the caller's")
    assert not ended.is_set()
    ended.set()
