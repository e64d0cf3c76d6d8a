from dataclasses import replace

import dagster as dg
import pyarrow as pa
import pytest

from lakefs_gc_assets.collector.frame.files import FileWriter, StoredFrame
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, COMMITTED_DF, FRAMES, STEPS, STORE_DF, F, Frame
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.defs.checks import MODELS
from lakefs_gc_assets.defs.io_manager import metadata
from lakefs_gc_assets.defs.pages import column_lineage
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.collector.made_frames import COMMITTED_FIGURES, LISTED_FIGURES
from lakefs_gc_assets_tests.graph_runs import GraphRuns, Replaying, replaying
from lakefs_gc_assets_tests.s3_server import S3Server
from lakefs_gc_assets_tests.spark.frame_rows import NOW, listed, live, span
from lakefs_gc_assets_tests.stores import bucket, s3_server

__all__ = ["bucket", "replaying", "s3_server"]


def stored(
    s3_server: S3Server, bucket: str, rows: list[dict[str, object]], frame: Frame[F], figures: F
) -> StoredFrame[F]:
    opener = StoreOpener(s3_server.settings(), f"s3://{bucket}/repo/")
    writer = FileWriter(opener.open(), "frame/", frame.schema)
    for batch in pa.Table.from_pylist(rows, schema=frame.schema).to_batches():
        writer.write(batch)
    return StoredFrame(frame, Manifest(span(frame.name), tuple(writer.close()), figures), opener)


def text(shown: dict[str, object], name: str) -> str:
    value = shown[name]
    assert isinstance(value, dg.MarkdownMetadataValue)
    return value.md_str or ""


def test_a_frame_is_shown_by_its_figures(s3_server: S3Server, bucket: str) -> None:
    rows = [listed(f"data/{number:02}", slice_window=f"2026-{10 + number % 2}", size=3) for number in range(30)]

    figures = replace(LISTED_FIGURES, slices_listed=4, last_read_slice="x", other_folders=("a",))

    shown = metadata(stored(s3_server, bucket, rows, STORE_DF, figures))

    assert "| rows | 30 rows, 90 B |" in text(shown, "frame")
    assert "| files | 2 files, " in text(shown, "frame")
    assert shown["attempt"] == "a1"
    assert shown["ended_at"] == dg.MetadataValue.timestamp(NOW)
    assert shown["path"] == dg.MetadataValue.path(shown["dagster/uri"])
    assert shown["dagster/uri"].startswith(f"s3://{bucket}/repo/_lakefs/retention/gc/uncommitted/")
    assert "| 15 | 2026-10 |" in text(shown, "rows_by_window")
    assert "| slices_listed | 4 slices |" in text(shown, "frame") and "| last_read_slice | x |" in text(shown, "frame")
    assert "other_folders" not in text(shown, "frame") and "why_clean" not in text(shown, "frame")
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
    figures = replace(COMMITTED_FIGURES, heads={"main": "abc"}, retention={"kept by a tag": 3, "head": 1})

    shown = metadata(stored(s3_server, bucket, [live("data/a")], COMMITTED_DF, figures))

    assert "| commits | 1 commits |" in text(shown, "frame")
    assert "| commit_source | metadata folder |" in text(shown, "frame")
    assert "| 3 | kept by a tag |" in text(shown, "retention")
    assert not {"heads", "sealed", "retention_warnings"} & shown.keys()


def test_odd_names_do_not_break_the_preview(s3_server: S3Server, bucket: str) -> None:
    rows = [listed("data/a|b\\c\nd", etag=None)]

    header, _, line = text(metadata(stored(s3_server, bucket, rows, STORE_DF, LISTED_FIGURES)), "preview").splitlines()

    assert header.count("|") == len(STORE_DF.schema.names) + 1
    assert line.startswith("| data/a\\|b\\\\c d | ")
    assert line.endswith(" |  |")


def test_names_that_others_chose_are_no_markdown(s3_server: S3Server, bucket: str) -> None:
    rows = [listed("data/![x](https://elsewhere.example/x.png)", etag="<img src=https://elsewhere.example>")]

    *_, line = text(metadata(stored(s3_server, bucket, rows, STORE_DF, LISTED_FIGURES)), "preview").splitlines()

    assert "| data/!\\[x\\](https://elsewhere.example/x.png) |" in line
    assert "| \\<img src=https://elsewhere.example> |" in line


def test_an_empty_frame_is_shown_as_such(s3_server: S3Server, bucket: str) -> None:
    shown = metadata(stored(s3_server, bucket, [], STORE_DF, LISTED_FIGURES))

    assert "| rows | 0 rows, 0 B |" in text(shown, "frame")
    assert text(shown, "preview") == text(shown, "rows_by_window") == "no rows"


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


@pytest.mark.slow
def test_each_materialization_tells_of_its_frame(replaying: Replaying) -> None:
    runs: GraphRuns = replaying("chain/1")
    opened = runs.open()

    result = runs.make(opened)

    assert result.success
    cells = {f"{opened.run_id}|{window}" for window in opened.windows}
    for name in STEPS:
        events = result.asset_materializations_for_node(name)
        assert {event.partition for event in events} == cells
        manifest = runs.frame(opened.run_id, name).manifest
        for event in events:
            shown = event.metadata
            assert str(shown["path"].value).endswith(f"{opened.run_id}/{name}/")
            assert shown["run_id"].value == opened.run_id
            assert ("dagster/column_lineage" in shown) == (name in ("candidates", "deleted_report"))
            window = str(event.partition).split("|")[1]
            of_the_cell = [file for file in manifest.files if file.slice_window == window]
            numbers = {name: value.value for name, value in shown.items() if isinstance(value.value, int | float)}
            moments = ("started_at", "ended_at")
            assert {name: value for name, value in numbers.items() if name not in moments} == {
                "dagster/partition_row_count": sum(file.rows for file in of_the_cell),
                "window_object_bytes": sum(file.object_bytes for file in of_the_cell),
            }, "a number of the whole frame would be plotted for every cell"
            assert str(shown["window_in_words"].value).startswith(f"{window}: ")
    columns = result.job_def.asset_layer.get(dg.AssetKey("candidates")).metadata["dagster/column_schema"]
    assert [column.name for column in columns.columns] == CANDIDATES_DF.schema.names
