"""The asset `retention_forecast`: made by its job while the lock is held; its tables and pictures."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.records.stored_forecasts import ScenarioKind
from lakefs_gc_assets.collector.repository.lock import locked
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs import running
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.forecast.definitions import define, described
from lakefs_gc_assets.extensions.forecast.forecast import Forecast, Freed, Holding
from lakefs_gc_assets.extensions.forecast.scenarios import AGES, ByteHolder, Scenario
from lakefs_gc_assets.extensions.playground import demo
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets_tests.defs.test_pages_metadata import SHOWN_AT_ONCE, drawn
from lakefs_gc_assets_tests.extensions.playground.embedded import clients
from lakefs_gc_assets_tests.runs.graph_runs import failures

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.slow
def test_the_job_makes_it_beside_a_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    with EmbeddedServer(tmp_path) as server, running.instance() as home:
        now = datetime.now(UTC)
        for days, content in ((40, b"old"), (30, b"older"), (3, b"newest")):
            with server.clock.at(now - days * DAY):
                if days == 40:
                    clients.repository(server)
                clients.upload(server, "file", content)
                clients.commit(server, content.decode())
        loaded = Loaded(demo.configuration(server, "repo"), {})
        job = build(loaded, SystemClock(), [define]).resolve_job_def("forecast")
        asked = {"days": [0, 10, -1], "policies": {"short": "{default: 1d, replace: true}"}, "by_path": 1}

        def made(**config: object) -> dg.ExecuteInProcessResult:
            run_config = {"ops": {"retention_forecast": {"config": config}}}
            return job.execute_in_process(instance=home, run_config=run_config, raise_on_error=False)

        with locked(Collector.from_loaded(loaded, SystemClock()).open(), "run", "somebody", print):
            result = made(**asked)
        assert result.success
        event = home.get_latest_materialization_event(dg.AssetKey("retention_forecast"))
        assert event is not None and event.asset_materialization is not None
        shown = event.asset_materialization.metadata
        rules = {record.data["retention"]: record.data["freed"] for record in _records(shown["rules"])}
        assert rules == {
            "rules in force": "0 B",
            "0 days": "8 B",
            "10 days": "3 B",
            "unlimited": "0 B",
            "short": "8 B",
        }
        assert (shown["held_objects"].value, shown["freed_bytes"].value) == (3, 0)
        too_many = {"days": list(range(200)), "policies": dict.fromkeys(map(str, range(101)), "")}
        for name, scenarios in too_many.items():
            (why,) = failures(made(**{name: scenarios})).values()
            assert why.startswith(f"{name} has "), why
            assert why.endswith(" entries: a forecast compares at most 100") and why.isprintable()
        (holder, _) = _records(shown["branches_and_tags"])
        assert (holder.data["name"], holder.data["alone"]) == ("branch main", "14 B")

        (folder,) = _records(shown["folders"])
        assert (folder.data["folder"], folder.data["in all"], folder.data["held by"]) == ("(top level)", "14 B", "main")
        page = shown["page"]
        assert isinstance(page, dg.MarkdownMetadataValue)
        place = (page.md_str or "").replace("`  \n`", "").strip("`")
        store = Collector.from_loaded(loaded, SystemClock()).open().store
        assert b"polyline" in store.get(place.removeprefix("local://repo/"))

        refused = made(policies={"wrong": "default: 7"})
        assert "wrong, line 1: 7 has no unit" in failures(refused)["retention_forecast"]
        tags = "keep_tags: [" + ", ".join(f"v{number}" for number in range(5_001)) + "]"
        refused = made(policies={"first": tags, "second": tags})
        assert (
            "second, line 1: a policy, or all policies of a launch together" in failures(refused)["retention_forecast"]
        )


def test_pictures_are_shown_where_they_stand() -> None:
    rules = [Freed(Scenario(ScenarioKind.IN_FORCE, "rules in force", 2), Amount(10**6, 10**12))]
    for number, days in enumerate(AGES):
        name = "unlimited" if days is None else counted(days, "days")
        amount = Amount(10**7 - number, (20 - number) * 10**12)
        rules.append(Freed(Scenario(ScenarioKind.AGE, name, 5, days), amount))
    holdings = tuple(
        Holding(
            ByteHolder(ScenarioKind.BRANCH, f"{'a-rather-long-name-of-a-branch-' * 2}{number}", 3, NOW),
            Amount(number, number * 10**12),
            Amount(number, number * 10**11),
            rules[0],
        )
        for number in range(300)
    )
    found = Forecast("repo", "id", NOW, NOW, 9, 9, Amount(10**8, 10**14), tuple(rules), holdings)
    shown = described(found)
    for name, first in (("freed_by_days", "rules in force: 931.3 GiB"), ("held_alone", "a-rather-long-name")):
        picture = shown[name]
        assert isinstance(picture, dg.MarkdownMetadataValue)
        lengths, words = drawn(picture)
        assert len(lengths) == 6 and words[0].startswith(first)
        assert len(picture.md_str or "") < SHOWN_AT_ONCE
    assert len(_records(shown["branches_and_tags"])) < len(holdings)
    # A window of 1,440 pixels cuts off wider tables, and anything beside a long key.
    for name in ("rules", "branches_and_tags"):
        assert all(len(record.data) == 4 for record in _records(shown[name]))
    assert max(map(len, shown)) <= 17
    for record in _records(shown["branches_and_tags"]):
        assert len(str(record.data["name"])) <= 30


def _records(table: object) -> list[dg.TableRecord]:
    assert isinstance(table, dg.TableMetadataValue)
    return list(table.records)
