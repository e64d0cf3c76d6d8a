import pytest

from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.files import Manifest, Span
from lakefs_gc_assets.collector.frame.frames import CANDIDATES_DF, CandidateFigures
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.plan import Approval, Plan
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.sweep.passes import give, require_dry_run
from lakefs_gc_assets.errors import CollectionError
from lakefs_gc_assets_tests.collector.made_frames import CANDIDATE_FIGURES
from lakefs_gc_assets_tests.collector.past_runs import DAY, NOW, began, ended, opened

__all__ = ["opened"]


class TestRequireDryRun:
    """Only candidates of a finished dry run can be approved."""

    def found(self, opened: OpenRepository, plan: Plan) -> Manifest[CandidateFigures]:
        """The stored frame of candidates of a run."""
        span = Span(CANDIDATES_DF.name, plan.run_id, plan.attempt, NOW, NOW)
        made = Manifest(span, (), CANDIDATE_FIGURES)
        files.write_manifest(opened.store, made)
        return made

    def why_not(self, opened: OpenRepository, plan: Plan) -> str:
        """The reason why a run cannot be approved."""
        with pytest.raises(CollectionError) as refused:
            require_dry_run(opened.store, plan.run_id)
        return str(refused.value)

    def test_what_it_found_is_approved_as_it_is_stored(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        ended(opened, plan, dry_run=True)
        made = self.found(opened, plan)
        candidates = require_dry_run(opened.store, plan.run_id)
        assert candidates == made
        give(opened.store, candidates, NOW, "nobody")
        approval = Approval(plan.run_id, plan.attempt, made.digest, NOW, "nobody")
        assert plans.read_approval(opened.store, plan.run_id) == approval

    def test_a_run_that_was_to_delete_needs_none(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY)
        ended(opened, plan)
        assert self.why_not(opened, plan) == (f"run {plan.run_id} was not a dry run: its deletions need no approval")

    def test_what_was_deleted_cannot_be_approved_again(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        report = ended(opened, plan, dry_run=False, counts={"deleted": 7})
        assert self.why_not(opened, plan) == f"run {plan.run_id} was already approved: {report.did}"

    @pytest.mark.parametrize("report", [False, True])
    def test_a_run_that_failed_or_has_not_ended_cannot_be_approved(self, opened: OpenRepository, report: bool) -> None:
        plan = began(opened, DAY, sweep=False)
        self.found(opened, plan)
        if report:
            ended(opened, plan, success=False, dry_run=True)
        assert self.why_not(opened, plan) == f"run {plan.run_id} did not finish: start a new one"

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_one_that_was_approved_and_failed_then_can_be_approved_again(
        self, opened: OpenRepository, dry_run: bool
    ) -> None:
        plan = began(opened, DAY, sweep=False)
        made = self.found(opened, plan)
        give(opened.store, made, NOW, "nobody")
        assert self.why_not(opened, plan) == f"run {plan.run_id} did not finish: start a new one"
        ended(opened, plan, success=False, dry_run=dry_run)
        assert require_dry_run(opened.store, plan.run_id) == made

    def test_a_run_whose_candidates_were_removed_cannot_be_approved(self, opened: OpenRepository) -> None:
        plan = began(opened, DAY, sweep=False)
        ended(opened, plan, dry_run=True)
        assert self.why_not(opened, plan) == (
            f"run {plan.run_id} has no candidates stored: they were removed because it is old"
        )
