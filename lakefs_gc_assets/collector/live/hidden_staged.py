"""Candidates that may be staged where the server does not list them: found by content, asked for by path."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Generic

import pyarrow as pa
import pyarrow.compute as pc

from lakefs_gc_assets.collector import digests
from lakefs_gc_assets.collector.eligibility import PLAIN_ETAG, Kept
from lakefs_gc_assets.collector.engine import R
from lakefs_gc_assets.collector.frame.schemas import HEAD_ENTRIES, LISTED
from lakefs_gc_assets.collector.live import hidden
from lakefs_gc_assets.collector.live.hidden import Question
from lakefs_gc_assets.collector.repository import OpenRepository
from lakefs_gc_assets.collector.step import Step
from lakefs_gc_assets.storage.opening import StoreOpener

_SAMPLE = 16
_SAMPLED_BYTES = 1024 * 1024
_LARGE_SAMPLE = 2
_QUESTIONS = pa.schema([HEAD_ENTRIES.field("range_id"), HEAD_ENTRIES.field("path")])
_CONTENTS = pa.schema([LISTED.field("address"), LISTED.field("size"), LISTED.field("etag")])
"""Address, size and ETag of candidates, where the ETag is null or the MD5 of the content."""
_SAMPLED = pa.schema([pa.field("key", pa.string()), pa.field("size", pa.int64()), pa.field("etag", pa.string())])


@dataclass(frozen=True)
class Cleared(Generic[R]):
    """Candidates without those that are staged after all, and how many were kept, by reason.

    Attributes:
        asked: how many paths were asked for.
        live: every address that these paths have.
    """

    candidates: R
    kept: Mapping[str, int] = field(default_factory=dict)
    asked: int = 0
    live: frozenset[str] = frozenset()


@contextmanager
def clear_hidden(step: Step[R], candidates: R, heads: Mapping[str, str], columns: pa.Schema) -> Iterator[Cleared[R]]:
    """Leaves out candidates that a branch has staged with the content of a committed object.

    So it is with branches of other repositories that count, whose heads are asked for here. What is left may be made
    from what was read here, so it is of use until the exit only.

    Args:
        candidates: address, size and etag at least, and `key` where an object lies elsewhere than at its address; used
            several times, so worth being cached.
        heads: metarange of each of this repository's branches' head.
        columns: of the candidates.
    """
    repository = step.repository
    with ExitStack() as stack:
        cleared = stack.enter_context(_cleared(step, repository, candidates, heads, columns))
        for other in repository.others:
            found = stack.enter_context(_cleared(step, other, cleared.candidates, _heads(other), columns))
            kept = Counter(cleared.kept) + Counter(found.kept)
            cleared = Cleared(found.candidates, kept, cleared.asked + found.asked, cleared.live | found.live)
        yield cleared


def _heads(repository: OpenRepository) -> dict[str, str]:
    """The metarange of each branch's head now; branches whose head is empty are left out."""
    commits = {branch.id: repository.api.commit(branch.commit_id) for branch in repository.api.branches()}
    return {branch: commit.metarange_id for branch, commit in commits.items() if commit.metarange_id}


@contextmanager
def _cleared(
    step: Step[R], repository: OpenRepository, candidates: R, heads: Mapping[str, str], columns: pa.Schema
) -> Iterator[Cleared[R]]:
    """Leaves out what branches of one repository have staged so."""
    engine = step.engine
    sizes = engine.collect(engine.distinct(engine.select(candidates, "size"))).column("size").combine_chunks()
    branches = hidden.branches_by_range(repository.store, heads)
    read = step.references(repository).head_entries(sorted(branches), sizes)
    with (
        engine.cached(read, at_most=sys.maxsize) as entries,
        engine.cached(know_contents(step, candidates, entries, columns), at_most=sys.maxsize) as contents,
    ):
        yield _clear(step, repository, candidates, entries, contents, branches)


def _clear(
    step: Step[R],
    repository: OpenRepository,
    candidates: R,
    entries: R,
    contents: R,
    branches: Mapping[str, tuple[str, ...]],
) -> Cleared[R]:
    engine = step.engine
    limit = step.repository.settings.hidden_suspect_limit
    alike = engine.distinct(engine.select(engine.same_content(entries, contents), "range_id", "path"))
    rows = engine.collect(alike, limit=limit + 1).to_pylist()
    if not rows:
        return Cleared(candidates)
    questions = [Question(row["range_id"], bytes(row["path"])) for row in rows]
    answers = hidden.ask(repository.api, step.repository.namespace, questions[:limit], branches, limit)
    step.log(f"asked for {answers.asked:,} paths that have the content of a candidate")
    live = engine.table(pa.table({"address": pa.array(sorted(answers.live), pa.string())}))
    kept = {Kept.HIDDEN_STAGED.value: engine.count(engine.among_exactly(candidates, live, len(answers.live)))}
    cleared = engine.without_exactly(candidates, live, len(answers.live))
    if answers.unasked or len(questions) > limit:
        known = set(questions[:limit]) - set(answers.unasked)
        asked = engine.table(pa.Table.from_pylist([asdict(question) for question in known], _QUESTIONS))
        unknown = engine.without_matching(entries, asked, ("range_id", "path"))
        uncertain = engine.select(
            engine.same_content(engine.without_exactly(contents, live, len(answers.live)), unknown), "address"
        )
        kept[Kept.UNCERTAIN.value] = engine.count(uncertain)
        cleared = engine.without_exactly(cleared, uncertain)
    return Cleared(cleared, {why: count for why, count in kept.items() if count}, answers.asked, answers.live)


def know_contents(step: Step[R], candidates: R, entries: R, columns: pa.Schema) -> R:
    """The contents of candidates (address, size, etag), where the ETag is null or the MD5 of the content.

    Where the store gives no ETags, or a sample shows that they are something else, candidates that have the size of an
    entry are read.
    """
    engine, store = step.engine, step.repository.store
    key = "key" if "key" in columns.names else "address"
    sampled = engine.collect(engine.map_batches(candidates, partial(_sample, key), _SAMPLED)).to_pylist()
    plain = sorted((row for row in sampled if row["etag"] is not None), key=_as_sampled)[:_SAMPLE]
    small = [row for row in plain if row["size"] <= _SAMPLED_BYTES] or plain[:_LARGE_SAMPLE]
    readable = [(row["key"], row["etag"]) for row in small if row["size"] <= digests.LARGEST_READ]
    trusted = len(readable) == len(small) and digests.etags_are_digests(store, readable)
    if not trusted:
        step.log("the store's ETags are no MD5 of the content: candidates of the size of a committed object are read")
    if trusted and len(plain) == len(sampled):
        return engine.select(candidates, *_CONTENTS.names)
    sizes = engine.collect(engine.distinct(engine.select(entries, "size"))).column("size").combine_chunks()
    read = partial(_read_contents, step.repository.opener, key, trusted, sizes)
    return engine.map_batches(candidates, read, _CONTENTS)


def _as_sampled(row: Mapping[str, object]) -> tuple[int, str]:
    """Small ones first, and of these at random: where all are large, a few of the smallest."""
    size, key = row["size"], row["key"]
    assert isinstance(size, int) and isinstance(key, str)
    return max(size, _SAMPLED_BYTES), key[::-1]


def _sample(key: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Of the rows of a task those that a sample would have first, and one whose ETag is no MD5, as a null."""
    rows: list[dict[str, object]] = []
    unknown = False
    for batch in batches:
        plain = pc.fill_null(pc.match_substring_regex(batch.column("etag"), PLAIN_ETAG), False)
        unknown = unknown or not pc.all(plain).as_py()
        there = batch.filter(pc.and_(plain, pc.greater(batch.column("size"), 0)))
        named = pa.record_batch([there.column(key), there.column("size"), there.column("etag")], schema=_SAMPLED)
        rows = sorted([*rows, *named.to_pylist()], key=_as_sampled)[:_SAMPLE]
    rows += [{"key": None, "size": None, "etag": None}] if unknown else []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _SAMPLED)


def _read_contents(
    opener: StoreOpener, key: str, trusted: bool, sizes: pa.Int64Array, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Reads objects of these sizes whose ETag says nothing."""
    for batch in batches:
        etags = batch.column("etag").to_pylist() if trusted else [None] * batch.num_rows
        known = pc.is_in(batch.column("size"), value_set=sizes).to_pylist()
        rows = zip(batch.column(key).to_pylist(), batch.column("size").to_pylist(), etags, known, strict=True)
        found: list[str | None] = []
        for name, size, etag, wanted in rows:
            if etag is None and wanted and 1 <= size <= digests.LARGEST_READ:
                found.append(digests.content_digest(opener.open(), name))
            else:
                found.append(etag)
        yield pa.record_batch(
            [batch.column("address"), batch.column("size"), pa.array(found, pa.string())], schema=_CONTENTS
        )
