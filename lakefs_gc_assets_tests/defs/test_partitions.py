from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import dagster as dg
import pytest

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.defs.partitions import (
    RANGE_END_TAG,
    RANGE_START_TAG,
    Names,
    RunPartitions,
    assets_to_make,
    key_of,
    run_id_in,
    selected,
)
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets_tests.collector.records.test_plan import PLAN

PARTITIONS = RunPartitions("repo")
NAMES = ("store_df", "candidates", "deleted_report")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def cell(run_id: str, window: str) -> dg.MultiPartitionKey:
    return dg.MultiPartitionKey({"run_id": run_id, "slice": window})


def test_a_cell_is_a_window_of_a_run(instance: dg.DagsterInstance) -> None:
    PARTITIONS.add(instance, "run1", ["legacy", "2026-10"])

    keys = PARTITIONS.definition.get_partition_keys(dynamic_partitions_store=instance)

    assert sorted(keys) == ["run1|2026-10", "run1|legacy"]


def test_new_windows_are_added_behind_known_ones(instance: dg.DagsterInstance) -> None:
    assert PARTITIONS.add(instance, "run1", ["legacy", "2026-10"]) == ("legacy", "2026-10")
    assert PARTITIONS.add(instance, "run2", ["legacy", "2026-09", "2026-10", "2026-11"]) == (
        "legacy",
        "2026-10",
        "2026-09",
        "2026-11",
    )
    assert instance.get_dynamic_partitions("gc_runs_repo") == ["run1", "run2"]


def test_many_windows_are_added_at_once(instance: dg.DagsterInstance) -> None:
    windows = [f"{2000 + number // 28 // 12}-{number // 28 % 12 + 1:02}-{number % 28 + 1:02}" for number in range(2500)]

    assert list(PARTITIONS.add(instance, "run1", windows)) == windows


@pytest.mark.parametrize("foreign", ["a|b", "|", "", "no window", "2026-10 ", "LEGACY", "x" * 5000])
def test_what_is_no_window_does_not_stay_among_them(instance: dg.DagsterInstance, foreign: str) -> None:
    """The UI adds partitions of any name; a run across a foreign one would fail, and so would every later run."""
    PARTITIONS.add(instance, "run1", ["legacy"])
    instance.add_dynamic_partitions("gc_slice_windows_repo", [foreign, "2025-01-02T03"])

    windows = PARTITIONS.add(instance, "run2", ["legacy", "2026-10"])

    assert windows == ("legacy", "2025-01-02T03", "2026-10")
    covered = dg.PartitionKeyRange(f"run2|{windows[0]}", f"run2|{windows[-1]}")
    keys = PARTITIONS.definition.get_partition_keys_in_range(covered, dynamic_partitions_store=instance)
    assert selected([PARTITIONS.definition.get_partition_key_from_str(key) for key in keys]) == ("run2", windows)


def test_repositories_have_partitions_of_their_own(instance: dg.DagsterInstance) -> None:
    RunPartitions("other").add(instance, "run1", ["legacy"])

    assert PARTITIONS.add(instance, "run2", ["2026-10"]) == ("2026-10",)
    assert instance.get_dynamic_partitions("gc_runs_repo") == ["run2"]


def test_tags_reach_from_the_first_to_the_last_window(instance: dg.DagsterInstance) -> None:
    PARTITIONS.add(instance, "run1", ["legacy"])
    windows = PARTITIONS.add(instance, "run2", ["legacy", "2026-10", "2026-09"])

    tags = PARTITIONS.tags("run2", windows, "clean")

    assert tags == {
        RANGE_START_TAG: "run2|legacy",
        RANGE_END_TAG: "run2|2026-09",
        "lakefs/repository": "repo",
        "lakefs/flow": "clean",
    }
    covered = PARTITIONS.definition.get_partition_keys_in_range(
        dg.PartitionKeyRange(tags[RANGE_START_TAG], tags[RANGE_END_TAG]), dynamic_partitions_store=instance
    )
    assert selected(covered) == ("run2", windows)


RUN_ID = "ft5d4r00v7f8b6gq6gs0"
"""Issued at 2026-11-23 12:24:39 UTC."""


def test_the_key_of_a_run_without_a_name_has_its_time_and_its_id(instance: dg.DagsterInstance) -> None:
    later = layout.issue_run_id(datetime(2026, 11, 24, 8, 5, tzinfo=UTC))

    assert key_of(RUN_ID) == f"2026-11-23 12:24 {RUN_ID}"
    assert sorted([key_of(later), key_of(RUN_ID)], reverse=True) == [key_of(later), key_of(RUN_ID)]
    assert plans.is_name(key_of(RUN_ID)), "Dagster can have it in cells, ranges and lists"
    assert selected([cell(key_of(RUN_ID), "legacy")]) == (key_of(RUN_ID), ("legacy",))


@pytest.mark.parametrize("key", [RUN_ID, f"2026-11-23 12:24 {RUN_ID}"])
def test_a_key_with_or_without_the_time_means_the_run(key: str) -> None:
    assert run_id_in(key) == RUN_ID


@pytest.mark.parametrize(
    "key", ["Monday", "", f"2026-11-23 12:25 {RUN_ID}", f"2026-11-23 12:24  {RUN_ID}", f"a {RUN_ID}", f"{RUN_ID} b"]
)
def test_an_id_behind_another_time_than_its_own_is_a_name(key: str) -> None:
    assert run_id_in(key) is None


@pytest.mark.parametrize("key", [RUN_ID, f"2026-11-23 12:24 {RUN_ID}", None])
def test_a_run_stays_under_the_key_that_it_has(instance: dg.DagsterInstance, key: str | None) -> None:
    """Earlier versions added ids without their times."""
    if key is not None:
        PARTITIONS.add(instance, key, ["legacy"])

    tags = PARTITIONS.add_again(instance, replace(PLAN, run_id=RUN_ID, windows=("legacy",)))

    assert tags[RANGE_START_TAG] == f"{key or key_of(RUN_ID)}|legacy"
    assert instance.get_dynamic_partitions("gc_runs_repo") == [key or key_of(RUN_ID)]


def test_one_run_and_its_windows_are_read_from_cells() -> None:
    assert selected([cell("run1", "legacy"), cell("run1", "2026-10")]) == ("run1", ("legacy", "2026-10"))


def test_no_cell_is_refused() -> None:
    with pytest.raises(OrderViolation, match="covers no partition"):
        selected([])


def test_cells_of_two_runs_are_refused() -> None:
    with pytest.raises(OrderViolation, match="covers 2 run ids"):
        selected([cell("run1", "legacy"), cell("run2", "legacy")])


@pytest.mark.parametrize(
    ("selection", "steps", "expected"),
    [
        (None, None, NAMES),
        (set(), [], NAMES),
        ({"candidates"}, None, ("candidates",)),
        (None, ["candidates", "candidates_shape", "deleted_report"], ("candidates", "deleted_report")),
        ({"store_df", "candidates"}, ["candidates"], ("candidates",)),
    ],
)
def test_which_assets_a_dagster_run_makes(
    selection: set[str] | None, steps: list[str] | None, expected: tuple[str, ...]
) -> None:
    keys = None if selection is None else frozenset(map(dg.AssetKey, selection))
    run = dg.DagsterRun(job_name="collect", asset_selection=keys, step_keys_to_execute=steps)

    assert tuple(assets_to_make(run, NAMES)) == expected


def test_a_single_repository_has_plain_names() -> None:
    names = Names("my-repository")

    assert (names.qualified("collect"), names.asset("store_df")) == ("collect", dg.AssetKey("store_df"))
    assert names.collector == "collector"


@pytest.mark.parametrize(("repository", "identifier"), [("my-repository", "my_repository"), ("1st", "1st")])
def test_several_have_names_of_their_own(repository: str, identifier: str) -> None:
    names = Names(repository, apart=True)

    assert names.qualified("collect") == f"collect_{identifier}"
    assert names.qualified("collect").isidentifier()
    assert names.asset("store_df") == dg.AssetKey([identifier, "store_df"])
    assert names.collector == f"collector_{identifier}"


def test_what_is_stored_does_not_change_its_name_when_a_second_repository_is_added() -> None:
    alone, apart = Names("my-repository"), Names("my-repository", apart=True)

    assert alone.partitions == apart.partitions
    assert alone.pool == apart.pool == "lakefs_gc_my_repository"
