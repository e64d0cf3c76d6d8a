"""The ranges of metaranges, for runs by retention rules: each metarange is read once and its ranges noted.

Such a run asks for the ranges of every commit, live or expired: when it marks, again before it deletes, and in the flow
`committed` when it begins, too. Only a run that builds on another one takes over what that one has noted.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.live import named_ranges, noted_files, range_notes
from lakefs_gc_assets.collector.live.named_ranges import LOOKED_UP, NAMED
from lakefs_gc_assets.collector.live.range_notes import NotesFile
from lakefs_gc_assets.collector.live.range_records import RangeRecords, each_once
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored.ids import IdSet
from lakefs_gc_assets.storage.interface import OpensStore

_TOLD = "which ranges metaranges name"
_VALUES_OF_A_ROW = 16
"""A row of these notes takes as long to be read as so many values of others."""


def find_ranges(step: Step[R], repository: OpenRepository, metarange_ids: Sequence[str]) -> RangeRecords:
    """The distinct ranges of a repository's metaranges, as `References.range_records` gives them.

    Those of other repositories than the step's own are not noted.

    Raises CorruptFile where a metarange that is read is missing or damaged.
    """
    references = References.from_step(step, repository)
    if not step.plan.flow.by_retention or repository is not step.repository or not metarange_ids:
        return references.range_records(metarange_ids)
    plan = step.plan
    files = range_notes.files_of(NAMED, step.repository.store, plan.run_id, plan.attempt)
    look_up = partial(_look_up, step.repository.opener, IdSet(metarange_ids))
    found = noted_files.look_up_files(
        step, files, lambda file: file.values * _VALUES_OF_A_ROW, look_up, LOOKED_UP, _TOLD
    )
    noted = IdSet(found.filter(pc.is_null(found.column("min_key"))).column("id").to_pylist())
    unread = noted.lacking(metarange_ids)
    if noted:
        step.log(f"{len(metarange_ids) - len(unread):,} of {len(metarange_ids):,} metaranges are not read again")
    read = references.range_records(unread, NAMED.folder(plan.run_id, plan.attempt))
    rows = pa.concat_tables([named_ranges.select_ranges(found), read.rows])
    return RangeRecords.of_rows(each_once(rows))


def take_over(step: Step[R]) -> None:
    """Takes over what the run that this one builds on has noted."""
    noted_files.take_over(step, NAMED, _TOLD, "those metaranges are read")


def _look_up(opener: OpensStore, wanted: IdSet, files: Iterable[NotesFile]) -> Iterator[pa.RecordBatch]:
    store = opener.open()
    for file in files:
        yield from named_ranges.look_up(store, wanted, file)
