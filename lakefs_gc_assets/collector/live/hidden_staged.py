"""Keeps candidates that are staged where the server does not list them: finds them by content, asks by path."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector.engine.port import R
from lakefs_gc_assets.collector.frame.schemas import HEAD_ENTRIES
from lakefs_gc_assets.collector.live import hidden, known_ranges
from lakefs_gc_assets.collector.live.contents import Known, choose_sizes, known_contents
from lakefs_gc_assets.collector.live.hidden import PLACES, HeadRange
from lakefs_gc_assets.collector.live.references import References
from lakefs_gc_assets.collector.records.outcomes import Kept
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step

_FEW_PLACES = 10_000
_OF_SIZE = pa.schema([HEAD_ENTRIES.field("size"), pa.field("number", pa.int64())])
_ALIKE = ("range_id", "path", "size", "etag")
_COUNTED = pa.schema([HEAD_ENTRIES.field("size"), HEAD_ENTRIES.field("etag"), pa.field("questions", pa.int64())])
"""By content, how many questions there are: each place on each branch is one."""

Content = tuple[int, str | None]
"""Size and MD5 of committed objects; the MD5 is None where it is not known."""


@dataclass(frozen=True)
class Cleared(Generic[R]):
    """Candidates without those that are staged after all, and how many were kept, by reason.

    Attributes:
        asked: how many paths were asked for, each branch counted.
        unasked: how many were not asked for, since `collection.hidden_suspect_limit` does not allow more.
        live: every address that the paths which were asked for have.
    """

    candidates: R
    kept: Mapping[str, int] = field(default_factory=dict)
    asked: int = 0
    unasked: int = 0
    live: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Chosen:
    """Places to ask for (PLACES), each once, and how many questions are left out."""

    places: pa.Table
    left_out: int


@contextmanager
def clear_hidden(
    step: Step[R],
    candidates: R,
    heads: Mapping[str, str],
    columns: pa.Schema,
    listed: Callable[[], R] | None = None,
    record_heads: bool = False,
) -> Iterator[Cleared[R]]:
    """Leaves out candidates that a branch has staged with the content of a committed object.

    Branches of the repositories in `also_live` are looked at in the same way; their heads are asked for here. The rows
    that this yields may depend on tables that are let go at the exit, so they are of no use after it.

    Args:
        candidates: address and size at least, and `key` where an object lies elsewhere than at its address; used
            several times, so worth being cached.
        heads: metarange of the head of each branch of this repository.
        columns: of the candidates.
        listed: gives address, size and ETag of all objects of the store, where it was listed.
        record_heads: whether the ranges of heads are recorded, for the run that builds on this one.
    """
    ranges_of = partial(known_ranges.ranges_of_heads, step, record=record_heads)
    with ExitStack() as stack:
        of_heads = hidden.heads_by_range(heads, ranges_of(step.repository, {*heads.values()}))
        cleared = stack.enter_context(_clear_one(step, step.repository, candidates, of_heads, columns, listed))
        for other in step.repository.others:
            theirs = _heads(other)
            of_heads = hidden.heads_by_range(theirs, ranges_of(other, {*theirs.values()}))
            again = _clear_one(step, other, cleared.candidates, of_heads, columns, listed)
            found = stack.enter_context(again)
            cleared = Cleared(
                found.candidates,
                Counter(cleared.kept) + Counter(found.kept),
                cleared.asked + found.asked,
                cleared.unasked + found.unasked,
                cleared.live | found.live,
            )
        yield cleared


def _heads(repository: OpenRepository) -> dict[str, str]:
    """The metarange of each branch's head now; branches whose head is empty are left out."""
    commits = {branch.id: repository.api.commit(branch.commit_id) for branch in repository.api.branches()}
    return {branch: commit.metarange_id for branch, commit in commits.items() if commit.metarange_id}


@contextmanager
def _clear_one(
    step: Step[R],
    repository: OpenRepository,
    candidates: R,
    of_heads: Mapping[str, HeadRange],
    columns: pa.Schema,
    listed: Callable[[], R] | None,
) -> Iterator[Cleared[R]]:
    """Leaves out candidates that branches of one repository have staged with the content of a committed object."""
    engine = step.engine
    amounts = _by_size(engine.collect(engine.map_batches(candidates, partial(_count_sizes, None), _OF_SIZE)))
    weights = {range_id: len(head.branches) for range_id, head in of_heads.items()}
    sizes = pa.array(amounts, pa.int64())
    read = References.from_step(step, repository).head_entries(known_ranges.select_ranges(step, of_heads, sizes), sizes)
    with engine.cached(read, at_most=sys.maxsize) as entries:
        counted = engine.collect(engine.map_batches(entries, partial(_count_sizes, weights), _OF_SIZE))
        if not (questions := _by_size(counted)):
            yield Cleared(candidates)
            return
        looking = choose_sizes(amounts, questions, step.repository.settings.hidden_suspect_limit, step.plan.run_id)
        with known_contents(step, candidates, entries, columns, looking, listed) as contents:
            yield _clear(step, repository, candidates, contents, of_heads, weights)


def _count_sizes(weights: Mapping[str, int] | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How many rows of a task there are of each size (_OF_SIZE); with weights, each row counts by its range's."""
    amounts: dict[int, int] = {}
    for batch in batches:
        ones = [1] * batch.num_rows
        counts = ones if weights is None else [weights[range_id] for range_id in batch.column("range_id").to_pylist()]
        for size, count in zip(batch.column("size").to_pylist(), counts, strict=True):
            amounts[size] = amounts.get(size, 0) + count
    if amounts:
        yield pa.record_batch(
            [pa.array(amounts.keys(), pa.int64()), pa.array(amounts.values(), pa.int64())], schema=_OF_SIZE
        )


def _by_size(counted: pa.Table) -> dict[int, int]:
    """How many rows there are of each size, over all tasks."""
    amounts: dict[int, int] = {}
    for size, count in zip(counted.column("size").to_pylist(), counted.column("number").to_pylist(), strict=True):
        amounts[size] = amounts.get(size, 0) + count
    return amounts


def _clear(
    step: Step[R],
    repository: OpenRepository,
    candidates: R,
    known: Known[R],
    heads: Mapping[str, HeadRange],
    weights: Mapping[str, int],
) -> Cleared[R]:
    engine = step.engine
    chosen = _choose(step, engine.same_content(known.entries, known.candidates), weights)
    if not chosen.places.num_rows and not chosen.left_out:
        return Cleared(candidates)
    answers = hidden.ask(repository.api, step.repository.namespace, chosen.places, heads)
    step.log(
        f"asked for {chosen.places.num_rows:,} paths that may have the content of a candidate, on each branch: "
        f"{answers.asked:,} questions in {answers.requests:,} requests"
    )
    live = engine.table(pa.table({"address": pa.array(sorted(answers.live), pa.string())}))
    kept = {Kept.HIDDEN_STAGED.value: engine.count(engine.among_exactly(candidates, live))}
    cleared = engine.without_exactly(candidates, live)
    if chosen.left_out or answers.unaskable.num_rows:
        answered = engine.without_matching(engine.table(chosen.places), engine.table(answers.unaskable), PLACES.names)
        unknown = engine.without_matching(known.entries, answered, PLACES.names)
        contents = engine.without_exactly(known.candidates, live)
        uncertain = engine.select(engine.same_content(contents, unknown), "address")
        reason = Kept.UNCERTAIN if chosen.left_out else Kept.UNASKABLE
        kept[reason.value] = engine.count(uncertain)
        cleared = engine.without_exactly(cleared, uncertain)
    return Cleared(
        cleared, {why: count for why, count in kept.items() if count}, answers.asked, chosen.left_out, answers.live
    )


def _choose(step: Step[R], alike: R, weights: Mapping[str, int]) -> _Chosen:
    """Chooses the places to ask for, so that as many contents as possible are covered: those at few places come first.

    Args:
        alike: entries (HEAD_ENTRIES) whose content may be that of a candidate.
        weights: on how many branches each range is.
    """
    engine, limit = step.engine, step.repository.settings.hidden_suspect_limit
    count = partial(_count_questions, weights)
    with engine.cached(engine.distinct(engine.select(alike, *_ALIKE)), at_most=sys.maxsize) as rows:
        found = engine.collect(rows, limit=_FEW_PLACES + 1)
        few = found.num_rows <= _FEW_PLACES
        counted = pa.Table.from_batches(count(found.to_batches()), _COUNTED) if few else None
        if counted is None:
            counted = engine.collect(engine.map_batches(rows, count, _COUNTED))
        contents, left_out = _within(limit, counted)
        if contents is not None:
            holds = partial(_is_among, contents)
            found = found.filter(holds(found)) if few else engine.collect(engine.where(rows, holds))
        elif not few:
            found = engine.collect(rows)
    return _Chosen(found.group_by(PLACES.names).aggregate([]).cast(PLACES), left_out)


def _count_questions(weights: Mapping[str, int], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Counts the questions that the places of a task take, by content (_COUNTED)."""
    questions: dict[Content, int] = {}
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in ("range_id", "size", "etag")]
        for range_id, size, etag in zip(*columns, strict=True):
            questions[size, etag] = questions.get((size, etag), 0) + weights[range_id]
    if questions:
        rows = [(size, etag, number) for (size, etag), number in questions.items()]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), _COUNTED, strict=True)],
            schema=_COUNTED,
        )


def _within(limit: int, counted: pa.Table) -> tuple[frozenset[Content] | None, int]:
    """The contents that can be asked for, those with the fewest questions first, and how many questions others have.

    None stands for all of them.
    """
    questions: dict[Content, int] = {}
    for row in counted.to_pylist():
        content = (row["size"], row["etag"])
        questions[content] = questions.get(content, 0) + row["questions"]
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


def _is_among(contents: Collection[Content], rows: pa.RecordBatch | pa.Table) -> pa.BooleanArray:
    """Which rows have one of these contents."""
    columns = [rows.column(name).to_pylist() for name in ("size", "etag")]
    return pa.array([content in contents for content in zip(*columns, strict=True)], pa.bool_())
