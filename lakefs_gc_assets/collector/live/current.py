"""Finds live addresses at the mark and again at the recheck, in this repository and in those of `also_live`.

A run by retention rules with a base run knows some live addresses from facts about ranges, without reading the ranges.
It looks up the addresses of its universe and of uncommitted data. It reads ranges without facts, and ranges whose facts
do not fit their metarange's count. It also reads some other ranges and compares them with their facts.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from operator import or_
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collector.engine import hashing
from lakefs_gc_assets.collector.engine.hashing import Hashes, HashSet, distinct
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import LIVE, ReasonsToStay
from lakefs_gc_assets.collector.frame.slices import select_sealed
from lakefs_gc_assets.collector.live import facts, facts_of_ranges, other_repositories, references, uncommitted
from lakefs_gc_assets.collector.live.facts import FactFile, FactsFolder
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, HASHES_LOOKED_UP, SIZES, SUMS
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.references import References, find_ranges, find_unnamed
from lakefs_gc_assets.collector.live.uncommitted import Prepared, StagedSample
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.tables import IdSet, lacking
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.retention import LiveDefinition
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, counted

_ROWS_OF_A_FILE = 250_000
"""Approximate addresses in one file of uncommitted data: a real server fills files up to 20 MB."""
_ROWS_OF_A_RANGE = 50_000
"""Approximate entries of a range that no metarange named."""


@dataclass(frozen=True)
class Uncommitted(Generic[R]):
    """Uncommitted data of this repository and of the repositories in `also_live`.

    Attributes:
        prepared: one preparation for each repository, this one's first.
        addresses: all addresses (LIVE), perhaps with duplicates.
        ended_at: time after the last answer, UTC; commits are read after it.
    """

    prepared: tuple[Prepared, ...]
    addresses: tuple[R, ...]
    ended_at: datetime

    @property
    def started_at(self) -> datetime:
        """Start of the first preparation, UTC."""
        return min(each.started_at for each in self.prepared)

    @property
    def files(self) -> int:
        """Number of files that the server wrote."""
        return sum(len(each.files) for each in self.prepared)

    @property
    def count(self) -> int:
        """Approximate number of addresses."""
        return self.files * _ROWS_OF_A_FILE


@dataclass(frozen=True, slots=True)
class Samples:
    """Branches and samples of their staged entries, for each repository; this one's first.

    Attributes:
        heads: commit id by branch, read before the samples.
    """

    heads: tuple[Mapping[str, str], ...]
    staged: tuple[tuple[StagedSample, ...], ...]


def sample_staged(step: Step[R]) -> Samples:
    """Samples the staged entries of all repositories, for `prepare_uncommitted`: several calls for each branch.

    Samples only show that a later preparation is complete. They make no object live, so a recheck gets no older if they
    are taken before it.

    Raises: as `uncommitted.staged_samples`.
    """
    cutoff, commits_expire = step.plan.cutoff, step.plan.flow.by_retention
    heads, staged = list[Mapping[str, str]](), list[tuple[StagedSample, ...]]()
    for each in (step.repository, *step.repository.others):
        heads.append({branch.id: branch.commit_id for branch in each.api.branches()})
        sample = partial(uncommitted.staged_samples, each.api, each.namespace, cutoff, branches=heads[-1])
        staged.append(sample(commits_expire=commits_expire))
    return Samples(tuple(heads), tuple(staged))


def prepare_uncommitted(
    step: Step[R], progress: Callable[[int], None] = lambda pages: None, samples: Samples | None = None
) -> Uncommitted[R]:
    """Makes the server write the uncommitted data of all repositories now, and checks by samples that it is complete.

    Args:
        progress: gets the number of pages so far, after each page.
        samples: result of `sample_staged`, which by default is called first.

    Raises:
        LakeFSError, GuardTripped, OrderViolation, CorruptFile: see `uncommitted.prepare_checked`.
    """
    repositories = (step.repository, *step.repository.others)
    cutoff, commits_expire = step.plan.cutoff, step.plan.flow.by_retention
    prepared = tuple(
        uncommitted.prepare_checked(step.engine, each, cutoff, sampled, progress, commits_expire=commits_expire)
        for each, sampled in zip(repositories, (samples or sample_staged(step)).staged, strict=True)
    )
    uncommitted.record_preparations(step.repository.store, step.plan.run_id, prepared[0].server_run_ids)
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

    They belong to its live commits, or none of its commits names them.

    Attributes:
        metarange_ids: metaranges of live commits; if no commit names them, all files, of whatever kind.
        records: their ranges that were not read before.
        files: files of the metadata folder, if the refs could not be dumped.
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
        """Number of ranges or files to read."""
        return len(self.records) or len(self.files)

    @property
    def promised(self) -> int | None:
        """Number of entries by the counts of metaranges; None if no metarange is read."""
        if self.source is CommitSource.METADATA_FOLDER:
            return None
        return self.records.entries

    @property
    def count(self) -> int:
        """Approximate number of addresses."""
        return len(self.files) * _ROWS_OF_A_RANGE if self.promised is None else self.promised

    def addresses(self, step: Step[R], into: Sequence[FactsFolder] = ()) -> R:
        """The addresses (LIVE), perhaps with duplicates.

        Args:
            into: folders to record facts about the ranges in.
        """
        references = References.from_step(step, self.repository)
        if self.source is CommitSource.METADATA_FOLDER:
            return references.of_metadata_files(self.files)
        return references.committed(self.records, into)

    def without(self, range_ids: IdSet) -> "Unread":
        """A copy without the given ranges."""
        return replace(self, records=self.records.without(range_ids))


def find_unread(step: Step[R], repository: OpenRepository, live: LiveCommits, known: Set[str]) -> Unread:
    """Finds the metaranges of live commits that are not among the known ids, and their unknown ranges."""
    metarange_ids = tuple(lacking(known, live.metarange_ids))
    records = find_ranges(step, repository, metarange_ids).without(known)
    return Unread(repository, live.source, metarange_ids, records, tuple(lacking(known, live.files)))


@dataclass(frozen=True)
class Committed:
    """Live commits of this repository and of the repositories in `also_live`, with their unread files.

    Attributes:
        own: the live commits of this repository.
        unread: unread files for each repository, this one's first.
        definition: commits that retention rules keep; None in flows that do not apply rules.
        unnamed: files of this repository's metadata folder that no commit names. None if they are not searched for, or
            if only young ones count, which then are in `provisional`.
        unnamed_lasts: True if the objects of unnamed files count as committed for good. In the flow `committed` they
            are provisional: the next run reads no expired range again, so it would not see that such a file is gone.
        provisional: files whose objects are live now and perhaps not in the next run, since no commit holds them:
            compacted bases of branches, and ranges that no commit or branch names, if they are young or do not last.
            They never count as read: each run reads them anew.
        waited: seconds of protective waiting without work, for all repositories.
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
        """Unread files that are committed, or may be by others: they stay known for good."""
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
        """Source of the commits; if repositories differ, all their sources, this one's first."""
        sources = [each.source.value for each in self.unread]
        return sources[0] if len(set(sources)) == 1 else ", ".join(sources)

    @property
    def ranges(self) -> int:
        """Number of ranges or files to read."""
        return sum(each.ranges for each in self.everything)

    @property
    def count(self) -> int:
        """Approximate number of addresses."""
        return sum(each.count for each in self.everything)

    def addresses(self, step: Step[R], into: Sequence[FactsFolder] = ()) -> list[R]:
        """All addresses (LIVE) that were not read before, perhaps with duplicates.

        Args:
            into: folders to record facts about the ranges in.
        """
        return [each.addresses(step, into) for each in self.everything]

    def provisional_addresses(self, step: Step[R]) -> list[R]:
        """The addresses (LIVE) of provisional files, perhaps with duplicates."""
        return [each.addresses(step) for each in self.provisional]

    @property
    def tells_ranges(self) -> bool:
        """True if the ranges of this repository are known one by one, and no other repository's are among them."""
        return self.own.source is CommitSource.REFS_DUMP and len(self.unread) == 1

    def without(self, range_ids: IdSet) -> "Committed":
        """A copy without the given ranges."""
        unnamed = None if self.unnamed is None else self.unnamed.without(range_ids)
        return replace(self, unread=tuple(each.without(range_ids) for each in self.unread), unnamed=unnamed)


def ask_committed(
    step: Step[R],
    prepared_until: datetime,
    known: Set[str],
    before: ReasonsToStay | None = None,
    *,
    at_once: bool = False,
) -> Committed:
    """Finds the live commits, and reads those of their metaranges that are not among the known ids.

    A branch may rest on a compacted base, which holds staged entries: it is read as well. The server lists as
    uncommitted the base's entries that differ from the commit. But an entry that moves into the base during the listing
    may be missing from all answers. An entry staged over one of the base hides the latter until it is reset.

    The search for ranges that no commit names comes last, since they may be another repository's. It is skipped if
    `collection.keep_unnamed_ranges` is off, or if every range of the metadata folder counts anyway.

    Args:
        prepared_until: end of the last preparation of uncommitted data, UTC.
        known: ids of ranges and metaranges that were read before.
        before: reasons that kept commits before uncommitted data was prepared, see `retention.live_definition`.
        at_once: skip the wait, for a mark that deletes nothing. The wait is kept if ranges that no commit names count
            as live only while they are young: otherwise the mark would name objects that a commit is about to hold.

    Raises:
        LakeFSError, CorruptFile: the answers are not complete.
        ConfigurationError: a retention rule cannot be intended, in flows that apply retention rules.
    """
    settings = step.repository.settings
    at_once = at_once and settings.counts_old_unnamed_ranges
    if step.plan.flow.by_retention:
        definition = define_live(step, prepared_until, before, at_once=at_once)
        own = definition.live
    else:
        definition, own = None, commits.live_commits(step.repository, prepared_until, step.log, at_once=at_once)

    def find_expired_ids() -> IdSet:
        metaranges = definition.expired_metaranges if definition else ()
        return find_ranges(step, step.repository, metaranges, expired=True).ids | IdSet(metaranges)

    return replace(find_committed(step, own, prepared_until, known, find_expired_ids), definition=definition)


def find_committed(
    step: Step[R], own: LiveCommits, prepared_until: datetime, known: Set[str], find_expired_ids: Callable[[], IdSet]
) -> Committed:
    """Finds everything that counts as committed or provisional, given the live commits.

    Args:
        own: live commits of this repository.
        prepared_until, known: as for `ask_committed`.
        find_expired_ids: returns the ids of metaranges and ranges that other commits of this repository name. They are
            no sign of another repository. It is only called if files that no commit names are searched for.

    Raises: as `ask_committed`.
    """
    settings = step.repository.settings
    unread, waited = [find_unread(step, step.repository, own, known)], own.waited
    bases = [find_compacted(step, step.repository, own, known, unread[0])]
    for each in step.repository.others:
        live = commits.live_commits(each, prepared_until, step.log)
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
    """Finds the compacted bases of a repository's branches, and their ranges that no commit has.

    Args:
        known: ids of ranges that were read before.
        committed: files of the repository's commits that are read.
    """
    records = find_ranges(step, repository, tuple(live.compacted))
    if records:
        records = records.without(known | committed.ids)
    return Unread(repository, live.source, tuple(live.compacted), records, ())


def _find_unnamed(step: Step[R], committed: Committed, known: Set[str], expired: IdSet) -> Unread:
    """Ranges that no commit and no branch names: all, or only ones that are not older than the cutoff.

    They may come from a compacted base that was replaced, or from commits of another repository. Only a user who knows
    that there is no other repository can let the old ones go.
    """
    repository = step.repository
    since = None if repository.settings.keep_old_unnamed_ranges else step.plan.cutoff
    unnamed = find_unnamed(repository.store, References.from_step(step), known | committed.ids, expired, since)
    return Unread(repository, committed.own.source, unnamed.ids, unnamed.records, ())


def read_reasons(step: Step[R]) -> ReasonsToStay | None:
    """The reasons that keep commits now, to be read before uncommitted data is prepared.

    None in flows that keep all commits, which need no reasons.
    """
    return retention.read_reasons(step.repository) if step.plan.flow.by_retention else None


def define_live(
    step: Step[R], prepared_until: datetime, before: ReasonsToStay | None = None, *, at_once: bool = False
) -> LiveDefinition:
    """The commits that retention rules keep now; refs, rules, policy and the server's list are all read anew."""
    repository, now = step.repository, step.plan.earliest_clock
    return retention.live_definition(repository, now, prepared_until, step.log, before, at_once=at_once)


_LOOKED_UP_AT_ONCE = 8_000_000
"""Addresses that are looked up together: each task has all of their hashes, some 80 MB with the lookup index.

To select the rows with hits, each task gets the hashes of the hits of all parts.
"""
_ROUNDS = 4
"""Maximum times that all facts are read, each for a part of the addresses; reading every range takes longer."""
_RANGES_COMPARED = 8
"""Number of ranges that each run reads and compares with their facts."""
_HASH = pa.schema([pa.field("hash", pa.int64())])


@dataclass(frozen=True)
class KnownLive(Generic[R]):
    """Live addresses that are known without reading their ranges.

    Attributes:
        range_ids: the ranges that are not read.
        recorded: number of addresses in these ranges; an address counts once for each range.
        addresses: the wanted addresses that these ranges hold (LIVE); None if every range is read.
        count: maximum number of rows in `addresses`.
    """

    range_ids: IdSet = field(default_factory=IdSet)
    recorded: int = 0
    addresses: R | None = None
    count: int = 0


def facts_folders(step: Step[R], committed: Committed) -> list[FactsFolder]:
    """Folders to record sizes in, and hashes, if a run that builds on this one would look them up."""
    by_hashes = step.plan.flow is Flow.UNIFIED and committed.tells_ranges and not step.plan.limited
    kinds = (SIZES, HASHES) if by_hashes and step.repository.settings.full_listing_days else (SIZES,)
    return [references.facts_folder(step, kind) for kind in kinds]


def find_known_live(
    step: Step[R], committed: Committed, asked: Sequence[StoredFrame[Any]], sealed: frozenset[str]
) -> KnownLive[R]:
    """Looks up addresses in the facts about live ranges.

    Args:
        asked: frames with every wanted address, which have the columns of LIVE.
        sealed: slices that are sealed after the base run. Ranges with addresses in other slices are read, so addresses
            in other slices are not looked up.

    Raises:
        CorruptFile: a range differs from its facts, or a range to compare cannot be read.
    """
    engine = step.engine
    if not committed.tells_ranges:
        step.log("reading every range: it is unknown which ranges belong to other repositories")
        return KnownLive()
    first, *more = (frame.rows(engine, *LIVE.names) for frame in asked)
    wanted = select_sealed(engine, engine.union(first, *more), sealed)
    count, most = sum(frame.count for frame in asked), _ROUNDS * _LOOKED_UP_AT_ONCE
    if count > most:
        count = engine.count(wanted)
    if count > most:
        step.log(f"reading every range: {counted(count, 'addresses are')} looked up, more than {most:,}")
        return KnownLive()
    files = references.find_fact_files(step, HASHES)
    hashed = engine.collect(engine.map_batches(wanted, _hash_each, _HASH))
    hashes = distinct(hashed.column("hash").to_numpy().view(np.uint64))
    records = committed.records
    rounds = max(1, math.ceil(len(hashes) / _LOOKED_UP_AT_ONCE))
    look_up = partial(_look_up_part, step, files, named_once(records), pa.array(sorted(sealed), pa.string()))
    parts = [look_up(part) for part in np.array_split(hashes, rounds)]
    sums = _select_fitting(step, _select_ranges_of_every_round([each for each, _ in parts]), records)
    _require_facts_match(step, sums, records, files)
    each = sums.group_by("range_id").aggregate([("addresses", "max")])
    ids, recorded = _ids(each.column("range_id")), pc.sum(each.column("addresses_max")).as_py() or 0
    step.log(f"{len(ids):,} of {counted(len(records), 'live ranges are')} not read: earlier runs recorded them")
    hits = HashSet.from_hashes(np.concatenate([each for _, each in parts]))
    rows = engine.where(wanted, partial(hashing.has_hash_among, hits))
    return KnownLive(ids, recorded, rows, hashed.num_rows)


def _look_up_part(
    step: Step[R], files: Sequence[FactFile], named: IdSet, sealed: pa.StringArray, part: Hashes
) -> tuple[pa.Table, Hashes]:
    """The sums of ranges (SUMS), and the hashes of a part that any such range has.

    Hits may come from ranges whose facts do not fit, and which are read later. Such a hit can only keep an object.
    """
    hashes, namespace = HashSet.from_hashes(part), step.repository.namespace.uri
    look_up = partial(facts_of_ranges.look_up_hashes, namespace=namespace, wanted=named, sealed=sealed, hashes=hashes)
    looked_up = references.look_up_facts(step, HASHES, files, look_up, HASHES_LOOKED_UP)
    return facts_of_ranges.split_sums_and_hits(looked_up, hashes)


def _select_ranges_of_every_round(sums: Sequence[pa.Table]) -> pa.Table:
    """The distinct sums (SUMS) of the ranges that every part was looked up in.

    A file may be readable for one part and fail for the next. The hits of its ranges in the next part are then unknown.
    """
    ids = pa.concat_tables(each.select(["range_id"]).group_by("range_id").aggregate([]) for each in sums)
    times = ids.group_by("range_id").aggregate([([], "count_all")])
    each_time = times.filter(pc.equal(times.column("count_all"), len(sums))).column("range_id")
    everything = pa.concat_tables(sums)
    everything = everything.filter(pc.is_in(everything.column("range_id"), value_set=each_time.combine_chunks()))
    return everything.group_by(SUMS.names).aggregate([])


def named_once(records: RangeRecords) -> IdSet:
    """The ranges that all metaranges state with the same record; others are read, which fails."""
    counted = records.rows.group_by("id").aggregate([([], "count_all")])
    return _ids(counted.filter(pc.equal(counted.column("count_all"), 1)).column("id"))


def _ids(column: pa.ChunkedArray) -> IdSet:
    return IdSet.of_columns(batch.column("id") for batch in pa.table({"id": column}).to_batches(max_chunksize=8_192))


def _select_fitting(step: Step[R], sums: pa.Table, records: RangeRecords) -> pa.Table:
    """The sums (SUMS) of ranges whose facts all have as many entries as their metarange counts."""
    places = pc.index_in(sums.column("range_id"), value_set=records.rows.column("id").combine_chunks())
    fits = pc.fill_null(pc.equal(sums.column("entries"), records.rows.column("count").take(places)), False)
    wrong = sums.filter(pc.invert(fits)).column("range_id").unique()
    if len(wrong):
        step.warn(
            f"{counted(len(wrong), 'ranges are')} read, since their recorded facts have another number of entries than "
            f"their metarange states: {wrong[0]}"
        )
    return sums.filter(pc.invert(pc.is_in(sums.column("range_id"), value_set=wrong)))


def _require_facts_match(step: Step[R], sums: pa.Table, records: RangeRecords, files: Sequence[FactFile]) -> None:
    """Reads some ranges, and raises CorruptFile if one differs from its facts.

    After that, no run uses any of the files, with or without a base run.
    """
    ids = pc.unique(sums.column("range_id")).sort()
    # The choice is no secret, and a repeated attempt compares the same ranges.
    drawn = random.Random(step.plan.run_id + step.plan.attempt)  # noqa: S311
    chosen = ids.take(pa.array(drawn.sample(range(len(ids)), min(_RANGES_COMPARED, len(ids))), pa.int64()))
    some = RangeRecords(records.rows.filter(pc.is_in(records.rows.column("id"), value_set=chosen)))
    read = {row["range_id"]: row for row in step.engine.collect(References.from_step(step).sums(some)).to_pylist()}
    for row in sums.filter(pc.is_in(sums.column("range_id"), value_set=chosen)).to_pylist():
        if row != read.get(row["range_id"]):
            facts.refute(step.repository.store, files)
            raise CorruptFile(
                row["range_id"], "facts", "this range differs from its recorded facts; the next run reads every range"
            )


def _hash_each(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        hashes = hashing.hashes(batch.column("address")).view(np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(hashes)], schema=_HASH)
