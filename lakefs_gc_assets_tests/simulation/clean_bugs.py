"""Seeded bugs that histories of clean runs find: mistakes of a hurried collector."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import commits, guards, reporting, run
from lakefs_gc_assets.collector.engine.local import ArrowRows
from lakefs_gc_assets.collector.frame import files, receipts
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    DELETED_REPORT,
    LISTED,
    LIVE,
    TIME,
    UNCOMMITTED_DF,
    DeletedFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.live import uncommitted as uncommitted_module
from lakefs_gc_assets.collector.live.current import (
    Committed,
    Samples,
    ask_committed,
    prepare_uncommitted,
    sample_staged,
)
from lakefs_gc_assets.collector.live.hidden import Cleared
from lakefs_gc_assets.collector.live.live_files import LiveFiles
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.outcomes import Outcome
from lakefs_gc_assets.collector.reporting import make_report
from lakefs_gc_assets.collector.repository import lock
from lakefs_gc_assets.collector.repository.lock import LockToken
from lakefs_gc_assets.collector.repository.repository import Clocks, OpenRepository
from lakefs_gc_assets.collector.sweep import sweeping
from lakefs_gc_assets.collector.sweep.recheck import find_live_again
from lakefs_gc_assets.collector.sweep.sweeping import Sweep
from lakefs_gc_assets.errors import OrderViolation, StorageError
from lakefs_gc_assets.lakefs import addresses
from lakefs_gc_assets.lakefs.addresses import Namespace
from lakefs_gc_assets.lakefs.api.models import UncommittedPage
from lakefs_gc_assets.lakefs.formats import refs
from lakefs_gc_assets.storage.interface import DeleteResult
from lakefs_gc_assets_tests.simulation.bug import (
    ArrowStep,
    Bug,
    Replacement,
    ignored,
    replaced,
    without_unnamed,
)
from lakefs_gc_assets_tests.simulation.servers import Servers

Frame = StoredFrame[Any]
_mark, _read_uncommitted, _resume, _each = run.mark, run.read_uncommitted, sweeping.resume, References._each


def _committed_first() -> Sequence[Replacement]:
    """Reads commits before uncommitted data."""
    early: dict[tuple[str, str], Committed] = {}

    def prepare(step: ArrowStep, *more: Any) -> Any:
        early[step.plan.run_id, step.plan.attempt] = ask_committed(step, step.started_at, frozenset())
        return prepare_uncommitted(step, *more)

    def ask(step: ArrowStep, *more: Any, **named: Any) -> Committed:
        found = early[step.plan.run_id, step.plan.attempt]
        return replace(found, own=replace(found.own, started_at=step.started_at))

    return (run, "prepare_uncommitted", prepare), (run, "ask_committed", ask)


def _list_late(step: ArrowStep, listed: Frame) -> Frame:
    """Lists the store after uncommitted data was prepared."""
    found = prepare_uncommitted(step)
    again = run.list_stored(step)
    own = found.prepared[0]
    figures = UncommittedFigures(own.server_run_ids, own.files, pages=own.pages)
    written = step.write_distinct(UNCOMMITTED_DF, found.addresses, found.count)
    return step.complete(UNCOMMITTED_DF, figures, written, (again,), found.started_at)


def subtracting(
    change: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
    sighted: Callable[..., ArrowRows] | None = None,
) -> Callable[..., ArrowRows]:
    """Subtracts live addresses, but judges ages by other times.

    Args:
        change: changes the unreferenced rows.
        sighted: returns the addresses that were seen before; the product's own by default.
    """

    def subtract(step: ArrowStep, listed: Frame, not_committed: Frame, *more: Any) -> ArrowRows:
        _, uncommitted, earlier = more
        engine = step.engine

        def changed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from map(change, batches)

        unreferenced = engine.without(not_committed.rows(engine), uncommitted.rows(engine, "address"), count=1)
        rows = engine.map_batches(unreferenced, changed, LISTED)
        seen = earlier_runs.select_old_enough(engine, earlier, listed.manifest.span.started_at)
        return engine.kept_because(rows, step.plan.cutoff, step.plan.windows, sighted(step, rows) if sighted else seen)

    return subtract


def _without_issue(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Takes an object's age from the store alone."""
    long_ago = pa.scalar(datetime(1970, 1, 1, tzinfo=UTC), TIME)
    issued = rows.column("issued_at")
    position = rows.schema.get_field_index("issued_at")
    return rows.set_column(position, rows.schema.field(position), pc.if_else(pc.is_valid(issued), long_ago, issued))


def _without_modification(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Takes an object's age from its name alone."""
    named = pc.coalesce(rows.column("issued_at"), rows.column("last_modified"))
    position = rows.schema.get_field_index("last_modified")
    return rows.set_column(position, rows.schema.field(position), named)


def _all_sighted(step: ArrowStep, rows: ArrowRows) -> ArrowRows:
    """Trusts the date of a multipart upload at first sight."""
    return step.engine.select(rows, "address")


def _read_once(step: ArrowStep, listed: Frame) -> Frame:
    """Reuses uncommitted data that an earlier attempt read."""
    try:
        before = step.stored(UNCOMMITTED_DF)
    except OrderViolation:
        return _read_uncommitted(step, listed)
    written, began = before.manifest.files, before.manifest.span.started_at
    return step.complete(UNCOMMITTED_DF, before.figures, written, (listed,), began)


def only_uncommitted(step: ArrowStep, samples: Samples) -> ArrowRows:
    """Rechecks uncommitted data only."""
    return step.engine.union(*prepare_uncommitted(step, samples=samples).addresses)


def _checked_at_the_mark() -> Sequence[Replacement]:
    """Rechecks at the mark, and trusts that recheck however late the sweep comes."""
    live: dict[tuple[str, str], pa.Table] = {}

    def mark(step: ArrowStep, *frames: Frame) -> Frame:
        marked = _mark(step, *frames)
        if marked.count:
            sweeping.wait_for_recheck(step, frames[1])
            live[step.plan.run_id, step.plan.attempt] = step.engine.collect(find_live_again(step, sample_staged(step)))
        return marked

    def found(step: ArrowStep, samples: Samples) -> ArrowRows:
        return step.engine.table(live[step.plan.run_id, step.plan.attempt])

    return (run, "mark", mark), (sweeping, "find_live_again", found)


def _unchecked_once_resumed() -> Sequence[Replacement]:
    """Resumes a sweep without another recheck."""
    resumed: set[LockToken] = set()

    def resume(step: ArrowStep, candidates: Frame) -> Any:
        found = _resume(step, candidates)
        if found[2]:
            resumed.add(step.lock_token)
        return found

    def find(step: ArrowStep, samples: Samples) -> ArrowRows:
        return step.engine.table(LIVE.empty_table()) if step.lock_token in resumed else find_live_again(step, samples)

    return (sweeping, "resume", resume), (sweeping, "find_live_again", find)


def _resumed_by_hash(step: ArrowStep, candidates: Frame) -> Any:
    """Looks candidates up in receipts by a hash of a few bits."""
    remaining, left, written = _resume(step, candidates)
    if not written:
        return remaining, left, written
    done = step.unfinished(DELETED_REPORT, DeletedFigures(swept=True), written).table()
    hashes = {_hash(address) for address in done.column("address").to_pylist()}

    def is_left(rows: pa.RecordBatch) -> pa.BooleanArray:
        return pa.array([_hash(address) not in hashes for address in rows.column("address").to_pylist()], pa.bool_())

    rows = step.engine.where(candidates.rows(step.engine), is_left)
    return rows, step.engine.count(rows), written


def _hash(address: str) -> int:
    return sum(address.encode()) % 4


def _committed_leniently(self: References[ArrowRows], ranges: Sequence[Any], *noted: object) -> ArrowRows:
    """Skips ranges that cannot be read."""

    def read(record: Any) -> Iterator[pa.RecordBatch]:
        with suppress(StorageError):
            yield from _each(self, LiveFiles.range)(record)

    return self.engine.read([ranges], read, LIVE)


def _succeeded(*arguments: Any) -> Any:
    """Reports success for a run whose deletions failed in part."""
    return replace(make_report(*arguments), success=True, ended_well=True)


def _earliest_clock(repository: OpenRepository) -> datetime:
    """Takes a mark's age from the slowest clock."""
    own = repository.clock.now()
    return min(own, own + (repository.api.server_clocks.earliest or timedelta()))


_UNCHECKED = (uncommitted_module, "missing_samples", lambda *arguments: ())
_ask, _page, _written = uncommitted_module._ask, uncommitted_module._request_trusted_page, uncommitted_module._written
_dumped, _prepare = commits._dumped, Servers.prepare


def _last_location_only() -> Sequence[Replacement]:
    pages: list[UncommittedPage] = []

    def asked(api: Any, token: str | None, state: Any) -> UncommittedPage:
        pages.append(_page(api, token, state))
        return pages[-1]

    def last(store: Any, state: Any) -> tuple[str, ...]:
        return _written(store, state) if pages[-1].location else ()

    return (uncommitted_module, "_request_trusted_page", asked), (uncommitted_module, "_written", last), _UNCHECKED


def _end_at_empty_page(api: Any, token: str | None, state: Any) -> UncommittedPage:
    page = _ask(api, token, state)
    return page if page.location else replace(page, continuation_token=None)


def _cutoff(min_age: timedelta | None = None, skew: timedelta | None = None) -> object:
    def wrong(clocks: Clocks, asked: timedelta, grace_period: timedelta, allowed: timedelta) -> datetime:
        age = max(asked, grace_period) if min_age is None else min_age
        return (clocks.earliest - age - (allowed if skew is None else skew)).replace(microsecond=0)

    return wrong


def _copies_first(self: Servers, *arguments: Any) -> UncommittedPage:
    """Makes the server read copies first, which a collector notices only by sampling staged entries afterwards."""
    self.misbehaviour.copies_first = True
    return _prepare(self, *arguments)


def _snapshot(*arguments: Any) -> commits.Dump:
    dump = _dumped(*arguments)
    known = set(dump.commits.ids.to_pylist())
    return replace(dump, branches={name: head for name, head in dump.branches.items() if head in known})


def nothing_of_a_range(self: LiveFiles, record: Any) -> pa.Table:
    return self._live(pa.array([], pa.string()), pa.array([], pa.uint8()))


def _take_lock(store: Any, record: Any, launch: Any) -> str:
    data = record.encode()
    found = store.put(lock.KEY, data)
    return str(found)


def _claim_first(self: Sweep, batch: pa.Table) -> pa.Table:
    claimed = [Outcome.ACCEPTED] * batch.num_rows
    rows = receipts.table(batch, claimed, [None] * batch.num_rows, self.clock.now())
    receipts.write(self.store, self.run_id, uuid.uuid4().hex, rows)
    for outcome in self.store.delete(batch.column("address").to_pylist()):
        assert outcome.result in DeleteResult
    return rows


CLEAN_BUGS: dict[str, Bug] = {
    "committed read before uncommitted": without_unnamed(Bug(_committed_first)),
    "listing after prepare": replaced((run, "read_uncommitted", _list_late), (files, "require_safe_order", ignored)),
    "copies read first": replaced((Servers, "prepare", _copies_first), _UNCHECKED),
    "the last page's location only": Bug(_last_location_only),
    "an empty page taken for the end": replaced(
        (uncommitted_module, "_request_trusted_page", _end_at_empty_page), _UNCHECKED
    ),
    "a branch deleted during prepare unnoticed": replaced(
        (uncommitted_module, "_request_trusted_page", _ask), _UNCHECKED
    ),
    "empty live set accepted": replaced(
        (LiveFiles, "range", nothing_of_a_range), (guards, "require_live_set", ignored)
    ),
    "cutoff from LastModified alone": replaced((run, "subtract_live", subtracting(_without_issue))),
    "cutoff from the name alone": replaced((run, "subtract_live", subtracting(_without_modification))),
    "6 hours instead of 24": replaced((Clocks, "cutoff", _cutoff(min_age=timedelta(hours=6)))),
    "no skew": replaced((Clocks, "cutoff", _cutoff(skew=timedelta()))),
    "the earliest clock for mark too old": replaced((run, "latest_clock", _earliest_clock)),
    "dump taken as a snapshot": without_unnamed(
        replaced((commits, "_fetch_missing", lambda *arguments: []), (commits, "_dumped", _snapshot))
    ),
    "tags forgotten": without_unnamed(replaced((refs, "read_tags", lambda data, file, **expected: []))),
    "hidden staged entries ignored": replaced(
        (run, "clear_hidden", lambda step, candidates, *more, **named: nullcontext(Cleared(candidates)))
    ),
    "multipart seen once": replaced((run, "subtract_live", subtracting(sighted=_all_sighted))),
    "a range skipped on error": without_unnamed(replaced((References, "committed", _committed_leniently))),
    "trailing slash and //": replaced((addresses, "_spellings", lambda key: (key,))),
    "full addresses not normalised": replaced(
        (Namespace, "live_keys", lambda self, address, address_type: (address,)), _UNCHECKED
    ),
    "hash used in an intersection": replaced(
        (sweeping, "resume", _resumed_by_hash), (sweeping, "require_all_decided", ignored)
    ),
    "frames of two attempts mixed": replaced(
        (run, "read_uncommitted", _read_once), (files, "require_safe_order", ignored)
    ),
    "recheck without new commits": without_unnamed(replaced((sweeping, "find_live_again", only_uncommitted))),
    "recheck older than the sweep": Bug(_checked_at_the_mark),
    "resume without recheck": Bug(_unchecked_once_resumed),
    "two collectors at once": replaced(
        (lock, "_take", _take_lock), *((owner, "verify", ignored) for owner in (lock, sweeping, sweeping))
    ),
    "receipts written before the delete": replaced((Sweep, "decide", _claim_first)),
    "success claimed on partial failure": replaced((reporting, "make_report", _succeeded)),
}
"""Seeded bugs by name."""
