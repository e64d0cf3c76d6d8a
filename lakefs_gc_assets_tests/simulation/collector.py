"""The collector of the simulation: the product's own functions in the order of the assets, on plain rows.

Here is the last step, which rechecks, deletes and reports; `marking` has those before, `stepping` what they share.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from lakefs_gc_assets.assets.reporting import ending
from lakefs_gc_assets.collection import (
    approval,
    guards,
    order,
    ownership,
    ranges_read,
    receipts,
    report,
    restoration,
)
from lakefs_gc_assets.collection.approval import Approval
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.quarantining import Quarantine
from lakefs_gc_assets.collection.receipts import Outcome
from lakefs_gc_assets.collection.report import Report
from lakefs_gc_assets.collection.sweep import Sweep
from lakefs_gc_assets.errors import CollectionError, OrderViolation
from lakefs_gc_assets_tests.simulation.frames import Frame
from lakefs_gc_assets_tests.simulation.marking import Marking
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.stepping import latest_clock

_CANDIDATE_COLUMNS = pa.schema(
    [
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("slice", pa.string()),
        pa.field("slice_window", pa.string()),
    ]
)


@dataclass
class Run(Marking):
    """One run of one collector process; a resumed run is another object with the same run id and owner."""

    def make_deleted_report(self) -> None:
        candidates = self.stored("candidates")
        for given in candidates.inputs:
            if given is not self.stored(given.span.frame):
                raise OrderViolation(f"{given.span.frame} was made again after candidates was made from it")
        sweep = self.plan.sweep or self.approved(candidates)
        rows = self.swept(candidates) if sweep else self.decided(candidates.rows, Outcome.DRY_RUN)
        self.store("deleted_report", rows, (candidates,))
        report.write(self.repository.store, self.report_of(rows, sweep, self.leave(rows, sweep)))

    def approved(self, candidates: Frame) -> bool:
        """Whether these candidates of a dry run are to be deleted after all: `assets.deleted_report.approved`."""
        store, digest = self.repository.store, repr(candidates.span)
        if self.repository.settings.approve_run == self.run_id:
            approval.write(store, Approval(self.run_id, self.plan.attempt, digest, self.repository.clock.now()))
        found = approval.read(store, self.run_id)
        return found is not None and found.candidates_digest == digest

    def swept(self, candidates: Frame) -> list[Row]:
        """Deletes the candidates, pass by pass: what `assets.deleted_report.swept` does."""
        repository, settings = self.repository, self.repository.settings
        restoration.require_none_since(repository.store, self.run_id)
        self.require_fresh_mark()
        guards.require_live_set(self.mark())
        for guard in guards.tripped(self.mark(), settings):
            raise guard
        earlier = receipts.read(repository.store, self.run_id).to_pylist()
        done = {row["address"]: row for row in earlier if row["outcome"] in receipts.GONE}
        decided = list(done.values())
        if not candidates.rows:
            return decided
        heads = self.stored("committed_df").figures["heads"]
        ownership.require_own_addresses(repository.api, repository.store, repository.namespace, heads)
        self.wait_for_recheck()
        remaining = self.remaining(candidates.rows, done)
        while remaining:
            outcomes = self.one_pass(remaining, done)
            if not outcomes:
                raise CollectionError("nothing could be deleted in the time for which a recheck is valid")
            decided += outcomes
            named = {row["address"] for row in outcomes}
            remaining = [row for row in remaining if row["address"] not in named]
        return decided

    def require_fresh_mark(self) -> None:
        """Raises GuardTripped where the mark is too old by any clock."""
        guards.require_fresh_mark(
            listed_at=self.stored("store_df").span.started_at,
            latest_now=latest_clock(self.repository),
            settings=self.repository.settings,
        )

    def one_pass(self, remaining: list[Row], done: Collection[str]) -> list[Row]:
        """Rechecks what is live, and deletes for as long as that is valid."""
        live = self.live_before(done)
        kept = self.decided([row for row in remaining if row["address"] in live], Outcome.KEPT_LIVE)
        gone = [row for row in remaining if row["address"] not in live]
        valid = timedelta(minutes=self.repository.settings.recheck_valid_minutes)
        return [*self.deleted(gone, self.repository.clock.now() + valid), *kept]

    def live_before(self, done: Collection[str]) -> set[str]:
        """What is live right before deleting, whether or not a part is deleted already."""
        return self.live_again()

    def remaining(self, rows: Sequence[Row], done: Collection[str]) -> list[Row]:
        """Candidates that no earlier try of this sweep has deleted."""
        return [row for row in rows if row["address"] not in done]

    def deleted(self, rows: list[Row], valid_until: datetime) -> list[Row]:
        """Deletes rows until a moment; returns their receipts."""
        if not rows:
            return []
        assert self.lock is not None
        kind = Quarantine if self.moves else Sweep
        sweep = kind(
            store=self.repository.store,
            run_id=self.run_id,
            lock=self.lock.token,
            clock=self.repository.clock,
            valid_until=valid_until,
            attempt=self.plan.attempt,
        )
        named = [{name: row[name] for name in _CANDIDATE_COLUMNS.names} for row in rows]
        table = pa.Table.from_pylist(named, schema=_CANDIDATE_COLUMNS)
        return [receipt for batch in sweep.delete(table) for receipt in batch.to_pylist()]

    @property
    def moves(self) -> bool:
        """Whether a sweep moves candidates to quarantine."""
        return self.repository.settings.sweep_mode == "quarantine"

    def live_again(self) -> set[str]:
        """Addresses that became live since the mark, as `assets.deleted_report.live_again`."""
        shown = self.heads_shown()
        prepared = self.prepare()
        live = self.live_commits(prepared.ended_at, shown)
        marked = self.stored("committed_df").figures
        order.require_same_source(live.source.value, marked["commit_source"])
        guards.require_commits_ended(marked=marked["sealed"], now=live.sealed)
        read_sha256 = marked["read_sha256"]
        unread = self.unread(live, ranges_read.read(self.repository.store, self.run_id, self.plan.attempt, read_sha256))
        found = self.staged(prepared.files) | self.committed(unread)
        self.rechecked()
        return found

    def wait_for_recheck(self) -> None:
        """The recheck comes a set time after the listing."""
        clock = self.repository.clock
        seconds = timedelta(seconds=self.repository.settings.wait_before_recheck_seconds)
        wait = self.stored("store_df").span.ended_at + seconds - clock.now()
        if wait > timedelta():
            clock.sleep(wait.total_seconds())

    def decided(self, rows: Sequence[Row], outcome: Outcome) -> list[Row]:
        """Receipts of rows that are not deleted."""
        columns = ("address", "size", "slice", "slice_window")
        return [{**{name: row[name] for name in columns}, "outcome": outcome.value} for row in rows]

    def report_of(self, outcomes: Sequence[Row], sweep: bool, left: Carry | str) -> Report:
        """The report, as `assets.reporting.report_of`."""
        mark, plan = self.mark(), self.plan
        listed, committed = self.stored("store_df"), self.stored("committed_df")
        objects, sizes = dict.fromkeys(Outcome, 0), dict.fromkeys(Outcome, 0)
        for row in outcomes:
            objects[Outcome(row["outcome"])] += 1
            sizes[Outcome(row["outcome"])] += row["size"]
        failed = objects[Outcome.FAILED]
        return Report(
            run_id=plan.run_id,
            attempt=plan.attempt,
            repository=plan.repository,
            storage_namespace=plan.storage_namespace,
            flow=plan.flow.value,
            previous_run=plan.previous_run,
            dry_run=not sweep,
            success=not failed,
            ending=ending(sweep, mark.candidates, failed, self.moves and not objects[Outcome.ACCEPTED]),
            started_at=plan.started_at,
            ended_at=self.repository.clock.now(),
            cutoff=plan.cutoff,
            windows=plan.windows,
            last_read_slice=listed.figures["last_read_slice"],
            counts={
                "listed": mark.listed,
                "uncommitted": mark.uncommitted,
                "committed": mark.committed,
                "commits": committed.figures["commits"],
                "candidates": mark.candidates,
                "late_arrivals": self.late_arrivals(),
                "deleted": objects[Outcome.ACCEPTED],
                "quarantined": objects[Outcome.QUARANTINED],
                "failed": failed,
                "kept_live": objects[Outcome.KEPT_LIVE],
            },
            object_bytes={
                "listed": mark.listed_bytes,
                "candidates": mark.candidate_bytes,
                "deleted": sizes[Outcome.ACCEPTED],
                "quarantined": sizes[Outcome.QUARANTINED],
            },
            kept=mark.kept,
            commit_source=committed.figures["commit_source"],
            why_clean=plan.why_clean,
            predecessor=plan.predecessor,
            carry=left if isinstance(left, Carry) else None,
            no_carry=left if isinstance(left, str) else None,
        )
