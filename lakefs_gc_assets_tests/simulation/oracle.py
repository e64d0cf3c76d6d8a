"""The world's own account of who can reach an object, and of the collector's claims.

It shares no code with the collector. It looks at the repository's state after each change, and records for every object
since when it is referenced. Three kinds of reference count:

- *firm*: a commit, a visible staged entry, a remembered copy. The object may neither be marked nor deleted.
- *pending*: an upload between object and staging, a commit in progress, an address that may still be linked.
- *soft*: a reference that lakeFS does not promise, such as an old object staged by StageObject. It is protected if the
  server lists it, and if it was staged before the last recheck began or longer ago than a recheck is valid. An object
  whose size a client misstated is soft, too, once the server does not list it: the search for equal committed content
  goes by size and cannot find it.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyarrow import BufferReader

from lakefs_gc_assets_tests.simulation.bucket import Bucket
from lakefs_gc_assets_tests.simulation.clocks import MINUTE, TrueTime
from lakefs_gc_assets_tests.simulation.lakefs_files import Entry
from lakefs_gc_assets_tests.simulation.other_repository import OtherRepository
from lakefs_gc_assets_tests.simulation.repository import Repository, equals_committed

RECHECK_VALID = 15 * MINUTE
_TOLERANCE = 1 * MINUTE


class Violation(AssertionError):
    """The collector broke a rule of safety."""


def refuse_change(key: str, what: object) -> None:
    """Raises Violation: a collector only reads the store of another repository."""
    raise Violation(f"a collector writes or deletes {key} in the store of another repository")


@dataclass
class Recheck:
    """Times of a collector's last checks for live objects; true times.

    Attributes:
        asked_at: when it sent its current request, which may take long, such as a batch of deletions.
        complete_began, complete_ended: times of the last completed check.
    """

    time: TrueTime
    asked_at: float = 0.0
    began: float | None = None
    complete_began: float | None = None
    complete_ended: float = 0.0

    def opens(self) -> None:
        """A check is about to begin, and has not sent any request yet."""
        self.began = None

    def begins(self) -> None:
        """The check requests a preparation of uncommitted data."""
        self.began = self.time.now

    def ends(self) -> None:
        """The check is complete. It counts from its first request, and not at all without one."""
        if self.began is not None:
            self.complete_began, self.complete_ended = self.began, self.time.now

    @property
    def limit(self) -> float:
        """The collector must know of events before this moment; it may know of later ones."""
        limit = self.asked_at - RECHECK_VALID - _TOLERANCE
        if self.complete_began is not None and self.complete_ended >= limit:
            return self.complete_began
        return limit


@dataclass
class Watched:
    """The actions of a collector in one run.

    Attributes:
        accepted: deletions that the store accepted, with sizes.
        receipted: the accepted deletions that a receipt names.
        receipted_at: when the first receipt of each address was stored.
        forgotten: accepted deletions without a receipt when the run was resumed; no later attempt can know of them.
        process_began: when the last process of the run began.
    """

    run_id: str
    accepted: dict[str, int] = field(default_factory=dict)
    receipted: set[str] = field(default_factory=set)
    receipted_at: dict[str, float] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    restored: set[str] = field(default_factory=set)
    listing_began: float = 0.0
    process_began: float = 0.0


@dataclass(frozen=True)
class Committing:
    """A commit in progress: the keys that it will hold, as long as its branch does not change."""

    keys: frozenset[str]
    can_succeed: Callable[[], bool]


@dataclass
class Oracle:
    """The account of references and claims.

    Attributes:
        other: another repository that holds objects of this one.
        lost_objects: live objects that were deleted past lakeFS.
        aliased_since: since when the servers spell addresses in another way.
        misleading: causes that hide staged entries from collectors; meanwhile a mark may miss them, a sweep may not.
        misled_until: when the last such cause ended.
    """

    time: TrueTime
    repository: Repository
    bucket: Bucket
    slowest_skew: float
    firm_since: dict[str, float] = field(default_factory=dict)
    soft: dict[str, float] = field(default_factory=dict)
    issued: dict[str, float] = field(default_factory=dict)
    linkable_until: dict[str, float] = field(default_factory=dict)
    uploading: set[str] = field(default_factory=set)
    committing: dict[int, Committing] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    moved_hidden: dict[str, float] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    listed_again: dict[str, float] = field(default_factory=dict)
    in_commits: dict[str, float | None] = field(default_factory=dict)
    deleted: int = 0
    losses: list[str] = field(default_factory=list)
    runs: dict[str, Watched] = field(default_factory=dict)
    other: OtherRepository | None = None
    lost_objects: set[str] = field(default_factory=set)
    aliased_since: float | None = None
    misleading: set[str] = field(default_factory=set)
    misled_until: float = -math.inf

    def mislead(self, who: str, does: bool) -> None:
        """A cause begins or ceases to hide staged entries from collectors."""
        if does:
            self.misleading.add(who)
        elif who in self.misleading:
            self.misleading.remove(who)
            self.misled_until = self.time.now

    def misled_since(self, began: float) -> bool:
        """True if entries were hidden from collectors at any time since then."""
        return bool(self.misleading) or self.misled_until >= began

    def key_of(self, entry: Entry) -> str | None:
        """The object that lakeFS reads for an entry; None for one outside of the repository."""
        if entry.address_type == 1:
            return entry.address
        scheme, _, rest = entry.address.partition("://")
        own = self.repository.uri.partition("://")[2].strip("/").split("/")
        parts = [part for part in unquote(rest).split("/") if part]
        if scheme not in ("s3", "s3a") or parts[: len(own)] != own:
            return None
        return "/".join(parts[len(own) :])

    def note_commit(self, entries: Iterable[Entry]) -> None:
        """Records the objects of a commit for good: lakeFS never forgets a commit."""
        for entry in entries:
            key = self.key_of(entry)
            if key is None or (key in self.in_commits and self.in_commits[key] is None):
                continue
            since, before = self.seen_since(key, entry), self.in_commits.get(key)
            self.in_commits[key] = since if before is None else min(before, since or before)
            if since is None:
                self.in_commits[key] = None

    def look(self) -> None:
        """Records all references after a change."""
        firm, soft, unlisted = self.staged()
        if shown := self.unlisted - unlisted:
            self.listed_again |= dict.fromkeys(shown, self.time.now)
            firm, soft, unlisted = self.staged()
        for key, since in self.in_commits.items():
            if since is None:
                firm.add(key)
            else:
                soft[key] = min(since, soft.get(key, since))
        now = self.time.now
        self.firm_since = {key: self.firm_since.get(key, now) for key in firm}
        self.soft = soft
        for key in (self.unlisted - unlisted) & firm:
            self.moved_unseen(key)
        self.unlisted = unlisted

    def staged(self) -> tuple[set[str], dict[str, float], set[str]]:
        """Returns firm staged objects and remembered copies, soft ones with since when, and those that the server does
        not list.

        It does not list entries staged with the content of the committed object.
        """
        firm: set[str] = set()
        soft: dict[str, float] = {}
        unlisted: set[str] = set()
        for branch in self.repository.branches.values():
            head = self.repository.head(branch)
            for path, entry in self.repository.staged(branch).items():
                staged = None if entry is None else self.key_of(entry)
                if staged is None or entry is None:
                    continue
                hidden = equals_committed(head, path, entry)
                if hidden:
                    unlisted.add(staged)
                since = self.seen_since(staged, entry)
                if since is None and not (hidden and self.is_misstated(staged, entry)):
                    firm.add(staged)
                else:
                    # A recheck does not look for hidden entries.
                    at = math.inf if hidden or since is None else since
                    soft[staged] = min(at, soft.get(staged, at))
        firm.update(address for address, _ in self.repository.copies)
        if self.other is not None:
            self.other.add_held(firm, soft, self.key_of)
        return firm, soft, unlisted

    def seen_since(self, key: str, entry: Entry) -> float | None:
        """Since when a recheck can see an object that was staged again; None if it was staged as lakeFS promises."""
        if entry.soft_at is not None:
            return max(entry.soft_at, self.listed_again.get(key, entry.soft_at))
        return self.listed_again.get(key) if self.is_misstated(key, entry) else None

    def is_misstated(self, key: str, entry: Entry) -> bool:
        """True if a client misstated the size of an entry's object."""
        return self.bucket.sizes.get(key, entry.size) != entry.size

    def is_promised(self, key: str) -> bool:
        """True if an object is referenced as lakeFS promises, so that a new reference to it finds it."""
        return key in self.firm_since

    def protects(self, key: str) -> str | None:
        """The reason why an object may not be deleted now, or None."""
        if self.strange(key):
            return "it is no object of lakeFS"
        if key in self.firm_since:
            return f"it is referenced since {self.time.now - self.firm_since[key]:.0f} s"
        return self._pending(key)

    def strange(self, key: str) -> bool:
        """True if lakeFS never made an object of this name."""
        return key in self.foreign or not (key.startswith("data/") or len(key) == 32)

    def _pending(self, key: str) -> str | None:
        return "a commit under way will hold it" if self.being_committed(key) else self.arriving(key)

    def being_committed(self, key: str) -> bool:
        """True if a commit in progress will hold an object."""
        return any(key in commit.keys and commit.can_succeed() for commit in self.committing.values())

    def arriving(self, key: str) -> str | None:
        """The reason why a reference to an object may be about to appear, or None."""
        if key in self.uploading:
            return "its upload is about to stage it"
        if self.linkable_until.get(key, 0.0) >= self.time.now:
            return f"it may be linked for another {self.linkable_until[key] - self.time.now:.0f} s"
        return None

    def reachable(self, key: str) -> bool:
        """True if an object must still exist in the end."""
        return self.protects(key) is not None or key in self.soft

    @property
    def commits_hold_nothing(self) -> bool:
        """True if live commits hold no objects of the repository. A guard cannot tell this from a failed reading."""
        return not self.in_commits

    def listing(self, run_id: str) -> None:
        """A run begins to list."""
        self.runs.setdefault(run_id, Watched(run_id)).listing_began = self.time.now

    def moved_unseen(self, key: str) -> None:
        """An object that the server did not list is now referenced in another way: a running mark may miss it, a sweep
        may not.

        This happens if such a staged entry is renamed, or removed after another reference to its object appeared.
        """
        self.moved_hidden[key] = self.time.now

    def marked(self, run_id: str, candidates: Iterable[str]) -> None:
        """A run stored its candidates. No object that was reachable since before its listing may be among them."""
        began = self.runs[run_id].listing_began
        if self.misled_since(began):
            return
        for key in candidates:
            problem = None
            if key in self.foreign:
                problem = "it is no object of lakeFS"
            elif self.firm_since.get(key, began) < began and self.moved_hidden.get(key, 0.0) < began:
                problem = "it was referenced all the time"
            elif self.soft.get(key, began) < began:
                problem = "it was staged again before the listing"
            elif key in self.uploading:
                problem = "its upload is about to stage it"
            elif self.linkable_until.get(key, 0.0) >= began:
                problem = "it may have been linked"
            if problem:
                raise Violation(f"run {run_id} marks {key}: {problem}")

    def deletion(self, run_id: str, key: str, recheck: Recheck) -> None:
        """A key is being deleted."""
        self.deleted += 1
        if key not in self.bucket.objects and (other := self.deleted_elsewhere(run_id, key)):
            raise Violation(f"run {run_id} deletes {key} again, which run {other} deleted after it was listed")
        problem = self.protects(key)
        if problem:
            raise Violation(f"run {run_id} deletes {key}: {problem}")
        if key in self.soft:
            if self.soft[key] < recheck.limit:
                raise Violation(
                    f"run {run_id} deletes {key}: it was staged again {self.time.now - self.soft[key]:.0f} s ago, "
                    "before the recheck"
                )
            self.losses.append(key)
        self.accepted(run_id, key)

    def deleted_elsewhere(self, run_id: str, key: str) -> str | None:
        """Another run that deleted a key after this one listed it; None if this run cannot know of one.

        A run knows receipts that were stored before its process began. Later ones are from a run that lost its lock.
        """
        watched = self.runs[run_id]
        for other in self.runs.values():
            at = other.receipted_at.get(key, -math.inf)
            if other is not watched and watched.listing_began <= at < watched.process_began:
                return other.run_id
        return None

    def begins(self, run_id: str) -> None:
        """A process begins a run, or resumes one of another process."""
        watched = self.runs.setdefault(run_id, Watched(run_id))
        watched.process_began = self.time.now
        watched.forgotten = watched.accepted.keys() - watched.receipted

    def accepted(self, run_id: str, key: str) -> None:
        """A store accepts the deletion of an object."""
        self.runs.setdefault(run_id, Watched(run_id)).accepted[key] = self.bucket.sizes.get(key, 0)

    def receipts(self, run_id: str, data: bytes) -> None:
        """Checks receipts that are being stored: deletions that they call accepted were accepted."""
        watched = self.runs.setdefault(run_id, Watched(run_id))
        accepted = watched.accepted
        for row in pq.read_table(BufferReader(data)).to_pylist():
            address, outcome = row["address"], row["outcome"]
            there = f"_lakefs/retention/gc/quarantine/{run_id}/{address}" if outcome == "copied" else address
            if outcome in ("copied", "restored"):
                if there not in self.bucket.objects:
                    raise Violation(f"run {run_id} has a receipt {outcome} for {address}, and {there} is not there")
                if outcome == "restored":
                    watched.restored.add(address)
            elif outcome == "purged":
                if f"_lakefs/retention/gc/quarantine/{run_id}/{address}" in self.bucket.objects:
                    raise Violation(f"run {run_id} has a receipt purged for {address}, whose copy is there")
            elif outcome in ("accepted", "quarantined"):
                if address not in accepted:
                    raise Violation(f"run {run_id} has a receipt for {address}, which was not deleted")
                watched.receipted.add(address)
                watched.receipted_at.setdefault(address, self.time.now)
            elif address in accepted and address not in watched.forgotten:
                raise Violation(f"run {run_id} has a receipt {outcome} for {address}, which was deleted")

    def most_bytes(self, watched: Watched) -> int:
        """Maximum bytes that the report of a run may claim as deleted."""
        return sum(watched.accepted.values())

    def report(self, run_id: str, data: bytes, candidates: frozenset[str]) -> None:
        """Checks a report that is being stored: it must claim exactly the deletions that happened."""
        report = json.loads(data)
        watched = self.runs.setdefault(run_id, Watched(run_id))
        if report["ending"] == "failed":
            if report["success"]:
                raise Violation(f"the report of run {run_id} claims success for a failed run")
            return
        counts, sizes = report["counts"], report["object_bytes"]
        deleted, deleted_bytes = counts["deleted"] + counts["quarantined"], sizes["deleted"] + sizes["quarantined"]
        if report["dry_run"] and watched.accepted:
            raise Violation(f"the dry run {run_id} deleted {len(watched.accepted)} objects")
        # A collector killed between a deletion and its receipts knows of fewer deletions than happened.
        least = sum(watched.accepted[key] for key in watched.receipted)
        most = self.most_bytes(watched)
        if not len(watched.receipted) <= deleted <= len(watched.accepted):
            raise Violation(
                f"the report of run {run_id} claims {deleted} deletions, {len(watched.accepted)} were accepted"
            )
        if not least <= deleted_bytes <= most:
            raise Violation(f"the report of run {run_id} claims {deleted_bytes} bytes, {most} were deleted")
        open_ = candidates - watched.accepted.keys()
        # Forgotten candidates that were live or refused after a resumption count as left, though they are deleted.
        unknown = len(watched.forgotten - watched.receipted)
        elsewhere = [key for key in candidates if self.deleted_elsewhere(run_id, key)]
        if not report["dry_run"] and counts["deleted_by_another_run"] < len(elsewhere):
            raise Violation(
                f"the report of run {run_id} says that other runs deleted {counts['deleted_by_another_run']} of its "
                f"candidates, and they deleted {len(elsewhere)}"
            )
        kept = counts["kept_live"] + counts["kept_archived"]
        left = counts["failed"] + kept + counts["deleted_by_another_run"]
        if not report["dry_run"] and not len(open_) <= left <= len(open_) + unknown:
            raise Violation(f"the report of run {run_id} accounts for {left} candidates left, of {len(open_)}")
        if (report["success"] or report["ended_well"]) and not report["dry_run"] and counts["failed"]:
            raise Violation(f"the report of run {run_id} claims success although deletions failed")
