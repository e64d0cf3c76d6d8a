"""Live addresses that the listing lacks: a sign that references and objects are spelled differently or do not belong
together, so that the subtraction would miss what is live.
"""

from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.lakefs import xids
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.sources.tasks import Rows

_ID_AT = len(DATA_PREFIX) + xids.LENGTH + len("/")
"""Where the id begins in the name of an object that has a slice."""


def expected(live: Rows, slices: Iterable[str], cutoff: datetime) -> Rows:
    """Live addresses (`address`, `slice`) that a listing of the slices must have: those named before the cutoff.

    Ids sort by the time in them, so the cutoff is compared as the id that it would begin.
    """
    listed = pa.array(slices, pa.string())
    limit = xids.encode(int(cutoff.timestamp()).to_bytes(4) + bytes(8))

    def in_time(rows: pa.RecordBatch) -> pa.BooleanArray:
        ids = pc.utf8_slice_codeunits(rows.column("address"), _ID_AT, _ID_AT + xids.LENGTH)
        return pc.and_(pc.is_in(rows.column("slice"), value_set=listed), pc.less(ids, limit))

    return tasks.where(live, in_time)
