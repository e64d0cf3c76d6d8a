"""Staged entries that the server never lists: those whose content equals the committed one at the same path.

Such an entry is staged under an address of its own, yet neither uncommitted data nor a diff shows it, and no call tells
which branches have any. Its path is known, because the branch's head has an entry of the same size and content there:
it is asked for on the branch. Where many paths of a range are asked for, the branch's objects are listed there, a
thousand with each request; a path that a listing lacks is asked for by itself.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.frame.schemas import HEAD_ENTRIES
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import OBJECTS_ON_PAGE, LakeFSApi

PLACES = pa.schema([HEAD_ENTRIES.field("range_id"), HEAD_ENTRIES.field("path")])
"""Paths in ranges of branch heads whose content may equal that of a candidate."""

_CONCURRENT_QUESTIONS = 32
_QUESTIONS_OF_A_TASK = 100
_WORTH_LISTING = 10
"""Asking for so many paths one by one costs the server as much as one page of a listing."""
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class HeadRange:
    """A range of branch heads.

    Attributes:
        branches: those whose head holds it.
        entries: how many it has.
    """

    branches: tuple[str, ...]
    entries: int


@dataclass(frozen=True, slots=True)
class Answers:
    """What asking found.

    Attributes:
        live: every address that the asked paths have, in each spelling it may mean.
        unaskable: places (PLACES) whose path is no text: candidates of the same content are kept.
        asked: how many paths were asked for, each branch counted.
        requests: how many requests that took.
    """

    live: frozenset[str]
    unaskable: pa.Table
    asked: int
    requests: int


@dataclass(frozen=True, slots=True)
class _Question:
    """Paths (string) of one range to ask for on a branch, in order: that of their characters is that of their bytes."""

    branch: str
    paths: pa.ChunkedArray
    by_listing: bool


def heads_by_range(heads: Mapping[str, str], ranges_of: Iterable[tuple[str, pa.Table]]) -> dict[str, HeadRange]:
    """The ranges of branch heads.

    Args:
        heads: metarange of each branch's head.
        ranges_of: each of these metaranges with its ranges (RANGES).
    """
    branches: dict[str, list[str]] = {}
    for branch, metarange_id in heads.items():
        branches.setdefault(metarange_id, []).append(branch)
    found: dict[str, list[str]] = {}
    entries: dict[str, int] = {}
    for metarange_id, ranges in ranges_of:
        for range_id, count in zip(ranges.column("id").to_pylist(), ranges.column("count").to_pylist(), strict=True):
            found.setdefault(range_id, []).extend(branches[metarange_id])
            entries[range_id] = count
    return {range_id: HeadRange(tuple(names), entries[range_id]) for range_id, names in found.items()}


def ask(api: LakeFSApi, namespace: Namespace, places: pa.Table, heads: Mapping[str, HeadRange]) -> Answers:
    """Asks for each place on every branch whose head holds its range.

    A path of a branch is in one range of its head only, so it is asked for once.

    Args:
        places: PLACES, each once.
    Raises:
        LakeFSError: a question cannot be answered.
    """
    text = _is_text(places.column("path"))
    askable = places.filter(text)
    askable = askable.set_column(1, "path", askable.column("path").cast(pa.string()))
    asked, requests, live = 0, 0, set[str]()
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        questions = list(_questions(askable, heads))
        for question, (found, made) in zip(
            questions, pool.map(partial(_answer, api, namespace), questions), strict=True
        ):
            live |= found
            asked += len(question.paths)
            requests += made
    return Answers(frozenset(live), places.filter(pc.invert(text)), asked, requests)


def _is_text(paths: pa.ChunkedArray) -> pa.BooleanArray:
    def is_text(path: bytes) -> bool:
        try:
            path.decode()
        except UnicodeDecodeError:
            return False
        return True

    return pa.array([is_text(path) for path in paths.to_pylist()], pa.bool_())


def _questions(places: pa.Table, heads: Mapping[str, HeadRange]) -> Iterator[_Question]:
    """The work, in pieces that several threads can share."""
    ordered = places.sort_by([("range_id", "ascending"), ("path", "ascending")])
    counts = pc.value_counts(ordered.column("range_id")).to_pylist()
    start = 0
    total = sum(row["counts"] * len(heads[row["values"]].branches) for row in counts)
    piece = max(1, min(_QUESTIONS_OF_A_TASK, total // (4 * _CONCURRENT_QUESTIONS)))
    for row in counts:
        head, paths = heads[row["values"]], ordered.column("path").slice(start, row["counts"])
        start += row["counts"]
        pages = -(-head.entries // OBJECTS_ON_PAGE)
        by_listing = len(paths) >= _WORTH_LISTING * pages
        step = len(paths) if by_listing else piece
        for branch in head.branches:
            for place in range(0, len(paths), step):
                yield _Question(branch, paths.slice(place, step), by_listing)


def _answer(api: LakeFSApi, namespace: Namespace, question: _Question) -> tuple[set[str], int]:
    """The addresses of the paths of a question, in each spelling, and how many requests it took."""
    paths, requests = question.paths.to_pylist(), 0
    addresses: dict[str, str] = {}
    if question.by_listing:
        addresses, requests = _listed(api, question.branch, paths)
    spellings = partial(namespace.live_keys, address_type=AddressType.FULL)
    for path in paths:
        if path not in addresses:
            requests += 1
            if (stats := api.stat(question.branch, path)) is not None:
                addresses[path] = stats.physical_address
    return {key for address in set(addresses.values()) for key in spellings(address)}, requests


def _listed(api: LakeFSApi, branch: str, paths: Sequence[str]) -> tuple[dict[str, str], int]:
    """The addresses of those paths that a listing of the branch has, and how many pages it took."""
    found: dict[str, str] = {}
    place, pages, after = 0, 0, ""
    while place < len(paths):
        # What lies between two paths is passed over.
        after = max(after, _right_before(paths[place]))
        page = api.list_objects(branch, after)
        pages += 1
        addresses = {each.path: each.physical_address for each in page.objects}
        after = page.objects[-1].path if page.objects else after
        while place < len(paths) and (not page.more or paths[place] <= after):
            if paths[place] in addresses:
                found[paths[place]] = addresses[paths[place]]
            place += 1
    return found, pages


def _right_before(path: str) -> str:
    """A text before a path, with hardly any path between them."""
    code = ord(path[-1]) if path else 0
    if code == 0:
        return path[:-1]
    # Surrogates are no characters.
    return path[:-1] + chr(0xD7FF if code == 0xE000 else code - 1) + _LAST_CHARACTER
