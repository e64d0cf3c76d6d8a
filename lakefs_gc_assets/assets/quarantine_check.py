"""What of the quarantine is live again: asked as a sweep asks, the whole of it first and what is new right after."""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from lakefs_gc_assets.assets.live import Committed, Uncommitted, heads_shown
from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import guards, ownership, report
from lakefs_gc_assets.collection.purging import Moved, Verdict
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets.sources import hidden_staged, subtraction, tasks
from lakefs_gc_assets.sources.failures import from_worker


class LiveCheck:
    """Finds out which copies are referenced, by what counts as live in the run of the step.

    The first call looks twice: at everything, which may take its time, and again at uncommitted data and at ranges that
    are new since; a further call looks at these. Nothing that was live once is taken for garbage later.

    Raises GuardTripped, LakeFSError or CorruptFile where it cannot be known.
    """

    def __init__(self, run: Step) -> None:
        self._run = run
        self._first: Committed | None = None
        self._known = frozenset[str]()
        self._live = frozenset[str]()
        self._unsure = frozenset[str]()
        self._as_of = run.repository.clock.now()

    def __call__(self, moved: Sequence[Moved]) -> Verdict:
        """See purging.Check."""
        try:
            return self._verdict(moved)
        except Exception as error:
            raise from_worker(error) or error from error

    def _verdict(self, moved: Sequence[Moved]) -> Verdict:
        copies = tasks.of_table(self._run.spark, pa.concat_tables([each.copies for each in moved])).persist()
        try:
            if self._first is None:
                self._first, committed = self._look(copies)
                going = sum(each.copies.num_rows for each in moved)
                promised = sum(each.promised or 0 for each in self._first.unread)
                guards.require_committed(not committed.isEmpty(), promised, going)
                self._require_as_before(self._first)
                self._look_for_hidden(copies, self._first)
            self._look(copies)
            return Verdict(self._live, self._unsure, self._as_of)
        finally:
            copies.unpersist()

    def _look(self, copies: DataFrame) -> tuple[Committed, DataFrame]:
        """Uncommitted data, and ranges that were not read before."""
        run = self._run
        shown = heads_shown(run)
        prepared = Uncommitted.prepare(run)
        found = Committed.ask(run, prepared.ended_at, self._known, shown)
        for guard in found.definition.guards if found.definition else ():
            raise guard
        if self._first is not None:
            if found.source != self._first.source:
                raise OrderViolation(
                    f"commits came from the {self._first.source}, then from the {found.source}: repeat"
                )
            guards.require_commits_ended(self._first.own.sealed, found.own.sealed)
        self._as_of = run.repository.clock.now()
        committed = tasks.together(found.addresses(run))
        live = tasks.together([*prepared.addresses, committed])
        held = subtraction.among_exactly(copies, live).select("address").distinct().collect()
        self._live |= {row.address for row in held}
        self._known |= found.ids
        run.log(
            f"{prepared.files} files of uncommitted data, {found.own.commits:,} commits, {found.ranges:,} ranges: "
            f"{len(held):,} copies are live"
        )
        return found, committed

    def _require_as_before(self, found: Committed) -> None:
        """That the server is the one the run knew, as far as can be told."""
        repository = self._run.repository
        ownership.require_own_addresses(repository.api, repository.store, repository.namespace, found.own.heads)
        ended = report.read(repository.store, self._run.plan.run_id)
        if ended is not None and "branches" in ended.counts:
            guards.require_branches(len(found.own.heads), ended.counts["branches"], repository.settings)

    def _look_for_hidden(self, copies: DataFrame, found: Committed) -> None:
        """Copies that may be staged where the server does not list them."""
        run = self._run
        live = tasks.of_addresses(run.spark, self._live)
        rest = subtraction.without_exactly(copies, live)
        if rest.isEmpty():
            return
        cleared = hidden_staged.clear(rest, run.references(), run.repository, found.own.heads, run.log)
        if not cleared.kept:
            return
        kept = {
            row.address for row in subtraction.without_exactly(rest, cleared.candidates).select("address").collect()
        }
        self._live |= kept & cleared.live
        self._unsure = frozenset(kept - cleared.live)
