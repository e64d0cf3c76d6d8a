"""Oracles of runs: what an optimized run must mark, which commits a run by retention rules must keep, and when none may
delete.

`Exactness` compares an optimized run with a clean one, or two runs by retention rules; the text speaks of the first
pair. A clean run lists everything and reads every range. The clean run simulated here lists the store at the moment
when the optimized run begins to list. For the parts that the optimized run lists too, it gets the very same answers;
for all others, the bucket's content then. It gets the same uncommitted data, the same commits with all of their ranges,
the same cutoff and sightings, and every window. Both must then keep each unreferenced object for the same reason, or
both take it for a candidate. Staged entries that the server does not list are looked up afterwards, for candidates
alone, and so alike.

Documented differences, and no others:

- Only clean runs find a *late arrival*. It came into a slice more than 26 hours after the slice was begun. Outside of
  slices it came after the run that sealed that place had begun to list it. In a shard it may also lie in a slice that
  no run sealed: it came after some run before had begun to list, which would have sealed the slice.
- An object that a store reported as deleted and did not delete waits for a clean run, too.
- A carried object that was deleted elsewhere since is deleted once more, which does nothing.
- A run limited to some windows keeps the objects of others, and no run builds on it.
- Expired objects are known from their entries, as in runs that list nothing. Such an object is as old as its name says,
  and need not have been seen twice if it was a multipart upload. If an entry names it by an address that may mean
  several keys, it waits for a run that lists everything.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lakefs_gc_assets.collector.commits import CommitSource
from lakefs_gc_assets.collector.frame.files import read_manifest
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF, LISTED, STEPS
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets.collector.universe import listing as universe_listing
from lakefs_gc_assets.collector.universe.listing import Listing
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import LEGACY_WINDOW
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets_tests.collector.engine.reference_engine import ReferenceEngine, Rows
from lakefs_gc_assets_tests.simulation.bucket import Bucket, BucketView
from lakefs_gc_assets_tests.simulation.clocks import HOUR
from lakefs_gc_assets_tests.simulation.oracle import Oracle, Violation
from lakefs_gc_assets_tests.simulation.retention_oracle import RetentionOracle, Span, keeps_tag, kept_as_told, window_of
from lakefs_gc_assets_tests.simulation.servers import ServerAnswers
from lakefs_gc_assets_tests.simulation.stored_results import Row, addresses
from lakefs_gc_assets_tests.simulation.world import World

LATE_SECONDS = 26 * HOUR
"""A slice is not sealed before it is older than minimum age, an hour of use and the skews together."""
_BY_LISTING_ALONE = (Kept.YOUNG, Kept.MULTIPART)
"""Reasons to keep an object that only its listing shows."""
_NO_SLICE = ""
_SHARD = "data/!"
_SLICE_FOLDER = re.compile(r"^data/(?:![0-9A-Za-z_-]{2}/[0-9A-Za-z_-]/)?([0-9a-v]{19}[0g])/")
Marked = dict[str, Kept | None]
"""Fate of each unreferenced object: the reason to keep it, or None for a candidate."""


@dataclass
class Exactness:
    """Compares runs, and records since when each slice is sealed for later runs.

    Attributes:
        sealed_since: true time by run id and slice; slices are sealed for all runs that build on the run.
        in_shards: by run id, rows in unsealed slices of shards when the run began to list.
        chains: by run id, for the run and its base runs, when it began to list, and the time of creation below which
            it sealed the slices that it listed.
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
    in_shards: dict[str, list[Row]] = field(default_factory=dict)
    chains: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
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
        elsewhere, in_shards = self.elsewhere[plan.run_id], self.in_shards[plan.run_id] = [], []
        for part in universe_listing.listing(store, plan.cutoff).parts:
            for batch in universe_listing.list_part(store, part, plan.slice_window)[0]:
                for row in batch.to_pylist():
                    if part not in listing.parts or (part.slice is None and _slice_folder(row["address"]) in sealed):
                        elsewhere.append(row)
                    elif part.slice is None:
                        in_shards.append(row)

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
        # A run decides which slices of a shard it lists. That is checked here, so it is not believed.
        listed = [*listed]
        missed = self.bucket.objects.keys() - {row["address"] for row in listed}
        in_shards = [row for row in self.in_shards[plan.run_id] if row["address"] in missed]
        not_listed = {row["address"] for row in in_shards}
        everything = [*listed, *self.elsewhere[plan.run_id], *in_shards]
        windows = {row["slice_window"] for row in everything}
        clean = self._mark_clean(plan, everything, windows, staged, sighted)
        there = {row["address"] for row in everything}
        self.compared += bool(clean)
        self.went += sum(mine[address] is None for address in self.expired & mine.keys())
        for address in sorted(clean.keys() | mine.keys()):
            if address not in mine:
                self._require_late(plan, address)
            elif address in not_listed:
                raise Violation(f"run {plan.run_id} finds {address}, in a shard's unsealed slice that it did not list")
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
        if place in since:
            return appeared >= since[place]
        if folder is None or not address.startswith(_SHARD):
            return False
        created = layout.created_at(folder)
        return any(created < limit and appeared >= began for began, limit in self.chains[base_run])

    def left(self, plan: Plan, sealed: Iterable[str]) -> None:
        """A run leaves a checkpoint for later runs."""
        before: Mapping[str, float] = self.sealed_since.get(plan.base_run or "", {})
        began = self.oracle.runs[plan.run_id].listing_began
        limit = (plan.cutoff - plan.skew).timestamp() - layout.SLICE_SPAN_SECONDS
        self.chains[plan.run_id] = (*self.chains.get(plan.base_run or "", ()), (began, limit))
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


@dataclass
class RetentionExactness:
    """Requires that a run by retention rules keeps exactly the right commits by its information, and examines all that
    may go.

    The commits that stay follow from the world's log of heads, at the very second from which the run counts ages. They
    belong to the branches and commits in the dump that the run got, with tagged ones and the server's own list. Their
    dates are the latest that the run knows from commits, from the files of their metaranges and from their parents. A
    run that requested uncommitted data also keeps the commits that stayed right before, by the same measure.

    The universe of a run that lists nothing must have all objects that only other commits hold, unless a run deleted
    them. A run with a base run may leave out objects that it cannot identify (`_held_by_other_names`).

    Attributes:
        compared: number of live definitions of marks.
    """

    oracle: RetentionOracle
    compared: int = 0

    def defined(self, plan: Plan, reported: ServerAnswers, found: LiveDefinition, *, universe: bool) -> None:
        """A run defines the commits that stay.

        Args:
            universe: True if it has not requested uncommitted data yet.
        """
        if found.live.source is not CommitSource.REFS_DUMP:
            return
        defined, stays = self._defined(plan, reported), self._stays(plan, reported)
        before = None if universe else reported.as_before()
        if before is not None:
            stays |= self._stays(plan, before)
        kept, let_go = frozenset(found.live.metarange_ids), frozenset(found.expired_metaranges)
        live = self._metaranges(stays)
        expired = self._metaranges(reported.commits.keys() - stays) - live
        claimed = self._defined(plan, reported, claimed=True)
        listed = reported.listed if reported.rules is not None and reported.listed is not None else claimed
        alone = {
            kept_by: frozenset(each.commit_id for each in found.differences if each.kept_by == kept_by)
            for kept_by in ("definition", "server")
        }
        if before is None and not universe:
            # Another process of the run knew the earlier state: more may stay.
            kept, expired = kept & live, expired & let_go
        self.compared += 1
        for what, ours, theirs in (
            ("keep by the definition alone", frozenset(claimed - listed), alone["definition"]),
            ("keep by the server's list alone", frozenset(listed - claimed), alone["server"]),
            ("keep", live, kept),
            ("let go", expired, let_go),
        ):
            if ours != theirs:
                lacks, more = len(ours - theirs), len(theirs - ours)
                raise Violation(
                    f"run {plan.run_id} does not {what} the right commits: it lacks {lacks}, and has {more} more"
                )
        if len(defined) != found.counts["commits_active"]:
            raise Violation(f"run {plan.run_id} keeps {found.counts['commits_active']} commits, and not {len(defined)}")

    def universe(self, plan: Plan, reported: ServerAnswers, addresses: Collection[str]) -> None:
        """A run that lists nothing defines the objects that may go."""
        stays = self._stays(plan, reported)
        kept, expired = self._own_objects(stays), self._own_objects(reported.commits.keys() - stays)
        there = self.oracle.bucket.objects.keys()
        gone = {key for watched in self.oracle.runs.values() for key in watched.accepted.keys() - watched.restored}
        if plan.base_run is not None:
            kept = kept | self._held_by_other_names(stays, reported)
        if missed := (expired - kept - gone) & there - set(addresses):
            raise Violation(f"run {plan.run_id} does not look at {min(missed)}, which only expired commits hold")

    def _held_by_other_names(self, stays: Collection[str], reported: ServerAnswers) -> set[str]:
        """Objects that a run with a base run may leave out, besides objects that stay under their own name.

        It does not examine objects again that stay under another name. Objects that any commit names by an address that
        may mean several keys wait for a run that reads everything.
        """
        known, uri = self.oracle.repository.commits, self.oracle.repository.uri
        held = set[str]()
        for commit_id in reported.commits:
            for entry in known[commit_id].entries.values():
                key = self.oracle.key_of(entry)
                if key is not None and (commit_id in stays or entry.address not in (key, uri + key)):
                    held.add(key)
        return held

    def _stays(self, plan: Plan, reported: ServerAnswers) -> set[str]:
        """The commits that stay."""
        tagged = {commit for tag, commit in reported.tags.items() if keeps_tag(self.oracle.policy, tag)}
        return self._defined(plan, reported) | tagged | (reported.listed or frozenset())

    def _defined(self, plan: Plan, reported: ServerAnswers, *, claimed: bool = False) -> set[str]:
        """The commits that were heads within the windows.

        Args:
            claimed: True to use the dates that commits claim, as servers do.
        """
        oracle = self.oracle
        if not reported.asked_rules:
            raise Violation(f"run {plan.run_id} goes on without having been told the rules")
        now = plan.earliest_clock.timestamp()
        if now > min(plan.started_at.timestamp(), oracle.time.now + oracle.bucket.clock.skew) + 1:
            raise Violation(f"run {plan.run_id} counts ages from a moment that is to come by some clock")
        if reported.rules is None:
            return set(reported.commits)
        claims, dates = reported.claims(), reported.dates(now)
        if claimed:
            heads, commits = reported.branches, reported.commits.keys()
            until = oracle.log.stays_until(heads, commits, window_of(reported.rules), claims.__getitem__)
        else:

            def counted(branch: str, line: Sequence[str]) -> set[str]:
                return kept_as_told(oracle.policy, branch, line, oracle.repository.by_lifecycle, span)

            def span(commit: str) -> Span:
                written = reported.written.get(reported.commits[commit].metarange_id, -math.inf)
                return min(claims[commit], written), dates[commit]

            until = oracle.stays_until(reported.rules, reported.branches, reported.commits, dates.__getitem__, counted)
        return {commit_id for commit_id, moment in until.items() if moment > now}

    def _metaranges(self, commits: Collection[str]) -> frozenset[str]:
        known = self.oracle.repository.commits
        return frozenset(known[commit_id].facts.metarange_id for commit_id in commits) - {""}

    def _own_objects(self, commits: Collection[str]) -> set[str]:
        """Objects of commits under a name that can mean nothing else."""
        known = self.oracle.repository.commits
        entries = (entry for commit_id in commits for entry in known[commit_id].entries.values())
        return {entry.address for entry in entries if entry.address_type == 1}


_ASKED_OF_A_HEAD = 10
"""Entries of a branch that a run requests to see how the server spells addresses."""


@dataclass
class Refusals:
    """Reasons for which runs must not delete, derived from the world and from the servers' answers, by run id.

    Some guards trip before any object is lost, or when none is in these small worlds: a branch fewer, a gap in the
    listing, a rule for a branch that does not exist. If the settings of a run enable such a guard, any deletion that it
    had to refuse is a violation.

    Attributes:
        marked_at: when each run stored its candidates, true time.
        by_mark, by_recheck: reasons of the mark and of the last recheck.
        missing: live objects missing from each run's listing, in slices that it listed.
        staged: objects that were uncommitted at the mark and not committed anywhere.
        loose: staged objects without any reference when the last recheck began.
        aliased: runs at whose mark the servers spelled addresses in another way than the namespace.
        restored_at: when objects last came back from quarantine.
    """

    world: World
    marked_at: dict[str, float] = field(default_factory=dict)
    by_mark: dict[str, str] = field(default_factory=dict)
    by_recheck: dict[str, str] = field(default_factory=dict)
    missing: dict[str, frozenset[str]] = field(default_factory=dict)
    staged: dict[str, frozenset[str]] = field(default_factory=dict)
    loose: dict[str, frozenset[str]] = field(default_factory=dict)
    aliased: set[str] = field(default_factory=set)
    restored_at: float = -math.inf

    def listing(self, plan: Plan) -> None:
        """A run begins to list."""
        world = self.world
        if world.oracle.lost_objects and plan.flow in (Flow.CLEAN, Flow.UNIFIED) and plan.base_run is None:
            lost = world.oracle.lost_objects - world.bucket.objects.keys()
            self.missing[plan.run_id] = frozenset(key for key in lost if self._must_be_listed(plan, key))

    def _must_be_listed(self, plan: Plan, key: str) -> bool:
        """True if a key is in a slice that the run lists, and was named before its cutoff."""
        parsed, cutoff = layout.parse(key), plan.cutoff.timestamp()
        folder = key.rpartition("/")[0] + "/"
        slice_id = folder.split("/")[-2]
        if parsed.layout is layout.Layout.SHARDED:
            # The slice may have objects in other shards alone.
            named = parsed.issued_at is not None and parsed.issued_at < cutoff
            listed = (key for key in self.world.bucket.keys_below("data/!") if key.split("/")[3:4] == [slice_id])
            return named and LEGACY_WINDOW in plan.windows and any(listed)
        if parsed.issued_at is None or not layout.is_xid(slice_id) or folder != f"data/{slice_id}/":
            return False
        if parsed.issued_at >= cutoff or layout.created_at(slice_id) >= cutoff:
            return False
        if plan.base_run is None and layout.window(slice_id, plan.slice_window) not in plan.windows:
            return False
        return bool(self.world.bucket.keys_below(folder))

    def marked(self, plan: Plan, settings: CollectionSettings, reported: ServerAnswers, store: ObjectStore) -> None:
        """A run has stored its candidates."""
        run_id, world = plan.run_id, self.world
        self.marked_at[run_id] = world.time.now
        self.by_recheck.pop(run_id, None)
        why = self._why_reported(plan, settings, reported, world.branches_before(run_id))
        if settings.max_missing_share < 1 and (lacking := self._lacking(run_id, reported, store)):
            why = f"its listing lacked {min(lacking)}, which a branch holds"
        self.aliased.discard(run_id)
        if world.oracle.aliased_since is not None and self._shows_an_address():
            self.aliased.add(run_id)
        self.by_mark.pop(run_id, None)
        if why is not None:
            self.by_mark[run_id] = why
        if settings.max_uncommitted_loss_share == 0:
            staged = addresses(store, run_id, STEPS[1])
            self.staged[run_id] = frozenset(key for key in staged if self._only_staged(key))

    def _only_staged(self, key: str) -> bool:
        oracle = self.world.oracle
        return key not in oracle.in_commits and (key in oracle.firm_since or key in oracle.soft)

    def _is_gone(self, key: str) -> bool:
        oracle = self.world.oracle
        held = key in oracle.firm_since or key in oracle.soft or key in oracle.in_commits
        # A compacted base keeps entries deleted or replaced since, and its files stay: they count as live.
        held = held or key in self.world.repository.compacted_keys
        return not held and not oracle.being_committed(key)

    def rechecking(self, plan: Plan) -> None:
        """A run begins a recheck."""
        self.loose[plan.run_id] = frozenset(key for key in self.staged.get(plan.run_id, ()) if self._is_gone(key))

    def rechecked(
        self,
        plan: Plan,
        settings: CollectionSettings,
        reported: ServerAnswers,
        store: ObjectStore,
        *,
        dump_refused: bool,
    ) -> None:
        """A run has rechecked, and goes on to delete."""
        run_id = plan.run_id
        self.by_recheck.pop(run_id, None)
        marked = read_manifest(store, run_id, COMMITTED_DF).figures
        why = None if dump_refused else self._why_reported(plan, settings, reported, len(marked.heads))
        if dump_refused and marked.commit_source == CommitSource.REFS_DUMP:
            why = "commits came from a refs dump at the mark, and no dump was given at the recheck"
        if gone := [key for key in self.loose.get(run_id, ()) if self._is_gone(key)]:
            why = f"{min(gone)} was uncommitted at the mark, and is gone"
        if why is not None:
            self.by_recheck[run_id] = why

    def _why_reported(
        self, plan: Plan, settings: CollectionSettings, reported: ServerAnswers, branches: int
    ) -> str | None:
        """The reason why a run must not act on the branches and rules that the servers reported, or None."""
        if settings.max_branch_loss_share == 0 and reported.branches:
            heads = [reported.commits.get(commit_id) for commit_id in reported.branches.values()]
            count = sum(head is None or head.metarange_id != "" for head in heads)
            if count < branches:
                return f"{count} branches are left of {branches}"
        if plan.flow.by_retention and not settings.allow_rules_of_unknown_branches:
            named = reported.rules.branches.keys() if reported.asked_rules and reported.rules is not None else set()
            if unknown := sorted(named - reported.branches.keys()):
                return f"rules name {unknown[0]}, and there is no such branch"
        return None

    def _lacking(self, run_id: str, reported: ServerAnswers, store: ObjectStore) -> frozenset[str]:
        """Objects missing from a run's listing although a branch holds them and no run has deleted them."""
        missing = self.missing.get(run_id)
        if not missing:
            return frozenset()
        heads = (self.world.repository.commits[commit_id] for commit_id in reported.branches.values())
        held = {entry.address for head in heads for entry in head.entries.values() if entry.address_type == 1}
        deleted = {key for watched in self.world.oracle.runs.values() for key in watched.accepted}
        return missing & (held | addresses(store, run_id, STEPS[1])) - deleted

    def _shows_an_address(self) -> bool:
        """True if a branch has an own object by which a run can see how addresses are spelled."""
        repository = self.world.repository
        for branch in repository.branches.values():
            head, staged = repository.head(branch), repository.staged(branch)
            own = [path for path in sorted(head) if head[path].address_type == 1]
            own = [path for path in own if head[path].address.startswith("data/")]
            if any(staged.get(path, head[path]) is not None for path in own[:_ASKED_OF_A_HEAD]):
                return True
        return False

    def require_none(self, run_id: str, asked_at: float) -> None:
        """Raises Violation if there is a reason against the deletion that a run requested."""
        marked_at, aliased_since = self.marked_at[run_id], self.world.oracle.aliased_since
        why = self.by_mark.get(run_id) or self.by_recheck.get(run_id)
        spelled_so = aliased_since is not None and aliased_since <= marked_at
        if run_id in self.aliased and spelled_so and self._shows_an_address():
            why = "the server spells addresses by an access point"
        if marked_at <= self.restored_at < asked_at:
            why = "objects came back from quarantine after its mark"
        if why is not None:
            raise Violation(f"run {run_id} deletes although {why}")
