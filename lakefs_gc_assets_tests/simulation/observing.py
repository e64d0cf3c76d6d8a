"""Watches the shipped run: wraps its functions during a play to report their work without changing it.

The repository that a call works on tells which run it belongs to.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector import run, sweeping
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF, FRAMES, LISTED, PROVISIONAL_DF, SIGHTINGS, STEPS
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check
from lakefs_gc_assets.collector.live import current
from lakefs_gc_assets.collector.live.current import Samples
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.purge import LiveCheck
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.simulation.bug import replace
from lakefs_gc_assets_tests.simulation.collecting import Run
from lakefs_gc_assets_tests.simulation.stored_results import addresses, addresses_of_files, stored_rows

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
