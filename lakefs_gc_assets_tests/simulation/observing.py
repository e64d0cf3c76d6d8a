"""Watches the shipped run: wraps its functions during a play to report their work without changing it.

The repository that a call works on tells which run it belongs to.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa

from lakefs_gc_assets.collector import run
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF, FRAMES, LISTED, PROVISIONAL_DF, SIGHTINGS, STEPS
from lakefs_gc_assets.collector.incremental import checkpoint, earlier_runs, gap_check
from lakefs_gc_assets.collector.live import current
from lakefs_gc_assets.collector.live.current import Samples
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.quarantine.purge import LiveCheck
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.records.report import Checkpoint
from lakefs_gc_assets.collector.sweep import passes
from lakefs_gc_assets.collector.universe import listing
from lakefs_gc_assets.lakefs.formats.ranges import RangeRecord
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX
from lakefs_gc_assets_tests.simulation.bug import replace
from lakefs_gc_assets_tests.simulation.collecting import Run
from lakefs_gc_assets_tests.simulation.stored_results import addresses, addresses_of_files, stored_rows

_WITH_REASONS = pa.schema([*LISTED, pa.field("kept", pa.string())])


@contextmanager
def observing() -> Iterator[None]:
    """Reports the work of every run while the context is open. Nested contexts wrap nothing more."""
    if run.find_other_repositories.__module__ == __name__:
        yield
        return
    with ExitStack() as patches:

        def wrap(owner: object, name: str, around: Callable[..., Callable[..., Any]]) -> None:
            replace(patches, owner, name, around(getattr(owner, name)))

        wrap(run, "find_other_repositories", _begins_to_list)
        wrap(listing, "list_objects", _lists)
        wrap(run, "list_stored", _has_listed)
        wrap(current, "find_unread", _knows_what_holds)
        wrap(run, "ask_committed", _knows_commits)
        wrap(current, "define_live", _defines)
        wrap(listing, "define_live", _defines)
        wrap(earlier_runs, "select_old_enough", _sights)
        wrap(run, "subtract_live", _subtracts)
        wrap(run, "mark", _marks)
        wrap(passes, "find_live_again", _rechecks)
        wrap(LiveCheck, "_look", _looks)
        wrap(checkpoint, "write_checkpoint", _writes_checkpoint)
        wrap(gap_check, "select_late", _finds_late)
        yield


def _run_of(step: Any) -> Run:
    found: Run = step.repository.run
    return found


def _begins_to_list(find_other_repositories: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any) -> Any:
        found = find_other_repositories(step)
        watch = _run_of(step).watch
        watch.began_listing(step.plan.run_id)
        if watch.refusals is not None:
            watch.refusals.listing(step.plan)
        return found

    return watched


def _lists(list_objects: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, parts: Any) -> Any:
        watch = _run_of(step).watch
        if step.plan.base_run is not None:
            watch.exactness.listing(step.plan, parts)
        written = list_objects(step, parts)
        listed = addresses_of_files(watch.exactness.store, FRAMES[STEPS[0]], written)
        watch.exactness.listed_now[step.plan.run_id] = listed
        return written

    return watched


def _has_listed(list_stored: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any) -> Any:
        made, own = list_stored(step), _run_of(step)
        if step.plan.flow is Flow.COMMITTED and own.watch.retention is not None:
            listed = addresses(own.watch.exactness.store, step.plan.run_id, STEPS[0])
            own.watch.retention.universe(step.plan, own.watch.reported(), listed)
        return made

    return watched


_held_elsewhere: dict[int, list[Any]] = {}
"""Live commits of other repositories that the current third step has requested, by the id of its engine."""


def _knows_what_holds(find_unread: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, repository: Any, live: Any, known: frozenset[str]) -> Any:
        if repository is not step.repository and id(step.engine) in _held_elsewhere:
            _held_elsewhere[id(step.engine)].append(live)
        return find_unread(step, repository, live, known)

    return watched


def _knows_commits(ask_committed: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, prepared_until: Any, known: frozenset[str], *more: Any, **named: Any) -> Any:
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
                held |= _all_committed(
                    LiveFiles(watch.exactness.other_store, namespace, window_size), live, frozenset()
                )
            watch.exactness.commits(step.plan.run_id, held)
        return found

    return watched


def _all_committed(files: LiveFiles, live: Any, ids: frozenset[str]) -> set[str]:
    """Reads all addresses that commits hold, and those in unnamed ranges among the ids."""
    rows = [row for metarange_id in live.metarange_ids for row in files.metarange(metarange_id).to_pylist()]
    records = dict.fromkeys(RangeRecord(**row) for row in rows)
    named = {*live.metarange_ids, *(record.id for record in records)}
    tables = [files.metadata_file(name) for name in (*live.files, *(ids - named))]
    tables += [files.range(record) for record in records]
    return {address for table in tables for address in table.column("address").to_pylist()}


def _defines(define_live: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, prepared_until: Any, *more: Any, **named: Any) -> Any:
        found, own = define_live(step, prepared_until, *more, **named), _run_of(step)
        if own is not None and own.this is not None and own.at in (STEPS[0], STEPS[2]) and own.watch.retention:
            own.watch.retention.defined(step.plan, own.watch.reported(), found, universe=own.at == STEPS[0])
        return found

    return watched


_sighted: dict[int, set[str]] = {}
"""Addresses that the current mark has seen before, by the id of its engine."""


def _sights(select_old_enough: Callable[..., Any]) -> Callable[..., Any]:
    def watched(engine: Any, rows: Any, moment: Any) -> Any:
        noted = _sighted.setdefault(id(engine), set())

        def note(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                noted.update(batch.column("address").to_pylist())
                yield batch

        schema = pa.schema([pa.field("address", pa.string()), SIGHTINGS.field("first_listed_at")])
        chosen = engine.select(select_old_enough(engine, rows, moment), *schema.names)
        return engine.map_batches(chosen, note, schema)

    return watched


def _subtracts(subtract_live: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, listed: Any, uncommitted: Any, *more: Any) -> Any:
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

    return watched


def _compare_mark(own: Run, reasons: dict[str, Kept | None], sighted: set[str]) -> None:
    exactness, run_id = own.watch.exactness, own.run_id
    now = exactness.listed_now[run_id]
    listed = [row for row in stored_rows(exactness.store, run_id, STEPS[0]) if row["address"] in now]
    exactness.expired |= addresses(exactness.store, run_id, EXPIRED_DF.name)
    staged = addresses(exactness.store, run_id, STEPS[1]) | addresses(exactness.store, run_id, PROVISIONAL_DF.name)
    exactness.marked(own.plan, listed, staged, sighted, reasons)


def _marks(mark: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, *frames: Any) -> Any:
        made, own = mark(step, *frames), _run_of(step)
        watch, store = own.watch, own.watch.exactness.store
        watch.marked(own.run_id, sorted(addresses(store, own.run_id, STEPS[3])))
        if watch.refusals is not None:
            watch.refusals.marked(step.plan, step.repository.settings, watch.reported(), store)
        return made

    return watched


def _rechecks(find_live_again: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, samples: Samples) -> Any:
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

    return watched


def _looks(look: Callable[..., Any]) -> Callable[..., Any]:
    def watched(self: Any, copies: Any) -> Any:
        own = _run_of(self._step)
        if own is not None:
            own.watch.rechecking()
        found = look(self, copies)
        if own is not None:
            own.watch.rechecked()
        return found

    return watched


def _writes_checkpoint(write_checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, outcomes: Any) -> Any:
        left, exactness = write_checkpoint(step, outcomes), _run_of(step).watch.exactness
        if isinstance(left, Checkpoint):
            exactness.left(step.plan, checkpoint.read_sealed(exactness.store, step.plan.run_id, left))
        return left

    return watched


def _finds_late(select_late: Callable[..., Any]) -> Callable[..., Any]:
    def watched(step: Any, candidates: Any, sealed: Any, before: Any) -> Any:
        exactness = _run_of(step).watch.exactness

        def note(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found: Sequence[pa.RecordBatch] = [*batches]
            late = [address for batch in found for address in batch.column("address").to_pylist()]
            exactness.found_late(step.plan.run_id, before.run_id, late)
            yield from found

        return step.engine.map_batches(select_late(step, candidates, sealed, before), note, LISTED)

    return watched
