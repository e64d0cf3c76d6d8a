import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dagster as dg
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame as SparkDataFrame
from pyspark.sql import SparkSession

from lakefs_gc_assets.collector.frame.files import FileWriter, Manifest, StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    FRAMES,
    STEPS,
    STORE_DF,
    F,
    Frame,
)
from lakefs_gc_assets.collector.records.outcomes import size
from lakefs_gc_assets.collector.repository.repository import SystemClock
from lakefs_gc_assets.configuration_file import CONFIGURATION_VARIABLE, Loaded
from lakefs_gc_assets.defs import io_manager
from lakefs_gc_assets.defs.assets import _note_cells
from lakefs_gc_assets.defs.checks import MODELS
from lakefs_gc_assets.defs.io_manager import metadata
from lakefs_gc_assets.defs.pages import column_lineage
from lakefs_gc_assets.defs.partitions import RunPartitions, key_of
from lakefs_gc_assets.defs.resources import Collector
from lakefs_gc_assets.defs.wiring import build
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.extensions.playground.demo import configuration
from lakefs_gc_assets.extensions.playground.embedded.sample import Session, make_sample_repository
from lakefs_gc_assets.extensions.playground.embedded.server import EmbeddedServer
from lakefs_gc_assets.results import Table
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES, COMMITTED_FIGURES, LISTED_FIGURES
from lakefs_gc_assets_tests.documentation.pages import DOCS, fenced
from lakefs_gc_assets_tests.runs.arrow_runs import ArrowRuns
from lakefs_gc_assets_tests.runs.graph_runs import GraphRuns, Replaying, failures, replaying
from lakefs_gc_assets_tests.servers.s3_server import S3Server
from lakefs_gc_assets_tests.servers.stores import bucket, s3_server
from lakefs_gc_assets_tests.spark.frame_rows import NOW, listed, live, span

__all__ = ["bucket", "replaying", "s3_server"]

OWN_PROJECT = DOCS / "how-to" / "own-project.md"


def stored(
    s3_server: S3Server, bucket: str, rows: list[dict[str, object]], frame: Frame[F], figures: F
) -> StoredFrame[F]:
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/repo/")
    writer = FileWriter(opener.open(), "frame/", frame.schema)
    for batch in pa.Table.from_pylist(rows, schema=frame.schema).to_batches():
        writer.write(batch)
    return StoredFrame(frame, Manifest(span(frame.name), tuple(writer.close()), figures), opener)


YOUNG_KEPT = replace(CANDIDATE_FIGURES, kept={"young": 3})


def text(shown: dict[str, object], name: str) -> str:
    value = shown[name]
    assert isinstance(value, dg.MarkdownMetadataValue)
    return value.md_str or ""


def test_a_frame_is_shown_by_its_figures(s3_server: S3Server, bucket: str) -> None:
    rows = [listed(f"data/{number:02}", slice_window=f"2026-{10 + number % 2}", size=3) for number in range(30)]

    figures = replace(LISTED_FIGURES, slices_listed=4, last_read_slice="ft52an1jth3nika669lg", other_folders=("a",))

    shown = metadata(stored(s3_server, bucket, rows, STORE_DF, figures))

    assert "| rows | 30 rows, 90 B |" in text(shown, "frame")
    assert "| files | 2 files, " in text(shown, "frame")
    assert shown["attempt"] == "a1"
    assert shown["ended_at"] == dg.MetadataValue.timestamp(NOW)
    assert text(shown, "path").replace("`  \n`", "") == f"`{shown['dagster/uri']}`"
    assert shown["dagster/uri"].startswith(f"s3://{bucket}/repo/_lakefs/retention/gc/uncommitted/")
    assert "| 15 | 2026-10 |" in text(shown, "rows_by_window")
    assert "| slices_listed | 4 slices |" in text(shown, "frame")
    for absent in ("other_folders", "why_clean", "limited_to", "last_read_slice"):
        assert absent not in text(shown, "frame")
    assert len(text(shown, "preview").splitlines()) == 2 + 20


def test_a_figure_has_its_unit_and_what_a_step_does_not_know_is_absent(s3_server: S3Server, bucket: str) -> None:
    for base, promised, lines in ((5, 7, 2), (None, None, 0)):
        frames = (
            stored(s3_server, bucket, [], STORE_DF, replace(LISTED_FIGURES, pending_before=base)),
            stored(s3_server, bucket, [], COMMITTED_DF, replace(COMMITTED_FIGURES, entries_promised=promised)),
        )
        shown = "".join(text(metadata(frame), "frame") for frame in frames)
        assert shown.count("| pending_before | 5 objects |") + shown.count("| entries_promised | 7 entries |") == lines
        assert lines or not ("pending_before" in shown or "entries_promised" in shown)


def test_counts_by_reason_are_shown_and_lists_of_names_are_not(s3_server: S3Server, bucket: str) -> None:
    kept = {"kept by a tag": 3, "head": 1}
    figures = replace(COMMITTED_FIGURES, heads={"main": "abc"}, retention=kept, retention_rules="ab" * 20)

    shown = metadata(stored(s3_server, bucket, [live("data/a")], COMMITTED_DF, figures))

    assert "| commits | 1 commit |" in text(shown, "frame")
    assert "| commit_source | metadata folder |" in text(shown, "frame")
    assert "| 3 | kept by a tag |" in text(shown, "retention")
    assert not {"heads", "retention_warnings"} & shown.keys()
    assert figures.read_sha256 and "sha256" not in text(shown, "frame")
    assert "retention_rules" not in text(shown, "frame")


def test_odd_names_do_not_break_the_preview(s3_server: S3Server, bucket: str) -> None:
    rows = [listed("data/a|b\\c\nd", etag=None)]

    header, _, line = text(metadata(stored(s3_server, bucket, rows, STORE_DF, LISTED_FIGURES)), "preview").splitlines()

    assert header.startswith("| address | size | age | ") and "etag" not in header, "it is empty in every row"
    assert line.startswith("| data/a\\|b\\\\c d | ")
    assert line.replace("\\|", "").count("|") == header.count("|")


def test_what_decides_comes_first(s3_server: S3Server, bucket: str) -> None:
    rows = [{**listed("data/a", size=3_000_000, last_modified=NOW - timedelta(days=40)), "why": "no commit holds it"}]

    shown = metadata(stored(s3_server, bucket, rows, CANDIDATES_DF, YOUNG_KEPT))

    header, _, line = text(shown, "preview").splitlines()
    assert header.startswith("| why | address | size | age | ")
    assert line.startswith("| no commit holds it | data/a | 2.9 MiB | 40.0 days | ")
    assert [*shown][:4] == ["frame", "kept", "preview", "rows_by_window"]


def test_the_preview_of_candidates_says_where_they_were_and_what_is_unknown(
    s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = stored(s3_server, bucket, [{**listed("data/a"), "why": "expired"}], CANDIDATES_DF, YOUNG_KEPT)
    monkeypatch.setattr(io_manager, "trace", lambda *_: [("x|y/z", "0123456789ab of branch main")])
    header, _, line = text(metadata(frame, with_paths=True), "preview").splitlines()
    assert header.startswith("| why | path | last held by | address | ")
    assert line.startswith("| expired | x\\|y/z | 0123456789ab of branch main | data/a | ")
    assert "path" not in text(metadata(frame), "preview")

    monkeypatch.setattr(io_manager, "trace", lambda *_: "the run did not note it")
    assert text(metadata(frame, with_paths=True), "preview").endswith(
        "|\n\nPaths and last commits are unknown: the run did not note it."
    )
    monkeypatch.undo()
    assert "are unknown: this repository has no run " in text(metadata(frame, with_paths=True), "preview"), (
        "it has no plan"
    )


def test_names_that_others_chose_are_no_markdown(s3_server: S3Server, bucket: str) -> None:
    rows = [listed("data/![x](https://elsewhere.example/x.png)", etag="<img src=https://elsewhere.example>")]

    *_, line = text(metadata(stored(s3_server, bucket, rows, STORE_DF, LISTED_FIGURES)), "preview").splitlines()

    assert "| data/!\\[x\\](https://elsewhere.example/x.png) |" in line
    assert "| \\<img src=https://elsewhere.example> |" in line


def test_an_empty_frame_is_shown_as_such(s3_server: S3Server, bucket: str) -> None:
    shown = metadata(stored(s3_server, bucket, [], STORE_DF, LISTED_FIGURES))

    assert "| rows | 0 rows, 0 B |" in text(shown, "frame")
    assert text(shown, "preview") == text(shown, "rows_by_window") == "no rows"


def test_metadata_of_a_run_over_many_windows_stays_small(s3_server: S3Server, bucket: str) -> None:
    """Dagster copies the metadata to each partition."""
    rows = [listed(f"data/{number:03}", slice_window=f"2026-01-01T{number:03}") for number in range(60)]
    frame = stored(s3_server, bucket, rows, STORE_DF, LISTED_FIGURES)

    lines = text(metadata(frame), "rows_by_window").splitlines()

    assert len(lines) == 2 + 50 + 1 and lines[-1] == "|  | 10 more, which are not shown |"
    for count in (200, 201):
        context = mock.Mock()
        context.partition_keys = [dg.MultiPartitionKey({"run_id": "a", "slice": str(each)}) for each in range(count)]
        _note_cells(context, frame.manifest)
        assert context.add_asset_metadata.call_count == (200 if count == 200 else 0)


@pytest.mark.parametrize("name", MODELS)
def test_lineage_names_columns_that_exist(name: str) -> None:
    lineage = column_lineage(name)
    if lineage is None:
        assert name in ("store_df", "uncommitted_df", "committed_df")
        return
    columns = {name: set(FRAMES[name].schema.names) for name in STEPS}
    assert lineage.deps_by_column.keys() <= columns[name]
    for deps in lineage.deps_by_column.values():
        assert all(dep.column_name in columns[dep.asset_key.path[-1]] for dep in deps)


def test_candidates_come_from_everything_that_is_subtracted() -> None:
    lineage = column_lineage("candidates")
    assert lineage is not None

    assert {dep.asset_key.path[-1] for dep in lineage.deps_by_column["address"]} == {
        "store_df",
        "uncommitted_df",
        "committed_df",
    }
    assert lineage.deps_by_column.keys() == set(CANDIDATES_DF.schema.names)


class DataFrame:
    """Stands in for polars.DataFrame, which need not be installed: both take an Arrow stream."""

    __module__ = "polars.dataframe.frame"

    def __init__(self, stream: object) -> None:
        self.rows = pa.table(stream)


@dataclass
class Consumed:
    """A repository with two finished dry runs, the older one over each of its windows."""

    loaded: Loaded
    older: str
    newest: str
    windows: tuple[str, ...]

    def materialize(self, *assets: dg.AssetsDefinition, run_id: str = "") -> dg.ExecuteInProcessResult:
        """Materializes a user's assets beside ours; partitioned ones get `run_id`, over its last window."""
        ours = build(self.loaded, SystemClock())
        job = dg.define_asset_job("own", dg.AssetSelection.assets(*assets))
        defs = dg.Definitions.merge(ours, dg.Definitions(assets=assets, jobs=[job]))
        with dg.instance_for_test() as instance:
            for known in (self.older, self.newest):
                PARTITIONS.add(instance, known, self.windows)
            cell = dg.MultiPartitionKey({"run_id": run_id, "slice": self.windows[-1]}) if run_id else None
            return defs.resolve_job_def("own").execute_in_process(
                instance=instance, partition_key=cell, raise_on_error=False
            )


PARTITIONS = RunPartitions("sample")


@pytest.fixture(scope="module")
def consumed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consumed]:
    with EmbeddedServer(tmp_path_factory.mktemp("lakefs")) as server:
        sample = make_sample_repository(server, objects=60)
        loaded = Loaded(configuration(server, sample.repository), {})
        older = ArrowRuns(loaded).collect()
        with (
            closing(Session(server, sample.repository)) as api,
            server.clock.at(server.clock.now() - timedelta(days=5)),
        ):
            api.upload("main", "newer", b"garbage of the second run")
            api.delete("main", "newer")
        yield Consumed(loaded, older.run_id, ArrowRuns(loaded).collect().run_id, older.windows)


def rows_of(given: Any) -> int:
    """Number of rows of a value passed to an asset."""
    if isinstance(given, SparkDataFrame):
        return given.count()
    rows: pa.Table = given.rows if isinstance(given, DataFrame) else given
    return rows.num_rows if isinstance(rows, pa.Table) else len(rows)


def in_store(consumed: Consumed, run_id: str, window: str | None = None) -> int:
    """Number of candidates that a run stored, in all windows or one."""
    repository = Collector.from_loaded(consumed.loaded, SystemClock()).open()
    manifest = StoredFrame.from_run(repository.store, repository.opener, run_id, CANDIDATES_DF).manifest
    return manifest.rows if window is None else manifest.rows_by_window().get(window, 0)


def asking_for(kind: Any, given: list[object]) -> dg.AssetsDefinition:
    """An asset that requests candidates as some type, and keeps the value and its number of rows."""

    def report(candidates: object) -> None:
        given.extend([candidates, rows_of(candidates)])

    report.__annotations__["candidates"] = kind
    return dg.asset(report, name=f"report_{len(kind.__module__)}")


def test_assets_get_the_newest_finished_run_as_they_ask(consumed: Consumed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(DataFrame=DataFrame))
    kinds: dict[Any, type] = {pd.DataFrame: pd.DataFrame, DataFrame: DataFrame, pa.Table: pa.Table, Any: Table}
    given: list[object] = []

    result = consumed.materialize(*(asking_for(kind, given) for kind in kinds))

    assert result.success
    assert {type(frame) for frame in given[::2]} == {*kinds.values()}
    assert in_store(consumed, consumed.newest) == in_store(consumed, consumed.older) + 1
    assert given[1::2] == [in_store(consumed, consumed.newest)] * len(kinds)


@pytest.mark.slow
def test_an_asset_gets_a_dataframe_of_spark(consumed: Consumed, spark: SparkSession) -> None:
    given: list[object] = []

    assert consumed.materialize(asking_for(SparkDataFrame, given)).success

    frame, rows = given
    assert isinstance(frame, SparkDataFrame)
    assert rows == in_store(consumed, consumed.newest)


def test_an_asset_with_the_partitions_of_the_five_gets_the_windows_of_its_run(consumed: Consumed) -> None:
    given: list[int] = []

    @dg.asset(partitions_def=PARTITIONS.definition)
    def report(candidates: pd.DataFrame) -> None:
        given.append(len(candidates))

    assert consumed.materialize(report, run_id=consumed.older).success
    (rows,) = given
    window = consumed.windows[-1]
    assert rows == in_store(consumed, consumed.older, window) != in_store(consumed, consumed.newest, window)


def test_a_type_that_no_frame_can_be_given_as_is_refused(consumed: Consumed) -> None:
    @dg.asset
    def report(candidates: dict[str, int]) -> None: ...

    failed = consumed.materialize(report)

    (said,) = failures(failed).values()
    assert "candidates cannot be loaded as" in said and "pyspark.sql.DataFrame, pyarrow.Table, pandas.DataFrame" in said


def example_of(word: str) -> dict[str, Any]:
    """The names of the one example of the documentation that has a word."""
    (example,) = (
        block.text for block in fenced(OWN_PROJECT.read_text()) if block.language == "python" and word in block.text
    )
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, OWN_PROJECT, "exec"), names)  # noqa: S102
    return names


def test_the_example_of_merged_definitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lakefs-gc.yaml"
    file.write_text("repository: repo\nstore: {resource: s3}\n")
    monkeypatch.setenv(CONFIGURATION_VARIABLE, str(file))

    merged = example_of("merge")["defs"]

    dg.Definitions.validate_loadable(merged)
    assert {"s3", "pyspark"} <= merged.get_repository_def().get_top_level_resources().keys()


def test_the_example_of_an_own_asset(consumed: Consumed) -> None:
    names = example_of("garbage_by_reason")

    result = consumed.materialize(names["garbage_by_reason"])

    assert result.success
    (event,) = result.asset_materializations_for_node("garbage_by_reason")
    assert "no commit holds it" in str(event.metadata["by_reason"].value)


@pytest.mark.slow
def test_each_materialization_tells_of_its_frame(replaying: Replaying) -> None:
    runs: GraphRuns = replaying("chain/1")
    opened = runs.open()

    result = runs.make(opened)

    assert result.success
    cells = {f"{key_of(opened.run_id)}|{window}" for window in opened.windows}
    for name in STEPS:
        events = result.asset_materializations_for_node(name)
        assert {event.partition for event in events} == cells
        manifest = runs.frame(opened.run_id, name).manifest
        for event in events:
            shown = event.metadata
            assert str(shown["dagster/uri"].value).endswith(f"{opened.run_id}/{name}/")
            assert shown["run_id"].value == opened.run_id
            assert ("dagster/column_lineage" in shown) == (name in ("candidates", "deleted_report"))
            window = str(event.partition).split("|")[1]
            of_the_cell = [file for file in manifest.files if file.slice_window == window]
            numbers = {name: value.value for name, value in shown.items() if isinstance(value.value, int | float)}
            moments = ("started_at", "ended_at")
            assert numbers.keys() <= {*moments}, "a number would be plotted for every cell"
            rows, total = sum(file.rows for file in of_the_cell), sum(file.object_bytes for file in of_the_cell)
            assert shown["window_in_words"].value == f"{window}: {counted(rows, 'rows')}, {size(total)}"
    columns = result.job_def.asset_layer.get(dg.AssetKey("candidates")).metadata["dagster/column_schema"]
    assert [column.name for column in columns.columns] == CANDIDATES_DF.schema.names
