"""Subtracts live addresses from the universe, and gives the reasons that keep unreferenced objects.

Commits hold most live objects, and are subtracted once. The remaining rows are stored, and both the candidates and the
checkpoint are computed from them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import sum_all
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import (
    NOT_COMMITTED_DF,
    PROVISIONAL_DF,
    CommittedFigures,
    NoFigures,
    StoredFigures,
    UncommittedFigures,
)
from lakefs_gc_assets.collector.incremental import earlier_runs
from lakefs_gc_assets.collector.incremental.earlier_runs import is_multipart
from lakefs_gc_assets.collector.live.hidden import Cleared
from lakefs_gc_assets.collector.step import Step, universe_of
from lakefs_gc_assets.errors import OrderViolation

_KEPT = pa.schema([("kept", pa.string()), ("objects", pa.int64()), ("multipart", pa.int64())])


def subtract_committed(
    step: Step[R], listed: StoredFrame[StoredFigures], committed: StoredFrame[CommittedFigures]
) -> StoredFrame[NoFigures]:
    """Stores the objects of the universe that no live commit holds, as the frame `unheld`.

    If nothing is committed, its files are the universe's.
    """
    engine, universe = step.engine, universe_of(step, listed, committed)
    if not committed.count:
        return step.complete(NOT_COMMITTED_DF, NoFigures(), universe.files, (listed, committed))
    rows = engine.without(
        universe.rows(),
        committed.rows(engine, "address"),
        count=universe.count + committed.count,
        least=universe.count - committed.count,
    )
    return step.complete(NOT_COMMITTED_DF, NoFigures(), step.write(NOT_COMMITTED_DF, rows), (listed, committed))


def subtract_live(
    step: Step[R],
    listed: StoredFrame[StoredFigures],
    not_committed: StoredFrame[NoFigures],
    committed: StoredFrame[CommittedFigures],
    uncommitted: StoredFrame[UncommittedFigures],
    earlier: R,
) -> R:
    """Unreferenced objects (LISTED); the column `kept` has the reason to keep each, null if it may go.

    Args:
        not_committed: objects that no commit holds.
        earlier: first sightings of objects uploaded in parts.

    Raises:
        OrderViolation: provisional addresses were stored again after `committed_df`, which names their frame.
    """
    engine = step.engine
    staged: tuple[StoredFrame[Any], ...] = (uncommitted, *_provisional(step, committed))
    live = [frame.rows(engine, "address") for frame in staged]
    sighted = earlier_runs.select_old_enough(engine, earlier, listed.manifest.span.started_at)
    return subtract(
        step, not_committed.rows(engine), live, sighted, not_committed.count + sum(frame.count for frame in staged)
    )


def subtract(step: Step[R], rows: R, live: Sequence[R], sighted: R, count: int) -> R:
    """Unreferenced rows; the column `kept` has the reason to keep each, null if it may go.

    Args:
        rows: LISTED, perhaps with more columns.
        live: addresses that are referenced.
        sighted: objects uploaded in parts that an earlier run listed long enough ago.
        count: approximate number of rows of all frames together.
    """
    unreferenced = step.engine.without(rows, *live, count=count)
    return step.engine.kept_because(unreferenced, step.plan.cutoff, step.plan.windows, sighted)


def _provisional(step: Step[R], committed: StoredFrame[CommittedFigures]) -> tuple[StoredFrame[NoFigures], ...]:
    """Live addresses that are not committed for good, if there are any."""
    if not committed.figures.provisional_ranges:
        return ()
    frame = step.stored(PROVISIONAL_DF)
    if committed.manifest.inputs.get(frame.name) != frame.manifest.digest:
        raise OrderViolation(
            f"{frame.name} was materialized again after {committed.name}, which refers to it. Materialize "
            f"{committed.name} again"
        )
    return (frame,)


@dataclass(frozen=True)
class Reasons:
    """Numbers of unreferenced objects.

    Attributes:
        eligible: objects that may go, by listing, references, age and name.
        kept: objects that stay, by reason.
        multipart: objects uploaded in parts, eligible or kept.
    """

    eligible: int
    kept: Mapping[str, int]
    multipart: int


def count_reasons(engine: Engine[R], unreferenced: R) -> Reasons:
    """Counts unreferenced objects by the reason to keep them, with one action."""
    rows = sum_all(engine, engine.select(unreferenced, "kept", "etag"), _amounts_kept, "kept", _KEPT).to_pylist()
    counts = {row["kept"]: row["objects"] for row in rows}
    eligible = counts.pop(None, 0)
    return Reasons(eligible, counts, sum(row["multipart"] for row in rows))


def _amounts_kept(batch: pa.RecordBatch) -> list[pa.Array]:
    multipart = pc.fill_null(is_multipart(batch), False).cast(pa.int64())
    return [batch.column("kept"), np.ones(batch.num_rows, np.int64), multipart]


@contextmanager
def choose_candidates(
    engine: Engine[R],
    unreferenced: R,
    at_most: int,
    columns: pa.Schema,
    clear: Callable[[R], AbstractContextManager[Cleared[R]]],
) -> Iterator[tuple[R, Reasons, Cleared[R]]]:
    """Chooses the unreferenced objects that may go, and finally excludes hidden staged ones.

    Yields the rows with the column `kept`, their numbers, and the objects that may go, without those that are staged
    with the content of a committed object.

    Args:
        unreferenced: rows of `subtract`.
        at_most: maximum number of these rows.
        columns: schema of the candidates.
        clear: excludes candidates as `clear_hidden` does; not called without candidates.
    """
    with engine.name_work("subtract live addresses"), engine.cached(unreferenced, at_most) as rows:
        reasons = count_reasons(engine, rows)
        unkept = engine.select(engine.where_among(rows, "kept", (None,)), *columns.names)
        eligible = engine.hold(unkept, reasons.eligible)
        with clear(eligible) if reasons.eligible else nullcontext(Cleared(eligible)) as cleared:
            yield rows, reasons, cleared
