"""Live commits: all commits in the server's refs dump, proved complete, or every range file as a fallback.

A refs dump is no snapshot: branches are dumped after commits, so its commits lack heads made in between. It counts only
if every branch head, tag and parent is known; commits that a busy server omitted are fetched one by one.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache, partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from lakefs_gc_assets.collector.engine.work import gather, work_ahead
from lakefs_gc_assets.collector.records.tables import lacking
from lakefs_gc_assets.collector.repository.repository import Clock, OpenRepository
from lakefs_gc_assets.errors import AccessDenied, CorruptFile, LakeFSError, LogLine, NotFound, NotSupported
from lakefs_gc_assets.lakefs.api.models import Commit, LakeFSApi, PreparedCommits, RefsDump
from lakefs_gc_assets.lakefs.formats import ranges, refs
from lakefs_gc_assets.lakefs.formats.refs import CommitColumns, Entity
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ListsAtOnce, ListsInOrder, ObjectStore, as_batch, fetch

Rows = TypeVar("Rows")

_DUMP_TRIES = 3
_FIRST_POLL_SECONDS = 0.2
_LONGEST_POLL_SECONDS = 10.0
NOT_LISTED = np.iinfo(np.int64).min
"""Replaces the time of a file that the listing lacks."""
_ID = r"^[0-9a-f]{64}$"
_BEHIND_ALL_IDS = f"{METADATA_PREFIX}g"
"""End of the listing: every id sorts before this, and the folder `retention/` after it."""
_AT_ONCE = 100_000
"""Minimum files per lookup of write times: each lookup rebuilds a hash table of all ids."""


class CommitSource(StrEnum):
    """Source of the live commits."""

    REFS_DUMP = "refs dump"
    METADATA_FOLDER = "metadata folder"


@dataclass(frozen=True, slots=True)
class LiveCommits:
    """Everything that holds committed entries.

    Attributes:
        metarange_ids: distinct metaranges of all commits, roughly by date; empty with the fallback.
        files: names of all metadata files of any kind, with the fallback; empty with a refs dump.
        heads: metarange of the branch head, by branch; branches with an empty head are left out.
        commits: number of live commits; 0 with the fallback, which does not know it.
        fetched: number of commits that the dump lacked and the API returned.
        dump_tables: ids of the dump's own files, which lie beside the metaranges and hold no objects.
        waited: seconds spent on protective waits before reading commits; they do not count as work.
        compacted: branches by compacted base, a metarange of staged entries that no commit names. Empty with the
            fallback, which reads every file.
        branches: commit id by branch, hidden branches included.
    """

    source: CommitSource
    started_at: datetime
    ended_at: datetime
    metarange_ids: tuple[str, ...]
    files: tuple[str, ...]
    heads: dict[str, str]
    commits: int = 0
    fetched: int = 0
    dump_tables: tuple[str, ...] = ()
    waited: float = 0.0
    compacted: Mapping[str, str] = field(default_factory=dict)
    branches: Mapping[str, str] = field(default_factory=dict)

    def moved_since(self, before: Sequence[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
        """Earlier heads of repositories; of the first, this one, only branches that are on another commit by now."""
        moved = [{name: id_ for name, id_ in own.items() if self.branches.get(name, id_) != id_} for own in before[:1]]
        return (*moved, *before[1:])


@dataclass(frozen=True, slots=True)
class Dump:
    """The contents of a refs dump, proved complete: heads, tags and parents are all among its commits.

    Attributes:
        branches, tags: commit id by name, hidden branches included.
        fetched: number of commits that the dump lacked and the API returned.
        tables: ids of its files.
        waited, compacted: as in LiveCommits.
    """

    started_at: datetime
    ended_at: datetime
    commits: CommitColumns
    branches: dict[str, str]
    tags: dict[str, str]
    fetched: int
    tables: tuple[str, ...] = ()
    waited: float = 0.0
    compacted: Mapping[str, str] = field(default_factory=dict)

    def live(self, stays: npt.NDArray[np.bool_] | None = None) -> LiveCommits:
        """All of its commits, or only those with a flag; branch heads are always included."""
        at = self.commits.positions(pa.array(self.branches.values(), pa.string()))
        metaranges = zip(self.branches, self.commits.metarange_ids.take(pa.array(at)).to_pylist(), strict=True)
        return LiveCommits(
            CommitSource.REFS_DUMP,
            self.started_at,
            self.ended_at,
            tuple(distinct_metaranges(self.commits, stays).to_pylist()),
            (),
            {branch: metarange for branch, metarange in metaranges if metarange},
            len(self.commits) if stays is None else int(stays.sum()),
            self.fetched,
            self.tables,
            self.waited,
            self.compacted,
            self.branches,
        )


def distinct_metaranges(commits: CommitColumns, which: npt.NDArray[np.bool_] | None = None) -> pa.StringArray:
    """The metaranges of all commits, or some, each once; commits without objects have none.

    They are ordered by commit date, since consecutive ones name mostly the same ranges.
    """
    at = np.arange(len(commits)) if which is None else np.flatnonzero(which)
    by_date = at[np.argsort(commits.seconds[at], kind="stable")]
    metaranges = pc.unique(commits.metarange_ids.take(pa.array(by_date)))
    return metaranges.filter(pc.not_equal(metaranges, ""))


class IncompleteDump(LakeFSError):
    """A refs dump lacks commits that its own branches, tags or commits name."""


def live_commits(
    repository: OpenRepository, prepared_until: datetime, note: LogLine = lambda message: None, *, at_once: bool = False
) -> LiveCommits:
    """All commits from the refs dump; if dumping is refused or unsupported, every range file of the repository.

    Args:
        prepared_until: end of the last preparation of uncommitted data; the dump starts a set time later.
        note: writes a line to the log.
        at_once: as for `complete_dump`.
    Raises:
        LakeFSError: on any timeout or failure other than 401, 403, 404, 501, or if the dump stays incomplete.
        CorruptFile: one of its files cannot be read.
    """
    began = repository.clock.now()
    try:
        return complete_dump(repository, prepared_until, note, at_once=at_once).live()
    except (AccessDenied, NotFound, NotSupported) as refusal:
        return without_dump(repository, prepared_until, began, refusal, note)


def without_dump(
    repository: OpenRepository, prepared_until: datetime, began: datetime, refusal: LakeFSError, note: LogLine
) -> LiveCommits:
    """All commits by the metadata folder, with the same delay after uncommitted data as for a refs dump.

    Args:
        began: when the dump was requested, UTC.
        refusal: reason why there is none.
    """
    note(f"no refs dump ({refusal}): reading every range file of the repository instead")
    starts_at = _starts_at(repository, prepared_until)
    repository.wait_until(starts_at, note, "reading commits")
    return replace(every_metadata_file(repository), waited=max((starts_at - began).total_seconds(), 0.0))


def complete_dump(
    repository: OpenRepository,
    prepared_until: datetime,
    note: LogLine = lambda message: None,
    named: Collection[str] = (),
    *,
    at_once: bool = False,
) -> Dump:
    """A complete refs dump: commits that a busy server omitted are fetched, or another dump is requested.

    It starts a set time after uncommitted data was prepared. By then most commits under way have ended. A server whose
    database answers scans with data some seconds old knows them too. Longer commits are the reason for the wait before
    the recheck, see `commits_under_way`.

    Args:
        prepared_until: as for `live_commits`.
        at_once: skips that wait. Only for marks that delete nothing: the recheck of an approval makes up for it.
        named: ids of commits that must be in the result; missing ones are fetched.
    Raises:
        AccessDenied, NotFound, NotSupported: the server refuses to dump, or does not support it.
        LakeFSError: on any other failure, or if the dump stays incomplete.
        CorruptFile: one of its files cannot be read.
    """
    waited = 0.0
    if not at_once:
        waited = repository.wait_until(_starts_at(repository, prepared_until), note, "reading commits")
    dump = dump_refs(repository.api, repository.store, repository.settings, repository.clock, note, named)
    return replace(dump, waited=waited)


def _starts_at(repository: OpenRepository, prepared_until: datetime) -> datetime:
    """Time at which a refs dump may start, after the preparation of uncommitted data."""
    return prepared_until + timedelta(seconds=repository.settings.wait_before_dump_seconds)


def dump_refs(
    api: LakeFSApi,
    store: ObjectStore,
    settings: CollectionSettings,
    clock: Clock,
    note: LogLine = lambda message: None,
    named: Collection[str] = (),
) -> Dump:
    """A complete refs dump without any wait. Runs use `complete_dump`, which raises the same errors."""
    started_at = clock.now()
    problem: IncompleteDump | None = None
    for _ in range(_DUMP_TRIES):
        try:
            return _dumped(api, store, settings, clock, started_at, named)
        except IncompleteDump as incomplete:
            note(f"{incomplete}; requesting another one")
            problem = incomplete
    raise IncompleteDump(f"{_DUMP_TRIES} refs dumps in a row were incomplete, the last: {problem}")


def _dumped(
    api: LakeFSApi,
    store: ObjectStore,
    settings: CollectionSettings,
    clock: Clock,
    started_at: datetime,
    named: Collection[str],
) -> Dump:
    dump = _finished_dump(api, settings, clock)
    tables: list[str] = []

    def parts(metarange_id: str, entity: Entity, read: Callable[..., Rows]) -> Iterator[Rows]:
        """The parts of a table, through its metarange; counts and bounds are checked."""
        key = METADATA_PREFIX + metarange_id
        tables.append(metarange_id)
        for part in ranges.read_metarange(fetch(store, key), key, entity=entity):
            tables.append(part.id)
            part_key = METADATA_PREFIX + part.id
            yield read(fetch(store, part_key), part_key, expected=part)

    commits = CommitColumns.joined(list(parts(dump.commits_meta_range_id, "commit", refs.read_commits)))
    records = [branch for part in parts(dump.branches_meta_range_id, "branch", refs.read_branches) for branch in part]
    branches = {branch.id: branch.commit_id for branch in records}
    tags = {tag.id: tag.commit_id for part in parts(dump.tags_meta_range_id, "tag", refs.read_tags) for tag in part}
    if not branches:
        raise IncompleteDump("the refs dump has no branch, but every repository has one")
    fetched = _fetch_missing(api, settings, commits, [*branches.values(), *tags.values(), *named])
    if fetched:
        commits = CommitColumns.joined([commits, CommitColumns.from_commits(fetched)])
    compacted = {base: branch.id for branch in records for base in branch.compacted_bases}
    return Dump(started_at, clock.now(), commits, branches, tags, len(fetched), tuple(tables), compacted=compacted)


def _finished_dump(api: LakeFSApi, settings: CollectionSettings, clock: Clock) -> RefsDump:
    task = api.start_refs_dump()
    deadline = clock.now() + timedelta(seconds=settings.dump_timeout_seconds)
    pause = _FIRST_POLL_SECONDS
    while True:
        try:
            dump = api.refs_dump(task)
        except (AccessDenied, NotFound, NotSupported) as lost:
            raise IncompleteDump(f"the refs dump {task} was started, but its state was refused: {lost}") from lost
        if dump.done:
            break
        if clock.now() >= deadline:
            raise LakeFSError(
                f"the refs dump {task} was not finished after {settings.dump_timeout_seconds:.0f} s. See the server's "
                "log, or raise collection.dump_timeout_seconds"
            )
        clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_POLL_SECONDS)
    if dump.error:
        raise IncompleteDump(f"the refs dump {task} failed: {dump.error}")
    if not (dump.commits_meta_range_id and dump.branches_meta_range_id and dump.tags_meta_range_id):
        raise IncompleteDump(f"the refs dump {task} is finished, but lacks one of its three tables")
    return dump


def _fetch_missing(
    api: LakeFSApi, settings: CollectionSettings, commits: CommitColumns, named_ids: Iterable[str]
) -> list[Commit]:
    """Commits that `named_ids` or parents name and the dump lacks, with their ancestors down to known commits."""
    wanted = pc.unique(pa.concat_arrays([pa.array(named_ids, pa.string()), commits.parents]))
    missing = wanted.filter(pa.array(commits.positions(wanted) < 0)).to_pylist()
    if not missing:
        return []
    known_ids = set(commits.ids.to_pylist())
    fetched: list[Commit] = []
    while missing:
        commit_id = missing.pop()
        if commit_id in known_ids:
            continue
        if len(fetched) >= settings.dump_fetch_limit:
            raise IncompleteDump(f"the refs dump lacks more than {settings.dump_fetch_limit} commits")
        try:
            commit = api.commit(commit_id)
        except NotFound as missing_commit:
            raise IncompleteDump(
                f"the refs dump contains commit {commit_id}, which the server does not know"
            ) from missing_commit
        known_ids.add(commit_id)
        fetched.append(commit)
        missing.extend(parent for parent in commit.parents if parent not in known_ids)
    return fetched


def every_metadata_file(repository: OpenRepository) -> LiveCommits:
    """All files of the metadata folder, named by a commit or not: for servers that refuse to dump refs.

    Raises LakeFSError if branches cannot be read, CorruptFile if the metarange of a head is missing.
    """
    api, clock = repository.api, repository.clock
    started_at = clock.now()
    # Heads are read first: the files of a commit are stored before a branch names it.
    branches = {branch.id: branch.commit_id for branch in api.branches()}
    heads = dict(metaranges_of(api, branches))
    files = tuple(list_ids(repository.store))
    for missing in set(heads.values()).difference(files):
        raise CorruptFile(
            METADATA_PREFIX + missing, "existence", "a branch head's metarange is not in the object store"
        )
    return LiveCommits(CommitSource.METADATA_FOLDER, started_at, clock.now(), (), files, heads, branches=branches)


def metaranges_of(api: LakeFSApi, *heads: Mapping[str, str]) -> list[tuple[str, str]]:
    """Branches with the metaranges of their heads, which are given as commit ids by branch; empty heads are left out.

    Raises LakeFSError.
    """
    pairs = dict.fromkeys(pair for each in heads for pair in each.items())
    metarange_of = cache(lambda commit_id: api.commit(commit_id).metarange_id)
    return [(branch, metarange_of(id_)) for branch, id_ in pairs if metarange_of(id_)]


def list_ids(store: ObjectStore, known: Set[str] = frozenset(), since: datetime | None = None) -> dict[str, int]:
    """Names of 64 hexadecimal digits, sorted, with the file sizes: ranges, metaranges, tables of refs dumps.

    Lists the folder once, with a request per thousand names or so, and reads no file. Raises StorageError.

    Args:
        known: ids to skip during the listing, so that only the others take memory.
        since: files last modified before this moment, UTC, are skipped; None for none.
    """
    ids: dict[str, int] = {}
    for listed in _batches(store):
        if since is not None:
            modified = listed.column("last_modified")
            listed = listed.filter(pc.greater_equal(modified, pa.scalar(since, modified.type)))
        ids |= {id_: size for id_, (size,) in _unknown(listed, known, "size").items()}
    return dict(sorted(ids.items()))


def list_with_times(store: ObjectStore, known: Set[str]) -> dict[str, tuple[int, datetime]]:
    """The files of `list_ids`: size in bytes, and LastModified by the store's clock, UTC. Raises the same errors."""
    ids: dict[str, tuple[int, datetime]] = {}
    for listed in _batches(store):
        ids |= _unknown(listed, known, "size", "last_modified")
    return dict(sorted(ids.items()))


def _unknown(listed: pa.RecordBatch, known: Set[str], *columns: str) -> dict[str, tuple[Any, ...]]:
    """Values of some columns for each file whose name is an id and not known."""
    names = _names(listed)
    is_id = pc.match_substring_regex(names, _ID)
    rows = zip(*(listed.column(column).filter(is_id).to_pylist() for column in columns), strict=True)
    values = dict(zip(names.filter(is_id).to_pylist(), rows, strict=True))
    return {id_: values[id_] for id_ in lacking(known, [*values])}


def times_written(store: ObjectStore, ids: pa.StringArray) -> npt.NDArray[np.int64]:
    """Last writes of files: LastModified in microseconds since 1970 by the store's clock.

    Lists the folder once, as `list_ids` does. Raises StorageError.

    Args:
        ids: ids of metadata files, each once.
    Returns:
        One time for each id, NOT_LISTED for a missing file.
    """
    written_at = np.full(len(ids), NOT_LISTED, np.int64)
    for listed in gather(_batches(store), _AT_ONCE):
        at = pc.index_in(_names(listed), value_set=ids)
        there = at.is_valid()
        times = listed.column("last_modified").cast(pa.int64()).filter(there)
        written_at[at.filter(there).to_numpy()] = times.to_numpy()
    return written_at


def _names(listed: pa.RecordBatch) -> pa.StringArray:
    return pc.utf8_slice_codeunits(listed.column("key"), len(METADATA_PREFIX))


_PAGES_ALONE = 20
_PAGES_OF_A_PIECE = 5
_MOST_PIECES = 1024


def _batches(store: ObjectStore) -> Iterator[pa.RecordBatch]:
    """The files (LISTING_SCHEMA).

    After some pages the rest is listed in pieces, several at once. Ids are spread evenly, so the last one shows how
    many pages remain. The pieces cover all names even if that estimate is wrong.
    """
    if not isinstance(store, ListsInOrder):
        yield as_batch(store.list_level(METADATA_PREFIX).objects)
        return
    list_between = partial(store.list_between, METADATA_PREFIX, only_directly=True)
    for number, batch in enumerate(list_between("", _BEHIND_ALL_IDS), 1):
        yield batch
        last = batch.column("key")[-1].as_py()
        is_id = re.match(_ID, last.removeprefix(METADATA_PREFIX))
        if number >= _PAGES_ALONE and is_id and isinstance(store, ListsAtOnce):
            break
    else:
        return
    bounds = [last, *_bounds_behind(last, number), _BEHIND_ALL_IDS]
    for batches in work_ahead(lambda piece: [*list_between(*piece)], pairwise(bounds), store.listings_at_once):
        yield from batches


def _bounds_behind(last: str, pages: int) -> Iterator[str]:
    """Bounds that cut the names after an id into pieces of a few pages, estimated from the number of pages up to it."""
    digits, end = 8, 16**8
    start = int(last.removeprefix(METADATA_PREFIX)[:digits], 16) + 1
    pieces = min(_MOST_PIECES, max(1, (end - start) * pages // (start * _PAGES_OF_A_PIECE)))
    for number in range(1, pieces):
        yield f"{METADATA_PREFIX}{start + (end - start) * number // pieces:0{digits}x}"


_FIRST_LIST_POLL_SECONDS = 0.5
_LONGEST_LIST_POLL_SECONDS = 15.0
_ID_COLUMN, _EXPIRED_COLUMN, _METARANGE_COLUMN = "commit_id", "expired", "metarange_id"
_FLAGS = ("true", "false")


@dataclass(frozen=True, slots=True)
class ServerCommits:
    """The commits that the server keeps, from its own list.

    The list is a CSV file with the columns commit_id, expired and, since v0.101, metarange_id. Old servers also list
    expired commits. The list can lack commits that must stay, so it is not trusted alone: `active_commits` is the
    definition.

    Attributes:
        file: key of the list, relative to the storage namespace.
        ids: string.
        metarange_ids: string, empty for a commit without objects; None if the server does not state them.
    """

    file: str
    ids: pa.StringArray
    metarange_ids: pa.StringArray | None


def server_commits(repository: OpenRepository, note: LogLine = lambda message: None) -> ServerCommits:
    """Requests the server's list of commits, and reads it.

    Raises:
        LakeFSError: the server refuses, fails, takes too long, or no longer has rules.
        CorruptFile: the list is missing or unreadable.
    """
    namespace = repository.namespace
    prepared = prepare_server_commits(repository.api, repository.settings, repository.clock, note)
    file = namespace.relative(prepared.location)
    if file is None:
        raise LakeFSError(
            f"prepare_commits wrote to {prepared.location}, which is outside of the repository's {namespace.uri}: "
            "check that the configured repository and object store belong together"
        )
    return read_server_commits(fetch(repository.store, file), file)


def prepare_server_commits(
    api: LakeFSApi, settings: CollectionSettings, clock: Clock, note: LogLine = lambda message: None
) -> PreparedCommits:
    """Makes the server list its commits, in the background if it can. Raises LakeFSError."""
    try:
        task = api.start_prepare_commits()
    except (NotFound, NotSupported) as unknown:
        note(f"prepare_commits cannot be started in the background ({unknown}): using the blocking call")
        return api.prepare_commits()
    deadline = clock.now() + timedelta(seconds=settings.prepare_commits_timeout_seconds)
    pause = _FIRST_LIST_POLL_SECONDS
    while not (state := api.prepare_commits_task(task)).completed:
        if clock.now() >= deadline:
            raise LakeFSError(
                f"prepare_commits {task} was not finished after {settings.prepare_commits_timeout_seconds:.0f} s. See "
                "the server's log, or raise collection.prepare_commits_timeout_seconds"
            )
        clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_LIST_POLL_SECONDS)
    if state.result is None:
        raise LakeFSError(f"prepare_commits {task} failed: {state.error}. See the server's log")
    return state.result


def read_server_commits(data: bytes, file: str) -> ServerCommits:
    """Reads a list. Raises CorruptFile."""
    try:
        data.decode()
        table = csv.read_csv(
            pa.BufferReader(data),
            # Threads that outlive a failed read can crash the process.
            read_options=csv.ReadOptions(use_threads=False),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys((_ID_COLUMN, _EXPIRED_COLUMN, _METARANGE_COLUMN), pa.string()),
                strings_can_be_null=False,
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise CorruptFile(file, "commits", f"cannot be read as CSV: {error}") from None
    if len(set(table.column_names)) != table.num_columns:
        raise CorruptFile(file, "commits", f"a column appears twice: {', '.join(table.column_names)}")
    if not {_ID_COLUMN, _EXPIRED_COLUMN} <= set(table.column_names):
        raise CorruptFile(file, "commits", f"its columns are {', '.join(table.column_names)}")
    if pc.any(pc.invert(pc.is_in(table[_EXPIRED_COLUMN], value_set=pa.array(_FLAGS)))).as_py():
        raise CorruptFile(file, "commits", f"{_EXPIRED_COLUMN} is neither true nor false")
    if pc.any(pc.equal(table[_ID_COLUMN], "")).as_py():
        raise CorruptFile(file, "commits", f"a {_ID_COLUMN} is empty")
    kept = table.filter(pc.equal(table[_EXPIRED_COLUMN], "false"))
    if not kept.num_rows:
        raise CorruptFile(file, "commits", "it lists no active commit, but the head of every branch is active")

    def column(name: str) -> pa.StringArray:
        return pa.concat_arrays(kept[name].chunks)

    return ServerCommits(
        file, column(_ID_COLUMN), column(_METARANGE_COLUMN) if _METARANGE_COLUMN in table.column_names else None
    )
