"""The objects that expired since the base run: a run by retention rules looks at them without listing them.

Whatever is in a sealed slice, and neither pending nor deleted, is held by a range that was live in the base run. So
what a run that lists everything would find there is held by one of those that are live no more. Ranges are compared
with what is live at the mark and not when the run begins: one that expires in between would be missed, and tracked no
more. The objects are old, so it does not matter that they are learnt of after uncommitted data was prepared.
"""

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.earlier.history import deleted_before
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame.files import StoredFrame
from lakefs_gc_assets.collector.frame.frames import EXPIRED_DF, NoFigures
from lakefs_gc_assets.collector.frame.slices import select_sealed
from lakefs_gc_assets.collector.incremental.checkpoint import BaseCheckpoint
from lakefs_gc_assets.collector.live.current import Committed
from lakefs_gc_assets.collector.live.range_records import RangeRecords
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX

_MANY_ENTRIES = 8_000_000
"""Above this many entries, too many to look up, those that live ranges in their place hold are left out first."""


def store_expired(step: Step[R], before: BaseCheckpoint, committed: Committed) -> StoredFrame[NoFigures]:
    """Stores the objects that expired since the base run as the frame `expired`.

    Args:
        committed: every range that is live.
    Raises:
        CorruptFile: a range that the base run tracked is gone or damaged, or so is the file that names them.
    """
    began = step.repository.clock.now()
    dead = before.tracked.without(committed.ids)
    step.log(f"{len(dead):,} of {before.checkpoint.tracked:,} ranges expired since run {before.run_id}")
    instead = None
    if committed.tells_ranges and dead.entries > _MANY_ENTRIES:
        instead = committed.records.covering(dead)
        step.log(
            f"they have {dead.entries:,} entries, of which those are left out first that {len(instead):,} live ranges "
            "with the same keys hold"
        )
    written = step.write(EXPIRED_DF, find_expired(step, before, dead, instead)) if dead else ()
    return step.complete(EXPIRED_DF, NoFigures(), written, started_at=began)


def find_expired(step: Step[R], before: BaseCheckpoint, dead: RangeRecords, instead: RangeRecords | None) -> R:
    """Finds the objects (LISTED) of ranges that are live no more, where this run lists nothing.

    Those that earlier runs deleted are left out.

    Args:
        instead: live ranges whose objects are left out, which only keeps them: most of what a range held is in the one
            that took its place. None for none.
    """
    engine = step.engine
    held = engine.where(References.from_step(step).entries(dead, instead), _would_be_listed)
    return engine.without_exactly(select_sealed(engine, held, before.sealed), deleted_before(step))


def _would_be_listed(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Which objects lie where a run lists that lists everything: below `data/`, or right in the root."""
    addresses = rows.column("address")
    return pc.or_(pc.starts_with(addresses, DATA_PREFIX), pc.invert(pc.match_substring(addresses, "/")))
