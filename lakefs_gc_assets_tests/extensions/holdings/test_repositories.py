"""Discovery and stores of many repositories, on an S3 service with boto3."""

import pytest

from lakefs_gc_assets.collector.records import report
from lakefs_gc_assets.errors import ConfigurationError, ObjectNotFound
from lakefs_gc_assets.extensions.holdings import holdings_files
from lakefs_gc_assets.extensions.holdings.holdings_files import Holdings, HoldingsRow, HoldingState
from lakefs_gc_assets.extensions.holdings.repositories import FoundRepository
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.settings import Configuration, StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.past_runs import NOW
from lakefs_gc_assets_tests.extensions.holdings.lake import made_up_report
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server

__all__ = ["bucket", "s3_server"]


def repositories(settings: StoreSettings, bucket: str) -> list[FoundRepository]:
    return [
        FoundRepository(name, Configuration(repository=name, store=settings), Namespace.parse(f"s3://{bucket}/{path}"))
        for name, path in (("alpha", "lakes/alpha"), ("beta", "lakes/be%20ta"))
    ]


@pytest.mark.parametrize("signing_key", ["", "k" * 32])
def test_repositories_of_a_bucket_are_read_below_their_own_namespace(
    s3_server: S3Server, bucket: str, signing_key: str
) -> None:
    settings = s3_server.settings().model_copy(update={"signing_key": signing_key})
    stored = []
    place = f"{bucket}/{len(signing_key)}"
    for each in repositories(settings, place):
        assert each.namespace is not None
        own = StoreOpener(settings, each.namespace.uri).open()
        stored.append(made_up_report(each.label, NOW))
        report.write(own, stored[-1])
        rows = (HoldingsRow("state", "head", None, HoldingState.HEAD, 7, 7),)
        holdings_files.write(own, Holdings(each.label, each.namespace.uri, stored[-1].run_id, NOW, "", rows))
    for each, expected in zip(repositories(settings, place), stored, strict=True):
        store = each.open()
        assert report.read(store, expected.run_id) == expected
        level = store.list_level(layout.RUNS_PREFIX)
        assert set(level.prefixes) == {f"{layout.RUNS_PREFIX}{name}/" for name in (expected.run_id, "holdings")}
        assert [found.repository for found in holdings_files.history(store)] == [each.label]
        with pytest.raises(ObjectNotFound):
            store.get("nothing")


def test_repositories_of_a_bucket_share_its_connection(s3_server: S3Server, bucket: str) -> None:
    alpha, beta = (vars_of(each) for each in repositories(s3_server.settings(), bucket))
    assert alpha is beta


def vars_of(found: FoundRepository) -> object:
    return found.open().store  # type: ignore[attr-defined]


def test_store_that_a_deployment_completes_is_refused() -> None:
    configuration = Configuration(repository="a", store=StoreSettings(resource="s3"))
    found = FoundRepository("a", configuration, Namespace.parse("s3://bucket/a"))
    with pytest.raises(ConfigurationError, match="a resource of a Dagster deployment"):
        found.open()


def test_configuration_with_secrets_is_not_shown() -> None:
    configuration = Configuration(repository="a", store=StoreSettings(secret_access_key="s3cr3t"))
    assert "s3cr3t" not in repr(FoundRepository("a", configuration))
