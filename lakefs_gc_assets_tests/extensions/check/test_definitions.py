"""The asset `repository_check`: made by its job while the lock is held, and judged by its check."""

from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.repository.lock import locked
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.collector.survey import Finding, FindingKind, Place
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.extensions.check.definitions import define, described
from lakefs_gc_assets.extensions.check.fsck import Checkup
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.extensions.playground.embedded import clients

NOW = datetime(2026, 11, 26, tzinfo=UTC)
ASSET = dg.AssetKey("repository_check")


@pytest.mark.slow
def test_the_job_makes_it_beside_a_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with EmbeddedServer(tmp_path) as server, running.instance() as home:
        clients.repository(server)
        address = clients.upload(server, "file", b"content")
        clients.commit(server, "first")
        loaded = Loaded(demo.configuration(server, "repo"), {})
        definitions = build(loaded, SystemClock(), [define])
        job = definitions.resolve_job_def("fsck")

        def verdict(**config: object) -> object:
            run_config = {"ops": {"repository_check": {"config": config}}}
            assert job.execute_in_process(instance=home, run_config=run_config).success
            event = home.get_latest_materialization_event(ASSET)
            assert event is not None and event.asset_materialization is not None
            return event.asset_materialization.metadata["verdict"].value

        def passed() -> bool:
            records = home.event_log_storage.get_asset_check_execution_history(
                dg.AssetCheckKey(ASSET, "repository_is_whole"), limit=1
            )
            (record,) = records
            assert record.evaluation is not None
            return record.evaluation.passed

        store = Collector.from_loaded(loaded, SystemClock()).open().store
        with locked(Collector.from_loaded(loaded, SystemClock()).open(), "run", "somebody", print):
            assert (verdict(deep=-1), passed()) == ("whole", True)
        store.delete([address])
        assert (verdict(), passed()) == ("damaged: 1 missing", False)


def test_what_is_wrong_is_shown_with_its_places() -> None:
    finding = Finding(
        FindingKind.SIZE, "data/a", "it has 1 bytes", "Put it back", (Place("repo", "branch main", "c", "p"),)
    )
    checkup = Checkup("repo", "local://repo/", NOW, NOW, 3, 4, 5, 0, (finding,) * 101, ("refs",))
    shown = described(checkup)
    assert (shown["is_damaged"], shown["findings"], shown["wrong_size"]) == (True, 101, 101)
    lines = shown["what_is_wrong"].md_str.splitlines()
    assert len(lines) == 101 and "and 1 more" in lines[-1] and "branch main" in lines[0]
    assert "refs" in shown["not_checked"].md_str
