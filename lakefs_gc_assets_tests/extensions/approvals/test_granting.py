"""Granting and withdrawing standing approvals."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.standing_approvals import (
    LONGEST,
    ApprovedWork,
    Limits,
    StandingApproval,
    read,
    require_covered,
    why_void,
)
from lakefs_gc_assets.errors import ConfigurationError, CorruptFile, GuardTripped
from lakefs_gc_assets.extensions.approvals import granting
from lakefs_gc_assets.lakefs.api.models import ServerClocks
from lakefs_gc_assets_tests.collector.past_runs import DAY, HOUR, NOW, opened
from lakefs_gc_assets_tests.collector.test_standing_approvals import SMALL, WORK

__all__ = ["opened"]

TEN = Limits(objects=10)


def grant(repository: OpenRepository, name: str = "Ada", approvers: int = 1, **changes: Any) -> StandingApproval:
    given = {"kind": WORK, "limits": TEN, "until": NOW + DAY, **changes}
    return granting.grant(repository, name=name, approvers=approvers, **given)


def test_what_a_person_grants_counts_and_names_the_person(opened: OpenRepository) -> None:
    approval = grant(opened, "  Ada \n Lovelace ")
    assert (approval.granted_by, approval.granted_at) == ("Ada Lovelace, as the command line says", NOW)
    assert require_covered(opened, WORK, SMALL) == read(opened, WORK) == approval


def test_a_second_grant_of_the_same_person_replaces_the_first(opened: OpenRepository) -> None:
    first, second = grant(opened), grant(opened)
    assert first.approval_id != second.approval_id
    assert replace(second, approval_id=first.approval_id) == first
    with pytest.raises(GuardTripped, match=f"{first.approval_id} was replaced"):
        require_covered(opened, WORK, SMALL, approval_id=first.approval_id)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"limits": Limits(bytes=10)}, "needs a limit: give --objects"),
        ({"limits": Limits()}, "needs a limit: give --objects"),
        ({"kind": ApprovedWork.BRANCHES}, "needs a limit: give --branches"),
        ({"kind": ApprovedWork.LIFECYCLE, "limits": Limits(paths=("a/",))}, "needs a limit: give --objects"),
        ({"limits": Limits(objects=1, branches=1)}, "cannot limit branches: it can limit objects, bytes, share"),
        ({"limits": Limits(objects=1, paths=("a/",))}, "cannot limit paths: most garbage has no known path"),
        ({"kind": ApprovedWork.LIFECYCLE, "limits": Limits(objects=1, paths=(" ",))}, "would allow every path"),
        ({"limits": Limits(objects=0)}, "each limit must be above 0"),
        ({"limits": Limits(objects=1, share=1.01)}, "a share at most 1"),
        ({"limits": Limits(objects=1, share=float("nan"))}, "each limit must be above 0"),
        ({"until": NOW}, "must be ahead, by at most 366 days"),
        ({"until": NOW + LONGEST + HOUR}, "must be ahead, by at most 366 days"),
        ({"name": " \u200b "}, "needs the name of the person"),
        ({"name": "Ada; Bob"}, "is no name of an approver"),
        ({"name": "Ada, as the proxy says"}, "is no name of an approver"),
    ],
)
def test_a_grant_that_is_refused_changes_nothing(opened: OpenRepository, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        grant(opened, **changes)
    assert read(opened, WORK) is None


@pytest.mark.parametrize(("ahead", "until"), [(HOUR, HOUR / 2), (-HOUR, LONGEST)])
def test_the_clock_that_ends_it_first_decides_about_a_grant(
    opened: OpenRepository, ahead: timedelta, until: timedelta
) -> None:
    grant(opened, until=NOW + until)
    opened.api.server_clocks = ServerClocks(ahead, ahead)
    with pytest.raises(ConfigurationError, match="must be ahead, by at most 366 days"):
        grant(opened, until=NOW + until)


class TestTwoPeople:
    def test_the_second_person_makes_it_count(self, opened: OpenRepository) -> None:
        first = grant(opened, approvers=2)
        assert "a second person has to grant" in why_void(opened, first, 2)
        second = grant(opened, "Bob", 2)
        assert why_void(opened, second, 2) == ""
        assert second == replace(first, second_by="Bob, as the command line says")

    @pytest.mark.parametrize("name", ["Ada", " ada", "A\u200bda", "\uff21\uff44\uff41"])
    def test_a_name_that_looks_like_the_first_is_no_second_person(self, opened: OpenRepository, name: str) -> None:
        first, again = grant(opened, approvers=2), grant(opened, name, 2)
        assert again.approval_id != first.approval_id
        assert why_void(opened, again, 2)
        assert plans.person(again.granted_by) == plans.person(first.granted_by)

    @pytest.mark.parametrize("changes", [{"limits": Limits(objects=11)}, {"until": NOW + DAY / 2}])
    def test_the_second_person_has_to_grant_the_same(self, opened: OpenRepository, changes: dict[str, Any]) -> None:
        grant(opened, approvers=2)
        assert why_void(opened, grant(opened, "Bob", 2, **changes), 2)

    def test_a_first_grant_that_was_withdrawn_is_none(self, opened: OpenRepository) -> None:
        grant(opened, approvers=2)
        granting.withdraw(opened, WORK)
        second = grant(opened, "Bob", 2)
        assert (second.withdrawn_at, second.second_by) == (None, "")

    def test_a_third_grant_begins_anew(self, opened: OpenRepository) -> None:
        grant(opened, approvers=2)
        grant(opened, "Bob", 2)
        assert why_void(opened, grant(opened, "Cid", 2), 2)

    def test_an_unreadable_first_grant_is_no_grant(self, opened: OpenRepository) -> None:
        opened.store.put(grant(opened, approvers=2).key, b"{")
        with pytest.raises(CorruptFile):
            grant(opened, "Bob", 2)


class TestWithdrawing:
    def test_a_withdrawn_approval_covers_nothing(self, opened: OpenRepository) -> None:
        assert granting.withdraw(opened, WORK) is None
        approval = grant(opened)
        withdrawn = granting.withdraw(opened, WORK)
        assert withdrawn == replace(approval, withdrawn_at=NOW) == granting.withdraw(opened, WORK)
        with pytest.raises(GuardTripped, match="it was withdrawn at"):
            require_covered(opened, WORK, SMALL)
        grant(opened)
        require_covered(opened, WORK, SMALL)

    def test_an_unreadable_record_can_be_withdrawn(self, opened: OpenRepository) -> None:
        opened.store.put(grant(opened).key, b"{")
        assert granting.withdraw(opened, WORK) == read(opened, WORK)
        with pytest.raises(GuardTripped, match="it has no limit of objects"):
            require_covered(opened, WORK, SMALL)

    def test_other_kinds_of_work_stay_approved(self, opened: OpenRepository) -> None:
        grant(opened)
        grant(opened, kind=ApprovedWork.BRANCHES, limits=Limits(branches=1))
        granting.withdraw(opened, ApprovedWork.BRANCHES)
        require_covered(opened, WORK, SMALL)
