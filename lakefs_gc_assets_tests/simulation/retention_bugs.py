"""Seeded bugs of runs by retention rules: what a hurried collector takes for expired, see `bugs`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from lakefs_gc_assets.collection import active_commits, main_ancestry, receipts, retention, run_folder, server_commits
from lakefs_gc_assets.collection.active_commits import Graph
from lakefs_gc_assets.collection.commits import LiveCommits
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.policy import Policy
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.retention import LiveDefinition, Retention
from lakefs_gc_assets.collection.server_commits import ServerCommits
from lakefs_gc_assets.errors import LakeFSError
from lakefs_gc_assets.lakefs.commit_columns import CommitColumns, Integers
from lakefs_gc_assets.lakefs.facts import RetentionRules
from lakefs_gc_assets_tests.simulation.bugs import Bug, replaced
from lakefs_gc_assets_tests.simulation.clocks import moment
from lakefs_gc_assets_tests.simulation.collector import Run
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.stepping import latest_clock

_ZERO = RetentionRules(0, {"-": 0})
_NONE_LISTED = ServerCommits("", pa.array([], pa.string()), None)


class OtherRules(Run):
    """Takes what it is told about rules in a way of its own."""

    def rules(self, ask: Callable[[], RetentionRules | None]) -> RetentionRules | None:
        """The rules that it goes by."""
        return ask()

    def live_by_rules(self, prepared_until: datetime, shown: Collection[str] = ()) -> LiveDefinition:
        told = self.repository
        self.repository = replace(told, api=_Misled(told.api, lambda: self.rules(told.api.retention_rules)))
        try:
            return super().live_by_rules(prepared_until, shown)
        finally:
            self.repository = told


class _Misled:
    """A server whose rules are others."""

    def __init__(self, api: Any, rules: Callable[[], RetentionRules | None]) -> None:
        self._api = api
        self.retention_rules = rules

    def __getattr__(self, name: str) -> Any:
        return getattr(self._api, name)


class OfTheMark(OtherRules):
    """Rechecks by the rules and the server's list that there were at the mark."""

    def marked_by_rules(self, prepared_until: datetime) -> LiveDefinition:
        found = super().marked_by_rules(prepared_until)
        self.store("rules", (), (), {"rules": self.told().rules})
        return found

    def live_again(self) -> set[str]:
        if self.plan.flow.by_retention:
            self.rules = lambda ask: self.stored("rules").figures["rules"]  # type: ignore[method-assign]
        with replaced((retention, "server_commits", lambda *arguments: _NONE_LISTED))():
            return super().live_again()


class ErrorIsNone(OtherRules):
    """Takes rules that cannot be read for none."""

    def rules(self, ask: Callable[[], RetentionRules | None]) -> RetentionRules | None:
        try:
            return ask()
        except LakeFSError:
            return None


class ErrorIsZero(OtherRules):
    """Takes rules that cannot be read for zero days."""

    def rules(self, ask: Callable[[], RetentionRules | None]) -> RetentionRules | None:
        try:
            return ask()
        except LakeFSError:
            return _ZERO


class NoneIsZero(OtherRules):
    """Takes no rules for zero days."""

    def rules(self, ask: Callable[[], RetentionRules | None]) -> RetentionRules | None:
        return ask() or _ZERO


class NewCommitsAlone(Run):
    """Rechecks what commits made since the mark hold: not what old ones do that count again."""

    def marked_by_rules(self, prepared_until: datetime) -> LiveDefinition:
        found = super().marked_by_rules(prepared_until)
        self.store("expired", (), (), {"metaranges": frozenset(found.expired_metaranges)})
        return found

    def live_commits(self, prepared_until: datetime, shown: Collection[str] = ()) -> LiveCommits:
        live = super().live_commits(prepared_until, shown)
        if not self.plan.flow.by_retention:
            return live
        expired = self.stored("expired").figures["metaranges"]
        return replace(live, metarange_ids=tuple(name for name in live.metarange_ids if name not in expired))


class UncommittedAlone(Run):
    """Rechecks uncommitted data only."""

    def live_again(self) -> set[str]:
        if not self.plan.flow.by_retention:
            return super().live_again()
        found = self.staged(self.prepare().files)
        self.rechecked()
        return found


class LatestClock(Run):
    """Counts ages back from the clock that is ahead of the others."""

    def live_by_rules(self, prepared_until: datetime, shown: Collection[str] = ()) -> LiveDefinition:
        plan, own = self.plan, self.repository.clock.now()
        ahead = max(latest_clock(self.repository) - own, timedelta())
        self.plan = replace(plan, earliest_clock=plan.started_at + ahead)
        try:
            return super().live_by_rules(prepared_until, shown)
        finally:
            self.plan = plan


class UncommittedIgnored(Run):
    """Takes for garbage what is staged, where only expired commits hold it."""

    def staged(self, files: Sequence[str]) -> set[str]:
        return set() if self.plan.flow is Flow.COMMITTED else super().staged(files)


class ActiveNotSubtracted(Run):
    """Takes for garbage what expired ranges hold, whether or not an active one holds it too."""

    def unreferenced(self, rows: Sequence[Row], staged: frozenset[str], committed: frozenset[str]) -> list[Row]:
        return super().unreferenced(rows, staged, frozenset() if self.plan.flow is Flow.COMMITTED else committed)


class AgedByCommit(Run):
    """Takes the date of a commit for the age of what it holds."""

    def expired_objects(self) -> list[Row]:
        dates: dict[str, datetime] = {}
        rows = super().expired_objects()
        for commit in self.told().commits.values():
            for record in self.ranges((commit.metarange_id,) if commit.metarange_id else ()):
                for entry in self.live_files().entries(record).to_pylist():
                    made = moment(commit.creation_date)
                    dates[entry["address"]] = min(made, dates.get(entry["address"], made))
        return [{**row, **dict.fromkeys(("issued_at", "last_modified"), dates[row["address"]])} for row in rows]


def _with_receipts(run: Run, outcomes: Collection[str]) -> frozenset[str]:
    store = run.repository.store
    earlier = [run_id for run_id in run_folder.newest_runs(store) if run_id != run.run_id]
    rows = (row for run_id in earlier for row in receipts.read(store, run_id).to_pylist())
    return frozenset(row["address"] for row in rows if row["outcome"] in outcomes)


class FailedTakenForGone(Run):
    """Does not ask again about what an earlier run could not delete."""

    def deleted_before(self) -> frozenset[str]:
        return super().deleted_before() | _with_receipts(self, (Outcome.FAILED,))


class BackTakenForGone(Run):
    """Does not look at what was brought back."""

    def deleted_before(self) -> frozenset[str]:
        return super().deleted_before() | _with_receipts(self, receipts.GONE)


def _last_parents(commits: CommitColumns) -> Integers:
    return _main_parents(replace(commits, versions=np.zeros(len(commits), np.int64)))


def _not_after(commits: CommitColumns, now: datetime, longest: Integers) -> active_commits.Flags:
    found: active_commits.Flags = _after(commits, now, longest + 1) & (
        commits.seconds >= active_commits._moment(now)[0] - longest
    )
    return found


def _without_leaves(cls: type[Graph], commits: CommitColumns, branches: Mapping[str, str]) -> Graph:
    return replace(_graph_of(commits, branches), leaves=np.empty(0, np.int64))


def _leaves_as_heads(graph: Graph, *more: Any) -> Integers:
    kept_by = _walked(graph, *more)
    kept_by[graph.leaves] = graph.leaves
    return kept_by


def _own_walk_first(main_parents: Any, longest: Any, walks: Any) -> int:
    began = longest.copy(), walks.copy()
    visited = _spread(main_parents, longest, walks)
    for through, start in zip((longest, walks), began, strict=True):
        own = began[0] >= 0
        through[own] = start[own]
    return visited


def _listed_alone(*arguments: Any) -> Retention:
    found = _retention(*arguments)
    if found.active is None:
        return found
    flags = np.zeros(len(found.flags), np.bool_)
    flags[found.listed] = True
    return replace(found, flags=flags)


def _no_tags(settings: Any) -> Policy:
    return Policy(keep_tags=False)


def _nothing_if_refused(*arguments: Any) -> ServerCommits:
    try:
        return _server_commits(*arguments)
    except LakeFSError:
        return _NONE_LISTED


_after, _walked, _spread = active_commits._after, active_commits._walked, main_ancestry.spread
_main_parents, _graph_of, _retention = active_commits._main_parents, Graph.of, retention.retention
_server_commits = server_commits.server_commits

RETENTION_BUGS: dict[str, Bug] = {
    "rules read at the mark alone": Bug(run=OfTheMark),
    "rules that cannot be read taken for none": Bug(run=ErrorIsNone),
    "rules that cannot be read taken for zero days": Bug(run=ErrorIsZero),
    "no rules taken for zero days": Bug(replaced((retention, "server_commits", _nothing_if_refused)), NoneIsZero),
    "recheck of new commits alone": Bug(run=NewCommitsAlone),
    "recheck of uncommitted data alone": Bug(run=UncommittedAlone),
    "ages from the clock ahead of the others": Bug(run=LatestClock),
    "age not strict": Bug(replaced((active_commits, "_after", _not_after))),
    "last parents followed": Bug(replaced((active_commits, "_main_parents", _last_parents))),
    "dangling commits ignored": Bug(replaced((Graph, "of", classmethod(_without_leaves)))),
    "dangling commits taken for heads": Bug(replaced((active_commits, "_walked", _leaves_as_heads))),
    "a walk's own rule instead of the longest": Bug(replaced((main_ancestry, "spread", _own_walk_first))),
    "the server's list alone": Bug(replaced((retention, "retention", _listed_alone))),
    "tags forgotten": Bug(replaced((retention, "policy_of", _no_tags))),
    "uncommitted data ignored": Bug(run=UncommittedIgnored),
    "what active commits hold not subtracted": Bug(run=ActiveNotSubtracted),
    "age taken from the commit's date": Bug(run=AgedByCommit),
    "failed deletions taken for done": Bug(run=FailedTakenForGone),
    "what was brought back taken for gone": Bug(run=BackTakenForGone),
}
"""By name."""
