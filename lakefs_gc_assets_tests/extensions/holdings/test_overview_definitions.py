import dagster as dg
import pytest

from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, everything_from
from lakefs_gc_assets.definitions import define_all, defs
from lakefs_gc_assets.extensions.holdings.overview import AlertKind
from lakefs_gc_assets.extensions.holdings.overview_definitions import ASSET, CHECKS, JOB, define
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW
from lakefs_gc_assets_tests.collector.scripted import HandClock
from lakefs_gc_assets_tests.extensions.holdings.lake import GIB, Lake, lake

__all__ = ["lake"]


def test_job_reports_the_asset_and_keeps_overview_and_page(lake: Lake) -> None:
    lake.create("alpha")
    lake.create("beta")
    lake.end_run("alpha", DAY)
    lake.end_run("beta", success=False)
    lake.content["report"] = {"price_per_gb_month": 0.5}
    with dg.DagsterInstance.ephemeral() as instance:
        for days in (0, 1):
            clock = HandClock(NOW + days * DAY)
            job = define(lake.everything, clock).resolve_job_def(JOB)
            assert job.execute_in_process(instance=instance).success
        events = instance.fetch_materializations(dg.AssetKey(ASSET), limit=5).records
        assert len(events) == 2
        checks = [dg.AssetCheckKey(dg.AssetKey(ASSET), name) for name, _ in CHECKS.values()]
        latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
        failed = {key.name for key, record in latest.items() if record.status.value == "FAILED"}
        assert (len(latest), failed) == (len(AlertKind), {"newest_runs_succeeded"})
        # A check that is launched alone judges the newest overview.
        only = dg.AssetSelection.checks(dg.AssetCheckKey(dg.AssetKey(ASSET), "newest_runs_succeeded"))
        alone = dg.define_asset_job("alone", only)
        definitions = dg.Definitions.merge(define(lake.everything, clock), dg.Definitions(jobs=[alone]))
        ended = definitions.resolve_job_def("alone").execute_in_process(instance=instance)
        (evaluation,) = ended.get_asset_check_evaluations()
        assert not evaluation.passed and str(evaluation.description).startswith("beta: ")
        shown = events[0].asset_materialization
        assert shown is not None
        values = {name: value.value for name, value in shown.metadata.items()}
    assert (values["repositories"], values["stored_bytes"], values["alerts"]) == (2, 20 * GIB, 1)
    assert values["monthly_cost_USD"] == 10.0
    assert "beta: failed run" in str(values["what_needs_attention"])
    folder = lake.server.objects_folder / "overviews"
    assert (folder / "repositories.html").read_text().count("<h1>2 repositories</h1>") == 1
    assert len([*folder.glob("overview-*.parquet")]) == 2


def test_new_repository_is_in_the_next_overview_without_loading_definitions_again(lake: Lake) -> None:
    job = define(lake.everything, HandClock(NOW)).resolve_job_def(JOB)
    lake.create("later")
    with dg.DagsterInstance.ephemeral() as instance:
        assert job.execute_in_process(instance=instance).success
        (event,) = instance.fetch_materializations(dg.AssetKey(ASSET), limit=5).records
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["repositories"].value == 1


@pytest.mark.parametrize(
    ("content", "has_overview"),
    [
        ({"repository": "one"}, False),
        ({"repository": "one", "overview": {"history": "s3://bucket/overviews/"}}, True),
        ({"repositories": [{"repository": "one"}]}, False),
        ({"repositories": [{"repository": "one"}, {"repository": "two"}]}, True),
        ({"discover": {}}, True),
    ],
)
def test_overview_exists_if_there_is_more_than_one_repository(content: dict[str, object], has_overview: bool) -> None:
    built = define_all(everything_from(content, "gc.yaml"))
    dg.Definitions.validate_loadable(built)
    assert (dg.AssetKey(ASSET) in built.resolve_asset_graph().get_all_asset_keys()) == has_overview


def test_discovered_repositories_have_no_assets_of_their_own(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.content["repositories"] = [{"repository": "listed"}]
    monkeypatch.setenv(CONFIGURATION_VARIABLE, str(lake.write_configuration(lake.server.objects_folder)))
    keys = defs().resolve_asset_graph().get_all_asset_keys()
    assert {key.path[0] for key in keys} == {"listed", ASSET}
