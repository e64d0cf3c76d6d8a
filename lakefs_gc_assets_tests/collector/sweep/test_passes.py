import io
from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefs_gc_assets.collector import lock
from lakefs_gc_assets.collector import plan as plans
from lakefs_gc_assets.collector.lock import Lock
from lakefs_gc_assets.collector.report import Ending
from lakefs_gc_assets.collector.sweep import receipts
from lakefs_gc_assets.collector.sweep.outcome import Outcome
from lakefs_gc_assets_tests.plain_runs import PlainRuns, Replaying, replaying
from lakefs_gc_assets_tests.replayed_runs import ReplayedRuns, truth_classes

__all__ = ["replaying"]

MARK = ("store_df", "uncommitted_df", "committed_df", "candidates")


@pytest.fixture
def runs(replaying: Replaying) -> PlainRuns:
    return replaying("chain/1", deletes="overlay", max_candidate_share=1)


def outcomes(runs: PlainRuns, run_id: str) -> dict[str, str]:
    table = runs.table(run_id, "deleted_report")
    return dict(zip(table.column("address").to_pylist(), table.column("outcome").to_pylist(), strict=True))


def test_a_dry_run_deletes_nothing_and_a_sweep_exactly_what_it_named(replaying: Replaying) -> None:
    runs = replaying("small", deletes="overlay")
    classes = truth_classes("small")
    garbage = classes["unreferenced"] - {"data/stray-1/s0"}
    stored = {key for key in runs.server.stored() if not key.startswith("_lakefs/")}

    dry = runs.open()
    assert runs.make(dry).success
    marked = runs.report(dry.run_id)
    assert set(runs.addresses(dry.run_id, "candidates")) == garbage
    assert (marked.dry_run, marked.success, marked.ending) == (True, True, Ending.MARKED)
    assert (marked.counts["deleted"], marked.object_bytes["deleted"]) == (0, 0)
    assert outcomes(runs, dry.run_id) == dict.fromkeys(garbage, "dry_run")
    assert (runs.server.deleted, runs.server.refused_deletes) == (set(), set())

    sweep = runs.open()
    result = runs.make(sweep, sweep=True)
    assert result.success, result.failures
    assert runs.server.deleted == garbage
    assert {key for key in runs.server.stored() if not key.startswith("_lakefs/")} == stored - garbage
    assert outcomes(runs, sweep.run_id) == dict.fromkeys(garbage, "accepted")
    report = runs.report(sweep.run_id)
    assert (report.dry_run, report.success, report.ending) == (False, True, Ending.DELETED)
    assert (report.counts["deleted"], report.counts["failed"], report.counts["kept_live"]) == (len(garbage), 0, 0)
    assert report.object_bytes["deleted"] == report.object_bytes["candidates"] == marked.object_bytes["candidates"] > 0
    written = receipts.read(runs.repository.store, sweep.run_id)
    assert sorted(written.column("address").to_pylist()) == sorted(garbage)
    told = runs.table(sweep.run_id, "deleted_report").select(written.column_names).cast(written.schema)
    assert written.sort_by("address").equals(told.sort_by("address"))

    # Which of two runs is newer is told by the second in which they were opened.
    runs.clock.sleep(1)
    again = runs.open()
    result = runs.make(again, sweep=True)
    assert result.success, result.failures
    assert runs.report(again.run_id).ending is Ending.NOTHING_TO_DELETE
    assert runs.report(again.run_id).counts["listed"] == marked.counts["listed"] - len(garbage)
    assert runs.server.deleted == garbage
    assert runs.server.refused_deletes == set()


def test_what_could_not_be_deleted_is_counted_and_left_to_the_next_run(runs: PlainRuns) -> None:
    garbage = truth_classes("chain/1")["unreferenced"]
    runs.server.undeletable = set(sorted(garbage)[:3])
    first = runs.open()

    assert runs.make(first, sweep=True).success

    report = runs.report(first.run_id)
    assert (report.success, report.ending) == (False, Ending.PARTLY_DELETED)
    assert (report.counts["deleted"], report.counts["failed"]) == (len(garbage) - 3, 3)
    assert runs.server.deleted == garbage - runs.server.undeletable
    told = runs.table(first.run_id, "deleted_report").to_pylist()
    refused = {row["address"]: row["error"] for row in told if row["outcome"] == "failed"}
    assert refused.keys() == runs.server.undeletable
    assert all("AccessDenied" in error for error in refused.values())
    assert all(row["error"] is None for row in told if row["outcome"] == "accepted")

    runs.server.undeletable = set()
    runs.clock.sleep(1)
    second = runs.open()
    result = runs.make(second, sweep=True)
    assert result.success, result.failures
    assert (runs.report(second.run_id).success, runs.report(second.run_id).counts["deleted"]) == (True, 3)
    assert runs.server.deleted == garbage


def test_a_run_may_be_kept_from_a_sweep_that_the_settings_ask_for(replaying: Replaying) -> None:
    runs = replaying("chain/1", sweep=True, max_candidate_share=1)
    opened = runs.open()

    assert runs.make(opened, sweep=False).success

    assert plans.read(runs.repository.store, opened.run_id).sweep is False
    assert plans.read(runs.repository.store, opened.run_id).windows == opened.windows
    assert runs.server.refused_deletes == set()


def stage(runs: ReplayedRuns, run_id: str, address: str) -> None:
    """Makes the server's next preparation tell of one more staged address."""
    (server_run_id,) = runs.frame(run_id, "uncommitted_df").figures.server_run_ids
    folder = f"_lakefs/retention/gc/uncommitted/{server_run_id}/uncommitted/"
    buffer = io.BytesIO()
    pq.write_table(pa.table({"physical_address": [address], "creation_date": [0]}), buffer)
    runs.repository.store.put(folder + "late", buffer.getvalue())


def test_what_became_live_since_the_mark_stays(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=MARK, sweep=True).success
    garbage = runs.addresses(opened.run_id, "candidates")
    stage(runs, opened.run_id, garbage[0])

    result = runs.make(opened, assets=["deleted_report"])

    assert result.success, result.failures
    assert runs.server.deleted == set(garbage[1:])
    assert outcomes(runs, opened.run_id) == {garbage[0]: "kept_live", **dict.fromkeys(garbage[1:], "accepted")}
    report = runs.report(opened.run_id)
    assert (report.success, report.counts["kept_live"], report.counts["deleted"]) == (True, 1, len(garbage) - 1)


def test_a_killed_sweep_goes_on_with_what_has_no_receipt(runs: PlainRuns) -> None:
    opened = runs.open()
    assert runs.make(opened, assets=MARK, sweep=True).success
    candidates = runs.table(opened.run_id, "candidates").sort_by("address")
    garbage = candidates.column("address").to_pylist()
    done = candidates.slice(0, 4)
    results = [Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.FAILED, Outcome.KEPT_LIVE]
    receipts.write(
        runs.repository.store,
        opened.run_id,
        "before",
        receipts.table(done, results, [None, None, "SlowDown", None], runs.clock.now()),
    )

    result = runs.make(opened, assets=["deleted_report"])

    assert result.success, result.failures
    assert runs.server.deleted == set(garbage[2:])
    assert outcomes(runs, opened.run_id) == dict.fromkeys(garbage, "accepted")
    assert runs.report(opened.run_id).counts["deleted"] == len(garbage)


def test_without_the_lock_nothing_is_deleted(runs: PlainRuns) -> None:
    opened = runs.open()
    store = runs.repository.store

    def fault(method: str, target: str) -> None:
        # The second dump is that of the recheck.
        if method == "POST" and target.endswith("/dump"):
            dumps.append(target)
            if len(dumps) == 2:
                lock.release_owned(store, plans.read(store, opened.run_id).owner)
                Lock.acquire(store, run_id="other", owner="somebody", now=runs.clock.now(), expiry=timedelta(minutes=1))

    dumps: list[str] = []
    runs.server.fault = fault

    result = runs.make(opened, sweep=True)

    assert len(dumps) == 2
    assert result.failures["deleted_report"].startswith("LockLost: the lock ")
    assert "somebody" in result.failures["deleted_report"]
    assert runs.server.deleted == set()
    assert "somebody" in str(runs.lock_holder())
    assert runs.report(opened.run_id).success is False


def test_too_much_at_once_is_marked_and_not_swept(replaying: Replaying) -> None:
    runs = replaying("chain/1", deletes="overlay", max_candidates=5)
    dry, sweep = runs.open(), runs.open()

    assert runs.make(dry).success
    result = runs.make(sweep, sweep=True)

    told = runs.report(dry.run_id).warnings
    assert all(warning.startswith("a sweep would be refused: ") for warning in told)
    warned = [warning.removeprefix("a sweep would be refused: ") for warning in told]
    assert [warning.split(":")[0] for warning in warned] == [
        "guard share of candidates",
        "guard number of candidates",
    ]
    assert result.failures == {"deleted_report": f"GuardTripped: {warned[0]}"}
    assert runs.report(sweep.run_id).error == f"GuardTripped: {warned[0]}"
    assert runs.server.deleted == set()


def test_a_sweep_waits_before_its_dump_and_its_recheck(replaying: Replaying) -> None:
    runs = replaying(
        "chain/1",
        deletes="overlay",
        max_candidate_share=1,
        wait_before_dump_seconds=30,
        wait_before_recheck_seconds=600,
    )
    opened = runs.open()
    began = runs.clock.now()

    assert runs.make(opened, sweep=True).success

    listed = runs.frame(opened.run_id, "store_df").manifest.span
    prepared = runs.frame(opened.run_id, "uncommitted_df").manifest.span
    dumped = runs.frame(opened.run_id, "committed_df").manifest.span
    deleted = runs.table(opened.run_id, "deleted_report").column("decided_at").to_pylist()
    assert (dumped.started_at - prepared.ended_at).total_seconds() >= 30
    assert (min(deleted) - listed.ended_at).total_seconds() >= 600 + 30
    assert (runs.clock.now() - began).total_seconds() == 600 + 30
    assert runs.server.deleted == truth_classes("chain/1")["unreferenced"]
