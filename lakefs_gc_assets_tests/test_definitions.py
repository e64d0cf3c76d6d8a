from pathlib import Path

import dagster as dg
import pytest

from lakefs_gc_assets.assets.graph import ORDER
from lakefs_gc_assets.collection.clock import SystemClock
from lakefs_gc_assets.configuration import CONFIGURATION_VARIABLE, Configuration, Loaded
from lakefs_gc_assets.definitions import build, defs
from lakefs_gc_assets.frames.spark import SCHEMAS

SECRET = "do-not-show-me"


@pytest.fixture
def definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """As Dagster loads them where there is no configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    return defs()


def test_they_load_without_a_configuration(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)


def test_the_shape_of_the_graph(definitions: dg.Definitions) -> None:
    """What the UI draws. A change here is a change for everybody who looks at it."""
    graph = definitions.resolve_asset_graph()

    assert {
        key.path[-1]: sorted(parent.path[-1] for parent in graph.get(key).parent_keys)
        for key in graph.get_all_asset_keys()
    } == {
        "store_df": [],
        "uncommitted_df": ["store_df"],
        "committed_df": ["uncommitted_df"],
        "candidates": ["committed_df", "store_df", "uncommitted_df"],
        "deleted_report": ["candidates"],
    }
    assert [key.path[-1] for key in graph.toposorted_asset_keys] == list(ORDER)
    assert sorted(f"{key.asset_key.path[-1]}.{key.name}" for key in graph.asset_check_keys) == [
        "candidates.disjoint",
        "candidates.live_set",
        "candidates.older_than_cutoff",
        "candidates.shape",
        "committed_df.shape",
        "deleted_report.shape",
        "store_df.shape",
        "uncommitted_df.shape",
    ]
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        partitions = node.partitions_def
        assert isinstance(partitions, dg.MultiPartitionsDefinition)
        assert [dimension.name for dimension in partitions.partitions_defs] == ["run_id", "slice"]
        assert all(
            isinstance(dimension.partitions_def, dg.DynamicPartitionsDefinition)
            for dimension in partitions.partitions_defs
        )
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
        assert (node.group_name, node.kinds) == ("garbage_collection", {"pyspark", "parquet"})
        assert (node.description or "").endswith(".")


def test_every_check_blocks_and_is_partitioned_like_its_asset(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    specs = [graph.get_check_spec(key) for key in graph.asset_check_keys]

    assert len(specs) == 8
    assert all(spec.blocking and (spec.description or "").endswith(".") for spec in specs)
    assert all(spec.partitions_def == graph.get(spec.asset_key).partitions_def for spec in specs)


def test_columns_are_described_before_any_run(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()

    for key in graph.get_all_asset_keys():
        schema = graph.get(key).metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchema)
        assert [column.name for column in schema.columns] == SCHEMAS[key.path[-1]].names
        assert all(column.description and column.type for column in schema.columns)


def test_jobs_sensors_and_schedules(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()

    assert {"collect", "open_run", "expire_runs"} <= {job.name for job in repository.get_all_jobs()}
    assert {sensor.name: sensor.default_status for sensor in repository.sensor_defs} == {
        "launch_opened_runs": dg.DefaultSensorStatus.RUNNING,
        "follow_deleted_report": dg.DefaultSensorStatus.STOPPED,
    }
    assert {
        schedule.name: (schedule.cron_schedule, schedule.default_status) for schedule in repository.schedule_defs
    } == {
        "clean_runs": ("0 2 * * 6", dg.DefaultScheduleStatus.STOPPED),
        "dry_runs": ("0 1 * * *", dg.DefaultScheduleStatus.STOPPED),
        "expire_old_runs": ("0 5 * * 0", dg.DefaultScheduleStatus.STOPPED),
    }
    collect = definitions.resolve_job_def("collect")
    assert {node.name for node in collect.nodes} >= set(ORDER)
    assert collect.executor_def.name == "in_process"


def test_repositories_do_not_share_partitions() -> None:
    names = {
        definition.name
        for repository in ("one", "two")
        for dimension in (
            build(Loaded(Configuration(repository=repository), {}), SystemClock())
            .resolve_asset_graph()
            .get(dg.AssetKey("store_df"))
            .partitions_def.partitions_defs  # type: ignore[union-attr]
        )
        if isinstance(definition := dimension.partitions_def, dg.DynamicPartitionsDefinition)
    }

    assert names == {"gc_runs_one", "gc_slice_windows_one", "gc_runs_two", "gc_slice_windows_two"}


def test_the_configuration_file_is_used_and_its_secrets_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text(
        "repository: measurements\n"
        "lakefs: {endpoint: 'http://lakefs:8000', access_key_id: AKIA, secret_access_key: {env: LAKEFS_SECRET}}\n"
    )
    monkeypatch.setenv(CONFIGURATION_VARIABLE, str(file))
    monkeypatch.setenv("LAKEFS_SECRET", SECRET)

    loaded = defs()

    dg.Definitions.validate_loadable(loaded)
    partitions = loaded.resolve_asset_graph().get(dg.AssetKey("store_df")).partitions_def
    assert "gc_runs_measurements" in repr(partitions)
    resources = loaded.get_repository_def().get_top_level_resources()
    shown = "".join(repr(resource.config_schema.default_value) for resource in resources.values() if resource)
    assert "lakefs:8000" in shown
    assert SECRET not in shown


def test_a_broken_configuration_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text("repositry: measurements\n")
    monkeypatch.setenv(CONFIGURATION_VARIABLE, str(file))

    with pytest.raises(Exception, match="repositry"):
        defs()
