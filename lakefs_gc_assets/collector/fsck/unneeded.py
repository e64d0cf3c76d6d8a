"""Unneeded metadata: old ranges and metaranges below `_lakefs/` that nothing names.

Commits, merges and imports that failed leave such files. An import leaves some even where it succeeds, and so does each
compaction of staging. A file is unneeded if no commit that the server knows names it, expired ones included, no
compacted base, no table of the refs dump, and no younger file. It is older than a week as well, by the earliest clock:
a commit under way has written its ranges before there is a commit. A table of an earlier refs dump stays, since nobody
can tell whether a person keeps it as a backup.

This only lists. What is listed may be needed again later, since ids are hashes of contents. `unneeded_metadata`
moves it.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.fsck.metadata import read_named
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import FILES_AHEAD, References
from lakefs_gc_assets.collector.records.outcomes import Amount
from lakefs_gc_assets.collector.repository.repository import Clocks, OpenRepository
from lakefs_gc_assets.collector.retention import commits
from lakefs_gc_assets.collector.stored.tables import IdSet
from lakefs_gc_assets.collector.sweep.recheck import store_time
from lakefs_gc_assets.errors import CorruptFile, LogLine
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX

MIN_AGE = timedelta(days=7)
"""Younger files may belong to a commit, a merge or an import under way."""
_UNNAMED = pa.schema([pa.field(name, pa.string()) for name in ("file", "kind", "names", "detail")])
"""Files that no commit names. A young metarange has a row for each range that it names (`names`)."""


class Kind(StrEnum):
    """Kind of a file."""

    RANGE = "range"
    METARANGE = "metarange"
    DUMP = "table of a refs dump"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class File:
    """A file below `_lakefs/`; `written_at` is LastModified by the store's clock, UTC."""

    id: str
    size: int
    written_at: datetime
    kind: Kind


@dataclass(frozen=True, slots=True)
class Listing:
    """Unneeded files, and why others stay that no commit names. Times UTC.

    Attributes:
        cutoff: files that were written then or later stay.
        files: unneeded ones, the oldest first.
        needed: number of files that commits, compacted bases, the refs dump and young metaranges name.
        kept: the other files, by the reason why they stay.
        count_as_live: true if the settings let what unneeded ranges hold count as live, however old they are.
    """

    repository: str
    made_at: datetime
    cutoff: datetime
    files: tuple[File, ...]
    needed: int
    kept: Mapping[str, Amount]
    count_as_live: bool

    @property
    def amount(self) -> Amount:
        """Unneeded files, and their bytes."""
        return Amount(len(self.files), sum(file.size for file in self.files))


@dataclass(frozen=True, slots=True)
class Survey:
    """A listing, and the ids of all files that something names, whether they are there or not."""

    listing: Listing
    named: IdSet


def find_unneeded(
    repository: OpenRepository,
    engine: Engine[R],
    note: LogLine,
    put_back: Callable[[Set[str]], None] = lambda ids: None,
) -> Survey:
    """Finds unneeded files.

    What is committed after the refs dump may need a file that is listed here.

    Args:
        note: receives lines about the progress.
        put_back: receives ids that something names, before the files are read. It puts back those in quarantine.
    Raises:
        CorruptFile: a file that may name others is missing or cannot be read: nothing is taken for unneeded.
        GuardTripped: another repository is on the storage namespace, or may be, or the clocks disagree.
        LakeFSError: the server refuses a refs dump, or it stays incomplete.
    """
    store, settings, now = repository.store, repository.settings, repository.clock.now()
    around = other_repositories.find(repository)
    guards.require_own_namespace(around.nested, around.refusal, settings)
    cutoff = _cutoff(repository, now)
    dump = commits.complete_dump(repository, repository.clock.now(), note)
    metaranges = [*dict.fromkeys([*commits.distinct_metaranges(dump.commits).to_pylist(), *dump.compacted])]
    tasks = settings.range_partitions or engine.tasks
    references = References(engine, repository.opener, repository.namespace, settings.slice_window, tasks)
    put_back(IdSet(metaranges))
    records, damaged = read_named(references, LiveFiles.metarange, metaranges)
    for name, detail in damaged.items():
        raise CorruptFile(METADATA_PREFIX + name, "metarange", f"{detail}; a commit or a compacted base names it")
    put_back(records.ids)
    needed = records.ids | IdSet([*metaranges, *dump.tables])
    listed = commits.list_with_times(store, needed)
    young = {name for name, (_, written_at) in listed.items() if written_at >= cutoff}
    note(f"{len(needed):,} files are named; reading {len(listed):,} that are not")
    kinds, named = _read_unnamed(references, [(name, size, name in young) for name, (size, _) in listed.items()])
    put_back(named)
    unneeded, kept = list[File](), dict[str, Amount]()
    for name, (size, written_at) in listed.items():
        file = File(name, size, written_at, kinds[name])
        if why := _why_kept(file, name in young, name in named):
            kept[why] = kept.get(why, Amount()).plus(1, file.size)
        else:
            unneeded.append(file)
    unneeded.sort(key=lambda file: (file.written_at, file.id))
    listing = Listing(
        repository.facts.id,
        now,
        cutoff,
        tuple(unneeded),
        len(needed | named),
        dict(sorted(kept.items())),
        settings.counts_old_unnamed_ranges,
    )
    return Survey(listing, needed | named)


def _cutoff(repository: OpenRepository, now: datetime) -> datetime:
    """Files that were written earlier are old enough. Raises GuardTripped where the clocks disagree."""
    grace_period = repository.api.grace_period()
    of_store = store_time(repository.store, layout.issue_run_id(now))
    clocks = Clocks.read(repository.clock.now(), repository.api.server_clocks, of_store)
    guards.require_clocks_agree(clocks, repository.skew)
    return clocks.cutoff(max(MIN_AGE, repository.min_age), grace_period, repository.skew)


def _why_kept(file: File, is_young: bool, is_named: bool) -> str:
    """Why a file stays that no commit names; empty for an unneeded one."""
    if file.kind is Kind.DUMP:
        return "tables of refs dumps, which somebody may keep as a backup"
    if is_young:
        return "too young: something under way may need them"
    if is_named:
        return "a young metarange names them"
    return "they cannot be read" if file.kind is Kind.UNREADABLE else ""


_Unnamed = tuple[str, int, bool]
"""Id and bytes of a file that no commit names, and whether it is young."""


def _read_unnamed(references: References[R], files: Sequence[_Unnamed]) -> tuple[dict[str, Kind], IdSet]:
    """The kind of each file, and the ids of ranges that young metaranges name.

    Raises CorruptFile where a young file cannot be read: a commit under way may need what it names.
    """
    if not files:
        return {}, IdSet()
    rows = references.engine.collect(references.of_groups(files, _describe_all, _UNNAMED))
    young = {name for name, _, is_young in files if is_young}
    for row in rows.filter(pc.equal(rows.column("kind"), Kind.UNREADABLE.value)).to_pylist():
        if row["file"] in young:
            detail = f"{row['detail']}; it is young, and may name what something under way needs"
            raise CorruptFile(METADATA_PREFIX + row["file"], "kind", detail)
    names, kinds = (rows.column(column).to_pylist() for column in ("file", "kind"))
    named = IdSet.of_columns(batch.column("names").drop_null() for batch in rows.to_batches())
    return {name: Kind(kind) for name, kind in zip(names, kinds, strict=True)}, named


def _describe_all(files: LiveFiles, group: Sequence[_Unnamed]) -> pa.Table:
    return pa.concat_tables(work_ahead(partial(_describe, files), group, FILES_AHEAD))


def _describe(files: LiveFiles, file: _Unnamed) -> pa.Table:
    """Rows about one file (_UNNAMED)."""
    name, size, is_young = file
    named, detail = list[str](), None
    try:
        named = files.unnamed((name, size)).column("id").to_pylist()
        # A metarange without ranges is taken for a table of a refs dump, and stays.
        kind = Kind.DUMP if not named else Kind.RANGE if named == [name] else Kind.METARANGE
    except CorruptFile as damage:
        kind, detail = Kind.UNREADABLE, f"{damage.check}: {damage.detail}"
    names = named if kind is Kind.METARANGE and is_young else [None]
    count = len(names)
    return pa.table([[name] * count, [kind.value] * count, names, [detail] * count], schema=_UNNAMED)
