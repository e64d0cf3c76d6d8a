"""Lists a namespace in parts; each task that lists a part also writes the files of the frame.

A task stops if a part turns out to be large, such as one slice with half of all objects. The rest of that part is cut
into pieces, which tasks list in the next round. A repository without large parts is listed in one round.

A run can read an S3 Inventory in place of listing the store. An inventory may lack objects that were written shortly
before it was made, so it is trusted only for objects that are clearly older: it lowers the cutoff. A run of the flow
`committed` lists nothing: its universe is the objects that expired commits hold.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.engine.work import gather, spread, work_ahead, youngest_of_each
from lakefs_gc_assets.collector.frame.files import FileWriter, FrameFile, frame_files, in_windows
from lakefs_gc_assets.collector.frame.frames import LISTED, STORE_DF
from lakefs_gc_assets.collector.frame.slices import BEHIND_ALL_NAMES, Folders, UnsealedSlices, folders
from lakefs_gc_assets.collector.incremental.earlier_runs import deleted_before
from lakefs_gc_assets.collector.live.current import define_live
from lakefs_gc_assets.collector.live.live_files import RangeRecords
from lakefs_gc_assets.collector.live.references import References, find_ranges
from lakefs_gc_assets.collector.records import run_folder
from lakefs_gc_assets.collector.records.plan import Plan
from lakefs_gc_assets.collector.records.records_json import entries
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.lakefs import layout
from lakefs_gc_assets.lakefs.layout import DATA_PREFIX, LEGACY_WINDOW, Layout, WindowSize
from lakefs_gc_assets.storage.interface import ListsInOrder, ObjectStore, OpensStore, as_batch
from lakefs_gc_assets.storage.s3.inventory import Inventory, InventoryFile, open_inventory

_FOLDER = f"^(?P<folder>{DATA_PREFIX}[^/]*/)"
LARGE_PART = 60_000
"""Objects of a large part. A server issues at most 50,000 ids for one slice, so no slice of its own is large."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the listing: all keys below `prefix`, or only the objects directly below it.

    Attributes:
        slice: the slice, if the prefix is a slice of the usual layout.
        after: only keys after this one, by UTF-8 bytes; empty for all.
        until: only keys up to this one; None for all.
    """

    prefix: str
    only_directly: bool = False
    slice: str | None = None
    after: str = ""
    until: str | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """Rest of a large part, and facts from its listing so far.

    Attributes:
        part: the rest; it begins after the last listed key.
        first: the first key that was listed.
        alphabet: characters of the names listed last, in order.
    """

    part: Part
    first: str
    alphabet: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Parts to list, and slices that are skipped because they have no objects that are old enough.

    Attributes:
        sealed: slices whose objects are excluded; None if everything is listed.
        slices_elsewhere: slices that are old enough, and are not listed because they belong to other windows.
        limited: True if anything is not listed because it belongs to another window.
    """

    parts: tuple[Part, ...]
    skipped_slices: tuple[str, ...]
    folders: Folders
    sealed: frozenset[str] | None
    slices_elsewhere: tuple[str, ...] = ()
    limited: bool = False

    @property
    def slices(self) -> tuple[str, ...]:
        """The slices that are listed outside of shards, newest first."""
        return tuple(part.slice for part in self.parts if part.slice is not None)

    @property
    def unsealed(self) -> UnsealedSlices | None:
        """The slices that are listed in shards; None if all are, or if there are no shards."""
        # Without shards only whole slices are listed, and none is sealed.
        if self.sealed is None or not self.folders.shards:
            return None
        return UnsealedSlices.from_sealed(self.sealed, self.slices)


def empty_listing(store: ObjectStore) -> Listing:
    """A listing without parts."""
    return Listing((), (), folders(store), None)


def listing(
    store: ObjectStore,
    cutoff: datetime,
    sealed: frozenset[str] | None = None,
    windows: Collection[str] | None = None,
    window_size: WindowSize = "month",
) -> Listing:
    """Finds the parts of a namespace that a run lists.

    A slice created at or after the cutoff is skipped: all its names were issued later. Every other folder directly
    below `data/` (shards, old layouts, foreign folders) is listed whole, the root and `data/` themselves without
    descending.

    Args:
        sealed: slices that an earlier run sealed; only other slices are listed, and nothing outside of slices. Every
            shard is listed, since each may have a folder of any slice, but only its `Listing.unsealed` slices.
        windows: list only objects of these windows; None for all. Objects outside of slices belong to the window
            `legacy`.
        window_size: size of the windows.
    """
    namespace_folders = folders(store)
    parts = []
    has_legacy = windows is None or LEGACY_WINDOW in windows
    if sealed is None and has_legacy:
        parts = [Part("", only_directly=True), Part(DATA_PREFIX, only_directly=True)]
        parts += [Part(f"{DATA_PREFIX}{name}/") for name in namespace_folders.others]
    elif has_legacy:
        parts = [Part(f"{DATA_PREFIX}{name}/") for name in namespace_folders.shards]
    unsealed = [name for name in namespace_folders.slices if name not in (sealed or ())]
    skipped = {name for name in unsealed if layout.as_datetime(layout.created_at(name)) >= cutoff}
    old_enough = [name for name in unsealed if name not in skipped]
    elsewhere = {name for name in old_enough if windows is not None and layout.window(name, window_size) not in windows}
    parts += [Part(f"{DATA_PREFIX}{name}/", slice=name) for name in old_enough if name not in elsewhere]
    limited = bool(elsewhere) or not has_legacy
    return Listing(tuple(parts), tuple(sorted(skipped)), namespace_folders, sealed, tuple(sorted(elsewhere)), limited)


def list_part(
    store: ObjectStore,
    part: Part,
    window_size: WindowSize,
    limit: int | None = None,
    unsealed: UnsealedSlices | None = None,
) -> tuple[list[pa.RecordBatch], Rest | None]:
    """The objects of a part (LISTED), and its rest; lakeFS's own files and the root's `dummy` are excluded.

    Args:
        unsealed: slices whose objects are listed; None for all objects.
        limit: stop after this many objects, at the end of a batch, if the store lists in order.

    Returns:
        The rest is None if the part was listed to its end. A rest may have no objects.
    """
    batches: list[pa.RecordBatch] = []
    listed, first = 0, ""
    for batch in _batches(store, part) if unsealed is None else _unsealed_batches(store, part, unsealed):
        if not batch.num_rows:
            continue
        keys = batch.column("key")
        # Filter before `as_listed`, which reads the names of shards one by one.
        wanted = batch if unsealed is None else batch.filter(unsealed.contains(keys))
        if wanted.num_rows:
            batches.append(as_listed(wanted, window_size))
        # Most other objects of a shard are skipped, so they do not make it a large part.
        listed, first = listed + wanted.num_rows, first or keys[0].as_py()
        if limit is not None and listed >= limit and isinstance(store, ListsInOrder):
            names = pc.utf8_slice_codeunits(keys, len(part.prefix)).to_pylist()
            return batches, Rest(replace(part, after=keys[-1].as_py()), first, "".join(sorted(set().union(*names))))
    return batches, None


def _batches(store: ObjectStore, part: Part) -> Iterator[pa.RecordBatch]:
    if isinstance(store, ListsInOrder):
        return store.list_between(part.prefix, part.after, part.until, only_directly=part.only_directly)
    if part.only_directly:
        return iter([as_batch(store.list_level(part.prefix).objects)])
    return store.list(part.prefix)


_FULL_PAGE = 1000
"""Maximum objects on a page, of services that list in order."""


def _unsealed_batches(store: ObjectStore, part: Part, unsealed: UnsealedSlices) -> Iterator[pa.RecordBatch]:
    """Like `_batches`, without most objects of other slices: a full page that ends in one skips the rest of them.

    If a store lists in no order, all pages are read. The caller excludes the other objects that pages have, so the
    result does not depend on the pages.
    """
    if part.slice is not None or not isinstance(store, ListsInOrder):
        yield from _batches(store, part)
        return
    # With a bound, each page comes by itself. No object of a slice is behind the bound.
    until = part.until or part.prefix + BEHIND_ALL_NAMES
    after: str | None = part.after
    while after is not None and after < until:
        behind = None
        for batch in store.list_between(part.prefix, after, until):
            yield batch
            keys = batch.column("key")
            end = unsealed.end_of_others(keys[0].as_py(), keys[-1].as_py()) if len(keys) >= _FULL_PAGE else None
            # Only forwards: otherwise the listing of a store that breaks its order might never end.
            if end is not None and end > after:
                behind = end
                break
        after = behind


def list_inventory_file(
    inventory: Inventory, listing: Listing, window_size: WindowSize, file: InventoryFile
) -> Iterator[pa.RecordBatch]:
    """The objects of a listing's parts that a file of an inventory names (LISTED)."""
    folders = pa.array([part.prefix for part in listing.parts if not part.only_directly], pa.string())
    lists_directly = any(part.only_directly for part in listing.parts)
    for batch in inventory.batches(file):
        keys = batch.column("key")
        folder = pc.struct_field(pc.extract_regex(keys, _FOLDER), "folder")
        directly = pc.or_(pc.invert(pc.match_substring(keys, "/")), pc.starts_with(keys, DATA_PREFIX))
        wanted = pc.if_else(pc.is_valid(folder), pc.is_in(folder, folders), pc.and_(directly, lists_directly))
        if pc.any(wanted).as_py():
            yield as_listed(batch.filter(wanted), window_size)


def as_listed(batch: pa.RecordBatch, window_size: WindowSize) -> pa.RecordBatch:
    """Objects of a store's listing as a run stores them (LISTED), without lakeFS's own files."""
    addresses = batch.column("key")
    read = layout.read_names(addresses, window_size)
    stated = [batch.column(name) for name in ("last_modified", "size", "etag", "storage_class")]
    columns = [addresses, read.slices, read.windows, read.layouts, read.issued_at, *stated]
    listed = pa.RecordBatch.from_arrays(columns, schema=LISTED)
    return listed.filter(pc.not_equal(read.layouts, Layout.SPECIAL.value))


_PIECES = 32
"""Maximum pieces of a part: an empty piece costs a call of the store."""
_DELICATE = re.compile(r"[\x00-\x1f\x7f/.]")
"""Characters that are not valid everywhere in a name: a bound ends before the first one."""
_DIGITS = 8
"""Characters of a bound that are kept after its common prefix with the last listed name."""


def cut(rest: Rest) -> tuple[Part, ...]:
    """Cuts a rest into pieces, in order; a single one if the names listed so far allow no estimate.

    The distribution of the rest's names is unknown. It is estimated from the listed names, read as numbers over the
    alphabet of their characters: equal spans are expected to have about as many names. A piece that turns out to be
    large is cut again. The bounds of the pieces follow each other from the beginning of the rest to its end: however
    wrong the estimate is, every possible name lies in exactly one piece.
    """
    part, after, until = rest.part, rest.part.after, rest.part.until
    names = [name.removeprefix(part.prefix) for name in (rest.first, after, until or "")]
    starts: set[str] = set()
    if len(rest.alphabet) > 1:
        scale = _Scale(rest.alphabet, max(map(len, names)))
        first, last = scale.number(names[0]), scale.number(names[1])
        end = scale.end if until is None else scale.number(names[2])
        starts = {part.prefix + scale.name(number) for number in _steps(last, end, last - first)}
    bounds: list[str | None] = [after, *sorted(_within(starts, after, until), key=str.encode), until]
    return tuple(replace(part, after=begin or "", until=end) for begin, end in pairwise(bounds))


def _within(starts: set[str], after: str, until: str | None) -> set[str]:
    return {
        bound
        for bound in (_short(bound, after) for bound in starts)
        if after.encode() < bound.encode() and (until is None or bound.encode() < until.encode())
    }


def _short(bound: str, after: str) -> str:
    """A shorter bound: without irrelevant characters at its end, and cut before the first of _DELICATE."""
    pairs = enumerate(zip(bound, after, strict=False))
    common = next((place for place, (one, other) in pairs if one != other), min(len(bound), len(after)))
    return bound[:common] + _DELICATE.split(bound[common : common + _DIGITS], maxsplit=1)[0]


def _steps(start: int, end: int, step: int) -> Iterator[int]:
    """Numbers between two, at equal distances; if these would be too many, at distances that grow by a factor.

    The first distance is three quarters of the step, so that few pieces turn out a little too large.
    """
    length = max(1, step * 3 // 4)
    ratio = max(0.0, math.log(max(1, end - start)) - math.log(length))
    if ratio <= math.log(_PIECES):
        yield from range(start + length, end, length)
        return
    growth = int(math.exp(ratio / _PIECES) * 1024)
    while (start + length) < end:
        yield start + length
        length = max(length + 1, length * growth // 1024)


class _Scale:
    """Reads names as numbers over an alphabet, in the order of names; other characters count as the next one in it."""

    def __init__(self, alphabet: str, digits: int) -> None:
        self._alphabet = alphabet
        self._digits = digits
        self.end = len(alphabet) ** digits

    def number(self, name: str) -> int:
        """The number of a name, which is cut or filled up to the number of digits."""
        number = 0
        for character in name[: self._digits].ljust(self._digits, self._alphabet[0]):
            rank = sum(known < character for known in self._alphabet)
            number = number * len(self._alphabet) + min(rank, len(self._alphabet) - 1)
        return number

    def name(self, number: int) -> str:
        """The name of a number."""
        characters: list[str] = []
        for _ in range(self._digits):
            number, rank = divmod(number, len(self._alphabet))
            characters.append(self._alphabet[rank])
        return "".join(reversed(characters)).rstrip(self._alphabet[0])


_ROWS = 65_536
"""Rows that are written together; a page of a listing has fewer."""
_AT_ONCE = 4
"""Parts that a task lists at once: a service lists a thousand objects per request, so a task mostly waits.

Pages of a part wait for the parts before it: at most about 40 MB.
"""
_ANSWER = pa.schema([pa.field("file", pa.string()), pa.field("rest", pa.string())])
"""Result of a task, as JSON: a file that it wrote, or the rest of a part."""


def list_objects(step: Step[R], listing: Listing) -> tuple[FrameFile, ...]:
    """Writes the objects of a listing as files of `store_df`, from the store or the inventory that the plan names.

    An inventory may still name objects that earlier runs deleted; they are excluded.
    """
    if step.plan.inventory is None:
        return list_parts(step, listing)
    repository = step.repository
    inventory = open_inventory(repository.opener.settings, step.plan.inventory, repository.namespace)
    step.log(f"reading {counted(len(inventory.files), 'files')} of the inventory of {inventory.created_at:%F %T}Z")
    read = partial(list_inventory_file, inventory, listing, step.plan.slice_window)
    tasks = step.tasks(step.repository.settings.listing_partitions)
    objects = step.engine.read(spread(inventory.files, tasks), read, LISTED)
    existing = step.engine.without_exactly(objects, deleted_before(step, since=step.plan.cutoff))
    return step.write(STORE_DF, existing)


def list_parts(step: Step[R], listing: Listing, large: int = LARGE_PART) -> tuple[FrameFile, ...]:
    """Lists the parts of a listing to their ends, and writes their objects as files of `store_df`.

    Args:
        large: objects of a part after which a task leaves the rest to others.
    """
    tasks = step.tasks(step.repository.settings.listing_partitions)
    parts = listing.parts
    if listing.unsealed is not None and not isinstance(step.repository.store, ListsInOrder):
        step.log("reading all pages of the shards: this store does not promise to list keys in order")
    work = partial(_list_as_task, step.repository.opener, step.plan, large, listing.unsealed)
    files: list[FrameFile] = []
    while parts:
        groups = [[group] for group in spread(parts, tasks)]
        with step.engine.name_work(f"list {counted(len(parts), 'parts')} of the store"):
            answers = step.engine.collect(step.engine.read(groups, work, _ANSWER))
        files += frame_files(answers.filter(pc.is_valid(answers.column("file"))))
        rests = map(json.loads, answers.column("rest").drop_null().to_pylist())
        parts = tuple(piece for rest in rests for piece in cut(Rest(**{**rest, "part": Part(**rest["part"])})))
    return tuple(files)


def _list_as_task(
    opener: OpensStore, plan: Plan, large: int, unsealed: UnsealedSlices | None, parts: Sequence[Part]
) -> Iterator[pa.RecordBatch]:
    store = opener.open()
    writer = FileWriter(store, run_folder.frame(plan.run_id, STORE_DF.name), LISTED)
    rests: list[Rest] = []

    list_whole = partial(list_part, store, window_size=plan.slice_window, limit=large, unsealed=unsealed)
    for batch in gather(_list_together(list_whole, parts, rests), _ROWS):
        writer.write(in_windows(batch, plan.windows))
    answers = [{"file": json.dumps(entries(file)), "rest": None} for file in writer.close()]
    answers += [{"file": None, "rest": json.dumps(asdict(rest))} for rest in rests]
    if answers:
        yield pa.RecordBatch.from_pylist(answers, schema=_ANSWER)


def cut_large_parts(store: ObjectStore, listing: Listing, window_size: WindowSize, large: int = 20_000) -> list[Part]:
    """The parts of a listing; large ones outside of slices are cut, so that several tasks list them.

    A folder of an old layout may have millions of objects. Its beginning is listed here, and by tasks once more. Shards
    are not cut: they are many, and have about the same size.

    Args:
        large: objects of a part after which the rest is cut.
    """
    shards = {f"{DATA_PREFIX}{name}/" for name in listing.folders.shards}
    shares: list[Part] = []
    others: list[Part] = []
    for part in listing.parts:
        (others if part.slice is None and part.prefix not in shards else shares).append(part)
    listed = work_ahead(partial(list_part, store, window_size=window_size, limit=large), others, _AT_ONCE)
    for part, (_, rest) in zip(others, listed, strict=True):
        shares += [part] if rest is None else [replace(part, until=rest.part.after), *cut(rest)]
    return shares


def list_all(
    store: ObjectStore, parts: Sequence[Part], window_size: WindowSize, large: int = LARGE_PART
) -> Iterator[pa.RecordBatch]:
    """The objects of parts (LISTED), several at once; rests of large parts are listed in pieces.

    Args:
        large: objects of a part after which the rest is cut.
    """
    work = partial(list_part, store, window_size=window_size, limit=large)
    while parts:
        rests: list[Rest] = []
        yield from _list_together(work, parts, rests)
        parts = tuple(piece for rest in rests for piece in cut(rest))


def _list_together(
    work: Callable[[Part], tuple[list[pa.RecordBatch], Rest | None]], parts: Sequence[Part], rests: list[Rest]
) -> Iterator[pa.RecordBatch]:
    """The rows of parts, several of which are listed at once; adds rests of large parts to `rests`."""
    for batches, rest in work_ahead(work, parts, _AT_ONCE):
        rests.extend([rest] if rest else [])
        yield from batches


def find_expired(step: Step[R]) -> RangeRecords:
    """Finds the ranges that only expired commits have."""
    # No uncommitted data was prepared yet, and commits need not be read after it: there is no need to wait.
    definition = define_live(step, prepared_until=step.plan.cutoff)
    active = find_ranges(step, step.repository, definition.live.metarange_ids).ids
    expired = find_ranges(step, step.repository, definition.expired_metaranges, expired=True).without(active)
    step.log(
        f"{counted(len(definition.expired_metaranges), 'expired metaranges have')} {counted(len(expired), 'ranges')} "
        "of their own"
    )
    return expired


def read_expired(step: Step[R], expired: RangeRecords, pending: tuple[R, int] | None) -> R:
    """Reads the objects (LISTED) of expired ranges, each once, without objects that earlier runs deleted.

    An active commit may hold such an object through another range: the subtraction finds that out later.

    Args:
        pending: the base run's pending objects, and their number; None for none.
    """
    engine = step.engine
    objects = References.from_step(step).entries(expired)
    if pending is not None:
        left, count = pending
        together = engine.union(objects, left)
        objects = engine.map_by_address(together, youngest_of_each, LISTED, expired.entries + count)
    return engine.without_exactly(objects, deleted_before(step))
