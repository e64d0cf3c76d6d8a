"""Candidates that may be staged where the server does not list them: found by content, asked for by path."""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

import pyarrow as pa

from lakefs_gc_assets.collector.eligibility import Kept
from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.frame.schemas import HEAD_ENTRIES
from lakefs_gc_assets.collector.live import hidden
from lakefs_gc_assets.collector.live.contents import Known, known_contents
from lakefs_gc_assets.collector.live.hidden import PLACES, HeadRange
from lakefs_gc_assets.collector.step import Step

_FEW_PLACES = 10_000
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
        unasked: how many more there are than may be asked for.
        live: every address that these paths have.
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
def clear_hidden(step: Step[R], candidates: R, heads: Mapping[str, str], columns: pa.Schema) -> Iterator[Cleared[R]]:
    """Leaves out candidates that a branch has staged with the content of a committed object.

    What is left may be made from what was read here, so it is of use until the exit only.

    Args:
        candidates: address and size at least, and `key` where an object lies elsewhere than at its address; used
            several times, so worth being cached.
        heads: metarange of each branch's head.
        columns: of the candidates.
    """
    engine, repository = step.engine, step.repository
    sizes = engine.collect(engine.distinct(engine.select(candidates, "size"))).column("size").combine_chunks()
    of_heads = hidden.heads_by_range(repository.store, heads)
    read = step.references().head_entries(sorted(of_heads), sizes)
    with (
        engine.cached(read, at_most=sys.maxsize) as entries,
        known_contents(step, candidates, entries, columns) as known,
    ):
        yield _clear(step, candidates, known, of_heads)


def _clear(step: Step[R], candidates: R, known: Known[R], heads: Mapping[str, HeadRange]) -> Cleared[R]:
    engine, repository = step.engine, step.repository
    chosen = _choose(step, engine.same_content(known.entries, known.candidates), heads)
    if not chosen.places.num_rows and not chosen.left_out:
        return Cleared(candidates)
    answers = hidden.ask(repository.api, repository.namespace, chosen.places, heads)
    step.log(
        f"asked for {chosen.places.num_rows:,} paths that may have the content of a candidate, on each branch: "
        f"{answers.asked:,} questions in {answers.requests:,} requests"
    )
    live = engine.table(pa.table({"address": pa.array(sorted(answers.live), pa.string())}))
    kept = {Kept.HIDDEN_STAGED.value: engine.count(engine.among_exactly(candidates, live, len(answers.live)))}
    cleared = engine.without_exactly(candidates, live, len(answers.live))
    if chosen.left_out or answers.unaskable.num_rows:
        answered = engine.without_matching(engine.table(chosen.places), engine.table(answers.unaskable), PLACES.names)
        unknown = engine.without_matching(known.entries, answered, PLACES.names)
        contents = engine.without_exactly(known.candidates, live, len(answers.live))
        uncertain = engine.select(engine.same_content(contents, unknown), "address")
        reason = Kept.UNCERTAIN if chosen.left_out else Kept.UNASKABLE
        kept[reason.value] = engine.count(uncertain)
        cleared = engine.without_exactly(cleared, uncertain)
    return Cleared(
        cleared, {why: count for why, count in kept.items() if count}, answers.asked, chosen.left_out, answers.live
    )


def _choose(step: Step[R], alike: R, heads: Mapping[str, HeadRange]) -> _Chosen:
    """The places that may be asked for, as many contents as possible: one at many paths must not keep all others.

    Args:
        alike: entries (HEAD_ENTRIES) whose content may be that of a candidate.
    """
    engine, limit = step.engine, step.repository.settings.hidden_suspect_limit
    weights = {range_id: len(head.branches) for range_id, head in heads.items()}
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
    """By content, how many questions the places of a task are."""
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
