"""The component as a user's own project loads it, including its YAML."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from pydantic import ValidationError

from lakefs_gc_assets.collector.records import report, run_folder
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.component import GarbageCollection
from lakefs_gc_assets.configuration_file import Loaded
from lakefs_gc_assets.defs.partitions import RunPartitions, run_id_in
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.errors import ConfigurationError
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import Configuration

PROJECT = Path(__file__).resolve().parents[1]
TYPE = "lakefs_gc_assets.component.GarbageCollection"
SECRET_VARIABLE = "TEST_LAKEFS_SECRET"
_OPEN = """
import dagster
from ours.definitions import defs

defs().resolve_job_def("open_run_second").execute_in_process(instance=dagster.DagsterInstance.get())
"""


def component(**attributes: Any) -> GarbageCollection:
    found = GarbageCollection.from_attributes_dict(attributes=attributes)
    assert isinstance(found, GarbageCollection)
    return found


def test_attributes_are_those_of_a_configuration_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GC_ENDPOINT", "http://lakefs:8000")
    monkeypatch.setenv("GC_AGE", "72")

    found = component(
        lakefs={"endpoint": "{{ env.GC_ENDPOINT }}", "secret_access_key": {"env": "GC_SECRET"}},
        collection={"min_age_hours": {"env": "GC_AGE"}},
        repositories=[{"repository": "one"}, {"repository": "two", "collection": {"sweep": True}}],
    ).repositories

    assert [loaded.configuration.label for loaded in found] == ["one", "two"]
    assert [loaded.configuration.lakefs.endpoint for loaded in found] == ["http://lakefs:8000"] * 2
    assert [loaded.configuration.collection.min_age_hours for loaded in found] == [72, 72]
    assert [loaded.configuration.collection.sweep for loaded in found] == [False, True]
    assert [loaded.secret_variables for loaded in found] == [{("lakefs", "secret_access_key"): "GC_SECRET"}] * 2


def test_patterns_cover_repositories_without_assets_of_their_own() -> None:
    found = component(discover={"include": ["prod-*"], "defaults": {"prod-a": {"overview": {"budget": "1 TB"}}}})
    assert found.repositories == () and found.everything.discovery is not None
    assert found.everything.discovery.loaded("prod-a").configuration.overview.budget_bytes == 10**12


def test_a_single_repository() -> None:
    assert [loaded.configuration for loaded in component(repository="one").repositories] == [
        Configuration(repository="one")
    ]


@pytest.mark.parametrize(
    "attributes",
    [
        {"repository": "one", "collection": {"min_age_hours": -1}},
        {"repositories": [{"repository": "one", "spark": {"master": 3}}]},
    ],
)
def test_what_the_schema_does_not_know_is_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        component(**attributes)


@pytest.mark.parametrize(
    ("attributes", "meant"),
    [
        ({"repositry": "one"}, "repository"),
        ({"repository": "one", "collection": {"swep": True}}, "sweep"),
        ({"repositories": [{"repository": "one", "collection": {"swep": True}}]}, "sweep"),
    ],
)
def test_an_unknown_name_is_answered_with_the_one_that_may_be_meant(attributes: dict[str, Any], meant: str) -> None:
    with pytest.raises(ValidationError, match=f"there is no such setting. Did you mean `{meant}`?"):
        component(**attributes)


def test_so_it_is_in_a_file_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "misspelt" / "defs" / "garbage"
    folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.dg]\ndirectory_type = 'project'\n[tool.dg.project]\nroot_module = 'misspelt'\n"
    )
    for package in (folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    content = f"type: {TYPE}\nattributes:\n  repository: one\n  collection:\n    swep: true\n"
    (folder / "defs.yaml").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(Exception, match="Error while loading component") as refused:
        dg.load_from_defs_folder(path_within_project=folder)
    words = str(refused.value.__cause__)
    assert "attributes.collection.swep at" in words and "defs.yaml:5" in words
    assert "Did you mean `sweep`?" in words


def test_properties_of_spark_may_come_from_the_environment() -> None:
    [loaded] = component(repository="one", spark={"config": {"spark.a": {"env": "A"}, "spark.b": "b"}}).repositories

    spark = loaded.configuration.spark
    assert (spark.config, spark.config_from_environment) == ({"spark.b": "b"}, {"spark.a": "A"})


def test_a_secret_in_yaml_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match=r"lakefs\.secret_access_key is a secret") as refused:
        component(repository="one", lakefs={"secret_access_key": "s3cr3t"})
    assert "s3cr3t" not in str(refused.value)


def test_every_attribute_is_described() -> None:
    schema = GarbageCollection.get_model_cls().model_json_schema()

    for section, properties in schema["$defs"].items():
        if section.endswith("Settings"):
            for name, field in properties["properties"].items():
                assert field.get("description"), f"{section}.{name}"


def test_it_leaves_the_rest_of_a_project_alone() -> None:
    """Adds no executor, no logger and, with a name, no plain resource that another component might define."""
    context = dg.ComponentTree.for_test().load_context

    built = component(repository="data", name="gc").build_defs(context)

    assert (built.executor, built.loggers) == (None, {})
    assert built.resources is not None
    assert all(name.endswith("_gc") for name in built.resources)


def run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    ended = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout[-3000:]}\n{ended.stderr[-5000:]}"
    return ended.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_fresh_project_collects(tmp_path: Path) -> None:
    """Starts from nothing: creates a project, adds the component and its YAML, and launches a run."""
    programs = Path(sys.executable).parent
    if not (programs / "create-dagster").exists():
        pytest.skip("create-dagster is not installed: run `make setup`")
    home, project = tmp_path / "home", tmp_path / "ours"
    home.mkdir()
    with EmbeddedServer(tmp_path / "lakefs") as server:
        for repository in ("first", "second"):
            make_sample_repository(server, objects=40, repository=repository)
        environment = {
            "DAGSTER_HOME": str(home),
            "PYTHONPATH": f"{PROJECT}:{project / 'src'}",
            SECRET_VARIABLE: server.secret_access_key,
        }
        run([str(programs / "create-dagster"), "project", str(project), "--no-uv-sync"], tmp_path, environment)
        dg_program = [str(programs / "dg")]
        run([*dg_program, "scaffold", "defs", TYPE, "garbage"], project, environment)
        file = project / "src" / "ours" / "defs" / "garbage" / "defs.yaml"
        scaffolded = yaml.safe_load(file.read_text())
        assert scaffolded["type"] == TYPE
        assert scaffolded["attributes"]["repositories"] == [{"repository": "my-repository"}]

        attributes = configuration(server, "").model_dump(exclude_defaults=True)
        attributes["lakefs"]["secret_access_key"] = {"env": SECRET_VARIABLE}
        attributes["launch"] = {"sweep": "any"}
        attributes["repositories"] = [{"repository": "first"}, {"repository": "second", "collection": {"sweep": True}}]
        file.write_text(yaml.safe_dump({"type": TYPE, "attributes": attributes}))
        listed = json.loads(run([*dg_program, "list", "defs", "--json"], project, environment))
        assert {"first/store_df", "second/deleted_report"} <= {asset["asset_key"] for asset in listed["assets"]}

        run([sys.executable, "-c", _OPEN], project, environment)
        with dg.DagsterInstance.from_config(str(home)) as instance:
            (key,) = instance.get_dynamic_partitions("gc_runs_second")
            windows = instance.get_dynamic_partitions("gc_slice_windows_second")
            assert instance.get_dynamic_partitions("gc_runs_first") == []
        tags = RunPartitions("second").tags(key, windows, "clean")
        execute = [sys.executable, "-m", "dagster", "job", "execute", "-m", "ours.definitions", "-j", "collect_second"]
        run([*execute, "--tags", json.dumps(tags)], project, environment)

        store = {
            name: Collector.from_loaded(Loaded(configuration(server, name), {}), SystemClock()).open().store
            for name in ("first", "second")
        }
        found = report.read(store["second"], run_id_in(key) or "")
        assert found is not None
        assert (found.success, found.dry_run, found.counts["deleted"] > 0) == (True, False, True)
        assert list(run_folder.newest_runs(store["first"])) == []
