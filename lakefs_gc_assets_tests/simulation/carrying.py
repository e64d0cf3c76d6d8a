"""What a simulated run leaves to the next one and takes up from an earlier one: `assets.carrying` on plain rows."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakefs_gc_assets.collection import carry as carries
from lakefs_gc_assets.collection import planning, ranges_read, receipts, run_folder
from lakefs_gc_assets.collection.carry import Carry
from lakefs_gc_assets.collection.inheritance import Inheritance
from lakefs_gc_assets.collection.order import Span
from lakefs_gc_assets.collection.plan import Flow
from lakefs_gc_assets.collection.predecessor import NoPredecessor
from lakefs_gc_assets.collection.universe import Folders
from lakefs_gc_assets.errors import CorruptFile, OrderViolation
from lakefs_gc_assets.frames import manifest as manifests
from lakefs_gc_assets.frames.manifest import FrameFile, Manifest
from lakefs_gc_assets_tests.simulation import plain
from lakefs_gc_assets_tests.simulation.frames import Frame
from lakefs_gc_assets_tests.simulation.plain import Row
from lakefs_gc_assets_tests.simulation.stepping import Stepping


@dataclass
class Carrying(Stepping):
    """Leaving and taking up."""

    def inherited(self) -> "Inherited | None":
        """What an optimized run builds on; None for other flows. Raises OrderViolation where it was made again."""
        if self.plan.predecessor is None:
            return None
        found = Inherited(self, self.plan.predecessor)
        if found.carry.attempt != self.plan.predecessor_attempt:
            raise OrderViolation(f"run {found.run_id}, which this one builds on, was made again")
        return found

    def store_everywhere(self, name: str, rows: Sequence[Row]) -> tuple[Manifest, str]:
        """Stores a frame that outlives this run's windows, and its manifest where the product looks for it."""
        began = self.repository.clock.now()
        windowed = plain.in_windows(rows, self.plan.slice_window)
        by_window: dict[str, list[str]] = {}
        for row in windowed:
            by_window.setdefault(row["slice_window"], []).append(row["address"])
        files = tuple(
            FrameFile(run_folder.frame(self.run_id, name) + window, window, len(addresses), 0, _digest(addresses))
            for window, addresses in sorted(by_window.items())
        )
        span = Span(name, self.run_id, self.plan.attempt, began, self.repository.clock.now())
        made = Manifest(span, files)
        digest = made.digest
        self.shelf[self.run_id, f"{name} {digest}"] = Frame(span, tuple(windowed))
        manifests.write(self.repository.store, made)
        return made, digest

    def reason_for_none(self, swept: bool) -> str | None:
        """Why the next run cannot build on this one; None where it can."""
        listed = self.stored("store_df")
        if self.plan.flow.by_retention:
            return f"its flow was {self.plan.flow.value}, which keeps other commits"
        if not swept:
            return "it was a dry run"
        if any(row["slice_window"] not in self.plan.windows for row in listed.rows):
            return f"it was limited to the windows {', '.join(self.plan.windows)}"
        if Folders((), tuple(listed.figures["other_folders"])).sharded:
            return "the repository has the sharded layout, where slices cannot be told apart by one listing"
        return None

    def leave(self, outcomes: Sequence[Row], swept: bool) -> Carry | str:
        """Stores what the next run can build on, or says why it must be a clean one."""
        if reason := self.reason_for_none(swept):
            return reason
        listed, committed = self.stored("store_df"), self.stored("committed_df")
        store, run_id, attempt = self.repository.store, self.run_id, self.plan.attempt
        settled = self.settled_after()
        held, gone = committed.addresses, self.dealt_with(outcomes)
        rows = self.waiting(listed.rows, settled, held, gone)
        waiting, open_digest = self.store_everywhere(carries.OPEN, rows)
        carried, committed_digest = self.store_everywhere(
            carries.COMMITTED, plain.of_unsettled(committed.rows, settled)
        )
        there = plain.of_settled(listed.rows, settled)
        stored = {row["address"] for row in rows}
        if problem := self.contradiction(there, held, gone, stored):
            return problem
        read_sha256 = self.read_sha256()
        carry = Carry(
            attempt=attempt,
            settled=len(settled),
            settled_objects=listed.figures["settled_objects"] + len(plain.without(there, stored, gone)),
            settled_sha256=carries.write_settled(store, run_id, attempt, settled),
            read=len(ranges_read.read(store, run_id, attempt, read_sha256)),
            read_sha256=read_sha256,
            open=waiting.rows,
            open_digest=open_digest,
            committed=carried.rows,
            committed_digest=committed_digest,
            open_windows=tuple(sorted(waiting.rows_by_window())),
            other_folders=tuple(listed.figures["other_folders"]),
        )
        self.exactness.left(self.plan, settled)
        return carry

    def settled_after(self) -> frozenset[str]:
        """The slices that are settled after this run."""
        before = self.inherited()
        return carries.settled(
            before.settled if before else frozenset(),
            carries.read_listed_slices(self.repository.store, self.run_id, self.plan.attempt),
            self.plan.cutoff,
            self.plan.skew,
        )

    def dealt_with(self, outcomes: Sequence[Row]) -> frozenset[str]:
        """What the next run need not ask about."""
        return frozenset(row["address"] for row in outcomes if row["outcome"] in receipts.GONE)

    def waiting(
        self, rows: Sequence[Row], settled: frozenset[str], committed: frozenset[str], deleted: frozenset[str]
    ) -> list[Row]:
        """The open objects."""
        return plain.still_open(rows, settled, committed, deleted)

    def contradiction(
        self, there: Sequence[Row], committed: frozenset[str], deleted: frozenset[str], waiting: set[str]
    ) -> str | None:
        """What would make the next run inexact."""
        if both := committed & waiting:
            return f"{len(both):,} objects would be carried as open although commits hold them"
        if lost := plain.without(there, waiting, committed, deleted):
            return f"{len(lost):,} listed objects would be neither carried nor committed nor deleted"
        return None

    def read_sha256(self) -> str:
        """Names the file with the ids that this run and the ones before it have read."""
        found: str = self.stored("committed_df").figures["read_sha256"]
        return found

    def late_arrivals(self) -> int:
        """How many candidates of a clean run came into a slice after an earlier run had settled it."""
        candidates = self.stored("candidates").rows
        if self.plan.flow is not Flow.CLEAN or not candidates:
            return 0
        try:
            found = planning.find_predecessor(self.repository, self.run_id)
        except NoPredecessor:
            return 0
        waiting = {row["address"] for row in Inherited(self, found.run_id).open_objects()}
        late = plain.without(plain.of_settled(candidates, found.settled), waiting)
        self.exactness.found_late(self.run_id, found.run_id, (row["address"] for row in late))
        return len(late)


class Inherited(Inheritance):
    """What an earlier run left, checked against what its report says. Raises CorruptFile."""

    def __init__(self, run: Stepping, run_id: str) -> None:
        super().__init__(run.repository.store, run_id)
        self._run = run

    def open_objects(self) -> tuple[Row, ...]:
        """Objects that wait."""
        return self._rows(carries.OPEN, self.carry.open_digest)

    def committed(self) -> tuple[Row, ...]:
        """Committed addresses outside of settled slices."""
        return self._rows(carries.COMMITTED, self.carry.committed_digest)

    def _rows(self, name: str, digest: str) -> tuple[Row, ...]:
        found = manifests.read(self._run.repository.store, self.run_id, name).digest
        if found != digest:
            raise CorruptFile(name, "digest", f"not the frame that the report of run {self.run_id} names")
        return self._run.carried(self.run_id, name, digest)


def _digest(addresses: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(addresses).encode()).hexdigest()
