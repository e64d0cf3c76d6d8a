"""Explains why an object stays or goes: its holders, their rules, where it is staged, and the run that deleted it.

Live addresses come from the functions and clocks of a run. The search stores nothing except the id of the data that
the server prepared for it. It skips ranges that the newest run has ruled out, and ranges whose recorded hashes rule the
address out. Recorded sizes cannot rule it out: an entry may state another size than the object has.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits
from lakefs_gc_assets.collector.commits import Dump
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.engine.work import merge, work_ahead
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.frames import (
    CANDIDATES_DF,
    COMMITTED_DF,
    DELETED_REPORT,
    LISTED,
    NOT_COMMITTED_DF,
    RECEIPTS,
    SIGHTINGS,
    Frame,
)
from lakefs_gc_assets.collector.incremental import earlier_runs, planning
from lakefs_gc_assets.collector.incremental.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.live import facts, facts_of_ranges, references
from lakefs_gc_assets.collector.live import uncommitted as uncommitted_data
from lakefs_gc_assets.collector.live.facts_of_ranges import HASHES, HOLDS_ADDRESS, METARANGES, NAMED_RANGES, name_ranges
from lakefs_gc_assets.collector.live.hidden import clear_hidden, staged_objects
from lakefs_gc_assets.collector.live.live_files import LiveFiles, RangeRecords, each_once
from lakefs_gc_assets.collector.live.references import ROWS_MERGED, References, find_unnamed
from lakefs_gc_assets.collector.records import plan as plans
from lakefs_gc_assets.collector.records import run_folder, tables
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.tables import IdSet
from lakefs_gc_assets.collector.repository.repository import OpenRepository, relative
from lakefs_gc_assets.collector.retention import retention
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.universe.listing import as_listed
from lakefs_gc_assets.collector.universe.subtraction import choose_candidates, subtract
from lakefs_gc_assets.errors import (
    CollectionError,
    ConfigurationError,
    CorruptFile,
    LogLine,
    counted,
)
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace, parse_location
from lakefs_gc_assets.lakefs.layout import OTHER_WINDOW, WindowSize
from lakefs_gc_assets.storage.interface import ObjectFacts, ObjectStore, as_batch, head_if_there

_READERS = 8
_REQUEST_BYTES = 64 * 1024
"""Number of bytes that take as long to read as one request."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A commit that holds the object; `why` is the reason the commit stays, empty for an expired one."""

    commit_id: str
    paths: tuple[str, ...]
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnnamedRange:
    """A range that holds the object and counts although no active commit has it; it may be another repository's.

    No commit names it, or only a metarange that no commit has names it.
    """

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
    """A run's decision about the object."""

    run_id: str
    decided_at: datetime
    outcome: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All known facts about one address.

    Attributes:
        stored: None if there is no such object.
        holders: active commits first.
        uncommitted: True if the server's uncommitted data names it, or a branch shows it.
        staged: places where branches show it as staged.
        decisions: decisions of sweeps, newest first; for a finished sweep, the final result.
        unnamed: ranges that count by the settings although no active commit has them; none if an active commit holds
            the object.
        compacted: compacted bases of branches that hold it, while no active commit does: it is, or was, staged there.
        kept: reason that a run would keep the object now although nothing is known to reference it; None if it may go,
            is referenced, or is not stored.
        kept_when_old: for an object that is too young, the reason to keep it once it is old; None if it may go then.
        listed_by: the newest finished run, if the object is among its candidates.
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
    kept_when_old: str | None = None
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
    repository: OpenRepository,
    address: str,
    note: LogLine = lambda message: None,
    warn: LogLine = lambda message: None,
    count: Callable[[int, int], None] | None = None,
) -> Explanation:
    """Searches everywhere for an address.

    Args:
        address: relative to the storage namespace, in full, or of an object in lakeFS, see `find_key`.
        note: receives progress lines.
        warn: receives lines about uncertain facts.
        count: receives the number of ranges read so far, and their total.
    Raises:
        ConfigurationError: the address lies outside the storage namespace, or lakeFS has no such object.
        GuardTripped: the clocks disagree.
        LakeFSError: the server refuses a refs dump, or fails.
        CorruptFile: a file cannot be read.
    """
    key = find_key(repository, address)
    prepared = uncommitted_data.prepare(repository)
    step = _begin(repository, key, uncommitted_data.record_without_run(repository, prepared, note), note, warn)
    listed_by, ranges_read_before = _ask_newest_run(repository, key)
    live_files = LiveFiles(repository.store, repository.namespace, repository.settings.slice_window)
    listed = (live_files.uncommitted(file).column("address") for file in prepared.files)
    is_uncommitted = any(pc.any(pc.equal(addresses, key)).as_py() for addresses in listed)
    # Another repository's uncommitted data omits addresses outside its own namespace, so its branches are read anyway.
    repositories = (*((repository,) if is_uncommitted else ()), *repository.others)
    staged = tuple(place for repo in repositories for place in _staged_at(repository.namespace, repo, key))
    search = _Search(step, key, ranges_read_before, count)
    readings = retention.read(repository, repository.clock.now(), note)
    retained = retention.retention(repository, readings, step.plan.earliest_clock)
    holders, compacted = search.commits(repository, readings.dump, retained.why, retained.late)
    for other in repository.others:
        dump = commits.complete_dump(other, other.clock.now(), note)
        theirs, bases = search.commits(other, dump, partial(_held_by, other.facts.id))
        holders, compacted = holders + theirs, compacted + bases
    is_active = any(holder.why for holder in holders)
    explanation = Explanation(
        key,
        head_if_there(repository.store, key),
        tuple(sorted(holders, key=lambda holder: not holder.why)),
        is_uncommitted or bool(staged),
        staged,
        tuple(_decisions(repository, key, warn)),
        () if is_active else search.unnamed(),
        () if is_active else tuple(compacted),
        listed_by=listed_by,
    )
    if explanation.stored is None or explanation.is_referenced:
        return explanation
    kept, kept_when_old = _judge(step, explanation.stored, readings.dump.live().heads)
    return replace(explanation, kept=kept, kept_when_old=kept_when_old)


def _held_by(repository_id: str, at: int) -> tuple[str, ...]:
    return (f"repository {repository_id} holds it",)


def find_key(repository: OpenRepository, address: str) -> str:
    """The address relative to the storage namespace.

    Args:
        address: relative to the storage namespace, in full, or `lakefs://REPOSITORY/REF/PATH` for the object at a path
            of a branch, tag or commit. The repository is this one, or one named in `collection.also_live`.
    Raises:
        ConfigurationError: the address lies outside the storage namespace, or lakeFS has no such object.
        LakeFSError: there is no such branch, tag or commit, or the server fails.
    """
    location = parse_location(address)
    if location is None or location.kind != "lakefs":
        return relative(repository, address)
    reference, _, path = location.key.partition("/")
    opened = {opened_repository.facts.id: opened_repository for opened_repository in (repository, *repository.others)}
    if location.bucket not in opened or not path:
        raise ConfigurationError(
            f"{address} is not a lakefs://REPOSITORY/REF/PATH in {', '.join(opened)}: --repository selects another "
            "repository of the configuration"
        )
    stats = opened[location.bucket].api.stat(reference, path)
    if stats is None:
        raise ConfigurationError(
            f"lakeFS has no object at {address}: check branch and path. An object without a path has only an address "
            "in the store, such as data/…, which `lakefs-gc candidates` lists"
        )
    return relative(repository, stats.physical_address)


def _begin(
    repository: OpenRepository, key: str, store_clock: datetime | None, note: LogLine, warn: LogLine
) -> Step[ArrowRows]:
    """Begins a step without a lock, with the plan of a run of flow `clean`.

    The step uses the facts of all runs, as a run with a base run does: facts about immutable files stay true.

    Args:
        store_clock: as for `planning.make_plan`; None if unknown.
    """
    now = repository.clock.now()
    windows = (_window(key, repository.settings.slice_window),)
    plan = planning.make_plan(repository, layout.issue_run_id(now), windows, "explain", store_clock or now, Flow.CLEAN)
    try:
        plan = planning.with_inventory(repository, plan)
    except CollectionError as error:
        warn(f"a run may keep the object as younger than the inventory, which cannot be read: {error}")
    return Step(note, warn, repository, LocalEngine(), replace(plan, base_run=plan.previous_run), None)


def _window(key: str, window_size: WindowSize) -> str:
    return str(layout.read_names(pa.array([key], pa.string()), window_size).windows[0])


def _ask_newest_run(repository: OpenRepository, key: str) -> tuple[str | None, Set[str]]:
    """The newest finished run if the address is among its candidates, and ids of files that lack the address.

    If that run examined the address and found it uncommitted, no range that it or its base runs read contains it. The
    run's recheck relies on that as well. The same holds for an address issued after the run. Unreadable files of the
    run rule nothing out.
    """
    store, listed_by = repository.store, None
    try:
        run_id = earlier_runs.newest_run(store)
        plan = plans.read(store, run_id)
        if (plan.repository, plan.storage_namespace) != (repository.facts.id, repository.namespace.uri):
            return None, IdSet()
        committed = earlier_runs.read_manifest(store, COMMITTED_DF.name, run_id)
        not_committed = earlier_runs.read_manifest(store, NOT_COMMITTED_DF.name, run_id)
        issued_at = layout.parse(key).issued_at
        if issued_at is None or layout.as_datetime(issued_at) - repository.skew <= committed.span.ended_at:
            if _has(repository, plan, CANDIDATES_DF, key):
                listed_by = run_id
            elif not _has(repository, plan, NOT_COMMITTED_DF, key):
                return None, IdSet()
        if not_committed.inputs.get(COMMITTED_DF.name) == committed.digest:
            ids = tables.read_run_ids(store, run_id, committed.span.attempt, committed.figures.read_sha256)
            return listed_by, ids
    except CollectionError:
        pass
    return listed_by, IdSet()


def _has(repository: OpenRepository, plan: Plan, frame: Frame[Any], key: str) -> bool:
    """True if a frame of a run has the address."""
    windows = (_window(key, plan.slice_window), OTHER_WINDOW)
    for file in earlier_runs.read_manifest(repository.store, frame.name, plan.run_id).files:
        if file.slice_window in windows:
            rows = files.read_file(repository.store, file, frame.schema, ["address"], frame.added)
            if pc.any(pc.equal(rows.column("address"), key)).as_py():
                return True
    return False


@dataclass(frozen=True)
class _Search:
    """Searches metaranges and ranges for an address.

    Attributes:
        known: ids of metaranges and ranges that do not hold the address.
        read: ids of this repository's metaranges and ranges that were searched, with the paths in ranges.
    """

    step: Step[ArrowRows]
    key: str
    known: Set[str]
    count: Callable[[int, int], None] | None
    read: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def commits(
        self,
        repository: OpenRepository,
        dump: Dump,
        why: Callable[[int], tuple[str, ...]],
        late: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[list[Holder], list[StagedAt]]:
        """The commits, and the compacted bases of branches, that hold the address.

        Args:
            why: returns why a commit stays, by its position.
            late: metaranges of commits newer than the dump, by commit id.
        """
        columns = dump.commits
        metarange_ids = [*commits.distinct_metaranges(columns).to_pylist(), *dump.compacted, *late.values()]
        paths_of = self._metaranges(repository, metarange_ids)
        among = pc.is_in(columns.metarange_ids, value_set=pa.array(paths_of, pa.string()))
        holders = [
            Holder(columns.ids[at].as_py(), paths_of[columns.metarange_ids[at].as_py()], why(at))
            for at in pc.indices_nonzero(among).to_pylist()
        ]
        newer = ("newer than the refs dump, in the server's own list",)
        holders += [
            Holder(commit_id, paths_of[metarange], newer)
            for commit_id, metarange in late.items()
            if metarange in paths_of
        ]
        bases = ((branch, path) for base, branch in dump.compacted.items() for path in paths_of.get(base, ()))
        return holders, [StagedAt(repository.facts.id, branch, path) for branch, path in bases]

    def _metaranges(self, repository: OpenRepository, metarange_ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """The paths at which metaranges hold the address; metaranges without it are left out."""
        wanted = IdSet.from_ids(self.known).lacking(id_ for id_ in dict.fromkeys(metarange_ids) if id_)
        named = [*self._named_ranges(repository, wanted)]
        ranges = [facts_of_ranges.select_ranges(rows) for rows in (NAMED_RANGES.empty_table(), *named)]
        records = RangeRecords.of_rows(each_once(pa.concat_tables(ranges))).without(self.known)
        self.step.log(
            f"{counted(len(records), 'ranges')} of {counted(len(wanted), 'metaranges')} of {repository.facts.id} may "
            "hold it"
        )
        paths = self._paths(repository, records)
        if repository is self.step.repository:
            self.read.update({**dict.fromkeys(wanted, ()), **paths})
        holding = {range_id for range_id, at in paths.items() if at}
        paths_of: dict[str, tuple[str, ...]] = {}
        for rows in named if holding else ():
            for metarange_id, range_id in facts_of_ranges.find_naming(rows, holding):
                paths_of[metarange_id] = (*paths_of.get(metarange_id, ()), *paths[range_id])
        return paths_of

    def _named_ranges(self, repository: OpenRepository, metarange_ids: Sequence[str]) -> Iterator[pa.Table]:
        """Metaranges with their ranges (NAMED_RANGES), each in one of several tables; from cached facts if possible."""
        step, unread = self.step, IdSet(metarange_ids)
        fact_files = references.find_fact_files(step, METARANGES) if repository is step.repository and unread else []
        for file in fact_files if len(fact_files) < len(unread) else ():
            try:
                rows = facts_of_ranges.select_wanted(facts_of_ranges.read_metaranges(repository.store, file), unread)
            except CorruptFile as damage:
                step.warn(f"facts about metaranges cannot be used, and these are read: {facts.describe(damage)}")
                continue
            unread -= IdSet(rows.filter(pc.is_null(rows.column("min_key"))).column("id").to_pylist())
            yield rows
        ids, live_files = (IdSet(metarange_ids) - unread).lacking(metarange_ids), self._files(repository)

        def name(place: int) -> pa.Table:
            return name_ranges(ids[place], place, live_files.metarange(ids[place]))

        if ids:
            yield merge(work_ahead(name, range(len(ids)), _READERS), facts_of_ranges.join_runs, ROWS_MERGED)

    def unnamed(self) -> tuple[UnnamedRange, ...]:
        """The ranges that hold the address and count although no active commit has them; call this last."""
        step, settings = self.step, self.step.repository.settings
        if not settings.keep_unnamed_ranges:
            return ()
        since = None if settings.keep_old_unnamed_ranges else step.plan.cutoff
        unnamed_ranges = find_unnamed(
            step.repository.store, References.from_step(step), self.known, IdSet(self.read), since
        )
        step.log(
            f"reading {counted(len(unnamed_ranges.records), 'ranges')} that belong to no commit of "
            f"{step.repository.facts.id}"
        )
        unread = unnamed_ranges.records.without(self.read.keys())
        paths = {**self.read, **self._paths(step.repository, unread)}
        return tuple(UnnamedRange(record.id, paths[record.id]) for record in unnamed_ranges.records if paths[record.id])

    def _paths(self, repository: OpenRepository, records: RangeRecords) -> dict[str, tuple[str, ...]]:
        """The paths, as text, at which each range holds the address. Reads only ranges that facts do not rule out."""
        lacking, live_files = self._find_lacking(records), self._files(repository)
        wanted = [record for record in records if record.id not in lacking]
        self.step.log(
            f"reading {counted(len(wanted), 'ranges')}; facts of earlier runs rule out {len(records) - len(wanted):,} "
            "others"
        )
        paths: dict[str, tuple[str, ...]] = {}
        # Ranges differ in size: a large one does not delay the next requests.
        with ThreadPoolExecutor(_READERS) as pool:
            results = pool.map(lambda record: live_files.paths(record, self.key), wanted)
            for record, found in zip(wanted, results, strict=True):
                paths[record.id] = tuple(path.decode("utf-8", "replace") for path in found)
                if self.count is not None:
                    self.count(len(paths), len(wanted))
        return {**dict.fromkeys(lacking, ()), **paths}

    def _find_lacking(self, records: RangeRecords) -> Set[str]:
        """Ranges without the address, according to all recorded facts; empty if reading the ranges costs less."""
        step = self.step
        fact_files = references.find_fact_files(step, HASHES) if records else []
        sizes = [file.length for file in fact_files], records.rows.column("estimated_size").to_pylist()
        of_facts, of_ranges = (sum(each) + _REQUEST_BYTES * len(each) for each in sizes)
        if of_facts >= of_ranges:
            return frozenset()
        namespace = step.repository.namespace.uri
        look_up = partial(facts_of_ranges.look_up_address, namespace=namespace, address=self.key)
        rows = references.look_up_facts(step, HASHES, fact_files, look_up, HOLDS_ADDRESS)
        entries = {record.id: record.count for record in records}
        lacking: dict[str, bool] = {}
        for row in rows.to_pylist():
            fits = row["entries"] == entries.get(row["range_id"])
            lacking[row["range_id"]] = lacking.get(row["range_id"], True) and fits and not row["holds"]
        return {range_id for range_id, lacks in lacking.items() if lacks}

    def _files(self, repository: OpenRepository) -> LiveFiles:
        return LiveFiles(repository.store, self.step.repository.namespace, self.step.plan.slice_window)


def _judge(step: Step[ArrowRows], stored: ObjectFacts, heads: dict[str, str]) -> tuple[str | None, str | None]:
    """Reason a run keeps an unreferenced object: now, and once it is old if it is too young now."""
    engine, now = step.engine, step.repository.clock.now()
    listed = as_listed(as_batch([stored]), step.plan.slice_window)
    if not listed.num_rows:
        return None, None
    rows = engine.table(pa.Table.from_batches([listed]))
    is_multipart = pc.any(earlier_runs.is_multipart(listed)).as_py()
    earlier = earlier_runs.read_sightings(step, now) if is_multipart else engine.table(SIGHTINGS.empty_table())
    kept = _keep_because(step, rows, earlier_runs.select_old_enough(engine, earlier, now), heads)
    if kept != Kept.YOUNG:
        return kept, None
    when_old = replace(step, plan=replace(step.plan, cutoff=datetime.max.replace(tzinfo=UTC)))
    return kept, _keep_because(when_old, rows, rows, heads)


def _keep_because(step: Step[ArrowRows], rows: ArrowRows, sighted: ArrowRows, heads: dict[str, str]) -> str | None:
    """Reason the mark keeps the only object in `rows` (LISTED), which nothing is known to reference."""
    unreferenced = subtract(step, rows, (), sighted, 1)

    def clear(eligible: ArrowRows) -> Any:
        return clear_hidden(step, eligible, heads, LISTED)

    with choose_candidates(step.engine, unreferenced, 1, LISTED, clear) as (_, reasons, cleared):
        return next(iter({**reasons.kept, **cleared.kept}), None)


def _staged_at(namespace: Namespace, repository: OpenRepository, key: str) -> Iterator[StagedAt]:
    """Branches and paths that show the address."""
    for branch in repository.api.branches():
        for stats in staged_objects(repository.api, branch.id):
            if key in namespace.live_keys(stats.physical_address, AddressType.FULL):
                yield StagedAt(repository.facts.id, branch.id, stats.path)


def _decisions(repository: OpenRepository, key: str, warn: LogLine) -> Iterator[Decision]:
    """Decisions of sweeps about the object, newest first.

    For a finished sweep, only the report's files that may name the object are read, and the receipts of restorations
    and purges. For other sweeps, all receipts are read.
    """
    runs = EarlierRuns(repository.store)
    settled = ((run_id, runs.settled(run_id)) for run_id in runs.newest_first())
    # A settled run that deleted nothing, and was not to delete anything, has no receipts.
    swept = [
        run_id for run_id, facts_of_run in settled if not facts_of_run or facts_of_run.swept or facts_of_run.deleted
    ]
    windows = {OTHER_WINDOW, *(_window(key, size) for size in get_args(WindowSize))}

    def exclude(damage: CorruptFile) -> None:
        warn(f"some decisions of run {run_folder.run_of(damage.file)} are unknown: {damage}")

    read = partial(_read_decisions, repository.store, windows, exclude)
    for run_id, rows in zip(swept, work_ahead(read, swept, _READERS), strict=True):
        for row in rows.filter(pc.equal(rows.column("address"), key)).to_pylist():
            yield Decision(run_id, row["decided_at"], row["outcome"], row["error"])


def _read_decisions(store: ObjectStore, windows: Set[str], exclude: receipts.DamagedFile, run_id: str) -> pa.Table:
    """Receipts (RECEIPTS) of a run; for a finished sweep, only those in these windows."""
    keys, none = receipts.keys(store, run_id), RECEIPTS.empty_table()
    later = [key for key in keys if key.rpartition("/")[2].startswith((receipts.OF_RESTORE, receipts.OF_PURGE))]
    if (reported := earlier_runs.report_files(store, run_id)) is not None:
        with suppress(CorruptFile):
            wanted = (file for file in reported if file.slice_window in windows)
            tables = [files.read_file(store, file, RECEIPTS, added=DELETED_REPORT.added) for file in wanted]
            return pa.concat_tables(
                [none, *(each.cast(RECEIPTS) for each in tables), *receipts.read_files(store, later, exclude)]
            )
    return pa.concat_tables([none, *receipts.read_files(store, keys, exclude)])
