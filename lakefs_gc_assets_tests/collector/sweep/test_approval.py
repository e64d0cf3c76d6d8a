from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakefs_gc_assets.collector.frame import manifest as manifests
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.frame.manifest import Manifest
from lakefs_gc_assets.collector.order import Span
from lakefs_gc_assets.collector.plan import Plan
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.collector.sweep import approval
from lakefs_gc_assets.collector.sweep.approval import Approval
from lakefs_gc_assets.errors import CollectionError, CorruptFile
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, began, ended, opened

__all__ = ["opened"]

GIVEN = Approval("g4uk6erfnfus73frbnqg", "attempt", "0" * 64, datetime(2026, 11, 21, 12, tzinfo=UTC))


def test_is_read_as_it_was_given(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert approval.read(store, GIVEN.run_id) is None
    approval.write(store, GIVEN)
    assert approval.read(store, GIVEN.run_id) == GIVEN


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format_version": 9}'])
def test_one_that_cannot_be_read_ends_the_run(tmp_path: Path, content: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put(run_folder.approval(GIVEN.run_id), content)
    with pytest.raises(CorruptFile, match=r"approval\.json"):
        approval.read(store, GIVEN.run_id)


def test_one_of_another_run_ends_the_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    approval.write(store, GIVEN)
    store.put(run_folder.approval("other"), store.get(run_folder.approval(GIVEN.run_id)))
    with pytest.raises(CorruptFile) as refused:
        approval.read(store, "other")
    assert refused.value.args == (
        run_folder.approval("other"),
        "approval",
        f"it is the approval of run {GIVEN.run_id}",
    )


class TestRequireDryRun:
    """Only what a dry run found that came to its end can be approved."""

    def found(self, opened: OpenRepository, plan: Plan) -> Manifest[CandidateFigures]:
        """The stored frame of candidates of a run."""
        span = Span(CANDIDATES_DF.name, plan.run_id, plan.attempt, NOW, NOW)
        made = Manifest(span, (), CANDIDATE_FIGURES)
        manifests.write(opened.store, made)
        return made

    def why_not(self, opened: OpenRepository, plan: Plan) -> str:
        """Why a run cannot be approved."""
        with pytest.raises(CollectionError) as refused:
            approval.require_dry_run(opened.store, plan.run_id)
        return str(refused.value)

    def test_what_it_found_is_approved_as_it_is_stored(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        ended(opened, plan, dry_run=True)
        made = self.found(opened, plan)
        candidates = approval.require_dry_run(opened.store, plan.run_id)
        assert candidates == made
        approval.give(opened.store, candidates, NOW)
        assert approval.read(opened.store, plan.run_id) == Approval(plan.run_id, plan.attempt, made.digest, NOW)

    def test_a_run_that_was_to_delete_needs_none(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        ended(opened, plan)
        assert self.why_not(opened, plan) == (
            f"run {plan.run_id} was no dry run: what it was to delete needs no approval"
        )

    def test_what_was_deleted_cannot_be_approved_again(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        report = ended(opened, plan, dry_run=False, counts={"deleted": 7})
        assert self.why_not(opened, plan) == f"run {plan.run_id} was approved before: {report.did}"

    @pytest.mark.parametrize("report", [False, True])
    def test_a_run_that_failed_or_has_not_ended_cannot_be_approved(self, opened: OpenRepository, report: bool) -> None:
        plan = began(opened, DAY, sweep=False)
        self.found(opened, plan)
        if report:
            ended(opened, plan, success=False, dry_run=True)
        assert self.why_not(opened, plan) == f"run {plan.run_id} did not come to its end: make a new one"

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_one_that_was_approved_and_failed_then_can_be_approved_again(
        self, opened: OpenRepository, dry_run: bool
    ) -> None:
        plan = began(opened, DAY, sweep=False)
        made = self.found(opened, plan)
        approval.give(opened.store, made, NOW)
        assert self.why_not(opened, plan) == f"run {plan.run_id} did not come to its end: make a new one"
        ended(opened, plan, success=False, dry_run=dry_run)
        assert approval.require_dry_run(opened.store, plan.run_id) == made

    def test_a_run_whose_candidates_were_removed_cannot_be_approved(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        ended(opened, plan, dry_run=True)
        assert self.why_not(opened, plan) == (
            f"run {plan.run_id} has no candidates stored: they were removed because it is old"
        )
