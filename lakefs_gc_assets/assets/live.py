"""What is live: asked of the repository and of those that `also_live` names, at the mark and again at the recheck."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from lakefs_gc_assets.assets.step import Step
from lakefs_gc_assets.collection import borrowed, commits, retention, uncommitted
from lakefs_gc_assets.collection.commits import CommitSource, LiveCommits
from lakefs_gc_assets.collection.repository import OpenRepository
from lakefs_gc_assets.collection.retention import LiveDefinition
from lakefs_gc_assets.collection.uncommitted import Prepared
from lakefs_gc_assets.lakefs.ranges import RangeRecord
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.tasks import Rows

_ROWS_OF_A_FILE = 250_000
"""Addresses in one file of uncommitted data, about: a real server fills files up to 20 MB."""
_ROWS_OF_A_RANGE = 50_000
"""Entries of a range that no metarange named, about."""


@dataclass(frozen=True)
class Uncommitted:
    """Uncommitted data of every repository that counts.

    Attributes:
        prepared: of each repository, this one's first.
        addresses: all addresses (LIVE), an address perhaps several times.
        ended_at: when everything was asked for; commits are read after it.
    """

    prepared: tuple[Prepared, ...]
    addresses: tuple[Rows, ...]
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
    def rows(self) -> int:
        """How many addresses there are, about."""
        return self.files * _ROWS_OF_A_FILE

    @classmethod
    def prepare(cls, run: Step, progress: Callable[[int], None] = lambda pages: None) -> "Uncommitted":
        """Makes the server write its uncommitted data now, proved complete. Raises LakeFSError."""
        repositories = (run.repository, *run.repository.others)
        prepared = tuple(
            uncommitted.prepare_checked(
                each.api,
                each.store,
                each.namespace,
                each.settings,
                each.clock,
                run.plan.cutoff,
                progress,
                commits_expire=run.plan.flow.by_retention,
            )
            for each in repositories
        )
        addresses: list[Rows] = [
            run.references(each).uncommitted(found.files) for each, found in zip(repositories, prepared, strict=True)
        ]
        if run.repository.others:
            apis = [each.api for each in run.repository.others]
            elsewhere = borrowed.staged_elsewhere(apis, run.repository.namespace, run.plan.slice_window)
            addresses.append(tasks.of_table(run.spark, elsewhere))
        return cls(prepared, tuple(addresses), run.repository.clock.now())


@dataclass(frozen=True, slots=True)
class Unread:
    """What of a repository's live commits was not read before.

    Attributes:
        metarange_ids: metaranges, where commits are known.
        records: their ranges that were not read before.
        files: metadata files, with the fallback.
    """

    repository: OpenRepository
    source: CommitSource
    metarange_ids: tuple[str, ...]
    records: tuple[RangeRecord, ...]
    files: tuple[str, ...]

    @classmethod
    def of(cls, run: Step, repository: OpenRepository, live: LiveCommits, known: frozenset[str]) -> "Unread":
        """Reads the metaranges that are not among the known ids."""
        metarange_ids = tuple(name for name in live.metarange_ids if name not in known)
        records = run.references(repository).range_records(metarange_ids)
        return cls(
            repository,
            live.source,
            metarange_ids,
            tuple(record for record in records if record.id not in known),
            tuple(name for name in live.files if name not in known),
        )

    @property
    def ids(self) -> frozenset[str]:
        """Ids of everything that is read."""
        return frozenset([*self.metarange_ids, *self.files, *(record.id for record in self.records)])

    @property
    def ranges(self) -> int:
        """How many ranges or files are read."""
        return len(self.records) or len(self.files)

    @property
    def promised(self) -> int | None:
        """How many entries the metaranges count; None where none is read."""
        if self.source is CommitSource.METADATA_FOLDER:
            return None
        return sum(record.count for record in self.records)

    @property
    def rows(self) -> int:
        """How many addresses there are, about."""
        return len(self.files) * _ROWS_OF_A_RANGE if self.promised is None else self.promised

    def addresses(self, run: Step) -> Rows:
        """The addresses (LIVE), an address perhaps several times."""
        references = run.references(self.repository)
        if self.source is CommitSource.METADATA_FOLDER:
            return references.of_metadata_files(self.files)
        return references.committed(self.records)


@dataclass(frozen=True)
class Committed:
    """Commits of every repository that counts, and what of them was not read before.

    Attributes:
        own: the live commits of this repository.
        unread: of each repository, this one's first.
        definition: what retention rules keep, in flows that apply them.
    """

    own: LiveCommits
    unread: tuple[Unread, ...]
    definition: LiveDefinition | None

    @property
    def ids(self) -> frozenset[str]:
        """Ids of everything that is read."""
        return frozenset[str]().union(*(each.ids for each in self.unread))

    @property
    def source(self) -> str:
        """Where the commits were learnt from; of each repository, this one's first, where that differs."""
        sources = [each.source.value for each in self.unread]
        return sources[0] if len(set(sources)) == 1 else ", ".join(sources)

    @property
    def ranges(self) -> int:
        """How many ranges or files are read."""
        return sum(each.ranges for each in self.unread)

    def addresses(self, run: Step) -> list[Rows]:
        """All addresses (LIVE) that were not read before, an address perhaps several times."""
        return [each.addresses(run) for each in self.unread]

    @property
    def rows(self) -> int:
        """How many addresses there are, about."""
        return sum(each.rows for each in self.unread)

    @classmethod
    def ask(
        cls, run: Step, prepared_until: datetime, known: frozenset[str], shown: Collection[str] = ()
    ) -> "Committed":
        """Learns which commits are live, and reads the metaranges that are not among the known ids.

        Args:
            prepared_until: end of the last preparation of uncommitted data.
            shown: heads there were before it, see `retention.live_definition`.
        Raises:
            LakeFSError, CorruptFile: where the answer is not complete.
        """
        definition = _by_rules(run, prepared_until, shown) if run.plan.flow.by_retention else None
        own = definition.live if definition else _every_commit(run, run.repository, prepared_until)
        others = ((each, _every_commit(run, each, prepared_until)) for each in run.repository.others)
        unread = (Unread.of(run, each, live, known) for each, live in ((run.repository, own), *others))
        return cls(own, tuple(unread), definition)


def _every_commit(run: Step, repository: OpenRepository, prepared_until: datetime) -> LiveCommits:
    return commits.live_commits(
        repository.api, repository.store, repository.settings, repository.clock, prepared_until, run.log
    )


def heads_shown(run: Step) -> list[str]:
    """Heads of the branches now, to be asked for before uncommitted data; by retention rules alone they matter."""
    return [branch.commit_id for branch in run.repository.api.branches()] if run.plan.flow.by_retention else []


def _by_rules(run: Step, prepared_until: datetime, shown: Collection[str]) -> LiveDefinition:
    repository = run.repository
    return retention.live_definition(
        repository.api,
        repository.store,
        repository.namespace,
        repository.settings,
        repository.clock,
        run.plan.earliest_clock,
        prepared_until,
        run.log,
        shown,
    )
