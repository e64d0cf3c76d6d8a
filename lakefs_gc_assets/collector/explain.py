"""Why one object stays or goes: who holds it, by which rule, where it is staged, and which run deleted it.

Everything is read anew and whole, paths included: this is for one question, not for a run.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits, past_frames, planning, preparations, sightings
from lakefs_gc_assets.collector.commits import Dump, list_ids
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.kinds import CANDIDATES_DF
from lakefs_gc_assets.collector.frame.schemas import LISTED
from lakefs_gc_assets.collector.held_engine import HeldEngine
from lakefs_gc_assets.collector.live import uncommitted
from lakefs_gc_assets.collector.live.hidden_staged import clear_hidden
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.repository import OpenRepository, relative
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.collector.universe.parts import as_listed
from lakefs_gc_assets.errors import (
    CollectionError,
    CorruptFile,
    GuardTripped,
    LogLine,
    ObjectNotFound,
    StorageError,
)
from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.storage.interface import ObjectFacts, as_batch

_READERS = 8


@dataclass(frozen=True, slots=True)
class Holder:
    """A commit that holds the object; `why` says why the commit stays, and is empty for an expired one."""

    commit_id: str
    paths: tuple[str, ...]
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnnamedRange:
    """A range below `_lakefs/` that no commit names and that holds the object: perhaps another repository's."""

    range_id: str
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StagedAt:
    """A place where the object is staged."""

    repository: str
    branch: str
    path: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What a run of ours decided about the object."""

    run_id: str
    decided_at: datetime
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that is known of one address.

    Attributes:
        stored: None where there is no such object.
        holders: active commits first.
        uncommitted: whether the server's uncommitted data names it, or a branch shows it.
        staged: where, as far as branches show it.
        decisions: by runs, newest first.
        unnamed: ranges that no commit names and that count by the settings; none where `keep_unnamed_ranges` is off.
        compacted: compacted bases of branches that hold it, and no active commit does: it is, or was, staged there.
        kept: why a run that marks now keeps the object although nothing is known to reference it; None where it may go,
            is referenced, or is not stored.
        listed_by: the newest run that came to its end, if the object is among its candidates.
    """

    address: str
    stored: ObjectFacts | None
    holders: tuple[Holder, ...]
    uncommitted: bool
    staged: tuple[StagedAt, ...]
    decisions: tuple[Decision, ...]
    unnamed: tuple[UnnamedRange, ...] = ()
    compacted: tuple[StagedAt, ...] = ()
    kept: str | None = None
    listed_by: str | None = None

    @property
    def is_referenced(self) -> bool:
        """True if something is known to reference the object, so that a run keeps it."""
        return bool(self.active or self.uncommitted or self.compacted or self.unnamed)

    @property
    def active(self) -> tuple[Holder, ...]:
        """The holders that stay."""
        return tuple(holder for holder in self.holders if holder.why)


def explain(
    repository: OpenRepository, address: str, now: datetime, note: LogLine = lambda message: None
) -> Explanation:
    """Looks for an address everywhere.

    Args:
        address: relative to the storage namespace, or in full.
    Raises:
        ConfigurationError: it lies outside the storage namespace.
        LakeFSError: the server refuses a refs dump, or fails.
        CorruptFile: a file cannot be read.
    """
    key = relative(repository, address)
    is_uncommitted = _is_uncommitted(repository, key, note)
    # The uncommitted data of another repository leaves out what lies outside of its own namespace.
    asked = (*((repository,) if is_uncommitted else ()), *repository.others)
    staged = tuple(place for each in asked for place in _staged_at(repository.namespace, each, key))
    own, read, compacted, heads = _own_holders(repository, key, now, note)
    holders = [*own]
    for other in repository.others:
        theirs, bases = _other_holders(repository.namespace, other, key, note)
        holders += theirs
        compacted += bases
    found = Explanation(
        key,
        _stored(repository, key),
        tuple(sorted(holders, key=lambda holder: not holder.why)),
        is_uncommitted or bool(staged),
        staged,
        tuple(_decisions(repository, key, note)),
        tuple(_unnamed(repository, key, read, now, note)) if repository.settings.keep_unnamed_ranges else (),
        () if any(holder.why for holder in holders) else compacted,
        listed_by=_listed_by(repository, key),
    )
    if found.stored is None or found.is_referenced:
        return found
    return replace(found, kept=_kept(repository, found.stored, heads, note))


def _stored(repository: OpenRepository, key: str) -> ObjectFacts | None:
    try:
        return repository.store.head(key)
    except ObjectNotFound:
        return None


def _own_holders(
    repository: OpenRepository, key: str, now: datetime, note: LogLine
) -> tuple[list[Holder], frozenset[str], tuple[StagedAt, ...], Mapping[str, str]]:
    """The commits of the repository that hold the address, ids of all that they and branches name, compacted bases.

    At last the metarange of each branch's head.
    """
    policy = retention.policy_of(repository.settings)
    readings = retention.read(repository, repository.clock.now(), note, policy)
    found = retention.retention(repository, readings, now)
    metaranges = [*_metaranges(readings.dump), *found.late.values()]
    held, read = _paths(repository.namespace, repository, metaranges, key, note)
    holders = [Holder(commit_id, paths, found.why(at)) for at, commit_id, paths in _holding(readings.dump, held)]
    holders += [
        Holder(commit_id, held[metarange_id], ("newer than the refs dump, in the server's own list",))
        for commit_id, metarange_id in found.late.items()
        if metarange_id in held
    ]
    return holders, read, _compacted(repository, readings.dump, held), readings.dump.live().heads


def _kept(repository: OpenRepository, stored: ObjectFacts, heads: Mapping[str, str], note: LogLine) -> str | None:
    """Why a run that marks now keeps an object that nothing is known to reference; None where it may go.

    The run's own functions decide: by age, name, earlier sightings, and what branches answer for paths of its content.
    """
    clock, engine = repository.clock, HeldEngine()
    listed = as_listed(as_batch([stored]), repository.settings.slice_window)
    if not listed.num_rows:
        return None
    rows = engine.table(pa.Table.from_batches([listed]))
    windows = tuple(listed.column("slice_window").to_pylist())
    run_id = xids.issue_run_id(clock.now())
    try:
        plan = planning.make_plan(repository, run_id, windows, "explain", clock.now(), Flow.CLEAN)
    except GuardTripped as guard:
        return str(guard)
    step = Step(note, note, repository, engine, plan, None)
    sighted = sightings.select_old_enough(engine, sightings.read_earlier(step, clock.now()), clock.now())
    (kept,) = engine.collect(engine.kept_because(rows, plan.cutoff, windows, sighted)).column("kept").to_pylist()
    if kept is not None:
        return str(kept)
    with clear_hidden(step, rows, heads, LISTED) as cleared:
        return None if engine.count(cleared.candidates) else next(iter(cleared.kept))


def _listed_by(repository: OpenRepository, key: str) -> str | None:
    """The newest run that came to its end, if the address is among its candidates, as far as these can be read."""
    try:
        run_id = past_frames.newest_run(repository.store)
        candidates = past_frames.read_manifest(repository.store, CANDIDATES_DF.name, run_id)
        for file in candidates.files:
            rows = files.read_file(repository.store, file, CANDIDATES_DF.schema, added=CANDIDATES_DF.added)
            if pc.any(pc.equal(rows.column("address"), key)).as_py():
                return run_id
    except CollectionError:
        return None
    return None


def _other_holders(
    namespace: Namespace, other: OpenRepository, key: str, note: LogLine
) -> tuple[list[Holder], tuple[StagedAt, ...]]:
    """The commits of a repository that `also_live` names, which all count, and its compacted bases."""
    dump = commits.complete_dump(other, other.clock.now(), note)
    held, _ = _paths(namespace, other, _metaranges(dump), key, note)
    why = (f"repository {other.facts.id} holds it",)
    holders = [Holder(commit_id, paths, why) for _, commit_id, paths in _holding(dump, held)]
    return holders, _compacted(other, dump, held)


def _metaranges(dump: Dump) -> list[str]:
    """The metaranges of all commits, and the compacted bases of branches."""
    return [*commits.distinct_metaranges(dump.commits).to_pylist(), *dump.compacted]


def _compacted(repository: OpenRepository, dump: Dump, held: dict[str, tuple[str, ...]]) -> tuple[StagedAt, ...]:
    """The compacted bases that hold the address."""
    return tuple(
        StagedAt(repository.facts.id, branch, path)
        for base, branch in dump.compacted.items()
        for path in held.get(base, ())
    )


def _holding(dump: Dump, held: dict[str, tuple[str, ...]]) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Position, id and paths of each commit whose metarange is among those."""
    columns = dump.commits
    rows = pc.indices_nonzero(pc.is_in(columns.metarange_ids, value_set=pa.array(held, pa.string())))
    for at in rows.to_pylist():
        yield at, columns.ids[at].as_py(), held[columns.metarange_ids[at].as_py()]


def _paths(
    namespace: Namespace,
    repository: OpenRepository,
    metarange_ids: Iterable[str],
    key: str,
    note: LogLine,
) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """The paths at which metaranges hold the address, those that do not left out, and ids of all that was read."""
    files = LiveFiles(repository.store, namespace, repository.settings.slice_window)
    metaranges = [metarange_id for metarange_id in dict.fromkeys(metarange_ids) if metarange_id]
    parts: dict[str, RangeRecord] = {}
    parts_of: dict[str, tuple[str, ...]] = {}
    with ThreadPoolExecutor(_READERS) as pool:
        for metarange_id, rows in zip(metaranges, pool.map(files.metarange, metaranges), strict=True):
            records = [RangeRecord(**row) for row in rows.to_pylist()]
            parts |= {record.id: record for record in records}
            parts_of[metarange_id] = tuple(record.id for record in records)
        note(f"reading {len(parts):,} ranges of {len(metaranges):,} metaranges of {repository.facts.id}")
        paths = dict(zip(parts, pool.map(lambda record: _read(files, record, key), parts.values()), strict=True))
    held = {
        metarange_id: tuple(path for part in named for path in paths[part]) for metarange_id, named in parts_of.items()
    }
    return {metarange_id: at for metarange_id, at in held.items() if at}, frozenset(metaranges).union(parts)


def _unnamed(
    repository: OpenRepository, key: str, read: Collection[str], now: datetime, note: LogLine
) -> Iterator[UnnamedRange]:
    """The ranges beside those of the repository's commits and compacted bases that hold the address, and that count.

    Args:
        read: ids of all that its commits and compacted bases name.
    """
    since = None if repository.settings.keep_old_unnamed_ranges else now - repository.min_age - repository.skew
    files = LiveFiles(repository.store, repository.namespace, repository.settings.slice_window)
    names = [name for name in list_ids(repository.store, since=since) if name not in read]
    with ThreadPoolExecutor(_READERS) as pool:
        rows = [row for table in pool.map(files.unnamed, names) for row in table.to_pylist()]
        records = {row["id"]: RangeRecord(**row) for row in rows if row["id"] not in read}
        note(f"reading {len(records):,} ranges that no commit of {repository.facts.id} names")
        for range_id, paths in zip(
            records, pool.map(lambda record: _read(files, record, key), records.values()), strict=True
        ):
            if paths:
                yield UnnamedRange(range_id, paths)


def _read(files: LiveFiles, record: RangeRecord, key: str) -> tuple[str, ...]:
    """The paths at which a range holds the address, as text."""
    return tuple(path.decode("utf-8", "replace") for path in files.paths(record, key))


def _is_uncommitted(repository: OpenRepository, key: str, note: LogLine) -> bool:
    files = LiveFiles(repository.store, repository.namespace, repository.settings.slice_window)
    prepared = uncommitted.prepare(repository)
    try:
        preparations.note_without_run(repository.store, prepared.server_run_ids)
    except StorageError as error:
        note(f"the files that the server wrote for this question stay, since they cannot be noted: {error}")
    return any(pc.any(pc.equal(files.uncommitted(file).column("address"), key)).as_py() for file in prepared.files)


def _staged_at(namespace: Namespace, repository: OpenRepository, key: str) -> Iterator[StagedAt]:
    """Where branches show the address."""
    for branch in repository.api.branches():
        for change in repository.api.changes(branch.id):
            stats = None if change.type == "removed" else repository.api.stat(branch.id, change.path)
            if stats and key in namespace.live_keys(stats.physical_address, AddressType.FULL):
                yield StagedAt(repository.facts.id, branch.id, change.path)


def _decisions(repository: OpenRepository, key: str, note: LogLine) -> Iterator[Decision]:
    def exclude(damage: CorruptFile) -> None:
        note(f"what run {run_folder.run_of(damage.file)} decided is not fully known: {damage}")

    for run_id in run_folder.newest_runs(repository.store):
        rows = receipts.read(repository.store, run_id, exclude)
        for row in rows.filter(pc.equal(rows.column("address"), key)).to_pylist():
            yield Decision(run_id, row["decided_at"], row["outcome"], row["error"])
