"""Planted secrets appear nowhere: not in errors, logs, representations, or stored records."""

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock
from urllib.parse import quote

import pytest

from lakefs_gc_assets import errors
from lakefs_gc_assets.collector.frame import receipts
from lakefs_gc_assets.collector.records import plan, report
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.configuration_file import loaded_from
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, LakeFSError
from lakefs_gc_assets.lakefs.addresses import Location, Namespace
from lakefs_gc_assets.lakefs.api.client import LakeFSClient
from lakefs_gc_assets.settings import LakeFSSettings, StoreSettings
from lakefs_gc_assets.storage import cloud
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets.storage.s3.store import S3Store
from lakefs_gc_assets_tests.collector.frame.test_receipts import candidates
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.fuzzing.s3_answers import Service
from lakefs_gc_assets_tests.lakefs.api.scripted_server import GOOD, FixedClock, Scripted, refused, said, scripted
from lakefs_gc_assets_tests.runs import planted
from lakefs_gc_assets_tests.servers.stores import local_store

__all__ = ["local_store"]

LAKEFS_KEY, LAKEFS_SECRET = "AKIAplantedlakefskey", "planted/lakefs+secret=="
STORE_KEY, STORE_SECRET, TOKEN = "AKIAplantedstorekey", "planted/store+secret==", "planted//session+token=="
PASSWORD = "planted-password"
_BASIC = planted.basic(LAKEFS_KEY, LAKEFS_SECRET)
PLANTED = (LAKEFS_SECRET, STORE_SECRET, TOKEN, PASSWORD, _BASIC)
SPELT = planted.spellings(*PLANTED)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda seconds: None))


def settings(endpoint: str) -> LakeFSSettings:
    return LakeFSSettings(
        endpoint=endpoint, access_key_id=LAKEFS_KEY, secret_access_key=LAKEFS_SECRET, retries=1, read_timeout_seconds=2
    )


STORE = StoreSettings(
    endpoint_url="http://127.0.0.1:9",
    region="us-east-1",
    path_style=True,
    access_key_id=STORE_KEY,
    secret_access_key=STORE_SECRET,
    session_token=TOKEN,
)


def require_none(text: str) -> None:
    """Fails if a text contains a secret or a large part of one."""
    planted.require_absent(SPELT, text)


@pytest.fixture(autouse=True)
def logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """All log messages: ours at the debug level, libraries at a level that users choose for diagnosis."""
    caplog.set_level(logging.INFO)
    logging.getLogger("lakefs_gc_assets").setLevel(logging.DEBUG)
    yield
    require_none(caplog.text)


def reported(action: Callable[[], object]) -> str:
    """The text of the error that an action raises, and of its causes, as a log would show it."""
    with mock.patch("time.sleep"), pytest.raises(CollectionError) as caught:
        action()
    return str(caught.value) + "".join(traceback.format_exception(caught.value))


ECHO = f"cannot verify {LAKEFS_KEY} {LAKEFS_SECRET} sent as Basic {_BASIC}"
REPEATED = [
    refused(401, ECHO),
    refused(403, "x" * 290 + ECHO),
    refused(500, ECHO),
    refused(404, quote(ECHO)),
    Scripted(502, f"<html>{ECHO}</html>".encode()),
    Scripted(301, b"", {"Location": f"http://{LAKEFS_KEY}:{PASSWORD}@elsewhere/"}),
    Scripted(200, ECHO.encode()),
    Scripted(breaks=True),
    Scripted(truncated=True),
]


@pytest.mark.parametrize("answer", REPEATED, ids=lambda answer: f"{answer.status} {answer.body[:20]!r}")
def test_a_server_that_repeats_what_it_was_sent(answer: Scripted) -> None:
    with scripted(answer) as server:
        client = LakeFSClient(settings(server.url), "repo", FixedClock())
        for action in (client.repository, client.branches, client.start_refs_dump):
            require_none(reported(action))
        require_none(repr(client) + repr(vars(client)))


def test_no_server_at_all() -> None:
    client = LakeFSClient(settings("http://127.0.0.1:9"), "repo", FixedClock())
    require_none(reported(client.repository))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AccessDenied", "Access Denied"),
        ("SignatureDoesNotMatch", "The request signature we calculated does not match"),
    ],
)
def test_a_store_that_refuses(code: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A retry sends the same request again. Without real sleeps, retries for a busy store would last by the clock.
    monkeypatch.setattr(cloud, "ATTEMPTS", 2)
    service = Service(STORE)
    service.status = 403
    details = f"<StringToSign>{TOKEN} {STORE_SECRET}</StringToSign><AWSAccessKeyId>{STORE_KEY}</AWSAccessKeyId>"
    service.answer = f"<Error><Code>{code}</Code><Message>{message}</Message>{details}</Error>".encode()
    store = service.store
    for action in (
        lambda: store.list_level(""),
        lambda: store.put("a", b""),
        lambda: store.head("a"),
        lambda: store.delete(["a"]),
    ):
        require_none(reported(action))
    require_none(repr(store) + repr(vars(store)))


def test_locations_that_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_variables", {})
    monkeypatch.setenv("TEST_SERVER", "http://lakefs.private.invalid:81")
    monkeypatch.setenv("TEST_FOLDER", "/nowhere/private")
    monkeypatch.setenv("TEST_REPOSITORY", "measurements\r\n")
    content = {
        "repository": {"env": "TEST_REPOSITORY"},
        "lakefs": {
            "endpoint": {"env": "TEST_SERVER"},
            "secret_access_key": {"env": "TEST_SECRET"},
            "access_key_id": "A",
        },
        "store": {"local_root": {"env": "TEST_FOLDER"}},
    }
    loaded = loaded_from(content, "file").configuration
    client = LakeFSClient(loaded.lakefs, loaded.repository, FixedClock())
    with pytest.raises(LakeFSError) as unreachable:
        client.repository()
    assert "private" not in str(unreachable.value)
    assert str(unreachable.value).startswith(
        "GET /repositories/measurements: {env: TEST_SERVER}/api/v1 cannot be reached"
    )
    with pytest.raises(ConfigurationError, match=r"there is no folder \{env: TEST_FOLDER\}/repo for local://repo"):
        open_store(loaded.store, Namespace.parse("local://repo"))


def test_no_store_at_all() -> None:
    store = S3Store(STORE, Location("s3", "bucket", "repo/"))
    require_none(reported(lambda: store.put("a", b"")))


def test_endpoints_with_passwords_are_refused_without_repeating_them() -> None:
    url = f"https://user:{PASSWORD}@host"
    require_none(reported(lambda: LakeFSClient(settings(url), "repo", FixedClock())))
    for uri in ("s3://bucket/repo", "gs://bucket/repo", "https://account.blob.core.windows.net/container/repo"):
        opening = StoreSettings(endpoint_url=url, region="us-east-1", access_key_id="k", secret_access_key=STORE_SECRET)
        text = reported(lambda opening=opening, uri=uri: open_store(opening, Namespace.parse(uri)))  # type: ignore[misc]
        assert "store.endpoint_url" in text
        require_none(text)


def test_what_the_domain_stores(local_store: ObjectStore) -> None:
    """Plan, lock, receipts and report of a run whose server and store fail and echo requests."""
    with scripted(said(GOOD["repository"] | {"id": "other"}), refused(500, ECHO)) as server:
        client = LakeFSClient(settings(server.url), "repo", FixedClock())
        error = reported(client.branches)
    plan.write_first(local_store, PLAN)
    held = Lock.acquire(
        local_store, run_id=PLAN.run_id, owner=PLAN.owner, now=FixedClock().now(), expiry=timedelta(hours=1)
    )
    report.write(local_store, report.failed(PLAN, NOW, error))

    service = Service(STORE)
    rows = "".join(f"<Error><Key>repo/{key}</Key><Code>AccessDenied</Code></Error>" for key in ("data/x", "data/y"))
    service.answer = f"<DeleteResult>{rows}</DeleteResult>".encode()
    outcomes = service.store.delete(["data/x", "data/y"])
    reported_of = receipts.table(
        candidates("data/x", "data/y"), [Outcome.FAILED] * 2, [each.error for each in outcomes], NOW
    )
    receipts.write(local_store, PLAN.run_id, "batch", reported_of)
    held.release()

    stored = [key for batch in local_store.list("") for key in batch.column("key").to_pylist()]
    assert len(stored) >= 4
    for key in stored:
        require_none(local_store.get(key).decode("latin-1"))
    assert receipts.read(local_store, PLAN.run_id).num_rows == 2


def test_the_search_finds_what_it_is_made_for() -> None:
    for secret in PLANTED:
        with pytest.raises(AssertionError):
            require_none(json.dumps({"x": f"a{secret}b"}))
        with pytest.raises(AssertionError):
            require_none(quote(secret))
