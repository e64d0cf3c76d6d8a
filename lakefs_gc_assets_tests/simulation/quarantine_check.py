"""What of the quarantine is live again: `assets.quarantine_check` on plain rows."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from lakefs_gc_assets.collection import guards, ownership
from lakefs_gc_assets.collection.commits import LiveCommits
from lakefs_gc_assets.collection.purging import Moved, Verdict
from lakefs_gc_assets.errors import OrderViolation
from lakefs_gc_assets_tests.simulation.marking import Marking
from lakefs_gc_assets_tests.simulation.plain import Row


class QuarantineCheck:
    """Finds out which copies are referenced, by what counts as live in a run; the first time it looks twice."""

    def __init__(self, run: Marking, between: Callable[[], None]) -> None:
        """For a run whose plan is known.

        Args:
            between: is called between the first look and the second.
        """
        self._run, self._between = run, between
        self._first: LiveCommits | None = None
        self._known = frozenset[str]()
        self._live: set[str] = set()
        self._unsure: set[str] = set()
        self._as_of = run.repository.clock.now()

    def __call__(self, moved: Sequence[Moved]) -> Verdict:
        """See `purging.Check`."""
        copies = [row for each in moved for row in each.copies.to_pylist()]
        if self._first is None:
            self._look_first(copies)
            self._between()
            self.look_again(copies)
        else:
            self.look_again(copies)
        return Verdict(frozenset(self._live), frozenset(self._unsure), self._as_of)

    def _look_first(self, copies: Sequence[Row]) -> None:
        run = self._run
        self._first, committed, promised = self._look(copies)
        guards.require_committed(bool(committed), promised or 0, len(copies))
        repository = run.repository
        ownership.require_own_addresses(repository.api, repository.store, repository.namespace, self._first.heads)
        rest = [row for row in copies if row["address"] not in self._live]
        if rest:
            staged, self._unsure = run.hidden(rest, self._first.heads)
            self._live |= staged

    def look_again(self, copies: Sequence[Row]) -> None:
        """At uncommitted data, and at ranges that were not read before."""
        self._look(copies)

    def _look(self, copies: Sequence[Row]) -> tuple[LiveCommits, Collection[str], int | None]:
        run = self._run
        shown = run.heads_shown()
        prepared = run.prepare()
        live = self._live_commits(prepared.ended_at, shown)
        if self._first is not None:
            if live.source is not self._first.source:
                raise OrderViolation(f"commits came from the {self._first.source}, then from the {live.source}")
            guards.require_commits_ended(self._first.sealed, live.sealed)
        self._as_of = run.repository.clock.now()
        unread = run.unread(live, self._known)
        committed = run.committed(unread)
        found = committed | run.staged(prepared.files)
        self._live |= {row["address"] for row in copies} & found
        self._known |= unread.ids
        run.rechecked()
        return live, committed, unread.promised

    def _live_commits(self, prepared_until: datetime, shown: Collection[str]) -> LiveCommits:
        run = self._run
        if not run.plan.flow.by_retention:
            return run.live_commits(prepared_until)
        found = run.live_by_rules(prepared_until, shown)
        for guard in found.guards:
            raise guard
        return found.live
