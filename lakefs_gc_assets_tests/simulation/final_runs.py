"""The end of a history: users stop, time passes, and a few runs must leave no unreferenced object."""

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
"""Kind of runs that a history is about."""
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
        """Stops writers, lets time pass and makes two runs that list; raises Left if garbage stays.

        With retention rules a run without a listing comes first, and must leave no garbage that it examined.
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
        """Ends collectors, writers and server faults."""
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
            # Unnamed ranges count at any age, as another repository may have them.
            kept = self._world.repository.compacted_keys
            garbage = [key for key in garbage if key not in kept]
        if last.run.plan.follows_expiry:
            return [key for key in garbage if not last.exactness.named_oddly(key)]
        if flow is not Flow.COMMITTED:
            return garbage
        listed = addresses(last.exactness.store, last.run.run_id, STEPS[0])
        return [key for key in garbage if key in listed]

    def _run_alone(self, flow: Flow, full_listing_days: float = 0) -> bool:
        """Makes a run while nothing else happens. Returns True if it did its deletions.

        Args:
            full_listing_days: how long a run by retention rules builds on one that listed everything.
        """
        world, last, failed = self._world, self._collectors["c0"], self._figures.failed
        around = world.setup.around.lenient
        options = settings(True, 24.0, "month", around=around, full_listing_days=full_listing_days)
        last.start(options, None, Asked(flow))
        if self._figures.failed > failed:
            if world.oracle.commits_hold_nothing and "empty live set" in world.log[-1]:
                return False
            if "guard address form: the server gives s3://elsewhere/" in world.log[-1]:
                # Imports replaced all objects by which the spelling of addresses could be compared.
                return False
            raise Left(f"a run in quiet times failed: {world.log[-1]}")
        assert last.run is not None
        if last.run.plan.flow is not flow:
            raise Left(f"a clean run in quiet times instead of an optimized one: {last.run.plan.why_clean}")
        if full_listing_days and not world.setup.around.also_live and last.run.plan.base_run is None:
            raise Left(f"everything was listed in quiet times: {last.run.plan.why_clean}")
        return True

    def _end_commits(self, kind: Kind) -> None:
        """Retries failed commits, or resets their branches.

        With retention rules it also commits entries that uncommitted data cannot hold, since no run could complete
        before.
        """
        world = self._world
        # The lock of a killed collector expires, too.
        world.pass_time(max(versioning.longest_commit_seconds(world), LOCK_EXPIRY + 5 * MINUTE))
        for number, branch in enumerate([branch for _, branch in sorted(world.repository.branches.items())]):
            compacted = branch.compacted is not None
            by_rules = kind in ("retention", "unified", "committed") and self._spelled_otherwise(branch)
            if len(branch.tokens) > 1 or by_rules or compacted:
                world.start("w0 commit_now", versioning.commit_now(world, number, 0, 0))
                branch.tokens = branch.tokens[:1] if not branch.sealed() else branch.tokens
                # Entries staged over a compacted base that is never listed again would be kept with it forever.
                branch.compacted, branch.base_id = None, ""
        world.oracle.look()

    def _spelled_otherwise(self, branch: Branch) -> bool:
        staged = self._world.repository.staged(branch)
        full = [entry.address for entry in staged.values() if entry and entry.address_type == 2]
        return any(not address.startswith(self._world.repository.uri) for address in full)
