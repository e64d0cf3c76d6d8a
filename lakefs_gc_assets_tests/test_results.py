"""Reading the records of runs from Python, and every example of docs/python.md."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest
import yaml
from pyspark.sql import SparkSession

import lakefs_gc_assets
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, FRAMES, STEPS
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.errors import CollectionError, ConfigurationError, CorruptFile
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import Sample, make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.settings import Configuration, StoreSettings
from lakefs_gc_assets.storage.opening import StoreOpener, readable_path
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns

NOTEBOOK = Path(__file__).parents[1] / "docs" / "candidates.ipynb"
DOCUMENT = Path(__file__).parents[1] / "docs" / "python.md"
_EXAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NOT_HERE = ("duckdb", "polars")
SECRET = "TEST_RESULTS_SECRET"


@dataclass
class Made:
    """A repository with a dry run, followed by a sweep."""

    server: EmbeddedServer
    sample: Sample
    dry: Report
    swept: Report

    @property
    def configuration(self) -> Configuration:
        return configuration(self.server, self.sample.repository)

    @property
    def garbage(self) -> set[str]:
        return {each.address for each in self.sample.garbage}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    with EmbeddedServer(tmp_path_factory.mktemp("lakefs")) as server:
        sample = make_sample_repository(server, objects=60)
        content = configuration(server, sample.repository)
        collection = {"sweep": True, "max_candidate_share": 1}
        sweeping = content.model_copy(update={"collection": content.collection.model_copy(update=collection)})
        dry = ArrowRuns(Loaded(content, {})).collect()
        swept = ArrowRuns(Loaded(sweeping, {})).collect()
        yield Made(server, sample, dry, swept)


@pytest.fixture
def file(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file in the working folder, its secret in the environment."""
    content = made.configuration.model_dump(exclude_defaults=True)
    content["lakefs"]["secret_access_key"] = {"env": SECRET}
    monkeypatch.setenv(SECRET, made.server.secret_access_key)
    monkeypatch.delenv(CONFIGURATION_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "lakefs-gc.yaml"
    found.write_text(yaml.safe_dump(content))
    return found


def test_candidates_in_each_form(made: Made) -> None:
    found = lakefs_gc_assets.open(made.configuration).run(made.dry.run_id)

    candidates = found.candidates
    table = candidates.to_arrow()
    assert set(table["address"].to_pylist()) == made.garbage
    assert table.schema.names == CANDIDATES_DF.schema.names
    assert table.schema == candidates.schema
    assert candidates.rows == len(candidates) == table.num_rows == made.dry.counts["candidates"]
    assert candidates.object_bytes == sum(table["size"].to_pylist()) == made.dry.object_bytes["candidates"]
    pd.testing.assert_frame_equal(candidates.to_pandas(), table.to_pandas())
    assert pa.Table.from_batches(candidates.batches()) == table
    assert pa.table(candidates) == table
    assert pa.RecordBatchReader.from_stream(candidates).read_all() == table
    assert all(Path(path).is_file() for path in candidates.paths)
    stored = pyarrow.dataset.dataset(list(candidates.paths)).to_table()
    assert stored.to_pylist() == table.to_pylist()


def test_runs_are_newest_first_and_the_latest_one_came_to_its_end(made: Made) -> None:
    repository = lakefs_gc_assets.open(made.configuration)

    assert [run.id for run in repository.runs()] == [made.swept.run_id, made.dry.run_id]
    assert repository.run().id == repository.run("latest").id == made.swept.run_id
    assert repository.run().report == made.swept
    assert (repository.name, repository.storage_namespace) == (made.sample.repository, made.swept.storage_namespace)


def test_every_frame_of_a_run(made: Made) -> None:
    run = lakefs_gc_assets.open(made.configuration).run(made.swept.run_id)

    tables = (run.stored, run.uncommitted, run.committed, run.candidates, run.deleted)
    assert tuple(table.name for table in tables) == STEPS
    for table in (*tables, run.unrecognised):
        assert table.to_arrow().schema.names == FRAMES[table.name].schema.names
    assert set(run.deleted.to_arrow()["outcome"].to_pylist()) == {"accepted"}
    with pytest.raises(CollectionError, match="there is no frame 'garbage'; the frames are store_df"):
        run.table("garbage")


def test_a_file_names_the_repository(made: Made, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for opened in (lakefs_gc_assets.open(file), lakefs_gc_assets.open(str(file)), lakefs_gc_assets.open()):
        assert opened.name == made.sample.repository
    file.rename("other.yaml")
    with pytest.raises(ConfigurationError, match="no configuration: give a file"):
        lakefs_gc_assets.open()
    monkeypatch.setenv(CONFIGURATION_VARIABLE, "other.yaml")
    assert lakefs_gc_assets.open().run().id == made.swept.run_id


def test_one_of_several_repositories(made: Made, file: Path) -> None:
    content = yaml.safe_load(file.read_text())
    content["repositories"] = [{"repository": content.pop("repository")}, {"repository": "other"}]
    file.write_text(yaml.safe_dump(content))

    assert lakefs_gc_assets.open(file, repository=made.sample.repository).name == made.sample.repository
    with pytest.raises(ConfigurationError, match=f"has {made.sample.repository}, other"):
        lakefs_gc_assets.open(file)
    with pytest.raises(ConfigurationError, match="no repository is configured"):
        lakefs_gc_assets.open(Configuration())
    named = made.configuration.model_copy(update={"repository": ""})
    assert lakefs_gc_assets.open(named, repository=made.sample.repository).run().id == made.swept.run_id


def test_what_is_not_there(made: Made) -> None:
    repository = lakefs_gc_assets.open(made.configuration)

    with pytest.raises(CollectionError, match="there is no run cccc"):
        repository.run("c" * 20)
    with pytest.raises(CollectionError, match="has no checkpoint_committed stored"):
        repository.run(made.dry.run_id).table("checkpoint_committed")


def test_a_file_that_was_changed_is_refused(made: Made) -> None:
    candidates = lakefs_gc_assets.open(made.configuration).run(made.dry.run_id).candidates
    path = Path(candidates.paths[0])
    before = path.read_bytes()
    try:
        path.write_bytes(before[:-1] + b"x")
        with pytest.raises(CorruptFile):
            candidates.to_arrow()
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("namespace", "path"),
    [
        ("s3://bucket/repo", "s3://bucket/repo/_lakefs/a"),
        ("s3a://bucket/my%20repo", "s3://bucket/my repo/_lakefs/a"),
        ("gs://bucket", "gs://bucket/_lakefs/a"),
        ("https://acc.blob.core.windows.net/box/repo", "https://acc.blob.core.windows.net/box/repo/_lakefs/a"),
    ],
)
def test_paths_as_other_programs_spell_them(namespace: str, path: str) -> None:
    assert readable_path(StoreOpener(StoreSettings(), f"{namespace}/"), "_lakefs/a") == path


@pytest.mark.slow
def test_a_dataframe_of_spark(made: Made, spark: SparkSession) -> None:
    candidates = lakefs_gc_assets.open(made.configuration).run(made.dry.run_id).candidates

    found = candidates.to_spark(spark)

    assert found.columns == CANDIDATES_DF.schema.names
    assert {row.address for row in found.select("address").collect()} == made.garbage


def examples() -> list[str]:
    return _EXAMPLE.findall(DOCUMENT.read_text())


def _example(word: str) -> str:
    [found] = [each for each in examples() if f"import {word}" in each]
    return found


@pytest.mark.slow
def test_every_example_of_the_page_runs(made: Made, file: Path, spark: SparkSession) -> None:
    names: dict[str, Any] = {}
    for example in examples():
        if not any(f"import {other}\n" in example for other in _NOT_HERE):
            exec(compile(example, str(DOCUMENT), "exec"), names)  # noqa: S102

    assert names["run"].id == names["swept"].id == made.swept.run_id
    assert names["total"] == names["by_month"].sum() == made.swept.object_bytes["candidates"]
    assert list(names["largest"]["size"]) == sorted(names["frame"]["size"], reverse=True)[:10]
    assert names["dataset"].count_rows() == names["reader"].read_all().num_rows == len(made.garbage)


def test_the_notebook_runs_and_holds_no_outputs(made: Made, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    names: dict[str, Any] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}, {cell['id']}", "exec"), names)  # noqa: S102

    assert capsys.readouterr().out.startswith(f"run {made.swept.run_id} of {made.sample.repository}: ")
    garbage = made.swept.counts["candidates"]
    assert sum(names["by_reason"]["size_count"].to_pylist()) == garbage
    assert names["by_age"]["objects"].sum() == names["outcomes"]["objects"].sum() == garbage
    assert names["outcomes"].index.to_list() == ["accepted"]
    assert names["largest"] == names["frame"]["size"].max()
    assert all(Path(path).is_file() for path in names["paths"])


@pytest.mark.parametrize("library", _NOT_HERE)
def test_examples_of_libraries_that_are_not_required(made: Made, library: str) -> None:
    pytest.importorskip(library)
    names = {"candidates": lakefs_gc_assets.open(made.configuration).run().candidates}

    exec(compile(_example(library), str(DOCUMENT), "exec"), names)  # noqa: S102


def test_the_package_imports_nothing_until_it_is_asked(file: Path) -> None:
    program = (
        "import sys\n"
        "import lakefs_gc_assets\n"
        "assert not {'pyarrow', 'pydantic', 'yaml', 'lakefs_sdk'} & sys.modules.keys()\n"
        "assert len(lakefs_gc_assets.open().run().candidates.to_arrow())\n"
        "print(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=True)

    assert {"dagster", "pyspark", "pandas", "numba"}.isdisjoint(ended.stdout.split())


def test_a_star_import_keeps_the_built_in_open() -> None:
    names: dict[str, object] = {}
    exec("from lakefs_gc_assets import *", names)  # noqa: S102
    assert "open" not in names
