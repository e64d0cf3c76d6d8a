"""Lists a namespace in parts; each task that lists a part also writes the files of the frame.

A task stops where a part turns out to be large, such as one slice with half of all objects. The rest of that part is
cut into pieces, which tasks list in the next round. A repository without large parts is listed in one round.

A run can read an S3 Inventory in place of listing the store. An inventory may lack objects that were written shortly
before it was made, so it is trusted only for objects that are clearly older: it lowers the cutoff. A run of the flow
`committed` lists nothing: it looks at the objects that expired commits hold.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

import pyarrow as pa

from lakefs_gc_assets.collector.earlier.history import deleted_before
from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import gather, spread, work_ahead
from lakefs_gc_assets.collector.frame.files import FileWriter, in_windows
from lakefs_gc_assets.collector.frame.frames import LISTED, STORE_DF
from lakefs_gc_assets.collector.frame.manifest import FrameFile
from lakefs_gc_assets.collector.live.current import define_live
from lakefs_gc_assets.collector.live.known_ranges import find_ranges
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.collector.stored import run_folder
from lakefs_gc_assets.collector.stored.records_json import entries
from lakefs_gc_assets.collector.universe import parts as pieces
from lakefs_gc_assets.collector.universe.parts import LARGE_PART, Listing, Part, Rest
from lakefs_gc_assets.lakefs.layout import WindowSize
from lakefs_gc_assets.storage.interface import ObjectStore, OpensStore
from lakefs_gc_assets.storage.local.store import LocalStore
from lakefs_gc_assets.storage.s3.inventory import Inventory, InventoryFile, open_inventory


def inventory_of(repository: OpenRepository, plan: Plan) -> Inventory | None:
    """The inventory that a plan names; None where it names none. Raises ConfigurationError, StorageError."""
    if plan.inventory is None:
        return None
    return open_inventory(repository.opener.settings, plan.inventory, repository.namespace)


_ROWS = 65_536
"""Rows that are written together; a page of a listing has fewer."""
_AT_ONCE = 4
"""Parts that a task lists at once: a service lists a thousand objects per request, so a task mostly waits.

Pages of a part wait for the parts before it: about 40 MB at most.
"""
_ANSWER = pa.schema([pa.field("file", pa.string()), pa.field("rest", pa.string())])
"""Result of a task, as JSON: a file that it wrote, or the rest of a part."""


def list_objects(step: Step[R], listing: Listing) -> tuple[FrameFile, ...]:
    """Writes the objects of a listing as files of `store_df`, from the store or the inventory that the plan names.

    An inventory may still name objects that earlier runs deleted; they are left out.
    """
    inventory = inventory_of(step.repository, step.plan)
    if inventory is None:
        return list_parts(step, listing.parts)
    step.log(f"reading {len(inventory.files)} files of the inventory of {inventory.created_at:%F %T}Z")
    read = partial(_read_inventory, inventory, listing, step.plan.slice_window)
    tasks = step.tasks(step.repository.settings.listing_partitions)
    objects = step.engine.read(spread(inventory.files, tasks), read, LISTED)
    existing = step.engine.without_exactly(objects, deleted_before(step, since=step.plan.cutoff))
    return step.write(STORE_DF, existing)


def list_parts(step: Step[R], parts: Sequence[Part], large: int = LARGE_PART) -> tuple[FrameFile, ...]:
    """Lists parts to their ends, and writes their objects as files of `store_df`.

    Args:
        large: after so many objects of one part a task leaves the rest of it to others.
    """
    tasks = step.tasks(step.repository.settings.listing_partitions)
    work = partial(_list_as_task, step.repository.opener, step.plan, large)
    files: list[FrameFile] = []
    while parts:
        groups = [[group] for group in spread(parts, tasks)]
        answers = step.engine.collect(step.engine.read(groups, work, _ANSWER)).to_pylist()
        files += (FrameFile(**json.loads(row["file"])) for row in answers if row["file"])
        rests = [_rest(row["rest"]) for row in answers if row["rest"]]
        parts = [piece for rest in rests for piece in pieces.cut(rest)]
    return tuple(files)


def _list_as_task(opener: OpensStore, plan: Plan, large: int, parts: Sequence[Part]) -> Iterator[pa.RecordBatch]:
    store = opener.open()
    writer = FileWriter(store, run_folder.frame(plan.run_id, STORE_DF.name), LISTED)
    rests: list[Rest] = []

    def rows() -> Iterator[pa.RecordBatch]:
        # A folder is listed by the processor alone.
        at_once = 1 if isinstance(store, LocalStore) else _AT_ONCE
        list_whole = partial(_list_whole, store, plan.slice_window, large)
        for batches, rest in work_ahead(list_whole, parts, at_once):
            rests.extend([rest] if rest else [])
            yield from batches

    for batch in gather(rows(), _ROWS):
        writer.write(in_windows(batch, plan.windows))
    answers = [{"file": json.dumps(entries(file)), "rest": None} for file in writer.close()]
    answers += [{"file": None, "rest": json.dumps(asdict(rest))} for rest in rests]
    if answers:
        yield pa.RecordBatch.from_pylist(answers, schema=_ANSWER)


def _list_whole(
    store: ObjectStore, window_size: WindowSize, large: int, part: Part
) -> tuple[list[pa.RecordBatch], Rest | None]:
    """The rows listed from a part, and its rest."""
    listed, batches = pieces.list_part(store, part, window_size, large), []
    while True:
        try:
            batches.append(next(listed))
        except StopIteration as end:
            return batches, end.value


def _rest(text: str) -> Rest:
    content = json.loads(text)
    return Rest(**{**content, "part": Part(**content["part"])})


def _read_inventory(
    inventory: Inventory, listing: Listing, window_size: WindowSize, file: InventoryFile
) -> Iterator[pa.RecordBatch]:
    yield from pieces.list_inventory_file(inventory, file, listing, window_size)


def find_expired(step: Step[R]) -> R:
    """Finds the objects (LISTED) of ranges that only expired commits have, without those that earlier runs deleted.

    An active commit may hold such an object through another range: the subtraction finds that out later.
    """
    # No uncommitted data was prepared yet that commits must be read after, so there is no need to wait.
    definition = define_live(step, prepared_until=step.plan.cutoff)
    active = find_ranges(step, step.repository, definition.live.metarange_ids).ids
    expired = find_ranges(step, step.repository, definition.expired_metaranges).without(active)
    step.log(f"{len(definition.expired_metaranges):,} expired metaranges have {len(expired):,} ranges of their own")
    return step.engine.without_exactly(References.from_step(step).entries(expired), deleted_before(step))
