"""Objects uploaded in parts, and when a run listed them first.

The LastModified of such an object may be the moment its upload began, so it is collected only when an earlier run
listed it long enough ago. Each run keeps its sightings beside its frames, dry runs too.
"""

import logging
from datetime import datetime, timedelta
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.earlier.earlier_runs import EarlierRuns
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.frame.frames import SIGHTINGS, SIGHTINGS_DF, TIME, NoFigures
from lakefs_gc_assets.collector.records.outcomes import MULTIPART_ETAG, MULTIPART_SIGHTING_SECONDS
from lakefs_gc_assets.collector.records.plan import Flow
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import CorruptFile, OrderViolation

_RUNS = 20
_KEPT_FOR_LONGER = "objects uploaded in parts that an earlier run saw are kept for longer: {damage}"
_log = logging.getLogger(__name__)


def read_earlier(step: Step[R], before: datetime) -> R:
    """First sightings (`address`, `first_listed_at`) of the newest runs that listed before a moment.

    A run hands on the first sightings of what it lists itself, so of the runs that the index knows the newest of each
    flow is read: flows differ in what they list, and in what nothing references. Sightings that are damaged are left
    out and named in the log: without them objects are only kept for longer.
    """
    engine = step.engine
    sightings = [engine.table(SIGHTINGS.empty_table())]
    runs, flows = EarlierRuns(step.repository.store), set[Flow]()
    for run_id in islice(runs.newest_first(), _RUNS):
        settled = runs.settled(run_id)
        if settled is not None and (not settled.sightings or settled.flow in flows):
            continue
        try:
            frame = step.stored_of(run_id, SIGHTINGS_DF)
            if frame.manifest.span.ended_at <= before and run_id != step.plan.run_id:
                sightings.append(frame.rows(engine, damaged_files=_warn_of_damage))
                if settled is not None:
                    flows.add(settled.flow)
        except OrderViolation:
            continue
        except CorruptFile as damage:
            step.warn(_KEPT_FOR_LONGER.format(damage=damage))
    return engine.earliest_sightings(engine.union(*sightings))


def _warn_of_damage(damage: CorruptFile) -> None:
    _log.warning(_KEPT_FOR_LONGER.format(damage=damage))


def select_old_enough(engine: Engine[R], sightings: R, listing_started_at: datetime) -> R:
    """Sightings long enough before this run's listing."""
    limit = pa.scalar(listing_started_at - timedelta(seconds=MULTIPART_SIGHTING_SECONDS), TIME)
    return engine.where(sightings, lambda batch: pc.less_equal(batch.column("first_listed_at"), limit))


def keep(step: Step[R], unreferenced: R | None, earlier: R, listing_ended_at: datetime) -> None:
    """Stores the sightings of this run: unreferenced objects uploaded in parts, with the end of their first listing.

    Args:
        unreferenced: rows of the listing; None where none of them was uploaded in parts.
        listing_ended_at: by then they were there; at its start they may not have been.
    """
    if unreferenced is None:
        step.complete(SIGHTINGS_DF, NoFigures(), ())
        return
    multipart = step.engine.where(unreferenced, is_multipart)
    rows = step.engine.sightings_of(step.engine.select(multipart, "address", "slice_window"), earlier, listing_ended_at)
    step.complete(SIGHTINGS_DF, NoFigures(), step.write(SIGHTINGS_DF, rows))


def is_multipart(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Which objects were uploaded in parts."""
    return pc.match_substring_regex(rows.column("etag"), MULTIPART_ETAG)
