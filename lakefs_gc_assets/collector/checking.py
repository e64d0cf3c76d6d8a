"""Checks of the stored candidates for what no mark may get wrong, by other means than the subtraction."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import guards
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.frame.columns import TIME
from lakefs_gc_assets.collector.frame.kinds import CandidateFigures, CommittedFigures, StoredFigures, UncommittedFigures
from lakefs_gc_assets.collector.frame.stored import StoredFrame
from lakefs_gc_assets.collector.reporting import describe_losses, mark_of
from lakefs_gc_assets.errors import GuardTripped

_SHOWN = 20


@dataclass(frozen=True)
class Violation:
    """One thing that a frame gets wrong; `rows` where they were counted."""

    rule: str
    detail: str
    rows: int | None = None


def find_live_candidates(
    engine: Engine[R], candidates: StoredFrame[CandidateFigures], *live: StoredFrame[Any]
) -> list[Violation]:
    """Finds candidates that are live after all; addresses compare as strings."""
    found = []
    for frame in live if candidates.count else ():
        if not frame.count:
            continue
        named = candidates.rows(engine, "address")
        both = engine.among_exactly(frame.rows(engine, "address"), named, frame.count + candidates.count)
        # Rows of an address are brought together only where there are some.
        if engine.count(both):
            each = engine.distinct(both)
            shown = ", ".join(sorted(engine.collect(each, limit=_SHOWN).column("address").to_pylist()))
            found.append(Violation(f"disjoint from {frame.name}", shown, engine.count(each)))
    return found


def find_young_candidates(
    engine: Engine[R], candidates: StoredFrame[CandidateFigures], cutoff: datetime
) -> list[Violation]:
    """Finds candidates that were written or named at or after the cutoff (UTC)."""
    if not candidates.count:
        return []
    moment = pa.scalar(cutoff, TIME)

    def is_young(rows: pa.RecordBatch) -> pa.BooleanArray:
        named = pc.fill_null(pc.greater_equal(rows.column("issued_at"), moment), False)
        return pc.or_(pc.greater_equal(rows.column("last_modified"), moment), named)

    count = engine.count(engine.where(candidates.rows(engine, "last_modified", "issued_at"), is_young))
    return [Violation("older than the cutoff", f"the cutoff is {cutoff:%F %T}Z", count)] if count else []


def find_empty_live_set(
    listed: StoredFrame[StoredFigures],
    uncommitted: StoredFrame[UncommittedFigures],
    committed: StoredFrame[CommittedFigures],
    candidates: StoredFrame[CandidateFigures],
) -> list[Violation]:
    """Finds that nothing is committed, although live commits count entries and there are candidates."""
    try:
        found = mark_of(listed.manifest, uncommitted.manifest, committed.manifest, candidates.manifest)
        guards.require_live_set(found)
    except GuardTripped as tripped:
        return [Violation(tripped.guard, str(tripped))]
    return []


def find_losses(candidates: StoredFrame[CandidateFigures]) -> list[Violation]:
    """Finds that a branch head or staging holds objects that earlier runs deleted."""
    told = describe_losses(candidates.figures)
    return [Violation("nothing deleted is live", told, candidates.figures.lost)] if told else []
