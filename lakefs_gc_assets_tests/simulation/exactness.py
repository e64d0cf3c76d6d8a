"""That a run that builds on another one marks what one would have marked at that moment that lists everything.

The one is an optimized run and the other a clean one, or both go by retention rules; of the first alike is said here. A
clean run lists everything and reads every range. Here is what one would have had that listed the store at the moment
when the optimized run began to list: of the parts that the optimized run lists as well, the very same answers; of all
others, what lies in the bucket then. It is given the same uncommitted data, the same commits with all of their ranges,
the same cutoff and sightings, and every window. Each object that nothing references must then be kept for the same
reason by both, or be a candidate of both. Staged entries that the server does not list are asked for afterwards, of
candidates alone, and so alike.

Documented differences, and no others:

- A *late arrival* is found by clean runs only: it came into a slice, more than 26 hours after the slice was begun, or
  to where no slice is, after the run that sealed that place had begun to list it.
- What a store called deleted and did not delete waits for a clean run, too.
- What somebody else deleted since it was carried is deleted once more, which does nothing.
- A run limited to some windows keeps what lies in others, and no run builds on it.
- What expired is known from its entries, as in runs that list nothing: it is as old as its name says, and need not have
  been seen twice where it was uploaded in parts. Where an entry names it by an address that may mean several keys, it
  waits for a run that lists everything.
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
"""Reasons to keep an object that only its listing tells."""
_NO_SLICE = ""
_SLICE_FOLDER = re.compile(r"^data/(?:![0-9A-Za-z_-]{2}/[0-9A-Za-z_-]/)?([0-9a-v]{19}[0g])/")
Marked = dict[str, Kept | None]
"""What becomes of each object that nothing references: why it is kept, None for a candidate."""


@dataclass
class Exactness:
    """Compares runs, and notes since when each slice is sealed by the run that a later one builds on.

    Attributes:
        sealed_since: by run id and slice, true time; slices are sealed for all runs that build on the run.
        listed_now: by run id, the addresses that the run listed itself.
        expired: addresses that some run looked at since ranges expired that held them.
        compared: how many optimized marks were compared with objects that nothing references.
        late: how many objects only a clean run marks.
        went: how many candidates runs by rules found that they had not listed.
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
        """The store at this very moment: no call goes on to another."""
        return _seen(self.bucket)

    def listing(self, plan: Plan, listing: Listing) -> None:
        """An optimized run begins to list: what a clean one would list beside that."""
        store, sealed = self.store, (None, *(listing.sealed or ()))
        self.elsewhere[plan.run_id] = [
            row
            for part in universe_listing.listing(store, plan.cutoff).parts
            for batch in universe_listing.list_part(store, part, plan.slice_window)[0]
            for row in batch.to_pylist()
            if part not in listing.parts or (part.slice is None and _slice_folder(row["address"]) in sealed)
        ]

    def commits(self, run_id: str, held: set[str]) -> None:
        """An optimized run knows the commits, and this is all that they hold."""
        self.committed[run_id] = held

    def marked(
        self, plan: Plan, listed: Iterable[Row], staged: frozenset[str], sighted: set[str], mine: Marked
    ) -> None:
        """An optimized run marks.

        Args:
            listed: what it listed itself.
            mine: what it makes of its whole universe.
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
        """What a clean run makes of objects, by the plain reference engine."""
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
        """Whether some commit names an object by an address that may mean several keys."""
        repository = self.oracle.repository
        plain = address, repository.uri + address
        entries = (entry for record in repository.commits.values() for entry in record.entries.values())
        return any(self.oracle.key_of(entry) == address and entry.address not in plain for entry in entries)

    def found_late(self, run_id: str, base_run: str, addresses: Iterable[str]) -> None:
        """A clean run reports candidates that no run building on an earlier one would have found."""
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
        """A run leaves something to build on."""
        before: Mapping[str, float] = self.sealed_since.get(plan.base_run or "", {})
        began = self.oracle.runs[plan.run_id].listing_began
        self.sealed_since[plan.run_id] = {place: before.get(place, began) for place in (_NO_SLICE, *sealed)}


def _slice_folder(address: str) -> str | None:
    """The slice whose folder an address lies in, None for addresses in no slice."""
    found = _SLICE_FOLDER.match(address)
    return found[1] if found else None


def _seen(bucket: Bucket) -> ObjectStore:
    return bucket.opened(BucketView(bucket, _no_point, _read_only, _read_only, page=1_000_000, delete_limit=0))


def _no_point(call: str) -> bool:
    return False


def _read_only(key: str, what: object) -> None:
    raise AssertionError(f"{key} is written or deleted")
