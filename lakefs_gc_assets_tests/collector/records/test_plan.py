import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefs_gc_assets.collector.records import plan, records_json, run_folder
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.across_runs import BranchState, DeletedBranch
from lakefs_gc_assets.collector.records.plan import Approval, Flow, Plan
from lakefs_gc_assets.collector.records.records_json import read_time, write_time
from lakefs_gc_assets.errors import CollectionError, CorruptFile, OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.local import LocalStore
from lakefs_gc_assets_tests.collector.scripted import NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["store"]

PLAN = Plan(
    flow=Flow.CLEAN,
    repository="repo",
    storage_namespace="s3://bucket/repo/",
    run_id="g4uk6erfnfus73frbnqg",
    attempt="dc0n8tpksdu988af5sdg",
    owner="dagster-run",
    started_at=NOW,
    cutoff=NOW - timedelta(hours=25, microseconds=1),
    earliest_clock=NOW,
    min_age_seconds=86400.0,
    grace_period_seconds=86400.0,
    clock_skew_seconds=3600.0,
    slice_window="month",
    windows=("legacy", "2026-10", "2026-11"),
    sweep=False,
)
MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2106, 1, 1), timezones=st.just(UTC))


def changed(**changes: Any) -> bytes:
    return records_json.with_digest(json.loads(PLAN.to_json()) | changes)


@given(
    st.builds(
        Plan,
        flow=st.just(Flow.CLEAN),
        repository=st.text(),
        started_at=MOMENTS,
        cutoff=MOMENTS,
        earliest_clock=MOMENTS,
        min_age_seconds=st.floats(0, 1e9),
        grace_period_seconds=st.floats(0, 1e9),
        clock_skew_seconds=st.floats(0, 1e9),
        windows=st.lists(st.text()).map(tuple),
        format_version=st.just(plans.FORMAT_VERSION),
    )
)
def test_is_read_as_it_was_written(plan: Plan) -> None:
    assert records_json.decode(Plan, plan.to_json(), "plan.json") == plan


def test_times_are_written_in_utc_whatever_their_zone() -> None:
    local = replace(PLAN, cutoff=PLAN.cutoff.astimezone(timezone(timedelta(hours=-7))))
    assert local.to_json() == PLAN.to_json()
    assert json.loads(PLAN.to_json())["cutoff"] == "2026-11-20T10:59:59.999999+00:00"
    assert (
        records_json.decode(Plan, changed(cutoff="2026-11-20T12:59:59.999999+02:00"), "plan.json").cutoff == PLAN.cutoff
    )
    assert records_json.decode(Plan, changed(cutoff="2026-11-20T12:59:59+02:00"), "plan.json").cutoff.tzinfo is UTC


def test_a_time_without_a_zone_is_no_time() -> None:
    with pytest.raises(ValueError, match="zone"):
        read_time("2026-11-20T11:00:00")
    with pytest.raises(ValueError, match="zone"):
        write_time(datetime(2026, 11, 20, 11))
    with pytest.raises(ValueError, match="zone"):
        replace(PLAN, cutoff=datetime(2026, 11, 20, 11)).to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"sweep": "false"},
        {"sweep": 0},
        {"sweep": None},
        {"windows": "legacy"},
        {"windows": [1]},
        {"windows": None},
        {"cutoff": "2026-11-20T11:00:00"},
        {"cutoff": 1795000000},
        {"cutoff": "yesterday"},
        {"started_at": None},
        {"min_age_seconds": "86400"},
        {"min_age_seconds": None},
        {"grace_period_seconds": True},
        {"slice_window": "week"},
        {"flow": "dirty"},
        {"owner": None},
        {"repository": 3},
        {"format_version": 2},
        {"format_version": "3"},
        {"format_version": True},
        {"dry_run": True},
    ],
)
def test_a_plan_that_was_changed_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptFile, match=r"^plan\.json: "):
        records_json.decode(Plan, changed(**change), "plan.json")


ADDED = ("opened", "no_lock", "name", "only_addresses", "limited")
"""Fields missing from plans of earlier versions, which were opened, had a lock, no name, and no limits."""


@pytest.mark.parametrize("name", ADDED)
def test_a_plan_of_an_earlier_version_is_read(name: str) -> None:
    content = json.loads(PLAN.to_json())
    del content[name]
    assert records_json.decode(Plan, records_json.with_digest(content), "plan.json") == PLAN


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (Approval("r", "a", "digest", NOW), "approved_by"),
        (Approval("r", "a", "digest", NOW), "standing"),
        (DeletedBranch("repo", "old", "c", False, "listing", BranchState.DELETED, NOW), "approved_by"),
    ],
)
def test_an_approval_of_an_earlier_version_is_read(record: Approval | DeletedBranch, name: str) -> None:
    content = json.loads(records_json.encode(record))
    del content[name]
    assert records_json.decode(type(record), records_json.with_digest(content), "record.json") == record


@pytest.mark.parametrize("name", [field.name for field in fields(Plan) if field.name not in ADDED])
def test_a_plan_that_lacks_something_is_refused(name: str) -> None:
    content = json.loads(PLAN.to_json())
    del content[name]
    with pytest.raises(CorruptFile, match=r"^plan\.json: "):
        records_json.decode(Plan, records_json.with_digest(content), "plan.json")


def test_a_plan_without_its_digest_is_refused() -> None:
    content = json.loads(PLAN.to_json())
    del content["sha256"]
    with pytest.raises(CorruptFile, match="sha256"):
        records_json.decode(Plan, json.dumps(content).encode(), "plan.json")


def test_another_plan_than_was_written_is_refused() -> None:
    content = json.loads(PLAN.to_json()) | {"sweep": True}
    with pytest.raises(CorruptFile, match="changed after it was written"):
        records_json.decode(Plan, json.dumps(content).encode(), "plan.json")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"3", b"\xff", b'{"format_version": 1', PLAN.to_json()[:-9]]
)
def test_what_is_no_plan_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile, match=r"^plan\.json: "):
        records_json.decode(Plan, data, "plan.json")


@given(st.integers(0, len(PLAN.to_json()) - 1), st.integers(0, 255))
def test_a_changed_byte_gives_the_same_plan_or_none(at: int, byte: int) -> None:
    data = bytearray(PLAN.to_json())
    data[at] = byte
    try:
        assert records_json.decode(Plan, bytes(data), "plan.json") == PLAN
    except CorruptFile:
        return


class TestStored:
    def test_is_read_from_its_runs_folder(self, store: ObjectStore) -> None:
        plans.write_first(store, PLAN)
        assert plans.read(store, PLAN.run_id) == PLAN
        assert run_folder.plan(PLAN.run_id) == "_lakefs/retention/gc/uncommitted/g4uk6erfnfus73frbnqg/plan.json"

    def test_a_run_without_one_cannot_go_on(self, store: ObjectStore) -> None:
        with pytest.raises(CollectionError, match="this repository has no run"):
            plans.read(store, PLAN.run_id)

    def test_the_plan_of_another_run_is_refused(self, store: ObjectStore) -> None:
        store.put(run_folder.plan("other"), PLAN.to_json())
        with pytest.raises(CorruptFile, match=PLAN.run_id):
            plans.read(store, "other")
        with pytest.raises(CorruptFile, match=PLAN.run_id):
            plans.write_first(store, replace(PLAN, run_id="other"))

    def test_a_second_dagster_run_is_refused_and_changes_nothing(self, store: ObjectStore) -> None:
        plans.write_first(store, PLAN)
        with pytest.raises(OrderViolation, match="already collected by Dagster run dagster-run"):
            plans.write_first(store, replace(PLAN, owner="another", sweep=True))
        assert plans.read(store, PLAN.run_id) == PLAN

    def test_a_new_attempt_of_the_same_run_replaces_it(self, store: ObjectStore) -> None:
        plans.write_first(store, PLAN)
        again = replace(PLAN, attempt="dc0n8u1ksdu988af5se0", cutoff=PLAN.cutoff + timedelta(hours=1))
        plans.write_first(store, again)
        assert plans.read(store, PLAN.run_id) == again

    def test_a_plan_that_cannot_be_read_is_never_replaced(self, store: ObjectStore) -> None:
        store.put(run_folder.plan(PLAN.run_id), b"{")
        with pytest.raises(CorruptFile):
            plans.write_first(store, PLAN)
        assert store.get(run_folder.plan(PLAN.run_id)) == b"{"


def test_skew() -> None:
    assert PLAN.skew == timedelta(hours=1)


WINDOWS = ("legacy", "2026-10", "2026-11")


@pytest.mark.parametrize("name", ["Monday", "2026-11-26 04:30", "a", "a.b@c:d+e-f_9", "x" * 64])
def test_a_name_may_have(name: str) -> None:
    plans.require_name(name)


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "x" * 65, "a|b", "a,b", "[a", "a...b", "../a", "a/b", "a\nb", "a\n", "\u00e4", "a\x00"]
)
def test_a_name_may_not_have(name: str) -> None:
    with pytest.raises(OrderViolation, match="is not valid as the name of a run"):
        plans.require_name(name)


def named(name: str, windows: tuple[str, ...] = WINDOWS, run_id: str = PLAN.run_id) -> Plan:
    return replace(PLAN, name=name, windows=windows, run_id=run_id)


def test_a_name_means_one_run_over_the_same_windows(store: ObjectStore) -> None:
    first, other = named("Monday"), named("Monday", run_id="g4uk6erfnfus73frbnq0")
    plans.write_first(store, first)
    plans.write_name(store, first)
    plans.write_name(store, first)
    plans.write_first(store, other)
    with pytest.raises(OrderViolation, match=f"Monday was also opened as run {PLAN.run_id} at the same time"):
        plans.write_name(store, other)
    assert plans.find_named(store, "Monday", WINDOWS[::-1]) == PLAN.run_id
    assert plans.find_named(store, "Monday", WINDOWS[:1]) is None
    assert plans.find_named(store, "monday", WINDOWS) is None
    assert (plans.runs_named(store, "Monday"), plans.runs_named(store, "monday")) == ([PLAN.run_id], [])


@pytest.mark.parametrize("changed", [{"name": "Tuesday"}, {"name": None}, {"windows": ("legacy",)}])
def test_a_name_whose_run_says_something_else_is_refused(store: ObjectStore, changed: dict[str, Any]) -> None:
    plan = named("Monday")
    plans.write_first(store, plan)
    plans.write_name(store, plan)
    store.put(run_folder.plan(plan.run_id), replace(plan, **changed).to_json())
    with pytest.raises(CorruptFile, match="does not have the name Monday, or covers other windows"):
        plans.find_named(store, "Monday", WINDOWS)


# Approvals.


GIVEN = Approval("g4uk6erfnfus73frbnqg", "attempt", "0" * 64, datetime(2026, 11, 21, 12, tzinfo=UTC))


def test_is_read_as_it_was_given(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert plan.read_approval(store, GIVEN.run_id) is None
    plan.write_approval(store, GIVEN)
    assert plan.read_approval(store, GIVEN.run_id) == GIVEN


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 9}'])
def test_one_that_cannot_be_read_ends_the_run(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put(run_folder.approval(GIVEN.run_id), content)
    with pytest.raises(CorruptFile, match=r"approval\.json"):
        plan.read_approval(store, GIVEN.run_id)


def test_one_of_another_run_ends_the_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    plan.write_approval(store, GIVEN)
    store.put(run_folder.approval("other"), store.get(run_folder.approval(GIVEN.run_id)))
    with pytest.raises(CorruptFile) as refused:
        plan.read_approval(store, "other")
    assert refused.value.args == (
        run_folder.approval("other"),
        "approval",
        f"it is the approval of run {GIVEN.run_id}",
    )
