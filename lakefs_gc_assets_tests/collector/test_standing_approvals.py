"""Standing approvals: whether one counts, and which deletions it covers."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakefs_gc_assets.collector import standing_approvals
from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.records.figures import Statistics
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import (
    LONGEST,
    NOT_COVERED,
    ApprovedWork,
    Limits,
    PlannedDeletion,
    StandingApproval,
    describe_all,
    limit_exceeded,
    list_limits_met,
    planned_sweep,
    require_covered,
    require_standing,
    standing_approver,
    why_void,
)
from lakefs_gc_assets.errors import GuardTripped
from lakefs_gc_assets.lakefs.api.models import ServerClocks
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, opened

__all__ = ["opened"]

WORK = ApprovedWork.COLLECTION
SMALL = PlannedDeletion(objects=10, bytes=1_000, whole=200, name="run r")


def granted(repository: OpenRepository, **changes: Any) -> StandingApproval:
    """Stores a standing approval for at most ten objects until tomorrow."""
    approval = StandingApproval(
        approval_id="a1",
        repository=repository.facts.id,
        storage_namespace=repository.namespace.uri,
        kind=WORK,
        limits=Limits(objects=10),
        until=NOW + DAY,
        granted_by="Ada, as the command line says",
        granted_at=NOW - HOUR,
    )
    approval = replace(approval, **changes)
    repository.store.put(approval.key, records_json.encode(approval))
    return approval


def refusal(repository: OpenRepository, planned: PlannedDeletion = SMALL, **more: Any) -> str:
    """The message of the guard that refuses a deletion."""
    with pytest.raises(GuardTripped) as refused:
        require_covered(repository, WORK, planned, **more)
    assert refused.value.guard == "standing approval"
    return str(refused.value)


class TestCovered:
    def test_a_deletion_within_the_limits_is_covered(self, opened: OpenRepository) -> None:
        approval = granted(opened)
        assert require_covered(opened, WORK, SMALL) == require_covered(opened, WORK, SMALL, 1, "a1") == approval
        assert str(approval) == f"standing approval a1 of {NOW - HOUR:%F} by Ada, as the command line says"

    def test_nothing_is_covered_without_one(self, opened: OpenRepository) -> None:
        granted(opened, kind=ApprovedWork.BRANCHES, limits=Limits(branches=10))
        assert "no standing approval for collection covers run r: there is none. It waits" in refusal(opened)

    def test_a_damaged_record_approves_nothing(self, opened: OpenRepository) -> None:
        approval = granted(opened)
        opened.store.put(approval.key, records_json.encode(approval).replace(b'"objects": 10', b'"objects": 99'))
        assert "its record cannot be read: standingapproval: cannot be read: it was changed" in refusal(opened)
        ((kind, line),) = describe_all(opened)
        assert kind is WORK and line.startswith("approves nothing, since its record cannot be read: standingapproval: ")

    def test_another_approval_than_the_one_in_use(self, opened: OpenRepository) -> None:
        granted(opened, approval_id="a2")
        assert "a1 was replaced by standing approval a2" in refusal(opened, approval_id="a1")

    def test_a_limit_that_is_exceeded_is_named(self, opened: OpenRepository) -> None:
        granted(opened)
        assert "11 objects would be deleted, more than the limit of 10 objects" in refusal(
            opened, replace(SMALL, objects=11)
        )

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({"withdrawn_at": NOW}, "it was withdrawn at"),
            ({"until": NOW}, "it ended at"),
            ({"until": NOW + LONGEST + HOUR}, "more than 366 days ahead"),
            ({"limits": Limits(bytes=10**9)}, "it has no limit of objects"),
            ({"storage_namespace": "s3://other"}, "it is of repository repo at s3://other"),
        ],
    )
    def test_one_that_does_not_count(self, opened: OpenRepository, changes: dict[str, Any], why: str) -> None:
        granted(opened, **changes)
        assert why in refusal(opened)

    def test_the_record_of_another_repository_never_counts(self, opened: OpenRepository) -> None:
        approval = granted(opened)
        other = replace(approval, repository="other")
        opened.store.put(approval.key, records_json.encode(other))
        assert "it is of repository other at " in refusal(opened)

    def test_two_people_have_to_grant_it_where_two_must_approve(self, opened: OpenRepository) -> None:
        granted(opened)
        assert "a second person has to grant the same limits" in refusal(opened, approvers=2)
        granted(opened, second_by="Bob, as the command line says")
        assert str(require_covered(opened, WORK, SMALL, 2)).endswith("says; Bob, as the command line says")

    @pytest.mark.parametrize("ahead", [HOUR, -HOUR])
    def test_the_clock_that_ends_it_first_counts(self, opened: OpenRepository, ahead: timedelta) -> None:
        """With the server's clock an hour ahead or behind: the end comes soonest, and the longest time is shortest."""
        opened.api.server_clocks = ServerClocks(ahead, ahead)
        soon, late = granted(opened, until=NOW + HOUR / 2), granted(opened, until=NOW + LONGEST)
        assert ("it ended" in why_void(opened, soon)) == (ahead > timedelta())
        assert ("days ahead" in why_void(opened, late)) == (ahead < timedelta())


class TestLimits:
    @pytest.mark.parametrize(
        ("limits", "planned", "exceeded"),
        [
            (Limits(objects=10, bytes=1_000, share=0.05), SMALL, ""),
            (Limits(objects=10, bytes=999), SMALL, "1,000 B would be deleted, more than the limit of 999 B"),
            (Limits(objects=10, share=0.0499), SMALL, "5.00% would be deleted, more than the limit of 4.99%"),
            (
                Limits(objects=10),
                PlannedDeletion(),
                "the objects of this deletion are unknown, and the limit is 10 objects",
            ),
            (
                Limits(objects=10, share=1),
                PlannedDeletion(objects=1),
                "the share of this deletion are unknown, and the limit is 100.00%",
            ),
            (Limits(branches=2, share=0.5), PlannedDeletion(branches=2, whole=4), ""),
            (
                Limits(branches=2),
                PlannedDeletion(branches=3, whole=4),
                "3 branches would be deleted, more than the limit of 2 branches",
            ),
            (
                Limits(branches=2, share=0.5),
                PlannedDeletion(branches=2, whole=3),
                "66.67% would be deleted, more than the limit of 50.00%",
            ),
            (Limits(objects=10, paths=("logs/",)), replace(SMALL, outside=0), ""),
            (
                Limits(objects=10, paths=("logs/",)),
                replace(SMALL, outside=2),
                "2 objects would be deleted outside of logs/",
            ),
            (
                Limits(objects=10, paths=("logs/",)),
                SMALL,
                "an unknown number of objects would be deleted outside of logs/",
            ),
        ],
    )
    def test_every_stated_limit_must_hold(self, limits: Limits, planned: PlannedDeletion, exceeded: str) -> None:
        assert limit_exceeded(limits, planned) == exceeded

    def test_they_are_described(self) -> None:
        limits = Limits(objects=1_000, bytes=2**40, branches=1, share=0.05, paths=("a/", "b/"))
        assert str(limits) == "at most 1,000 objects, 1.0 TiB, 1 branch, 5.00%, of paths a/*, b/*"
        assert str(Limits()) == "at most nothing"

    def test_the_figures_of_a_run(self) -> None:
        planned = planned_sweep("r", Statistics(candidates=10, candidates_bytes=1_000), 200)
        assert planned == SMALL
        assert planned_sweep("r", Statistics(), 200).objects is None


def test_a_person_sees_which_limit_a_dry_run_met(opened: OpenRepository) -> None:
    assert list_limits_met(opened, WORK, SMALL) == []
    granted(opened)
    assert list_limits_met(opened, WORK, SMALL) == []
    (warning,) = list_limits_met(opened, WORK, replace(SMALL, objects=11))
    assert warning.startswith(f"{NOT_COVERED}standing approval a1") and "11 objects" in warning
    (warning,) = list_limits_met(opened, WORK, replace(SMALL, objects=11))
    approval = granted(opened, withdrawn_at=NOW)
    assert list_limits_met(opened, WORK, replace(SMALL, objects=11)) == []
    opened.store.put(approval.key, b"{")
    assert list_limits_met(opened, WORK, SMALL)[0].startswith(f"{NOT_COVERED}its record cannot be read")


def test_each_kind_of_work_is_described(opened: OpenRepository) -> None:
    assert [*describe_all(opened)] == []
    granted(opened)
    granted(opened, kind=ApprovedWork.BRANCHES, limits=Limits(branches=2), until=NOW)
    (collection, first), (branches, second) = describe_all(opened)
    assert (collection, branches) == (WORK, ApprovedWork.BRANCHES)
    assert first.endswith(f"at most 10 objects, until {NOW + DAY:%F %T}Z")
    assert second.endswith(f"at most 2 branches, approves nothing: it ended at {NOW:%F %T}Z")
    assert "a second person" in dict(describe_all(opened, 2))[WORK]


class TestApprover:
    """A list of one object, below `old/`, and a standing approval for it."""

    WORK = ApprovedWork.LIFECYCLE
    LIMITS = Limits(objects=1, paths=("old/",))

    def grant(self, opened: OpenRepository, *paths: str, **changes: Any) -> StandingApproval:
        return granted(opened, kind=self.WORK, limits=replace(self.LIMITS, paths=paths), **changes)

    def count(self, paths: tuple[str, ...]) -> PlannedDeletion:
        return PlannedDeletion(objects=1, outside=int(bool(paths) and "old/" not in paths))

    def test_it_is_the_approval_that_covers_the_list_below_its_paths(self, opened: OpenRepository) -> None:
        approval = self.grant(opened, "old/")
        assert standing_approver(opened, self.WORK, self.count, 1)() == str(approval)
        with pytest.raises(GuardTripped, match="a second person has to grant the same limits"):
            standing_approver(opened, self.WORK, self.count, 2)
        self.grant(opened, "new/")
        with pytest.raises(GuardTripped, match="1 object would be deleted outside of new/"):
            standing_approver(opened, self.WORK, self.count, 1)

    def test_one_that_was_replaced_while_figures_were_counted_covers_nothing(self, opened: OpenRepository) -> None:
        def count(paths: tuple[str, ...]) -> PlannedDeletion:
            self.grant(opened, "new/")
            return self.count(paths)

        self.grant(opened, "old/")
        with pytest.raises(GuardTripped, match="it was replaced while it was compared with the list"):
            standing_approver(opened, self.WORK, count, 1)

    @pytest.mark.parametrize(
        ("change", "why"), [({"withdrawn_at": NOW}, "it was withdrawn"), ({"approval_id": "a2"}, "a1 was replaced by")]
    )
    def test_one_that_was_withdrawn_or_replaced_since_is_not_used(
        self, opened: OpenRepository, change: dict[str, Any], why: str
    ) -> None:
        self.grant(opened, "old/")
        approver = standing_approver(opened, self.WORK, self.count, 1)
        self.grant(opened, "old/", **change)
        with pytest.raises(GuardTripped, match=why):
            approver()

    def test_a_damaged_record_covers_nothing(self, opened: OpenRepository) -> None:
        opened.store.put(self.grant(opened, "old/").key, b"{")
        with pytest.raises(GuardTripped, match="its record cannot be read"):
            standing_approver(opened, self.WORK, self.count, 1)


@pytest.mark.parametrize("change", [{"withdrawn_at": NOW}, {"approval_id": "a2"}, None])
def test_a_change_of_the_record_stops_work_in_progress(opened: OpenRepository, change: dict[str, Any] | None) -> None:
    approval = granted(opened)
    require_standing(opened.store, approval)
    if change is None:
        opened.store.put(approval.key, b"{")
    else:
        granted(opened, **change)
    with pytest.raises(GuardTripped, match=r"covers the rest: .* was withdrawn or replaced, so nothing"):
        require_standing(opened.store, approval)


def test_limits_of_each_kind_begin_with_the_required_one() -> None:
    assert {kind: names[0] for kind, names in standing_approvals.LIMITS.items()} == {
        ApprovedWork.COLLECTION: "objects",
        ApprovedWork.BRANCHES: "branches",
        ApprovedWork.LIFECYCLE: "objects",
    }
