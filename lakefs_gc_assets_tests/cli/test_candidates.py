"""`lakefs-gc candidates` and `lakefs-gc deleted` on runs of a recorded repository."""

import csv
import json
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from lakefs_gc_assets.cli.candidates import PLACES, TextColumn, _size_group, group_by, select_first
from lakefs_gc_assets.cli.group import Status
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, RECEIPTS
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets_tests.cli.invoked import Invoke, assert_one_line, invoke, made, runs
from lakefs_gc_assets_tests.runs.plain_runs import PlainRuns, replaying
from lakefs_gc_assets_tests.runs.replayed_runs import truth_classes

__all__ = ["invoke", "replaying", "runs"]


COLUMNS = [*CANDIDATES_DF.schema.names, *PLACES.names]


def test_each_format_has_every_candidate(runs: PlainRuns, invoke: Invoke) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]
    assert_one_line(invoke("candidates"), "no run has finished yet", "`lakefs-gc run`")
    run_id = made(runs)
    facts = {address: runs.repository.store.head(address) for address in garbage}

    table = invoke("candidates")
    assert table.exit_code == 0, table.stderr
    header, *lines = table.stdout.splitlines()
    assert header.split() == ["last_modified", "size", "why", "address"]
    assert {line.split()[-1] for line in lines} == garbage
    assert table.stderr.startswith(f"run {run_id}: {len(garbage)} objects, ")
    assert "objects that no commit holds: lakeFS keeps no names" in table.stderr and "No earlier run" in table.stderr
    assert invoke("candidates", run_id).stdout == table.stdout

    found = list(csv.DictReader(invoke("candidates", "--format", "csv").stdout.splitlines()))
    assert {row["address"]: int(row["size"]) for row in found} == {name: each.size for name, each in facts.items()}
    assert list(found[0]) == COLUMNS

    rows = [json.loads(line) for line in invoke("candidates", "--format", "json", run_id).stdout.splitlines()]
    assert {row["address"]: row["size"] for row in rows} == {name: each.size for name, each in facts.items()}
    assert list(rows[0]) == COLUMNS
    assert rows[0]["last_modified"].endswith("+00:00")

    assert invoke("candidates", "--format", "parquet", "--out", "found.parquet").exit_code == 0
    stored = parquet.read_table("found.parquet")
    assert set(stored["address"].to_pylist()) == garbage
    assert stored.schema.names == COLUMNS
    for form in ("table", "csv", "json"):
        assert invoke("candidates", "--format", form, "--out", "found").exit_code == 0
        assert Path("found").read_text() == invoke("candidates", "--format", form).stdout


def test_the_first_by_size_age_or_name_are_shown(runs: PlainRuns, invoke: Invoke) -> None:
    made(runs)
    stored = [json.loads(line) for line in invoke("candidates", "--format", "json").stdout.splitlines()]

    def first(*options: str) -> list[dict[str, object]]:
        shown = invoke("candidates", "--format", "json", *options)
        assert shown.exit_code == 0, shown.stderr
        return [json.loads(line) for line in shown.stdout.splitlines()]

    sizes = sorted((row["size"] for row in stored), reverse=True)
    assert [row["size"] for row in first("--top", "3")] == sizes[:3]
    assert [row["size"] for row in first("--top", "100000")] == sizes
    addresses = sorted(row["address"] for row in stored)
    assert [row["address"] for row in first("--top", "5", "--sort", "address")] == addresses[:5]
    times = sorted(row["last_modified"] for row in stored)
    assert [row["last_modified"] for row in first("--top", "2", "--sort", "age")] == times[:2]
    assert invoke("candidates", "--sort", "size").exit_code == Status.USAGE


def test_groups_add_up_all_candidates(runs: PlainRuns, invoke: Invoke) -> None:
    run_id = made(runs)
    stored = [json.loads(line) for line in invoke("candidates", "--format", "json").stdout.splitlines()]
    for by in ("slice", "month"):
        sizes: dict[str, list[int]] = {}
        for row in stored:
            group = row["last_modified"][:7] if by == "month" else row["slice"] or "(none)"
            sizes.setdefault(group, []).append(row["size"])
        shown = invoke("candidates", "--by", by, "--json")
        assert shown.exit_code == 0, shown.stderr
        groups = [json.loads(line) for line in shown.stdout.splitlines()]
        assert {row["group"]: (row["objects"], row["bytes"]) for row in groups} == {
            group: (len(each), sum(each)) for group, each in sizes.items()
        }
        assert [row["bytes"] for row in groups] == sorted((row["bytes"] for row in groups), reverse=True)
        assert shown.stderr.startswith(f"run {run_id}: {len(stored)} objects, ")
    header, *lines = invoke("candidates", "--by", "size").stdout.splitlines()
    assert header.split() == ["group", "objects", "bytes"]
    assert sum(int(line[22:35].replace(",", "")) for line in lines) == len(stored)
    assert invoke("candidates", "--by", "size", "--top", "3").exit_code == Status.USAGE
    assert [json.loads(line) for line in invoke("candidates", "--by", "path", "--json").stdout.splitlines()] == [
        {"group": "(no path is known)", "objects": len(stored), "bytes": sum(row["size"] for row in stored)}
    ]


def test_groups_of_several_files_by_size() -> None:
    sizes: list[list[int]] = [[0, 2**16 - 1], [], [2**16, 2**40], [2**20 - 1, 2**20]]
    tables = [pa.table({"size": pa.array(each, pa.int64())}) for each in sizes]
    assert group_by(_size_group, iter(tables)).to_pylist() == [
        {"group": "> 4 GiB", "objects": 1, "bytes": 2**40},
        {"group": "64 KiB to 1 MiB", "objects": 2, "bytes": 2**16 + 2**20 - 1},
        {"group": "1 to 16 MiB", "objects": 1, "bytes": 2**20},
        {"group": "< 64 KiB", "objects": 2, "bytes": 2**16 - 1},
    ]


def test_rows_of_several_files_are_sorted_together() -> None:
    tables = [pa.table({"size": pa.array(sizes, pa.int64())}) for sizes in ([5, 1], [9], [], [7, 3])]
    assert select_first("size", True, 3, iter(tables)).column("size").to_pylist() == [9, 7, 5]


def test_what_became_of_each_object(runs: PlainRuns, invoke: Invoke) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]
    kept = min(garbage)
    dry = made(runs)
    assert_one_line(invoke("deleted"), "no sweep has finished yet", "`lakefs-gc approve RUN`")
    assert {line.split()[2] for line in invoke("deleted", dry).stdout.splitlines()[1:]} == {"dry_run"}

    runs.clock.moment += timedelta(hours=1)
    runs.server.undeletable = {kept}
    made(runs, sweep=True)
    runs.clock.moment += timedelta(hours=1)
    made(runs)

    shown = invoke("deleted", "--format", "json")
    rows = {row["address"]: row for row in map(json.loads, shown.stdout.splitlines())}
    assert set(rows) == garbage
    assert {address for address, row in rows.items() if row["outcome"] == "accepted"} == garbage - {kept}
    assert rows[kept]["outcome"] == "failed" and rows[kept]["error"]
    assert list(rows[kept]) == RECEIPTS.names
    (line,) = (line for line in invoke("deleted").stdout.splitlines() if kept in line)
    assert rows[kept]["error"] in line


def test_what_cannot_be_listed(runs: PlainRuns, invoke: Invoke) -> None:
    assert_one_line(invoke("candidates", "c" * 20), "this repository has no run")
    parquet_ = invoke("candidates", "--format", "parquet")
    assert (parquet_.exit_code, parquet_.stdout) == (Status.USAGE, "")
    assert "give --out FILE" in parquet_.stderr

    store, run_id = runs.repository.store, made(runs)
    (key, *_) = (
        key
        for batch in store.list(run_folder.frame(run_id, "candidates"))
        for key in batch["key"].to_pylist()
        if key.endswith(".parquet")
    )
    store.put(key, b"something else")
    damaged = invoke("candidates", "--out", "found")
    assert damaged.exit_code == Status.FAILED
    assert "the frame's file was changed after it was written" in damaged.stderr
    assert not Path("found").exists()
    store.delete([run_folder.manifest(run_id, "candidates")])
    assert_one_line(invoke("candidates", run_id), "has no candidates stored")


@pytest.mark.parametrize(
    ("address", "shown"), [("data/a b", "data/a b"), ("data/ä", "data/ä"), ("data/\x1b[2J\n", "data/\\x1b[2J\\n")]
)
def test_a_table_shows_each_object_on_one_line_whatever_its_name(address: str, shown: str) -> None:
    assert TextColumn("address").cell(address) == shown
