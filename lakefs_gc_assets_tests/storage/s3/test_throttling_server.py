"""A real S3 server behind a proxy that answers 503 SlowDown above a rate."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.storage.interface import DeleteResult, ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.servers.emulators import LimitedRate, Response, S3Proxy, s3_service
from lakefs_gc_assets_tests.servers.s3_server import Request

pytestmark = pytest.mark.slow

_TASKS = 6
_NAMES = [f"data/slice/{number:04}" for number in range(300)]


class Throttling:
    """Answers of the proxy above a rate of tokens per second; counts accepted and refused requests."""

    def __init__(self, limit: LimitedRate, tokens: Callable[[Request], int]) -> None:
        self._limit, self._tokens = limit, tokens
        self.accepted = self.refused = 0

    def answer(self, request: Request) -> Response | None:
        """See Proxy.answer."""
        tokens = self._tokens(request)
        if not tokens:
            return None
        self._limit.pass_time(time.monotonic() - self._limit.now)
        if self._limit.take_all(tokens):
            self.accepted += 1
            return None
        self.refused += 1
        return Response(503, {"content-type": "application/xml"}, b"<Error><Code>SlowDown</Code></Error>")


@pytest.fixture
def proxy() -> Iterator[S3Proxy]:
    before = S3Proxy(s3_service("versitygw"))
    yield before
    before.stop()


@pytest.fixture
def stores(proxy: S3Proxy) -> list[ObjectStore]:
    """The same storage namespace as each task opens it, with objects."""
    namespace = Namespace.parse(f"s3://{proxy.service.new_bucket()}/{uuid4().hex}")
    opened = [open_store(proxy.service.settings(), namespace) for _ in range(_TASKS)]
    with ThreadPoolExecutor(_TASKS) as pool:
        list(pool.map(lambda name: opened[0].put(name, b"content"), _NAMES))
    return opened


def keys_of_deletes(request: Request) -> int:
    return request.body.count(b"<Key>") if request.method == "POST" else 0


def listed(store: ObjectStore) -> list[str]:
    return [key for batch in store.list("data/") for key in batch["key"].to_pylist()]


@pytest.mark.parametrize(("rate", "most"), [(100, 50), (100, 25)], ids=["a batch at once", "less than a batch"])
def test_tasks_delete_all_without_a_storm(proxy: S3Proxy, stores: list[ObjectStore], rate: float, most: float) -> None:
    throttling = Throttling(LimitedRate(rate, most), keys_of_deletes)
    with proxy.failing(throttling.answer), ThreadPoolExecutor(_TASKS) as pool:
        answers = list(pool.map(lambda task: stores[task].delete(_NAMES[task::_TASKS]), range(_TASKS)))
    assert {outcome.result for outcomes in answers for outcome in outcomes} == {DeleteResult.ACCEPTED}
    assert listed(stores[0]) == []
    assert 0 < throttling.refused <= 3 * throttling.accepted + 5 * _TASKS


def test_copies_and_listings_give_up_nothing(proxy: S3Proxy, stores: list[ObjectStore]) -> None:
    throttling = Throttling(LimitedRate(100, 20), lambda request: 1)

    def copy(number: int) -> int:
        return stores[number % _TASKS].copy(_NAMES[number], f"quarantine/{number}").size

    with proxy.failing(throttling.answer), ThreadPoolExecutor(4 * _TASKS) as pool:
        assert set(pool.map(copy, range(60))) == {len(b"content")}
        assert listed(stores[0]) == _NAMES
    assert throttling.refused <= throttling.accepted
