"""Pages that `lakefs-gc ui` serves beside Dagster's."""

import socket
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest

from lakefs_gc_assets.collector.records import run_folder, stored_forecasts
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import pages
from lakefs_gc_assets.defs.pages import PAGES_VARIABLE
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.extensions.playground import page_server
from lakefs_gc_assets.extensions.playground.page_server import serve_pages
from lakefs_gc_assets.settings import Configuration
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.page.test_page import repository
from lakefs_gc_assets_tests.collector.past_runs import opened

__all__ = ["opened", "repository"]

RUN = "c" * 20
CONFIGURATION = Configuration(repository="repo", name="a lake")


@pytest.fixture
def url(repository: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The server of one repository, called `a lake` in Dagster."""
    monkeypatch.setattr(page_server, "open_repository", lambda loaded, to_read: repository)
    with serve_pages([Loaded(CONFIGURATION, {})], 0) as url:
        yield url


def get(url: str, host: str = "") -> HTTPResponse:
    """The answer to GET, read whole into `body`."""
    place = urlsplit(url)
    connection = HTTPConnection(place.netloc, timeout=900)
    connection.request("GET", place.path, headers={"Host": host} if host else {})
    return connection.getresponse()


def test_the_links_of_a_run_and_a_forecast_open_their_stored_pages(
    url: str, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PAGES_VARIABLE, url)
    collector = Collector(CONFIGURATION, repository.clock)
    for key in (run_folder.page(RUN), stored_forecasts.page_key(RUN)):
        repository.store.put(key, key.encode())
        shown = pages.stored_page(collector, repository.namespace.uri + key, RUN).md_str or ""
        name, _, address = shown.strip("[)").partition("](")
        assert key.endswith(f"/{name}")
        answer = get(address)
        assert (answer.status, answer.read()) == (200, key.encode())
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'; ")


@pytest.mark.parametrize(
    "path",
    [
        f"/a%20lake/{RUN}/report.html",
        f"/other/{RUN}/report.html",
        f"/a%20lake/{RUN}/plan.json",
        "/a%20lake/report.html",
        "/",
    ],
)
def test_a_page_that_is_not_stored_and_any_other_file_is_not_found(
    url: str, repository: OpenRepository, path: str
) -> None:
    repository.store.put(run_folder.plan(RUN), b"{}")
    assert get(url + path).status == 404


def test_an_id_leads_to_no_other_folder(url: str) -> None:
    answer = get(f"{url}/a%20lake/..%2f..%2f{RUN}/report.html")
    assert answer.status == 404
    answer = get(f"{url}/a%20lake/../report.html")
    assert (answer.status, b"is not a run id" in answer.read()) == (502, True)


def test_a_name_of_another_site_that_leads_here_is_refused(url: str, repository: OpenRepository) -> None:
    repository.store.put(run_folder.page(RUN), b"page")
    assert get(f"{url}/a%20lake/{RUN}/report.html", host="elsewhere.example").status == 403


def test_a_store_that_fails_is_reported_and_the_next_request_is_answered(
    url: str, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.store.put(run_folder.page(RUN), b"page")

    def fail(store: LocalStore, key: str) -> bytes:
        raise StorageError("the disk is gone")

    with monkeypatch.context() as failing:
        failing.setattr(type(repository.store), "get", fail)
        answer = get(f"{url}/a%20lake/{RUN}/report.html")
        assert (answer.status, b"the disk is gone" in answer.read()) == (502, True)
    assert get(f"{url}/a%20lake/{RUN}/report.html").read() == b"page"


def test_another_port_is_taken_if_the_preferred_one_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with serve_pages([], port) as url:
            assert urlsplit(url).port != port
            assert get(url).status == 404
    with serve_pages([], 65_536) as url:
        assert get(url).status == 404
