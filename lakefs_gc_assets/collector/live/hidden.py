"""Keeps candidates that are staged but never listed by the server: finds their paths by content, and looks them up.

A staged entry whose content equals the committed one at the same path has an address of its own. Yet neither
uncommitted data nor a diff shows it, and no call tells which branches have such entries. Its path is known, because the
branch's head has an entry of the same size and content there. So the path is looked up on the branch. If many paths of
a range are to be looked up, the branch's objects are listed there, a thousand with each request. A path that the
listing lacks is looked up by itself.
"""

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector.commits import metaranges_of
from lakefs_gc_assets.collector.engine.port import Engine, R
from lakefs_gc_assets.collector.engine.work import sum_all, sum_by, sum_in_task, work_ahead
from lakefs_gc_assets.collector.frame.frames import HEAD_ENTRIES
from lakefs_gc_assets.collector.live import references
from lakefs_gc_assets.collector.live.contents import KnownContents, choose_sizes, known_contents
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.repository.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.errors import counted
from lakefs_gc_assets.lakefs.addresses import AddressType, Namespace
from lakefs_gc_assets.lakefs.api.models import OBJECTS_ON_PAGE, LakeFSApi, ObjectStats

PLACES = pa.schema([HEAD_ENTRIES.field("range_id"), HEAD_ENTRIES.field("path")])
"""Paths in ranges of branch heads whose content may equal a candidate's."""

_CONCURRENT_QUESTIONS = 32
_QUESTIONS_OF_A_TASK = 100
_STAGED_AT_ONCE = 8
"""Pages of staged objects that are requested at once."""
_WORTH_LISTING = 10
"""Number of paths that cost the server as much, one by one, as one page of a listing."""
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class HeadRange:
    """A range of branch heads.

    Attributes:
        branches: branches with a head that holds the range, each once.
        entries: number of its entries.
    """

    branches: tuple[str, ...]
    entries: int


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of the server.

    Attributes:
        live: every address of the paths, in each spelling that it may mean.
        unaskable: places (PLACES) whose path is not UTF-8: candidates of the same content are kept.
        asked: number of paths that were looked up, counted on each branch.
        requests: number of requests.
    """

    live: frozenset[str]
    unaskable: pa.Table
    asked: int
    requests: int


@dataclass(frozen=True, slots=True)
class _Question:
    """Sorted paths (string) to look up on a branch, all of a single range; characters sort like their UTF-8 bytes."""

    branch: str
    paths: pa.ChunkedArray
    by_listing: bool


@dataclass(frozen=True, eq=False)
class _HeadRanges(Mapping[str, HeadRange]):
    """The ranges of branch heads. Each HeadRange is made on access, since a thousand branches may share a range.

    Attributes:
        branches: for each metarange, its branches.
        holders: for each range, the places of its metaranges in `branches`.
        entries: for each range, the number of its entries.
    """

    branches: Sequence[Sequence[str]]
    holders: Mapping[str, Sequence[int]]
    entries: Mapping[str, int]

    def __getitem__(self, range_id: str) -> HeadRange:
        names = (name for place in self.holders[range_id] for name in self.branches[place])
        return HeadRange(tuple(dict.fromkeys(names)), self.entries[range_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


def heads_by_range(
    heads: Iterable[tuple[str, str]], ranges_of: Iterable[tuple[str, pa.Table]]
) -> Mapping[str, HeadRange]:
    """The ranges of branch heads.

    Args:
        heads: branches, each with the metarange of a head.
        ranges_of: each metarange of a head with its ranges (RANGES).
    """
    names: dict[str, list[str]] = {}
    for branch, metarange_id in heads:
        names.setdefault(metarange_id, []).append(branch)
    branches: list[Sequence[str]] = []
    holders: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
    entries: dict[str, int] = {}
    for place, (metarange_id, ranges) in enumerate(ranges_of):
        branches.append(names[metarange_id])
        ids = ranges.column("id").to_pylist()
        entries.update(zip(ids, ranges.column("count").to_pylist(), strict=True))
        for range_id in ids:
            holders[range_id].append(place)
    return _HeadRanges(branches, dict(holders), entries)


def ask(api: LakeFSApi, namespace: Namespace, places: pa.Table, heads: Mapping[str, HeadRange]) -> Answers:
    """Looks up each place on every branch with a head that holds its range.

    Each head has a path in one range only. So the path is looked up once for each head.

    Args:
        places: PLACES, each once.

    Raises:
        LakeFSError: a request fails.
    """
    text = _is_text(places.column("path"))
    askable = places.filter(text)
    askable = askable.set_column(1, "path", askable.column("path").cast(pa.string()))
    questions = list(_questions(askable, heads))
    with ThreadPoolExecutor(_CONCURRENT_QUESTIONS) as pool:
        answers = list(pool.map(partial(_answer, api, namespace), questions))
    live = frozenset[str]().union(*(keys for keys, _ in answers))
    asked, requests = sum(len(each.paths) for each in questions), sum(count for _, count in answers)
    return Answers(live, places.filter(pc.invert(text)), asked, requests)


def _is_text(paths: pa.ChunkedArray) -> pa.BooleanArray:
    return pa.array([path.decode(errors="ignore").encode() == path for path in paths.to_pylist()], pa.bool_())


def _questions(places: pa.Table, heads: Mapping[str, HeadRange]) -> Iterator[_Question]:
    """Splits the places into questions that several threads can share."""
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
    """The addresses of a question's paths, in each spelling, and the number of requests."""
    paths, requests = question.paths.to_pylist(), 0
    stats: dict[str, ObjectStats] = {}
    if question.by_listing:
        stats, requests = _listed(api, question.branch, paths)
    spellings = partial(namespace.live_keys, address_type=AddressType.FULL)
    requests += _add_missing(api, question.branch, paths, stats)
    return {
        key for address in {each.physical_address for each in stats.values()} for key in spellings(address)
    }, requests


def stats_at(api: LakeFSApi, branch: str, paths: Sequence[str]) -> dict[str, ObjectStats]:
    """The objects of a branch at some paths, which are in order; uses pages of a listing as long as they pay.

    Raises LakeFSError if a request fails.
    """
    stats, _ = _listed(api, branch, paths, least=_WORTH_LISTING)
    _add_missing(api, branch, paths, stats)
    return stats


def staged_objects(api: LakeFSApi, branch: str, limit: int | None = None) -> Iterator[ObjectStats]:
    """The objects that a branch shows as staged.

    Args:
        limit: maximum number of changes to read; None for all.

    Raises:
        LakeFSError: a request fails.
    """
    paths = [change.path for change in islice(api.changes(branch), limit) if change.type != "removed"]
    parts = [paths[start : start + OBJECTS_ON_PAGE] for start in range(0, len(paths), OBJECTS_ON_PAGE)]
    for stats in work_ahead(partial(stats_at, api, branch), parts, _STAGED_AT_ONCE):
        yield from stats.values()


def _add_missing(api: LakeFSApi, branch: str, paths: Sequence[str], stats: dict[str, ObjectStats]) -> int:
    """Looks up each path that is not in `stats` by itself; returns the number of requests."""
    missing = [path for path in paths if path not in stats]
    for path in missing:
        if (answer := api.stat(branch, path)) is not None:
            stats[path] = answer
    return len(missing)


def _listed(api: LakeFSApi, branch: str, paths: Sequence[str], least: int = 0) -> tuple[dict[str, ObjectStats], int]:
    """The objects at some paths that a listing of the branch has, and the number of pages.

    Args:
        least: minimum number of the paths on a page to request another page.
    """
    stats: dict[str, ObjectStats] = {}
    place, pages, after, listed_before = 0, 0, "", 0
    while place < len(paths):
        # The listing skips objects between two paths.
        after = max(after, _right_before(paths[place]))
        page = api.list_objects(branch, after)
        pages += 1
        on_page = {each.path: each for each in page.objects}
        after = page.objects[-1].path if page.objects else after
        while place < len(paths) and (not page.more or paths[place] <= after):
            if paths[place] in on_page:
                stats[paths[place]] = on_page[paths[place]]
            place += 1
        if len(stats) < listed_before + least:
            break
        listed_before = len(stats)
    return stats, pages


def _right_before(path: str) -> str:
    """A text that sorts before a path, with hardly any path between them."""
    code = ord(path[-1]) if path else 0
    if code == 0:
        return path[:-1]
    # Surrogates are not characters.
    return path[:-1] + chr(0xD7FF if code == 0xE000 else code - 1) + _LAST_CHARACTER


_FEW_PLACES = 10_000
_OF_SIZE = pa.schema([HEAD_ENTRIES.field("size"), pa.field("number", pa.int64())])
_ALIKE = ("range_id", "path", "size", "etag")
_COUNTED = pa.schema([HEAD_ENTRIES.field("size"), HEAD_ENTRIES.field("etag"), pa.field("questions", pa.int64())])
"""Number of questions by content: each place on each branch is one question."""

Content = tuple[int, str | None]
"""Size and MD5 of committed objects; the MD5 is None if it is unknown."""


@dataclass(frozen=True)
class Cleared(Generic[R]):
    """Candidates that did not prove to be staged, and the number of kept candidates by reason.

    Attributes:
        asked: number of paths that were looked up, counted on each branch.
        unasked: number of paths that were not looked up, because of `collection.hidden_suspect_limit`.
        live: every address of the paths that were looked up.
        unreadable: number of candidates in an archive tier, whose content could not be read.
    """

    candidates: R
    kept: Mapping[str, int] = field(default_factory=dict)
    asked: int = 0
    unasked: int = 0
    live: frozenset[str] = frozenset()
    unreadable: int = 0


@contextmanager
def clear_hidden(
    step: Step[R],
    candidates: R,
    heads: Mapping[str, str],
    columns: pa.Schema,
    listed: Callable[[], R] | None = None,
    record_heads: bool = False,
    before: Sequence[Mapping[str, str]] = (),
) -> Iterator[Cleared[R]]:
    """Excludes candidates that a branch has staged with the content of a committed object.

    Branches of the repositories in `also_live` are checked in the same way; their heads are requested here. The rows
    may depend on tables that are released at the exit, so use them inside of the context only.

    Args:
        candidates: address and size at least, and `key` if objects do not lie at their addresses; used several times,
            so the caller should cache them.
        heads: branches of this repository, each with the metarange of its head.
        columns: schema of the candidates.
        listed: gives address, size and ETag of all objects of the store; None if the store was not listed.
        record_heads: True to record the ranges of heads, for a run that builds on this one.
        before: commit id by branch right before uncommitted data was prepared, for each repository. A branch may have
            had a hidden entry then, and none of that content since; once it is set back, the entry is hidden again.
    """
    ranges_of = partial(references.ranges_of_heads, step, record=record_heads)
    repositories, unknown = (step.repository, *step.repository.others), repeat(dict[str, str]())
    with ExitStack() as stack:
        cleared = Cleared(candidates)
        for repository, earlier in zip(repositories, chain(before, unknown), strict=False):
            if repository is step.repository:
                pairs = [*metaranges_of(repository.api, earlier), *heads.items()]
            else:
                now = {branch.id: branch.commit_id for branch in repository.api.branches()}
                pairs = metaranges_of(repository.api, now, earlier)
            of_heads = heads_by_range(pairs, ranges_of(repository, {metarange for _, metarange in pairs}))
            clearing = _clear_repository(step, repository, cleared.candidates, of_heads, columns, listed)
            one = stack.enter_context(clearing)
            kept, unreadable = Counter(cleared.kept) + Counter(one.kept), max(cleared.unreadable, one.unreadable)
            asked, unasked = cleared.asked + one.asked, cleared.unasked + one.unasked
            cleared = Cleared(one.candidates, kept, asked, unasked, cleared.live | one.live, unreadable)
        yield cleared


@contextmanager
def _clear_repository(
    step: Step[R],
    repository: OpenRepository,
    candidates: R,
    of_heads: Mapping[str, HeadRange],
    columns: pa.Schema,
    listed: Callable[[], R] | None,
) -> Iterator[Cleared[R]]:
    """Excludes candidates that a repository's branches have staged with the content of a committed object."""
    engine = step.engine
    amounts = _count_by_size(engine, candidates)
    weights = {range_id: len(head.branches) for range_id, head in of_heads.items()}
    sizes = pa.array(amounts, pa.int64())
    read = References.from_step(step, repository).head_entries(
        references.select_ranges_by_size(step, of_heads, sizes), sizes
    )
    with engine.name_work("find hidden staged entries"), engine.cached(read, at_most=sys.maxsize) as entries:
        if not (questions := _count_by_size(engine, entries, weights)):
            yield Cleared(candidates)
            return
        sample = choose_sizes(amounts, questions, step.repository.settings.hidden_suspect_limit, step.plan.run_id)
        with known_contents(step, candidates, entries, columns, sample, listed) as contents:
            yield _clear(step, repository, candidates, contents, of_heads, weights)


def _count_by_size(engine: Engine[R], rows: R, weights: Mapping[str, int] | None = None) -> dict[int, int]:
    """Number of rows by size; with weights, each row counts as the weight of its range."""

    def amounts(batch: pa.RecordBatch) -> list[pa.Array]:
        ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        return [batch.column("size"), ones if weights is None else _weights(weights, batch)]

    sizes, numbers = sum_all(engine, rows, amounts, "size", _OF_SIZE).columns
    return dict(zip(sizes.to_pylist(), numbers.to_pylist(), strict=True))


def _weights(weights: Mapping[str, int], batch: pa.RecordBatch) -> pa.Int64Array:
    return pa.array([weights[range_id] for range_id in batch.column("range_id").to_pylist()], pa.int64())


def _clear(
    step: Step[R],
    repository: OpenRepository,
    candidates: R,
    known: KnownContents[R],
    heads: Mapping[str, HeadRange],
    weights: Mapping[str, int],
) -> Cleared[R]:
    engine = step.engine
    places, left_out = _choose(step, engine.same_content(known.entries, known.candidates), weights)
    if not places.num_rows and not left_out:
        return Cleared(candidates, unreadable=known.unreadable)
    answers = ask(repository.api, step.repository.namespace, places, heads)
    step.log(
        f"looked up {counted(places.num_rows, 'paths')} that may have the content of a candidate, on each "
        f"branch: {counted(answers.asked, 'lookups')} in {counted(answers.requests, 'requests')}"
    )
    live = engine.table(pa.table({"address": pa.array(sorted(answers.live), pa.string())}))
    kept = {Kept.HIDDEN_STAGED.value: engine.count(engine.among_exactly(candidates, live))}
    cleared = engine.without_exactly(candidates, live)
    if left_out or answers.unaskable.num_rows:
        answered = engine.without_matching(engine.table(places), engine.table(answers.unaskable), PLACES.names)
        unknown = engine.without_matching(known.entries, answered, PLACES.names)
        contents = engine.without_exactly(known.candidates, live)
        uncertain = engine.same_content(contents, unknown)
        reason = Kept.UNCERTAIN if left_out else Kept.UNASKABLE
        archived = engine.where(uncertain, lambda rows: rows.column("unreadable"))
        unreadable = engine.count(archived) if known.unreadable else 0
        kept |= {Kept.UNREADABLE.value: unreadable, reason.value: engine.count(uncertain) - unreadable}
        cleared = engine.without_exactly(cleared, engine.select(uncertain, "address"))
    kept = {why: count for why, count in kept.items() if count}
    return Cleared(cleared, kept, answers.asked, left_out, answers.live, known.unreadable)


def _choose(step: Step[R], alike: R, weights: Mapping[str, int]) -> tuple[pa.Table, int]:
    """Chooses the places to look up (PLACES), each once; also returns the number of questions above the limit.

    As many contents as possible are covered: contents at few places come first.

    Args:
        alike: entries (HEAD_ENTRIES) whose content may be a candidate's.
        weights: for each range, the number of its branches.
    """
    engine, limit = step.engine, step.repository.settings.hidden_suspect_limit
    count = partial(_count_questions, weights)
    with engine.cached(engine.distinct(engine.select(alike, *_ALIKE)), at_most=sys.maxsize) as rows:
        places = engine.collect(rows, limit=_FEW_PLACES + 1)
        few = places.num_rows <= _FEW_PLACES
        if few:
            counted = pa.Table.from_batches(count(places.to_batches()), _COUNTED)
        else:
            counted = engine.collect(engine.map_batches(rows, count, _COUNTED))
        contents, left_out = _choose_contents(limit, counted)
        if contents is not None:
            holds = partial(_has_content_among, contents)
            places = places.filter(holds(places)) if few else engine.collect(engine.where(rows, holds))
        elif not few:
            places = engine.collect(rows)
    return places.group_by(PLACES.names).aggregate([]).cast(PLACES), left_out


def _count_questions(weights: Mapping[str, int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts the questions that a task's places need, by content (_COUNTED)."""
    rows = ([batch.column("size"), batch.column("etag"), _weights(weights, batch)] for batch in batches)
    return sum_in_task((pa.table(columns, schema=_COUNTED) for columns in rows), ("size", "etag"), _COUNTED)


def _choose_contents(limit: int, counted: pa.Table) -> tuple[frozenset[Content] | None, int]:
    """Chooses the contents to look up, fewest questions first; also returns the number of questions about the others.

    None stands for all contents.
    """
    rows = sum_by(counted, ("size", "etag")).to_pylist()
    questions: dict[Content, int] = {(row["size"], row["etag"]): row["questions"] for row in rows}
    total = sum(questions.values())
    if total <= limit:
        return None, 0
    chosen, asked = set[Content](), 0
    for content, number in sorted(questions.items(), key=lambda item: (item[1], item[0][0], item[0][1] or "")):
        if asked + number > limit:
            break
        chosen.add(content)
        asked += number
    return frozenset(chosen), total - asked


def _has_content_among(contents: Collection[Content], rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
    """True for each row whose content is one of these."""
    columns = [rows.column(name).to_pylist() for name in ("size", "etag")]
    return pa.array([content in contents for content in zip(*columns, strict=True)], pa.bool_())
