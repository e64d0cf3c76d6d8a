"""Oracle: an optimized run marks the objects that a full run would have marked at that moment.

Either the runs are an optimized and a clean one, or both go by retention rules; the text speaks of the first pair. A
clean run lists everything and reads every range. The clean run simulated here lists the store at the moment when the
optimized run begins to list. For the parts that the optimized run lists too, it gets the very same answers; for all
others, the bucket's content then. It gets the same uncommitted data, the same commits with all of their ranges, the
same cutoff and sightings, and every window. Both must then keep each unreferenced object for the same reason, or both
take it for a candidate. Staged entries that the server does not list are looked up afterwards, for candidates alone,
and so alike.

Documented differences, and no others:

- Only clean runs find a *late arrival*. It came into a slice more than 26 hours after the slice was begun. Outside of
  slices it came after the run that sealed that place had begun to list it.
- An object that a store reported as deleted and did not delete waits for a clean run, too.
- A carried object that was deleted elsewhere since is deleted once more, which does nothing.
- A run limited to some windows keeps the objects of others, and no run builds on it.
- Expired objects are known from their entries, as in runs that list nothing. Such an object is as old as its name says,
  and need not have been seen twice if it was a multipart upload. If an entry names it by an address that may mean
  several keys, it waits for a run that lists everything.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lakefs_gc_assets.collector.frame.frames import LISTED
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.universe import listing as universe_listing
from lakefs_gc_assets.collector.universe.listing import Listing
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.engine.reference_engine import ReferenceEngine, Rows
from lakefs_gc_assets_tests.simulation.bucket import Bucket, BucketView
from lakefs_gc_assets_tests.simulation.clocks import HOUR
from lakefs_gc_assets_tests.simulation.oracle import Oracle, Violation
from lakefs_gc_assets_tests.simulation.stored_results import Row

LATE_SECONDS = 26 * HOUR
"""A slice is not sealed before it is older than minimum age, an hour of use and the skews together."""
_BY_LISTING_ALONE = (Kept.YOUNG, Kept.MULTIPART)
"""Reasons to keep an object that only its listing shows."""
_NO_SLICE = ""
_SLICE_FOLDER = re.compile(r"^data/(?:![0-9A-Za-z_-]{2}/[0-9A-Za-z_-]/)?([0-9a-v]{19}[0g])/")
Marked = dict[str, Kept | None]
"""Fate of each unreferenced object: the reason to keep it, or None for a candidate."""


@dataclass
class Exactness:
    """Compares runs, and records since when each slice is sealed for later runs.

    Attributes:
        sealed_since: true time by run id and slice; slices are sealed for all runs that build on the run.
        listed_now: by run id, the addresses that the run listed itself.
        expired: addresses in expired ranges that some run examined.
        compared: optimized marks compared that had unreferenced objects.
        late: objects that only a clean run marks.
        went: candidates of runs by rules that they had not listed.
    """

    bucket: Bucket
    oracle: Oracle
    sealed_since: dict[str, dict[str, float]] = field(default_factory=dict)
    elsewhere: dict[str, list[Row]] = field(default_factory=dict)
    committed: dict[str, set[str]] = field(default_factory=dict)
    listed_now: dict[str, frozenset[str]] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    compared: int = 0
    late: int = 0
    went: int = 0

    @property
    def other_store(self) -> ObjectStore:
        """The store of the other repository."""
        assert self.oracle.other is not None
        return _seen(self.oracle.other.repository.bucket)

    @property
    def store(self) -> ObjectStore:
        """The store at this moment; its calls let no time pass."""
        return _seen(self.bucket)

    def listing(self, plan: Plan, listing: Listing) -> None:
        """An optimized run begins to list: records the rows that a clean one would list besides."""
        store, sealed = self.store, (None, *(listing.sealed or ()))
        self.elsewhere[plan.run_id] = [
            row
            for part in universe_listing.listing(store, plan.cutoff).parts
            for batch in universe_listing.list_part(store, part, plan.slice_window)[0]
            for row in batch.to_pylist()
            if part not in listing.parts or (part.slice is None and _slice_folder(row["address"]) in sealed)
        ]

    def commits(self, run_id: str, held: set[str]) -> None:
        """An optimized run knows the commits: records all addresses that they hold."""
        self.committed[run_id] = held

    def marked(
        self, plan: Plan, listed: Iterable[Row], staged: frozenset[str], sighted: set[str], mine: Marked
    ) -> None:
        """An optimized run marks: compares the result with a clean run's.

        Args:
            listed: the rows that the run listed itself.
            mine: the run's result for its whole universe.
        """
        everything = [*listed, *self.elsewhere[plan.run_id]]
        windows = {row["slice_window"] for row in everything}
        clean = self._mark_clean(plan, everything, windows, staged, sighted)
        there = {row["address"] for row in everything}
        self.compared += bool(clean)
        self.went += sum(mine[address] is None for address in self.expired & mine.keys())
        for address in sorted(clean.keys() | mine.keys()):
            if address not in mine:
                self._require_late(plan, address)
            elif address not in clean and address not in there:
                if address in self.bucket.objects:
                    raise Violation(f"run {plan.run_id} marks {address}, which no clean run would list")
            elif address not in clean:
                raise Violation(f"run {plan.run_id} finds {address}, which a clean run would know to be referenced")
            elif address in self.expired and mine[address] is None and clean[address] in _BY_LISTING_ALONE:
                continue
            elif mine[address] not in (clean[address], Kept.OTHER_WINDOW):
                raise Violation(
                    f"run {plan.run_id} finds {address}: {mine[address]}, and a clean run: {clean[address]}"
                )

    def _mark_clean(
        self, plan: Plan, rows: list[Row], windows: set[str], staged: frozenset[str], sighted: set[str]
    ) -> Marked:
        """Marks objects as a clean run does, by the plain reference engine."""
        engine = ReferenceEngine()

        def named(addresses: Iterable[str]) -> Rows:
            return engine.table(pa.table({"address": pa.array(sorted(addresses), pa.string())}))

        listed = engine.table(pa.Table.from_pylist(rows, LISTED))
        live = named(staged), named(self.committed[plan.run_id])
        unreferenced = engine.without(listed, *live, count=len(rows))
        found = engine.collect(engine.kept_because(unreferenced, plan.cutoff, windows, named(sighted))).to_pylist()
        return {row["address"]: None if row["kept"] is None else Kept(row["kept"]) for row in found}

    def _require_late(self, plan: Plan, address: str) -> None:
        assert plan.base_run is not None
        if not self._late(plan.base_run, address) and not (plan.flow.by_retention and self.named_oddly(address)):
            raise Violation(f"run {plan.run_id} does not find {address}, which a clean run would find")

    def named_oddly(self, address: str) -> bool:
        """True if some commit names an object by an address that may mean several keys."""
        repository = self.oracle.repository
        plain = address, repository.uri + address
        entries = (entry for record in repository.commits.values() for entry in record.entries.values())
        return any(self.oracle.key_of(entry) == address and entry.address not in plain for entry in entries)

    def found_late(self, run_id: str, base_run: str, addresses: Iterable[str]) -> None:
        """A clean run reports candidates that no run with a base run would have found."""
        for address in addresses:
            self.late += 1
            if not self._late(base_run, address):
                raise Violation(f"run {run_id} calls {address} a late arrival, and it was there before")

    def _late(self, base_run: str, address: str) -> bool:
        since, appeared = self.sealed_since[base_run], self.bucket.appeared[address]
        folder = _slice_folder(address)
        if any(address in watched.accepted for watched in self.oracle.runs.values()):
            return True
        if folder is not None and appeared < layout.created_at(folder) + LATE_SECONDS:
            return False
        place = folder or _NO_SLICE
        return place in since and appeared >= since[place]

    def left(self, plan: Plan, sealed: Iterable[str]) -> None:
        """A run leaves a checkpoint for later runs."""
        before: Mapping[str, float] = self.sealed_since.get(plan.base_run or "", {})
        began = self.oracle.runs[plan.run_id].listing_began
        self.sealed_since[plan.run_id] = {place: before.get(place, began) for place in (_NO_SLICE, *sealed)}


def _slice_folder(address: str) -> str | None:
    """The slice whose folder contains an address, or None."""
    found = _SLICE_FOLDER.match(address)
    return found[1] if found else None


def _seen(bucket: Bucket) -> ObjectStore:
    return bucket.opened(BucketView(bucket, _no_point, _read_only, _read_only, page=1_000_000, delete_limit=0))


def _no_point(call: str) -> bool:
    return False


def _read_only(key: str, what: object) -> None:
    raise AssertionError(f"{key} is written or deleted")
