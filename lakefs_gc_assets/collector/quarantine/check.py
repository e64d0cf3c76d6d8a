"""Finds the copies in quarantine that are live again: asks what is live as a sweep does, and once more right after."""

from collections.abc import Callable, Sequence, Set
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector import guards, order
from lakefs_gc_assets.collector.clock import Moment
from lakefs_gc_assets.collector.earlier_runs import count_branches
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame.schemas import COPIES
from lakefs_gc_assets.collector.live import ownership
from lakefs_gc_assets.collector.live.current import Committed, ask_committed, heads_shown, prepare_uncommitted
from lakefs_gc_assets.collector.live.hidden_staged import clear_hidden
from lakefs_gc_assets.collector.quarantine.purge import Moved, Verdict
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.collector.sweep.recheck import require_own_namespace, require_retention_holds
from lakefs_gc_assets.errors import CollectionError


class LiveCheck(Generic[R]):
    """Finds out which copies are referenced, by what counts as live in the run of the step.

    The first call looks at everything live, which may take long, and then once more at uncommitted data and at ranges
    that are new since. A further call looks at uncommitted data and new ranges only. An address that was once live
    stays live for later calls.

    Raises GuardTripped, OrderViolation, LakeFSError or CorruptFile where it cannot be known.
    """

    def __init__(self, step: Step[R], own_error: Callable[[BaseException], CollectionError | None]) -> None:
        """For one run.

        Args:
            own_error: finds the CollectionError in what an engine raised; gives None where there is none.
        """
        self._step, self._own_error = step, own_error
        self._first: Committed | None = None
        self._known: Set[str] = IdSet()
        self._live = frozenset[str]()
        self._unsure = frozenset[str]()
        self._as_of = Moment.now(step.repository.clock)

    def __call__(self, moved: Sequence[Moved]) -> Verdict:
        """See `purge.Check`."""
        try:
            return self._decide(moved)
        except Exception as error:
            raise self._own_error(error) or error from error

    def _decide(self, moved: Sequence[Moved]) -> Verdict:
        copies = self._step.engine.table(pa.concat_tables([each.copies for each in moved]))
        if self._first is None:
            self._first, committed = self._look(copies)
            self._require_believable(self._first, bool(committed), sum(each.copies.num_rows for each in moved))
            self._look_for_hidden(copies, self._first)
        self.look_again(copies)
        return Verdict(self._live, self._unsure, self._as_of)

    def look_again(self, copies: R) -> None:
        """Looks at uncommitted data, and at ranges that were not read before."""
        self._look(copies)

    def _look(self, copies: R) -> tuple[Committed, int]:
        """Adds the copies that are live now; returns the commits, and 1 where the first look finds committed data."""
        step, engine = self._step, self._step.engine
        # Noted first: what becomes live while this looks may be missing from the answers.
        as_of = Moment.now(step.repository.clock)
        require_own_namespace(step)
        shown = heads_shown(step)
        prepared = prepare_uncommitted(step)
        found = ask_committed(step, prepared.ended_at, self._known, shown)
        require_retention_holds(found)
        if self._first is not None:
            order.require_same_source(found.source, self._first.source)
            guards.require_commits_ended(self._first.own.sealed, found.own.sealed)
        committed = engine.union(*found.addresses(step))
        live = engine.union(committed, *found.provisional_addresses(step), *prepared.addresses)
        held = engine.collect(engine.select(engine.among_exactly(copies, live), "address"))
        self._live |= frozenset(held.column("address").to_pylist())
        self._known |= found.ids
        self._as_of = as_of
        step.log(
            f"{prepared.files} files of uncommitted data, {found.own.commits:,} commits, {found.ranges:,} ranges: "
            f"{held.num_rows:,} copies are live"
        )
        return found, engine.collect(committed, limit=1).num_rows if self._first is None else 0

    def _require_believable(self, found: Committed, any_committed: bool, going: int) -> None:
        """Raises GuardTripped where the server does not look like the one that the run knew, or lost its commits."""
        repository = self._step.repository
        promised = sum(each.promised or 0 for each in found.unread)
        guards.require_committed(any_committed, promised, going)
        ownership.require_own_addresses(repository.api, repository.store, repository.namespace, found.own.heads)
        before, _ = count_branches(repository.store, self._step.plan.run_id, None, self._step.warn)
        if before is not None:
            guards.require_branches(len(found.own.heads), before, repository.settings)

    def _look_for_hidden(self, copies: R, found: Committed) -> None:
        """Looks for copies that may be staged where the server does not list them."""
        step, engine = self._step, self._step.engine
        live = engine.table(pa.table({"address": pa.array(sorted(self._live), pa.string())}))
        rest = engine.without_exactly(copies, live)
        if not engine.count(rest):
            return
        with clear_hidden(step, rest, found.own.heads, COPIES) as cleared:
            if not cleared.kept:
                return
            left = engine.without_exactly(rest, engine.select(cleared.candidates, "address"))
            kept = frozenset(engine.collect(left).column("address").to_pylist())
        self._live |= kept & cleared.live
        self._unsure = kept - cleared.live
