"""Seeded bugs: what a hurried collector does wrong, each of which the simulation must notice.

Each takes one rule out, together with what would end the run, or make up for it by chance. None is a setting of the
product: they replace functions, or steps of the simulated collector.
"""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pyarrow as pa

from lakefs_gc_assets.collection import (
    commits,
    cutoff,
    guards,
    lock,
    order,
    receipts,
    sweep,
    uncommitted,
)
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.cutoff import Clocks
from lakefs_gc_assets.collection.eligibility import Kept
from lakefs_gc_assets.collection.live_files import LiveFiles
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.report import Report
from lakefs_gc_assets.collection.sweep import Sweep
from lakefs_gc_assets.errors import StorageError
from lakefs_gc_assets.lakefs import addresses, refs
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.facts import UncommittedPage
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets_tests.simulation.collector import Run
from lakefs_gc_assets_tests.simulation.frames import Frame
from lakefs_gc_assets_tests.simulation.marking import Unread
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.servers import Servers

Patches = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Bug:
    """One bug: functions replaced while a history is played, and the collector that plays it."""

    patches: Patches = nullcontext
    run: type[Run] = Run


def replaced(*replacements: tuple[object, str, object]) -> Patches:
    @contextmanager
    def patches() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, replacement in replacements:
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    return patches


class CommittedFirst(Run):
    """Reads commits, then uncommitted data."""

    def make_uncommitted_df(self) -> None:
        live = self.live_commits(self.stored("store_df").span.ended_at)
        unread = self.unread(live, frozenset())
        addresses = self.committed(unread)
        figures = {"source": live, "unread": unread, "addresses": addresses}
        super().make_uncommitted_df()
        self.store("early", (), (), figures)

    def make_committed_df(self) -> None:
        early = self.stored("early").figures
        rows = [{"address": address} for address in sorted(early["addresses"])]
        self.store_committed(rows, replace(early["source"], started_at=self.started_at), early["unread"], frozenset())


class ListingLate(Run):
    """Lists the store after uncommitted data was prepared."""

    def make_store_df(self) -> None:
        self.began_listing(self.run_id)
        self.store("store_df", ())

    def make_uncommitted_df(self) -> None:
        prepared = self.prepare()
        super().make_store_df()
        rows = [{"address": address} for address in sorted(self.staged(prepared.files))]
        self.store("uncommitted_df", rows, (self.stored("store_df"),), {"server_run_ids": ()})


class HiddenIgnored(Run):
    """Does not ask for staged entries that the server does not list."""

    def without_hidden(self, eligible: list[Row], heads: dict[str, str], kept: dict[str, int]) -> list[Row]:
        return eligible


class LastModifiedAlone(Run):
    """Takes an object's age from the store alone."""

    def kept_because(self, row: Row, sighted: Collection[str]) -> Kept | None:
        timeless = None if row["issued_at"] is None else datetime.min.replace(tzinfo=row["issued_at"].tzinfo)
        return super().kept_because({**row, "issued_at": timeless}, sighted)


class NameAlone(Run):
    """Takes an object's age from its name alone."""

    def kept_because(self, row: Row, sighted: Collection[str]) -> Kept | None:
        named = row["last_modified"] if row["issued_at"] is None else row["issued_at"]
        return super().kept_because({**row, "last_modified": named}, sighted)


class MultipartSeenOnce(Run):
    """Trusts the date of an object uploaded in parts at once."""

    def kept_because(self, row: Row, sighted: Collection[str]) -> Kept | None:
        return super().kept_because(row, {row["address"]})


class AttemptsMixed(Run):
    """A new attempt takes what an earlier one read of uncommitted data."""

    def make_uncommitted_df(self) -> None:
        if (self.run_id, "uncommitted_df") not in self.shelf:
            super().make_uncommitted_df()

    def store(
        self,
        name: str,
        rows: Sequence[Row],
        inputs: tuple[Frame, ...] = (),
        figures: Mapping[str, object] | None = None,
        started_at: datetime | None = None,
    ) -> Frame:
        inputs = tuple(replace(given, span=replace(given.span, attempt=self.plan.attempt)) for given in inputs)
        for given in inputs:
            self.shelf[self.run_id, given.span.frame] = given
        return super().store(name, rows, inputs, figures, started_at)


class NoNewCommits(Run):
    """Rechecks uncommitted data only."""

    def live_again(self) -> set[str]:
        found = self.staged(self.prepare().files)
        self.rechecked()
        return found


class OldRecheck(Run):
    """Rechecks when it marks, and deletes whenever the sweep comes."""

    def make_candidates(self) -> None:
        super().make_candidates()
        if self.stored("candidates").rows:
            self.wait_for_recheck()
            self.store("recheck", (), (), {"live": self.live_again()})

    def live_before(self, done: Collection[str]) -> set[str]:
        return set(self.stored("recheck").figures["live"])


class ResumeUnchecked(Run):
    """Goes on with a sweep without another recheck."""

    def live_before(self, done: Collection[str]) -> set[str]:
        return set() if done else super().live_before(done)


class HashIntersected(Run):
    """Looks candidates up among receipts by a hash of a few bits."""

    def remaining(self, rows: Sequence[Row], done: Collection[str]) -> list[Row]:
        hashes = {sum(address.encode()) % 4 for address in done}
        return [row for row in rows if sum(row["address"].encode()) % 4 not in hashes]


class RangeSkipped(Run):
    """Goes on where a range cannot be read."""

    def committed(self, unread: Unread) -> set[str]:
        found: set[str] = set()
        for record in unread.records:
            with suppress(StorageError):
                found |= super().committed(replace(unread, records=(record,)))
        return found


class SuccessClaimed(Run):
    """Calls a run a success whose deletions failed in part."""

    def report_of(self, outcomes: Sequence[Row], sweep: bool, left: Carry | str) -> Report:
        return replace(super().report_of(outcomes, sweep, left), success=True)


class EarliestClock(Run):
    """Takes a mark's age from the clock that is behind the others."""

    def require_fresh_mark(self) -> None:
        own = self.repository.clock.now()
        behind = self.repository.api.server_clocks.earliest or timedelta()
        guards.require_fresh_mark(
            listed_at=self.stored("store_df").span.started_at,
            latest_now=min(own, own + behind),
            settings=self.repository.settings,
        )


_UNCHECKED = (uncommitted, "missing_samples", lambda *arguments: ())


def _last_location_only() -> AbstractContextManager[object]:
    pages: list[UncommittedPage] = []
    ask, written = uncommitted._believable_page, uncommitted._written

    def asked(api: Any, token: str | None, state: Any) -> UncommittedPage:
        pages.append(ask(api, token, state))
        return pages[-1]

    def last(store: Any, state: Any) -> tuple[str, ...]:
        return written(store, state) if pages[-1].location else ()

    return replaced((uncommitted, "_believable_page", asked), (uncommitted, "_written", last), _UNCHECKED)()


def _end_at_empty_page(api: Any, token: str | None, state: Any) -> UncommittedPage:
    page = uncommitted._ask(api, token, state)
    return page if page.location else replace(page, continuation_token=None)


def _cutoff(min_age: timedelta | None = None, skew: timedelta | None = None) -> object:
    def wrong(clocks: Clocks, asked: timedelta, grace_period: timedelta, allowed: timedelta) -> datetime:
        age = max(asked, grace_period) if min_age is None else min_age
        return (clocks.earliest - age - (allowed if skew is None else skew)).replace(microsecond=0)

    return wrong


def _copies_first(prepare: Callable[..., UncommittedPage]) -> Callable[..., UncommittedPage]:
    def first(self: Servers, *arguments: Any) -> UncommittedPage:
        self.misbehaviour.copies_first = True
        return prepare(self, *arguments)

    return first


def _snapshot(dumped: Callable[..., commits.Dump]) -> Callable[..., commits.Dump]:
    def trusting(*arguments: Any) -> commits.Dump:
        dump = dumped(*arguments)
        known = set(dump.commits.ids.to_pylist())
        return replace(dump, branches={name: head for name, head in dump.branches.items() if head in known})

    return trusting


def _nothing_of_a_range(self: LiveFiles, record: Any) -> pa.Table:
    return self._live(pa.array([], pa.string()), pa.array([], pa.uint8()))


def _take_lock(store: Any, record: Any) -> str:
    data = record.encode()
    found = store.put(lock.KEY, data)
    return str(found)


def _claim_first(self: Sweep, batch: pa.Table) -> pa.Table:
    claimed = [Outcome.ACCEPTED] * batch.num_rows
    rows = receipts.table(batch, claimed, [None] * batch.num_rows, self.clock.now())
    receipts.write(self.store, self.run_id, uuid.uuid4().hex, rows)
    for outcome in self.store.delete(batch.column("address").to_pylist()):
        assert outcome.result in DeleteResult
    return rows


BUGS: dict[str, Bug] = {
    "committed read before uncommitted": Bug(run=CommittedFirst),
    "listing after prepare": Bug(replaced((order, "require_safe_order", lambda *spans: None)), run=ListingLate),
    "copies read first": Bug(replaced((Servers, "prepare", _copies_first(Servers.prepare)), _UNCHECKED)),
    "the last page's location only": Bug(_last_location_only),
    "an empty page taken for the end": Bug(replaced((uncommitted, "_believable_page", _end_at_empty_page), _UNCHECKED)),
    "a branch deleted during prepare unnoticed": Bug(
        replaced((uncommitted, "_believable_page", uncommitted._ask), _UNCHECKED)
    ),
    "empty live set accepted": Bug(
        replaced((LiveFiles, "range", _nothing_of_a_range), (guards, "require_live_set", lambda mark: None))
    ),
    "cutoff from LastModified alone": Bug(run=LastModifiedAlone),
    "cutoff from the name alone": Bug(run=NameAlone),
    "6 hours instead of 24": Bug(replaced((cutoff, "cutoff", _cutoff(min_age=timedelta(hours=6))))),
    "no skew": Bug(replaced((cutoff, "cutoff", _cutoff(skew=timedelta())))),
    "the earliest clock for mark too old": Bug(run=EarliestClock),
    "dump taken as a snapshot": Bug(
        replaced((commits, "_fetch_missing", lambda *arguments: []), (commits, "_dumped", _snapshot(commits._dumped)))
    ),
    "tags forgotten": Bug(replaced((refs, "read_tags", lambda data, file, **expected: []))),
    "hidden staged entries ignored": Bug(run=HiddenIgnored),
    "multipart seen once": Bug(run=MultipartSeenOnce),
    "a range skipped on error": Bug(run=RangeSkipped),
    "trailing slash and //": Bug(replaced((addresses, "_spellings", lambda key: (key,)))),
    "full addresses not normalised": Bug(
        replaced((Namespace, "live_keys", lambda self, address, address_type: (address,)), _UNCHECKED)
    ),
    "hash used in an intersection": Bug(run=HashIntersected),
    "frames of two attempts mixed": Bug(
        replaced((order, "require_safe_order", lambda *spans: None)), run=AttemptsMixed
    ),
    "recheck without new commits": Bug(run=NoNewCommits),
    "recheck older than the sweep": Bug(run=OldRecheck),
    "resume without recheck": Bug(run=ResumeUnchecked),
    "two collectors at once": Bug(
        replaced(
            (lock, "_take", _take_lock),
            (lock, "verify", lambda *arguments: None),
            (sweep, "verify", lambda *arguments: None),
        )
    ),
    "receipts written before the delete": Bug(replaced((Sweep, "_batch", _claim_first))),
    "success claimed on partial failure": Bug(run=SuccessClaimed),
}
"""By name; a sentence of the issue's list each."""
