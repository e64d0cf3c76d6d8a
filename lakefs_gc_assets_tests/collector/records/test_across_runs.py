from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.incremental.planning import report_to_follow
from lakefs_gc_assets.collector.records import across_runs
from lakefs_gc_assets.collector.records.across_runs import (
    UNDELETABLE_KEY,
    UNDELETABLE_LIMIT,
    Failures,
    Undeletable,
    Verdict,
    judge_undeletable,
)
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Ending, Report
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, IDS, NOW, began, ended, opened
from lakefs_gc_assets_tests.collector.records.test_report import REPORT
from lakefs_gc_assets_tests.collector.scripted import NOW as SCRIPTED_NOW
from lakefs_gc_assets_tests.servers.stores import local_store as store

__all__ = ["opened", "store"]


def plan(opened: OpenRepository, moment: datetime = NOW) -> Plan:
    """The plan of an optimized run opened at a moment."""
    run_id = IDS.descending(moment)
    lock = Lock.acquire(opened.store, run_id=run_id, owner=run_id, now=opened.clock.now(), expiry=HOUR)
    try:
        return planning.begin(opened, run_id, ("legacy",), lock, Flow.OPTIMIZED)
    finally:
        lock.release()


def test_none_is_recorded_before_the_first(opened: OpenRepository) -> None:
    assert across_runs.read_restoration(opened.store) is None
    across_runs.require_not_restored_since(opened.store, IDS.descending(NOW))


def test_it_concerns_its_own_run_where_no_plan_is_left(opened: OpenRepository) -> None:
    run_id = IDS.descending(NOW)
    across_runs.write_restoration(opened.store, run_id, NOW)
    found = across_runs.read_restoration(opened.store)
    assert found is not None and (found.run_id, found.newest_run) == (run_id, run_id)


def test_every_run_that_there_was_deletes_nothing_more(opened: OpenRepository) -> None:
    swept, dry = began(opened, 3 * DAY), began(opened, DAY, sweep=False)
    across_runs.write_restoration(opened.store, swept.run_id, NOW)
    for run in (swept, dry):
        with pytest.raises(OrderViolation, match="deletes nothing more; open a new run"):
            across_runs.require_not_restored_since(opened.store, run.run_id)
    across_runs.require_not_restored_since(opened.store, began(opened, HOUR).run_id)


def test_a_sweep_under_way_that_no_report_tells_of_is_not_built_on(opened: OpenRepository) -> None:
    ended(opened, began(opened, 3 * DAY))
    under_way = began(opened, DAY)
    across_runs.write_restoration(opened.store, under_way.run_id, NOW)
    ended(opened, under_way)
    assert "were restored" in (plan(opened).why_clean or "")


def test_a_record_that_was_changed_stops_sweeps_and_makes_runs_clean(opened: OpenRepository, tmp_path: Path) -> None:
    newest = began(opened, DAY)
    ended(opened, newest)
    across_runs.write_restoration(opened.store, newest.run_id, NOW)
    changed = opened.store.get(across_runs.RESTORATION_KEY).replace(
        newest.run_id.encode(), IDS.descending(NOW).encode()
    )
    opened.store.put(across_runs.RESTORATION_KEY, changed)
    with pytest.raises(OrderViolation, match=r"restored\.json.* Open a new run"):
        across_runs.require_not_restored_since(opened.store, newest.run_id)
    assert "restored.json" in (plan(opened).why_clean or "")


class TestARecordThatCannotBeRead:
    @pytest.mark.parametrize("damage", [b"", b"damaged", b'{"format_version": 9}'])
    def test_it_is_replaced_by_one_that_concerns_all_runs_so_far(self, opened: OpenRepository, damage: bytes) -> None:
        older, newest = began(opened, 3 * DAY), began(opened, DAY)
        ended(opened, newest)
        opened.store.put(across_runs.RESTORATION_KEY, damage)
        warning = across_runs.replace_unreadable_restoration(opened.store, NOW)
        assert warning is not None and "was replaced" in warning
        for run in (older, newest):
            with pytest.raises(OrderViolation, match=r"objects may have been restored before .* open a new run"):
                across_runs.require_not_restored_since(opened.store, run.run_id)
        assert "may have been restored" in (plan(opened).why_clean or "")
        across_runs.require_not_restored_since(opened.store, began(opened, HOUR).run_id)

    def test_where_there_is_no_run_it_concerns_none(self, opened: OpenRepository) -> None:
        opened.store.put(across_runs.RESTORATION_KEY, b"damaged")
        across_runs.replace_unreadable_restoration(opened.store, NOW)
        across_runs.require_not_restored_since(opened.store, began(opened, 3 * DAY).run_id)

    def test_one_that_can_be_read_stays(self, opened: OpenRepository) -> None:
        assert across_runs.replace_unreadable_restoration(opened.store, NOW) is None
        assert across_runs.read_restoration(opened.store) is None
        across_runs.write_restoration(opened.store, began(opened, DAY).run_id, NOW)
        before = opened.store.get(across_runs.RESTORATION_KEY)
        assert across_runs.replace_unreadable_restoration(opened.store, NOW) is None
        assert opened.store.get(across_runs.RESTORATION_KEY) == before


def test_a_later_one_concerns_more_runs(opened: OpenRepository) -> None:
    first = began(opened, 3 * DAY)
    across_runs.write_restoration(opened.store, first.run_id, NOW)
    second = began(opened, DAY)
    across_runs.require_not_restored_since(opened.store, second.run_id)
    across_runs.write_restoration(opened.store, first.run_id, NOW)
    found = across_runs.read_restoration(opened.store)
    assert found is not None
    assert found == replace(found, run_id=first.run_id, newest_run=second.run_id)
    assert found.concerns(first.run_id) and found.concerns(second.run_id)


# Objects that cannot be deleted.


DENIED, BUSY = "AccessDenied: Access Denied", "SlowDown: Please reduce your request rate."
BEFORE = SCRIPTED_NOW - timedelta(days=7)
LOCKED = Undeletable("data/x/locked", DENIED, BEFORE)


def failures(*addresses: str, error: str | None = DENIED, gone: int = 5, count: int | None = None) -> Failures:
    rows = tuple((address, error) for address in addresses)
    return Failures(rows, len(rows) if count is None else count, gone)


class TestLastingErrors:
    @pytest.mark.parametrize(
        "error",
        [
            DENIED,
            "AccessDenied: Access Denied because object protected by object lock.",
            "ObjectLocked: the object is locked",
            "AllAccessDisabled: no message",
            "403 forbidden: reader@x does not have storage.objects.delete access.",
            "403 retentionPolicyNotMet: Object 'o' is subject to bucket's retention policy",
            "403 objectUnderActiveHold: Object 'o' is under active Temporary hold",
            "403 AuthorizationPermissionMismatch: This request is not authorized",
            "409 BlobImmutableDueToPolicy: This operation is not permitted",
            "412 LeaseIdMissing: There is currently a lease on the blob",
            "Operation not permitted",
            "Permission denied",
            "there is no copy in quarantine: cannot copy 'k' in s3://b at e: access denied (AccessDenied Denied); x",
        ],
    )
    def test_last_until_somebody_lifts_a_lock_or_grants_a_permission(self, error: str) -> None:
        assert across_runs.is_lasting(error)

    @pytest.mark.parametrize(
        "error",
        [
            None,
            "",
            BUSY,
            "InternalError: We encountered an internal error.",
            "the service's answer does not mention this key",
            "403 rateLimitExceeded: slow down",
            "403 userRateLimitExceeded: slow down",
            "503 ServerBusy: busy",
            "ExpiredToken: The provided token has expired.",
            "No space left on device",
        ],
    )
    def test_others_pass(self, error: str | None) -> None:
        assert not across_runs.is_lasting(error)


class TestVerdicts:
    def test_a_run_without_failures_is_a_success(self) -> None:
        assert judge_undeletable((), failures(), (), SCRIPTED_NOW) == Verdict((), (), 0, True)

    def test_what_can_not_be_deleted_is_no_success_the_first_time_and_is_noted(self) -> None:
        found = judge_undeletable((), failures(LOCKED.address), (), SCRIPTED_NOW)
        noted = (replace(LOCKED, since=SCRIPTED_NOW),)
        assert found == Verdict(noted, noted, 1, False, 1)

    def test_what_was_known_before_is_no_failure_of_the_run(self) -> None:
        found = judge_undeletable((LOCKED,), failures(LOCKED.address, gone=0), (), SCRIPTED_NOW)
        assert found == Verdict((LOCKED,), (LOCKED,), 0, True, 1)

    def test_since_when_it_fails_is_kept_and_the_error_is_the_last(self) -> None:
        other = "409 BlobImmutableDueToPolicy: no"
        found = judge_undeletable((LOCKED,), failures(LOCKED.address, error=other), (), SCRIPTED_NOW)
        assert found.undeletable == (Undeletable(LOCKED.address, other, BEFORE),)

    def test_a_new_one_beside_a_known_one_is_no_success(self) -> None:
        found = judge_undeletable((LOCKED,), failures(LOCKED.address, "data/x/new"), (), SCRIPTED_NOW)
        both = (LOCKED, Undeletable("data/x/new", DENIED, SCRIPTED_NOW))
        assert found == Verdict(both, both, 1, False, 2)

    @pytest.mark.parametrize("known", [(), (LOCKED,)])
    def test_a_failure_that_passes_is_never_noted(self, known: tuple[Undeletable, ...]) -> None:
        found = judge_undeletable(known, failures(LOCKED.address, error=BUSY), (), SCRIPTED_NOW)
        assert found == Verdict(known, (), 0, False, 1)

    def test_one_that_passes_beside_known_ones_is_no_success(self) -> None:
        found = judge_undeletable(
            (LOCKED,), Failures(((LOCKED.address, DENIED), ("data/x/y", BUSY)), 2, 5), (), SCRIPTED_NOW
        )
        assert (found.success, found.undeletable, found.failing) == (False, (LOCKED,), (LOCKED,))

    def test_where_nothing_could_be_deleted_the_credentials_may_be_at_fault(self) -> None:
        """If wrong credentials were recorded as undeletable objects, every later run would be a success."""
        found = judge_undeletable((), failures("data/x/a", "data/x/b", gone=0), (), SCRIPTED_NOW)
        assert found == Verdict((), (), 0, False, 2)

    def test_a_great_many_are_no_matter_of_single_objects(self) -> None:
        addresses = [f"data/x/{number:04}" for number in range(UNDELETABLE_LIMIT + 1)]
        found = judge_undeletable((), failures(*addresses), (), SCRIPTED_NOW)
        assert [each.address for each in found.undeletable] == addresses[:UNDELETABLE_LIMIT]
        assert (found.new, found.success) == (UNDELETABLE_LIMIT, False)
        again = judge_undeletable(found.undeletable, failures(*addresses, count=5_000), (), SCRIPTED_NOW)
        assert (again.undeletable, again.new, again.success) == (found.undeletable, 0, False)
        assert str(again.warning).endswith(
            f"; 5,000 deletions failed in total, and {UNDELETABLE_KEY} lists at most 1,000 objects"
        )
        known = tuple(Undeletable(address, DENIED, BEFORE) for address in addresses)
        assert not judge_undeletable(known, failures(*addresses), (), SCRIPTED_NOW).success
        assert judge_undeletable(known, failures(*addresses[:UNDELETABLE_LIMIT]), (), SCRIPTED_NOW).success

    def test_figures_must_be_of_all_failures(self) -> None:
        assert not judge_undeletable((LOCKED,), failures(LOCKED.address, count=2), (), SCRIPTED_NOW).success

    def test_what_is_settled_is_forgotten_and_what_was_not_decided_about_stays(self) -> None:
        other = Undeletable("data/x/other", DENIED, BEFORE)
        found = judge_undeletable((LOCKED, other), failures(), {LOCKED.address}, SCRIPTED_NOW)
        assert found == Verdict((other,), (), 0, True)

    def test_the_list_does_not_grow_without_end(self) -> None:
        known = tuple(Undeletable(f"data/x/{number:04}", DENIED, BEFORE) for number in range(UNDELETABLE_LIMIT))
        found = judge_undeletable(known, failures("data/x/new"), (), SCRIPTED_NOW)
        assert found == Verdict(known, (), 0, False, 1)
        last = Undeletable("data/x/new", DENIED, SCRIPTED_NOW)
        found = judge_undeletable(known[1:], failures("data/x/new"), (), SCRIPTED_NOW)
        assert found == Verdict((*known[1:], last), (last,), 1, False, 1)

    def test_it_is_reported(self) -> None:
        assert judge_undeletable((), failures(), (), SCRIPTED_NOW).warning is None
        reported = judge_undeletable((LOCKED,), failures(LOCKED.address), (), SCRIPTED_NOW).warning
        assert reported == (
            "1 object cannot be deleted, such as data/x/locked since 2026-11-14 (AccessDenied: Access Denied): lift "
            "its lock or grant the permission; each sweep tries again"
        )
        assert "2 objects cannot" in str(
            judge_undeletable((LOCKED,), failures(LOCKED.address, "data/a"), (), SCRIPTED_NOW).warning
        )


class TestTheList:
    def test_is_read_as_it_was_written(self, store: ObjectStore) -> None:
        assert across_runs.read_undeletable(store) == ()
        across_runs.write_undeletable(store, (LOCKED,))
        assert across_runs.read_undeletable(store) == (LOCKED,)
        across_runs.write_undeletable(store, ())
        assert across_runs.read_undeletable(store) == ()

    def test_is_not_written_where_there_is_nothing_to_say(self, store: ObjectStore) -> None:
        across_runs.write_undeletable(store, ())
        assert [key for batch in store.list("") for key in batch["key"].to_pylist()] == []

    @pytest.mark.parametrize("content", [b"", b"{", b"{}", b'{"entries": [], "format_version": 1}'])
    def test_that_cannot_be_read_is_forgotten_so_that_failures_count(self, store: ObjectStore, content: bytes) -> None:
        store.put(across_runs.UNDELETABLE_KEY, content)
        assert across_runs.read_undeletable(store) == ()
        across_runs.write_undeletable(store, (LOCKED,))
        assert across_runs.read_undeletable(store) == (LOCKED,)

    def test_holds_no_time_without_a_zone(self, store: ObjectStore) -> None:
        with pytest.raises(ValueError, match="without a zone"):
            across_runs.write_undeletable(store, (Undeletable("data/x", DENIED, datetime(2026, 1, 1)),))


class TestFollowing:
    def due(self, opened: OpenRepository, **counts: int) -> Report | str:
        changes = {"success": False, "ending": Ending.PARTLY_DELETED, "counts": counts}
        ended(opened, began(opened, DAY), **changes)
        return report_to_follow(opened.store, HOUR, NOW, None)

    def test_a_run_that_failed_at_nothing_else_is_followed(self, opened: OpenRepository) -> None:
        assert isinstance(self.due(opened, failed=2, undeletable=2), Report)

    @pytest.mark.parametrize("counts", [{"failed": 2, "undeletable": 1}, {"failed": 2}, {}, {"undeletable": 0}])
    def test_any_other_is_not(self, opened: OpenRepository, counts: dict[str, int]) -> None:
        assert "did not succeed (some deletions failed)" in str(self.due(opened, **counts))

    def test_nor_is_one_that_a_step_ended(self) -> None:
        counts = {"failed": 2, "undeletable": 2}
        assert replace(REPORT, ending=Ending.NONE_DELETED, counts=counts).only_undeletable
        assert not replace(REPORT, ending=Ending.FAILED, counts=counts).only_undeletable
