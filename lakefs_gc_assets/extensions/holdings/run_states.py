"""Objects of a run by state, from its frames.

Counts and sizes mostly come from manifests. Rows are read only of objects that no commit holds, and after a sweep to
learn the size of sealed objects, which later runs do not list.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import reporting
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import sum_all
from lakefs_gc_assets.collector.frame import frames
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.slices import select_sealed
from lakefs_gc_assets.collector.incremental import checkpoint
from lakefs_gc_assets.collector.records.figures import required
from lakefs_gc_assets.collector.records.outcomes import Amount, Outcome, Why
from lakefs_gc_assets.collector.records.plan import Flow, by_flow
from lakefs_gc_assets.collector.records.report import Report
from lakefs_gc_assets.collector.step import Step, Universe, universe_of
from lakefs_gc_assets.extensions.holdings.attribution import HeadHoldings
from lakefs_gc_assets.extensions.holdings.holdings_files import Dimension, HoldingsRow, HoldingState
from lakefs_gc_assets.lakefs.layout import METADATA_PREFIX, QUARANTINE_PREFIX
from lakefs_gc_assets.settings import UNKNOWN_CLASS
from lakefs_gc_assets.storage.interface import ObjectStore

_GONE = (Outcome.ACCEPTED, Outcome.QUARANTINED, Outcome.DELETED_BY_ANOTHER_RUN)
_AMOUNTS = pa.schema([("key", pa.string()), ("objects", pa.int64()), ("bytes", pa.int64())])


@dataclass(frozen=True)
class RunStates:
    """Objects after a run.

    Attributes:
        rows: by state, and by storage class if the run listed everything.
        sealed: objects in sealed slices that commits hold, and their bytes; None if unknown.
    """

    rows: tuple[HoldingsRow, ...]
    sealed: Amount | None


def add_up_states(step: Step[R], report: Report, heads: HeadHoldings, sealed_before: Amount | None) -> RunStates:
    """Adds up a finished run.

    Args:
        report: report of the run.
        heads: objects of the branch heads that the run saw.
        sealed_before: `sealed` after the run's base run; None if unknown.
    Raises:
        CollectionError: a frame is missing, for example since it expired, or damaged.
    """
    listed, committed = step.stored(frames.STORE_DF), step.stored(frames.COMMITTED_DF)
    candidates, not_committed = step.stored(frames.CANDIDATES_DF), step.stored(frames.NOT_COMMITTED_DF)
    universe = universe_of(step, listed, committed)
    examined = Amount.total(map(_amount_of, universe.frames))
    no_commit, garbage = _amount_of(not_committed), _amount_of(candidates)
    outcomes = reporting.count_amounts(step, step.stored(frames.DELETED_REPORT))
    staged_classes = _add_up(step, _staged(step, not_committed, committed), by_class=True)
    staged = Amount.total(staged_classes.values())
    live_again = outcomes[Outcome.KEPT_LIVE]
    stays = garbage - Amount.total(outcomes[each] for each in _GONE) - live_again
    kept = (no_commit - staged - garbage).plus(*live_again)
    amounts: dict[HoldingState, tuple[int, int | None]] = {HoldingState.HEAD: heads.in_all}
    sealed_objects = required(listed.figures.sealed_objects)
    # Without a base run, there are no sealed objects that the run did not list.
    base = sealed_before if step.plan.base_run is not None else Amount()
    if base is not None and base.objects != sealed_objects:
        base = None
    lists_all = step.plan.flow is not Flow.COMMITTED and not listed.figures.limited_to
    if lists_all:
        of_base = Amount(sealed_objects) if base is None else base
        history = of_base.plus(*examined) - _expired(committed.figures) - no_commit - heads.listed
        size = None if base is None else history.bytes
        # If the listing lacks objects of heads, the difference is another figure.
        is_known = not (heads.uncertain or candidates.figures.missing or candidates.figures.lost)
        if is_known and history.objects >= 0 and (size or 0) >= 0:
            amounts[HoldingState.HISTORY] = history.objects, size
    garbage_state = HoldingState.EXPIRED if by_flow(step.plan.flow) is Why.EXPIRED else HoldingState.GARBAGE
    amounts |= {
        HoldingState.STAGED: staged,
        garbage_state: stays,
        HoldingState.YOUNG: kept,
        **_metadata(step.repository.store),
    }
    rows = [
        HoldingsRow(Dimension.STATE, state.value, None, state, objects, size)
        for state, (objects, size) in amounts.items()
        if objects or state in (HoldingState.HEAD, HoldingState.HISTORY, HoldingState.GARBAGE)
    ]
    # Receipts have no classes, so all candidates must have had the same outcome.
    if lists_all and step.plan.base_run is None and stays in (garbage, Amount()) and not live_again.objects:
        left = _classes(candidates) if stays.objects else {}
        rows += _class_rows(
            listed, not_committed, candidates, {HoldingState.STAGED: staged_classes, garbage_state: left}
        )
    return RunStates(tuple(rows), _add_up_sealed(step, report, universe, not_committed, base, committed.figures))


def _expired(figures: frames.CommittedFigures) -> Amount:
    """Objects that expired since the base run."""
    return Amount(figures.expired_objects or 0, figures.expired_bytes or 0)


def _amount_of(frame: StoredFrame[Any]) -> Amount:
    return Amount(frame.count, frame.manifest.object_bytes)


def _staged(step: Step[R], not_committed: StoredFrame[Any], committed: StoredFrame[frames.CommittedFigures]) -> R:
    """Objects that no commit holds, and that are staged."""
    live: list[StoredFrame[Any]] = [step.stored(frames.UNCOMMITTED_DF)]
    if committed.figures.provisional_ranges:
        live.append(step.stored(frames.PROVISIONAL_DF))
    engine = step.engine
    first, *more = (frame.rows(engine, "address") for frame in live)
    columns = ("address", "size", "storage_class")
    count = not_committed.count + sum(frame.count for frame in live)
    return engine.among_exactly(not_committed.rows(engine, *columns), engine.union(first, *more), count)


def _add_up(step: Step[R], rows: R, *, by_class: bool = False) -> dict[str, Amount]:
    """Objects in rows with a `size`, by `storage_class` or all under one key."""

    def amounts(batch: pa.RecordBatch) -> list[Any]:
        keys = batch.column("storage_class").fill_null(UNKNOWN_CLASS) if by_class else pa.repeat("", batch.num_rows)
        return [keys, np.ones(batch.num_rows, np.int64), batch.column("size")]

    totals = sum_all(step.engine, rows, amounts, "key", _AMOUNTS).to_pylist()
    return {row["key"]: Amount(row["objects"], row["bytes"]) for row in totals}


def _classes(frame: StoredFrame[Any]) -> dict[str, Amount]:
    """Objects of a frame by storage class."""
    classes = frame.manifest.classes
    return {**classes, UNKNOWN_CLASS: _amount_of(frame) - Amount.total(classes.values())}


def _class_rows(
    listed: StoredFrame[Any],
    not_committed: StoredFrame[Any],
    candidates: StoredFrame[Any],
    states: Mapping[HoldingState, Mapping[str, Amount]],
) -> Iterator[HoldingsRow]:
    """Rows by storage class, if the store states any. Heads and history share a row without a state.

    Args:
        states: objects by class that are staged, and candidates that are left.
    """
    if not listed.manifest.classes:
        return
    in_no_commit, marked, staged = _classes(not_committed), _classes(candidates), states[HoldingState.STAGED]
    for name, amount in _classes(listed).items():
        others = in_no_commit.get(name, Amount())
        young = others - staged.get(name, Amount()) - marked.get(name, Amount())
        parts = {None: amount - others, HoldingState.YOUNG: young}
        for state, part in (*parts.items(), *((state, each.get(name, Amount())) for state, each in states.items())):
            if part.objects:
                yield HoldingsRow(Dimension.STORAGE_CLASS, name, None, state, *part)


def _metadata(store: ObjectStore) -> dict[HoldingState, Amount]:
    """Files of lakeFS and of this collector, and copies in quarantine, as listed now."""
    amounts = {HoldingState.QUARANTINE: Amount(), HoldingState.METADATA: Amount()}
    for state, objects, size in _list_metadata(store):
        amounts[state] = amounts[state].plus(objects, size)
    return amounts


def _list_metadata(store: ObjectStore) -> Iterator[tuple[HoldingState, int, int]]:
    for batch in store.list(METADATA_PREFIX):
        moved = pc.starts_with(batch.column("key"), QUARANTINE_PREFIX)
        for state, among in ((HoldingState.QUARANTINE, moved), (HoldingState.METADATA, pc.invert(moved))):
            yield state, among.true_count, pc.sum(batch.column("size").filter(among)).as_py() or 0


def _add_up_sealed(
    step: Step[R],
    report: Report,
    universe: Universe[R],
    not_committed: StoredFrame[Any],
    base: Amount | None,
    figures: frames.CommittedFigures,
) -> Amount | None:
    """Objects in sealed slices that commits hold after a run, and their bytes.

    The next run does not list them. Their number must be that of the run's checkpoint, or else the size is unknown.
    """
    if report.checkpoint is None or base is None or step.plan.flow is Flow.COMMITTED:
        return None
    sealed = checkpoint.read_sealed(step.repository.store, step.plan.run_id, report.checkpoint)
    of_all, of_none = (
        Amount.total(_add_up(step, select_sealed(step.engine, rows, sealed)).values())
        for rows in (universe.rows("address", "size"), not_committed.rows(step.engine, "address", "size"))
    )
    after = base.plus(*of_all) - of_none - _expired(figures)
    return after if after.objects == report.checkpoint.sealed_objects else None
