"""Seeded bugs of optimized runs: what a hurried collector carries from one run to the next, see `bugs`.

None is impossible by construction, but three take more than one line: a carry is part of the report, so to leave one
without success takes another report; a run limited to some windows leaves none at all; and what is listed next, what is
open and what is carried as committed all come from one set of settled slices, taken from no frame.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from lakefs_gc_assets.collection import carry as carries
from lakefs_gc_assets.collection import commits, failing, predecessor, ranges_read, report, run_folder, universe
from lakefs_gc_assets.collection import plan as plans
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.commits import CommitSource, Dump, LiveCommits
from lakefs_gc_assets.collection.plan import Plan
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.simulation.bucket import md5
from lakefs_gc_assets_tests.simulation.bugs import Bug, replaced
from lakefs_gc_assets_tests.simulation.carrying import Inherited
from lakefs_gc_assets_tests.simulation.collector import Run
from lakefs_gc_assets_tests.simulation.frames import Frame
from lakefs_gc_assets_tests.simulation.marking import Unread
from lakefs_gc_assets_tests.simulation.plain import Row

_dumps: list[Dump] = []


class NewByDate(Run):
    """Reads what commits hold that are dated after the newest one known to the run before."""

    def unread_at_mark(self, live: LiveCommits, known: frozenset[str]) -> Unread:
        if live.source is not CommitSource.REFS_DUMP:
            return super().unread_at_mark(live, known)
        before, found = self.inherited(), _dumps[-1].commits
        self.store("newest", (), (), {"seconds": max(found.seconds.tolist(), default=0)})
        if before is None:
            return super().unread_at_mark(live, known)
        limit = self.limit(before)
        dated = zip(found.metarange_ids.to_pylist(), found.seconds.tolist(), strict=True)
        new = {metarange_id for metarange_id, seconds in dated if seconds > limit}
        chosen = tuple(name for name in live.metarange_ids if name in new)
        return super().unread_at_mark(replace(live, metarange_ids=chosen), known)

    def limit(self, before: Inherited) -> float:
        """The date after which commits are new."""
        newest: float = self.shelf[before.run_id, "newest"].figures["seconds"]
        return newest


class NewByTimestamp(NewByDate):
    """Reads what commits hold that are dated after the start of the run before."""

    def limit(self, before: Inherited) -> float:
        return before.report.started_at.timestamp()


def _noting_dumps() -> AbstractContextManager[object]:
    dumped = commits.complete_dump

    def noting(*arguments: Any, **named: Any) -> Dump:
        _dumps[:] = [dumped(*arguments, **named)]
        return _dumps[0]

    return replaced((commits, "complete_dump", noting))()


class StopsAtLastSlice(Run):
    """Lists slices that are newer than the newest one that the run before listed."""

    def listing(self, before: Inherited | None) -> universe.Listing:
        if before is None:
            return super().listing(before)
        store, last = self.repository.store, before.report.last_read_slice
        older = frozenset(name for name in universe.folders(store).slices if name >= last)
        return universe.listing(store, self.plan.cutoff, older)


class Unchecked(Run):
    """Does not look whether what it leaves contradicts itself."""

    def contradiction(
        self, there: Sequence[Row], committed: frozenset[str], deleted: frozenset[str], waiting: set[str]
    ) -> str | None:
        return None


class OpenNotSubtracted(Unchecked):
    """Carries as open what commits hold."""

    def waiting(
        self, rows: Sequence[Row], settled: frozenset[str], committed: frozenset[str], deleted: frozenset[str]
    ) -> list[Row]:
        return super().waiting(rows, settled, frozenset(), deleted)


class YoungNotSubtracted(Unchecked):
    """Carries all objects that are too young, also those that commits hold."""

    def waiting(
        self, rows: Sequence[Row], settled: frozenset[str], committed: frozenset[str], deleted: frozenset[str]
    ) -> list[Row]:
        young = {row["address"] for row in rows if row["last_modified"] >= self.plan.cutoff}
        return super().waiting(rows, settled, committed - young, deleted)


class RecheckMarkedAsRead(Run):
    """Notes the ranges that a recheck reads as known, and keeps none of their addresses."""

    def unread(self, live: LiveCommits, known: frozenset[str]) -> Unread:
        found = super().unread(live, known)
        marked = self.shelf.get((self.run_id, "candidates"))
        if marked is not None and marked.span.attempt == self.plan.attempt:
            store, committed = self.repository.store, self.stored("committed_df")
            sha256 = ranges_read.write(store, self.run_id, self.plan.attempt, known | found.ids)
            figures = {**committed.figures, "read_sha256": sha256}
            self.replace_figures(committed, figures)
        return found

    def replace_figures(self, frame: Frame, figures: dict[str, Any]) -> None:
        """Changes what a frame says of itself in place: others hold the very frame."""
        object.__setattr__(frame, "figures", figures)


class SettledAnew(Run):
    """Settles only slices that it lists itself."""

    def settled_after(self) -> frozenset[str]:
        listed = carries.read_listed_slices(self.repository.store, self.run_id, self.plan.attempt)
        return carries.settled(frozenset(), listed, self.plan.cutoff, self.plan.skew)


class FailedDropped(Unchecked):
    """Does not ask again about what could not be deleted."""

    def dealt_with(self, outcomes: Sequence[Row]) -> frozenset[str]:
        ended = (Outcome.ACCEPTED, Outcome.FAILED)
        return frozenset(row["address"] for row in outcomes if row["outcome"] in ended)


class DryRunCounts(Unchecked):
    """Builds on a dry run as if it had deleted its candidates."""

    def reason_for_none(self, swept: bool) -> str | None:
        return super().reason_for_none(swept=True)

    def dealt_with(self, outcomes: Sequence[Row]) -> frozenset[str]:
        ended = (Outcome.ACCEPTED, Outcome.DRY_RUN)
        return frozenset(row["address"] for row in outcomes if row["outcome"] in ended)


def _newest_of_all(store: ObjectStore, before: str | None = None, among: int | None = None) -> Plan | None:
    run_ids: Iterator[str] = run_folder.newest_runs(store)
    newest = next((run_id for run_id in run_ids if before is None or run_id > before), None)
    return None if newest is None else plans.read(store, newest)


class CarryBeforeSweep(Run):
    """Leaves what the next run builds on before it deletes, as if all went well."""

    def swept(self, candidates: Frame) -> list[Row]:
        left = self.leave(self.decided(candidates.rows, Outcome.ACCEPTED), swept=True)
        early = report.failed(self.plan, self.repository.clock.now(), "it has not ended")
        source = self.stored("committed_df").figures["commit_source"]
        carry = left if isinstance(left, Carry) else None
        report.write(self.repository.store, replace(early, commit_source=source, carry=carry))
        return super().swept(candidates)


class FirstRow(Run):
    """Lets the next run list what is newer than some row's slice, which it takes for the newest one."""

    def leave(self, outcomes: Sequence[Row], swept: bool) -> Carry | str:
        left = super().leave(outcomes, swept)
        if not isinstance(left, Carry):
            return left
        store, attempt, before = self.repository.store, self.plan.attempt, self.inherited()
        listed = carries.read_listed_slices(store, self.run_id, attempt)
        rows = sorted(self.stored("store_df").rows, key=lambda row: md5(row["address"].encode()))
        first = next((row["slice"] for row in rows if row["slice"] in listed), "")
        older = frozenset(name for name in listed if name >= first) | (before.settled if before else frozenset())
        return replace(left, settled_sha256=carries.write_settled(store, self.run_id, attempt, older))


class WindowsDropped(Unchecked):
    """A run limited to some windows leaves what it found in them."""

    def reason_for_none(self, swept: bool) -> str | None:
        plan = self.plan
        self.plan = replace(plan, windows=tuple({row["slice_window"] for row in self.stored("store_df").rows}))
        try:
            return super().reason_for_none(swept)
        finally:
            self.plan = plan

    def waiting(
        self, rows: Sequence[Row], settled: frozenset[str], committed: frozenset[str], deleted: frozenset[str]
    ) -> list[Row]:
        inside = [row for row in rows if row["slice_window"] in self.plan.windows]
        return super().waiting(inside, settled, committed, deleted)


_NO_REPORT: Callable[..., None] = lambda *arguments: None  # noqa: E731

CHAIN_BUGS: dict[str, Bug] = {
    "new commits chosen by date": Bug(_noting_dumps, NewByDate),
    "new commits chosen by the last run's timestamp": Bug(_noting_dumps, NewByTimestamp),
    "stop at the last read slice": Bug(run=StopsAtLastSlice),
    "open without subtracting committed": Bug(run=OpenNotSubtracted),
    "too young without subtracting committed": Bug(run=YoungNotSubtracted),
    "ranges of the recheck marked as read": Bug(run=RecheckMarkedAsRead),
    "settled recomputed and shrinking": Bug(run=SettledAnew),
    "carried committed left out": Bug(replaced((Inherited, "committed", lambda self: ()))),
    "failed deletions dropped": Bug(run=FailedDropped),
    "a dry run as predecessor": Bug(replaced((predecessor, "newest_sweep", _newest_of_all)), DryRunCounts),
    "carry without success": Bug(replaced((failing, "store_report", _NO_REPORT)), CarryBeforeSweep),
    "first slice from an unsorted frame": Bug(run=FirstRow),
    "rows outside the run's windows dropped from the carry": Bug(run=WindowsDropped),
}
"""By name; a sentence of the list for optimized runs each."""
