"""Unneeded metadata: ranges and metaranges below `_lakefs/` that nothing names. Moves, restores and purges them.

Failed commits, merges and imports leave such files. Successful imports and compactions of staging leave some, too. A
file is unneeded if it is older than a week by the earliest clock, and nothing names it: no commit that the server
knows, expired ones included, no compacted base, no table of the refs dump, and no younger file. Ids are hashes of
contents, so a listed file may be needed again later. That is why `move` surveys three times, and why only `purge`
deletes copies.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypeVar, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits, guards
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import work_ahead
from lakefs_gc_assets.collector.live import other_repositories
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import FILES_AHEAD, References
from lakefs_gc_assets.collector.quarantine.restore import RestoreFate, from_quarantine
from lakefs_gc_assets.collector.records import records_json
from lakefs_gc_assets.collector.records.outcomes import Amount, BaseFate
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.lock import Lock, earliest_clock, latest_clock, locked, verify
from lakefs_gc_assets.collector.repository.repository import Clocks, Moment, OpenRepository
from lakefs_gc_assets.collector.survey import read_named
from lakefs_gc_assets.collector.sweep.recheck import store_time
from lakefs_gc_assets.errors import CorruptFile, LogLine, StorageError
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, MOVED_METADATA, moved_metadata
from lakefs_gc_assets.storage.interface import (
    DeleteResult,
    ObjectStore,
    deletes_until,
    fetch,
    head_if_there,
    keys_below,
)

MIN_AGE = timedelta(days=7)
"""Younger files may belong to a commit, merge or import in progress, which writes ranges before there is a commit."""
_UNNAMED = pa.schema([pa.field(name, pa.string()) for name in ("file", "kind", "names", "detail")])
"""Files that no commit names. A young metarange has a row for each range that it names (`names`)."""


class FileKind(StrEnum):
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
    kind: FileKind


@dataclass(frozen=True, slots=True)
class MetadataListing:
    """Unneeded files, and other files that no commit names with the reason they stay. Times are in UTC.

    Attributes:
        cutoff: files written at this time or later stay.
        files: unneeded files, oldest first.
        needed: number of files named by commits, compacted bases, the refs dump and young metaranges.
        kept: number and bytes of the other files, by reason.
        count_as_live: True if the settings count objects in unneeded ranges as live, regardless of age.
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
        """Number and bytes of unneeded files."""
        return Amount(len(self.files), sum(file.size for file in self.files))


@dataclass(frozen=True, slots=True)
class Survey:
    """A listing, and the ids of all named files, existing or not."""

    listing: MetadataListing
    named: IdSet


def find_unneeded(
    repository: OpenRepository,
    engine: Engine[R],
    note: LogLine,
    put_back: Callable[[Set[str]], None] = lambda ids: None,
) -> Survey:
    """Finds unneeded files.

    Commits made after the refs dump may need a listed file.

    Args:
        note: receives progress lines.
        put_back: receives ids of named files before these are read, to put back files from quarantine.
    Raises:
        CorruptFile: a file that may name others is missing or unreadable, so no file can be called unneeded.
        GuardTripped: another repository is, or may be, on the storage namespace, or the clocks disagree.
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
    listing = MetadataListing(
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
    """The time before which files are old enough. Raises GuardTripped if the clocks disagree."""
    grace_period = repository.api.grace_period()
    of_store = store_time(repository.store, layout.issue_run_id(now))
    clocks = Clocks.read(repository.clock.now(), repository.api.server_clocks, of_store)
    guards.require_clocks_agree(clocks, repository.skew)
    return clocks.cutoff(max(MIN_AGE, repository.min_age), grace_period, repository.skew)


def _why_kept(file: File, is_young: bool, is_named: bool) -> str:
    """Reason a file that no commit names stays; empty for an unneeded file.

    A table of an earlier refs dump stays, since a user may keep it as a backup.
    """
    if file.kind is FileKind.DUMP:
        return "tables of refs dumps, which may be kept as a backup"
    if is_young:
        return "too young: an unfinished commit may need them"
    if is_named:
        return "a young metarange names them"
    match file.kind:
        case FileKind.UNREADABLE:
            return "they cannot be read"
        case FileKind.RANGE | FileKind.METARANGE:
            return ""
        case other:
            assert_never(other)


_Unnamed = tuple[str, int, bool]
"""Id and bytes of a file that no commit names, and True if it is young."""


def _read_unnamed(references: References[R], files: Sequence[_Unnamed]) -> tuple[dict[str, FileKind], IdSet]:
    """The kind of each file, and the ids of ranges that young metaranges name.

    Raises CorruptFile if a young file cannot be read: a commit in progress may need the files that it names.
    """
    if not files:
        return {}, IdSet()
    rows = references.engine.collect(references.of_groups(files, _describe_all, _UNNAMED))
    young = {name for name, _, is_young in files if is_young}
    for row in rows.filter(pc.equal(rows.column("kind"), FileKind.UNREADABLE.value)).to_pylist():
        if row["file"] in young:
            detail = f"{row['detail']}; it is young, and may name files that an unfinished commit needs"
            raise CorruptFile(METADATA_PREFIX + row["file"], "kind", detail)
    names, kinds = (rows.column(column).to_pylist() for column in ("file", "kind"))
    named = IdSet.of_columns(batch.column("names").drop_null() for batch in rows.to_batches())
    return {name: FileKind(kind) for name, kind in zip(names, kinds, strict=True)}, named


def _describe_all(files: LiveFiles, group: Sequence[_Unnamed]) -> pa.Table:
    return pa.concat_tables(work_ahead(partial(_describe, files), group, FILES_AHEAD))


def _describe(files: LiveFiles, file: _Unnamed) -> pa.Table:
    """Rows about one file (_UNNAMED)."""
    name, size, is_young = file
    named, detail = list[str](), None
    try:
        named = files.unnamed((name, size)).column("id").to_pylist()
        # A metarange without ranges looks like a table of a refs dump, and stays.
        kind = FileKind.DUMP if not named else FileKind.RANGE if named == [name] else FileKind.METARANGE
    except CorruptFile as damage:
        kind, detail = FileKind.UNREADABLE, f"{damage.check}: {damage.detail}"
    names = named if kind is FileKind.METARANGE and is_young else [None]
    count = len(names)
    return pa.table([[name] * count, [kind.value] * count, names, [detail] * count], schema=_UNNAMED)


FORMAT_VERSION = 1
_BATCH = 100
"""Files checked before the first is deleted: few, so that deletions follow the check closely."""
_CALLERS = 16
_WHOLE_SECONDS = timedelta(seconds=1)
"""Precision of a time in a name."""
_TOO_OLD = "the survey is too old by now: purge again"
_RECEIPTS = f"{layout.RUNS_PREFIX}{MOVED_METADATA}/"
Item = TypeVar("Item")


class FileFate(BaseFate):
    """Result for a file."""

    MOVED = "moved to quarantine"
    RESTORED = "put back"
    PURGED = "purged"
    KEPT = "kept"
    FAILED = "failed"

    @property
    def is_well(self) -> bool:
        """True if nothing is left to do. A kept file is needed, or already exists."""
        return self is not FileFate.FAILED


_FATES = {RestoreFate.RESTORED: FileFate.RESTORED, RestoreFate.THERE: FileFate.KEPT}


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """Result for a range or metarange of `size` bytes; `why` is the reason for an unrequested result, else None."""

    id: str
    size: int
    fate: FileFate
    why: str | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Files that were moved, put back or purged, or were about to be. `at` is the latest clock, UTC."""

    repository: str
    fate: FileFate
    at: datetime
    files: tuple[str, ...]
    format_version: int = FORMAT_VERSION


def list_copies(store: ObjectStore) -> dict[str, tuple[int, datetime]]:
    """Bytes and write time (UTC) of each copy in quarantine, by id. Raises StorageError.

    In a local folder, the time is that of the original.
    """
    folder = moved_metadata(METADATA_PREFIX)
    copies = dict[str, tuple[int, datetime]]()
    for batch in store.list(folder):
        facts = zip(*(batch.column(name).to_pylist() for name in ("size", "last_modified")), strict=True)
        ids = (key.removeprefix(folder) for key in batch.column("key").to_pylist())
        copies |= zip(ids, facts, strict=True)
    return dict(sorted(copies.items()))


@dataclass(frozen=True)
class MetadataQuarantine:
    """Moves files of one repository, whose lock is held. Every method raises LockLost and StorageError.

    A receipt of each batch is stored before anything is deleted.

    Attributes:
        outcomes: the last result for each file, by id.
    """

    repository: OpenRepository
    lock: Lock
    store: ObjectStore
    outcomes: dict[str, FileOutcome] = field(default_factory=dict)

    def put_back(self, ids: Set[str]) -> None:
        """Puts back files from quarantine, and keeps their copies.

        A late deletion may still follow: its answer was lost, or its process stalled and lost the lock.
        """
        sizes = {name: size for name, (size, _) in list_copies(self.store).items() if name in ids}
        for batch in _batches(sizes, _BATCH):
            verify(self.store, self.lock.token)
            results = work_ahead(
                lambda name: from_quarantine(self.store, MOVED_METADATA, _key(name), sizes[name]), batch, _CALLERS
            )
            for name, restored in zip(batch, [*results], strict=True):
                self._record(name, sizes[name], _FATES.get(restored.fate, FileFate.FAILED), restored.why)
            if back := [name for name in batch if self.outcomes[name].fate is FileFate.RESTORED]:
                self._write_receipt(FileFate.RESTORED, back)

    def move(self, files: Sequence[File]) -> None:
        """Moves files that still are as they were listed.

        The store copies them first. The check right before the deletion matters: writing equal content again makes a
        file young.
        """
        for batch in _batches(files, min(_BATCH, self.store.delete_limit)):
            copies = work_ahead(self._copy, batch, _CALLERS)
            copied = [file for file, is_copied in zip(batch, copies, strict=True) if is_copied]
            self._write_receipt(FileFate.MOVED, [file.id for file in copied])
            verify(self.store, self.lock.token)
            are_same = work_ahead(self._is_as_listed, copied, _CALLERS)
            same = {file.id: file.size for file, is_same in zip(copied, are_same, strict=True) if is_same}
            self._delete(same, _key, FileFate.MOVED)
            for file in copied:
                if file.id not in same and file.id not in self.outcomes:
                    # Its copy stays until a purge, in case the file is gone.
                    self._record(file.id, file.size, FileFate.KEPT, "it is no longer as it was listed")

    def purge(self, sizes: Mapping[str, int], is_over: Callable[[], bool]) -> None:
        """Deletes copies permanently, until the time is over."""
        for batch in _batches(sizes, self.store.delete_limit):
            verify(self.store, self.lock.token)
            # Checked after the call to the store, which may be slow.
            if is_over():
                for name in batch:
                    self._record(name, sizes[name], FileFate.FAILED, _TOO_OLD)
                continue
            self._write_receipt(FileFate.PURGED, batch)
            with deletes_until(is_over):
                self._delete({name: sizes[name] for name in batch}, _copy_of, FileFate.PURGED)

    def _delete(self, sizes: Mapping[str, int], key_of: Callable[[str], str], fate: FileFate) -> None:
        results = self.store.delete([key_of(name) for name in sizes]) if sizes else ()
        for (name, size), result in zip(sizes.items(), results, strict=True):
            is_gone, is_left = result.result is DeleteResult.ACCEPTED, result.result is DeleteResult.LEFT
            self._record(name, size, fate if is_gone else FileFate.FAILED, _TOO_OLD if is_left else result.error)

    def is_back(self, name: str, size: int) -> bool:
        """True if a file with a copy in quarantine is known to exist at its place as well."""
        try:
            facts = head_if_there(self.store, _key(name))
        except StorageError as error:
            self._record(name, size, FileFate.FAILED, f"its copy stays, since the store failed at it: {error}")
            return False
        return facts is not None and facts.size == size

    def _copy(self, file: File) -> bool:
        """True if a copy was made; the store compares it with the file."""
        try:
            self.store.copy(_key(file.id), _copy_of(file.id))
        except StorageError as error:
            self._record(file.id, file.size, FileFate.FAILED, f"there is no copy in quarantine: {error}")
            return False
        return True

    def _is_as_listed(self, file: File) -> bool:
        try:
            facts = head_if_there(self.store, _key(file.id))
        except StorageError as error:
            self._record(file.id, file.size, FileFate.FAILED, f"it stays, since the store failed at it: {error}")
            return False
        # Some stores list fractions of a second, but return whole seconds for a single object.
        return facts is not None and (facts.size, facts.last_modified.replace(microsecond=0)) == (
            file.size,
            file.written_at.replace(microsecond=0),
        )

    def _record(self, name: str, size: int, fate: FileFate, why: str | None) -> None:
        self.outcomes[name] = FileOutcome(name, size, fate, why)

    def _write_receipt(self, fate: FileFate, ids: Collection[str]) -> None:
        at = latest_clock(self.repository)
        receipt = Receipt(self.repository.facts.id, fate, at, tuple(ids))
        self.store.put(f"{_RECEIPTS}{layout.issue_run_id(at)}.json", records_json.encode(receipt))


def list_movable(repository: OpenRepository, engine: Engine[R], note: LogLine) -> MetadataListing:
    """Lists unneeded files for `move`. Raises as `move` does."""
    guards.require_sole_writer(repository.settings)
    return find_unneeded(repository, engine, note).listing


def move(
    repository: OpenRepository, engine: Engine[R], first: MetadataListing, owner: str, note: LogLine, warn: LogLine
) -> tuple[FileOutcome, ...]:
    """Moves unneeded files into quarantine; returns the results for files moved, put back, or failed.

    A file is moved if it is in `first` and in a second survey, made under the lock a set time later. A third survey,
    made that time after the last deletion, puts back files that are named by then. If it fails, all files are put back.

    One gap remains: a commit writes a file between the last check and the deletion, and ends after the third survey.
    The file is then in quarantine. Readers report that, and the next move, purge or restore puts it back.

    Args:
        first: the listing shown to the user. Files that it does not list stay.
        owner: owner of the lock.
        note, warn: receive lines about the progress, and about the lock.
    Raises:
        GuardTripped: by the settings, another server may use the storage namespace; or as for `find_unneeded`.
        LockHeld, LockLost: another owner holds the lock.
        CollectionError: a survey or the store failed. Moved files are then put back, as far as possible.
    """
    guards.require_sole_writer(repository.settings)
    with _opened(repository, "metadata move", owner, warn) as quarantine:
        _wait(repository, first.made_at, note)
        second = find_unneeded(repository, engine, note, quarantine.put_back).listing
        shown = {(file.id, file.written_at) for file in first.files}
        files = [file for file in second.files if (file.id, file.written_at) in shown]
        try:
            quarantine.move(files)
            _wait(repository, repository.clock.now(), note)
            find_unneeded(repository, engine, note, quarantine.put_back)
        except BaseException:
            warn("putting all files back: it is not known whether any of them are needed")
            warn("`lakefs-gc metadata restore` puts back files that stay in quarantine")
            quarantine.put_back(IdSet(file.id for file in files))
            raise
        return tuple(quarantine.outcomes.values())


def restore(repository: OpenRepository, owner: str, warn: LogLine) -> tuple[FileOutcome, ...]:
    """Puts back all files in quarantine. Raises LockHeld, LockLost, StorageError.

    Args:
        owner, warn: as for `move`.
    """
    with _opened(repository, "metadata restore", owner, warn) as quarantine:
        quarantine.put_back(IdSet(list_copies(repository.store)))
        return tuple(quarantine.outcomes.values())


def purge(
    repository: OpenRepository, engine: Engine[R], owner: str, note: LogLine, warn: LogLine
) -> tuple[FileOutcome, ...]:
    """Deletes copies permanently if their files were moved `collection.quarantine_days` ago or earlier.

    A survey first puts back files that are named. If that fails, the copy stays.

    Args:
        owner, note, warn: as for `move`.
    Raises:
        GuardTripped, LockHeld, LockLost: as for `move`.
        CollectionError: the survey or the store failed.
    """
    guards.require_sole_writer(repository.settings)
    with _opened(repository, "metadata purge", owner, warn) as quarantine:
        if not list_copies(repository.store):
            return ()
        as_of, valid = Moment.now(repository.clock), timedelta(minutes=repository.settings.recheck_valid_minutes)
        named = find_unneeded(repository, engine, note, quarantine.put_back).named
        latest = earliest_clock(repository) - timedelta(days=repository.settings.quarantine_days)
        moved_at = _read_moves(repository, warn)
        sizes = {
            name: size
            for name, (size, copied_at) in list_copies(repository.store).items()
            # The copy's time counts, too: the receipt of a later move may have been removed.
            if name in moved_at and max(moved_at[name], copied_at) <= latest
            if name not in named or quarantine.is_back(name, size)
        }
        quarantine.purge(sizes, lambda: as_of.passed(repository.clock) >= valid)
        return tuple(quarantine.outcomes.values())


@contextmanager
def _opened(repository: OpenRepository, work: str, owner: str, warn: LogLine) -> Iterator[MetadataQuarantine]:
    with locked(repository, work, owner, warn) as lock:
        yield MetadataQuarantine(repository, lock, repository.store)


def _wait(repository: OpenRepository, since: datetime, note: LogLine) -> None:
    """Waits as long as a sweep before its recheck: commits in progress end, and a slow server registers them."""
    until = since + timedelta(seconds=repository.settings.wait_before_recheck_seconds)
    repository.wait_until(until, note, "looking again")


def _read_moves(repository: OpenRepository, warn: LogLine) -> dict[str, datetime]:
    """The latest time at which each file may have been moved, UTC. A file without a receipt is never purged.

    An unreadable receipt may name any file.
    """
    moved_at, unread = dict[str, datetime](), list[datetime]()
    for key in keys_below(repository.store, _RECEIPTS):
        issued = key.removeprefix(_RECEIPTS).removesuffix(".json")
        if not layout.is_xid(issued):
            continue
        try:
            receipt = records_json.decode(Receipt, fetch(repository.store, key), key)
        except CorruptFile as damage:
            days = repository.settings.quarantine_days
            at = layout.as_datetime(layout.created_at(issued))
            unread.append(at + _WHOLE_SECONDS)
            warn(f"nothing is purged until {days:g} days after {at:%F %T}Z, since this may name any file: {damage}")
            continue
        if receipt.fate is FileFate.MOVED and receipt.repository == repository.facts.id:
            moved_at |= {name: max(receipt.at, moved_at.get(name, receipt.at)) for name in receipt.files}
    return {name: max(at, *unread) for name, at in moved_at.items()} if unread else moved_at


def _key(name: str) -> str:
    return METADATA_PREFIX + name


def _copy_of(name: str) -> str:
    return moved_metadata(_key(name))


def _batches(items: Iterable[Item], count: int) -> Iterator[Sequence[Item]]:
    every = [*items]
    return (every[start : start + count] for start in range(0, len(every), count))
