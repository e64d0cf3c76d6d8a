"""Reads the commits of a repository and the ranges of their metaranges; records unreadable files.

A run stops at the first damaged file. Checks and erasures go on with the other files, and report the damaged ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import Dump
from lakefs_gc_assets.collector.engine.port import Engine, Item, R
from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.incremental import planning
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords
from lakefs_gc_assets.collector.live.references import References, read_each_once
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.retention.retention import Retention
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, LakeFSError, LogLine, OrderViolation
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

_NAMED = pa.schema([*(column.with_nullable(True) for column in RANGES), pa.field("detail", pa.string())])


class FindingKind(StrEnum):
    """Kind of a problem."""

    MISSING = "missing"
    QUARANTINED = "in quarantine"
    SIZE = "wrong size"
    CONTENT = "other content"
    METADATA = "unreadable"
    SHARED = "shared namespace"
    EXPIRED = "expired before"


class HolderKind(StrEnum):
    """Kind of the thing that names a metarange or holds an address."""

    BRANCH = "branch"
    TAG = "tag"
    COMMIT = "commit"
    STAGED = "staged on branch"
    UNCOMMITTED = "uncommitted data"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class Place:
    """A place that needs an object or file.

    Attributes:
        reference: a branch, a tag or a commit, in words.
        commit_id: empty for a staged object.
        path: empty for a whole metadata file.
    """

    repository: str
    reference: str
    commit_id: str = ""
    path: str = ""

    def __str__(self) -> str:
        commit = f", commit {self.commit_id}" if self.commit_id and self.commit_id not in self.reference else ""
        return f"{self.repository}, {self.reference}{commit}{f', path {self.path}' if self.path else ''}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem.

    Attributes:
        address: address of the object or file, relative to the storage namespace; for a shared namespace the id of the
            other repository.
        places: some of the places that need it.
    """

    kind: FindingKind
    address: str
    detail: str
    remedy: str
    places: tuple[Place, ...] = ()


PLACES = 5
_RESTORE_FILE = (
    "Restore the file from a version of the bucket or a backup: its content never changes. Until then runs stop at it "
    "and delete nothing"
)


@dataclass(frozen=True)
class Problems:
    """Problems found so far."""

    log: LogLine
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def skip(self, what: str) -> None:
        """Records that something could not be checked."""
        self.unchecked.append(what)
        self.log(f"not checked: {what}")

    def unreadable(self, file: str, detail: str, places: Sequence[Place] = ()) -> None:
        """Records an unreadable metadata file."""
        self.findings.append(Finding(FindingKind.METADATA, file, detail, _RESTORE_FILE, tuple(places[:PLACES])))


@dataclass(frozen=True)
class Commits:
    """Commits of one repository, and the ranges of their metaranges.

    Attributes:
        count: number of commits.
        late: metaranges of commits newer than the dump, by commit id.
        metarange_ids: readable metaranges.
        damaged: unreadable metaranges, with the reason.
        heads: metaranges of branch heads and of compacted staging, if the caller gave them.
    """

    repository: OpenRepository
    dump: Dump
    count: int
    late: Mapping[str, str]
    metarange_ids: tuple[str, ...]
    records: RangeRecords
    damaged: Mapping[str, str]
    heads: tuple[str, ...] = ()

    @classmethod
    def with_ranges(
        cls,
        step: Step[R],
        repository: OpenRepository,
        dump: Dump,
        count: int,
        late: Mapping[str, str],
        named: Iterable[str],
        heads: Sequence[str] = (),
    ) -> "Commits":
        """Reads each metarange once, heads first."""
        ordered = [*dict.fromkeys(filter(None, [*heads, *named]))]
        records, damaged = read_named(References.from_step(step, repository), LiveFiles.metarange, ordered)
        readable = tuple(each for each in ordered if each not in damaged)
        return cls(repository, dump, count, late, readable, records, damaged, tuple(heads))

    def named_by(self, metarange_id: str) -> Iterator[tuple[HolderKind, str, int | None]]:
        """The branches with compacted staging, branches, tags, then other commits, newest first, that name a metarange.

        Yields kind, name, and position of the commit in the dump; None if the dump has no such commit.
        """
        dump, columns = self.dump, self.dump.commits
        if metarange_id in dump.compacted:
            yield HolderKind.STAGED, dump.compacted[metarange_id], None
        positions = pc.indices_nonzero(pc.equal(columns.metarange_ids, metarange_id))
        ids = dict(zip(columns.ids.take(positions).to_pylist(), positions.to_pylist(), strict=True))
        for by, references in ((HolderKind.BRANCH, dump.branches), (HolderKind.TAG, dump.tags)):
            for name, commit_id in references.items():
                if commit_id in ids:
                    yield by, name, ids[commit_id]
        yield from (
            (HolderKind.COMMIT, commit_id, None) for commit_id, late in self.late.items() if late == metarange_id
        )
        others = ids.keys() - {*dump.branches.values(), *dump.tags.values()}
        for commit_id in sorted(others, key=lambda commit_id: (-int(columns.seconds[ids[commit_id]]), commit_id)):
            yield HolderKind.COMMIT, commit_id, ids[commit_id]

    def places(self, metarange_id: str) -> Iterator[Place]:
        """Places that need a metarange, in the order of `named_by`."""
        for by, name, at in self.named_by(metarange_id):
            commit_id = name if by is HolderKind.COMMIT else "" if at is None else self.dump.commits.ids[at].as_py()
            yield Place(self.repository.facts.id, f"{by} {name}", commit_id)


def read_commits(step: Step[R], repository: OpenRepository, *, by_rules: bool = True) -> tuple[Dump, Retention | None]:
    """All commits of a repository, and the commits that stay under its rules.

    Rules of repositories other than the step's do not count: None means that all commits stay.

    Args:
        by_rules: False to keep all commits.
    """
    now = repository.clock.now()
    if not by_rules or repository is not step.repository:
        return commits.complete_dump(repository, now, step.log), None
    readings = retention.read(repository, now, step.log)
    return readings.dump, retention.retention(repository, readings, step.plan.earliest_clock)


def begin_reading(
    repository: OpenRepository, engine: Engine[R], problems: Problems, owner: str
) -> tuple[Step[R], tuple[str, ...]]:
    """A step without a lock, and the files of uncommitted data that the server wrote for it."""
    now, files = repository.clock.now(), tuple[str, ...]()
    store_clock = None
    try:
        prepared = uncommitted.prepare(repository)
        files, store_clock = prepared.files, uncommitted.record_without_run(repository, prepared, problems.log)
    except (LakeFSError, OrderViolation, CorruptFile) as error:
        problems.skip(f"staged objects that no branch lists, since uncommitted data is not available: {error}")
    # A step of this flow records no facts about the files that it reads.
    plan = planning.make_plan(repository, layout.issue_run_id(now), (), owner, store_clock or now, Flow.CLEAN)
    return Step(problems.log, problems.log, repository, engine, plan, None), files


def read_named(
    references: References[R], ranges_of: Callable[[LiveFiles, Item], pa.Table], files: Sequence[Item]
) -> tuple[RangeRecords, dict[str, str]]:
    """The distinct ranges that files name, as `References.range_records` returns them, and the damage of other files.

    Args:
        ranges_of: reads one file; its errors are recorded.
    """
    if not files:
        return RangeRecords(RANGES.empty_table()), {}
    read, engine = partial(read_each_once, partial(_ranges_or_damage, ranges_of)), references.engine
    rows = engine.collect(engine.distinct(references.of_groups(files, read, _NAMED)))
    is_damaged = pc.is_valid(rows.column("detail"))
    damaged = {row["id"]: row["detail"] for row in rows.filter(is_damaged).to_pylist()}
    return RangeRecords.of_rows(rows.filter(pc.invert(is_damaged))), damaged


def _ranges_or_damage(ranges_of: Callable[[LiveFiles, Item], pa.Table], files: LiveFiles, file: Item) -> pa.Table:
    try:
        rows = ranges_of(files, file)
    except CorruptFile as damage:
        name = damage.file.removeprefix(METADATA_PREFIX)
        return pa.Table.from_pylist([{"id": name, "detail": f"{damage.check}: {damage.detail}"}], schema=_NAMED)
    return rows.append_column("detail", pa.nulls(rows.num_rows, pa.string())).cast(_NAMED)
