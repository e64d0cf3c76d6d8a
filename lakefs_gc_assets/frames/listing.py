"""The listing of a namespace, stored as it comes: the tasks that list write the files of the frame themselves.

So a task can leave off where a part turns out to be large, as one slice with half of all objects would be: what is left
is cut into pieces, which are dealt out anew. A repository without large parts is listed in one round.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from lakefs_gc_assets.collection import pieces, run_folder, universe
from lakefs_gc_assets.collection.plan import Plan
from lakefs_gc_assets.collection.tables import LISTED
from lakefs_gc_assets.collection.universe import LARGE_PART, Part, Rest
from lakefs_gc_assets.frames.files import FileWriter, in_windows
from lakefs_gc_assets.frames.manifest import FrameFile
from lakefs_gc_assets.sources import tasks
from lakefs_gc_assets.storage.opening import StoreOpener

FRAME = "store_df"
_ROWS = 65_536
"""Rows that are written together: stores list fewer at a time."""
_TOLD = pa.schema([pa.field("file", pa.string()), pa.field("rest", pa.string())])
"""What a task tells, as JSON: a file that it wrote, or what it left of a part."""


def store(
    spark: SparkSession,
    opener: StoreOpener,
    plan: Plan,
    parts: Sequence[Part],
    partitions: int,
    large: int = LARGE_PART,
) -> tuple[FrameFile, ...]:
    """Lists parts to their ends, and stores their objects as files of `store_df`; returns the files.

    Args:
        partitions: how many tasks list.
        large: after so many objects of one part a task leaves the rest of it to others.
    """
    work = partial(_listed_by_task, opener, plan, large)
    files: list[FrameFile] = []
    while parts:
        told = tasks.dataframe(spark, [[group] for group in tasks.spread(parts, partitions)], work, _TOLD).collect()
        files += (FrameFile(**json.loads(row["file"])) for row in told if row["file"])
        left = [_rest(row["rest"]) for row in told if row["rest"]]
        parts = [piece for rest in left for piece in pieces.cut(rest)]
    return tuple(files)


def _listed_by_task(opener: StoreOpener, plan: Plan, large: int, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    found = opener.open()
    writer = FileWriter(found, run_folder.frame(plan.run_id, FRAME), LISTED)
    left: list[Rest] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for part in parts:
            rest = yield from universe.list_part(found, part, plan.slice_window, large)
            left.extend([rest] if rest else [])

    for batch in tasks.gathered(rows(), _ROWS):
        writer.write(in_windows(batch, plan.windows))
    told = [{"file": json.dumps(asdict(file)), "rest": None} for file in writer.close()]
    told += [{"file": None, "rest": json.dumps(asdict(rest))} for rest in left]
    if told:
        yield pa.RecordBatch.from_pylist(told, schema=_TOLD)


def _rest(text: str) -> Rest:
    content = json.loads(text)
    return Rest(**{**content, "part": Part(**content["part"])})
