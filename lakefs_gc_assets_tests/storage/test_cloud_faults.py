"""No fault between us and a cloud ends in a false claim about a delete or any other call."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from threading import Event

import pytest

from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.storage import cloud as cloud_module
from lakefs_gc_assets.storage.interface import DeleteOutcome, DeleteResult, ObjectStore, get_if_there
from lakefs_gc_assets_tests.servers.emulators import Response
from lakefs_gc_assets_tests.servers.s3_server import Request
from lakefs_gc_assets_tests.storage.test_clouds import Cloud, asked, cloud, is_batch, keys

__all__ = ["cloud"]

NAMES = [f"data/{number}" for number in range(5)]
ODD = "other//odd"
"""A key that only the services' own clients can read."""
Change = Callable[[Request, Response], Response]


@pytest.fixture(autouse=True)
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts, and no extra attempts for single keys of a batch."""
    monkeypatch.setattr(cloud_module, "ATTEMPTS", 2)
    monkeypatch.setattr(cloud_module, "RETRY_FOR", timedelta(seconds=0.1))
    monkeypatch.setattr(cloud_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(cloud_module, "DELETE_ATTEMPTS", 1)


@pytest.fixture
def stored(cloud: Cloud) -> ObjectStore:
    store = cloud.store()
    for name in NAMES:
        store.put(name, name.encode())
    return store


def busy(status: int) -> Response:
    return Response(status, {"retry-after": "0"}, b"<Error><Code>ServerBusy</Code></Error>")


def hang_up(*_: object) -> Response:
    """The connection ends without an answer."""
    raise ConnectionResetError


def cut(request: Request, response: Response) -> Response:
    """The connection ends within the body."""
    if not response.body:
        return response
    length = {"content-length": str(len(response.body)), "connection": "close"}
    return Response(response.status, {**response.headers, **length}, response.body[: len(response.body) // 2])


def shortened(request: Request, response: Response) -> Response:
    """Half of an answer, presented as complete."""
    return Response(response.status, response.headers, response.body[: len(response.body) // 2])


BEFORE: dict[str, Callable[[Request], Response | None]] = {
    "busy": lambda request: busy(503),
    "reset": hang_up,
    "a page of a proxy": lambda request: Response(200, {"content-type": "text/html"}, b"<html>log in</html>"),
    "nothing of a proxy": lambda request: Response(404, {"content-type": "text/html"}, b"<html>no such page</html>"),
}
"""The service never hears of the request."""
BEHIND: dict[str, Change] = {
    "busy": lambda request, response: busy(503),
    "reset": hang_up,
    "truncated": cut,
    "shortened": shortened,
}
"""The service does the request, and its answer is lost or changed."""


REPLACED = ("a page of a proxy", "shortened")
"""Other content in a complete answer, which nothing in the answer reveals.

So readers check files by digest or structure.
"""


def accepted(store: ObjectStore, names: list[str]) -> set[str]:
    """Keys that a delete reports as deleted."""
    outcomes: list[DeleteOutcome] = []
    try:
        outcomes += store.delete(names)
    except StorageError:
        return set()
    assert [outcome.key for outcome in outcomes] == names
    return {outcome.key for outcome in outcomes if outcome.result == DeleteResult.ACCEPTED}


@pytest.mark.parametrize("names", [NAMES, ["data/0//1", "data/0/../1"]], ids=["usual", "odd"])
@pytest.mark.parametrize("fault", BEFORE)
def test_a_delete_that_never_arrived_is_not_claimed(cloud: Cloud, fault: str, names: list[str]) -> None:
    store = cloud.store()
    for name in names:
        store.put(name, b"")
    with cloud.server.failing(BEFORE[fault]):
        assert accepted(store, names) == set()
    assert set(keys(store)) == set(names)


@pytest.mark.parametrize("fault", BEHIND)
def test_a_delete_whose_answer_was_lost_is_not_claimed_without_one(
    cloud: Cloud, stored: ObjectStore, fault: str
) -> None:
    with cloud.server.failing(change=lambda request, response: BEHIND[fault](request, response)):
        claimed = accepted(stored, NAMES)
    assert not claimed & set(keys(stored))


def test_parts_of_a_batch_are_reported_by_their_number(cloud: Cloud, stored: ObjectStore) -> None:
    """The service deletes all keys but one and reports that, in another order."""

    def reversed_parts(request: Request, response: Response) -> Response:
        if not is_batch(request):
            return response
        assert len(asked(request)) == len(NAMES)
        boundary = b"--" + response.headers["content-type"].partition("boundary=")[2].strip('"').encode()
        _, *parts, end = response.body.split(boundary)
        refused = [
            part.replace(b"HTTP/1.1 2", b"HTTP/1.1 4") if number == 1 else part for number, part in enumerate(parts)
        ]
        return Response(response.status, response.headers, boundary + boundary.join([*reversed(refused), end]))

    with cloud.server.failing(change=reversed_parts):
        assert accepted(stored, NAMES) == set(NAMES) - {NAMES[1]}


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*BEFORE, *BEHIND])
def test_what_is_read_through_faults_is_the_truth_or_an_error(cloud: Cloud, stored: ObjectStore, fault: str) -> None:
    calls: dict[Callable[[], object], object] = {
        lambda: stored.head(NAMES[0]).size: len(NAMES[0]),
        lambda: keys(stored, "data/"): NAMES,
        lambda: [facts.key for facts in stored.list_level("data/").objects]: NAMES,
    }
    stored.put(ODD, ODD.encode())
    if fault not in REPLACED:
        calls |= {partial(stored.get, key): key.encode() for key in (NAMES[0], ODD)}
    with _failing(cloud, fault):
        for call, truth in calls.items():
            try:
                found = call()
            except StorageError:
                continue
            assert found == truth


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*BEFORE, *BEHIND])
def test_what_is_written_through_faults_is_there_or_an_error(cloud: Cloud, fault: str) -> None:
    store = cloud.store()
    before = store.put("there", b"before") or ""
    made: dict[str, str | None] = {}
    with _failing(cloud, fault):
        for name, put in (
            ("new", store.put_if_absent),
            ("any", store.put),
            ("there", lambda name, data: store.put_if_match(name, data, before)),
        ):
            try:
                made[name] = put(name, b"content")
            except StorageError:
                continue
    if made.get("there") is None:
        assert store.get("there") in (b"before", b"content")
    for name, etag in made.items():
        assert (store.get(name), store.head(name).etag) == (b"content", etag)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*BEFORE, *BEHIND])
def test_a_copy_through_faults_is_there_or_an_error(cloud: Cloud, stored: ObjectStore, fault: str) -> None:
    copy: Callable[[str, str], None] = getattr(stored, "copy_if_absent")  # noqa: B009
    with _failing(cloud, fault):
        try:
            copy(NAMES[0], "copies/0")
        except StorageError:
            return
    assert stored.get("copies/0") == NAMES[0].encode()


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The event a silent server waits for: the end of the test."""
    monkeypatch.setattr(cloud_module, "READ_TIMEOUT", timedelta(seconds=1))
    ended = Event()
    yield ended
    ended.set()


@pytest.mark.slow
@pytest.mark.parametrize("late", ["before", "behind"])
def test_a_slow_service_is_waited_for_or_given_up_without_a_claim(cloud: Cloud, late: str, never: Event) -> None:
    """Every answer takes longer than the timeout, whether or not the service did the request."""
    store = cloud.store()
    for name in NAMES:
        store.put(name, name.encode())
    calls: dict[str, Callable[[], object]] = {
        "list": lambda: keys(store),
        "read": lambda: store.get(NAMES[0]),
        "create": lambda: store.put_if_absent("new", b"content"),
        "delete": lambda: store.delete(NAMES[:1]),
        "delete several": lambda: store.delete(NAMES[1:]),
    }

    def slow(request: Request) -> None:
        never.wait(1.5)

    def slow_after(request: Request, response: Response) -> Response:
        never.wait(1.5)
        return response

    claimed: set[str] = set()
    with cloud.server.failing(slow) if late == "before" else cloud.server.failing(change=slow_after):
        for name, call in calls.items():
            try:
                found = call()
            except StorageError:
                continue
            assert name.startswith("delete"), f"{name} had an answer"
            assert isinstance(found, list | tuple)
            claimed |= {outcome.key for outcome in found if outcome.result == DeleteResult.ACCEPTED}
    assert not claimed & set(keys(store))


def _failing(cloud: Cloud, fault: str) -> AbstractContextManager[None]:
    """Fails before the service if `BEFORE` has such a fault, otherwise behind it."""
    return cloud.server.failing(BEFORE[fault]) if fault in BEFORE else cloud.server.failing(change=BEHIND[fault])


@pytest.mark.parametrize("key", ["missing", NAMES[0]])
def test_a_read_whose_first_answer_breaks_off_is_repeated(cloud: Cloud, stored: ObjectStore, key: str) -> None:
    """An answer that there is no object may break off as well."""
    seen: list[Request] = []

    def first(request: Request, response: Response) -> Response:
        seen.append(request)
        return cut(request, response) if len(seen) == 1 else response

    with cloud.server.failing(change=first):
        content = get_if_there(stored, key)
    assert content == (key.encode() if key in NAMES else None)
    assert len(seen) > 1
