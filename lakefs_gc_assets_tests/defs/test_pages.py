"""The page that a run writes when it ends: an error in the page never affects the run."""

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF
from lakefs_gc_assets.collector.page import garbage, page
from lakefs_gc_assets.collector.page.garbage import count_here, find_counts, keep_counts
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.defs import pages
from lakefs_gc_assets.defs.failures import end_run
from lakefs_gc_assets.defs.pages import keep, keep_counted, keep_failed
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import ObjectNotFound, StorageError
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import Configuration, StoreSettings
from lakefs_gc_assets.storage.opening import browser_link
from lakefs_gc_assets_tests.collector.page.stored_runs import stored_run
from lakefs_gc_assets_tests.collector.page.test_page import repository
from lakefs_gc_assets_tests.collector.past_runs import HOUR, began, opened

__all__ = ["opened", "repository"]


@pytest.fixture
def collecting(repository: OpenRepository, monkeypatch: pytest.MonkeyPatch) -> Collector:
    """The resource of a process that has opened the repository."""
    made = Collector(Configuration(repository="repo"), repository.clock)
    monkeypatch.setattr(Collector, "last_opened", lambda self: repository.store)
    return made


def test_the_page_of_a_run_lies_beside_its_report(collecting: Collector, repository: OpenRepository) -> None:
    found, warnings = stored_run(repository), list[str]()
    shown = keep(collecting, repository, found.run_id, warnings.append)

    assert warnings == []
    assert shown["page"] == pages.place(repository.namespace.uri + run_folder.page(found.run_id))
    assert shown["open_page"] == f"lakefs-gc report {found.run_id} --open"
    assert found.run_id.encode() in repository.store.get(run_folder.page(found.run_id))


def test_the_page_of_a_failed_run_asks_no_server(
    collecting: Collector, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, warnings = stored_run(repository), list[str]()
    monkeypatch.setattr(Collector, "open", pytest.fail)
    keep_failed(collecting, found.run_id, warnings.append)
    assert warnings == []
    assert b"31 to 90 days" in repository.store.get(run_folder.page(found.run_id))

    monkeypatch.setattr(page, "LOCAL_ROWS", 1)
    keep_failed(collecting, found.run_id, warnings.append)
    assert b"lakefs-gc report --again" in repository.store.get(run_folder.page(found.run_id))


@pytest.mark.parametrize("error", [StorageError("the store is gone"), KeyError("a mistake of ours")])
def test_a_page_that_cannot_be_kept_is_reported_and_nothing_more(
    collecting: Collector, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*args: Any) -> None:
        raise error

    found, warnings = stored_run(repository), list[str]()
    monkeypatch.setattr(page, "write", fail)

    assert keep(collecting, repository, found.run_id, warnings.append) == {}
    keep_failed(collecting, found.run_id, warnings.append)
    assert len(warnings) == 2
    assert all(f"the page of run {found.run_id} was not made" in line for line in warnings)


def test_a_run_that_a_check_ended_has_a_page_and_one_that_was_interrupted_has_none(
    collecting: Collector, repository: OpenRepository
) -> None:
    ended, interrupted = began(repository, HOUR), began(repository, 2 * HOUR)
    end_run(collecting, ended.run_id, "the check <said> so")
    end_run(collecting, interrupted.run_id, "interrupted", leaves_page=False)

    assert b"the check &lt;said&gt; so" in repository.store.get(run_folder.page(ended.run_id))
    with pytest.raises(ObjectNotFound):
        repository.store.get(run_folder.page(interrupted.run_id))


def test_a_run_that_failed_before_its_plan_has_no_page_and_no_advice_to_make_one(
    collecting: Collector, repository: OpenRepository
) -> None:
    warnings: list[str] = []
    keep_failed(collecting, "c" * 20, warnings.append)
    assert warnings == []
    with pytest.raises(ObjectNotFound):
        repository.store.get(run_folder.page("c" * 20))


@pytest.mark.parametrize(
    ("uri", "link"),
    [
        ("s3://bucket/a b/report.html", "https://console.aws.amazon.com/s3/object/bucket?prefix=a%20b%2Freport.html"),
        ("gs://bucket/a b/report.html", "https://storage.cloud.google.com/bucket/a%20b/report.html"),
        ("https://account.blob.core.windows.net/container/report.html", None),
        ("local://repo/report.html", None),
    ],
)
def test_a_browser_can_follow_only_some_links(uri: str, link: str | None) -> None:
    assert browser_link(uri) == link


def test_a_link_into_a_cloud_is_none_into_a_server_of_ones_own(
    collecting: Collector, repository: OpenRepository
) -> None:
    in_bucket = replace(repository, namespace=Namespace.parse("s3://bucket/prefix"))
    uri = f"s3://bucket/prefix/{run_folder.page('run')}"

    shown = pages.shown(collecting, in_bucket, "run")
    assert shown["page"] == dg.MetadataValue.md(f"[report.html]({browser_link(uri)})")
    settings = collecting.configuration.model_copy(update={"store": StoreSettings(endpoint_url="http://minio:9000")})
    own_server = replace(collecting, configuration=settings)
    assert pages.shown(own_server, in_bucket, "run")["page"] == pages.place(uri)


@pytest.mark.parametrize(
    ("uri", "lines"),
    [
        ("local://sample/_lakefs/gc/uncommitted/run/", ["local://sample/_lakefs/gc/", "uncommitted/run/"]),
        (f"s3://{'b' * 40}/a`/[x](y)", ["s3://", f"{'b' * 40}/", "a%60/[x](y)"]),
        ("a", ["a"]),
    ],
)
def test_a_place_is_no_link_and_has_short_lines(uri: str, lines: list[str]) -> None:
    assert pages.place(uri) == dg.MetadataValue.md("  \n".join(f"`{line}`" for line in lines))


def test_many_candidates_are_counted_once(
    collecting: Collector, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, warnings = stored_run(repository), list[str]()
    frame = StoredFrame.from_run(repository.store, repository.opener, found.run_id, CANDIDATES_DF)
    shown = keep_counted(collecting, repository, frame, repository.clock.now(), warnings.append)
    assert shown.by_age == {"31 to 90 days": (3, 3 * 2**30)}
    monkeypatch.setattr(garbage, "count_candidates", pytest.fail)

    keep(collecting, repository, found.run_id, warnings.append)

    assert warnings == []
    page_of_run = repository.store.get(run_folder.page(found.run_id))
    assert b"31 to 90 days" in page_of_run and b"data/b" in page_of_run
    repository.store.delete([run_folder.page(found.run_id)])
    monkeypatch.setattr(page, "LOCAL_ROWS", 1)
    keep_failed(collecting, found.run_id, warnings.append)
    assert repository.store.get(run_folder.page(found.run_id)) == page_of_run


def test_counts_of_other_candidates_or_that_cannot_be_read_are_not_taken(
    collecting: Collector, repository: OpenRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, warnings = stored_run(repository), list[str]()
    frame = StoredFrame.from_run(repository.store, repository.opener, found.run_id, CANDIDATES_DF)
    now = repository.clock.now()
    counts = count_here(repository.store, frame.manifest, now)
    keep_counts(repository.store, frame.manifest, counts)
    assert find_counts(repository.store, frame.manifest) == counts
    assert find_counts(repository.store, replace(frame.manifest, inputs={"store_df": "another"})) is None
    repository.store.put(f"{run_folder.frame(found.run_id, CANDIDATES_DF.name)}counted.json", b"{")
    assert find_counts(repository.store, frame.manifest) is None

    def refuse(key: str, data: bytes) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(type(repository.store), "put", lambda self, key, data: refuse(key, data))
    assert keep_counted(collecting, repository, frame, now, warnings.append) == counts
    assert len(warnings) == 1 and "no space left" in warnings[0]
