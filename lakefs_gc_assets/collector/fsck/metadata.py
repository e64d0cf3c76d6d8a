"""Reads the metadata of live commits, and records what cannot be read instead of stopping at it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Item, R
from lakefs_gc_assets.collector.frame.frames import RANGES
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords
from lakefs_gc_assets.collector.live.references import References, read_each_once
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.retention import commits, retention
from lakefs_gc_assets.collector.retention.commits import Dump, IncompleteDump
from lakefs_gc_assets.collector.retention.retention import Retention
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, LakeFSError, LogLine, NotFound, NotSupported, counted
from lakefs_gc_assets.lakefs.api.models import Commit
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

LISTED, NEEDED, DAMAGED, LEFT_OUT = range(4)
"""What a row (ROWS) is about: an object of the listing, an address that is needed, a file that cannot be read, or
entries (`size` says how many) whose address is not certain."""
ROWS = pa.schema(
    [
        pa.field("what", pa.int64()),
        pa.field("address", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("etag", pa.string()),
        pa.field("range", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)
"""Input of the comparison. `range` is the beginning of a range's id as a number; null for what no range names."""
_NAMED = pa.schema([*(column.with_nullable(True) for column in RANGES), pa.field("detail", pa.string())])


class Kind(StrEnum):
    """What is wrong."""

    MISSING = "missing"
    QUARANTINED = "in quarantine"
    SIZE = "wrong size"
    CONTENT = "other content"
    METADATA = "unreadable"
    SHARED = "shared namespace"
    EXPIRED = "expired before"


class By(StrEnum):
    """Kind of the thing that names a metarange or holds an address."""

    BRANCH = "branch"
    TAG = "tag"
    COMMIT = "commit"
    STAGED = "staged on branch"
    UNCOMMITTED = "uncommitted data"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is needed.

    Attributes:
        reference: a branch, a tag or a commit, in words.
        commit_id: empty for what is staged.
        path: empty for a whole file of metadata.
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
        address: of the object or file, relative to the storage namespace; for a shared namespace the other repository.
        places: some of the places where it is needed.
    """

    kind: Kind
    address: str
    detail: str
    remedy: str
    places: tuple[Place, ...] = ()


PLACES = 5
_RESTORE_FILE = (
    "Put the file back from a version of the bucket or a backup: its content never changes. Until then runs stop at it "
    "and delete nothing"
)


@dataclass(frozen=True)
class Problems:
    """What was found so far."""

    log: LogLine
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def skip(self, what: str) -> None:
        """Records that something could not be checked."""
        self.unchecked.append(what)
        self.log(f"not checked: {what}")

    def unreadable(self, file: str, detail: str, places: Sequence[Place] = ()) -> None:
        """Records a file of metadata that cannot be read."""
        self.findings.append(Finding(Kind.METADATA, file, detail, _RESTORE_FILE, tuple(places[:PLACES])))


@dataclass(frozen=True)
class Commits:
    """Commits of one repository, and the ranges of their metaranges.

    Attributes:
        count: number of these commits.
        late: metaranges of those that are newer than the dump, by their ids.
        metarange_ids: those that can be read.
        damaged: metaranges that cannot be read, and why.
        heads: metaranges of branch heads, and of what is compacted on branches, where these matter.
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
        """Reads metaranges, those of heads first; each is read once, in this order."""
        ordered = [*dict.fromkeys(filter(None, [*heads, *named]))]
        records, damaged = read_named(References.from_step(step, repository), LiveFiles.metarange, ordered)
        readable = tuple(each for each in ordered if each not in damaged)
        return cls(repository, dump, count, late, readable, records, damaged, tuple(heads))

    def named_by(self, metarange_id: str) -> Iterator[tuple[By, str, int | None]]:
        """The branches with staged data, branches, tags, then other commits, newest first, that name a metarange.

        Yields kind, name, and position of the commit in the dump; None for what has no commit there.
        """
        dump, columns = self.dump, self.dump.commits
        if metarange_id in dump.compacted:
            yield By.STAGED, dump.compacted[metarange_id], None
        positions = pc.indices_nonzero(pc.equal(columns.metarange_ids, metarange_id))
        ids = dict(zip(columns.ids.take(positions).to_pylist(), positions.to_pylist(), strict=True))
        for by, references in ((By.BRANCH, dump.branches), (By.TAG, dump.tags)):
            for name, commit_id in references.items():
                if commit_id in ids:
                    yield by, name, ids[commit_id]
        yield from ((By.COMMIT, commit_id, None) for commit_id, late in self.late.items() if late == metarange_id)
        others = ids.keys() - {*dump.branches.values(), *dump.tags.values()}
        for commit_id in sorted(others, key=lambda commit_id: (-int(columns.seconds[ids[commit_id]]), commit_id)):
            yield By.COMMIT, commit_id, ids[commit_id]

    def places(self, metarange_id: str) -> Iterator[Place]:
        """Where a metarange is needed, in the order of `named_by`."""
        for by, name, at in self.named_by(metarange_id):
            commit_id = name if by is By.COMMIT else "" if at is None else self.dump.commits.ids[at].as_py()
            yield Place(self.repository.facts.id, f"{by} {name}", commit_id)


def read_commits(step: Step[R], repository: OpenRepository, *, by_rules: bool = True) -> tuple[Dump, Retention | None]:
    """All commits of a repository, and which of them stay by its rules.

    The rules of other repositories than the step's do not count: None stands for all of their commits.

    Args:
        by_rules: False if all commits are asked for.
    """
    now = repository.clock.now()
    if not by_rules or repository is not step.repository:
        return commits.complete_dump(repository, now, step.log), None
    readings = retention.read(repository, now, step.log)
    return readings.dump, retention.retention(repository, readings, step.plan.earliest_clock)


def find_live(step: Step[R], repository: OpenRepository, problems: Problems, every_commit: bool) -> Commits:
    """Finds the live commits of a repository and the ranges of their metaranges, and records what cannot be read.

    Metaranges of branch heads are read first, then the newest.
    """
    retained, is_complete = None, True
    try:
        dump, retained = read_commits(step, repository, by_rules=not every_commit)
    except (AccessDenied, NotFound, NotSupported, IncompleteDump) as refusal:
        problems.skip(f"commits of {repository.facts.id} that no branch or tag names, without a refs dump: {refusal}")
        is_complete = False
    except CorruptFile as damage:
        problems.unreadable(damage.file, f"{damage.check}: {damage.detail}")
        problems.skip(f"commits of {repository.facts.id} that no branch or tag names, since {damage.file} is damaged")
        is_complete = False
    if not is_complete:
        dump = _ask_for_heads(repository, problems)
    late, stays = (retained.late, retained.flags) if retained else ({}, None)
    live = dump.live(stays)
    heads, named = [*live.heads.values(), *dump.compacted], [*late.values(), *reversed(live.metarange_ids)]
    found = Commits.with_ranges(step, repository, dump, live.commits + len(late), late, named, heads)
    if is_complete and repository is step.repository and repository.settings.keep_unnamed_ranges:
        expired = [] if stays is None else commits.distinct_metaranges(dump.commits, ~stays).to_pylist()
        _check_unnamed(References.from_step(step), found, sorted({*expired}.difference(heads, named)), problems)
    return found


def _ask_for_heads(repository: OpenRepository, problems: Problems) -> Dump:
    """What the server says of branches and tags one by one, in place of a dump of all references."""
    api, clock = repository.api, repository.clock
    started_at, named, fetched = clock.now(), list[dict[str, str]](), dict[str, Commit]()
    for kind, references in (("branch", api.branches()), ("tag", api.tags())):
        named.append({})
        for reference in references:
            try:
                fetched[reference.commit_id] = fetched.get(reference.commit_id) or api.commit(reference.commit_id)
                named[-1][reference.id] = reference.commit_id
            except NotFound as missing:
                place = Place(repository.facts.id, f"{kind} {reference.id}", reference.commit_id)
                problems.unreadable(f"commit {reference.commit_id}", f"the server does not know it: {missing}", [place])
            except LakeFSError as error:
                problems.skip(f"what {kind} {reference.id} of {repository.facts.id} needs: {error}")
    columns = CommitColumns.from_commits([*fetched.values()])
    return Dump(started_at, clock.now(), columns, named[0], named[1], 0)


def read_named(
    references: References[R], ranges_of: Callable[[LiveFiles, Item], pa.Table], files: Sequence[Item]
) -> tuple[RangeRecords, dict[str, str]]:
    """The distinct ranges that files name, as `References.range_records` has them, and what is wrong with some files.

    Args:
        ranges_of: reads one file; what it raises is recorded.
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


def _check_unnamed(references: References[R], live: Commits, expired: Sequence[str], problems: Problems) -> None:
    """Reads what a run reads beside live commits: metaranges of expired ones, and files that no commit names."""
    records, damaged = read_named(references, LiveFiles.metarange, expired)
    known = live.records.ids | records.ids | IdSet([*live.metarange_ids, *live.damaged, *expired, *live.dump.tables])
    sizes = commits.list_ids(live.repository.store, known)
    unnamed, strange = read_named(references, LiveFiles.unnamed, [*sizes.items()])
    rows = references.of_ranges(unnamed.without(known), _only_damage, ROWS)
    strange |= {row["address"]: row["detail"] for row in references.engine.collect(rows).to_pylist()}
    for name, detail in damaged.items():
        problems.unreadable(METADATA_PREFIX + name, f"{detail}; only expired commits name it")
    for name, detail in strange.items():
        problems.unreadable(METADATA_PREFIX + name.removeprefix(METADATA_PREFIX), detail)


def make_rows(
    what: int, addresses: pa.StringArray, sizes: pa.Array | None = None, etags: pa.Array | None = None, range_: int = 0
) -> pa.Table:
    """Rows of one kind (ROWS).

    Args:
        range_: number of the range that names the addresses; 0 for none.
    """
    count = len(addresses)
    columns = [
        pa.repeat(pa.scalar(what, pa.int64()), count),
        addresses,
        pa.nulls(count, pa.int64()) if sizes is None else sizes,
        pa.nulls(count, pa.string()) if etags is None else etags,
        pa.repeat(pa.scalar(range_ or None, pa.int64()), count),
        pa.nulls(count, pa.string()),
    ]
    return pa.table(columns, schema=ROWS)


def number_of(range_id: str) -> int:
    """The beginning of a range's id: a number that takes little space beside each of its entries."""
    return int(range_id[:15], 16)


def damage_row(corrupt: CorruptFile, record: RangeRecord | None = None) -> pa.Table:
    """A row (ROWS) about a file that cannot be read, which may be a range."""
    detail = f"{corrupt.check}: {corrupt.detail}"
    if record is not None:
        first, last = (key.decode("utf-8", "replace") for key in (record.min_key, record.max_key))
        detail += f". It holds {counted(record.count, 'entries')}, from {first} to {last}"
    row = {"what": DAMAGED, "address": corrupt.file, "detail": detail, "range": record and number_of(record.id)}
    return pa.Table.from_pylist([row], schema=ROWS)


def read_entries(files: LiveFiles, record: RangeRecord) -> pa.Table:
    """Entries of a range (ROWS), or what is wrong with it."""
    try:
        entries, left_out = files.sized(record)
    except CorruptFile as corrupt:
        return damage_row(corrupt, record)
    address, size, etag = entries.columns
    rows = make_rows(NEEDED, address, size, etag, number_of(record.id))
    if not left_out:
        return rows
    return pa.concat_tables([rows, make_rows(LEFT_OUT, pa.array([""]), pa.array([left_out], pa.int64()))])


def _only_damage(files: LiveFiles, record: RangeRecord) -> pa.Table:
    rows = read_entries(files, record)
    return rows.filter(pc.equal(rows.column("what"), DAMAGED))
