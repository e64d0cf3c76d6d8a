"""Sightings of branches by earlier runs: since when a branch exists, and since when it is on its commit.

The server reports when commits were made, but not when a branch was made or moved. Each run stores the metarange of
every branch head with `committed_df`. Runs are read newest first, so only an unbroken row of sightings counts. It ends
at a run that lost its frames, even if older runs still have theirs. A branch that a client deletes and makes again on a
commit with the same objects between two runs looks unchanged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.frame import files
from lakefs_gc_assets.collector.frame.frames import COMMITTED_DF
from lakefs_gc_assets.collector.incremental.earlier_runs import EarlierRuns, count_branches
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records.across_runs import BranchState, DeletedBranch
from lakefs_gc_assets.errors import CollectionError, CorruptFile, LogLine, StorageError
from lakefs_gc_assets.storage.interface import ObjectStore

_MANIFESTS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class SeenHeads:
    """The heads that one run saw, at a moment between two times, UTC. Branches with an empty head are missing."""

    started_at: datetime
    ended_at: datetime
    metaranges: Mapping[str, str]


_EXPIRED = SeenHeads(datetime.min, datetime.min, {})
"""Stands for a run that saw heads and whose frames were removed."""


@dataclass(slots=True)
class Sighting:
    """Sightings of a branch by earlier runs. Times are UTC; None if unknown.

    Attributes:
        metarange_ids: metaranges of its present head and of the commits below that object lifecycle made, down to the
            last commit of a user; one, empty, if that one is empty.
        made_at: when the last commit of a user was made.
        on_head_since: end of the first run of an unbroken row that saw this head.
        off_head_at: start of the newest run that saw another head, or no such branch.
        there_since: end of the first run of an unbroken row that saw a branch of this name.
        missing_at: start of the newest run that saw no such branch.
        first_seen_by: source of `on_head_since`, in words.
    """

    metarange_ids: tuple[str, ...] = ("",)
    made_at: datetime | None = None
    on_head_since: datetime | None = None
    off_head_at: datetime | None = None
    there_since: datetime | None = None
    missing_at: datetime | None = None
    first_seen_by: str = "the first run that saw it on this commit"

    def look(self, branch: str, seen: SeenHeads) -> None:
        """Adds the heads of the next older run."""
        metarange_id = seen.metaranges.get(branch, "")
        if self.off_head_at is None:
            # A head made later is another commit with the same objects.
            is_later = self.made_at is not None and self.made_at > seen.ended_at
            if metarange_id not in self.metarange_ids or is_later:
                self.off_head_at = seen.started_at
            elif metarange_id:
                self.on_head_since = seen.ended_at
                # An older run that saw a newer head of these shows that the branch was set back.
                self.metarange_ids = self.metarange_ids[self.metarange_ids.index(metarange_id) :]
        if self.missing_at is None:
            if metarange_id:
                self.there_since = seen.ended_at
            else:
                self.missing_at = seen.started_at

    def mark(self, record: DeletedBranch, is_this_head: bool) -> None:
        """Adds the moment of a deletion or restoration: older runs saw an earlier branch of this name."""
        if self.off_head_at is None:
            self.off_head_at = record.at
            if record.state is BranchState.RESTORED and is_this_head:
                self.on_head_since, self.first_seen_by = record.at, "making it again"
        if self.missing_at is None and record.state is BranchState.DELETED:
            self.missing_at = record.at


def find_sightings(
    store: ObjectStore,
    repository: str,
    commit_ids: Mapping[str, str],
    sightings: Mapping[str, Sighting],
    records: Iterable[DeletedBranch],
    oldest: datetime,
    warn: LogLine,
) -> None:
    """Adds what earlier runs of a repository saw to the sightings of its branches.

    Reading ends at a run whose files are damaged, since it may have seen another head.

    Args:
        commit_ids: commit of the present head, by branch.
        sightings: by branch; they have the present head alone.
        records: deleted and restored branches.
        oldest: UTC; no run before the first one that ended before this moment is read.
        warn: receives a warning about a damaged file.
    Raises:
        StorageError: the store cannot be read.
    """
    marks = {each.branch: each for each in records if each.state in (BranchState.DELETED, BranchState.RESTORED)}
    marks = {branch: mark for branch, mark in marks.items() if branch in sightings}
    runs = EarlierRuns(store)
    look = partial(_read_heads, store, runs, repository)
    try:
        for seen in work_ahead(look, runs.newest_first(), _MANIFESTS_AT_ONCE):
            if seen is None:
                continue
            if seen is _EXPIRED:
                break
            for branch, sighting in sightings.items():
                if (mark := marks.get(branch)) is not None and mark.at >= seen.started_at:
                    sighting.mark(mark, mark.commit_id == commit_ids[branch])
                sighting.look(branch, seen)
            if seen.ended_at < oldest:
                break
    except CorruptFile as corrupt:
        warn(f"WARNING: earlier runs do not count as sightings of branches, since a file is damaged: {corrupt}")
    for branch, mark in marks.items():
        sightings[branch].mark(mark, mark.commit_id == commit_ids[branch])


def _read_heads(store: ObjectStore, runs: EarlierRuns, repository: str, run_id: str) -> SeenHeads | None:
    """The heads that a run saw; None if it belongs to another repository or read no commits, _EXPIRED if it expired.

    Raises CorruptFile, StorageError.
    """
    settled = runs.settled(run_id)
    try:
        # Unlike `is_of`, an unreadable plan is an error: the run may have seen another head.
        of = settled.repository if settled and settled.repository else plans.read(store, run_id).repository
        if of != repository:
            return None
        manifest = files.read_manifest(store, run_id, COMMITTED_DF)
    except (CorruptFile, StorageError):
        raise
    except CollectionError:
        # Its report or the index says that it saw branches, which may have been on other commits.
        is_expired = count_branches(store, run_id, settled, lambda line: None)[0] is not None
        return _EXPIRED if is_expired else None
    return SeenHeads(manifest.span.started_at, manifest.span.ended_at, manifest.figures.heads)
