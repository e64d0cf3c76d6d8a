"""Reasons for which a run must not delete, derived from the world and from the servers' answers to the run.

Some guards trip before any object is lost, or when none is in these small worlds: a branch fewer, a gap in the listing,
a rule for a branch that does not exist. If the settings of a run enable such a guard, any deletion that it had to
refuse is a violation.
"""

import math
from dataclasses import dataclass, field

from lakefs_gc_assets.collector.commits import CommitSource
from lakefs_gc_assets.collector.frame.files import read_manifest
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, STEPS
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation.oracle import Violation
from lakefs_gc_assets_tests.simulation.servers import ServerAnswers
from lakefs_gc_assets_tests.simulation.stored_results import addresses
from lakefs_gc_assets_tests.simulation.world import World

_ASKED_OF_A_HEAD = 10
"""Entries of a branch that a run requests to see how the server spells addresses."""


@dataclass
class Refusals:
    """Reasons for which runs must not delete, by run id.

    Attributes:
        marked_at: when each run stored its candidates, true time.
        by_mark, by_recheck: reasons of the mark and of the last recheck.
        missing: live objects missing from each run's listing, in slices that it listed.
        staged: objects that were uncommitted at the mark and not committed anywhere.
        loose: staged objects without any reference when the last recheck began.
        aliased: runs at whose mark the servers spelled addresses in another way than the namespace.
        restored_at: when objects last came back from quarantine.
    """

    world: World
    marked_at: dict[str, float] = field(default_factory=dict)
    by_mark: dict[str, str] = field(default_factory=dict)
    by_recheck: dict[str, str] = field(default_factory=dict)
    missing: dict[str, frozenset[str]] = field(default_factory=dict)
    staged: dict[str, frozenset[str]] = field(default_factory=dict)
    loose: dict[str, frozenset[str]] = field(default_factory=dict)
    aliased: set[str] = field(default_factory=set)
    restored_at: float = -math.inf

    def listing(self, plan: Plan) -> None:
        """A run begins to list."""
        world = self.world
        if world.oracle.lost_objects and plan.flow in (Flow.CLEAN, Flow.UNIFIED) and plan.base_run is None:
            lost = world.oracle.lost_objects - world.bucket.objects.keys()
            self.missing[plan.run_id] = frozenset(key for key in lost if self._must_be_listed(plan, key))

    def _must_be_listed(self, plan: Plan, key: str) -> bool:
        """True if a key is in a slice that the run lists, and was named before its cutoff."""
        parsed, cutoff = layout.parse(key), plan.cutoff.timestamp()
        folder = key.rpartition("/")[0] + "/"
        slice_id = folder.split("/")[-2]
        if parsed.issued_at is None or not layout.is_xid(slice_id) or folder != f"data/{slice_id}/":
            return False
        if parsed.issued_at >= cutoff or layout.created_at(slice_id) >= cutoff:
            return False
        if plan.base_run is None and layout.window(slice_id, plan.slice_window) not in plan.windows:
            return False
        return bool(self.world.bucket.keys_below(folder))

    def marked(self, plan: Plan, settings: CollectionSettings, reported: ServerAnswers, store: ObjectStore) -> None:
        """A run has stored its candidates."""
        run_id, world = plan.run_id, self.world
        self.marked_at[run_id] = world.time.now
        self.by_recheck.pop(run_id, None)
        why = self._why_reported(plan, settings, reported, world.branches_before(run_id))
        if settings.max_missing_share < 1 and (lacking := self._lacking(run_id, reported, store)):
            why = f"its listing lacked {min(lacking)}, which a branch holds"
        self.aliased.discard(run_id)
        if world.oracle.aliased_since is not None and self._shows_an_address():
            self.aliased.add(run_id)
        self.by_mark.pop(run_id, None)
        if why is not None:
            self.by_mark[run_id] = why
        if settings.max_uncommitted_loss_share == 0:
            staged = addresses(store, run_id, STEPS[1])
            self.staged[run_id] = frozenset(key for key in staged if self._only_staged(key))

    def _only_staged(self, key: str) -> bool:
        oracle = self.world.oracle
        return key not in oracle.in_commits and (key in oracle.firm_since or key in oracle.soft)

    def _is_gone(self, key: str) -> bool:
        oracle = self.world.oracle
        held = key in oracle.firm_since or key in oracle.soft or key in oracle.in_commits
        # A compacted base keeps entries deleted or replaced since, and its files stay: they count as live.
        held = held or key in self.world.repository.compacted_keys
        return not held and not oracle.being_committed(key)

    def rechecking(self, plan: Plan) -> None:
        """A run begins a recheck."""
        self.loose[plan.run_id] = frozenset(key for key in self.staged.get(plan.run_id, ()) if self._is_gone(key))

    def rechecked(
        self,
        plan: Plan,
        settings: CollectionSettings,
        reported: ServerAnswers,
        store: ObjectStore,
        *,
        dump_refused: bool,
    ) -> None:
        """A run has rechecked, and goes on to delete."""
        run_id = plan.run_id
        self.by_recheck.pop(run_id, None)
        marked = read_manifest(store, run_id, COMMITTED_DF).figures
        why = None if dump_refused else self._why_reported(plan, settings, reported, len(marked.heads))
        if dump_refused and marked.commit_source == CommitSource.REFS_DUMP:
            why = "commits came from a refs dump at the mark, and no dump was given at the recheck"
        if gone := [key for key in self.loose.get(run_id, ()) if self._is_gone(key)]:
            why = f"{min(gone)} was uncommitted at the mark, and is gone"
        if why is not None:
            self.by_recheck[run_id] = why

    def _why_reported(
        self, plan: Plan, settings: CollectionSettings, reported: ServerAnswers, branches: int
    ) -> str | None:
        """The reason why a run must not act on the branches and rules that the servers reported, or None."""
        if settings.max_branch_loss_share == 0 and reported.branches:
            heads = [reported.commits.get(commit_id) for commit_id in reported.branches.values()]
            count = sum(head is None or head.metarange_id != "" for head in heads)
            if count < branches:
                return f"{count} branches are left of {branches}"
        if plan.flow.by_retention and not settings.allow_rules_of_unknown_branches:
            named = reported.rules.branches.keys() if reported.asked_rules and reported.rules is not None else set()
            if unknown := sorted(named - reported.branches.keys()):
                return f"rules name {unknown[0]}, and there is no such branch"
        return None

    def _lacking(self, run_id: str, reported: ServerAnswers, store: ObjectStore) -> frozenset[str]:
        """Objects missing from a run's listing although a branch holds them and no run has deleted them."""
        missing = self.missing.get(run_id)
        if not missing:
            return frozenset()
        heads = (self.world.repository.commits[commit_id] for commit_id in reported.branches.values())
        held = {entry.address for head in heads for entry in head.entries.values() if entry.address_type == 1}
        deleted = {key for watched in self.world.oracle.runs.values() for key in watched.accepted}
        return missing & (held | addresses(store, run_id, STEPS[1])) - deleted

    def _shows_an_address(self) -> bool:
        """True if a branch has an own object by which a run can see how addresses are spelled."""
        repository = self.world.repository
        for branch in repository.branches.values():
            head, staged = repository.head(branch), repository.staged(branch)
            own = [path for path in sorted(head) if head[path].address_type == 1]
            own = [path for path in own if head[path].address.startswith("data/")]
            if any(staged.get(path, head[path]) is not None for path in own[:_ASKED_OF_A_HEAD]):
                return True
        return False

    def require_none(self, run_id: str, asked_at: float) -> None:
        """Raises Violation if there is a reason against the deletion that a run requested."""
        marked_at, aliased_since = self.marked_at[run_id], self.world.oracle.aliased_since
        why = self.by_mark.get(run_id) or self.by_recheck.get(run_id)
        spelled_so = aliased_since is not None and aliased_since <= marked_at
        if run_id in self.aliased and spelled_so and self._shows_an_address():
            why = "the server spells addresses by an access point"
        if marked_at <= self.restored_at < asked_at:
            why = "objects came back from quarantine after its mark"
        if why is not None:
            raise Violation(f"run {run_id} deletes although {why}")
