"""The end of a history: users stop, time passes, and a few runs must leave nothing that nothing keeps."""

from collections.abc import Mapping
from typing import Literal

from lakefs_gc_assets.collector.frame.frames import STEPS
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets_tests.simulation import versioning
from lakefs_gc_assets_tests.simulation.clocks import HOUR, MINUTE
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.processes import Figures, Process
from lakefs_gc_assets_tests.simulation.repository import Branch
from lakefs_gc_assets_tests.simulation.run_requests import LOCK_EXPIRY, Asked, settings
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import COPY_SECONDS, World

Kind = Literal["clean", "optimized", "retention", "unified", "committed"]
"""Which runs a history is about."""
_QUIET_SECONDS = max(COPY_SECONDS, 26 * HOUR) + 30 * HOUR
_BEFORE_TIME_PASSES: dict[Kind, tuple[Flow, ...]] = {
    "clean": (),
    "optimized": (Flow.CLEAN,),
    "retention": (),
    "unified": (Flow.UNIFIED,),
    "committed": (Flow.COMMITTED,),
}
_AFTERWARDS: dict[Kind, tuple[Flow, ...]] = {
    "clean": (Flow.CLEAN, Flow.CLEAN),
    "optimized": (Flow.OPTIMIZED, Flow.OPTIMIZED),
    "retention": (Flow.COMMITTED, Flow.UNIFIED, Flow.UNIFIED),
    "unified": (Flow.UNIFIED, Flow.UNIFIED),
    "committed": (Flow.COMMITTED, Flow.UNIFIED, Flow.UNIFIED),
}
_BUILT_ON_DAYS = 60


class Left(Violation):
    """Garbage stays although nothing keeps it."""


class Quiet:
    """Ends a history."""

    def __init__(self, world: World, collectors: Mapping[str, Process], figures: Figures) -> None:
        self._world, self._collectors, self._figures = world, collectors, figures

    def end(self, kind: Kind) -> None:
        """Writers stop, time passes, two runs that list: then nothing is left that nothing reaches.

        Of runs by retention rules one that lists nothing comes first, and leaves nothing of what it looked at.
        """
        world = self._world
        self.calm(kind)
        if not all(self._run_alone(flow) for flow in _BEFORE_TIME_PASSES[kind]):
            return
        world.pass_time(_QUIET_SECONDS)
        for flow in _AFTERWARDS[kind]:
            builds = kind == "unified" or (kind == "committed" and flow is Flow.COMMITTED)
            if not self._run_alone(flow, _BUILT_ON_DAYS if builds else 0):
                return
            garbage = self._garbage(flow)
            if not garbage and flow is not Flow.COMMITTED:
                return
            if garbage and flow is Flow.COMMITTED:
                break
            world.pass_time(2 * HOUR)
        raise Left(f"{len(garbage)} objects stay although nothing reaches them: {', '.join(garbage[:5])}")

    def calm(self, kind: Kind) -> None:
        """Collectors come to their end, writers stop, and servers do nothing wrong any more."""
        world = self._world
        for process in self._collectors.values():
            process.go_on(None)
        for running in list(world.jobs):
            if running.due is None:
                world.abandon(running)
        world.behave()
        world.dismiss_twin()
        self._end_commits(kind)

    def _garbage(self, flow: Flow) -> list[str]:
        """Objects that the last run had to delete and did not."""
        garbage, last = self._world.garbage(), self._collectors["c0"]
        assert last.run is not None
        setup = self._world.setup
        if not (setup.around.only_young_count and setup.dumps):
            # What nothing names counts however old, as another repository may have it.
            kept = self._world.repository.compacted_keys
            garbage = [key for key in garbage if key not in kept]
        if last.run.plan.follows_expiry:
            return [key for key in garbage if not last.exactness.named_oddly(key)]
        if flow is not Flow.COMMITTED:
            return garbage
        listed = addresses(last.exactness.store, last.run.run_id, STEPS[0])
        return [key for key in garbage if key in listed]

    def _run_alone(self, flow: Flow, full_listing_days: float = 0) -> bool:
        """A run while nobody else does anything; whether it deleted what it was to.

        Args:
            full_listing_days: for how long a run by retention rules builds on one that listed everything.
        """
        world, last, failed = self._world, self._collectors["c0"], self._figures.failed
        around = world.setup.around.lenient
        options = settings(True, 24.0, "month", around=around, full_listing_days=full_listing_days)
        last.start(options, None, Asked(flow))
        if self._figures.failed > failed:
            if world.oracle.commits_hold_nothing and "empty live set" in world.log[-1]:
                return False
            if "guard address form: the server gives s3://elsewhere/" in world.log[-1]:
                # Imports are staged over all objects by which the spelling of addresses could be compared.
                return False
            raise Left(f"a run in quiet times failed: {world.log[-1]}")
        assert last.run is not None
        if last.run.plan.flow is not flow:
            raise Left(f"a clean run in quiet times instead of an optimized one: {last.run.plan.why_clean}")
        if full_listing_days and not world.setup.around.also_live and last.run.plan.base_run is None:
            raise Left(f"everything was listed in quiet times: {last.run.plan.why_clean}")
        return True

    def _end_commits(self, kind: Kind) -> None:
        """Where a commit failed, somebody commits again, or resets the branch.

        By retention rules, they also commit what uncommitted data cannot hold: no run comes to its end before.
        """
        world = self._world
        # The lock of a collector that was killed expires, too.
        world.pass_time(max(versioning.longest_commit_seconds(world), LOCK_EXPIRY + 5 * MINUTE))
        for number, branch in enumerate([branch for _, branch in sorted(world.repository.branches.items())]):
            compacted = branch.compacted is not None
            by_rules = kind in ("retention", "unified", "committed") and self._spelled_otherwise(branch)
            if len(branch.tokens) > 1 or by_rules or compacted:
                world.start("w0 commit_now", versioning.commit_now(world, number, 0, 0))
                branch.tokens = branch.tokens[:1] if not branch.sealed() else branch.tokens
                # What is staged over a compacted base, and was never shown again, would be kept with it for ever.
                branch.compacted, branch.base_id = None, ""
        world.oracle.look()

    def _spelled_otherwise(self, branch: Branch) -> bool:
        staged = self._world.repository.staged(branch)
        full = [entry.address for entry in staged.values() if entry and entry.address_type == 2]
        return any(not address.startswith(self._world.repository.uri) for address in full)
