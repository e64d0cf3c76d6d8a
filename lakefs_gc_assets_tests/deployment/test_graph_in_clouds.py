"""The whole graph, run by the command line on Google Cloud Storage and Azure over HTTP, with quarantine and restore."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from lakefs_gc_assets.cli import main
from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.sample import (
    LiveObject,
    Sample,
    Session,
    link_pending,
    make_sample_repository,
    unreadable,
)
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import StoreSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import open_store
from lakefs_gc_assets_tests.deployment.test_policies import made_or_why_not, once_old
from lakefs_gc_assets_tests.servers.emulators import ACCOUNT, ACCOUNT_KEY
from lakefs_gc_assets_tests.servers.stores import azure_container, azure_server, gcs_bucket, gcs_server

__all__ = ["azure_container", "azure_server", "gcs_bucket", "gcs_server"]

# Before any test starts Spark: its Python workers read credentials from the environment in which Spark started.
os.environ["TEST_AZURE_KEY"] = ACCOUNT_KEY


@dataclass
class InCloud:
    """A sample repository whose objects are in a cloud, with its configuration file.

    Attributes:
        old_at: when all its objects may be collected, by the clock of `time.monotonic`.
    """

    server: EmbeddedServer
    sample: Sample
    store: ObjectStore
    file: Path
    content: dict[str, Any]
    old_at: float = field(default_factory=lambda: time.monotonic() + demo.BUCKET_AGING.total_seconds())

    def command(self, name: str, *arguments: str, **collection: Any) -> Result:
        """Runs a command as a user types it, and requires exit status 0."""
        settings = {**self.content, "collection": {**self.content["collection"], **collection}}
        self.file.write_text(yaml.safe_dump(settings))
        secrets = {"TEST_LAKEFS_SECRET": self.server.secret_access_key}
        result = CliRunner().invoke(main, [name, "--config", str(self.file), *arguments], env=secrets)
        assert result.exit_code == 0, result.output
        return result

    def swept(self, **collection: Any) -> Report:
        """The report of a sweep, the newest in the bucket."""
        self.command("run", "--sweep", **collection)
        found = report.read(self.store, next(run_folder.newest_runs(self.store)))
        assert found is not None and found.success
        return found

    def drop(self) -> LiveObject:
        """Deletes a staged object, whose physical object is garbage from now on."""
        dropped = next(live for live in self.sample.live if live.kind == "staged")
        self.sample.live.remove(dropped)
        with closing(Session(self.server, self.sample.repository)) as api:
            api.delete(dropped.reference, dropped.path)
        return dropped

    def keys(self, prefix: str) -> set[str]:
        """Keys below a prefix of the repository."""
        return {key for batch in self.store.list(prefix) for key in batch.column("key").to_pylist()}


def _in_cloud(folder: Path, url: str, settings: StoreSettings, section: dict[str, Any], stack: ExitStack) -> InCloud:
    server = stack.enter_context(demo.open_server(folder, "oss", url, settings))
    sample = make_sample_repository(server, objects=60)
    link_pending(server, sample)
    given = demo.configuration(server, sample.repository, settings).collection
    content = {
        "repository": sample.repository,
        "lakefs": {
            "endpoint": server.url,
            "access_key_id": server.access_key_id,
            "secret_access_key": {"env": "TEST_LAKEFS_SECRET"},
        },
        "store": section,
        "collection": given.model_dump(exclude_unset=True),
    }
    store = open_store(settings, Namespace.parse(f"{url}/{sample.repository}"))
    return InCloud(server, sample, store, folder / "lakefs-gc.yaml", content)


def _google(request: pytest.FixtureRequest) -> tuple[str, StoreSettings, dict[str, Any]]:
    server, name = request.getfixturevalue("gcs_server"), request.getfixturevalue("gcs_bucket")
    section = {"endpoint_url": server.url, "service_account_file": str(server.key_file)}
    return f"gs://{name}/demo", server.settings(), section


def _azure(request: pytest.FixtureRequest) -> tuple[str, StoreSettings, dict[str, Any]]:
    server, name = request.getfixturevalue("azure_server"), request.getfixturevalue("azure_container")
    section = {"endpoint_url": f"{server.url}/{ACCOUNT}", "account_key": {"env": "TEST_AZURE_KEY"}}
    return f"https://{ACCOUNT}.blob.core.windows.net/{name}/demo", server.settings(), section


CLOUDS = {"gcs": _google, "azure": _azure}


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, InCloud | str]]:
    """A repository in each cloud, or the reason why there is none; all age at the same time."""
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).delenv("DAGSTER_HOME", raising=False)

        def make(name: str) -> InCloud:
            return _in_cloud(tmp_path_factory.mktemp(name), *CLOUDS[name](request), stack)

        yield made_or_why_not({name: partial(make, name) for name in CLOUDS})


@pytest.fixture(params=list(CLOUDS))
def cloud(request: pytest.FixtureRequest, made: dict[str, InCloud | str], spark: SparkSession) -> InCloud:
    """The repository in one cloud, old enough to be collected."""
    return once_old(made[request.param])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_swept_then_moved_and_restored(cloud: InCloud) -> None:
    garbage = {each.address for each in cloud.sample.garbage}
    live = {each.address for each in cloud.sample.live if "://" not in each.address}
    before = cloud.keys("data/")
    assert garbage | live <= before

    clean = cloud.swept()

    assert (clean.flow, clean.ending, clean.commit_source) == ("clean", Ending.DELETED, "refs dump")
    assert clean.counts["deleted"] == len(garbage)
    assert cloud.keys("data/") == before - garbage
    assert unreadable(cloud.server, cloud.sample) == []
    left = {key.removeprefix(run_folder.folder(clean.run_id)).partition("/")[0] for key in cloud.keys("_lakefs/")}
    assert {*STEPS, "plan.json", "report.json", "receipts"} <= left

    dropped = cloud.drop()
    moved = cloud.swept(sweep_mode="quarantine")

    assert (moved.flow, moved.ending) == ("clean", Ending.QUARANTINED)
    assert (moved.counts["quarantined"], moved.object_bytes["quarantined"]) == (1, len(dropped.content))
    assert dropped.address not in cloud.keys("data/")
    copy = sweeping.key(moved.run_id, dropped.address)
    assert cloud.store.get(copy) == dropped.content

    restored = cloud.command("restore", moved.run_id, "--yes")

    assert restored.stdout.splitlines() == ["1 restored"]
    assert cloud.store.get(dropped.address) == dropped.content
    assert cloud.keys(layout.QUARANTINE_PREFIX) == {copy}
    assert unreadable(cloud.server, cloud.sample) == []
    assert (lock.KEY in cloud.keys("_lakefs/"), lock.holder(cloud.store)) == (True, None)
    assert list(cloud.server.objects_folder.rglob("*")) == []
