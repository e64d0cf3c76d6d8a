"""Asks what is live, in the repository and in those that `also_live` names, at the mark and again at the recheck."""

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.live import other_repositories, uncommitted
from lakefs_gc_assets.collector.live.facts import FactsFolder
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.references import References, find_ranges, find_unnamed
from lakefs_gc_assets.collector.live.uncommitted import Prepared, StagedSample
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import commits, retention
from lakefs_gc_assets.collector.retention.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.tables import IdSet, lacking

_ROWS_OF_A_FILE = 250_000
"""Addresses in one file of uncommitted data, about: a real server fills files up to 20 MB."""
_ROWS_OF_A_RANGE = 50_000
"""Entries of a range that no metarange named, about."""


@dataclass(frozen=True)
class Uncommitted(Generic[R]):
    """Uncommitted data of this repository and of those that `also_live` names.

    Attributes:
        prepared: the preparation of each repository, this one's first.
        addresses: all addresses (LIVE), an address perhaps several times.
        ended_at: when the last answer had come, UTC; commits are read after it.
    """

    prepared: tuple[Prepared, ...]
    addresses: tuple[R, ...]
    ended_at: datetime

    @property
    def started_at(self) -> datetime:
        """When the first preparation began."""
        return min(each.started_at for each in self.prepared)

    @property
    def files(self) -> int:
        """How many files the server wrote."""
        return sum(len(each.files) for each in self.prepared)

    @property
    def count(self) -> int:
        """How many addresses there are, about."""
        return self.files * _ROWS_OF_A_FILE


Samples = tuple[tuple[StagedSample, ...], ...]
"""Samples of what each repository has staged, this one's first."""


def sample_staged(step: Step[R]) -> Samples:
    """Asks what the branches of each repository have staged, for `prepare_uncommitted`: several calls for each branch.

    Samples only show whether a later preparation is complete. Nothing counts as live because of them, so a recheck
    becomes no older while they are asked for before it.

    Raises: as `uncommitted.staged_samples`.
    """
    cutoff, commits_expire = step.plan.cutoff, step.plan.flow.by_retention
    return tuple(
        uncommitted.staged_samples(each.api, each.namespace, cutoff, commits_expire=commits_expire)
        for each in (step.repository, *step.repository.others)
    )


def prepare_uncommitted(
    step: Step[R], progress: Callable[[int], None] = lambda pages: None, samples: Samples | None = None
) -> Uncommitted[R]:
    """Makes the server write the uncommitted data of each repository now, and checks by samples that it is complete.

    Args:
        progress: gets the number of pages so far, after each page.
        samples: what `sample_staged` returned; by default it is called right before.
    Raises:
        LakeFSError, GuardTripped, OrderViolation, CorruptFile: see `uncommitted.prepare_checked`.
    """
    repositories = (step.repository, *step.repository.others)
    cutoff, commits_expire = step.plan.cutoff, step.plan.flow.by_retention
    prepared = tuple(
        uncommitted.prepare_checked(step.engine, each, cutoff, sampled, progress, commits_expire=commits_expire)
        for each, sampled in zip(repositories, samples or sample_staged(step), strict=True)
    )
    uncommitted.note_preparations(step.repository.store, step.plan.run_id, prepared[0].server_run_ids)
    addresses = [
        References.from_step(step, each).uncommitted(data.files)
        for each, data in zip(repositories, prepared, strict=True)
    ]
    if step.repository.others:
        apis = [each.api for each in step.repository.others]
        elsewhere = other_repositories.staged_elsewhere(apis, step.repository.namespace, step.plan.slice_window)
        addresses.append(step.engine.table(elsewhere))
    return Uncommitted(prepared, tuple(addresses), step.repository.clock.now())


@dataclass(frozen=True, slots=True)
class Unread:
    """Metaranges, ranges and files of a repository that were not read before.

    They belong to its live commits, or are named by none of its commits.

    Attributes:
        metarange_ids: metaranges of live commits; where no commit names them, all files, of whatever kind.
        records: ranges of these that were not read before.
        files: files of the metadata folder, where the refs could not be dumped.
    """

    repository: OpenRepository
    source: CommitSource
    metarange_ids: tuple[str, ...]
    records: RangeRecords
    files: tuple[str, ...]

    @property
    def ids(self) -> IdSet:
        """Ids of everything that is read."""
        return self.records.ids | IdSet([*self.metarange_ids, *self.files])

    @property
    def ranges(self) -> int:
        """How many ranges or files are read."""
        return len(self.records) or len(self.files)

    @property
    def promised(self) -> int | None:
        """How many entries the metaranges count; None where none is read."""
        if self.source is CommitSource.METADATA_FOLDER:
            return None
        return self.records.entries

    @property
    def count(self) -> int:
        """How many addresses there are, about."""
        return len(self.files) * _ROWS_OF_A_RANGE if self.promised is None else self.promised

    def addresses(
        self, step: Step[R], sizes_into: FactsFolder | None = None, hashes_into: FactsFolder | None = None
    ) -> R:
        """The addresses (LIVE), an address perhaps several times.

        Args:
            sizes_into, hashes_into: where sizes and hashes of the ranges are recorded; None for nowhere.
        """
        references = References.from_step(step, self.repository)
        if self.source is CommitSource.METADATA_FOLDER:
            return references.of_metadata_files(self.files)
        return references.committed(self.records, sizes_into, hashes_into)

    def without(self, range_ids: IdSet) -> "Unread":
        """The ranges to read other than these."""
        return replace(self, records=self.records.without(range_ids))


def find_unread(step: Step[R], repository: OpenRepository, live: LiveCommits, known: Set[str]) -> Unread:
    """Finds the metaranges of live commits that are not among the known ids; returns what is new in them."""
    metarange_ids = tuple(lacking(known, live.metarange_ids))
    records = find_ranges(step, repository, metarange_ids).without(known)
    return Unread(repository, live.source, metarange_ids, records, tuple(lacking(known, live.files)))


@dataclass(frozen=True)
class Committed:
    """Live commits of this repository and of those that `also_live` names, and what of them was not read before.

    Attributes:
        own: the live commits of this repository.
        unread: what was not read before of each repository, this one's first.
        definition: what retention rules keep; None in flows that do not apply them.
        unnamed: files of this repository's metadata folder that no commit names; None where they are not looked for, or
            where only young ones count, which are among what is provisional.
        unnamed_lasts: true if what they hold counts as committed for good. In the flow `committed` it is provisional:
            the next run reads no expired range again to see that such a file is gone.
        provisional: what is live now and perhaps no more in the next run, since no commit holds it: compacted bases of
            branches, and ranges that nothing names, if they are young or do not last. Nothing of it counts as read: it
            is read in each run anew.
        waited: seconds of waiting that protect and are no work, for all repositories.
    """

    own: LiveCommits
    unread: tuple[Unread, ...]
    definition: LiveDefinition | None
    unnamed: Unread | None = None
    unnamed_lasts: bool = True
    provisional: tuple[Unread, ...] = ()
    waited: float = 0.0

    @property
    def everything(self) -> tuple[Unread, ...]:
        """All that is read of what is committed, or may be by others: what stays known for good."""
        return self.unread if self.unnamed is None or not self.unnamed_lasts else (*self.unread, self.unnamed)

    @property
    def ids(self) -> IdSet:
        """Ids of everything that is read, and of the refs dump's own files, which hold no objects."""
        return reduce(or_, (each.ids for each in self.everything), IdSet(self.own.dump_tables))

    @property
    def records(self) -> RangeRecords:
        """The ranges that are read."""
        return RangeRecords.of_rows(pa.concat_tables(each.records.rows for each in self.everything))

    @property
    def source(self) -> str:
        """Where the commits were learnt from; of each repository, this one's first, where that differs."""
        sources = [each.source.value for each in self.unread]
        return sources[0] if len(set(sources)) == 1 else ", ".join(sources)

    @property
    def ranges(self) -> int:
        """How many ranges or files are read."""
        return sum(each.ranges for each in self.everything)

    @property
    def count(self) -> int:
        """How many addresses there are, about."""
        return sum(each.count for each in self.everything)

    def addresses(
        self, step: Step[R], sizes_into: FactsFolder | None = None, hashes_into: FactsFolder | None = None
    ) -> list[R]:
        """All addresses (LIVE) that were not read before, an address perhaps several times.

        Args:
            sizes_into, hashes_into: where sizes and hashes of the ranges are recorded; None for nowhere.
        """
        return [each.addresses(step, sizes_into, hashes_into) for each in self.everything]

    def provisional_addresses(self, step: Step[R]) -> list[R]:
        """The addresses (LIVE) of what is provisional, an address perhaps several times."""
        return [each.addresses(step) for each in self.provisional]

    @property
    def tells_ranges(self) -> bool:
        """True if the ranges of this repository are known one by one, and no other repository's are among them."""
        return self.own.source is CommitSource.REFS_DUMP and len(self.unread) == 1

    def without(self, range_ids: IdSet) -> "Committed":
        """The ranges to read other than these."""
        unnamed = None if self.unnamed is None else self.unnamed.without(range_ids)
        return replace(self, unread=tuple(each.without(range_ids) for each in self.unread), unnamed=unnamed)


def ask_committed(
    step: Step[R],
    prepared_until: datetime,
    known: Set[str],
    shown: Collection[str] = (),
    *,
    at_once: bool = False,
) -> Committed:
    """Finds the live commits, and reads those of their metaranges that are not among the known ids.

    A branch may rest on a compacted base, which holds what is staged: it is read as well. The server lists what differs
    there from the commit as uncommitted. But an entry that moves into the base while it lists may be in neither of its
    answers, and what is staged over an entry of the base hides it until that is reset.

    It then looks for ranges that no commit names, since they may be another repository's. It does not where
    `collection.keep_unnamed_ranges` is off, or where every range of the metadata folder counts anyway.

    Args:
        prepared_until: end of the last preparation of uncommitted data, UTC.
        known: ids of ranges and metaranges that were read before.
        shown: branch heads before uncommitted data was prepared, see `retention.live_definition`.
        at_once: ask without a wait where nothing shows that a commit is under way. It matters only where a commit that
            no dump shows yet counts all the same, by its ranges, which are looked for below.
    Raises:
        LakeFSError, CorruptFile: the answers are not complete.
        ConfigurationError: a retention rule cannot be meant, in flows that apply retention rules.
    """
    settings = step.repository.settings
    at_once = at_once and settings.counts_old_unnamed_ranges
    by_rules = step.plan.flow.by_retention
    definition = define_live(step, prepared_until, shown, at_once=at_once) if by_rules else None
    own = definition.live if definition else _every_commit(step, step.repository, prepared_until, at_once=at_once)

    def find_expired_ids() -> IdSet:
        metaranges = definition.expired_metaranges if definition else ()
        return find_ranges(step, step.repository, metaranges, expired=True).ids | IdSet(metaranges)

    return replace(find_committed(step, own, prepared_until, known, find_expired_ids), definition=definition)


def find_committed(
    step: Step[R], own: LiveCommits, prepared_until: datetime, known: Set[str], find_expired_ids: Callable[[], IdSet]
) -> Committed:
    """Finds everything that counts as committed or provisional beside commits that are known to be live.

    Args:
        own: live commits of this repository.
        prepared_until, known: as for `ask_committed`.
        find_expired_ids: returns the ids of metaranges and ranges that other commits of this repository name. They are
            no sign of another repository. It is only called if files that no commit names are looked for.
    Raises: as `ask_committed`.
    """
    settings = step.repository.settings
    unread, waited = [find_unread(step, step.repository, own, known)], own.waited
    bases = [find_compacted(step, step.repository, own, known, unread[0])]
    for each in step.repository.others:
        live = _every_commit(step, each, prepared_until)
        unread.append(find_unread(step, each, live, known))
        bases.append(find_compacted(step, each, live, known, unread[-1]))
        waited += live.waited
    provisional = tuple(base for base in bases if base.metarange_ids)
    committed = Committed(own, tuple(unread), None, provisional=provisional, waited=waited)
    if not settings.keep_unnamed_ranges or own.source is CommitSource.METADATA_FOLDER:
        return committed
    unnamed = _find_unnamed(step, committed, known, find_expired_ids() | bases[0].ids)
    lasts = settings.keep_old_unnamed_ranges and step.plan.flow is not Flow.COMMITTED
    if not lasts and unnamed.records:
        committed = replace(committed, provisional=(*provisional, unnamed))
    if settings.keep_old_unnamed_ranges:
        committed = replace(committed, unnamed=unnamed, unnamed_lasts=lasts)
    return committed


def find_compacted(
    step: Step[R], repository: OpenRepository, live: LiveCommits, known: Set[str], committed: Unread
) -> Unread:
    """Finds the compacted bases of a repository's branches; returns their ranges that no commit has.

    Args:
        known: ids of ranges that were read before.
        committed: what is read of the repository's commits.
    """
    records = find_ranges(step, repository, tuple(live.compacted))
    if records:
        records = records.without(known | committed.ids)
    return Unread(repository, live.source, tuple(live.compacted), records, ())


def _find_unnamed(step: Step[R], committed: Committed, known: Set[str], expired: IdSet) -> Unread:
    """Ranges that no commit and no branch names: all of them, or those that are not older than the cutoff.

    A compacted base that another one replaced is named by nothing, and so is what others have committed here: only who
    knows that there are no others can let go what is old.
    """
    repository = step.repository
    since = None if repository.settings.keep_old_unnamed_ranges else step.plan.cutoff
    unnamed = find_unnamed(repository.store, References.from_step(step), known | committed.ids, expired, since)
    return Unread(repository, committed.own.source, unnamed.ids, unnamed.records, ())


def _every_commit(
    step: Step[R], repository: OpenRepository, prepared_until: datetime, *, at_once: bool = False
) -> LiveCommits:
    return commits.live_commits(repository, prepared_until, step.log, at_once=at_once)


def heads_shown(step: Step[R]) -> list[str]:
    """Commit ids of the branch heads now, to be asked for before uncommitted data is prepared.

    Empty in flows that keep all commits, which do not need them.
    """
    return [branch.commit_id for branch in step.repository.api.branches()] if step.plan.flow.by_retention else []


def define_live(
    step: Step[R], prepared_until: datetime, shown: Collection[str] = (), *, at_once: bool = False
) -> LiveDefinition:
    """Commits that retention rules keep now, by refs, rules, policy and the server's list, which are all read anew."""
    repository, now = step.repository, step.plan.earliest_clock
    return retention.live_definition(repository, now, prepared_until, step.log, shown, at_once=at_once)
