"""Commits that expire, or no longer expire, during a run by retention rules: a history for each moment."""

from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation.clocks import DAY, HOUR
from lakefs_gc_assets_tests.simulation.playing import DELETE, FLOWS, FULL_LISTING_DAYS, History, Result, Step, play
from lakefs_gc_assets_tests.simulation.world import BRANCHES, Setup
from lakefs_gc_assets_tests.simulation.writers import DAYS

FIRST_BRANCH = 0
"""The first branch by name: `main`, or `alpha` while it exists."""
ALPHA, ZETA = map(BRANCHES.index, ("alpha", "zeta"))
FOUR_DAYS, FOUR_HOURS = (Step("time", "seconds", (int(seconds),)) for seconds in (4 * DAY, 4 * HOUR))
FINISH = Step("c0", "finish")


def rules_of(days: int) -> Step:
    """The same retention for every branch."""
    return Step("a0", "set_rules", (DAYS.index(days), ZETA, DAYS.index(days)))


def commit_of(path: int, content: int) -> tuple[Step, ...]:
    """Steps that commit a new object on the first branch."""
    return Step("w0", "upload_now", (FIRST_BRANCH, path, content, 0)), Step("w0", "commit_now", (FIRST_BRANCH, 0, 0))


def reset_to(commit: int, *meanwhile: Step) -> tuple[Step, ...]:
    """Steps that set the first branch to a commit. Staged entries go, except those staged meanwhile."""
    return Step("w1", "hard_reset", (FIRST_BRANCH, commit, 1)), *meanwhile, Step("w1", "go_on", (0,))


def start_of(flow: Flow) -> Step:
    """A sweep of a flow, which may build on any earlier run."""
    return Step("c0", "start", (DELETE, 0, 0, 0, FLOWS.index(flow), 0, len(FULL_LISTING_DAYS) - 1))


def played(*steps: Step) -> Result:
    return play(History(Setup(old_objects=0, retention=True), steps, "unified"), quiet=False)


class TestARuleThatBecameLongerSinceTheMark:
    """Only this rule keeps an object that was staged when the recheck read reasons to stay."""

    ROOT, OLDER, NEWER = 0, 1, 2
    """Positions of commits in the order of ids: one without objects, and two on one line with an object each."""
    EXPIRED_LINE = (
        rules_of(2),
        *commit_of(1, 3),
        Step("w0", "create_branch", (ALPHA, FIRST_BRANCH)),
        *commit_of(0, 1),
        *commit_of(0, 2),
        Step("w0", "delete_branch", (FIRST_BRANCH,)),
        FOUR_DAYS,
    )
    UNTIL_SWEEP = Step("c0", "until", (11, 1))
    LONGER = Step("a0", "lengthen_rule", (ALPHA, 9))
    STAGED = (
        Step("w0", "branch_commit", (ALPHA - 1, OLDER)),
        *reset_to(ROOT, Step("w0", "set_metadata", (FIRST_BRANCH, 0, 1))),
    )
    """The object of the older commit is staged on a new `alpha`, whose head does not have it."""
    UNTIL_PREPARE = Step("c0", "until", (1, 1))

    def deleted(self, *before_recheck: Step) -> int:
        """Objects that a sweep deletes if `alpha` returns to the line after reasons, but before uncommitted data."""
        sweep = (start_of(Flow.COMMITTED), self.UNTIL_SWEEP, *before_recheck, *self.STAGED, self.UNTIL_PREPARE)
        return played(*self.EXPIRED_LINE, *sweep, *reset_to(self.NEWER), FINISH).deleted

    def test_keeps_what_a_branch_goes_back_to_during_a_recheck(self) -> None:
        assert self.deleted(self.LONGER) == 0

    def test_without_it_that_object_goes(self) -> None:
        assert self.deleted() == 1


def test_what_expires_after_the_listing_began_is_looked_at_in_the_same_run() -> None:
    """Rules become shorter before the run reads them. No later run would examine the objects of the expired range."""
    replaced = (rules_of(5), *commit_of(1, 3), *commit_of(0, 1), *commit_of(0, 2), FOUR_DAYS)
    base_run = (start_of(Flow.UNIFIED), FINISH, FOUR_HOURS)
    until_slices_are_listed = Step("c0", "until", (0, 3))
    result = played(*replaced, *base_run, start_of(Flow.UNIFIED), until_slices_are_listed, rules_of(1), FINISH)
    assert (result.went, result.deleted, result.figures.longest_chain) == (1, 1, 1)
