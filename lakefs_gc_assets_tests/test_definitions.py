import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from lakefs_gc_assets.collector.frame.frames import FRAMES, STEPS
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded, loaded_from
from lakefs_gc_assets.definitions import EXTENSIONS, defs
from lakefs_gc_assets.defs.history import HISTORY, SWEEPS
from lakefs_gc_assets.defs.partitions import RunPartitions
from lakefs_gc_assets.defs.wiring import build, build_all
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.settings import Configuration

SECRET = "do-not-show-me"

WHOLE_RUNS = (HISTORY, SWEEPS)
"""Assets without partitions: each event is about a whole run."""
LISTED = ("lifecycle_report", "stale_branches")
"""Assets with a partition for each launch of the job that lists and deletes."""
BESIDE = ("holdings", "repository_check", "retention_forecast", *LISTED)
"""Assets that jobs report, and that are no part of a run."""


@pytest.fixture
def definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dg.Definitions:
    """Definitions as Dagster loads them without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    return defs()


def test_they_load_without_a_configuration(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)


def test_the_shape_of_the_graph(definitions: dg.Definitions) -> None:
    """The graph that the UI draws. A change here is visible to every user."""
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
        **{name: [] for name in BESIDE},
        **{name: ["deleted_report"] for name in WHOLE_RUNS},
    }
    assert [key.path[-1] for key in graph.toposorted_asset_keys if key.path[-1] in STEPS] == list(STEPS)
    assert sorted(f"{key.asset_key.path[-1]}.{key.name}" for key in graph.asset_check_keys) == [
        "candidates.disjoint",
        "candidates.live_set",
        "candidates.nothing_deleted_is_live",
        "candidates.older_than_cutoff",
        "candidates.shape",
        "collection_history.newest_run_succeeded",
        "committed_df.shape",
        "deleted_report.shape",
        "lifecycle_report.lifecycle_is_complete",
        "repository_check.repository_is_whole",
        "stale_branches.branch_deletions_are_complete",
        "store_df.shape",
        "sweeps.swept_in_time",
        "uncommitted_df.shape",
    ]
    for key in map(dg.AssetKey, WHOLE_RUNS):
        node = graph.get(key)
        assert (node.partitions_def, node.is_executable, node.group_name) == (None, False, "garbage_collection")
    for key in map(dg.AssetKey, BESIDE):
        node = graph.get(key)
        # "Materialize all" makes every executable asset: a run makes no forecast and no check.
        assert isinstance(node.partitions_def, dg.DynamicPartitionsDefinition) == (key.path[-1] in LISTED)
        assert not node.is_executable
        # The lineage of a single group opens on its assets.
        assert node.group_name == "garbage_collection"
    for key in map(dg.AssetKey, STEPS):
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


def test_no_check_is_partitioned_and_all_block_but_one(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()
    specs = [graph.get_check_spec(key) for key in graph.asset_check_keys]

    assert len(specs) == 14
    assert {spec.name for spec in specs if not spec.blocking} == {
        "branch_deletions_are_complete",
        "lifecycle_is_complete",
        "nothing_deleted_is_live",
        "newest_run_succeeded",
        "repository_is_whole",
        "swept_in_time",
    }
    assert all((spec.description or "").endswith(".") for spec in specs)
    assert all(spec.partitions_def is None for spec in specs), "a run over several windows would leave it grey"


def test_columns_are_described_before_any_run(definitions: dg.Definitions) -> None:
    graph = definitions.resolve_asset_graph()

    for key in map(dg.AssetKey, STEPS):
        schema = graph.get(key).metadata["dagster/column_schema"]
        assert isinstance(schema, dg.TableSchema)
        assert [column.name for column in schema.columns] == FRAMES[key.path[-1]].schema.names
        assert all(column.description and column.type for column in schema.columns)


def test_jobs_sensors_and_schedules(definitions: dg.Definitions) -> None:
    repository = definitions.get_repository_def()

    assert {
        "collect",
        "open_run",
        "approve",
        "expire_runs",
        "restore",
        "purge",
        "forecast",
        "fsck",
        "holdings",
        "lifecycle",
        "routine",
        "stale_branches",
    } <= {job.name for job in repository.get_all_jobs()}
    assert {sensor.name: sensor.default_status for sensor in repository.sensor_defs} == {
        "launch_opened_runs": dg.DefaultSensorStatus.RUNNING,
        "follow_deleted_report": dg.DefaultSensorStatus.STOPPED,
        "follow_runs": dg.DefaultSensorStatus.STOPPED,
        "sweep_by_standing_approval": dg.DefaultSensorStatus.STOPPED,
        "note_failures": dg.DefaultSensorStatus.RUNNING,
    }
    assert {
        schedule.name: (schedule.cron_schedule, schedule.default_status) for schedule in repository.schedule_defs
    } == {
        "clean_runs": ("0 2 * * 6", dg.DefaultScheduleStatus.STOPPED),
        "dry_runs": ("0 1 * * *", dg.DefaultScheduleStatus.STOPPED),
        "expire_old_runs": ("0 5 * * 0", dg.DefaultScheduleStatus.STOPPED),
        "empty_quarantine": ("0 6 * * *", dg.DefaultScheduleStatus.STOPPED),
        "find_stale_branches": ("0 7 * * 1", dg.DefaultScheduleStatus.STOPPED),
        "retire_stale_branches": ("0 7 * * 1", dg.DefaultScheduleStatus.STOPPED),
        "find_expired_entries": ("0 4 * * 1", dg.DefaultScheduleStatus.STOPPED),
        "delete_expired_entries": ("0 4 * * 1", dg.DefaultScheduleStatus.STOPPED),
        "routine_within_approvals": ("0 3 * * 6", dg.DefaultScheduleStatus.STOPPED),
        "routine": ("0 3 * * 6", dg.DefaultScheduleStatus.STOPPED),
    }
    collect = definitions.resolve_job_def("collect")
    assert {node.name for node in collect.nodes} >= set(STEPS)
    assert collect.executor_def.name == "in_process"


def configured(repository: str, name: str = "") -> Loaded:
    """Definitions of a repository among several."""
    return Loaded(Configuration(repository=repository, name=name), {}, apart=True)


def all_names(definitions: dg.Definitions) -> set[str]:
    """Every name that must be unique in a code location."""
    repository = definitions.get_repository_def()
    return {
        *(key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()),
        *(job.name for job in repository.get_all_jobs() if not job.name.startswith("__")),
        *(sensor.name for sensor in repository.sensor_defs),
        *(schedule.name for schedule in repository.schedule_defs),
        *repository.get_top_level_resources(),
    }


def test_several_repositories_share_nothing() -> None:
    both = build_all([configured("one"), configured("my-data")], SystemClock(), EXTENSIONS)
    dg.Definitions.validate_loadable(both)
    graph = both.resolve_asset_graph()

    assert {key.path[0] for key in graph.get_all_asset_keys()} == {"one", "my_data"}
    assert len(graph.get_all_asset_keys()) == 2 * len((*STEPS, *WHOLE_RUNS, *BESIDE))
    assert len(graph.asset_check_keys) == 2 * 14
    for identifier, partitions in (("one", "one"), ("my_data", "my-data")):
        own = [graph.get(key) for key in graph.get_all_asset_keys() if key.path[0] == identifier]
        assert {node.group_name for node in own} == {f"garbage_collection_{identifier}"}
        assert {parent.path[0] for node in own for parent in node.parent_keys} == {identifier}
        assert {node.partitions_def for node in own} == {
            RunPartitions(partitions).definition,
            None,
            *(dg.DynamicPartitionsDefinition(name=f"gc_{name}_{partitions}") for name in LISTED),
        }
        collect = both.resolve_job_def(f"collect_{identifier}")
        assert {pool for node in collect.graph.nodes for pool in node.definition.pools} == {f"lakefs_gc_{identifier}"}
        assert {key.path[0] for key in collect.asset_layer.executable_asset_keys} == {identifier}
    resources = both.get_repository_def().get_top_level_resources()
    assert all(name.endswith(("_one", "_my_data")) for name in resources)


def test_a_single_repository_has_plain_names_unless_it_is_given_one() -> None:
    alone = loaded_from({"repository": "my-data"}, "gc.yaml")
    plain = all_names(build(alone, SystemClock(), EXTENSIONS))

    assert {*STEPS, "collect", "open_run", "follow_deleted_report", "clean_runs", "collector"} <= plain
    assert all_names(build_all([alone], SystemClock(), EXTENSIONS)) == plain
    given = loaded_from({"repository": "my-data", "name": "eu"}, "gc.yaml")
    assert "eu/store_df" in all_names(build_all([given], SystemClock(), EXTENSIONS))


def test_repositories_that_would_have_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="two repositories would have the name my_data in Dagster"):
        build_all([configured("my-data"), configured("one"), configured("other", "my_data")], SystemClock(), EXTENSIONS)

    dg.Definitions.validate_loadable(
        build_all([configured("my-data"), configured("my-data", "elsewhere")], SystemClock(), EXTENSIONS)
    )


def test_each_repository_starts_by_itself() -> None:
    """Sensors, schedules and jobs of one repository never start jobs of another."""
    both = build_all([configured("one"), configured("two")], SystemClock(), EXTENSIONS).get_repository_def()

    targets = {sensor.name: {target.job_name for target in sensor.targets} for sensor in both.sensor_defs}
    targets |= {schedule.name: {schedule.job_name} for schedule in both.schedule_defs}
    assert len(targets) == 2 * 15
    for name, jobs in targets.items():
        if name.startswith("note_failures"):
            assert jobs == set(), "it starts nothing"
            continue
        assert {job.rpartition("_")[-1] for job in jobs} == {name.rpartition("_")[-1]}, name


def test_the_sensor_of_a_report_launches_the_job_that_makes_this_report_and_all_before_it() -> None:
    both = build_all([configured("one"), configured("two")], SystemClock(), EXTENSIONS)

    for identifier in ("one", "two"):
        sensor = both.get_sensor_def(f"follow_deleted_report_{identifier}")
        made = both.resolve_job_def(str(sensor.job_name)).asset_layer.executable_asset_keys
        watched = dg.AssetSelection.assets([identifier, "deleted_report"]).upstream()
        assert made == watched.resolve(both.resolve_asset_graph())


def test_a_code_location_imports_no_libraries_of_stores() -> None:
    code = (
        "import sys; from lakefs_gc_assets.definitions import defs; defs().get_repository_def()\n"
        "print({'boto3', 'dagster_aws', 'google.auth', 'azure.core', 'lakefs_sdk'} & sys.modules.keys())"
    )
    loading = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert loading.stdout == "set()\n"


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
    assert set(loaded.get_repository_def().get_top_level_resources()) == {
        *("collector", "frames", "lakefs", "store", "pyspark")
    }
    assert SECRET not in repr(loaded)


def test_a_broken_configuration_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gc.yaml"
    file.write_text("repositry: measurements\n")
    monkeypatch.setenv(CONFIGURATION_VARIABLE, str(file))

    with pytest.raises(Exception, match="repositry"):
        defs()


def test_sweeps_are_overdue_only_where_the_configuration_says_when() -> None:
    for days, expected in ((0.0, None), (2.0, dg.FreshnessPolicy.time_window(fail_window=timedelta(days=2)))):
        content = {"repository": "my-data", "automation": {"sweep_within_days": days}}
        graph = build(loaded_from(content, "gc.yaml"), SystemClock(), EXTENSIONS).resolve_asset_graph()
        policies = {key.path[-1]: graph.get(key).freshness_policy for key in graph.get_all_asset_keys()}
        assert policies == {**dict.fromkeys((*STEPS, HISTORY, *BESIDE)), SWEEPS: expected}


def test_every_asset_says_whose_it_is() -> None:
    configuration = Configuration(repository="my-data", owners=["team:data", "ops@example.com"], tags={"tier": "cold"})

    built = build(Loaded(configuration, {}), SystemClock(), EXTENSIONS)

    specs = built.resolve_all_asset_specs()
    assert len(specs) == len((*STEPS, *WHOLE_RUNS, *BESIDE))
    for spec in specs:
        assert spec.owners == ["team:data", "ops@example.com"]
        assert (spec.tags["tier"], spec.tags["lakefs/repository"]) == ("cold", "my_data")
        assert spec.group_name == "garbage_collection"
        assert spec.kinds


def test_an_asset_that_a_job_reports_names_that_job() -> None:
    both = build_all([configured("one"), configured("my-data")], SystemClock(), EXTENSIONS)
    graph = both.resolve_asset_graph()
    for name, job in zip(BESIDE, ("holdings", "fsck", "forecast", "lifecycle", "stale_branches"), strict=True):
        for repository in ("one", "my_data"):
            assert both.resolve_job_def(f"{job}_{repository}")
            description = graph.get(dg.AssetKey([repository, name])).description or ""
            assert f"job {job}_{repository} " in description and "aunch " in description and "here" in description
