"""The shipped run in the simulated world: one collector process that makes its steps as Dagster does.

The run is the product's own code: `collector.run` and `collector.step`, on the engine of plain Arrow tables. This
module adds Dagster's part only: it hands frames from step to step, runs the blocking checks of the candidates, and
remembers finished steps. It wraps functions of the run during a play to report their work without changing it; the
repository that a call works on tells which run it belongs to.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import pyarrow as pa

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.engine.local import ArrowRows, LocalEngine
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF, FRAMES, LISTED, PROVISIONAL_DF, SIGHTINGS, STEPS
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check, planning
from lakefs_gc_assets.collector.live import current
from lakefs_gc_assets.collector.live.current import Samples
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.make_step import StepHost, StepRequest, end_between_steps, step
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow, Plan
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.repository.lock import Lock
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import LakeFSApi
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets.settings import CollectionSettings
from lakefs_gc_assets.storage.interface import ObjectStore
from lakefs_gc_assets.storage.opening import StoreOpener
from lakefs_gc_assets_tests.runs.plain_steps import INPUTS, make_frame, require_passed_checks
from lakefs_gc_assets_tests.simulation.bug import replace
from lakefs_gc_assets_tests.simulation.clocks import CollectorClock
from lakefs_gc_assets_tests.simulation.run_oracles import Exactness, Refusals, RetentionExactness
from lakefs_gc_assets_tests.simulation.servers import ServerAnswers
from lakefs_gc_assets_tests.simulation.stored_results import addresses, addresses_of_files, stored_rows

TASKS = 2


class Killed(BaseException):
    """The process of a collector ends at once, without a chance to clean up."""


Reached = tuple[LakeFSApi, ObjectStore]
"""API and store through which a collector reaches another repository."""


@dataclass(frozen=True)
class Opener:
    """Reopens the simulated store in this process."""

    store: ObjectStore
    namespace_uri: str

    def open(self) -> ObjectStore:
        return self.store


@dataclass(frozen=True)
class Watch:
    """Observers of a run; none changes it.

    Attributes:
        began_listing, marked, rechecking, rechecked: notify the oracle.
        exactness: compares optimized runs with clean ones.
        retention: compares runs by retention rules with the commits that must stay, if such runs occur.
        reported: the servers' last answers to the collector.
        refusals: knows the reasons for which a run refuses to delete.
        dump_refused: True if the last requested dump was refused.
    """

    began_listing: Callable[[str], None]
    marked: Callable[[str, Sequence[str]], None]
    rechecking: Callable[[], None]
    rechecked: Callable[[], None]
    exactness: Exactness
    retention: RetentionExactness | None = None
    reported: Callable[[], ServerAnswers] = ServerAnswers
    refusals: Refusals | None = None
    dump_refused: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class WatchedRepository(OpenRepository):
    """An open repository that knows which run it was opened for."""

    run: "Run | None" = None


def open_repository(
    api: LakeFSApi,
    store: ObjectStore,
    settings: CollectionSettings,
    clock: CollectorClock,
    run: "Run | None" = None,
    others: Sequence[Reached] = (),
) -> WatchedRepository:
    """Does the work of `Collector.open`: asks the server for the repository and for those in `also_live`."""
    opened = tuple(open_repository(*other, settings, clock) for other in others)
    facts = api.repository()
    namespace = Namespace.parse(facts.storage_namespace)
    opener = cast(StoreOpener, Opener(store, namespace.uri))
    return WatchedRepository(facts, namespace, api, store, opener, settings, clock, opened, run=run)


@dataclass
class Run:
    """One run in a collector process. A resumed run is another object with the same run id and owner.

    Attributes:
        only_windows: number of newest needed windows to collect, if limited; 0 for all. A negative number drops as many
            of the oldest windows, beginning with `legacy`.
        windows: the windows that the run was opened for; all needed ones unless limited.
        others: the repositories that `also_live` names.
        completed: steps that Dagster considers done; outlives processes, as Dagster's storage does.
        ended: called when all steps are done, before Dagster records the last one.
        this: the current step.
    """

    api: LakeFSApi
    store: ObjectStore
    settings: CollectionSettings
    clock: CollectorClock
    run_id: str
    owner: str
    watch: Watch
    note: Callable[[str], None]
    completed: list[str]
    flow: Flow = Flow.CLEAN
    windows: tuple[str, ...] = ()
    only_windows: int = 0
    others: Sequence[Reached] = ()
    ended: Callable[[], None] = lambda: None
    at: str = STEPS[0]
    this: Step[ArrowRows] | None = None
    plan: Plan = field(init=False)
    started_at: datetime = field(init=False)
    _kept: bool = False
    _opened: bool = False
    _frames: dict[str, StoredFrame[Any]] = field(default_factory=dict)
    _locks: dict[str, Lock] = field(default_factory=dict)

    def collect(self, done: Sequence[str] = ()) -> None:
        """Makes all steps that are not yet done."""
        for name in STEPS:
            if name not in done:
                self.make(name)

    def make(self, name: str) -> None:
        """Makes one step, with Dagster's part before and after it."""
        self.at = name
        if name == STEPS[0]:
            self.completed.clear()
            self._choose_windows()
        inputs = [self._load(given) for given in INPUTS[name]]
        request = StepRequest(
            self.run_id,
            self.windows,
            self.owner,
            begins=self.flow if name == STEPS[0] else None,
            has_earlier_step=self._kept,
            has_later_step=name != STEPS[-1],
        )
        with step(request, self.host) as this, self._renewing(this):
            self.plan, self.started_at = this.plan, this.started_at
            frame = make_frame(name, this, inputs)
        self._kept = request.has_later_step
        self._frames[name] = frame
        with self._between_steps(holds_lock=True):
            frame.sample(20)
        if name == STEPS[3]:
            self._check(frame, inputs)
        if name == STEPS[-1]:
            self.ended()
        self.completed.append(name)

    @contextmanager
    def _renewing(self, this: Step[ArrowRows]) -> Iterator[None]:
        """As `lock.renewed`: the world may renew the lock meanwhile, but not while it is released."""
        self.this = this
        try:
            yield
        finally:
            self.this = None

    def _choose_windows(self) -> None:
        """Chooses the windows as `partitions.open_run` does; later attempts keep them."""
        if not self.windows:
            needed, _ = planning.windows_to_collect(self.open(), self.flow)
            self.windows = needed[-self.only_windows :] or needed[-1:]

    def _load(self, name: str) -> StoredFrame[Any]:
        """Loads an input frame as the IO manager does, which has the frames that its process made."""
        if name in self._frames:
            return self._frames[name]
        with self._between_steps(holds_lock=self._kept):
            repository = self.open()
            return StoredFrame.from_run(repository.store, repository.opener, self.run_id, FRAMES[name])

    def _check(self, candidates: StoredFrame[Any], inputs: Sequence[StoredFrame[Any]]) -> None:
        """Runs the blocking checks of the candidates. A failed one ends the run."""
        with self._between_steps(holds_lock=True):
            require_passed_checks(self.engine(self.open()), candidates, inputs, self.plan.cutoff)

    @contextmanager
    def _between_steps(self, *, holds_lock: bool) -> Iterator[None]:
        """As `failures.between_steps`."""
        try:
            yield
        except BaseException as error:
            if holds_lock:
                end_between_steps(self.run_id, self.last_opened(), self.now(), self.explain(error))
            raise

    @property
    def host(self) -> StepHost[ArrowRows]:
        """The host that steps of this process run on."""
        return StepHost(
            self.open, self.last_opened, self.engine, self.now, self.log, self.warn, self.explain, self._locks
        )

    def open(self) -> OpenRepository:
        """See StepHost.open."""
        found = open_repository(self.api, self.store, self.settings, self.clock, self, self.others)
        self._opened = True
        return found

    def last_opened(self) -> ObjectStore | None:
        """See StepHost.last_opened."""
        return self.store if self._opened else None

    def engine(self, repository: OpenRepository) -> LocalEngine:
        """See StepHost.engine."""
        return LocalEngine(TASKS)

    def now(self) -> datetime:
        """See StepHost.now."""
        return self.clock.now()

    def log(self, line: str) -> None:
        """See StepHost.log."""

    def warn(self, line: str) -> None:
        """See StepHost.warn."""

    def explain(self, error: BaseException) -> str:
        """See StepHost.explain."""
        return str(error)


_WITH_REASONS = pa.schema([*LISTED, pa.field("kept", pa.string())])


_WRAPPED: list[tuple[object, str, Callable[..., Any]]] = []
"""Functions of the product, each with the one that is called with it in its place."""


def _around(owner: object, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function that gets the product's one and its arguments."""

    def register(watched: Callable[..., Any]) -> Callable[..., Any]:
        _WRAPPED.append((owner, name, watched))
        return watched

    return register


@contextmanager
def observing() -> Iterator[None]:
    """Reports the work of every run while the context is open. Nested contexts wrap nothing more."""
    if run.find_other_repositories.__module__ == __name__:
        yield
        return
    with ExitStack() as patches:
        for owner, name, watched in _WRAPPED:
            replace(patches, owner, name, _calling(watched, getattr(owner, name)))
        yield


def _calling(watched: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: watched(original, *arguments, **named)


def _run_of(step: Any) -> Run:
    found: Run = step.repository.run
    return found


@_around(run, "find_other_repositories")
def _begins_to_list(find_other_repositories: Callable[..., Any], step: Any) -> Any:
    found = find_other_repositories(step)
    watch = _run_of(step).watch
    watch.began_listing(step.plan.run_id)
    if watch.refusals is not None:
        watch.refusals.listing(step.plan)
    return found


@_around(listing, "list_objects")
def _lists(list_objects: Callable[..., Any], step: Any, parts: Any) -> Any:
    watch = _run_of(step).watch
    if step.plan.base_run is not None:
        watch.exactness.listing(step.plan, parts)
    written = list_objects(step, parts)
    listed = addresses_of_files(watch.exactness.store, FRAMES[STEPS[0]], written)
    watch.exactness.listed_now[step.plan.run_id] = listed
    return written


@_around(run, "list_stored")
def _has_listed(list_stored: Callable[..., Any], step: Any) -> Any:
    made, own = list_stored(step), _run_of(step)
    if step.plan.flow is Flow.COMMITTED and own.watch.retention is not None:
        listed = addresses(own.watch.exactness.store, step.plan.run_id, STEPS[0])
        own.watch.retention.universe(step.plan, own.watch.reported(), listed)
    return made


_held_elsewhere: dict[int, list[Any]] = {}
"""Live commits of other repositories that the current third step has requested, by the id of its engine."""


@_around(current, "find_unread")
def _knows_what_holds(
    find_unread: Callable[..., Any], step: Any, repository: Any, live: Any, known: frozenset[str]
) -> Any:
    if repository is not step.repository and id(step.engine) in _held_elsewhere:
        _held_elsewhere[id(step.engine)].append(live)
    return find_unread(step, repository, live, known)


@_around(run, "ask_committed")
def _knows_commits(
    ask_committed: Callable[..., Any], step: Any, prepared_until: Any, known: frozenset[str], *more: Any, **named: Any
) -> Any:
    elsewhere = _held_elsewhere[id(step.engine)] = []
    found = ask_committed(step, prepared_until, known, *more, **named)
    del _held_elsewhere[id(step.engine)]
    watch = _run_of(step).watch
    if step.plan.base_run is not None:
        namespace, window_size = step.repository.namespace, step.plan.slice_window
        files = LiveFiles(watch.exactness.store, namespace, window_size)
        # Files that were read once stay in the bucket, named by a commit or not: a clean run would find them, too.
        read = known | found.ids if found.unnamed else frozenset()
        own = frozenset(name for name in read if METADATA_PREFIX + name in watch.exactness.bucket.objects)
        held = _all_committed(files, found.own, own)
        for live in elsewhere:
            held |= _all_committed(LiveFiles(watch.exactness.other_store, namespace, window_size), live, frozenset())
        watch.exactness.commits(step.plan.run_id, held)
    return found


def _all_committed(files: LiveFiles, live: Any, ids: frozenset[str]) -> set[str]:
    """Reads all addresses that commits hold, and those in unnamed ranges among the ids."""
    rows = [row for metarange_id in live.metarange_ids for row in files.metarange(metarange_id).to_pylist()]
    records = dict.fromkeys(RangeRecord(**row) for row in rows)
    named = {*live.metarange_ids, *(record.id for record in records)}
    tables = [files.metadata_file(name) for name in (*live.files, *(ids - named))]
    tables += [files.range(record) for record in records]
    return {address for table in tables for address in table.column("address").to_pylist()}


@_around(current, "define_live")
@_around(listing, "define_live")
def _defines(define_live: Callable[..., Any], step: Any, prepared_until: Any, *more: Any, **named: Any) -> Any:
    found, own = define_live(step, prepared_until, *more, **named), _run_of(step)
    if own is not None and own.this is not None and own.at in (STEPS[0], STEPS[2]) and own.watch.retention:
        own.watch.retention.defined(step.plan, own.watch.reported(), found, universe=own.at == STEPS[0])
    return found


_sighted: dict[int, set[str]] = {}
"""Addresses that the current mark has seen before, by the id of its engine."""


@_around(earlier_runs, "select_old_enough")
def _sights(select_old_enough: Callable[..., Any], engine: Any, rows: Any, moment: Any) -> Any:
    noted = _sighted.setdefault(id(engine), set())

    def note(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            noted.update(batch.column("address").to_pylist())
            yield batch

    schema = pa.schema([pa.field("address", pa.string()), SIGHTINGS.field("first_listed_at")])
    chosen = engine.select(select_old_enough(engine, rows, moment), *schema.names)
    return engine.map_batches(chosen, note, schema)


@_around(run, "subtract_live")
def _subtracts(subtract_live: Callable[..., Any], step: Any, listed: Any, uncommitted: Any, *more: Any) -> Any:
    own = _run_of(step)
    # A failed mark leaves its entry behind, and a new engine may reuse the id of a freed one.
    _sighted.pop(id(step.engine), None)
    rows = subtract_live(step, listed, uncommitted, *more)
    if step.plan.base_run is None or step.plan.flow is Flow.COMMITTED:
        return rows

    def note(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = [*batches]
        mine = {row["address"]: row["kept"] for batch in found for row in batch.to_pylist()}
        reasons = {address: None if why is None else Kept(why) for address, why in mine.items()}
        _compare_mark(own, reasons, _sighted.pop(id(step.engine), set()))
        yield from found

    return step.engine.map_batches(rows, note, _WITH_REASONS)


def _compare_mark(own: Run, reasons: dict[str, Kept | None], sighted: set[str]) -> None:
    exactness, run_id = own.watch.exactness, own.run_id
    now = exactness.listed_now[run_id]
    listed = [row for row in stored_rows(exactness.store, run_id, STEPS[0]) if row["address"] in now]
    exactness.expired |= addresses(exactness.store, run_id, EXPIRED_DF.name)
    staged = addresses(exactness.store, run_id, STEPS[1]) | addresses(exactness.store, run_id, PROVISIONAL_DF.name)
    exactness.marked(own.plan, listed, staged, sighted, reasons)


@_around(run, "mark")
def _marks(mark: Callable[..., Any], step: Any, *frames: Any) -> Any:
    made, own = mark(step, *frames), _run_of(step)
    watch, store = own.watch, own.watch.exactness.store
    watch.marked(own.run_id, sorted(addresses(store, own.run_id, STEPS[3])))
    if watch.refusals is not None:
        watch.refusals.marked(step.plan, step.repository.settings, watch.reported(), store)
    return made


@_around(sweeping, "find_live_again")
def _rechecks(find_live_again: Callable[..., Any], step: Any, samples: Samples) -> Any:
    watch, refusals = _run_of(step).watch, _run_of(step).watch.refusals
    watch.rechecking()
    if refusals is not None:
        refusals.rechecking(step.plan)
    found = find_live_again(step, samples)
    watch.rechecked()
    if refusals is not None:
        refused = watch.dump_refused()
        settings, store = step.repository.settings, watch.exactness.store
        refusals.rechecked(step.plan, settings, watch.reported(), store, dump_refused=refused)
    return found


@_around(LiveCheck, "_look")
def _looks(look: Callable[..., Any], self: Any, copies: Any) -> Any:
    own = _run_of(self._step)
    if own is not None:
        own.watch.rechecking()
    found = look(self, copies)
    if own is not None:
        own.watch.rechecked()
    return found


@_around(checkpoint, "write_checkpoint")
def _writes_checkpoint(write_checkpoint: Callable[..., Any], step: Any, outcomes: Any) -> Any:
    left, exactness = write_checkpoint(step, outcomes), _run_of(step).watch.exactness
    if isinstance(left, Checkpoint):
        exactness.left(step.plan, checkpoint.read_sealed(exactness.store, step.plan.run_id, left))
    return left


@_around(gap_check, "select_late")
def _finds_late(select_late: Callable[..., Any], step: Any, candidates: Any, sealed: Any, before: Any) -> Any:
    exactness = _run_of(step).watch.exactness

    def note(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found: Sequence[pa.RecordBatch] = [*batches]
        late = [address for batch in found for address in batch.column("address").to_pylist()]
        exactness.found_late(step.plan.run_id, before.run_id, late)
        yield from found

    return step.engine.map_batches(select_late(step, candidates, sealed, before), note, LISTED)
